"""What a protocol judges: a model that embeds the images it names, or saved embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing, without_ending
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.embedding_files import SavedEmbeddings, in_order, read_embeddings
from sphereface2.models.extraction import ModelEmbedder, read_names, read_note
from sphereface2.models.folder import stored_calibration
from sphereface2.models.unit_rows import Mirror, Vectors, absent_rows
from sphereface2.progress import Watch, unwatched


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
    if not any(is_image_file(name) for name in names):
        # LFW's lists name images without their ending.
        saved = replace(saved, names=[without_ending(name) for name in saved.names])
    if list(saved.names or ()) == list(names):
        return saved.vectors, saved.mirror
    rows = in_order(saved, names, missing=missing)
    vectors = saved.vectors[rows]
    if (rows < 0).any():
        vectors[rows < 0] = np.nan
    return vectors, saved.mirror
