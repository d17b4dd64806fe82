"""Logs as lines of JSON, without pictures, embeddings or people's names.

A path may hold a name and an error's text may quote one: the route's pattern is logged instead of
the path, and of an error only its kind and the lines of code it came through.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

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
            facts |= _where(record.exc_info[1])
        return json.dumps(facts, ensure_ascii=True)


def _where(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return {
        "error": type(error).__name__,
        "through": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def set_up_logs() -> None:
    """Send the service's log lines, and uvicorn's, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOGGER.name, "uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name in (LOGGER.name, "uvicorn") else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.INFO if name == LOGGER.name else logging.WARNING)
