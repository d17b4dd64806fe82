"""The pages of grouped photos: everybody is on one of them, faces inside, nothing loaded."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sphereface2.datatools.group.groups import Groups, Person, Threshold
from sphereface2.datatools.group.store import StoredFace
from sphereface2.reporting.pages import group
from sphereface2.reporting.pages.group import group_pages, group_table


def person(number: int, faces: int, *, name: str = "") -> Person:
    found = tuple(
        StoredFace(1000 * number + each, f"{number}/<{each}>.jpg", None, None, (0, 0))
        for each in range(faces)
    )
    scores = tuple(0.9 - each / 100 for each in range(faces)) if faces > 1 else ()
    return Person(number, name, found, scores, (1, 0.25) if number == 2 else None)


GROUPS = Groups(
    out=Path("out"),
    people=(person(1, 40, name="<Anna>"), person(2, 3), person(3, 2), person(4, 1)),
    photos=46,
    without_face=("wall.jpg",),
    unreadable=(("cut.jpg", "it is cut short"),),
    gone=0,
    threshold=Threshold(0.6, "as given"),
)


def pages(groups: Groups) -> dict[str, str]:
    made = group_pages(groups, lambda face: b"jpeg", title="mine", versions={"sphereface2": "1"})
    return {name: page.render() for name, page in made.items()}


def test_a_page_shows_people_doubts_and_what_was_left_out() -> None:
    page = pages(GROUPS)["index.html"]
    assert "&lt;Anna&gt;" in page
    assert "<Anna>" not in page
    assert page.count("data:image/jpeg;base64,anBlZw==") == group.FACES_SHOWN + 3 + 2 + 1
    assert "16 further faces lie between these" in page
    assert page.count('class="doubtful"') == 9  # of the last twelve those with 0.51 to 0.59
    assert '<a href="index.html#person-1">most like &lt;Anna&gt; (0.250)</a>' in page
    assert 'id="person-2"' in page
    for text in ("wall.jpg", "cut.jpg: it is cut short", "sphereface2 regroup undo OUT"):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")


def test_many_people_have_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "ON_A_PAGE", 1)
    made = pages(GROUPS)
    assert list(made) == ["index.html", "page-2.html", "page-3.html"]
    assert '<a href="page-3.html">person-3 …</a>' in made["index.html"]
    assert "<b>person-2 …</b>" in made["page-2.html"]
    assert '<a href="index.html#person-1">' in made["page-2.html"]
    nobody = pages(replace(GROUPS, people=(person(4, 1),)))
    assert "Nobody was seen several times." in nobody["index.html"]


def test_the_terminal_has_the_largest() -> None:
    out = StringIO()
    many = replace(GROUPS, people=tuple(person(n, 2, name=f"[b]{n}") for n in range(1, 20)))
    Console(file=out, width=120).print(group_table(many))
    text = out.getvalue()
    assert "38 faces in 46 photos: 19 people seen several times, 0 once" in text
    assert "[b]15" in text
    assert "and 4 further people" in text
