"""A conversion on its way: made in a work folder beside its target, and resumable."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphereface2.files import WorkFolder, on_full_disk, printable

MARK = ".converted.json"
"""In each folder that is written: what is in it, and that it may be replaced."""


@dataclass(frozen=True)
class Written:
    """What a conversion has made."""

    products: list[tuple[Path, Path]]
    """A finished file or folder of the work folder, and its place; the last one counts most."""
    new: int
    """Images that this run has written; the others were there."""
    bytes: int
    notes: tuple[str, ...] = ()


class Conversion(WorkFolder):
    """The work folder of a conversion.

    An interrupted conversion of the same source with the same options is resumed; another one is
    refused, or removed with `overwrite`.

    content: what stands for the content of the source, such as its size and its time
    """

    NOTE = "request.json"

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        root: Path | None,
        form: str,
        on_bad_image: str,
        overwrite: bool,
        **content: Any,
    ) -> None:
        super().__init__(target)
        self.overwrite = overwrite
        self.request = {
            "source": printable(source.resolve()),
            "root": None if root is None else printable(root.resolve()),
            "format": form,
            "on_bad_image": on_bad_image,
            **content,
        }

    def facts(self) -> dict[str, Any] | None:
        """What an interrupted run with this request has noted; None if there is none."""
        known = self.noted()
        return known if known is not None and known.get("request") == self.request else None

    def require_free(self, *places: Path) -> None:
        """Refuse places that exist: without `overwrite` all, and folders that are not ours."""
        if "moves" in (self.facts() or {}):
            return  # an earlier run has made everything, and was stopped while it named it
        for place in places:
            if place.is_dir():
                if not any(place.iterdir()):
                    continue
                if not (place / MARK).is_file():
                    raise ValueError(
                        f"{printable(place)} is not empty and was not written by convert; give a "
                        "new folder"
                    )
            if os.path.lexists(place) and not self.overwrite:
                raise ValueError(
                    f"{printable(place)} already exists; give --overwrite to replace it"
                )

    def carry_out(self, make: Callable[[], Written], **facts: Any) -> Written:
        """Make everything, or what an interrupted run has left to do, and give it its name.

        `facts` are kept for the next run, should this one be stopped.
        """
        full_disk = on_full_disk(self.path, kept="what is converted stays there")
        with full_disk, self.locked():
            known = self.facts()
            if known is None:
                if self.noted() is not None and not self.overwrite:
                    raise ValueError(
                        f"{printable(self.path)} holds an interrupted conversion of other images "
                        "or with other options; give --overwrite to start again"
                    )
                self.empty()
            if known is not None and "moves" in known:
                moves = [(self.path / made, Path(place)) for made, place in known["moves"]]
                written = Written(moves, 0, known["bytes"])
            else:
                noted = {"request": self.request, **facts}
                self.note(noted)
                written = make()
                # From here on the target may be there in part: a run that finds this note
                # continues with the moving, whatever else it finds.
                moves_noted = [
                    [str(made.relative_to(self.path)), str(place.absolute())]
                    for made, place in written.products
                ]
                self.note({**noted, "moves": moves_noted, "bytes": written.bytes})
            self.deliver(written.products)
        return written
