"""Many at once: batches, a bounded line, deadlines, and an end that loses nothing."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sphereface2 import Recognizer
from sphereface2.service.engine import Crops, MicroBatches
from sphereface2.service.errors import BusyError, DeadlineError
from sphereface2.service.guard import Guard
from sphereface2.service.server import listen
from sphereface2.service.settings import Settings
from sphereface2.service.telemetry import JsonFormatter, Metrics
from tests.service.conftest import Start, caller, code

Pictures = dict[str, bytes]


def crop(value: int) -> NDArray[np.uint8]:
    return np.full((4, 4, 3), value, np.uint8)


def value_of(crops: Crops) -> NDArray[np.float32]:
    return np.array([[float(each[0, 0, 0])] for each in crops], np.float32)


class Gate:
    """A network that waits until it is let go, and reports its batches."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, crops: Crops) -> NDArray[np.float32]:
        values = [int(each[0, 0, 0]) for each in crops]
        self.batches.append(values)
        assert self.open.wait(300)
        if 255 in values:
            raise ValueError("255 cannot be embedded")
        return value_of(crops)


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def later(seconds: float = 300.0) -> float:
    return time.monotonic() + seconds


def test_those_who_wait_are_the_next_batch() -> None:
    network = Gate()
    batches = MicroBatches(network, most=4)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(batches.embed, [crop(0)], deadline=later())
        wait_until(lambda: len(network.batches) == 1)
        others = []
        for number in range(1, 7):
            others.append(pool.submit(batches.embed, [crop(number)], deadline=later()))
            wait_until(lambda number=number: batches.waiting == number)  # type: ignore[misc]
        network.open.set()
        assert first.result().tolist() == [[0.0]]
        assert [each.result().tolist() for each in others] == [[[float(n)]] for n in range(1, 7)]
    assert network.batches == [[0], [1, 2, 3, 4], [5, 6]]
    batches.close()


def test_a_faulty_face_fails_alone() -> None:
    network = Gate()
    batches = MicroBatches(network, most=8)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(batches.embed, [crop(0)], deadline=later())]
        wait_until(lambda: len(network.batches) == 1)
        for number, value in enumerate((1, 255, 3), start=1):
            jobs.append(pool.submit(batches.embed, [crop(value)], deadline=later()))
            wait_until(lambda number=number: batches.waiting == number)  # type: ignore[misc]
        network.open.set()
        assert [jobs[n].result().tolist() for n in (0, 1, 3)] == [[[0.0]], [[1.0]], [[3.0]]]
        with pytest.raises(ValueError, match="255 cannot"):
            jobs[2].result()
    assert batches.alive
    batches.close()


@pytest.mark.parametrize("together", [False, True])
def test_a_thread_in_which_the_network_once_failed_is_not_used_again(together: bool) -> None:
    gate, spoilt = Gate(), set[int]()

    def network(crops: Crops) -> NDArray[np.float32]:
        found = gate(crops)
        if len(gate.batches) == 2 or threading.get_ident() in spoilt:
            spoilt.add(threading.get_ident())
            raise RuntimeError("could not create a primitive")
        return found

    batches = MicroBatches(network, most=8)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(batches.embed, [crop(0)], deadline=later())
        wait_until(lambda: len(gate.batches) == 1)
        jobs = []
        for number in range(1, 4 if together else 2):
            jobs.append(pool.submit(batches.embed, [crop(number)], deadline=later()))
            wait_until(lambda number=number: batches.waiting == number)  # type: ignore[misc]
        gate.open.set()
        assert first.result().tolist() == [[0.0]]
        if together:  # each is tried again
            assert [each.result().tolist() for each in jobs] == [[[1.0]], [[2.0]], [[3.0]]]
        else:
            with pytest.raises(RuntimeError, match="primitive"):
                jobs[0].result()
        assert batches.embed([crop(9)], deadline=later()).tolist() == [[9.0]]
    assert batches.alive
    batches.close()
    assert not batches.alive


def test_the_line_is_bounded_and_late_faces_are_never_embedded() -> None:
    network = Gate()
    batches = MicroBatches(network, depth=2)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(batches.embed, [crop(0)], deadline=later())
        wait_until(lambda: len(network.batches) == 1)
        late = pool.submit(batches.embed, [crop(1), crop(2)], deadline=later(0.2))
        wait_until(lambda: batches.waiting == 2)
        with pytest.raises(BusyError) as error:
            batches.embed([crop(3)], deadline=later())
        assert error.value.seconds == batches.seconds_to_clear() == 3 * 0.05
        with pytest.raises(DeadlineError):
            late.result()
        network.open.set()
        first.result()
    batches.close()
    assert network.batches == [[0]]
    with pytest.raises(BusyError):
        batches.embed([crop(1)], deadline=later())


def test_many_at_once_get_their_own_answers(
    client: httpx.Client, pictures: Pictures, place: Path
) -> None:
    recognizer = Recognizer(place / "model")
    wanted = {name: recognizer.embed([place / f"{name}.png"])[0] for name in "abcd"}

    def ask(number: int) -> float:
        name = "abcd"[number % 4]
        answer = client.post("/v1/embed", files={"photos": pictures[name]})
        return float(np.array(answer.json()["embeddings"][0]) @ wanted[name])

    with ThreadPoolExecutor(8) as pool:
        assert min(pool.map(ask, range(16))) > 0.9999


def test_a_full_service_says_when_to_come_again(start: Start, pictures: Pictures) -> None:
    client = start(max_pending=1)
    files = {"photos": pictures["a"]}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/embed", files=files), range(24)))
    states = {each.status_code for each in answers}
    assert states == {200, 429}
    for each in answers:
        if each.status_code == 429:
            assert code(each) == "busy"
            assert int(each.headers["retry-after"]) >= 1
    assert client.post("/v1/embed", files=files).status_code == 200
    assert "sphereface2_pending_requests 0.0" in client.get("/metrics").text


def test_a_deadline_is_a_503(start: Start, pictures: Pictures) -> None:
    client = start(deadline=0.0001)
    refused = client.post("/v1/embed", files={"photos": pictures["a"]})
    assert (refused.status_code, code(refused)) == (503, "deadline")
    assert int(refused.headers["retry-after"]) >= 1


def test_answers_do_not_wait_for_the_acknowledgement_of_their_head() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as link,
    ):
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# The command, as a process.


@contextmanager
def served(*words: object, environment: dict[str, str] | None = None) -> Iterator[tuple[Any, str]]:
    """A running `sphereface2 serve` and its address, which it says at once into a pipe."""
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-m", "sphereface2", "serve", *(str(word) for word in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**buffered, **(environment or {})},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        yield process, address
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)


def wait_until_ready(address: str) -> None:
    with caller(address) as http:

        def ready() -> bool:
            try:
                return http.get("/v1/health/ready").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready)


def people_of(place: Path, folder: Path) -> list[str]:
    gallery = Recognizer(place / "model").open_gallery(folder)
    names = [person.name for person in gallery.people()]
    gallery.close()
    return names


def end_among_requests(process: Any, address: str, photo: bytes) -> list[str]:
    """Who was acknowledged by a service that gets SIGTERM while four callers enrol people."""
    acknowledged: list[str] = []
    answers: list[tuple[int, str]] = []
    stop = threading.Event()

    def enrol(client: int) -> None:
        number = 0
        with caller(address) as http:
            while not stop.is_set():
                name = f"person {client} {number}"
                number += 1
                try:
                    done = http.post(
                        "/v1/collections/default/people",
                        files={"photos": photo},
                        data={"name": name, "allow": "all", "kind": "crop"},
                    )
                except httpx.TransportError:
                    return  # not acknowledged
                answers.append((done.status_code, done.text))
                if done.status_code == 201:
                    acknowledged.append(name)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(enrol, number) for number in range(4)]
        wait_until(lambda: len(acknowledged) >= 12)
        process.send_signal(signal.SIGTERM)
        _, logs = process.communicate(timeout=300)  # a full pipe would hold it up
        stop.set()
        for job in jobs:
            job.result()
    assert [each for each in answers if each[0] != 201] == [], logs
    assert process.returncode == 0
    return acknowledged


@pytest.mark.usefixtures("quick_processes")
def test_sigterm_loses_nothing_that_was_acknowledged(
    place: Path, pictures: Pictures, tmp_path: Path
) -> None:
    options = ["--port", 0, "--gallery", tmp_path / "people"]
    with served(place / "model", *options) as (process, address):
        wait_until_ready(address)
        acknowledged = end_among_requests(process, address, pictures["a"])
    kept = people_of(place, tmp_path / "people")
    assert set(acknowledged) <= set(kept)
    assert len(kept) == len(set(kept))


def test_an_ending_service_closes_each_connection_with_its_next_answer() -> None:
    """A connection that uvicorn takes on as it ends would be served on and cut off at last."""
    heard: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await PlainTextResponse("here")(scope, receive, send)

    async def closing(guard: Guard) -> bool:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(guard), base_url="http://localhost"
        ) as http:
            return bool((await http.get("/")).headers.get("connection") == "close")

    async def live() -> tuple[bool, bool]:
        guard = Guard(
            app, settings=Settings(model=Path("model")), metrics=Metrics(), with_keys=False
        )
        await guard({"type": "lifespan"}, None, None)  # type: ignore[arg-type]  # not called here
        before = await closing(guard)
        os.kill(os.getpid(), signal.SIGTERM)
        return before, await closing(guard)

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        assert asyncio.run(live()) == (False, True)
        assert heard == [signal.SIGTERM]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@pytest.mark.usefixtures("quick_processes")
def test_workers_share_a_gallery_add_up_their_metrics_and_lose_nothing_at_sigterm(
    place: Path, pictures: Pictures, tmp_path: Path
) -> None:
    options = ["--port", 0, "--gallery", tmp_path / "people", "--workers", 2]
    with served(place / "model", *options) as (process, address):
        wait_until_ready(address)
        for number in range(10):  # each with a connection of its own: any worker may take it
            with caller(address) as http:
                done = http.post(
                    "/v1/collections/default/people",
                    files={"photos": pictures["a"]},
                    data={"name": f"person {number}", "allow": "all"},
                )
            assert done.status_code == 201, done.text
            with caller(address) as http:
                listed = http.get("/v1/collections/default").json()
                assert listed["people"] == number + 1
        with caller(address) as http:
            text = http.get("/metrics").text
        assert (
            'sphereface2_requests_total{method="POST",'
            'route="/v1/collections/{collection}/people",status="201"} 10.0' in text
        )
        acknowledged = end_among_requests(process, address, pictures["a"])
    kept = people_of(place, tmp_path / "people")
    assert {*acknowledged, *(f"person {number}" for number in range(10))} <= set(kept)
    assert len(kept) == len(set(kept))


@pytest.mark.usefixtures("quick_processes")
def test_logs_are_json_without_names(place: Path, pictures: Pictures, tmp_path: Path) -> None:
    with served(place / "model", "--port", 0, "--gallery", tmp_path / "people") as (
        process,
        address,
    ):
        with caller(address) as http:
            http.post(
                "/v1/collections/default/people",
                files={"photos": pictures["a"]},
                data={"name": "Rumpelstiltskin", "allow": "all"},
            )
            http.get("/v1/collections/default/people/Rumpelstiltskin")
            http.get("/v1/collections/default/people/Rumpelstiltzkin")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [each["status"] for each in lines] == [201, 200, 404]
    assert {each["route"] for each in lines} == {
        "/v1/collections/{collection}/people",
        "/v1/collections/{collection}/people/{person}",
    }
    assert "umpelstil" not in errors


def test_an_error_is_logged_by_its_kind_and_place_alone() -> None:
    try:
        raise RuntimeError("Rumpelstiltskin")
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert line["error"] == "RuntimeError"
    assert "test_load.py" in line["through"][0]
    assert "Rumpelstiltskin" not in json.dumps(line)


def refused(*words: object, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sphereface2", "serve", *(str(word) for word in words)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("sphereface2: ")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.usefixtures("quick_processes")
def test_a_service_that_cannot_start_says_why(place: Path, client: httpx.Client) -> None:
    assert "needs API keys" in refused(place / "model", "--host", "0.0.0.0", "--port", 0)
    taken = client.base_url.port
    assert "another program listens there" in refused(place / "model", "--port", taken)
    assert "no run or model folder" in refused(place / "nothing", "--port", 0)
    gallery = ["--gallery", place / "a.png", "--port", 0]
    assert "is not a folder" in refused(place / "model", *gallery)
    rate = ["--false-accepts", "1e-9", "--port", 0]
    assert "cannot tell" in refused(place / "model", *rate)
    assert "did you mean 'mtcnn'" in refused(place / "model", "--detector", "mtcn", "--port", 0)


def test_torch_is_not_loaded(place: Path, tmp_path: Path) -> None:
    script = (
        "import sys, threading, time, httpx\n"
        "from sphereface2.service.server import serve\n"
        "from sphereface2.service.settings import Settings\n"
        "from pathlib import Path\n"
        "def ask(address):\n"
        "    def work():\n"
        "        import os, signal\n"
        "        with open(sys.argv[3], 'rb') as f: photo = f.read()\n"
        "        answer = httpx.post(address + '/v1/verify', timeout=300,\n"
        "            files=[('photo', photo), ('person', photo)])\n"
        "        print(answer.status_code, 'torch' in sys.modules)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Thread(target=work).start()\n"
        "serve(Settings(model=Path(sys.argv[1]), gallery=sys.argv[2], port=0), announce=ask)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, place / "model", tmp_path / "people", place / "a.png"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["200", "False"], done.stderr
    assert done.returncode == 0
