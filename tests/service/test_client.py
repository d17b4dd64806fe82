"""The client: what a recognizer says, said by a service."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest

from sphereface2 import Client, Recognizer
from sphereface2.recognition.gate import Gate
from sphereface2.recognition.photos import NoFaceError
from sphereface2.service.client import ServiceError
from sphereface2.service.settings import Settings
from tests.service.conftest import running

Connect = Callable[..., Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients, which are closed in the end."""
    with ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(Client(*words, **options))


@pytest.fixture(scope="module")
def url(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    gallery = tmp_path_factory.mktemp("client") / "people"
    with running(Settings(model=place / "model", gallery=str(gallery))) as url:
        yield url


def test_code_moves_by_one_line(url: str, place: Path, tmp_path: Path, connect: Connect) -> None:
    photos = [place / f"{name}.png" for name in "abcd"]
    gate = Gate.of(allow=["all"], limits=[])
    said = []
    for recognizer in (Recognizer(place / "model"), connect(url)):
        gallery = recognizer.open_gallery(tmp_path / "people", create=True)
        verified = recognizer.verify(photos[0], photos[1:], false_accepts=0.01, prior=0.2)
        enrolled = [
            recognizer.enroll(name, [photo], gallery, gate=gate, metadata={"n": name})  # type: ignore[arg-type]
            for name, photo in zip(("Ann", "Bob", "Carl"), photos, strict=False)
        ]
        rejected = recognizer.reject(photos[3], "Ann", gallery)  # type: ignore[arg-type]
        found = recognizer.identify(photos[1], gallery, people=2)  # type: ignore[arg-type]
        person = recognizer.verify_person(photos[0], gallery, "Ann")  # type: ignore[arg-type]
        said.append(
            {
                "verify": [verified.sentences(), verified.answer.threshold, verified.accepted],
                "faces": [each.crop.tolist() for each in verified.faces],
                "names": [each.photo for each in verified.faces],
                "points": [np.round(each.points, 2).tolist() for each in verified.faces],  # type: ignore[arg-type]
                "embed": np.round(recognizer.embed(photos), 4).tolist(),
                "enroll": [each.sentences() for each in enrolled],
                "quality": [each.photos[0].quality for each in enrolled],
                "reject": [rejected.person, rejected.source],
                "identify": [found.sentences(), found.rule, found.gallery],
                "person": [person.sentences(), person.name, person.accepted],
                "objection": person.objection,
                "people": [(each.name, each.photos, each.metadata) for each in gallery.people()],
                "digest": recognizer.digest,
            }
        )
        gallery.rename("Ann", "Anna")
        gallery.describe("Anna", {"team": "red"})
        said[-1]["renamed"] = [gallery.person("Anna").metadata, gallery.count()]
        said[-1]["crop"] = gallery.crop(gallery.photos("Bob")[0].id)
        said[-1]["removed"] = [
            gallery.remove_photos([gallery.photos("Bob")[0].id]),
            gallery.remove("Anna"),
            gallery.count(),
        ]
        gallery.remove_negative  # noqa: B018 - both have it
        gallery.close()
    assert set(said[0]) == set(said[1])
    for what, expected in said[0].items():
        assert said[1][what] == expected, what


def test_photos_are_paths_arrays_and_pictures(url: str, place: Path, connect: Connect) -> None:
    from PIL import Image

    client = connect(url)
    array = np.ascontiguousarray(cv2.imread(str(place / "a.png"))[..., ::-1])  # type: ignore[index]
    with Image.open(place / "a.png") as picture:
        rows = client.embed([place / "a.png", str(place / "a.png"), array, picture])
    np.testing.assert_allclose(rows, rows[[0, 0, 0, 0]], atol=1e-6)
    # Crops are not searched for a face when the client says so.
    crop = connect(url, kind="crop").embed([array])
    assert not np.allclose(crop, rows[:1], atol=1e-3)


def test_refusals_are_those_of_a_recognizer(url: str, place: Path, connect: Connect) -> None:
    client = connect(url)
    with pytest.raises(NoFaceError, match="there is no face in photo 2") as error:
        client.verify(place / "a.png", place / "wall.png")
    assert isinstance(error.value, ServiceError)
    assert (error.value.status, error.value.code) == (422, "no_face")
    assert error.value.request_id
    with pytest.raises(FileNotFoundError, match="there is no image"):
        client.embed([place / "nothing.png"])
    with pytest.raises(ValueError, match="photos must be a list"):
        client.embed("a.png")
    with pytest.raises(ServiceError, match="there is no collection 'nobodys'"):
        client.open_gallery(collection="nobodys")
    with pytest.raises(ServiceError) as wrong:
        client.identify(place / "a.png", client.open_gallery(), people=101)
    assert str(wrong.value) == "people must be at most 100, not '101'"
    assert (wrong.value.status, wrong.value.code) == (422, "invalid")
    gallery = client.open_gallery(collection="gate", create=True)
    done = client.enroll("Ann", [place / "wall.png"], gallery)
    assert [each.code for each in done.photos[0].reasons] == ["no_face"]
    assert not done.photos[0].accepted


class Flaky(BaseHTTPRequestHandler):
    """Refuses twice, drops a connection, then answers; and keeps what it was sent."""

    keys: ClassVar[list[str | None]] = []

    def do_DELETE(self) -> None:
        self.keys.append(self.headers["Idempotency-Key"])
        states = {1: 503, 2: 429}
        if len(self.keys) == 3:
            self.connection.close()
            return
        status = states.get(len(self.keys), 200)
        self.send_response(status)
        if status != 200:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(b'{"photos": 7}')

    def log_message(self, *words: object) -> None:
        pass


def test_a_write_is_repeated_with_one_key(connect: Connect) -> None:
    from sphereface2.service.client import RemoteGallery

    Flaky.keys.clear()
    server = HTTPServer(("127.0.0.1", 0), Flaky)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        client = connect(f"http://127.0.0.1:{server.server_port}")
        assert RemoteGallery(client, "default").remove("Ann") == 7
        assert len(Flaky.keys) == 4
        assert len(set(Flaky.keys)) == 1
        assert Flaky.keys[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    lost = connect(f"http://127.0.0.1:{server.server_port}", retries=1)
    with pytest.raises(OSError, match="no answer from the service at http"):
        lost.embed([np.zeros((20, 20, 3), np.uint8)])
