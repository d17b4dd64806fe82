"""The report of a verification: it holds all it shows, loads nothing and believes no name."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from jinja2 import UndefinedError

from sphereface2.data.transforms import resize
from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.experiments.paper.published import LOSSES
from sphereface2.reporting.pages import png_data_uri
from sphereface2.reporting.pages.verification import (
    DEFINITIONS,
    PairPicture,
    ReportPictures,
    hardest_pairs,
    people_sheet,
    verification_page,
)
from sphereface2.reporting.tables import interval_text
from tests.reporting.example import example_evaluation, example_history

CONFIG = "seed: 0\nhead:\n  name: sphereface2-c\n"
SECTIONS = {
    "accuracy": "Accuracy",
    "roc": "ROC",
    "det": "DET",
    "scores": "Scores",
    "training": "Training",
    "hardest": "Hardest pairs",
    "data": "Data",
    "definitions": "Definitions",
    "configuration": "Configuration",
}
HOSTILE = "</pre></svg><script>alert('x')</script><img src=https://example.org/x onerror=\"a()\">"


class Page(HTMLParser):
    """What a browser would see: elements, the addresses they load, the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "img", "br", "link"}:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}:
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def picture(value: int, size: int = 24) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(value).integers(0, 256, (size, size, 3), dtype=np.uint8)


def decoded(address: str) -> npt.NDArray[np.uint8]:
    data = np.frombuffer(base64.b64decode(address.split(",")[1]), np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)
    assert image is not None
    return image.astype(np.uint8)


class Pictures:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint8]:
        return picture(index)


@pytest.fixture(scope="module")
def whole_report() -> str:
    return report()


def report(**changes: object) -> str:
    evaluation = example_evaluation()
    values: dict[str, object] = {
        "evaluation": evaluation,
        "history": example_history(),
        "config_yaml": CONFIG,
        "pictures": ReportPictures(
            contact_sheet=picture(0, 60),
            hardest=hardest_pairs(evaluation, {"plain": Pictures(), "cross-age": Pictures()}),
        ),
    }
    # A dict of mixed values: mypy cannot tell which goes where.
    return verification_page(**(values | changes)).render()  # type: ignore[arg-type]


def test_all_sections_and_numbers_are_there(whole_report: str) -> None:
    page = Page(whole_report)
    assert not page.open
    for anchor, name in SECTIONS.items():
        assert page.ids.count(anchor) == 1
        assert f"#{anchor}" in page.addresses
        assert name in page.text
    for term, meaning in DEFINITIONS:
        assert term in page.text
        assert meaning in page.text
    evaluation = example_evaluation()
    for row in evaluation.rows:
        assert f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_std:.1f}" in page.text
    assert CONFIG in page.text
    # Two rows of pairs for two sets with three pairs of each kind, and the contact sheet.
    assert page.tags.count("img") == 2 * 2 * 2 * 3 + 1
    # ROC, DET and histograms of three sets, six training curves.
    assert page.tags.count("svg") == 3 + 3 + 3 + 6
    for row in evaluation.rows:
        assert interval_text(row.accuracy_interval) in page.text
    assert {"plain", "cross-age", COMBINED} <= set(re.findall(r">([^<>]+)</text>", whole_report))


def test_the_page_is_self_contained(whole_report: str) -> None:
    text, page = whole_report, Page(whole_report)
    assert "http://" not in text
    assert "https://" not in text
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    assert all(a.startswith(("#", "data:image/png;base64,")) for a in page.addresses)
    assert not re.findall(r"url\((?!#)", text)
    assert "@import" not in text
    assert "default-src 'none'" in text
    # Inside the page, whatever is referred to exists.
    referred = {a[1:] for a in page.addresses if a.startswith("#")}
    referred |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert referred <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_hostile_names_stay_text() -> None:
    evaluation = example_evaluation(
        model=HOSTILE, sets=(HOSTILE, "other"), title=HOSTILE, versions={HOSTILE: HOSTILE}
    )
    pair = PairPicture(picture(1), picture(2), 0.5, True, HOSTILE)
    metrics = {"kind": "evaluation", "step": 1, "metrics": {HOSTILE: 0.5, "other": 0.6}}
    head = {"kind": "train", "step": 1, "head": {HOSTILE: 1.0}}
    text = report(
        evaluation=evaluation,
        history=[metrics, head],
        config_yaml=f"name: {HOSTILE}",
        pictures=ReportPictures(
            contact_sheet=picture(0), contact_sheet_caption=HOSTILE, hardest=(pair,)
        ),
    )
    page = Page(text)
    assert not page.open
    assert "script" not in page.tags
    assert not page.handlers
    assert all(a.startswith(("#", "data:image/png;base64,")) for a in page.addresses)
    assert page.text.count(HOSTILE) >= 12


@pytest.mark.usefixtures("blank_figures")
def test_a_run_that_was_changed_says_so_beside_its_config(whole_report: str) -> None:
    notice = {"kind": "notice", "topic": "changed", "step": 40, "text": "changed: seed <1> -> 2"}
    page = report(history=[*example_history(), notice, notice])
    assert page.count("<li>at step 40, changed: seed &lt;1&gt; -&gt; 2</li>") == 1
    assert "starts the same run again" not in page
    assert "starts the same run again" in whole_report


@pytest.mark.usefixtures("blank_figures")
def test_what_is_missing_is_said() -> None:
    text = report(history=[], pictures=ReportPictures())
    assert "No training history was given." in text
    assert "No contact sheet was given." in text
    assert text.count("No such pairs were kept.") == 2
    assert [i for i in Page(text).ids if i in SECTIONS] == list(SECTIONS)


@pytest.mark.usefixtures("blank_figures")
def test_one_set_under_any_name_is_enough() -> None:
    text = report(
        evaluation=example_evaluation(sets=("my pairs",)), history=[], pictures=ReportPictures()
    )
    assert "my pairs · 200 pairs" in text
    assert Page(text).tags.count("svg") == 3


@pytest.mark.usefixtures("blank_figures")
def test_the_paper_stands_beside_its_own_sets_only(whole_report: str) -> None:
    assert "Beside the paper" not in report(published=LOSSES)
    text = report(
        evaluation=example_evaluation(sets=("lfw", "my pairs")), history=[],
        pictures=ReportPictures(), published=LOSSES,
    )  # fmt: skip
    assert "Beside the paper" in text
    assert "SphereFace2-C" in text
    assert "99.50" in text
    assert "94.28" not in text  # the pool of other sets is not the paper's


def test_results_without_intervals_are_shown_without_bands() -> None:
    evaluation = example_evaluation(sets=("plain",))
    bare = [
        replace(row, accuracy_interval=None, eer_interval=None, auc_interval=None, roc_band=None,
                best_threshold_interval=None,
                tar_at_far=tuple(replace(point, interval=None) for point in row.tar_at_far))
        for row in evaluation.rows
    ]  # fmt: skip
    older = EvaluationResult(title="older", rows=tuple(bare))
    text = report(evaluation=older, history=[], pictures=ReportPictures())
    assert "The band is" not in text
    assert "–" not in Page(text).text.split("Definitions")[0]


@pytest.mark.usefixtures("blank_figures")
def test_pairs_are_judged_at_the_threshold_of_their_set() -> None:
    threshold = example_evaluation().rows[0].threshold
    cases = (
        ("plain", True, threshold - 0.01),
        ("plain", True, threshold),
        ("plain", False, threshold),
        ("plain", False, threshold - 0.01),
        ("elsewhere", True, 0.5),
    )
    hardest = tuple(PairPicture(picture(1), picture(2), s, same, name) for name, same, s in cases)
    text = report(history=[], pictures=ReportPictures(hardest=hardest))
    assert re.findall(r'<em class="(\w+)">(\w+)</em>', text) == [
        ("wrong", "rejected"),
        ("right", "accepted"),
        ("wrong", "accepted"),
        ("right", "rejected"),
    ]


def test_hardest_pairs_take_the_images_that_the_result_names() -> None:
    evaluation = example_evaluation()
    found = hardest_pairs(evaluation, {"cross-age": Pictures()})
    result = evaluation.find("sphereface2-c", "cross-age")
    assert result is not None
    expected = [*result.hardest_genuine[:3], *result.hardest_impostor[:3]]
    assert [p.score for p in found] == [p.score for p in expected]
    assert [p.same for p in found] == [True, True, True, False, False, False]
    for shown, pair in zip(found, expected, strict=True):
        assert np.array_equal(shown.left, picture(pair.left))
        assert np.array_equal(shown.right, picture(pair.right))


def test_pictures_survive_as_png_in_rgb_order() -> None:
    image = picture(3)
    assert np.array_equal(decoded(png_data_uri(image)), image)
    assert decoded(png_data_uri(image[:12], max_size=6)).shape == (3, 6, 3)
    with pytest.raises(ValueError, match=r"uint8 of the shape .*got float64"):
        png_data_uri(image / 255)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.usefixtures("blank_figures")
def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "report.html"
    page = verification_page(
        example_evaluation(sets=("plain",)),
        history=[],
        config_yaml=CONFIG,
        pictures=ReportPictures(),
    )
    page.write(path)
    written = path.read_text(encoding="utf-8")
    assert written.startswith("<!doctype html>")
    assert written.rstrip().endswith("</html>")
    with pytest.raises(UndefinedError):
        replace(page, sections=[None]).write(path)  # type: ignore[list-item]  # wrong on purpose
    assert path.read_text(encoding="utf-8") == written
    assert list(path.parent.iterdir()) == [path]


def test_a_row_is_a_person_and_a_column_an_image() -> None:
    people = [[picture(3 * person + image, 112) for image in range(3)] for person in (4, 8)]
    sheet = people_sheet(people)
    assert sheet.shape == (2 * 112 + 2, 10 * 112 + 9 * 2, 3)
    assert np.array_equal(sheet[114:, 228:340], people[1][2])
    assert (sheet[112:114] == 255).all()
    assert (sheet[:, 340:] == 255).all()  # nobody has a fourth image
    small = [[picture(person, 16)] for person in range(7)]
    assert people_sheet(small).shape == (7 * 112 + 6 * 2, 10 * 112 + 9 * 2, 3)
    assert np.array_equal(people_sheet(small)[:112, :112], resize(small[0][0], 112))
