"""Work on the photos of a folder, written down one by one, so that a stopped run can resume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import cv2

from sphereface2.files import JsonLines, file_lock, printable, written_elsewhere
from sphereface2.workers import LostWorkerError, in_processes

Task = TypeVar("Task")
Result = TypeVar("Result")


class PhotoJournal(ABC):
    """OUT/.COMMAND: a journal with a line of settings, then one for each finished photo.

    Opening it holds OUT for this process. An OUT that another command has written, or that was
    begun with other settings, is refused: it would hold results of two kinds.

    settings: None takes those that OUT was begun with
    """

    COMMAND: ClassVar[str]
    VERSION: ClassVar[int]
    """Of the journal, and of what is done with a photo: the folder of another is not continued."""
    NEWS: ClassVar[str] = ""
    """What another version does differently, for its refusal."""
    JOURNAL: ClassVar[str] = "journal.jsonl"
    DURABLE: ClassVar[bool] = False

    def __init__(self, out: Path, settings: Mapping[str, Any] | None) -> None:
        self.out = out
        self.folder = out / f".{self.COMMAND}"
        if out.is_dir() and any(out.iterdir()) and not self.folder.is_dir():
            raise ValueError(
                f"{printable(out)} is not empty and was not written by {self.COMMAND}; give a new "
                "folder"
            )
        with ExitStack() as held:
            lock = self.folder / "lock"
            held.enter_context(file_lock(lock, patience=0, refusal=written_elsewhere(out)))
            journal = self.folder / self.JOURNAL
            self._lines = JsonLines(journal, remedy=self.remedy, durable=self.DURABLE)
            held.callback(self._lines.close)
            self.settings = self._begun(settings)
            with self._lines.read_as("photos"):
                self.take_up(self._lines.lines[1:])
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    @property
    @abstractmethod
    def remedy(self) -> str:
        """What to do about a damaged journal."""

    @abstractmethod
    def take_up(self, lines: Sequence[Any]) -> None:
        """Read the lines of earlier runs; any error says that they are damaged."""

    def differing(self, key: str) -> str:
        """What another value of a setting means, in words; nothing where its name says it."""
        return ""

    def _begun(self, wanted: Mapping[str, Any] | None) -> dict[str, Any]:
        if not self._lines.lines and wanted is not None:
            self._lines.add({"version": self.VERSION, **wanted})
        with self._lines.read_as("photos"):
            begun: dict[str, Any] = self._lines.lines[0]
            version = begun.get("version")
        if version != self.VERSION:
            raise ValueError(
                f"{printable(self.out)} was begun by another version of {self.COMMAND}{self.NEWS}; "
                "give a new folder"
            )
        for key, value in (wanted or {}).items():
            if begun.get(key) != value:
                both = f"{key} {printable(str(begun.get(key)))}, not {printable(str(value))}"
                what = self.differing(key)
                raise ValueError(
                    f"{printable(self.out)} was begun with {f'{what} ({both})' if what else both}; "
                    "give the same, or a new folder"
                )
        return begun


UNUSABLE = (ValueError, OSError, MemoryError, cv2.error)
"""What a photo may raise: one of a million must not end the work, it is listed with a reason."""


def reason_of(error: Exception) -> str:
    """Why a photo is `UNUSABLE`, in a line."""
    return " ".join(str(error).split()) or type(error).__name__


def each_photo(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    workers: int,
    name: Callable[[Task], str],
) -> Generator[tuple[Task, Result], None, None]:
    """What `work` makes of each photo, in processes, as they are done.

    name: the photo of a task, for the sentence about a process that has died
    """
    results = in_processes(work, tasks, workers=min(workers, len(tasks)))
    try:
        with closing(results):
            yield from results
    except LostWorkerError as error:
        at: Any = error.task
        raise OSError(
            f"a worker process died at the photo {printable(name(at))}, perhaps for lack of "
            "memory; run the same command with fewer --workers to resume"
        ) from None
