"""From a protocol and what it judges to a result: embed or read the images it names, measure.

All ranks call `measure_protocol`: they share the embedding, the first measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing, without_ending
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.embedding_files import (
    SavedEmbeddings,
    feature_table,
    in_order,
    read_embeddings,
)
from sphereface2.evaluation.protocols.protocol import (
    Embedded,
    Embeddings,
    ImageList,
    Protocol,
    Result,
    is_made,
    require_root,
)
from sphereface2.models.extraction import ModelEmbedder, read_names, read_note
from sphereface2.models.folder import stored_calibration
from sphereface2.models.unit_rows import Mirror, Vectors, absent_rows
from sphereface2.training.distributed import current_team
from sphereface2.workers import Watch, unwatched


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, or saved embeddings, or both: then the embeddings must be the model's.

    output: the folder that gets what is extracted or gathered, and later the result
    missing: whether images without an embedding are a mistake or left out
    mirrored: whether a row of saved embeddings is [image | mirror image]
    """

    embedder: ModelEmbedder | None
    embeddings: Path | None
    output: Path
    watch: Watch = unwatched
    missing: Missing = "error"
    mirrored: bool | None = None

    def __post_init__(self) -> None:
        if self.embedder is None and self.embeddings is None:
            raise ValueError("there is nothing to judge: give a MODEL or --embeddings FILE")

    @property
    def name(self) -> str:
        """The name of the file, run or model folder that is judged."""
        if self.embeddings is None:
            assert self.embedder is not None
            return self.embedder.name
        path = self.embeddings.resolve()
        return path.parent.name if path.stem == "embeddings" else path.stem

    @property
    def label(self) -> str:
        """How tables call it: by its head where that is known."""
        return self.name if self.embedder is None else self.embedder.label

    def read(self, path: Path) -> SavedEmbeddings:
        """Saved embeddings, which must be the model's where one is given."""
        dim = None if self.embedder is None else self.embedder.model.embedding_dim
        saved = read_embeddings(path, dim=dim, mirrored=self.mirrored)
        note = read_note(path)
        if self.embedder is not None and note is not None and note["model"] != self.embedder.digest:
            raise ValueError(
                f"{path} was extracted with another model than {self.embedder.folder}; extract "
                "again, or leave the model out"
            )
        listed = read_names(path)
        if listed is None:
            return saved
        # Our own file has tabs: a name may hold blanks.
        names, people = listed
        if len(names) != len(saved.vectors):
            raise ValueError(
                f"{path.with_suffix('.txt')} has {len(names):,} names for "
                f"{len(saved.vectors):,} embeddings; extract again"
            )
        return replace(saved, names=names, people=None if people is None else np.array(people))

    def absent(self, vectors: Vectors) -> npt.NDArray[np.bool_]:
        """Which images have no embedding and are to be left out; none where that is a mistake."""
        if self.missing == "error":
            return np.zeros(len(vectors), np.bool_)
        absent = absent_rows(vectors)
        if absent.all():
            raise ValueError("none of the images has an embedding")
        return absent

    def flip_of(self, path: Path | None = None) -> bool | None:
        """Whether the mirror image was added at extraction; None where that is not known."""
        if path is None:
            return self.embedder.flip if self.embedder is not None else None
        note = read_note(path)
        return None if note is None else bool(note["flip"])

    def calibration(self) -> Calibration | None:
        """What the model's folder keeps, if anything; it holds for embeddings of its own `flip`."""
        stored = None if self.embedder is None else stored_calibration(self.embedder.folder)
        return None if stored is None else Calibration.from_mapping(stored)


def named_alike(saved: SavedEmbeddings, names: Sequence[str]) -> SavedEmbeddings:
    """With names like those of a list: LFW's lists name images without their ending."""
    if saved.names is None or any(is_image_file(name) for name in names):
        return saved
    return replace(saved, names=[without_ending(name) for name in saved.names])


def rows_of(
    saved: SavedEmbeddings, names: Sequence[str], *, missing: Missing = "error"
) -> tuple[Vectors, Mirror]:
    """The vectors in the order of `names`; embeddings without names must be in it already.

    With `missing` "skip", names without an embedding get NaN.
    """
    if saved.names is None:
        if len(saved.vectors) != len(names):
            raise ValueError(
                f"{saved.source} has {len(saved.vectors):,} embeddings for the {len(names):,} "
                "images of the list and no names; put one name per line into a .txt beside it"
            )
        return saved.vectors, saved.mirror
    saved = named_alike(saved, names)
    if list(saved.names or ()) == list(names):
        return saved.vectors, saved.mirror
    rows = in_order(saved, names, missing=missing)
    vectors = saved.vectors[rows]
    if (rows < 0).any():
        vectors[rows < 0] = np.nan
    return vectors, saved.mirror


def measure_protocol(
    protocol: Protocol[Result], subject: Subject, root: Path | None
) -> Result | None:
    """The result, with what only this level knows among its conventions; None but on rank 0."""
    team, saved = current_team(), subject.embeddings
    if root is None and saved is not None and saved.is_dir():
        root = saved  # lists and features often lie together
    with team.together(), subject.watch(f"reading the lists of {protocol.name}"):
        if saved is not None and protocol.saved:
            lists = protocol.saved
        else:
            lists = protocol.read(require_root(root, protocol.name))
    found = [_embedded(subject, each, protocol, alone=len(lists) == 1) for each in lists]
    if not team.is_first:
        return None
    embedded = {each.name: _present(subject, one) for each, one in zip(lists, found, strict=True)}
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
    subject: Subject, wanted: ImageList, protocol: Protocol[Result], *, alone: bool
) -> Embedded:
    """The embeddings of a list, whether or not all of its images have one."""
    if subject.embeddings is not None:
        return _saved(subject, subject.embeddings, wanted, protocol, alone=alone)
    assert subject.embedder is not None
    assert wanted.images is not None
    assert wanted.names is not None
    with current_team().together():
        images = wanted.images()
    vectors = subject.embedder.extract(
        images,
        subject.output / f"{wanted.name}.npy",
        title=f"embedding {f'the images of {protocol.name}' if alone else wanted.name}",
        names=wanted.names,
        people=wanted.people,
    )
    saved = SavedEmbeddings(vectors, "given", wanted.names, None, wanted.name)
    return _of_list(saved, wanted)


def _saved(
    subject: Subject, path: Path, wanted: ImageList, protocol: Protocol[Result], *, alone: bool
) -> Embedded:
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
    return _of_list(saved, wanted)


def _of_folder(
    subject: Subject, folder: Path, wanted: ImageList, protocol: Protocol[Result]
) -> SavedEmbeddings:
    """NAME.npy, or a folder NAME of feature files, which are gathered into such a table once."""
    table = folder / f"{wanted.name}.npy"
    if table.is_file():
        return subject.read(table)
    if wanted.names is not None:
        with subject.watch(f"gathering the features of {wanted.name}") as progress:
            gathered = feature_table(
                folder,
                wanted.name,
                wanted.names,
                store=subject.output,
                missing=subject.missing,
                progress=progress,
            )
        # Not `read`: features may have a column more than the model, see `strip_noise_column`.
        return SavedEmbeddings(np.load(gathered, mmap_mode="r"), "given", None, None, str(gathered))
    tables = [f"{each.name}.npy" for each in protocol.saved]
    absent = [name for name in tables if not (folder / name).is_file()]
    raise FileNotFoundError(
        f"{folder} has no {' and no '.join(absent)}; for {protocol.name} the folder holds "
        f"{' and '.join(tables)}, each with a .txt of 'name person' lines beside it"
    )


def _of_list(saved: SavedEmbeddings, wanted: ImageList) -> Embedded:
    people = saved.people if wanted.people is None else np.array(wanted.people)
    names = saved.names or [""] * len(saved.vectors)
    everyone = np.ones(len(saved.vectors), np.bool_)
    return Embedded(saved.vectors, saved.mirror, names, people, everyone, saved.source)


def _present(subject: Subject, each: Embedded) -> Embedded:
    """Without the images that have no embedding, where such are to be left out."""
    absent = subject.absent(each.vectors)
    if not absent.any():
        return each
    rows: Sequence[int] = np.flatnonzero(~absent).tolist()
    return replace(
        each,
        vectors=each.vectors[~absent],
        names=[each.names[row] for row in rows],
        people=None if each.people is None else each.people[~absent],
        present=~absent,
    )
