"""The embeddings of many images in a file: by any number of processes, resumable at any moment.

The work is cut into blocks of images. Until all are done, a folder beside the output holds the
memory-mapped embeddings, a mark for each finished block and what the embeddings are of. A block
belongs to one process, so no image is embedded or counted twice; after an interruption any number
of processes do the blocks that have no mark yet.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.data.sources.source import Images, PreparedImages, images_digest
from sphereface2.files import (
    WorkFolder,
    on_full_disk,
    parse_json,
    put_in_place,
    remove,
    take_room,
    write_atomically,
)
from sphereface2.models.embedder import (
    BatchEmbedder,
    Embedder,
    Embeddings,
    absent_rows,
    offering_to_skip,
    prepare,
)
from sphereface2.models.folder import (
    IN_RUN,
    NETWORKS,
    LoadedModel,
    find_model,
    load_model,
    weights_digest,
)
from sphereface2.training.devices import choose_device
from sphereface2.training.distributed import current_team
from sphereface2.workers import Progress, Watch, unseen, unwatched

FORMAT = "sphereface2-embeddings-1"
_OF_THE_WORK = ("block_size",)  # says how the work was cut, not what came of it
_EMBEDDINGS = "embeddings.npy"
_MARKS = "done.npy"
_SECONDS_BETWEEN_MARKS = 5.0


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelEmbedder(Embedder):
    """The model of a folder, alone or as one of the ranks that torchrun started.

    batches: what runs its network
    missing: what becomes of images that cannot be read; None: they are an
        error, whose message offers nothing else
    """

    batches: BatchEmbedder
    model: LoadedModel
    folder: Path
    digest: str
    watch: Watch = unwatched
    missing: Missing | None = None

    @property
    def flip(self) -> bool:
        return self.batches.flip

    def embed(
        self, images: Images, *, missing: Missing = "error", progress: Progress = unseen
    ) -> Embeddings:
        return self.batches.embed(images, missing=missing, progress=progress)

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

    def extract(
        self,
        images: PreparedImages,
        output: Path,
        *,
        title: str = "embedding",
        names: Sequence[str] | None = None,
        people: Sequence[str] | None = None,
        overwrite: bool | None = None,
        digest: str | None = None,
    ) -> Embeddings:
        """The embeddings in `output`, memory-mapped; `names` and `people` go into a .txt beside it.

        digest: stands for the images, all of which can be read; if not given, that is looked at.
        To be called by all ranks. A file that is there already is refused or replaced as
        `overwrite` says; by default it is taken if it is of this model and these images, replaced
        if it is another's extraction, and refused if it is not known what it is.
        """
        team = current_team()
        job = Extraction(
            output,
            count=len(images),
            dim=self.model.embedding_dim,
            what={
                "format": FORMAT,
                "model": self.digest,
                "flip": self.flip,
                "names": _digest_of(names or ()),
                "people": _digest_of(people or ()),
                # Whoever asks for all images must not get these, of which some may be missing.
                **({"missing": "skip"} if self.missing == "skip" else {}),
            },
            block_size=self.batches.batch_size,
        )
        job.what["pictures"] = digest or team.from_first(
            lambda: self._looked_at(job, images, overwrite)
        )
        if overwrite is None and team.from_first(lambda: _is_of_this(output, job.what)):
            return _mapped(output)
        with self.watch(title) as progress:
            begun = team.from_first(lambda: job.start(overwrite=overwrite is not False))
            if begun:
                progress(begun, job.count)
            with team.together(), self._offering_to_skip():
                job.work(
                    self.batches,
                    images,
                    share=(team.rank, team.world),
                    missing=self.missing or "error",
                    progress=progress,
                )
        kept = "its embeddings are kept"
        with team.together(), on_full_disk(output, kept=kept):
            if team.is_first:
                # The file gets its name last: so that all that belongs to it is there as well.
                write_atomically(output.with_suffix(".json"), _note(job.what))
                if names is not None:
                    write_atomically(output.with_suffix(".txt"), _name_lines(names, people))
                job.finish()
        return _mapped(output)

    def _looked_at(self, job: Extraction, images: PreparedImages, overwrite: bool | None) -> str:
        """A digest of the images, which are checked first where the work begins."""
        if job.target.exists() and overwrite is False:
            job.start()  # says that the file is in the way, before the long check
        if not job.target.exists() and not job.path.exists():
            with self.watch("checking the images") as progress, self._offering_to_skip():
                prepare(images, self.missing, workers=self.batches.workers, progress=progress)
        return images_digest(images)

    def _offering_to_skip(self) -> AbstractContextManager[None]:
        return nullcontext() if self.missing is None else offering_to_skip()


def is_model(path: Path) -> bool:
    """Whether a path is a model folder, its network, or a run folder that holds one."""
    if path.name in NETWORKS and path.is_file():
        return True
    folders = (path, path / IN_RUN)
    return any((folder / name).is_file() for folder in folders for name in NETWORKS)


def open_embedder(
    path: Path,
    *,
    flip: bool | None = None,
    workers: int = 1,
    batch_size: int = 256,
    device: str = "auto",
    missing: Missing | None = None,
    watch: Watch = unwatched,
) -> ModelEmbedder:
    """The model of a run or model folder on this rank's own device.

    flip: whether the mirror image's embedding is added; by default what the folder says
    """
    folder = find_model(path)
    model = load_model(folder)
    place = choose_device(current_team().device_name(device))
    return ModelEmbedder(
        batches=model.embedder(flip=flip, workers=workers, batch_size=batch_size, device=place),
        model=model,
        folder=folder,
        digest=weights_digest(folder),
        watch=watch,
        missing=missing,
    )


def read_note(embeddings: Path) -> dict[str, Any] | None:
    """What the .json beside saved embeddings says they are of; None if we did not write it."""
    try:
        note = parse_json(embeddings.with_suffix(".json").read_text(encoding="utf-8"))
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
    # Separated by tabs: names may have blanks.
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


def _mapped(path: Path) -> Embeddings:
    table: Embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
    return table


class Extraction(WorkFolder):
    """The embeddings of `count` images of dimension `dim` on their way into the file `output`.

    `what` says what they are of (the model, the images, the options); work that was begun for
    something else is refused. Call `start` in one process, then `work` in each, and `finish` in one
    process after all of them.
    """

    OWN = (_EMBEDDINGS, _MARKS)

    def __init__(
        self,
        output: Path,
        *,
        count: int,
        dim: int,
        what: Mapping[str, Any],
        block_size: int = 256,
    ) -> None:
        if output.suffix != ".npy":
            raise ValueError(f"{output}: embeddings are written as .npy; give such a name")
        if count < 1:
            raise ValueError("there are no images to embed")
        if block_size < 1:
            raise ValueError(f"the block size must be at least 1, got {block_size}")
        super().__init__(output)
        self.count = count
        self.dim = dim
        self.block_size = block_size
        self.what = {"images": count, "dim": dim, "block_size": block_size, **what}

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block_size)

    def start(self, *, overwrite: bool = False) -> int:
        """Lay out the files, or find those of an interrupted extraction; the images done so far."""
        if self.target.exists() and not overwrite:
            if not (self.path / _EMBEDDINGS).exists() and self.noted() is not None:
                remove(self.path)  # its last process was killed when all was in place
            raise ValueError(f"{self.target} exists already; choose another name or --overwrite")
        if self.noted() is not None and all((self.path / name).is_file() for name in self.OWN):
            self._require_same()
            return self.done()
        # Interrupted while it was laid out, or after its end: there is no work in it.
        self.require_own()
        remove(self.path)
        self.path.mkdir(parents=True)
        try:
            with on_full_disk(self.target, kept="nothing is embedded yet"):
                for name, kind, shape in (
                    (_EMBEDDINGS, np.float32, (self.count, self.dim)),
                    (_MARKS, np.uint8, (self.blocks,)),
                ):
                    np.lib.format.open_memmap(self.path / name, "w+", kind, shape).flush()
                    take_room(self.path / name)
                self.note(self.what)
        except OSError:
            remove(self.path)
            raise
        return 0

    def done(self) -> int:
        """The images embedded so far, by all processes."""
        marks = np.load(self.path / _MARKS)
        last = self.count - (self.blocks - 1) * self.block_size
        return int(marks[:-1].sum()) * self.block_size + int(marks[-1]) * last

    def work(
        self,
        embedder: BatchEmbedder,
        images: Images,
        *,
        share: tuple[int, int] = (0, 1),
        missing: Missing = "error",
        progress: Progress = unseen,
    ) -> None:
        """Embed the open blocks of the k-th (from 0) of n processes, `share` = (k, n).

        `progress` counts the images of all processes; `missing` as for `Embedder.embed`.
        """
        embeddings = np.lib.format.open_memmap(self.path / _EMBEDDINGS, "r+")
        marks = np.lib.format.open_memmap(self.path / _MARKS, "r+")
        mine = [number for number in np.flatnonzero(marks == 0) if number % share[1] == share[0]]
        unmarked: list[int] = []
        marked = time.monotonic()
        try:
            blocks = [self._block(int(number)) for number in mine]
            for block, found in embedder.embed_blocks(images, blocks, missing=missing):
                _require_finite(found, block, missing)
                embeddings[block.start : block.stop] = found
                unmarked.append(block.start // self.block_size)
                if time.monotonic() - marked > _SECONDS_BETWEEN_MARKS:
                    _mark(embeddings, marks, unmarked)
                    marked = time.monotonic()
                waiting = sum(len(self._block(number)) for number in unmarked)
                progress(min(self.count, self.done() + waiting), self.count)
        finally:
            _mark(embeddings, marks, unmarked)

    def finish(self) -> None:
        """Give the file its name, once every block is done."""
        missing = self.count - self.done()
        if missing:
            raise ValueError(
                f"{missing} of {self.count} images have no embedding in {self.path} yet; "
                "run the same command again to resume"
            )
        put_in_place(self.path / _EMBEDDINGS, self.target)
        with suppress(OSError):  # all is done; what stays is known as over by the next run
            remove(self.path)

    def _block(self, number: int) -> range:
        start = number * self.block_size
        return range(start, min(start + self.block_size, self.count))

    def _require_same(self) -> None:
        begun = self.noted() or {}
        wanted = json.loads(json.dumps(self.what))
        if "missing" in wanted:
            # Work begun on all images can be resumed without some of them, but not the reverse.
            begun["missing"] = wanted["missing"]
        for key in sorted({*begun, *wanted}):
            if begun.get(key) != wanted.get(key):
                raise ValueError(
                    f"{self.path} holds an extraction with {key} = {begun.get(key)}, now it is "
                    f"{wanted.get(key)}; remove that folder or choose another output"
                )
        self.note(self.what)


def _mark(embeddings: Embeddings, marks: npt.NDArray[np.uint8], blocks: list[int]) -> None:
    """Mark blocks as done: first their embeddings reach the disk, then the marks."""
    if blocks:
        assert isinstance(embeddings, np.memmap)
        assert isinstance(marks, np.memmap)
        embeddings.flush()
        marks[blocks] = 1
        marks.flush()
        blocks.clear()


def _require_finite(embeddings: Embeddings, block: range, missing: Missing) -> None:
    faulty = ~np.isfinite(embeddings).all(axis=1)
    if missing == "skip":
        faulty &= ~absent_rows(embeddings)
    if faulty.any():
        number = block.start + int(np.argmax(faulty))
        raise ValueError(f"the model's embedding of image {number} is not finite")
