"""What became of each photo, written down one by one, so that a stopped alignment can resume."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sphereface2.faces import Face
from sphereface2.faces.detector import FIRST_LOOK
from sphereface2.files import LockedError, file_lock, printable, write_atomically

WORK_FOLDER = ".align"
"""In the target: the journal, and crops that are being written."""

VERSION = 2
"""Of the journal, and of how faces are found: the folder of another one is not continued."""

_POINTS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")
_COLUMNS = (
    ["photo", "crop", "faces", "taken", "look", "score", "left", "top", "right", "bottom"]
    + [f"{point}_{axis}" for point in _POINTS for axis in "xy"]
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one photo: a crop of the chosen face, no face, or a reason why not."""

    photo: str
    """Below the source, with / between the folders; so is `crop` below the target."""
    crop: str | None = None
    faces: tuple[Face, ...] = ()
    taken: int = 0
    """Which of the faces the crop shows."""
    look: str = FIRST_LOOK
    """The look that found the faces."""
    reason: str | None = None
    """Why the photo could not be read."""

    def to_json(self) -> str:
        faces = [[face.box, face.landmarks.tolist(), face.score] for face in self.faces]
        return json.dumps({**vars(self), "faces": faces})

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        fields = json.loads(text)
        fields["faces"] = tuple(
            Face.of(np.array(box), np.array(landmarks, np.float64), score)
            for box, landmarks, score in fields["faces"]
        )
        return cls(**fields)


class AlignJournal:
    """The journal of a target folder: a line of settings, then one for each finished photo.

    Opening it holds the folder for this process. Settings other than those that the folder was
    begun with are refused, for its crops would be of two kinds.
    """

    def __init__(self, target: Path, settings: dict[str, Any]) -> None:
        self.folder = target / WORK_FOLDER
        if target.is_dir() and any(target.iterdir()) and not self.folder.is_dir():
            raise ValueError(
                f"{printable(target)} is not empty and was not written by align; give a new folder"
            )
        with ExitStack() as held:
            try:
                held.enter_context(file_lock(self.folder / "lock", patience=0))
            except LockedError:
                raise ValueError(
                    f"another process is writing to {printable(target)}; wait for it"
                ) from None
            self._file = held.enter_context((self.folder / "journal.jsonl").open("a+b"))
            self.outcomes = self._read(target, settings)
            for half_written in self.folder.glob("*.part"):
                half_written.unlink()
            self._held = held.pop_all()

    def __enter__(self) -> AlignJournal:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def add(self, outcome: Outcome) -> None:
        """Write down what became of a photo; what was known about it before counts no more."""
        self._write(outcome.to_json())
        self.outcomes[outcome.photo] = outcome

    def _write(self, line: str) -> None:
        self._file.write(line.encode("ascii") + b"\n")
        self._file.flush()  # a kill loses nothing; a torn line is dropped by the next run

    def _read(self, target: Path, settings: dict[str, Any]) -> dict[str, Outcome]:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        torn = len(lines[-1])  # the last line has no end if a disk was full or a power cut came
        if torn:
            self._file.truncate(self._file.tell() - torn)
        whole = [line.decode("ascii") for line in lines[:-1]]
        if not whole:
            self._write(json.dumps({"version": VERSION, **settings}))
            return {}
        try:
            begun = json.loads(whole[0])
            # Lines of another version may have other fields.
            same_version = begun.get("version") == VERSION
            outcomes = [Outcome.from_json(line) for line in whole[1:]] if same_version else []
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{printable(self.folder / 'journal.jsonl')} is damaged; remove it to align "
                "everything again"
            ) from None
        if not same_version:
            raise ValueError(
                f"{printable(target)} was begun by another version of align, which finds and "
                "chooses faces differently; give a new folder"
            )
        for key, value in settings.items():
            if begun.get(key) != value:
                raise ValueError(
                    f"{printable(target)} was begun with {key} {printable(str(begun.get(key)))}, "
                    f"not {printable(str(value))}; give the same, or a new folder"
                )
        return {outcome.photo: outcome for outcome in outcomes}


def write_reports(target: Path, outcomes: Iterable[Outcome]) -> None:
    """faces.csv, no_face.txt and unreadable.txt of the target, in the order of the photos."""
    in_order = sorted(outcomes, key=lambda outcome: outcome.photo)
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    no_face, unreadable = [], []
    for each in in_order:
        for number, face in enumerate(each.faces):
            taken = number == each.taken
            places = [*face.box, *face.landmarks.ravel().tolist()]
            numbers = [f"{face.score:.4f}", *(f"{place:.2f}" for place in places)]
            found = [each.crop if taken else "", len(each.faces), int(taken), each.look]
            writer.writerow([each.photo, *found, *numbers])
        if each.crop is not None:
            continue
        if each.reason is None:
            no_face.append(_one_line(each.photo))
        else:
            unreadable.append(f"{_one_line(each.photo)}\t{each.reason}")
    for name, text in (
        ("no_face.txt", "".join(f"{line}\n" for line in no_face)),
        ("unreadable.txt", "".join(f"{line}\n" for line in unreadable)),
        ("faces.csv", table.getvalue()),
    ):
        write_atomically(target / name, text, durable=True)


def _one_line(name: str) -> str:
    return name.replace("\n", "\\n").replace("\r", "\\r")
