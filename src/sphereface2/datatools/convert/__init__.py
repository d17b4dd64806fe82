"""Convert images and verification sets from one form to another, byte for byte."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs import VERIFICATION_SETS, format_of, recognised_format
from sphereface2.data.pairs.bin_set import BinWriter
from sphereface2.data.pairs.pair_list import MissingFilesError
from sphereface2.data.pairs.verification_set import StoredImages, VerificationSet
from sphereface2.data.sources import open_images
from sphereface2.data.sources.encoded import EncodedImages, OnBadImage
from sphereface2.data.sources.folder import NamedFiles
from sphereface2.data.sources.image_file import check_header, ending_of
from sphereface2.data.sources.source import BadImage
from sphereface2.datatools.convert.conversion import Conversion, Converted, Job, Written
from sphereface2.datatools.convert.targets import TARGETS, mark_folder, report
from sphereface2.files import printable, put_in_place, write_atomically
from sphereface2.registry import look_up
from sphereface2.workers import Progress, Watch, counted, first_of, unwatched

FORMATS = ("folder", "list", "recordio", "parquet", "bin")
_POLICIES: dict[str, OnBadImage] = {"stop": "stop", "skip": "skip"}
_ENDINGS = {
    ".rec": "recordio",
    ".parquet": "parquet",
    ".txt": "list",
    ".lst": "list",
    ".tsv": "list",
    ".bin": "bin",
}


def convert(
    source: Path,
    target: Path,
    *,
    root: Path | None = None,
    format: str | None = None,  # noqa: A002 - the word of the command line
    on_bad_image: str = "stop",
    overwrite: bool = False,
    workers: int | None = None,
    watch: Watch = unwatched,
) -> Converted:
    """Write the images of `source` as `target`; their names say which forms they are.

    Images are copied byte for byte. Nothing is written before every image has been checked; with
    `on_bad_image` "skip" unreadable ones are left out. All is made in `target`.partial and gets
    its name at the end; the same call resumes after an interruption, a kill or a full disk.
    """
    began = time.monotonic()
    form = _guess(target) if format is None else format
    look_up("format", dict.fromkeys(FORMATS), form)
    policy = look_up("on-bad-image", _POLICIES, on_bad_image)
    if not source.exists():
        raise FileNotFoundError(f"there is no {printable(source)} to convert")
    if target.name in ("", "..") or target.is_symlink():
        target = target.resolve()  # made beside the real place, on the same disk
    _refuse_each_other(source, target, form)
    work = Conversion(
        source, target, root=root, form=form, on_bad_image=policy, overwrite=overwrite
    )
    if form == "bin" or looks_like_pairs(source):
        if workers is not None:
            raise ValueError("--workers is for images; pairs are checked one by one: leave it out")
        return _convert_pairs(work, watch)
    images = open_images(source, root=root)
    notes = images.notes  # whether they are aligned, which the check adds, matters to a training
    work.is_about(images.path, images=len(images), state=_state(images))
    work.require_free(*TARGETS[form].places(target, images))
    facts = work.facts()
    if facts is None:
        bad = _check(images, on_bad_image=policy, workers=workers or 4, watch=watch)
    else:
        bad = facts["bad"]  # found by the run that was interrupted
    job = Job(images, left_out=bad)

    def make() -> Written:
        with watch(f"writing {counted(len(job), 'image')} to {printable(target)}") as progress:
            return TARGETS[form].write(job, work, progress)

    written = work.carry_out(make, bad=bad)
    return Converted(
        path=target,
        format=form,
        images=len(job),
        people=len(job.people),
        pairs=None,
        bytes=written.bytes,
        written=written.new,
        skipped=len(bad),
        seconds=time.monotonic() - began,
        notes=(*notes, *written.notes),
    )


def _guess(target: Path) -> str:
    ending = target.suffix.lower()
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    # crops.v2 is a folder; crops.zip, crops.csv or crops.parqet would be meant as something else.
    if re.fullmatch(r"\.[a-z]{2,8}[0-9]?", ending) and not target.is_dir():
        near = get_close_matches(ending, _ENDINGS, n=1)
        hint = f", did you mean {near[0]}?" if near else ";"
        raise ValueError(
            f"{printable(target)}: nothing is written with the ending {ending}{hint} give "
            f"{', '.join(_ENDINGS)}, a name without an ending for a folder, or say what it is with "
            "--format"
        )
    return "folder"


def _refuse_each_other(source: Path, target: Path, form: str) -> None:
    here, there = source.resolve(), target.resolve()
    if here == there:
        raise ValueError(f"{printable(target)} is what is to be converted; give another target")
    if here.is_dir() and there.is_relative_to(here) and form != "list":
        raise ValueError(
            f"{printable(target)} lies inside {printable(source)}, where it would be taken for "
            "images; give a target beside it"
        )
    if here.is_relative_to(there):
        raise ValueError(f"{printable(source)} lies inside {printable(target)}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {printable(target.parent)} to write to")


def _state(images: EncodedImages) -> str:
    """Stands for what is in a source: it changes when a file comes, goes or changes."""
    digest = hashlib.sha256()
    files: Iterable[Path]
    if isinstance(images, NamedFiles):
        digest.update(images.labels.tobytes())
        files = (images.image_path(index) for index in range(len(images)))
    else:  # some large files
        files = sorted(images.path.rglob("*")) if images.path.is_dir() else [images.path]
    for file in files:
        digest.update(os.fsencode(file.absolute()) + b"\0")
        try:
            found = file.stat()
        except OSError:
            continue  # which the check reports
        digest.update(b"%d %d" % (found.st_size, found.st_mtime_ns))
    return digest.hexdigest()


def _check(
    images: EncodedImages, *, on_bad_image: OnBadImage, workers: int, watch: Watch
) -> list[int]:
    """Look at every image before anything is written; the indices of those to leave out."""
    images.on_bad_image = "skip"  # the check then lists what it finds, and the sentence is ours
    with watch(f"checking {counted(len(images), 'image')}") as progress:
        images.prepare(workers=workers, progress=progress)
    bad = images.bad
    if bad and on_bad_image == "stop":
        raise ValueError(
            f"{len(bad)} of the {counted(len(images), 'image')} cannot be used: "
            f"{first_of(bad)}; nothing was written; "
            f"'sphereface2 inspect {printable(images.path)}' lists all, and --on-bad-image skip "
            "leaves them out"
        )
    return [each.index for each in bad]


# -- pairs to one .bin file, and a .bin to images that can be looked at ----------------------------


def looks_like_pairs(source: Path) -> bool:
    """Whether a file is a verification set, such as a .bin, LFW's pairs.txt or a pair list."""
    name = recognised_format(source)
    return name is not None and not VERIFICATION_SETS[name].draws


def _convert_pairs(work: Conversion, watch: Watch) -> Converted:
    """Write a verification set as a .bin, or as a folder with images and a pair list."""
    began = time.monotonic()
    source, target, form = work.source, work.target, work.form
    if form not in ("bin", "folder"):
        raise ValueError(
            f"{printable(source)} holds pairs, which can be written as a .bin or as a folder; "
            f"{printable(target)} would be of the format {form}"
        )
    found = _open_pairs(source, work.root)
    stored = found.images
    assert isinstance(stored, StoredImages)  # as those of all kinds in files are
    state = source.stat()
    content = [state.st_size, state.st_mtime_ns]
    work.is_about(source, pairs=len(found.pairs), state=content)
    work.require_free(target)
    bad = _check_pairs(stored, found.pairs, work, watch)
    kept = ~np.isin(found.pairs, bad).any(axis=1)
    pairs, same = found.pairs[kept], found.same[kept]
    if not len(pairs):
        raise ValueError(f"no pair of {printable(source)} has two images that can be read")

    def make() -> Written:
        with watch(f"writing {counted(len(pairs), 'pair')} to {printable(target)}") as progress:
            if form == "bin":
                return _write_bin(stored, pairs, same, work, progress)
            return _write_pairs(stored, pairs, same, found.people, work, progress)

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


def _open_pairs(source: Path, root: Path | None) -> VerificationSet:
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


def _check_pairs(
    stored: StoredImages, pairs: NDArray[np.int64], work: Conversion, watch: Watch
) -> list[int]:
    bad: list[BadImage] = []
    wanted = np.unique(pairs).tolist()
    with watch(f"checking {counted(len(wanted), 'image')}") as progress:
        for done, index in enumerate(wanted, start=1):
            try:
                check_header(stored.encoded(index))
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


def _write_pairs(
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
