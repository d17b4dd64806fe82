"""Convert verification sets: pairs to one .bin file, and a .bin to images that can be looked at."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs import VERIFICATION_SETS, format_of, recognised_format
from sphereface2.data.pairs.bin_set import BinWriter
from sphereface2.data.pairs.pair_list import MissingFilesError
from sphereface2.data.pairs.verification_set import StoredImages, VerificationSet
from sphereface2.data.sources.image_file import ending_of, look
from sphereface2.data.sources.source import BadImage
from sphereface2.datatools.convert.conversion import Conversion, Converted, Written
from sphereface2.datatools.convert.targets import mark_folder, report
from sphereface2.files import printable, put_in_place, write_atomically
from sphereface2.workers import Progress, Watch, counted, first_of


def looks_like_pairs(source: Path) -> bool:
    """Whether a file is a verification set, such as a .bin, LFW's pairs.txt or a pair list."""
    name = recognised_format(source)
    return name is not None and not VERIFICATION_SETS[name].draws


def convert_pairs(work: Conversion, watch: Watch) -> Converted:
    """Write a verification set as a .bin, or as a folder with images and a pair list."""
    began = time.monotonic()
    source, target, form = work.source, work.target, work.form
    if form not in ("bin", "folder"):
        raise ValueError(
            f"{printable(source)} holds pairs, which can be written as a .bin or as a folder; "
            f"{printable(target)} would be of the format {form}"
        )
    found = _open(source, work.root)
    stored = found.images
    assert isinstance(stored, StoredImages)  # as those of all kinds in files are
    state = source.stat()
    content = [state.st_size, state.st_mtime_ns]
    work.is_about(source, pairs=len(found.pairs), state=content)
    work.require_free(target)
    bad = _check(stored, found.pairs, work, watch)
    kept = ~np.isin(found.pairs, bad).any(axis=1)
    pairs, same = found.pairs[kept], found.same[kept]
    if not len(pairs):
        raise ValueError(f"no pair of {printable(source)} has two images that can be read")

    def make() -> Written:
        with watch(f"writing {counted(len(pairs), 'pair')} to {printable(target)}") as progress:
            if form == "bin":
                return _write_bin(stored, pairs, same, work, progress)
            return _write_folder(stored, pairs, same, found.people, work, progress)

    written = work.carry_out(make)
    images = 2 * len(pairs) if form == "bin" else len(np.unique(pairs))
    people = None if found.people is None else len(np.unique(found.people[np.unique(pairs)]))
    return Converted(
        path=target,
        format=form,
        images=images,
        people=people,
        pairs=len(pairs),
        bytes=written.bytes,
        written=written.new,
        skipped=int((~kept).sum()),
        seconds=time.monotonic() - began,
    )


def _open(source: Path, root: Path | None) -> VerificationSet:
    kind = VERIFICATION_SETS[format_of(source)]
    if kind.draws:
        raise ValueError(
            f"{printable(source)} holds no pairs, of which a .bin is made; give a pair list "
            "('path1 path2 0|1' per line) or a file as LFW's pairs.txt"
        )
    if root is not None and kind.read is None:
        raise ValueError(f"--root: {printable(source)} holds its images itself")
    start = {} if root is None else {"root": str(root)}
    try:
        return kind(path=str(source), **start)[0]
    except MissingFilesError as error:
        raise FileNotFoundError(error.advising(root="--root DIR")) from None


def _check(
    stored: StoredImages, pairs: NDArray[np.int64], work: Conversion, watch: Watch
) -> list[int]:
    bad: list[BadImage] = []
    wanted = np.unique(pairs).tolist()
    with watch(f"checking {counted(len(wanted), 'image')}") as progress:
        for done, index in enumerate(wanted, start=1):
            try:
                look(stored.encoded(index))
            except (ValueError, OSError) as error:
                bad.append(BadImage(index, stored.location(index), str(error)))
            report(progress, done, len(wanted))
    if bad and work.on_bad_image == "stop":
        raise ValueError(
            f"{len(bad)} of the {counted(len(wanted), 'image')} of {printable(work.source)} cannot "
            f"be used: {first_of(bad)}; nothing was written; --on-bad-image skip leaves their "
            "pairs out"
        )
    return [each.index for each in bad]


# -- a .bin --------------------------------------------------------------------------------------


def _write_bin(
    stored: StoredImages,
    pairs: NDArray[np.int64],
    same: NDArray[np.bool_],
    work: Conversion,
    progress: Progress,
) -> Written:
    made, part = work.path / "set.bin", work.path / "set.bin.part"
    order = pairs.ravel().tolist()
    there = len(order)
    if not made.exists():
        with part.open("r+b" if part.exists() else "w+b") as file:
            there = _take_up(file, len(order))
            writer = BinWriter(file)
            if file.tell() == 0:
                writer.begin()
            for done, index in enumerate(order[there:], start=there + 1):
                writer.write(stored.encoded(index))
                report(progress, done, len(order))
            writer.finish(same.tolist())
        put_in_place(part, made)
    size = made.stat().st_size
    return Written([(made, work.target)], len(order) - there, size)


def _take_up(file: BinaryIO, most: int) -> int:
    """Count the whole images of an unfinished .bin and cut off the rest."""
    begin = BinWriter.BEGIN
    size = os.fstat(file.fileno()).st_size
    count, end = 0, 0
    if file.read(len(begin)) == begin:
        end = len(begin)
        while count < most:
            head = file.read(5)
            if len(head) < 5 or head[:1] != b"B":
                break
            after = end + 5 + struct.unpack("<I", head[1:])[0] + 1
            file.seek(after - 1)
            if after > size or file.read(1) != b"a":
                break
            count, end = count + 1, after
    file.seek(end)
    file.truncate()
    return count


# -- a folder ------------------------------------------------------------------------------------


def _write_folder(
    stored: StoredImages,
    pairs: NDArray[np.int64],
    same: NDArray[np.bool_],
    people: NDArray[np.int64] | None,
    work: Conversion,
    progress: Progress,
) -> Written:
    """images/000012.jpg and so on (in a folder for each person where people are known)."""
    made = work.path / "images"
    (made / "images").mkdir(parents=True, exist_ok=True)
    wanted = np.unique(pairs).tolist()
    mark_folder(made, len(wanted))
    names: dict[int, str] = {}
    new = size = 0
    for done, index in enumerate(wanted, start=1):
        encoded = stored.encoded(index)
        folder = "images" if people is None else f"images/{people[index]:06d}"
        names[index] = f"{folder}/{index:06d}{ending_of(encoded)}"
        place = made / names[index]
        if not place.exists() or place.stat().st_size != len(encoded):
            write_atomically(place, encoded, by=work.path / "image.part", durable=False)
            new += 1
        size += len(encoded)
        report(progress, done, len(wanted))
    lines = [
        f"{names[first]} {names[second]} {int(answer)}\n"
        for (first, second), answer in zip(pairs.tolist(), same.tolist(), strict=True)
    ]
    part = work.path / "pairs.part"
    write_atomically(made / "pairs.txt", "".join(lines), by=part)
    return Written([(made, work.target)], new, size)
