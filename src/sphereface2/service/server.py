"""The service as a process, or several: its address, its timeouts, its end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import uuid
from collections.abc import Callable
from typing import Any

import uvicorn
from pydantic import TypeAdapter
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from sphereface2.files import scratch_folder
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.app import build_app
from sphereface2.service.errors import ApiError
from sphereface2.service.keys import HOW, VARIABLE, read_keys
from sphereface2.service.service import check_service
from sphereface2.service.settings import Settings
from sphereface2.service.telemetry import FOLDER_VARIABLE, set_up_logs

SETTINGS_VARIABLE = "SPHEREFACE2_SERVICE"
_KEEP_ALIVE = 30  # seconds between two requests of a connection
_GRACE = 10.0  # seconds beyond a request's own time, until a stopping service gives up on it


def _announce(address: str) -> None:
    print(address, flush=True)  # into a pipe, too, before the first request


def serve(settings: Settings, *, announce: Callable[[str], None] = _announce) -> None:
    """Serve until SIGTERM or Ctrl-C, which finish what was accepted."""
    keys = read_keys(settings.keys)
    if not keys and not settings.on_loopback:
        raise ValueError(
            f"a service on {settings.host} can be reached by others and needs API keys: --keys "
            f"FILE, or {VARIABLE} in the environment; {HOW}"
        )
    listener = listen(settings.host, settings.port)
    with listener:
        recognizer: Recognizer | None = check_service(settings)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        if settings.workers == 1:
            app = build_app(settings, keys, recognizer=recognizer)
            announce(address)
            # uvicorn passes SIGTERM on when all is finished, and Python's own way is to die of it.
            signal.signal(signal.SIGTERM, _ended)
            uvicorn.Server(configure(settings, app)).run(sockets=[listener])
            return
        del recognizer  # each worker loads its own
        with scratch_folder("metrics") as folder:
            os.environ[FOLDER_VARIABLE] = str(folder)
            os.environ[SETTINGS_VARIABLE] = TypeAdapter(Settings).dump_json(settings).decode()
            config = configure(settings, f"{__name__}:_app_of_a_worker")
            announce(address)
            Multiprocess(config, sockets=[listener]).run()


def _ended(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes while Python ends is too late
    raise SystemExit(0)


def _app_of_a_worker() -> ASGIApp:
    settings = TypeAdapter(Settings).validate_json(os.environ[SETTINGS_VARIABLE])
    set_up_logs()
    _protocol(settings)  # again: the limits of the process before are not this one's
    return build_app(settings, read_keys(settings.keys))


def configure(settings: Settings, app: Any) -> uvicorn.Config:
    """uvicorn for a service; app: the application, or the name of what builds it."""
    set_up_logs()
    longest = settings.body_timeout + settings.deadline + _GRACE
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        workers=settings.workers,
        http=_protocol(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=list(settings.proxies),
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=round(longest),
        timeout_worker_healthcheck=60,
    )


def _protocol(settings: Settings) -> type[asyncio.Protocol]:
    """HTTP with a limit of connections, and of the time that the head of a request may take."""
    Http.header_timeout, Http.max_connections = settings.header_timeout, settings.max_connections
    return Http


class Http(H11Protocol):
    """uvicorn's HTTP, which by itself waits for the head of a request as long as it takes."""

    header_timeout = 10.0
    max_connections = 1_000
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        self._waiting = self.loop.call_later(self.header_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        # A request whose body arrives, or whose answer is made, has limits of its own.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        between = self.cycle is None or self.cycle.response_complete
        if between and self._waiting is None:
            self._waiting = self.loop.call_later(self.header_timeout, self._head_is_late)
        super().data_received(data)
        if self._waiting is not None and self.cycle and not self.cycle.response_complete:
            self._waiting.cancel()
            self._waiting = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        error = ApiError(400, "bad_request", "this is not HTTP that can be read")
        content = json.dumps(error.content(uuid.uuid4().hex)).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket for a server; a ValueError says why there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
        # Inherited by its connections, for which asyncio sets it only where the protocol is named.
        # Without it every answer but the first waits 40 ms for the head's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        why = {
            errno.EADDRINUSE: "another program listens there; give another --port",
            errno.EACCES: "ports below 1024 are for root; give another --port",
            errno.EADDRNOTAVAIL: "this machine has no such address; give another --host",
        }.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise ValueError(f"cannot serve on {host}, port {port}: {why}") from None
