"""What surrounds every request, page and error: limits, headers, an id, a log line.

It is the outermost layer: whatever goes wrong inside, the caller gets the one form of an error and
never a stack trace.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
import uuid
from collections.abc import Awaitable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sphereface2.service.errors import ApiError
from sphereface2.service.settings import Settings
from sphereface2.service.telemetry import LOGGER, Metrics

SLASH = "\ue000"
"""Stands in a path for a slash that was written as %2F and belongs to a name."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_ALWAYS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_DRAINED = 256_000_000  # bytes of a body that is too large, so that its sender hears why
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Idempotency-Key, X-API-Key, X-Request-ID"
    ),
    "Access-Control-Max-Age": "600",
}
_KNOWN = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_EXPOSED = "Retry-After, X-Request-ID"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """The outermost layer of the service."""

    def __init__(
        self, app: ASGIApp, *, settings: Settings, metrics: Metrics, with_keys: bool
    ) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._with_keys = with_keys
        self._is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            self._handle_stop_signals()
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id", ""))
        scope.setdefault("state", {})["request_id"] = request_id
        scope["path"] = _path(scope)
        origin = headers.get("origin")
        answer = _Answer(send, self._always(request_id, scope["path"], origin))
        body = _Body(receive, self._settings, headers)
        try:
            self._check(scope, headers, origin)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await Response(status_code=204, headers=_PREFLIGHT)(scope, body, answer)
            else:
                body.check_length()
                await self._app(scope, body, answer)
        except Exception as error:
            refusal = error
            if not isinstance(error, ApiError):
                LOGGER.error("failed", exc_info=error, extra={"facts": {"request_id": request_id}})
                refusal = ApiError(500, "internal", "the service failed; its log says where")
            assert isinstance(refusal, ApiError)
            if answer.status is None:
                content = refusal.content(request_id)
                await JSONResponse(content, refusal.status, refusal.headers)(scope, body, answer)
        finally:
            self._report(scope, request_id, answer, body, time.monotonic() - start)

    def _handle_stop_signals(self) -> None:
        """At SIGTERM, as the server does, close each connection with its next answer.

        uvicorn asks the connections that it knows to close. One that it takes on at that moment it
        would serve on, until its patience ends in the middle of a request.
        """
        if threading.current_thread() is not threading.main_thread():
            return  # a server in a thread is not ended by signals
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if callable(before):

                def ending(number: int, frame: Any, before: Any = before) -> None:
                    self._is_ending = True
                    before(number, frame)

                signal.signal(number, ending)

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> None:
        """Refuse what a web page of another host may have made a browser send."""
        host = headers.get("host", "")
        if not self._with_keys and _name(host) not in (*_LOCAL_NAMES, _name(self._settings.host)):
            raise ApiError(
                421, "unknown_host", "without API keys the service answers to localhost only"
            )
        if origin is None or origin in self._settings.origins or scope["method"] in ("GET", "HEAD"):
            return
        if urlsplit(origin).netloc != host:
            raise ApiError(
                403, "cross_origin", "pages of this origin may not call; --origin allows one"
            )

    def _always(self, request_id: str, path: str, origin: str | None) -> dict[str, str]:
        headers = {**_ALWAYS, "X-Request-ID": request_id}
        if self._is_ending:
            headers["Connection"] = "close"
        if path.startswith("/v1/") or path == "/metrics":
            headers["Cache-Control"] = "no-store"
        if origin is not None and origin in self._settings.origins:
            headers |= {
                "Access-Control-Allow-Origin": origin,
                "Access-Control-Expose-Headers": _EXPOSED,
                "Cross-Origin-Resource-Policy": "cross-origin",
                "Vary": "Origin",
            }
        return headers

    def _report(
        self, scope: Scope, request_id: str, answer: _Answer, body: _Body, seconds: float
    ) -> None:
        # Its pattern, since a path may hold a name; and metrics need a bounded number of them.
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _KNOWN else "other"
        self._metrics.requests.labels(method, route, str(answer.status)).inc()
        self._metrics.latency.labels(route).observe(seconds)
        facts = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": answer.status,
            "seconds": round(seconds, 4),
            "bytes": body.read,
            "key": scope["state"].get("caller"),
        }
        LOGGER.info("request", extra={"facts": facts})


class _Answer:
    """`send`, with headers that every answer has; status: None as long as it has not begun."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send, self._headers = send, headers
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            found = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                found[name] = value
        await self._send(message)


class _Body:
    """`receive`, within limits of size and time that hold while the body arrives."""

    def __init__(self, receive: Receive, settings: Settings, headers: Headers) -> None:
        self._receive, self._settings, self._headers = receive, settings, headers
        self._deadline: float | None = None
        self._done = False
        self.read = 0

    def check_length(self) -> None:
        """Refuse a body that is announced as too large and not yet under way."""
        length = self._headers.get("content-length", "0")
        announced = int(length) if length.isdecimal() else 0
        waits = self._headers.get("expect", "").lower() == "100-continue"
        if announced > _DRAINED or (waits and announced > self._settings.max_upload):
            raise self._too_large()

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()  # says when the caller goes away
        if self._deadline is None:
            self._deadline = time.monotonic() + self._settings.body_timeout
        message = await self._in_time(self._receive())
        self._count(message)
        if self.read > self._settings.max_upload:
            # Read on without keeping it: who is still sending would not see the answer.
            while not self._done and self.read < _DRAINED:
                self._count(await self._in_time(self._receive()))
            raise self._too_large()
        return message

    def _count(self, message: Message) -> None:
        self.read += len(message.get("body", b""))
        self._done = message["type"] != "http.request" or not message.get("more_body", False)

    async def _in_time(self, message: Awaitable[Message]) -> Message:
        assert self._deadline is not None
        try:
            return await asyncio.wait_for(message, max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise ApiError(
                408,
                "slow_upload",
                f"the body did not arrive within {self._settings.body_timeout:g} s",
                headers={"Connection": "close"},
            ) from None

    def _too_large(self) -> ApiError:
        most = self._settings.max_upload
        return ApiError(
            413,
            "too_large",
            f"a body has at most {most:,} bytes",
            details={"max_bytes": most},
            headers={"Connection": "close"},
        )


def _request_id(given: str) -> str:
    """The caller's own id if it is fit for a header and a log, else a fresh one."""
    return given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else uuid.uuid4().hex


def _path(scope: Scope) -> str:
    """The path, with slashes that belong to a name kept apart from those that separate."""
    raw = scope.get("raw_path", b"")
    if b"%2f" not in raw.lower():
        return str(scope["path"])
    text = re.sub("%2f", "%EE%80%80", raw.decode("latin-1"), flags=re.IGNORECASE)
    return unquote(text.partition("?")[0])


def _name(host: str) -> str:
    """A host without its port."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return f"[{name}]" if ":" in name and not name.startswith("[") else name.lower()
