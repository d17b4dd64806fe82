"""Who may call: API keys with their rights, and how often each caller may.

A line of a key file, or of the environment variable SPHEREFACE2_KEYS, is NAME RIGHTS KEY. RIGHTS is
`read` (compare and search) or `write` (also enrol, rename and remove). KEY is the key itself or
`sha256:` and the hexadecimal digest of it. A line that begins with # is a comment.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from sphereface2.registry import look_up
from sphereface2.service.errors import ApiError, try_later

VARIABLE = "SPHEREFACE2_KEYS"
HOW = "write 'NAME RIGHTS KEY', such as: camera read " + "$(openssl rand -hex 24)"
_SHORTEST = 16  # characters of a key
_LONGEST = 512  # characters of a key that is looked at
_RIGHTS = {"read": False, "write": True}


@dataclass(frozen=True)
class Key:
    """A caller that is let in; name: for logs and limits."""

    name: str
    writes: bool
    digest: bytes


def read_keys(file: Path | None) -> tuple[Key, ...]:
    """The keys of a file and of the environment; a ValueError names the line that is wrong."""
    found: list[Key] = []
    sources = [(VARIABLE, os.environ.get(VARIABLE, ""))]
    if file is not None:
        sources.append((str(file), file.read_text(encoding="utf-8")))
    for source, text in sources:
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                found.append(_key(line, f"line {number} of {source}"))
    if file is not None and not found:
        raise ValueError(f"{file} holds no key; {HOW}")
    names = [key.name for key in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two API keys have the name '{twice}'; give each its own")
    return tuple(found)


def _key(line: str, where: str) -> Key:
    words = line.split()
    if len(words) != 3:
        raise ValueError(f"{where} is not an API key; {HOW}")
    name, rights, secret = words
    try:
        writes = look_up("rights", _RIGHTS, rights)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if digest := re.fullmatch(r"sha256:([0-9a-fA-F]{64})", secret):
        return Key(name, writes, bytes.fromhex(digest[1]))
    if len(secret) < _SHORTEST:
        raise ValueError(f"{where}: a key has at least {_SHORTEST} characters; {HOW}")
    return Key(name, writes, _digest(secret))


def find_key(keys: Sequence[Key], presented: str) -> Key | None:
    """The key that was presented; all are compared, so that the time taken says nothing."""
    digest, found = _digest(presented), None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = key
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class RateLimit:
    """So many requests per second for each caller, and `burst` at once after a pause."""

    _MOST = 10_000  # callers that are remembered

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Seconds until the caller may ask again; 0 if now, and this request counts."""
        if not self.rate:
            return 0.0
        now = self._clock()
        left, since = self._left.pop(caller, (float(self.burst), now))
        left = min(float(self.burst), left + (now - since) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._left[caller] = (left - (wait == 0), now)
        if len(self._left) > self._MOST:
            self._left.popitem(last=False)
        return wait


class Access:
    """The callers of a service; without keys everybody who reaches it may do everything."""

    def __init__(self, keys: tuple[Key, ...], limit: RateLimit) -> None:
        self.keys, self._limit = keys, limit

    def may(self, *, write: bool) -> Callable[[Request], Coroutine[Any, Any, None]]:
        """A dependency that lets a request through, or says why not."""

        async def check(request: Request) -> None:
            address = request.client.host if request.client is not None else "?"
            caller = f"address {address}"
            if self.keys:
                presented = _presented(request)
                key = find_key(self.keys, presented) if presented else None
                if key is None:
                    self._count(caller)
                    raise _unknown(given=bool(presented))
                caller = request.state.caller = key.name
                if write and not key.writes:
                    raise ApiError(
                        403,
                        "read_only_key",
                        "this API key may only read; it takes one that may write",
                    )
            self._count(caller)

        return check

    def _count(self, caller: str) -> None:
        if wait := self._limit.take(caller):
            raise try_later(
                429,
                "rate_limited",
                f"at most {self._limit.rate:g} requests per second; ask again later",
                seconds=wait,
            )


def _presented(request: Request) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = bearer.strip() if scheme.lower() == "bearer" else ""
    return (given or request.headers.get("x-api-key", ""))[:_LONGEST]


def _unknown(*, given: bool) -> ApiError:
    code, message = "missing_key", "send an API key: Authorization: Bearer KEY"
    if given:
        code, message = "wrong_key", "this API key is not known"
    return ApiError(401, code, message, headers={"WWW-Authenticate": "Bearer"})
