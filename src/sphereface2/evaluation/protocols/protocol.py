"""The contract of a protocol: its options, the images it needs, its result and what that shows.

A view holds numbers, tables and curves that any page or terminal can draw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import ImageFiles
from sphereface2.data.sources.image_list import require_images
from sphereface2.data.sources.source import PreparedImages
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.thresholds import Measure, rank_name
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.evaluation.verification import ScoreHistogram
from sphereface2.files import JsonResult
from sphereface2.models.embedder import Mirror, Vectors, fold_mirror
from sphereface2.workers import Progress, unseen

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
    marks = [(rank, named.get(rank_name(rank))) for rank in range(1, len(cmc) + 1)]
    return RateCurve(
        title=f"CMC, {title}",
        x_label="rank",
        y_label="found (%)",
        x=range(1, len(cmc) + 1),
        y=cmc,
        marks=[(rank, measure) for rank, measure in marks if measure is not None],
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
        """(n, D): the mirror image's added where it stands beside the image's."""
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
