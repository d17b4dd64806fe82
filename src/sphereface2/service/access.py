"""Who is calling: the key of a request, its rights, and how often it may come."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request

from sphereface2.service.errors import ApiError, try_later
from sphereface2.service.keys import Key, RateLimit, find_key

_LONGEST = 512  # characters of a key that is looked at


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
