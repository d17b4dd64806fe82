"""What all tests share: a folder of rendered pictures; the same people are rendered once."""

import os
from collections.abc import Iterator

import pytest

from sphereface2.data.sources.synthetic import FOLDER_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _rendered_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    # The processes of pytest-xdist have their folders side by side, and this one in common.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(shared / "rendered"))
        yield
