"""Requests to the service under test: any address, any head, JSON and forms, in this process."""

from __future__ import annotations

import asyncio
import atexit
import base64
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from faults.fuzzing.data_files import picture
from faults.fuzzing.model_files import small_model
from faults.fuzzing.parser import Parser, part
from sphereface2.files import scratch_folder
from sphereface2.service.app import build_app
from sphereface2.service.settings import Settings
from sphereface2.service.telemetry import LOGGER

_BOUNDARY = b"fuzz"
_FORM = b"content-type: multipart/form-data; boundary=" + _BOUNDARY
_JSON = b"content-type: application/json"


class _Kept(logging.Handler):
    """Keeps the error behind an answer of 500."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.error = record.exc_info[1]


class _Running:
    """The service with a small model and a gallery, without a socket."""

    def __init__(self) -> None:
        scratch = scratch_folder("requests")
        folder = scratch.__enter__()
        self.loop = asyncio.new_event_loop()
        self.kept = _Kept()
        LOGGER.addHandler(self.kept)
        LOGGER.propagate = False
        settings = Settings(
            model=small_model(folder / "model"), gallery=str(folder / "gallery"), rate=0,
            max_upload=1_000_000, max_pixels=1_000_000, deadline=20,
        )  # fmt: skip
        self.app = build_app(settings)
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events.put_nowait({"type": "lifespan.startup"})
        self.begun = asyncio.Event()
        self.life: asyncio.Future[None] | None = None

        async def send(message: Any) -> None:
            self.begun.set()

        async def start() -> None:
            self.life = asyncio.ensure_future(
                self.app({"type": "lifespan", "state": {}}, self.events.get, send)
            )
            await self.begun.wait()

        self.loop.run_until_complete(start())

        def stop() -> None:
            self.events.put_nowait({"type": "lifespan.shutdown"})
            with suppress(Exception):
                self.loop.run_until_complete(asyncio.wait_for(self.life or asyncio.sleep(0), 10))
            scratch.__exit__(None, None, None)

        atexit.register(stop)

    def ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer; an error inside is raised."""
        status, answer = 0, b""
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> dict[str, Any]:
            if parts:
                content = parts.pop(0)
                return {"type": "http.request", "body": content, "more_body": bool(parts)}
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status, answer
            status = message.get("status", status)
            answer += message.get("body", b"")

        self.kept.error = None
        self.loop.run_until_complete(self.app(scope, receive, send))
        if self.kept.error is not None:
            raise self.kept.error
        if not 200 <= status < 500 and status != 503:
            raise AssertionError(f"answered with {status}: {answer[:200]!r}")
        return status, answer


@cache
def _service() -> _Running:
    return _Running()


def _scope(line: bytes, heads: bytes) -> dict[str, Any]:
    """As a server hands over what has arrived: it refuses what is not HTTP by itself."""
    method, _, target = line.partition(b" ")
    raw, _, query = target.partition(b"?")
    found = [(b"host", b"localhost")]
    for head in heads.split(b"\n"):
        name, colon, value = head.partition(b":")
        if colon and name.strip():
            found.append((name.strip().lower(), value.strip()))
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": method.decode("latin-1").upper() or "GET", "raw_path": raw, "root_path": "",
        "path": unquote(raw.decode("latin-1")) or "/", "query_string": query, "headers": found,
        "client": ("127.0.0.1", 1), "server": ("localhost", 8000), "state": {},
    }  # fmt: skip


def _form(fields: dict[str, bytes]) -> bytes:
    made = b""
    for name, content in fields.items():
        file = b'; filename="a.png"' if content.startswith((b"\x89", b"\xff")) else b""
        head = b'Content-Disposition: form-data; name="' + name.encode() + b'"' + file
        made += b"--" + _BOUNDARY + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n"
    return made + b"--" + _BOUNDARY + b"--\r\n"


def _requests(folder: Path) -> list[list[bytes]]:
    photo = picture(side=16)
    coded = base64.b64encode(photo).decode()

    def json_of(**values: Any) -> bytes:
        return json.dumps({"kind": "crop", **values}).encode()

    people = b"/v1/collections/default/people"
    return [
        [b"GET /v1/health", b""],
        [b"GET /v1/models", b""],
        [b"GET /v1/openapi.json", b""],
        [b"GET /index.html", b""],
        [b"GET " + people + b"?limit=5&offset=1&q=a", b""],
        [b"POST /v1/embed?encoding=base64&crops=1", _JSON, json_of(photos=[coded])],
        [b"POST /v1/detect", _FORM, _form({"photo": photo, "kind": b"crop"})],
        [b"POST /v1/verify", _JSON, json_of(photo=coded, person=[coded], prior=0.5)],
        [b"POST " + people, _FORM,
         _form({"name": b"Ada", "photos": photo, "kind": b"crop", "metadata": b'{"a": 1}'})],
        [b"POST " + people, _JSON,
         json_of(name="Ada", photos=[coded], metadata={"a": [1]}, allow=["all"])],
        [b"POST " + people + b"/Ada/verify", _JSON, json_of(photo=coded, false_accepts=0.01)],
        [b"PATCH " + people + b"/Ada", _JSON, b'{"name": "Ben", "metadata": {"x": null}}'],
        [b"POST /v1/identify", _JSON, json_of(photo=coded, people=3)],
        [b"POST /v1/feedback", _JSON, json_of(photo=coded, person="Ada")],
        [b"GET /v1/feedback?person=Ada", b""],
        [b"GET /v1/collections/default/photos/ab/crop", b""],
        [b"DELETE " + people + b"/Ada", b"idempotency-key: x"],
        [b"PUT /v1/collections/other", b"origin: http://localhost"],
        [b"OPTIONS /v1/embed", b"access-control-request-method: POST\norigin: http://x"],
    ]  # fmt: skip


def _ask(folder: Path, parts: Sequence[bytes]) -> None:
    status, answer = _service().ask(_scope(part(parts, 0), part(parts, 1)), part(parts, 2))
    if status >= 400 and not {"error", "request_id"} <= set(json.loads(answer or b"{}")):
        raise AssertionError(f"an error of another form: {answer[:200]!r}")


def _photos(folder: Path) -> list[list[bytes]]:
    return [
        [picture(ending, side=16), form, b'{"kind": "crop"}']
        for ending, form in ((".png", b"json"), (".jpg", b"form"), (".webp", b"json"))
    ]


def _send_photo(folder: Path, parts: Sequence[bytes]) -> None:
    """A photo in a sound body, and options beside it."""
    photo = part(parts, 0)
    try:
        options = json.loads(part(parts, 2))
    except (ValueError, RecursionError):
        options = {}
    options = options if isinstance(options, dict) else {}
    if part(parts, 1) == b"form":
        fields = {str(key): str(value).encode("utf-8", "replace") for key, value in options.items()}
        body, head = _form({"photos": photo, **fields}), _FORM
    else:
        coded = base64.b64encode(photo).decode()
        body, head = json.dumps({"photos": [coded], **options}).encode(), _JSON
    _ask(folder, [b"POST /v1/embed?crops=1", head, body])


PARSERS = {
    "request": Parser(_requests, _ask),
    "request-photo": Parser(_photos, _send_photo),
}
