"""The contract of a protocol: its options, the images it needs, its result and what that shows.

All ranks call `measure_protocol`: they share the embedding, the first measures.

A view holds numbers, tables and curves that any page or terminal can draw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import ImageFiles
from sphereface2.data.sources.image_list import require_images
from sphereface2.data.sources.source import PreparedImages
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.embedding_files import SavedEmbeddings, gather_features, rows_of
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.thresholds import Measure, rank_name
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.evaluation.verification import ScoreHistogram
from sphereface2.files import JsonResult
from sphereface2.models.embedder import Mirror, Vectors, fold_mirror
from sphereface2.workers import Progress, unseen

if TYPE_CHECKING:
    from sphereface2.evaluation.scoring import Subject
    from sphereface2.training.distributed import Team

MADE = "made.json"
"""Says that a benchmark is made, and how; its numbers stand for no real one."""
TRUTH = "truth.json"
"""The same for a generated one, with the numbers to be expected."""


@dataclass(frozen=True)
class MeanOverFolds:
    """A mean share and its deviation over the folds."""

    mean: float
    deviation: float


Value = str | int | float | Rate | Measure | MeanOverFolds | None
"""A cell: rates are printed in percent with their interval, None is a dash."""


@dataclass(frozen=True)
class Table:
    """Rows under headings; the first column holds names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Roc:
    """An accept curve, drawn as ROC and as DET; `measures` at their targets are marked on it."""

    points: RocPoints
    measures: Sequence[Measure]
    genuine: int
    impostors: int


@dataclass(frozen=True)
class RateCurve:
    """A rate over a count on a logarithmic axis, such as a CMC: over the rank.

    marks: numbers of the table, with their intervals, by the count that they belong to
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[int]
    y: Sequence[float]
    marks: Sequence[tuple[int, Measure]] = ()


@dataclass(frozen=True)
class Histogram:
    """How the scores lie; the thresholds of `measures` that are resolved are marked."""

    counts: ScoreHistogram
    measures: Sequence[Measure] = ()


@dataclass(frozen=True)
class Compared:
    """The same rate of several groups side by side, with their intervals; `line` is that of all."""

    title: str
    rates: Sequence[tuple[str, Rate]]
    line: float | None = None


@dataclass(frozen=True)
class Part:
    """What belongs together under one title.

    measures: the main table; headline: the numbers that are quoted first
    conventions: those of this part alone
    """

    title: str
    measures: Sequence[Measure] = ()
    headline: Sequence[Measure] = ()
    tables: Sequence[Table] = ()
    rocs: Sequence[Roc] = ()
    curves: Sequence[RateCurve] = ()
    histograms: Sequence[Histogram] = ()
    compared: Sequence[Compared] = ()
    conventions: Sequence[str] = ()


@dataclass(frozen=True)
class View:
    """All that a result shows; `summary` is what was judged, in one line."""

    parts: Sequence[Part]
    summary: str = ""


@dataclass(frozen=True)
class ProtocolResult(JsonResult):
    """What every protocol's result has: a name, its conventions, its view; and it lives as JSON.

    protocol: its name; conventions: what was counted how, printed beside the numbers.
    missing_images: how many were left out because they have no embedding
    """

    IS: ClassVar[str] = "a result of this protocol"
    WRITTEN_BY: ClassVar[str] = "sphereface2 evaluate --protocol NAME"

    protocol: str
    conventions: tuple[str, ...]
    missing_images: int = field(default=0, kw_only=True)

    def view(self) -> View:
        """The numbers, tables and curves to show."""
        raise NotImplementedError  # every result shows itself

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every number, in the order in which it is printed."""
        return tuple(measure for part in self.view().parts for measure in part.measures)


def cmc_view(title: str, cmc: Sequence[float], ranks: Sequence[Measure]) -> RateCurve:
    """A CMC curve with the measures of single ranks (`rank_name`) on it."""
    named = {measure.name: measure for measure in ranks}
    x = range(1, len(cmc) + 1)
    return RateCurve(
        title=f"CMC, {title}",
        x_label="rank",
        y_label="found (%)",
        x=x,
        y=cmc,
        marks=[(rank, named[rank_name(rank)]) for rank in x if rank_name(rank) in named],
    )


def strictest(measures: Sequence[Measure], *, target: float) -> list[Measure]:
    """The one at the strictest target that is resolved, but none stricter than `target`."""
    found = [
        (measure.at.target, measure)
        for measure in measures
        if measure.at is not None and measure.at.resolved and measure.at.target >= target
    ]
    return [min(found, key=lambda each: each[0])[1]] if found else []


# -- what a protocol needs and measures ------------------------------------------------------------

Result = TypeVar("Result", bound=ProtocolResult, covariant=True)


@dataclass(frozen=True, eq=False)
class ImageList:
    """Images that a protocol needs, in the order in which it wants their embeddings.

    name: its embeddings are kept as NAME.npy
    names: those of the images, by which saved embeddings are found; None: all that are saved
    images: opens them, where a model embeds them
    people: who each image shows, to be kept beside the embeddings
    form: what a name looks like in saved embeddings, for messages
    """

    name: str
    names: Sequence[str] | None = None
    images: Callable[[], PreparedImages] | None = None
    people: Sequence[str] | None = None
    form: str = "IMAGE"


@dataclass(frozen=True, eq=False)
class Embedded:
    """The embeddings of a list, without the images that have none.

    vectors: (n, D), or (n, 2D) if `mirror` says so; names, people: (n,), people only where known
    present: over the whole list, which images these are
    """

    vectors: Vectors
    mirror: Mirror
    names: Sequence[str]
    people: npt.NDArray[np.str_] | None
    present: npt.NDArray[np.bool_]
    source: str

    @property
    def folded(self) -> Vectors:
        """(n, D): the mirror image's added where it is beside the image's."""
        if self.mirror == "given":
            return self.vectors
        return fold_mirror(np.asarray(self.vectors), self.mirror)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """What a protocol measures: the embeddings of each of its lists, and what is known of them.

    flip: whether the mirror image's were added; None where that is not known
    calibration: what the model's folder keeps, if anything; it holds for embeddings of its `flip`
    """

    lists: Mapping[str, Embedded]
    flip: bool | None = None
    calibration: Calibration | None = None
    progress: Progress = unseen

    def __getitem__(self, name: str) -> Embedded:
        return self.lists[name]


class Protocol(ABC, Generic[Result]):
    """One benchmark; a subclass is a dataclass whose fields are its options, each with its help.

    `read` comes before `measure`, and may keep what it has read.
    """

    name: ClassVar[str]
    saved: ClassVar[Sequence[ImageList]] = ()
    """What saved embeddings hold, where their names say all that the folders of a root do."""

    @abstractmethod
    def read(self, root: Path) -> Sequence[ImageList]:
        """The images that are needed, as the lists or folders of `root` name them."""

    @abstractmethod
    def measure(self, embeddings: Embeddings) -> Result:
        """The result, with its conventions."""


class ListedFiles(ImageFiles):
    """The crops that a list names in a folder, all of which must be there."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__([folder / name for name in names])
        self.folder = folder
        self.names = names

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Check that every file is there."""
        require_images(self.folder, self.names, progress=progress)


def is_made(root: Path | None) -> bool:
    """Whether a benchmark was generated or rendered, so that published numbers do not apply."""
    return root is not None and any((root / name).is_file() for name in (TRUTH, MADE))


def require_root(root: Path | None, name: str) -> Path:
    """The folder of a benchmark, which must be there."""
    if root is None:
        raise ValueError(f"{name} needs --root DIR, the folder of its lists and images")
    if not root.is_dir():
        raise FileNotFoundError(f"--root: there is no folder {root}")
    return root


# -- from a protocol and what it judges to a result ------------------------------------------------


def measure_protocol(
    protocol: Protocol[Result], subject: Subject, root: Path | None
) -> Result | None:
    """The result, with what only this level knows among its conventions; None but on rank 0."""
    from sphereface2.training.distributed import current_team  # loads torch

    team, saved = current_team(), subject.embeddings
    if root is None and saved is not None and saved.is_dir():
        root = saved  # lists and features often lie together
    with team.together(), subject.watch(f"reading the lists of {protocol.name}"):
        if saved is not None and protocol.saved:
            lists = protocol.saved
        else:
            lists = protocol.read(require_root(root, protocol.name))
    found = [_embedded(subject, each, protocol, team, alone=len(lists) == 1) for each in lists]
    if not team.is_first:
        return None
    embedded = {
        each.name: _present(subject, each, one) for each, one in zip(lists, found, strict=True)
    }
    images = sum(each.present.size for each in embedded.values())
    missing = images - sum(len(each.vectors) for each in embedded.values())
    flip = subject.flip_of(saved)
    with subject.watch(f"measuring {protocol.name}") as progress:
        result = protocol.measure(Embeddings(embedded, flip, subject.calibration(), progress))
    said = list(result.conventions)
    if flip is not None:
        said.append(
            f"embedding of an image: {'with' if flip else 'without'} its mirror image's added"
        )
    if missing:
        said.append(f"{missing:,} of {images:,} images have no embedding and are left out")
    if is_made(root):
        said.append("made data: not the images of the benchmark, not comparable with its numbers")
    return replace(result, conventions=tuple(said), missing_images=missing)


def _embedded(
    subject: Subject, wanted: ImageList, protocol: Protocol[Result], team: Team, *, alone: bool
) -> SavedEmbeddings:
    """The embeddings of a list, whether or not all of its images have one."""
    if subject.embeddings is not None:
        return _saved(subject, subject.embeddings, wanted, protocol, alone=alone)
    assert subject.embedder is not None
    assert wanted.images is not None
    assert wanted.names is not None
    with team.together():
        images = wanted.images()
    vectors = subject.embedder.extract(
        images,
        subject.output / f"{wanted.name}.npy",
        title=f"embedding {f'the images of {protocol.name}' if alone else wanted.name}",
        names=wanted.names,
        people=wanted.people,
    )
    return SavedEmbeddings(vectors, "given", wanted.names, None, wanted.name)


def _saved(
    subject: Subject, path: Path, wanted: ImageList, protocol: Protocol[Result], *, alone: bool
) -> SavedEmbeddings:
    """Saved embeddings of a list: one file, a part of one file, or a file of a folder."""
    if alone:
        saved = subject.read(path)
    elif path.is_dir():
        saved = _of_folder(subject, path, wanted, protocol)
    else:
        saved = subject.read(path)
        parts = [name.partition("/") for name in saved.names or ()]
        rows = [number for number, part in enumerate(parts) if part[0] == wanted.name]
        if not rows or any(parts[row][2].count("/") < wanted.form.count("/") for row in rows):
            forms = " and ".join(f"{each.name}/{each.form}" for each in protocol.saved or [wanted])
            raise ValueError(
                f"{path}: the names beside it must be {forms}; 'sphereface2 extract MODEL DIR "
                "FILE' on the folder above both writes them so"
            )
        # Who an image shows is for the name to say: the person beside it is `wanted.name`.
        saved = replace(
            saved, vectors=saved.vectors[rows], names=[parts[row][2] for row in rows], people=None
        )
    if wanted.names is not None:
        vectors, _ = rows_of(saved, wanted.names, missing=subject.missing)
        saved = replace(saved, vectors=vectors, names=wanted.names, people=None)
    return saved


def _of_folder(
    subject: Subject, folder: Path, wanted: ImageList, protocol: Protocol[Result]
) -> SavedEmbeddings:
    """NAME.npy, or a folder NAME of feature files, which are gathered into such a table once."""
    table = folder / f"{wanted.name}.npy"
    if table.is_file():
        return subject.read(table)
    if wanted.names is not None:
        gathered, features = subject.output / table.name, folder / wanted.name
        with subject.watch(f"gathering the features of {wanted.name}") as progress:
            if not (gathered.is_file() or features.is_dir()):
                raise FileNotFoundError(
                    f"{folder} has neither {table.name} nor a folder {wanted.name} of feature files"
                )
            if not gathered.is_file():
                gather_features(
                    features, wanted.names, gathered, missing=subject.missing, progress=progress
                )
        # Not `read`: features may have a column more than the model, see `strip_noise_column`.
        return SavedEmbeddings(np.load(gathered, mmap_mode="r"), "given", None, None, str(gathered))
    tables = [f"{each.name}.npy" for each in protocol.saved]
    absent = [name for name in tables if not (folder / name).is_file()]
    raise FileNotFoundError(
        f"{folder} has no {' and no '.join(absent)}; for {protocol.name} the folder holds "
        f"{' and '.join(tables)}, each with a .txt of 'name person' lines beside it"
    )


def _present(subject: Subject, wanted: ImageList, saved: SavedEmbeddings) -> Embedded:
    """Without the images that have no embedding, where such are to be left out."""
    vectors, names = saved.vectors, saved.names or [""] * len(saved.vectors)
    people = saved.people if wanted.people is None else np.array(wanted.people)
    present = ~subject.absent(vectors)
    if not present.all():
        vectors = vectors[present]
        names = [names[row] for row in np.flatnonzero(present).tolist()]
        people = None if people is None else people[present]
    return Embedded(vectors, saved.mirror, names, people, present, saved.source)
