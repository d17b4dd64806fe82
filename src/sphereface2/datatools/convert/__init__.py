"""Convert images from one form to another, byte for byte: folder, list, .rec, .parquet."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from sphereface2.data.sources import open_images
from sphereface2.data.sources.encoded import EncodedImages, OnBadImage
from sphereface2.data.sources.folder import NamedFiles
from sphereface2.datatools.convert.conversion import Conversion, Converted, Job, Written
from sphereface2.datatools.convert.pairs import convert_pairs, looks_like_pairs
from sphereface2.datatools.convert.targets import TARGETS
from sphereface2.files import printable
from sphereface2.registry import look_up
from sphereface2.workers import Watch, counted, first_of, unwatched

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
    its name in the end; the same call resumes after an interruption, a kill or a full disk.
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
        return convert_pairs(work, watch)
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
