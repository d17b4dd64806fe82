"""The report of an inspection: terminal, JSON and page, from results and pictures made here."""

import dataclasses
import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sphereface2.data.sources.source import BadImage
from sphereface2.datatools.inspect import (
    DuplicateCount,
    Inspected,
    Inspection,
    NamedGroup,
    PeopleCount,
    SizeCount,
)
from sphereface2.datatools.inspect.faces import AlignmentCheck, ColourCheck
from sphereface2.datatools.inspect.images import NEAR_IDENTICAL, SAME_BYTES
from sphereface2.evaluation.mislabelled import (
    BELONGS,
    AlikePeople,
    MarginHistogram,
    MislabelledResult,
    SplitPerson,
    Suspect,
)
from sphereface2.reporting.figures.inspection import (
    InspectionPictures,
    collect_pictures,
    with_template,
)
from sphereface2.reporting.pages import jpeg_data_uri
from sphereface2.reporting.pages.inspection import all_findings, inspection_page, inspection_table
from sphereface2.reporting.style import ImageArray

EVIL = "<script>[red]$x$"


def example(*, labels: bool = True) -> Inspected:
    group = NamedGroup(SAME_BYTES, 2, True, (0, 3), ("a/0.jpg", "b/3.jpg"), ("a", EVIL))
    data = Inspection(
        path="/data/faces",
        images=8,
        readable=7,
        people=PeopleCount(2, 1, 3.5, 6, (1, 2, 3, 4, 5, 6, 7), (1, 0, 0, 0, 0, 1), 1, (EVIL,), 0),
        unreadable=(BadImage(7, "/data/faces/b/7.jpg", "it is empty"),),
        sizes=(SizeCount(112, 112, 6), SizeCount(90, 120, 1)),
        other_sizes=0,
        duplicates=(
            DuplicateCount(SAME_BYTES, 1, 1, 1, (group,)),
            DuplicateCount(NEAR_IDENTICAL, 0, 0, 0, ()),
        ),
        colour=ColourCheck(30, 1, 28, ("a",), "swapped"),
        alignment=AlignmentCheck(31, 0.3, 0.9, 10.2, 0.4, 0.8, 0.0, 11.0, "displaced"),
        notes=("labels were float32",),
    )
    result = MislabelledResult(
        images=7,
        judged=6,
        people=2,
        false_alarms=0.05,
        confused=0.1,
        is_able=True,
        threshold=-0.05,
        suspects=(Suspect(1, 0, BELONGS, 0.1, 0.7, 1, 0.001, (0, 2), (3,), "a/1.jpg", "a", EVIL),),
        alike=(AlikePeople(0, 1, 0.8, "a", EVIL),),
        split=(SplitPerson(0, 6, (1, 2), 0.2, "a"),),
        histogram=MarginHistogram((-1.0, 0.0, 1.0), (1, 5)),
    )
    return Inspected(
        title="faces",
        data=data,
        model="runs/first" if labels else None,
        labels=result if labels else None,
        versions={"python": "3.11"},
    )


def picture(index: int) -> ImageArray:
    return np.full((112, 112, 3), 20 * index, np.uint8)


def pictures(inspected: Inspected) -> InspectionPictures:
    return collect_pictures(
        inspected,
        average=picture(5),
        labels=np.array([0, 0, 0, 1, 0, 0, 0, 1]),
        people=["a", EVIL],
        usable=np.arange(8) < 7,
        read=picture,
    )


@pytest.mark.parametrize("labels", [True, False])
def test_json_round_trip(tmp_path: Path, labels: bool) -> None:
    inspected = example(labels=labels)
    inspected.save(tmp_path / "inspection.json")
    assert Inspected.load(tmp_path / "inspection.json") == inspected


def test_json_of_something_else_is_a_mistake_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="sphereface2 inspect DATA"):
        Inspected.load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"title": 3}')
    with pytest.raises(ValueError, match=r"other\.json is not the result of an inspection"):
        Inspected.load(tmp_path / "other.json")


def test_findings_say_what_is_suspected_and_what_to_do() -> None:
    found = {finding.subject: finding for finding in all_findings(example(labels=False))}
    assert "10 pixels too far right, 0.80 times as large" in found["Alignment"].text
    assert "sphereface2 align" in found["Alignment"].advice
    assert "red and blue seem to be swapped" in found["Colour"].text
    assert "under several people" in found["Copies"].text
    assert found["Source"].text == "labels were float32"
    assert "Labels" not in found


def test_findings_of_a_weak_model() -> None:
    inspected = example()
    assert inspected.labels is not None
    weak = dataclasses.replace(inspected.labels, confused=0.6, suspects=())
    found = all_findings(dataclasses.replace(inspected, labels=weak))
    texts = [finding.text for finding in found]
    assert any("takes 60% of the images for another person" in text for text in texts)
    unable = dataclasses.replace(inspected.labels, is_able=False, suspects=())
    subjects = [
        each.subject for each in all_findings(dataclasses.replace(inspected, labels=unable))
    ]
    assert "Model" in subjects
    assert "None of 6 labels stands out as wrong." in texts


def test_terminal_shows_findings_and_suspects_as_plain_text() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(inspection_table(example()))
    text = console.export_text()
    assert "1 of 6 images (16.7%)" in " ".join(text.split())
    assert "At most 5% of them are expected to be right." in " ".join(text.split())
    assert "a/1.jpg" in text
    assert EVIL in text  # as it is, not as markup


def test_page_holds_everything_and_loads_nothing(tmp_path: Path) -> None:
    inspected = example()
    inspection_page(inspected, pictures(inspected)).write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "url(http" not in page
    for text in (
        "Likely mislabelled",
        "across people",
        "it is empty",
        "runs/first",
        "centres 0.80",
    ):
        assert text in page, text
    # average, samples, one group of copies, a suspect with kin, two parts each of alike and split
    assert page.count("data:image/jpeg") == 7 - 1 + 2 + 4 + 6 + 5
    assert page.count("data:image/png") == 1
    assert page.count("<svg") == 3


def test_page_without_a_model_has_no_labels() -> None:
    inspected = example(labels=False)
    page = inspection_page(inspected, pictures(inspected)).render()
    assert 'id="labels"' not in page
    assert 'href="#labels"' not in page
    assert page.count("<svg") == 2


def test_suspects_are_not_samples_of_a_person() -> None:
    found = pictures(example())
    shown = [int(image[0, 0, 0]) for row in found.samples for part in row.parts for image in part]
    assert 20 * 1 not in shown
    assert 20 * 7 not in shown  # unreadable
    assert [[int(i[0, 0, 0]) for i in part] for part in found.suspects[0].parts] == [
        [20],
        [0, 40],
        [60],
    ]


def test_template_marks_and_pictures() -> None:
    marked = with_template(picture(5))
    assert marked.shape == (336, 336, 3)
    assert (marked != 100).any()
    assert jpeg_data_uri(np.zeros((500, 300, 3), np.uint8)).startswith("data:image/jpeg;base64,")
