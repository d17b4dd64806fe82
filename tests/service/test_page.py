"""The page, in a real browser against a real server: what people see and can do."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import cv2
import httpx
import numpy as np
import pytest

from sphereface2 import Recognizer
from sphereface2.data.sources.image_file import read_image
from sphereface2.evaluation.thresholds import beside
from sphereface2.service.app import PAGE
from sphereface2.service.keys import Key
from sphereface2.service.settings import Settings
from tests.service.conftest import Start, caller, running

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, JSHandle, Locator, Page, Request

CHROMIUM = shutil.which("chromium")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")


@pytest.fixture(scope="module")
def tab(place: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Page]":
    """A tab of Debian's browser, with a camera that sees one picture."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    film = tmp_path_factory.mktemp("camera") / "film.mjpeg"
    picture = cv2.resize(read_image(place / "a.png"), (640, 304))
    film.write_bytes(cv2.imencode(".jpg", picture)[1].tobytes() * 2)
    options = [
        # A container's root has no sandbox of its own, and its /dev/shm is small.
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-video-capture={film}",
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        page = browser.new_page()
        page.set_default_timeout(20_000)
        yield page
        browser.close()


Visit = Callable[..., "Page"]


@pytest.fixture
def visit(tab: "Page", client: httpx.Client) -> "Iterator[Visit]":
    """Opens a view of a server; what goes wrong on the page fails the test.

    All tests share a tab, which takes a second to open: it is emptied after each of them.
    """
    troubles, foreign, home = [], [], ""

    def on_error(error: object) -> None:
        troubles.append(str(error))

    def on_console(said: "ConsoleMessage") -> None:
        # A browser reports every refused request; that the service refuses some is tested here.
        if said.type == "error" and "Failed to load resource" not in said.text:
            troubles.append(said.text)

    def on_request(request: "Request") -> None:
        if not request.url.startswith((home, "data:", f"blob:{home}")):
            foreign.append(request.url)

    listeners = {"pageerror": on_error, "console": on_console, "request": on_request}

    def visit(
        view: str = "",
        *,
        at: httpx.Client = client,
        size: tuple[int, int] = (1280, 720),
        color_scheme: Literal["light", "dark"] = "light",
    ) -> "Page":
        nonlocal home
        home = str(at.base_url).rstrip("/")
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.emulate_media(color_scheme=color_scheme)
        for name, listener in listeners.items():
            tab.on(name, listener)  # type: ignore[call-overload]
        tab.goto(f"{home}/{view}")
        return tab

    yield visit
    tab.evaluate("() => { sessionStorage.clear(); localStorage.clear(); }")
    tab.context.clear_cookies()
    tab.goto("about:blank")
    for name, listener in listeners.items():
        tab.remove_listener(name, listener)
    assert not troubles
    assert not foreign, "the page asks another host"


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


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_score_and_its_threshold_are_told_apart() -> None:
    pairs = [(0.99996, 0.99998), (-0.0001, 0.0001), (0.25, 0.5), (1.0, 1.0)]
    program = (
        f"import {{ beside }} from '{(PAGE / 'words.js').as_uri()}';"
        f"console.log(JSON.stringify({json.dumps(pairs)}.map((each) => beside(...each))));"
    )
    command = ["node", "--input-type=module", "-e", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == [list(beside(score, limit)) for score, limit in pairs]


@in_browser
def test_the_same_photo_is_the_same_person(visit: Visit, place: Path) -> None:
    assert "Same person" in compared(visit(), place, "c", "c").inner_text()


@in_browser
def test_another_prior_is_asked_for_and_shown(visit: Visit, place: Path) -> None:
    page = visit()
    answer = compared(page, place)
    with page.expect_response("**/v1/verify") as reported:
        answer.get_by_role("combobox").select_option("0.001")
    assert reported.value.json()["prior"] == 0.001
    chance = reported.value.json()["probability"]
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
    slot(page, "First photo").get_by_text("This file cannot be read as a picture.").wait_for()


@in_browser
def test_a_model_that_is_not_calibrated_gives_no_decision(
    visit: Visit, start: Start, place: Path
) -> None:
    answer = compared(visit(at=start(model=place / "plain")), place)
    assert "No decision" in answer.inner_text()
    assert "sphereface2 calibrate MODEL --on SET" in answer.inner_text()


def as_files(page: "Page", *photos: Path) -> "JSHandle":
    """What a drag or a paste carries: files, in a DataTransfer of the page."""
    files = [(path.name, base64.b64encode(path.read_bytes()).decode()) for path in photos]
    return page.evaluate_handle(
        """files => {
            const carried = new DataTransfer();
            for (const [name, data] of files) {
                const bytes = Uint8Array.from(atob(data), each => each.charCodeAt(0));
                carried.items.add(new File([bytes], name, {type: 'image/png'}));
            }
            return carried;
        }""",
        files,
    )


@in_browser
def test_photos_are_dropped_and_pasted(visit: Visit, place: Path) -> None:
    page = visit()
    first, second = slot(page, "First photo"), slot(page, "Second photo")
    second.dispatch_event("dragover", {"dataTransfer": as_files(page, place / "a.png")})
    assert "over" in (second.get_attribute("class") or ""), "the place shows that it takes it"
    second.dispatch_event("drop", {"dataTransfer": as_files(page, place / "a.png")})
    second.get_by_text("One face found").wait_for()
    assert "over" not in (second.get_attribute("class") or "")
    # A paste goes to the place that is still empty.
    page.evaluate(
        """carried => document.dispatchEvent(
            new ClipboardEvent('paste', {clipboardData: carried, cancelable: true}))""",
        as_files(page, place / "c.png"),
    )
    first.get_by_text("One face found").wait_for()
    page.get_by_role("region", name="Answer").locator(".verdict").wait_for()
    # One that misses every place neither opens the file nor changes the answer.
    page.locator("header").dispatch_event("drop", {"dataTransfer": as_files(page, place / "b.png")})
    assert page.get_by_role("region", name="Answer").locator(".verdict").is_visible()


HOSTILE = "<img src=x onerror=\"document.title='owned'\"> & 'Bo'"


@pytest.fixture(scope="module")
def service(start: Start, tmp_path_factory: pytest.TempPathFactory) -> httpx.Client:
    return start(gallery=str(tmp_path_factory.mktemp("gallery") / "people"))


@pytest.fixture
def people(service: httpx.Client) -> "Iterator[httpx.Client]":
    """A client of a server that keeps people, nobody yet."""
    yield service
    service.delete("/v1/collections/default")  # which is made again, empty


def enrol(page: "Page", name: str, *photos: Path) -> "Locator":
    """Fill in the form and send it; what became of it."""
    form = page.locator("details.enrol")
    if form.get_attribute("open") is None:
        form.locator("summary").first.click()
    form.get_by_label("Name", exact=True).fill(name)
    form.locator("input[type=file]").set_input_files(photos)
    form.get_by_role("button", name="Enrol", exact=True).click()
    form.locator(".outcomes").wait_for()
    return form.locator(".outcome")


def names(client: httpx.Client) -> list[str]:
    return [each["name"] for each in client.get("/v1/collections/default/people").json()["people"]]


def marked(client: httpx.Client, person: str) -> int:
    return len(client.get("/v1/feedback", params={"person": person}).json()["feedback"])


@in_browser
def test_enrol_find_deny_and_undo(visit: Visit, people: httpx.Client, place: Path) -> None:
    page = visit("#people", at=people)
    page.get_by_text("Nobody is enrolled here yet.").wait_for()
    said = enrol(page, HOSTILE, place / "a.png", place / "wall.png")
    assert f"1 photo of {HOSTILE} enrolled." in said.inner_text()
    assert "No face was found." in said.inner_text()
    assert names(people) == [HOSTILE]

    page.get_by_role("link", name="Who is this?").click()
    give(page, "Photo", place / "b.png")
    row = page.get_by_role("list", name="The nearest people").get_by_role("listitem")
    row.wait_for()
    assert row.locator(".name bdi").inner_text() == HOSTILE
    answer = people.post("/v1/identify", files={"photo": (place / "b.png").read_bytes()}).json()
    assert f"score {answer['candidates'][0]['score']:.3f}" in row.inner_text()
    row.get_by_role("img", name=f"A photo of {HOSTILE}").wait_for()
    row.get_by_role("button", name=f"This photo does not show {HOSTILE}").click()
    row.get_by_text(f"Kept as a face that is not {HOSTILE}.").wait_for()
    assert marked(people, HOSTILE) == 1
    row.get_by_role("button", name="Undo").click()
    row.get_by_text("Undone").wait_for()
    assert marked(people, HOSTILE) == 0
    row.get_by_role("button", name=f"This photo does not show {HOSTILE}").click()
    row.get_by_text("Kept as a face").wait_for()
    assert marked(people, HOSTILE) == 1, "a second time counts, too"
    page.get_by_role("button", name="It is nobody of them").click()
    page.get_by_text("Kept as the face of a stranger.").first.wait_for()

    page.get_by_role("link", name="People").click()
    page.get_by_text("1 face is marked as a stranger").wait_for()
    page.get_by_role("button", name="Undo mark 1").click()
    page.get_by_text("Undone: the mark no longer counts.").first.wait_for()
    assert people.get("/v1/feedback").json()["feedback"] == []
    page.get_by_role("button", name=f"Show {HOSTILE}").click()
    shown = page.get_by_role("dialog")
    shown.get_by_text(f"1 face is marked as not {HOSTILE}").wait_for()
    shown.get_by_role("button", name="Undo mark 1").click()
    shown.get_by_text("Undone: the mark no longer counts.").first.wait_for()
    assert marked(people, HOSTILE) == 0
    shown.get_by_role("button", name="Close").click()
    assert page.title().startswith("People"), "a name has run as code"


@in_browser
def test_what_the_gate_refuses_can_be_enrolled_anyway(
    visit: Visit, people: httpx.Client, place: Path, tmp_path: Path
) -> None:
    blurred = cv2.GaussianBlur(read_image(place / "c.png"), (0, 0), 4)
    cv2.imwrite(str(tmp_path / "blurred.png"), blurred)
    page = visit("#people", at=people)
    said = enrol(page, "Ada", tmp_path / "blurred.png")
    assert "No photo of Ada enrolled." in said.inner_text()
    assert "The face is blurred" in said.inner_text()
    assert names(people) == []
    said.get_by_role("button", name="Enrol it anyway").click()
    said.get_by_text("1 photo of Ada enrolled.").wait_for()
    assert names(people) == ["Ada"]


@in_browser
def test_a_person_is_described_renamed_and_removed(
    visit: Visit, people: httpx.Client, place: Path
) -> None:
    page = visit("#people", at=people)
    enrol(page, "Ada", place / "a.png")
    page.get_by_role("button", name="Show Ada").click()
    page.get_by_role("dialog").get_by_role("button", name="Notes").click()
    page.get_by_role("dialog").get_by_role("button", name="Add a field").click()
    page.get_by_label("Field", exact=True).fill("<b>room</b>")
    page.get_by_label("Value", exact=True).fill("12")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved.").first.wait_for()
    found = people.get("/v1/collections/default/people/Ada").json()
    assert found["metadata"] == {"<b>room</b>": "12"}

    page.get_by_role("button", name="Show Ada").click()
    assert "<b>room</b>" in page.get_by_role("dialog").inner_text()
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill(HOSTILE)
    page.keyboard.press("Enter")
    page.get_by_text(f"Ada is now {HOSTILE}.").first.wait_for()
    assert names(people) == [HOSTILE]

    page.get_by_label("Find a person").fill("nobody")
    page.get_by_text("Nobody here has a name with").wait_for()
    page.get_by_label("Find a person").fill("onerror")
    page.get_by_role("button", name=f"Show {HOSTILE}").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert names(people) == [HOSTILE], "nothing is removed before it is confirmed"
    page.get_by_role("button", name=f"Show {HOSTILE}").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    page.get_by_text(f"{HOSTILE} is removed.").first.wait_for()
    assert names(people) == []


@in_browser
def test_the_keyboard_is_enough(visit: Visit, place: Path) -> None:
    """Two photos are compared and the threshold is changed without a mouse."""
    page = visit()
    page.on("filechooser", lambda chooser: None)  # they are caught from here on
    page.get_by_role("heading", level=1).wait_for()
    page.keyboard.press("Tab")
    assert _focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    for label, photo in (("First photo", "a"), ("Second photo", "c")):
        _tab_to(page, f"Choose a photo: {label}")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(place / f"{photo}.png")
        slot(page, label).get_by_text("One face found").wait_for()
    page.get_by_role("region", name="Answer").locator(".verdict").wait_for()
    page.keyboard.press("Shift+Tab")
    _tab_to(page, "Settings", backwards=True)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Settings").wait_for()
    _tab_to(page, "As the service says 1 in 1,000")
    page.keyboard.press("ArrowDown")
    assert page.get_by_role("radio", name="At most 1 in 10 false accepts").is_checked()
    _tab_to(page, "Compare", backwards=True)
    page.keyboard.press("Enter")
    answer = page.get_by_role("region", name="Answer")
    answer.get_by_text("at most 1 in 10 false accepts").wait_for()


def _focused(page: "Page") -> str:
    """The name of the element that has the focus; it must be seen that it has."""
    name, seen = page.evaluate(
        """() => {
            const node = document.activeElement;
            const words = node.labels?.length ? node.labels[0].innerText : node.innerText;
            const style = getComputedStyle(node);
            const name = node.getAttribute('aria-label') ?? words ?? '';
            return [name.trim().replace(/\\s+/g, ' '), parseFloat(style.outlineWidth) >= 2];
        }"""
    )
    assert seen or not name, f"the focus on '{name}' cannot be seen"
    return str(name)


def _tab_to(page: "Page", name: str, *, backwards: bool = False) -> None:
    passed = []
    for _ in range(40):
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
        passed.append(_focused(page))
        if passed[-1] == name:
            return
    raise AssertionError(f"'{name}' is not reached by Tab; passed: {passed}")


KEY = "0123456789abcdef-write"


@in_browser
def test_a_key_is_asked_for_and_kept_in_the_tab(visit: Visit, start: Start, place: Path) -> None:
    key = Key("office", True, hashlib.sha256(KEY.encode()).digest())
    page = visit(at=start(keys=(key,)))
    page.get_by_text("This service asks for an API key.").first.wait_for()
    give(page, "First photo", place / "a.png")
    slot(page, "First photo").get_by_role("link", name="Open the settings").click()
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("This API key is not known to the service.").first.wait_for()
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="About this service").wait_for()
    page.get_by_role("link", name="Compare").click()
    slot(page, "First photo").get_by_text("One face found").wait_for()
    kept = page.evaluate("() => [sessionStorage.length, localStorage.length, document.cookie]")
    assert kept == [1, 0, ""]


@in_browser
def test_too_many_requests_can_be_repeated(visit: Visit, start: Start, place: Path) -> None:
    page = visit(at=start(rate=0.5, burst=1))
    give(page, "First photo", place / "a.png")
    first = slot(page, "First photo")
    first.get_by_text("Too many requests. Try again in").wait_for()
    first.get_by_role("button", name="Try again").click()  # waits until it may be pressed
    first.get_by_text("One face found").wait_for()


@in_browser
def test_a_service_that_is_gone_is_noticed_and_its_return(visit: Visit, place: Path) -> None:
    settings = Settings(model=place / "model")
    with running(settings) as url, caller(url) as client:
        page = visit(at=client)
        page.get_by_role("heading", level=1).wait_for()
        page.get_by_text("model").first.wait_for()
    give(page, "First photo", place / "a.png")
    page.get_by_text("The service does not answer.").first.wait_for()
    with running(settings, port=int(url.rpartition(":")[2])):
        page.get_by_text("The service answers again.").wait_for()
        slot(page, "First photo").get_by_text("One face found").wait_for()


@in_browser
def test_a_photo_is_taken_with_the_camera(visit: Visit) -> None:
    page = visit()
    page.get_by_role("button", name="Camera: First photo").click()
    page.get_by_role("button", name="Take the photo").click()
    slot(page, "First photo").get_by_text("One face found").wait_for()
    assert page.get_by_role("dialog").count() == 0


@in_browser
@pytest.mark.parametrize("view", ["compare", "search", "people", "settings"])
def test_nothing_is_wider_than_a_small_phone(visit: Visit, people: httpx.Client, view: str) -> None:
    page = visit(f"#{view}", at=people, size=(320, 640), color_scheme="dark")
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_load_state("networkidle")  # what is asked for has been answered
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide == 320
    for each in page.locator("main button:visible, main input:visible").all():
        assert each.evaluate(
            "node => (node.getAttribute('aria-label') ?? node.innerText) || node.labels.length"
        ), "it has no name for a screen reader"


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
