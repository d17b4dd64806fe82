"""Embeddings of very many images into a file: by any number of processes, resumable at any moment.

The work is cut into blocks of images. While it goes on, a folder beside the output holds the
memory-mapped embeddings, a mark for each finished block and what the embeddings are of. A block
belongs to one process, so no image is embedded or counted twice, and whoever goes on, with as many
processes as it likes, does the blocks that have no mark yet.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.data.sources.source import Images
from sphereface2.files import on_full_disk, write_atomically
from sphereface2.models.embedding import Preprocessing, embed_blocks
from sphereface2.models.unit_rows import absent_rows
from sphereface2.progress import Progress

if TYPE_CHECKING:
    import torch
    from torch import nn

_EMBEDDINGS = "embeddings.npy"
_MARKS = "done.npy"
_WHAT = "what.json"
_SECONDS_BETWEEN_MARKS = 5.0


class Extraction:
    """The embeddings of `count` images of dimension `dim` on their way into the file `output`.

    `what` says what they are of (the model, the images, the options); work that was begun for
    something else is refused. Call `start` in one process, then `work` in each, and `finish` in one
    process after all of them.
    """

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
        self.output = output
        self.folder = output.with_name(f"{output.name}.partial")
        self.count = count
        self.dim = dim
        self.block_size = block_size
        self.what = {"images": count, "dim": dim, "block_size": block_size, **what}

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block_size)

    def start(self, *, overwrite: bool = False) -> int:
        """Lay out the files, or find those of an interrupted extraction; the images done so far."""
        if self.output.exists() and not overwrite:
            raise ValueError(f"{self.output} exists already; choose another name or --overwrite")
        if all((self.folder / name).is_file() for name in (_EMBEDDINGS, _MARKS, _WHAT)):
            self._require_same()
            return self.done()
        # Interrupted while it was laid out, or after its end: there is no work in it.
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            with on_full_disk(self.output, kept="nothing is embedded yet"):
                _lay_out(self.folder / _EMBEDDINGS, np.dtype(np.float32), (self.count, self.dim))
                _lay_out(self.folder / _MARKS, np.dtype(np.uint8), (self.blocks,))
                what = json.dumps(self.what, indent=1, sort_keys=True)
                write_atomically(self.folder / _WHAT, what)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return 0

    def done(self) -> int:
        """The images embedded so far, by all processes."""
        marks = np.load(self.folder / _MARKS)
        last = self.count - (self.blocks - 1) * self.block_size
        return int(marks[:-1].sum()) * self.block_size + int(marks[-1]) * last

    def work(
        self,
        backbone: nn.Module,
        images: Images,
        *,
        preprocessing: Preprocessing,
        flip: bool = True,
        workers: int = 1,
        device: torch.device | str | None = None,
        share: tuple[int, int] = (0, 1),
        missing: Missing = "error",
        progress: Progress | None = None,
    ) -> None:
        """Embed the open blocks of the k-th (from 0) of n processes, `share` = (k, n).

        `progress` hears of all processes' images; `missing` as for `embed_blocks`.
        """
        embeddings = np.lib.format.open_memmap(self.folder / _EMBEDDINGS, "r+")
        marks = np.lib.format.open_memmap(self.folder / _MARKS, "r+")
        mine = [number for number in np.flatnonzero(marks == 0) if number % share[1] == share[0]]
        unmarked: list[int] = []
        told = time.monotonic()
        try:
            for block, found in embed_blocks(
                backbone,
                images,
                [self._block(int(number)) for number in mine],
                preprocessing=preprocessing,
                flip=flip,
                workers=workers,
                device=device,
                missing=missing,
            ):
                _require_finite(found, block, missing)
                embeddings[block.start : block.stop] = found
                unmarked.append(block.start // self.block_size)
                if time.monotonic() - told > _SECONDS_BETWEEN_MARKS:
                    _mark(embeddings, marks, unmarked)
                    told = time.monotonic()
                if progress is not None:
                    waiting = sum(len(self._block(number)) for number in unmarked)
                    progress(min(self.count, self.done() + waiting), self.count)
        finally:
            _mark(embeddings, marks, unmarked)

    def finish(self) -> None:
        """Give the file its name, once every block is done."""
        missing = self.count - self.done()
        if missing:
            raise ValueError(
                f"{missing} of {self.count} images have no embedding in {self.folder} yet; "
                "run the same command again to go on"
            )
        (self.folder / _EMBEDDINGS).replace(self.output)
        shutil.rmtree(self.folder)

    def _block(self, number: int) -> range:
        start = number * self.block_size
        return range(start, min(start + self.block_size, self.count))

    def _require_same(self) -> None:
        begun = json.loads((self.folder / _WHAT).read_text(encoding="utf-8"))
        wanted = json.loads(json.dumps(self.what))
        if "missing" in wanted:
            # What was begun with all images serves those who do without some, not the reverse.
            begun["missing"] = wanted["missing"]
        for key in sorted({*begun, *wanted}):
            if begun.get(key) != wanted.get(key):
                raise ValueError(
                    f"{self.folder} holds an extraction with {key} = {begun.get(key)}, now it is "
                    f"{wanted.get(key)}; remove that folder or choose another output"
                )
        write_atomically(self.folder / _WHAT, json.dumps(self.what, indent=1, sort_keys=True))


def _lay_out(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """A table of zeros whose place on the disk is taken."""
    np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
    # Without this the file is a hole, and a disk that fills up later ends the process by a signal.
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _mark(
    embeddings: npt.NDArray[np.float32], marks: npt.NDArray[np.uint8], blocks: list[int]
) -> None:
    """Mark blocks as done: first their embeddings reach the disk, then the marks."""
    if blocks:
        assert isinstance(embeddings, np.memmap)
        assert isinstance(marks, np.memmap)
        embeddings.flush()
        marks[blocks] = 1
        marks.flush()
        blocks.clear()


def _require_finite(embeddings: npt.NDArray[np.float32], block: range, missing: Missing) -> None:
    faulty = ~np.isfinite(embeddings).all(axis=1)
    if missing == "skip":
        faulty &= ~absent_rows(embeddings)
    if faulty.any():
        number = block.start + int(np.argmax(faulty))
        raise ValueError(f"the model's embedding of image {number} is not finite")
