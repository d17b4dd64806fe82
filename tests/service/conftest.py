"""A real server on a free port, in a thread, and clients for it."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
import uvicorn
from numpy.typing import NDArray

from sphereface2.data.transforms import Preprocessing
from sphereface2.evaluation.calibration import calibrate
from sphereface2.models.folder import import_onnx, store_calibration, weights_digest
from sphereface2.service.app import build_app
from sphereface2.service.keys import Key
from sphereface2.service.server import Http, configure, listen
from sphereface2.service.settings import Settings
from tests.evaluation.test_decision import scored_pairs
from tests.models.onnx_files import SIDE, save
from tests.recognition.test_photos import photo


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, rendered: list[NDArray[np.uint8]]) -> Path:
    """A calibrated ONNX model, one that is not calibrated, and photos."""
    place = tmp_path_factory.mktemp("service")
    for name in ("model", "plain"):
        import_onnx(save(place / "net.onnx"), place / name, preprocessing=Preprocessing(SIDE))
    digest = weights_digest(place / "model")
    known = calibrate(scored_pairs(), model=digest, replicates=0)
    store_calibration(place / "model", known.to_mapping())
    for name, faces in (("a", [0]), ("b", [1]), ("c", [2]), ("d", [3]), ("two", [0, 1])):
        picture = photo(*(rendered[number] for number in faces))
        cv2.imwrite(str(place / f"{name}.png"), picture[..., ::-1])
    cv2.imwrite(str(place / "wall.png"), np.full((80, 80, 3), 90, np.uint8))
    return place


Start = Callable[..., httpx.Client]


def caller(url: str) -> httpx.Client:
    """A client that loads no certificates, which takes longer than most of its requests."""
    return httpx.Client(base_url=url, timeout=300, verify=False)


@contextmanager
def running(settings: Settings, keys: tuple[Key, ...] = (), *, port: int = 0) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    with listen("127.0.0.1", port) as listener:
        config = configure(settings, build_app(settings, keys))
        # A process has one server, and its limits; here the next one would change them for all.
        limits = {name: getattr(Http, name) for name in ("header_timeout", "max_connections")}
        config.http = type("Http", (Http,), limits)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def start(place: Path) -> Iterator[Start]:
    """Starts a server with some settings, and gives a client for it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(keys: tuple[Key, ...] = (), **options: Any) -> httpx.Client:
            settings = Settings(**{"model": place / "model", **options})
            url = stack.enter_context(running(settings, keys))
            return stack.enter_context(caller(url))

        yield start


@pytest.fixture(scope="module")
def client(start: Start) -> httpx.Client:
    """Of a server with usual settings."""
    return start()


@pytest.fixture(scope="session")
def pictures(place: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in place.glob("*.png")}


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def code(answer: httpx.Response) -> str:
    """The code of an error, whose form is checked."""
    found = answer.json()
    assert set(found) == {"error", "request_id"}, found
    assert set(found["error"]) == {"code", "message", "details"}
    assert found["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return str(found["error"]["code"])
