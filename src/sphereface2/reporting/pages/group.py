"""The pages of grouped photos: the faces of each person, and how to correct them."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sphereface2.datatools.group.groups import Groups, Person
from sphereface2.datatools.group.people import label
from sphereface2.datatools.group.store import StoredFace
from sphereface2.evaluation.thresholds import in_figures
from sphereface2.files import printable
from sphereface2.reporting.pages import Page, Section, Tile, blocks
from sphereface2.reporting.style import BLUE
from sphereface2.workers import counted

ON_A_PAGE = 100
"""People of several faces on one page: with the most faces for each it has some 10 MB."""
FACES_SHOWN = 24
ONCE_SHOWN = 600
LISTED = 200
_LINES = 15  # of people in the terminal

Crop = Callable[[StoredFace], bytes]
"""The JPEG of a face; empty where there is none."""


def group_table(groups: Groups) -> RenderableType:
    """What was found, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("person", "faces", "photos", "mean score", "most like"):
        table.add_column(column, justify="left" if column == "person" else "right")
    called = {person.number: person.called for person in groups.people}
    for person in groups.several[:_LINES]:
        near = person.nearest
        # Text, not markup: names may hold square brackets.
        table.add_row(
            Text(person.called),
            f"{len(person.faces):,}",
            f"{len(person.photos):,}",
            "" if person.score is None else in_figures(person.score),
            "" if near is None else Text(f"{called[near[0]]}, {in_figures(near[1])}"),
        )
    more = len(groups.several) - _LINES
    parts: list[RenderableType] = [Text(_summary(groups))]
    if groups.several:
        parts += [Text(), table]
    if more > 0:
        parts.append(Text(f"and {counted(more, 'further person', 'further people')}"))
    return Group(*parts)


def _summary(groups: Groups) -> str:
    once = len(groups.people) - len(groups.several)
    return (
        f"{counted(groups.faces, 'face')} in {counted(groups.photos, 'photo')}: "
        f"{counted(len(groups.several), 'person', 'people')} seen several times, {once:,} once; "
        f"threshold {in_figures(groups.threshold.value)} ({groups.threshold.words})"
    )


def group_pages(
    groups: Groups, crop: Crop, *, title: str, versions: Mapping[str, str]
) -> dict[str, Page]:
    """The pages by the names of their files: index.html first, then page-2.html and so on."""
    several = groups.several
    parts = [several[at : at + ON_A_PAGE] for at in range(0, len(several), ON_A_PAGE)] or [()]
    names = ["index.html", *(f"page-{number}.html" for number in range(2, len(parts) + 1))]
    addresses = {
        person.number: f"{name}#{label(person.number)}"
        for name, part in zip(names, parts, strict=True)
        for person in part
    }
    called = {person.number: person.called for person in groups.people}
    block = blocks()
    pages = {}
    for number, (name, part) in enumerate(zip(names, parts, strict=True), start=1):
        pager: list[Markup] = []
        if len(parts) > 1:
            texts = [(each, f"{part[0].called} …") for each, part in zip(names, parts, strict=True)]
            pager = [block.pager(texts, number)]
        cards = [_card(groups, person, crop, addresses, called) for person in part]
        shown = block.people(cards) if cards else block.empty("Nobody was seen several times.")
        sections = [Section("people", "People", [*pager, shown, *pager])]
        if number == 1:
            sections += _further(groups, crop)
        pages[name] = Page(
            kind="group",
            kicker="People in photos",
            title=title,
            accent=BLUE,
            head=[block.tiles(_tiles(groups))] if number == 1 else [],
            sections=sections,
            versions=versions,
        )
    return pages


def _tiles(groups: Groups) -> list[Tile]:
    once = len(groups.people) - len(groups.several)
    left_out = len(groups.without_face) + len(groups.unreadable)
    note = f"threshold {in_figures(groups.threshold.value)}: {groups.threshold.words}"
    return [
        Tile("people seen several times", f"{len(groups.several):,}", note, "main"),
        Tile("seen once", f"{once:,}", "nobody else is near enough"),
        Tile("faces", f"{groups.faces:,}", f"in {counted(groups.photos, 'photo')}"),
        Tile("photos without a face", f"{left_out:,}", "or that cannot be read", "base"),
    ]


def _card(
    groups: Groups,
    person: Person,
    crop: Crop,
    addresses: Mapping[int, str],
    called: Mapping[int, str],
) -> dict[str, Any]:
    faces = list(zip(person.faces, person.scores, strict=True))
    shown, left = faces, 0
    if len(faces) > FACES_SHOWN:
        # The most typical ones, and the least, among which the mistakes are.
        half = FACES_SHOWN // 2
        shown, left = faces[:half] + faces[-half:], len(faces) - FACES_SHOWN
    near = person.nearest
    return {
        "id": label(person.number),
        "name": person.called,
        "count": f"{counted(len(person.faces), 'face')} in "
        f"{counted(len(person.photos), 'photo')}, mean score {in_figures(person.score or 0)}",
        "near": "" if near is None else f"most like {called[near[0]]} ({in_figures(near[1])})",
        "near_link": "" if near is None else addresses.get(near[0], ""),
        "faces": [
            _face(face, crop, score, doubtful=score < groups.threshold.value)
            for face, score in shown
        ],
        "more": f"{left:,} further faces lie between these by their scores; faces.csv has all."
        if left
        else "",
    }


def _face(
    face: StoredFace, crop: Crop, score: float | None = None, *, doubtful: bool = False
) -> dict[str, Any]:
    jpeg = crop(face)
    photo = printable(face.photo)
    return {
        "picture": f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" if jpeg else "",
        "photo": photo,
        "number": face.number,
        "title": f"face {face.number}, {photo}"
        + ("" if score is None else f", {in_figures(score)}"),
        "doubtful": doubtful,
    }


def _further(groups: Groups, crop: Crop) -> list[Section]:
    """What only the first page has."""
    block = blocks()
    sections = []
    once = [person.faces[0] for person in groups.people if len(person.faces) == 1]
    if once:
        note = "Nobody else reaches the threshold with these, or only somebody of the same photo."
        if len(once) > ONCE_SHOWN:
            note += f" Shown are {ONCE_SHOWN:,} of {len(once):,}; faces.csv has all."
        faces = block.faces([_face(face, crop) for face in once[:ONCE_SHOWN]])
        sections.append(Section("once", "Seen once", [block.note(note), faces]))
    left_out: list[Markup] = []
    for title, names in (
        ("No face was found", [printable(name) for name in groups.without_face]),
        ("Cannot be read", [f"{printable(name)}: {why}" for name, why in groups.unreadable]),
    ):
        if names:
            rest = len(names) - LISTED
            more = [f"and {rest:,} further ones"] if rest > 0 else []
            shown = block.names([*names[:LISTED], *more])
            left_out += [block.heading(f"{title} ({len(names):,})"), shown]
    if left_out:
        sections.append(Section("left-out", "Left out", left_out))
    sections.append(Section("correct", "Correct", [block.note(_HOW), block.text(_COMMANDS)]))
    return sections


_HOW = (
    "The number under a face is its own; hover for its photo. Faces are in the order of their "
    "mean cosine with the person's other faces: those framed lie below the threshold and are the "
    "first to doubt. What you decide is kept in journal.jsonl and holds when photos are added."
)
_COMMANDS = """sphereface2 regroup name OUT person-3 "Anna"      # or edit the names in people.json
sphereface2 regroup merge OUT person-3 person-12  # they are one person
sphereface2 regroup split OUT person-3 17 42      # faces 17 and 42 are somebody else
sphereface2 regroup undo OUT                      # take back the last of these"""
