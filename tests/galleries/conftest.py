"""A fresh place of each engine for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import Gallery
from tests.galleries.engines import DIM, ENGINES, MODEL


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ENGINES[request.param](tmp_path) as address:
        yield address


@pytest.fixture
def gallery(url: str) -> Iterator[Gallery]:
    opened = open_gallery(url, model=MODEL, dim=DIM, create=True)
    yield opened
    opened.close()
