"""What operators see of a service: log lines as JSON, and the numbers that Prometheus scrapes.

Neither has pictures, embeddings or people's names. A path may hold a name and an error's text may
quote one: the route's pattern is logged instead of the path, and of an error only its kind and the
lines of code it came through. Several workers add their numbers up through files in
PROMETHEUS_MULTIPROC_DIR, which the server sets before it starts them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

LOGGER = logging.getLogger("sphereface2.service")
_MOST_FRAMES = 12


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
            facts["error"] = type(error).__name__
            facts["through"] = [f"{each.filename}:{each.lineno} {each.name}" for each in frames]
        return json.dumps(facts, ensure_ascii=True)


def set_up_logs() -> None:
    """Send the service's log lines, and uvicorn's, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOGGER.name, "uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name in (LOGGER.name, "uvicorn") else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.INFO if name == LOGGER.name else logging.WARNING)


FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Metrics:
    """The numbers of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def made(kind: type[Metric], name: str, text: str, *labels: str, **options: Any) -> Metric:
            return kind(f"sphereface2_{name}", text, labels, registry=registry, **options)

        self.requests = made(Counter, "requests", "Requests answered", "method", "route", "status")
        taken = "From the request's head to the end of its answer"
        self.latency = made(Histogram, "request_seconds", taken, "route", buckets=_LATENCIES)
        size = "Faces that the network took at once"
        self.batch_size = made(Histogram, "batch_faces", size, buckets=_SIZES)
        spent = "What the network took for a batch"
        self.batch_seconds = made(Histogram, "batch_seconds", spent, buckets=_LATENCIES)
        line = partial(made, Gauge, multiprocess_mode="livesum")
        self.pending = line("pending_requests", "Requests that are worked on or wait")
        self.waiting = line("waiting_faces", "Faces in line for the network")
        self.faces = made(Counter, "faces", "Faces found in photos")
        self.decisions = made(Counter, "decisions", "Answers, by what they say", "route", "outcome")

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
