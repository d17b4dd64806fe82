"""The contract of a protocol: its options, the images it needs, and what it makes of embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import ImageFiles
from sphereface2.data.sources.image_list import require_images
from sphereface2.data.sources.source import PreparedImages
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.views import ProtocolResult
from sphereface2.models.unit_rows import Mirror, Vectors, fold_mirror
from sphereface2.progress import Progress

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
    progress: Progress | None = None

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

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Check that every file is there."""
        require_images(self.folder, self.names, progress=progress)
