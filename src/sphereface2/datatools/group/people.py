"""Who is who: a journal of moves of faces between people, from which everything follows.

Each entry says which faces went from whom to whom and which names changed, so that any of them can
be undone; what the user has decided (merges, splits, names) holds in every later run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sphereface2.datatools.group.clusters import Apart, Side
from sphereface2.datatools.group.store import StoredFace
from sphereface2.files import JsonLines, parse_json, printable
from sphereface2.galleries.gallery import check_name
from sphereface2.registry import nearest

JOURNAL = "journal.jsonl"
PEOPLE = "people.json"
NOBODY = 0
GROUP, NAME, MERGE, SPLIT, UNDO = "group", "name", "merge", "split", "undo"
_EDITS = (NAME, MERGE, SPLIT)
Move = tuple[int, int, list[int]]
"""From whom, to whom, which faces."""


def label(person: int) -> str:
    """How a person is called who has no name."""
    return f"person-{person}"


@dataclass
class People:
    """Who each face is, and what the user has said about them.

    person: of each face by its number
    names: of the people who have one
    last: the highest number that a person ever had
    fixed: faces that the user put together have one number here
    apart: pairs of sets of faces that the user has separated
    """

    person: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    last: int = 0
    fixed: dict[int, int] = field(default_factory=dict)
    apart: list[tuple[frozenset[int], frozenset[int]]] = field(default_factory=list)

    @classmethod
    def replay(cls, entries: Iterable[Mapping[str, Any]]) -> People:
        """The state after these entries of a journal."""
        done = list(entries)
        people = cls()
        for entry in done:
            for _, to, faces in entry.get("moves", ()):
                people.last = max(people.last, to)
                for face in faces:
                    people.person[face] = to
            for person, (_, name) in entry.get("names", {}).items():
                if name:
                    people.names[int(person)] = name
                else:
                    people.names.pop(int(person), None)
        undone = {entry["of"] for entry in done if entry["what"] == UNDO}
        for number, entry in enumerate(done, start=1):
            if number not in undone:
                people._decide(entry, number)
        return people

    def _decide(self, entry: Mapping[str, Any], number: int) -> None:
        """What a merge or a split says about later runs; a later one overrides an earlier one."""
        moved = {face for _, _, faces in entry.get("moves", ()) for face in faces}
        others = set(entry.get("others", ()))
        if entry["what"] == MERGE:
            joined = {self.fixed[face] for face in moved | others if face in self.fixed}
            self.fixed |= {face: number for face, block in self.fixed.items() if block in joined}
            self.fixed |= dict.fromkeys(moved | others, number)
        elif entry["what"] == SPLIT:
            self.fixed |= dict.fromkeys(moved, number)
            self.apart.append((frozenset(moved), frozenset(others)))

    def faces_of(self, person: int, among: Collection[int] | None = None) -> list[int]:
        return sorted(
            face
            for face, who in self.person.items()
            if who == person and (among is None or face in among)
        )

    def called(self, person: int) -> str:
        return self.names.get(person) or label(person)

    def find(self, word: str) -> int:
        """The person that a word means: person-12, 12, or a name."""
        known = set(self.person.values()) - {NOBODY}
        for person, name in self.names.items():
            if name == word.strip() and person in known:
                return person
        number = word.strip().removeprefix("person-")
        if number.isdecimal() and int(number) in known:
            return int(number)
        words = [*(label(each) for each in sorted(known)), *self.names.values()]
        raise ValueError(f"there is no '{word}' among the people{nearest(word, words)}")

    def constraints(self, faces: Sequence[StoredFace]) -> Apart:
        """What must stay apart among these faces."""
        photos = {name: number for number, name in enumerate(sorted({f.photo for f in faces}))}
        names = {name: number for number, name in enumerate(sorted(set(self.names.values())))}
        rows = {face.number: row for row, face in enumerate(faces)}
        sides: dict[int, frozenset[Side]] = {}
        for number, parts in enumerate(self.apart):
            blocks = [{self.fixed[face] for face in part if face in self.fixed} for part in parts]
            if blocks[0] & blocks[1]:
                continue  # merged since
            for side, part in enumerate(parts):
                for row in (rows[face] for face in part if face in rows):
                    sides[row] = sides.get(row, frozenset()) | {(number, side)}
        called = [self.names.get(self.person.get(face.number, NOBODY)) for face in faces]
        return Apart(
            photos=np.array([photos[face.photo] for face in faces], np.int64),
            names=np.array([-1 if name is None else names[name] for name in called], np.int64),
            sides=sides,
        )

    def start(self, faces: Sequence[StoredFace], *, afresh: bool) -> list[list[int]]:
        """Which rows of these faces are together already: as they were, or as the user said."""
        of = self.fixed if afresh else {k: v for k, v in self.person.items() if v != NOBODY}
        together: dict[int, list[int]] = {}
        for row, face in enumerate(faces):
            if face.number in of:
                together.setdefault(of[face.number], []).append(row)
        return list(together.values())

    def moves_to(self, groups: Sequence[Sequence[int]], *, afresh: bool) -> list[Move]:
        """The moves that make people of groups of faces, with the numbers they had if possible.

        A group of faces of several people becomes the one with a name, or else the first. Afresh,
        when a person may also fall apart, the person goes where most of their faces go, those with
        a name first.
        """
        votes: list[tuple[bool, int, int, int]] = []
        for index, group in enumerate(groups):
            counts = Counter(self.person.get(face, NOBODY) for face in group)
            votes += [
                (who not in self.names, -count if afresh else 0, who, index)
                for who, count in counts.items()
                if who != NOBODY
            ]
        owner: dict[int, int] = {}
        for _, _, who, index in sorted(votes):
            if index not in owner and who not in owner.values():
                owner[index] = who
        new = [index for index in range(len(groups)) if index not in owner]
        for index in sorted(new, key=lambda index: (-len(groups[index]), groups[index][0])):
            self.last += 1
            owner[index] = self.last
        moves: dict[tuple[int, int], list[int]] = {}
        for index, group in enumerate(groups):
            for face in group:
                before = self.person.get(face, NOBODY)
                if before != owner[index]:
                    moves.setdefault((before, owner[index]), []).append(face)
        return [(old, to, sorted(faces)) for (old, to), faces in sorted(moves.items())]


class Journal:
    """The journal of OUT, and the people that follow from it."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._lines = JsonLines(out / JOURNAL, remedy="restore it from a copy", durable=True)
        with self._lines.read_as("a journal"):
            self.people = People.replay(self._lines.lines)

    def close(self) -> None:
        self._lines.close()

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        return self._lines.lines

    def last_group(self) -> Mapping[str, Any] | None:
        """What the last run over the photos said of itself."""
        return next((each for each in reversed(self.entries) if each["what"] == GROUP), None)

    def add(
        self,
        what: str,
        *,
        moves: Sequence[Move] = (),
        names: Mapping[int, str] | None = None,
        **facts: Any,
    ) -> None:
        """Write down what happened; from then on it holds."""
        changed = {
            str(person): [self.people.names.get(person, ""), name]
            for person, name in (names or {}).items()
        }
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._lines.add({"what": what, "at": at, "moves": [*moves], "names": changed, **facts})
        self.people = People.replay(self.entries)

    # -- what users decide -------------------------------------------------------------------------

    def name(self, word: str, name: str) -> str:
        """Call a person by a name; what was done, in words."""
        people, person = self.people, self.people.find(word)
        name = check_name(name) if name.strip() else ""
        if name.startswith("person-"):
            raise ValueError(f"'{name}' is how people without a name are called; give another name")
        for other, known in people.names.items():
            if known == name and other != person:
                raise ValueError(
                    f"{label(other)} is called {name} already; if they are one person: sphereface2 "
                    f"regroup merge OUT {label(other)} {label(person)}"
                )
        self.add(NAME, names={person: name})
        return f"{label(person)} is called {name}" if name else f"{label(person)} has no name"

    def merge(self, words: Sequence[str], photos: Mapping[int, str]) -> str:
        """Make one person of several, the first; `photos` are those of the faces."""
        people = self.people
        first, *others = list(dict.fromkeys(people.find(word) for word in words))
        if not others:
            raise ValueError("merge needs at least two different people")
        named = [person for person in (first, *others) if person in people.names]
        if len(named) > 1:
            raise ValueError(
                f"{label(named[0])} and {label(named[1])} have the names "
                f"{people.names[named[0]]} and {people.names[named[1]]}; take one of them away "
                f"first: sphereface2 regroup name OUT {label(named[1])} ''"
            )
        seen: dict[str, int] = {}
        for person in (first, *others):
            for face in people.faces_of(person, photos):
                if seen.setdefault(photos[face], person) != person:
                    raise ValueError(
                        f"{people.called(seen[photos[face]])} and {people.called(person)} are both "
                        f"in {printable(photos[face])}, so they are two people; split off the face "
                        "that is wrong first"
                    )
        moves: list[Move] = [(each, first, people.faces_of(each)) for each in others]
        names = {} if named in ([], [first]) else {named[0]: "", first: people.names[named[0]]}
        self.add(MERGE, moves=moves, names=names, others=people.faces_of(first))
        return f"{' and '.join(label(each) for each in others)} became {self.people.called(first)}"

    def split(self, word: str, faces: Sequence[int]) -> str:
        """Take faces from a person and make another one of them."""
        people, person = self.people, self.people.find(word)
        theirs = set(people.faces_of(person))
        foreign = [face for face in faces if face not in theirs]
        if foreign:
            raise ValueError(
                f"face {foreign[0]} is not one of {people.called(person)}; faces.csv and the page "
                "have the numbers"
            )
        moved = set(faces)
        if not moved or moved == theirs:
            raise ValueError(
                f"{people.called(person)} has {len(theirs)} faces, and {len(moved)} were given; "
                "give some of them, not all"
            )
        new = people.last + 1
        self.add(SPLIT, moves=[(person, new, sorted(moved))], others=sorted(theirs - moved))
        return f"{len(moved)} of {people.called(person)}'s {len(theirs)} faces became {label(new)}"

    def undo(self) -> str:
        """Take back the last merge, split or name that was not taken back yet."""
        undone = {entry["of"] for entry in self.entries if entry["what"] == UNDO}
        for number in range(len(self.entries), 0, -1):
            entry = self.entries[number - 1]
            if entry["what"] in _EDITS and number not in undone:
                break
        else:
            raise ValueError(f"there is nothing to undo in {printable(self.out / JOURNAL)}")
        person = self.people.person
        moves: list[Move] = [
            (to, old, [face for face in faces if person.get(face) == to])
            for old, to, faces in reversed(entry["moves"])
        ]
        names = {int(who): before for who, (before, _) in entry["names"].items()}
        self.add(UNDO, moves=moves, names=names, of=number)
        return f"undone: {_in_words(entry)}"

    def take_edited_names(self) -> list[str]:
        """Names that the user has changed in people.json; what was done, in words."""
        path = self.out / PEOPLE
        if not path.is_file():
            return []
        try:
            said = parse_json(path.read_text(encoding="utf-8"))
            then = People.replay(self.entries[: int(said["journal"])])
            given = [(str(each["person"]), str(each.get("name") or "")) for each in said["people"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{printable(path)} is damaged ({error}); mend it, or remove it: it is written "
                "again, with the names of the journal"
            ) from None
        done = []
        changed = [
            (word, name) for word, name in given if then.names.get(then.find(word), "") != name
        ]
        for word, name in changed:
            # A name that moved from one to another is free before it is given again.
            if self.people.names.get(self.people.find(word), "") and name:
                self.name(word, "")
        for word, name in changed:
            if self.people.names.get(self.people.find(word), "") != name:
                done.append(self.name(word, name))
        return done


def _in_words(entry: Mapping[str, Any]) -> str:
    """What the user had decided."""
    moves = entry["moves"]
    if entry["what"] == MERGE:
        others = " and ".join(label(old) for old, _, _ in moves)
        return f"{others} became {label(moves[0][1])}"
    if entry["what"] == SPLIT:
        old, new, faces = moves[0]
        return f"{len(faces)} faces of {label(old)} became {label(new)}"
    person, (_, name) = next(iter(entry["names"].items()))
    return f"{label(int(person))} is called {name}" if name else f"{label(int(person))} unnamed"
