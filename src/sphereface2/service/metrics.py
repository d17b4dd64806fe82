"""What Prometheus scrapes: requests, latency, batches, the line, faces and decisions.

Several workers add their numbers up through files in PROMETHEUS_MULTIPROC_DIR, which the server
sets before it starts them.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The numbers of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        name = "sphereface2"
        self.requests = Counter(
            f"{name}_requests", "Requests answered", ("method", "route", "status"),
            registry=registry,
        )  # fmt: skip
        self.latency = Histogram(
            f"{name}_request_seconds", "From the request's head to the end of its answer",
            ("route",), buckets=_LATENCIES, registry=registry,
        )  # fmt: skip
        self.batch_size = Histogram(
            f"{name}_batch_faces", "Faces that the network took at once",
            buckets=_SIZES, registry=registry,
        )  # fmt: skip
        self.batch_seconds = Histogram(
            f"{name}_batch_seconds", "What the network took for a batch",
            buckets=_LATENCIES, registry=registry,
        )  # fmt: skip
        self.pending = Gauge(
            f"{name}_pending_requests", "Requests that are worked on or wait",
            registry=registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.waiting = Gauge(
            f"{name}_waiting_faces", "Faces in line for the network",
            registry=registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.faces = Counter(f"{name}_faces", "Faces found in photos", registry=registry)
        self.decisions = Counter(
            f"{name}_decisions", "Answers, by what they say", ("route", "outcome"),
            registry=registry,
        )  # fmt: skip

    def decided(self, route: str, accepted: bool | None) -> None:
        """Count an answer; None: the model is not calibrated, so there is no decision."""
        outcome = "undecided" if accepted is None else "accepted" if accepted else "not accepted"
        self.decisions.labels(route, outcome).inc()

    def text(self) -> bytes:
        """In Prometheus' format; of all workers where there are several."""
        if FOLDER_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
        return generate_latest(everybody)
