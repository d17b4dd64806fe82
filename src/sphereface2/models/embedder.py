"""A model at work on many images: into a file, shared by all ranks, gone on with after a stop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.data.sources.source import PreparedImages, Source, images_digest
from sphereface2.files import on_full_disk, write_atomically
from sphereface2.models.embedding import SKIP, MissingImageError, prepare
from sphereface2.models.extraction import Extraction
from sphereface2.models.folder import (
    IN_RUN,
    WEIGHTS,
    LoadedModel,
    find_model,
    load_model,
    weights_digest,
)
from sphereface2.progress import Progress
from sphereface2.training.devices import choose_device
from sphereface2.training.distributed import current_team

Watch = Callable[[str], AbstractContextManager[Progress | None]]
FORMAT = "sphereface2-embeddings-1"
_OF_THE_WORK = ("block_size",)  # says how the work was cut, not what came of it


def unwatched(title: str) -> AbstractContextManager[Progress | None]:
    """Work that nobody watches."""
    return nullcontext()


class Faces:
    """The images of a source without their labels."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint8]:
        return self.source[index][0]

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Check that every image can be read."""
        self.source.prepare(workers=workers, progress=progress)


def is_model(path: Path) -> bool:
    """Whether a path is a model folder, or a run folder that holds one."""
    return any((folder / WEIGHTS).is_file() for folder in (path, path / IN_RUN))


@dataclass(frozen=True, eq=False)
class Embedder:
    """A model, and how it embeds: alone or as one of the ranks that torchrun started."""

    model: LoadedModel
    folder: Path
    digest: str
    device: torch.device
    flip: bool = True
    workers: int = 1
    batch_size: int = 256
    watch: Watch = unwatched
    missing: Missing | None = None
    """What becomes of images that cannot be read; None: a mistake, and nothing else is offered."""

    @property
    def name(self) -> str:
        """The name of the run or the model folder."""
        folder = self.folder.resolve()
        return folder.parent.name if folder.name == IN_RUN else folder.name

    @property
    def label(self) -> str:
        """The head it was trained with, by which tables and colours know it, or else its name."""
        head = self.model.config.get("extra", {}).get("head")
        return str(head["name"]) if isinstance(head, Mapping) and "name" in head else self.name

    def embed(
        self,
        images: PreparedImages,
        output: Path,
        *,
        title: str = "embedding",
        names: Sequence[str] | None = None,
        people: Sequence[str] | None = None,
        what: Mapping[str, Any] | None = None,
        overwrite: bool | None = None,
    ) -> npt.NDArray[np.float32]:
        """The embeddings in `output`, memory-mapped; `names` and `people` go into a .txt beside it.

        To be called by all ranks. `what` tells these images from others. A file that is there
        already is refused or replaced as `overwrite` says; by default it is taken if it is of this
        model and these images, replaced if it is another's extraction, and refused if it is not
        known what it is.
        """
        team = current_team()
        job = Extraction(
            output,
            count=len(images),
            dim=self.model.backbone.embedding_dim,
            what={
                "format": FORMAT,
                "model": self.digest,
                "flip": self.flip,
                "names": _digest_of(names or ()),
                "people": _digest_of(people or ()),
                # Embeddings that may be missing are for nobody who asks for all.
                **({"missing": "skip"} if self.missing == "skip" else {}),
                **(what or {}),
            },
            block_size=self.batch_size,
        )
        job.what["pictures"] = team.from_first(lambda: self._looked_at(job, images, overwrite))
        if overwrite is None and team.from_first(lambda: _is_of_this(output, job.what)):
            return _mapped(output)
        with self.watch(title) as progress:
            begun = team.from_first(lambda: job.start(overwrite=overwrite is not False))
            if progress is not None and begun:
                progress(begun, job.count)
            with team.together(), self._saying_how_to_skip():
                job.work(
                    self.model.backbone,
                    images,
                    preprocessing=self.model.preprocessing,
                    flip=self.flip,
                    workers=self.workers,
                    device=self.device,
                    share=(team.rank, team.world),
                    missing=self.missing or "error",
                    progress=progress,
                )
        kept = "its embeddings are kept"
        with team.together(), on_full_disk(output, kept=kept):
            if team.is_first:
                # The file gets its name last: whoever finds it, finds all that belongs to it.
                write_atomically(output.with_suffix(".json"), _note(job.what))
                if names is not None:
                    write_atomically(output.with_suffix(".txt"), _name_lines(names, people))
                job.finish()
        return _mapped(output)

    def _looked_at(self, job: Extraction, images: PreparedImages, overwrite: bool | None) -> str:
        """A digest of the images, which are checked first where the work begins."""
        if job.output.exists() and overwrite is False:
            job.start()  # says that the file is in the way, before the long check
        if not job.output.exists() and not job.folder.exists():
            with self.watch("checking the images") as progress, self._saying_how_to_skip():
                prepare(images, self.missing, workers=self.workers, progress=progress)
        return images_digest(images)

    @contextmanager
    def _saying_how_to_skip(self) -> Iterator[None]:
        try:
            yield
        except MissingImageError as error:
            if self.missing is None:
                raise
            raise MissingImageError(f"{error}; {SKIP}") from None


def open_embedder(
    path: Path,
    *,
    flip: bool | None = None,
    workers: int = 1,
    batch_size: int = 256,
    device: str = "auto",
    missing: Missing | None = None,
    watch: Watch = unwatched,
) -> Embedder:
    """The model of a run or model folder on this rank's own device.

    flip: whether the mirror image's embedding is added; by default what the folder says
    """
    for what, number in (("batch size", batch_size), ("workers", workers)):
        if number < 1:
            raise ValueError(f"{what} must be at least 1, got {number}")
    folder = find_model(path)
    model = load_model(folder)
    place = choose_device(current_team().device_name(device))
    model.backbone.to(place)
    return Embedder(
        model,
        folder,
        weights_digest(folder),
        place,
        flip=model.flip if flip is None else flip,
        workers=workers,
        batch_size=batch_size,
        watch=watch,
        missing=missing,
    )


def read_note(embeddings: Path) -> dict[str, Any] | None:
    """What the .json beside saved embeddings says they are of; None if we did not write it."""
    try:
        note = json.loads(embeddings.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) and note.get("format") == FORMAT else None


def read_names(embeddings: Path) -> tuple[list[str], list[str] | None] | None:
    """The names and people that an extraction of ours has written beside its embeddings."""
    path = embeddings.with_suffix(".txt")
    if read_note(embeddings) is None or not path.is_file():
        return None
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    lines = [line.split("\t") for line in text.removesuffix("\n").split("\n")]
    known = all(len(parts) == 2 for parts in lines)
    return [parts[0] for parts in lines], [parts[1] for parts in lines] if known else None


def _is_of_this(output: Path, what: Mapping[str, Any]) -> bool:
    if not output.exists():
        return False
    note = read_note(output)
    if note is None:
        raise ValueError(
            f"{output} is in the way: it is not known which model and images it is of; choose "
            "another --output"
        )
    wanted: dict[str, Any] = json.loads(_note(what))
    return note == wanted


def _note(what: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in what.items() if key not in _OF_THE_WORK}
    return json.dumps(kept, indent=1, sort_keys=True) + "\n"


def _name_lines(names: Sequence[str], people: Sequence[str] | None) -> bytes:
    # Parted by tabs: names may have blanks.
    wrong = [name for name in (*names, *(people or ())) if set(name) & set("\t\n\r")]
    if wrong:
        raise ValueError(
            f"{len(wrong)} names have a tab or a line break in them, such as {wrong[0]!r}; "
            "rename these files"
        )
    lines = names if people is None else map("\t".join, zip(names, people, strict=True))
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _digest_of(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _mapped(path: Path) -> npt.NDArray[np.float32]:
    table: npt.NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    return table
