"""What the service does under load: throughput against the bare model, latency, memory, its end.

    python -m benchmarks.service load MODEL [--requests 2000 --clients 32]
    python -m benchmarks.service memory MODEL [--requests 20000]
    python -m benchmarks.service end MODEL
    python -m benchmarks.service schema MODEL [--requests 5000]

MODEL is a model folder or run, or the name of a backbone, which is exported to ONNX with fresh
weights. The service runs as a process of its own, its callers in this one.

load: aligned crops to /v1/embed, and one request in ten an enrolment; in turn with as many images
    through the bare model in batches of 32, in rounds, so that both share the machine's good and
    bad moments. Every enrolment that was acknowledged must be in the gallery.
memory: the service's resident memory over many small requests.
end: SIGTERM while 32 callers enrol; what was acknowledged must be there.
schema: requests generated from the OpenAPI by schemathesis (pip install schemathesis), bodies of
    every kind; a 5xx or an error of another form is a fault.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import httpx
import numpy as np
from numpy.typing import NDArray

from sphereface2.models.folder import find_model, load_model
from sphereface2.recognition.recognizer import Recognizer

PEOPLE = "/v1/collections/default/people"
BATCH = 32
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=list(WHAT))
    parser.add_argument("model", help="a model folder or run, or the name of a backbone")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    try:
        with TemporaryDirectory() as place:
            arguments.model = _model(arguments.model, Path(place))
            WHAT[arguments.what](arguments, Path(place))
    except (ValueError, OSError) as error:
        print(f"service: {error}", file=sys.stderr)
        sys.exit(2)


def _model(word: str, place: Path) -> Path:
    from sphereface2.backbones import BACKBONES

    if word not in BACKBONES:
        return find_model(word)
    from sphereface2.backbones import build_backbone
    from sphereface2.data.transforms import Preprocessing
    from sphereface2.models.export import export_graph
    from sphereface2.models.folder import save_model

    network = build_backbone(word, seed=0)
    size = Preprocessing(network.input_size)
    save_model(place / "torch", network, name=word, options={}, preprocessing=size)
    export_graph(place / "torch", place / "onnx")
    return place / "onnx"


@dataclass
class Server:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    gallery: Path
    errors: list[str] = field(default_factory=list)

    def memory(self) -> float:
        """Resident, in MB; without its workers."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise ValueError("the service has ended")


@contextmanager
def _server(model: Path, place: Path, *options: object) -> Iterator[Server]:
    gallery = place / "people"
    words: list[object] = [
        sys.executable, "-m", "sphereface2", "serve", model, "--port", 0,
        "--gallery", gallery, "--rate", 0, *options,
    ]  # fmt: skip
    log = (place / "log").open("w")
    process = subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=log, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise ValueError(f"the service did not start: {(place / 'log').read_text()}")
        server = Server(url, process, gallery)
        while True:
            try:
                if httpx.get(f"{url}/v1/health/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        log.close()


def _crops(size: int, count: int = BATCH) -> list[NDArray[np.uint8]]:
    from sphereface2.data.sources.synthetic import SyntheticFaces

    faces = SyntheticFaces(people=count, images_per_person=1)
    return [np.asarray(cv2.resize(faces[n][0], (size, size)), np.uint8) for n in range(count)]


def _encoded(crops: list[NDArray[np.uint8]]) -> list[bytes]:
    return [cv2.imencode(".jpg", each[..., ::-1])[1].tobytes() for each in crops]


class Callers:
    """So many callers, each with a connection of its own, that ask one thing after the other."""

    def __init__(self, url: str, clients: int) -> None:
        self._pool = ThreadPoolExecutor(clients)
        self._http = [httpx.Client(base_url=url, timeout=120) for _ in range(clients)]
        self.seconds: list[float] = []
        self.states: Counter[int] = Counter()

    def run(self, requests: int, ask: Callable[[httpx.Client, int], httpx.Response]) -> float:
        """How long so many requests take together."""
        numbers = iter(range(requests))
        lock = threading.Lock()

        def work(http: httpx.Client) -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                start = time.perf_counter()
                answer = ask(http, number)
                spent = time.perf_counter() - start
                with lock:
                    self.states[answer.status_code] += 1
                    self.seconds.append(spent)

        start = time.perf_counter()
        list(self._pool.map(work, self._http))
        return time.perf_counter() - start

    def close(self) -> None:
        for http in self._http:
            http.close()
        self._pool.shutdown()


def load(arguments: Any, place: Path) -> None:
    """Throughput in turn with the bare model's, latency, and enrolments that stay."""
    requests = arguments.requests or 2000
    model = load_model(arguments.model)
    crops = _crops(model.preprocessing.input_size)
    photos = _encoded(crops)
    recognizer = Recognizer(arguments.model, kind="crop")
    acknowledged: list[str] = []

    def ask(http: httpx.Client, number: int, turn: int) -> httpx.Response:
        photo = photos[number % len(photos)]
        if number % 10:
            files = {"photos": photo}
            return http.post(
                "/v1/embed", params={"encoding": "base64"}, files=files, data={"kind": "crop"}
            )
        name = f"person {turn} {number}"
        data = {"name": name, "kind": "crop", "allow": "all"}
        answer = http.post(PEOPLE, files={"photos": photo}, data=data)
        if answer.status_code == 201:
            acknowledged.append(name)
        return answer

    # On a machine with little to give, a deadline would measure the machine.
    options = ["--workers", arguments.workers, "--deadline", 300]
    with _server(arguments.model, place, *options) as server:
        callers = Callers(server.url, arguments.clients)
        callers.run(arguments.clients, lambda http, n: http.get("/v1/health"))
        recognizer.model.embed(crops, flip=recognizer.flip)
        callers.seconds.clear()
        callers.states.clear()
        share = requests // ROUNDS
        bare, served = [], []
        for turn in range(ROUNDS):
            start = time.perf_counter()
            for first in range(0, share, BATCH):
                some = [crops[n % len(crops)] for n in range(first, min(first + BATCH, share))]
                recognizer.model.embed(some, flip=recognizer.flip)
            bare.append(share / (time.perf_counter() - start))
            # mypy has no type for a default that binds the loop's name.
            spent = callers.run(share, lambda http, n, turn=turn: ask(http, n, turn))  # type: ignore[misc]
            served.append(share / spent)
            print(f"round {turn + 1}: bare {bare[-1]:.1f}/s, served {served[-1]:.1f}/s", flush=True)
        faces = _batch_size(server.url)
        callers.close()
    parts = quantiles(callers.seconds, n=100)
    ratios = [s / b for s, b in zip(served, bare, strict=True)]
    rounds = ", ".join(f"{100 * r:.0f}%" for r in ratios)
    lost = _lost(arguments.model, place, acknowledged)
    print(
        f"{requests} requests from {arguments.clients} clients: states {dict(callers.states)}\n"
        f"throughput {median(served):.1f}/s, bare model {median(bare):.1f}/s in batches of "
        f"{BATCH}: {100 * median(ratios):.0f}% (rounds {rounds})\n"
        f"latency p50 {1000 * parts[49]:.0f} ms, p95 {1000 * parts[94]:.0f} ms, "
        f"p99 {1000 * parts[98]:.0f} ms; mean batch {faces:.1f} faces\n"
        f"enrolments acknowledged {len(acknowledged)}, lost {lost}"
    )


def memory(arguments: Any, place: Path) -> None:
    """Resident memory over many requests."""
    requests = arguments.requests or 20_000
    photos = _encoded(_crops(load_model(arguments.model).preprocessing.input_size))

    def ask(http: httpx.Client, number: int) -> httpx.Response:
        return http.post(
            "/v1/embed",
            params={"encoding": "base64", "crops": number % 10 == 0},
            files={"photos": photos[number % len(photos)]},
            data={"kind": "crop"},
        )

    with _server(arguments.model, place) as server:
        callers = Callers(server.url, arguments.clients)
        steps = 10
        for step in range(steps):
            callers.run(requests // steps, ask)
            print(
                f"{(step + 1) * requests // steps:6} requests: {server.memory():.1f} MB", flush=True
            )
        print(f"states {dict(callers.states)}")
        callers.close()


def end(arguments: Any, place: Path) -> None:
    """SIGTERM while many enrol."""
    photos = _encoded(_crops(load_model(arguments.model).preprocessing.input_size))
    acknowledged: list[str] = []
    with _server(arguments.model, place, "--workers", arguments.workers) as server:

        def enrol(client: int) -> None:
            with httpx.Client(base_url=server.url, timeout=120) as http:
                for number in range(10_000):
                    name = f"person {client} {number}"
                    data = {"name": name, "kind": "crop", "allow": "all"}
                    try:
                        files = {"photos": photos[number % len(photos)]}
                        answer = http.post(PEOPLE, files=files, data=data)
                    except httpx.TransportError:
                        return
                    if answer.status_code == 201:
                        acknowledged.append(name)

        with ThreadPoolExecutor(arguments.clients) as pool:
            jobs = [pool.submit(enrol, number) for number in range(arguments.clients)]
            while len(acknowledged) < 10 * arguments.clients:
                time.sleep(0.05)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(120)
            spent = time.monotonic() - start
            for job in jobs:
                job.result()
    lost = _lost(arguments.model, place, acknowledged)
    print(
        f"SIGTERM under {arguments.clients} callers: ended with {server.process.returncode} after "
        f"{spent:.1f} s; enrolments acknowledged {len(acknowledged)}, lost {lost}"
    )


def schema(arguments: Any, place: Path) -> None:
    """Generated requests; a 5xx is a fault."""
    requests = arguments.requests or 5000
    limits = ["--max-upload", "1", "--max-pending", "64", "--deadline", "60"]
    with _server(arguments.model, place, *limits) as server:
        before = _answered(server.url)
        operations = len(_operations(server.url))
        answered: Counter[str] = Counter()
        for seed in range(1, 100):  # operations with few inputs end before their examples do
            if sum(answered.values()) >= requests:
                break
            checks = "not_a_server_error,status_code_conformance,response_schema_conformance"
            command = [
                sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/v1/openapi.json",
                "--checks", checks, "--phases", "fuzzing",
                "--max-examples", str(-(-requests // operations)),
                "--mode", "all", "--seed", str(seed), "--no-color", "--continue-on-failure",
                "--suppress-health-check", "all",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, cwd=place)
            print(done.stdout[-6000:], flush=True)
            answered = _answered(server.url) - before
            if not answered:
                sys.exit(f"schemathesis made no request: {done.stderr[-1000:]}")
    print(f"{sum(answered.values())} requests, by status: {dict(sorted(answered.items()))}")


def _operations(url: str) -> list[tuple[str, str]]:
    paths = httpx.get(f"{url}/v1/openapi.json").json()["paths"]
    return [(path, method) for path, methods in paths.items() for method in methods]


def _answered(url: str) -> Counter[str]:
    """How many requests the service has answered, by status."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("sphereface2_requests_total"):
            found[line.partition('status="')[2].partition('"')[0]] += int(float(line.split()[-1]))
    return found


def _batch_size(url: str) -> float:
    numbers = {
        line.split()[0]: float(line.split()[1])
        for line in httpx.get(f"{url}/metrics").text.splitlines()
        if line.startswith(("sphereface2_batch_faces_sum", "sphereface2_batch_faces_count"))
    }
    return numbers["sphereface2_batch_faces_sum"] / numbers["sphereface2_batch_faces_count"]


def _lost(model: Path, place: Path, acknowledged: list[str]) -> int:
    gallery = Recognizer(model).open_gallery(place / "people")
    kept = {person.name for person in gallery.people()}
    gallery.close()
    return len(set(acknowledged) - kept)


WHAT: dict[str, Callable[[Any, Path], None]] = {
    "load": load,
    "memory": memory,
    "end": end,
    "schema": schema,
}

if __name__ == "__main__":
    main()
