"""What all tests share: a folder of rendered pictures; the same people are rendered once."""

import os
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from io import TextIOBase
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np
import pytest
import typer.main
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sphereface2.data.sources.synthetic import FOLDER_VARIABLE, SyntheticFaces
from tests import loaded

# Some virtual machines announce AMX and then refuse it: half precision would end in "could not
# create a primitive" or an illegal instruction. Read by oneDNN when it is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Under nohup a closed terminal is ignored, and in the background Ctrl-C, as the commands rightly do
# too: tests send both.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
# Checkpoints are forced to the disk some ten thousand times, and in memory that takes no time.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


LONGEST = ["service/test_page.py", "distributed/test_training.py", "galleries/test_contract.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that in the end no process is alone with one of them."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(tuple(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def _rendered_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    # The processes of pytest-xdist have their folders side by side, and this one in common.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(shared / "rendered"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """Typer builds all commands again for each call, which takes longer than most of the calls."""
    built = cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", built)
        patch.setattr("typer.testing._get_command", built)
        yield


DRAWING = {"reporting", "golden"}  # folders whose tests look at figures
_savefig = Figure.savefig
_BLANK = {
    "svg": b'<svg viewBox="0 0 1 1"></svg>',
    "png": cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes(),
}


def _save_blank(figure: Figure, place: IO[Any], *, format: str, **_: Any) -> None:  # noqa: A002
    blank = _BLANK[format]
    place.write(blank.decode() if isinstance(place, TextIOBase) else blank)


@pytest.fixture(scope="module", autouse=True)
def _blank_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Figures are made but not drawn, which is three quarters of the work for a report."""
    with pytest.MonkeyPatch.context() as patch:
        if not DRAWING & set(request.path.parts):
            patch.setattr(Figure, "savefig", _save_blank)
        yield


@pytest.fixture
def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, outside of `DRAWING` too."""
    monkeypatch.setattr(Figure, "savefig", _savefig)


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn, not even in `DRAWING`."""
    monkeypatch.setattr(Figure, "savefig", _save_blank)


@pytest.fixture
def quick_processes() -> Iterator[None]:
    """The Python processes that the test starts have everything loaded."""
    with loaded.quick_processes():
        yield


@pytest.fixture(scope="session")
def rendered() -> list[NDArray[np.uint8]]:
    """Six people, 112×112, in place up to their pose, for detectors to find."""
    faces = SyntheticFaces(people=6, images_per_person=1)
    return [faces[index][0] for index in range(6)]
