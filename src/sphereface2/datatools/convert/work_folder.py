"""Where a long piece of writing is prepared: beside its target, taken up again after a stop."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphereface2.files import printable, telling_how_to_go_on

MARK = ".converted.json"
"""In each folder that is written: what is in it, and that it may be replaced."""

_REQUEST = "request.json"
_LOCK = "lock"


@dataclass(frozen=True)
class Product:
    """A finished file or folder of the work folder, and the place it goes to."""

    made: Path
    place: Path


@dataclass(frozen=True)
class Written:
    """What a piece of work has made."""

    products: list[Product]
    """The last one is the one that counts: when it is in its place, all is."""
    anew: int
    """Images that this run has written; the others were there."""
    bytes: int
    notes: tuple[str, ...] = ()


class WorkFolder:
    """`target`.partial: all is made in there and gets its name in the end.

    `request` says what is being made. The folder of an interrupted piece of work with the same
    request is taken up; one with another request is refused, or emptied with `overwrite`.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.partial")
        self.overwrite = overwrite

    def carry_out(
        self, request: dict[str, Any], make: Callable[[], Written], *, facts: dict[str, Any]
    ) -> Written:
        """Make everything, or what an interrupted run has left to do, and give it its name.

        `facts` are kept for the next run, should this one be stopped.
        """
        full_disk = telling_how_to_go_on(self.path, kept="what is converted stays there")
        with full_disk, self._held(request):
            if self.is_finished(request):
                written = self._finished()
            else:
                self._remember({"request": request, **facts})
                written = make()
                # From here on the target may be there in part: a run that finds this note goes on
                # with the moving, whatever else it finds.
                moves = [
                    [str(each.made.relative_to(self.path)), str(each.place.absolute())]
                    for each in written.products
                ]
                self._remember(
                    {"request": request, **facts, "moves": moves, "bytes": written.bytes}
                )
            self._deliver(written.products)
        return written

    def is_finished(self, request: dict[str, Any]) -> bool:
        """Whether an earlier run has made everything, and was stopped while it named it."""
        return "moves" in (self.facts(request) or {})

    def facts(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """What an interrupted run with this request has noted; None if there is none."""
        known = self._known()
        return known if known is not None and known["request"] == request else None

    def _finished(self) -> Written:
        known = self._known()
        assert known is not None
        products = [Product(self.path / made, Path(place)) for made, place in known["moves"]]
        return Written(products, 0, known["bytes"])

    @contextmanager
    def _held(self, request: dict[str, Any]) -> Iterator[None]:
        """Hold the folder for this process; what belongs to another request is gone from it."""
        known = self._known()
        if known is None and self._is_foreign():
            raise ValueError(
                f"{printable(self.path)} is in the way and holds no interrupted conversion; move it"
            )
        self.path.mkdir(exist_ok=True)
        with (self.path / _LOCK).open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is writing to {printable(self.path)}; wait for it"
                ) from None
            if known is not None and known["request"] != request and not self.overwrite:
                raise ValueError(
                    f"{printable(self.path)} holds an interrupted conversion of other images or "
                    "with other options; give --overwrite to begin anew"
                )
            if known is None or known["request"] != request:
                self._empty()
            yield

    def _known(self) -> dict[str, Any] | None:
        try:
            known = json.loads((self.path / _REQUEST).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return known if isinstance(known, dict) and "request" in known else None

    def _remember(self, known: dict[str, Any]) -> None:
        write_whole(self.path / _REQUEST, json.dumps(known).encode())

    def _deliver(self, products: Sequence[Product]) -> None:
        """Give everything its name, the last product last: when that is there, all is there."""
        old = self.path / "replaced"
        old.mkdir(exist_ok=True)
        # What is replaced goes first, and the last product's first of all: an old .rec must never
        # stand beside a new .idx.
        for number, product in reversed(list(enumerate(products))):
            if product.made.exists() and os.path.lexists(product.place):
                product.place.rename(old / str(number))
        for product in products:
            if product.made.exists():  # otherwise a run that was stopped here had moved it
                product.made.replace(product.place)
        # The request goes last: as long as it is there, the folder is known as ours.
        self._empty()
        (self.path / _REQUEST).unlink()
        (self.path / _LOCK).unlink()
        self.path.rmdir()

    def _is_foreign(self) -> bool:
        """Whether the folder holds anything that a run does not leave before its first note."""
        if not os.path.lexists(self.path):
            return False
        own = {_LOCK, f"{_REQUEST}.part"}
        return not self.path.is_dir() or any(each.name not in own for each in self.path.iterdir())

    def _empty(self) -> None:
        """Remove all but the note of what is being made."""
        for entry in self.path.iterdir():
            if entry.name in (_LOCK, _REQUEST):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def refuse_existing(place: Path, *, overwrite: bool) -> None:
    """Refuse a target that exists: never without `overwrite`, and a folder only if it is ours."""
    if place.is_dir():
        if not any(place.iterdir()):
            return
        if not (place / MARK).is_file():
            raise ValueError(
                f"{printable(place)} is not empty and was not written by convert; give a new folder"
            )
    if os.path.lexists(place) and not overwrite:
        raise ValueError(f"{printable(place)} already exists; give --overwrite to replace it")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is either whole or not there, also after a power cut."""
    partial = path.with_name(f"{path.name}.part")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
