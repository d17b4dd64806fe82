"""The page, in a real browser against a real server: what people see and can do."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from sphereface2 import Recognizer
from sphereface2.service.app import PAGE
from tests.service.conftest import Start

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = shutil.which("chromium")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        # A container's root has no sandbox of its own, and its /dev/shm is small.
        opened = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


Visit = Callable[..., "Page"]


@pytest.fixture
def visit(browser: "Browser", client: httpx.Client) -> "Iterator[Visit]":
    """Opens a view of a server in a fresh browser; what goes wrong on the page fails the test."""
    contexts, troubles, foreign = [], [], []

    def visit(view: str = "", *, at: httpx.Client = client, **options: object) -> "Page":
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        home = str(at.base_url).rstrip("/")
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text) if _is_trouble(said) else None)
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((home, "data:", f"blob:{home}"))
                else foreign.append(request.url)
            ),
        )
        page.set_default_timeout(20_000)
        page.goto(f"{home}/{view}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not troubles
    assert not foreign, "the page asks another host"


def _is_trouble(said: object) -> bool:
    # A browser reports every refused request; that the service refuses some is tested here.
    text = str(getattr(said, "text", ""))
    return getattr(said, "type", "") == "error" and "Failed to load resource" not in text


def slot(page: "Page", label: str) -> "Locator":
    return page.get_by_role("region", name=label)


def give(page: "Page", label: str, photo: Path) -> None:
    slot(page, label).locator("input[type=file]").set_input_files(photo)


def compared(page: "Page", place: Path, first: str = "a", second: str = "b") -> "Locator":
    """The answer about two photos."""
    give(page, "First photo", place / f"{first}.png")
    slot(page, "First photo").get_by_text("face").first.wait_for()
    give(page, "Second photo", place / f"{second}.png")
    answer = page.get_by_role("region", name="Answer")
    answer.locator(".verdict").wait_for()
    return answer


@in_browser
def test_two_photos_get_the_recognizers_answer_in_words(visit: Visit, place: Path) -> None:
    done = Recognizer(place / "model").verify(place / "a.png", place / "b.png").answer
    answer = compared(visit(), place)
    text = answer.inner_text()
    assert f"{done.score:.3f}".replace("-", "−") in text
    assert f"{done.threshold:.3f}".replace("-", "−") in text
    verdict = "Same person" if done.accepted else "Not accepted as the same person"
    assert verdict in text
    assert "at most 1 in 1,000 false accepts" in text
    assert done.false_accepts is not None
    assert f"{done.false_accepts.trials:,} pairs of different people" in text
    assert answer.locator(".crop img").count() == 2
    assert answer.locator(".crop circle").count() == 10
    picture = answer.get_by_role("img", name=re.compile("Histogram of the scores"))
    assert "this score" in (picture.text_content() or "")
    assert "threshold" in (picture.text_content() or "")


@in_browser
def test_the_same_photo_is_the_same_person(visit: Visit, place: Path) -> None:
    assert "Same person" in compared(visit(), place, "c", "c").inner_text()


@in_browser
def test_another_prior_is_asked_for_and_shown(visit: Visit, place: Path) -> None:
    page = visit()
    answer = compared(page, place)
    with page.expect_response("**/v1/verify") as told:
        answer.get_by_role("combobox").select_option("0.001")
    assert told.value.json()["prior"] == 0.001
    chance = told.value.json()["probability"]
    shown = "> 99.9%" if chance > 0.9995 else "< 0.1%" if chance < 0.0005 else f"{chance:.1%}"
    answer.locator("dd b").get_by_text(shown, exact=True).wait_for()
    assert answer.get_by_role("combobox").input_value() == "0.001"


@in_browser
def test_of_several_faces_one_is_chosen(visit: Visit, place: Path) -> None:
    from playwright.sync_api import expect

    page = visit()
    answer = compared(page, place, "a", "two")
    faces = slot(page, "Second photo").get_by_role("radio")
    assert faces.count() == 2
    scores = {answer.locator("dd b").first.inner_text()}
    other = faces.nth(1) if faces.nth(0).is_checked() else faces.nth(0)
    other.check(force=True)
    expect(answer.locator("dd b").first).not_to_have_text(next(iter(scores)))
    scores.add(answer.locator("dd b").first.inner_text())
    assert "1.000" in scores, "one of the two is the face of the first photo"


@in_browser
def test_a_photo_without_a_face_can_be_used_as_a_crop(visit: Visit, place: Path) -> None:
    page = visit()
    give(page, "First photo", place / "wall.png")
    first = slot(page, "First photo")
    first.get_by_text("There is no face in this photo.").wait_for()
    give(page, "Second photo", place / "a.png")
    first.get_by_role("button", name="use it as it is").click()
    page.get_by_role("region", name="Answer").locator(".verdict").wait_for()


@in_browser
def test_a_file_that_is_not_a_picture_is_refused(visit: Visit, tmp_path: Path) -> None:
    page = visit()
    text = tmp_path / "<img src=x onerror=document.title=1>.txt"
    text.write_text("no picture")
    give(page, "First photo", text)
    slot(page, "First photo").get_by_text(f"{text.name} is not a picture.").wait_for()
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    give(page, "First photo", broken)
    slot(page, "First photo").get_by_text("That did not work").wait_for()


@in_browser
def test_a_model_that_is_not_calibrated_gives_no_decision(
    visit: Visit, start: Start, place: Path
) -> None:
    answer = compared(visit(at=start(model=place / "plain")), place)
    assert "No decision" in answer.inner_text()
    assert "sphereface2 calibrate MODEL --on SET" in answer.inner_text()


def test_every_text_is_in_one_file_and_used() -> None:
    """Keys of texts.js are those that the other files ask for; elsewhere there are no words."""
    source = (PAGE / "texts.js").read_text(encoding="utf-8")
    keys: set[str] = set()
    path: list[str] = []
    for line in source.splitlines():
        if opened := re.match(r"\s*(?:export const )?(\w+)(?: =|:) \{$", line):
            path.append(opened[1])
        elif re.match(r"\s*\},?;?$", line):
            path.pop()
        elif text := re.match(r"\s+(\w+): [\"{]", line):
            keys.add(".".join([*path[1:], text[1]]))
    assert len(keys) > 100
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in PAGE.iterdir()
        if path.suffix in (".js", ".html") and path.name != "texts.js"
    )
    groups = "|".join({key.split(".")[0] for key in keys})
    asked = set(re.findall(rf"[\"'`]((?:{groups})\.(?!js)[\w.]+)[\"'`]", code))
    assert asked <= keys, "asked for, but not there"
    # Keys that are put together, such as `people.${word}`, name their last part somewhere.
    unused = {key for key in keys - asked if not re.search(rf"\b{key.split('.')[-1]}\b", code)}
    assert not {key for key in unused if not key.startswith(("errors.", "people.reasons."))}


def test_the_page_has_no_inline_code_and_never_reads_html() -> None:
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        ), path
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)\w", text), f"{path} names a host"
        if path.suffix == ".html":
            assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text)


def test_colours_of_text_have_contrast() -> None:
    """WCAG AA, 4.5 to 1, for text on every ground that it stands on, in the light and the dark."""
    css = (PAGE / "style.css").read_text(encoding="utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    names = r"--([a-z-]+): (#[0-9a-f]{6})"
    schemes = [dict(re.findall(names, light.split("}")[0]))]
    schemes.append({**schemes[0], **dict(re.findall(names, dark.split("}")[0]))})
    for colours in schemes:
        pairs = [
            (text, ground)
            for text in ("ink", "muted", "accent")
            for ground in ("page", "card", "inset")
        ]
        pairs += [(kind, f"{kind}-back") for kind in ("good", "bad", "warn")]
        pairs += [("accent-ink", "accent"), ("bad", "card"), ("ink", "accent-back")]
        for text, ground in pairs:
            ratio = _contrast(colours[text], colours[ground])
            assert ratio >= 4.5, f"{text} on {ground}: {ratio:.2f}"


def _contrast(one: str, other: str) -> float:
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_the_files_are_asked_for_again_each_time(client: httpx.Client) -> None:
    answer = client.get("/app.js")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-type"].startswith("text/javascript")
    again = client.get("/app.js", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
