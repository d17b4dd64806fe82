"""The settings of a service: its model, its address, its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One service.

    gallery: where its people are kept (`galleries.open_gallery`); None: nobody is enrolled
    keys: the file of API keys; the environment may hold them instead (`service.keys`)
    origins: web pages of other hosts that may call it, such as https://example.org
    proxies: addresses whose X-Forwarded-For is believed
    false_accepts: the share of pairs of different people that may be accepted, where a request
        does not say; None: 0.001, or the least that the calibration resolves

    max_upload: bytes of a request's body
    max_photos, max_pixels, max_faces: photos of a request, pixels of a photo, faces in a photo
    max_batch: faces that the network takes at once
    max_pending: requests that are worked on or wait; beyond that the answer is 429
    rate: requests per second for each key or address, 0: as many as they like; burst: at once

    deadline: seconds from a whole request to its answer
    header_timeout, body_timeout: seconds for a request's head and its body to arrive
    """

    model: Path
    gallery: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    keys: Path | None = None
    workers: int = 1
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    detector: str = "mtcnn"
    flip: bool | None = None
    false_accepts: float | None = None

    max_upload: int = 20_000_000
    max_photos: int = 32
    max_pixels: int = 50_000_000
    max_faces: int = 100
    max_batch: int = 32
    max_pending: int = 64
    max_connections: int = 1_000
    rate: float = 100.0
    burst: int = 200

    deadline: float = 30.0
    header_timeout: float = 10.0
    body_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in (
            "workers", "max_upload", "max_photos", "max_pixels", "max_faces", "max_batch",
            "max_pending", "max_connections", "burst",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("deadline", "header_timeout", "body_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.rate < 0:
            raise ValueError(f"rate must be at least 0 (no limit), got {self.rate}")
        if self.false_accepts is not None and not 0 < self.false_accepts < 1:
            raise ValueError(f"false_accepts must lie between 0 and 1, got {self.false_accepts}")

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
