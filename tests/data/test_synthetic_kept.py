"""Rendered pictures that are kept on disk: the same pictures, rendered once."""

import hashlib
import multiprocessing
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources import synthetic as images
from sphereface2.data.sources import synthetic as kept
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.rendering import renderer


def faces(**changes: int) -> SyntheticFaces:
    options = {"people": 3, "images_per_person": 2, "image_size": 16, **changes}
    return SyntheticFaces(**options)


def all_pictures(source: SyntheticFaces) -> np.ndarray:
    source.prepare()
    return np.stack([source[index][0] for index in range(len(source))])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kept.FOLDER_VARIABLE, str(tmp_path / "rendered"))
    return tmp_path / "rendered"


def test_kept_pictures_are_those_that_are_rendered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = all_pictures(faces())
    monkeypatch.setattr(images, "render", lambda *_: pytest.fail("rendered again"))
    np.testing.assert_array_equal(all_pictures(faces()), first)
    monkeypatch.undo()
    np.testing.assert_array_equal(all_pictures(faces()), first)  # without a folder
    assert len(list(folder.glob("*.npy"))) == 1


def test_other_people_sizes_and_seeds_are_kept_apart(folder: Path) -> None:
    different = [faces(), faces(people=4), faces(image_size=24), faces(seed=1)]
    different.append(faces(first_person=5))
    for source in different:
        source.prepare()
    assert len(list(folder.glob("*.npy"))) == len(different)


def test_pictures_of_another_renderer_are_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces().prepare()
    monkeypatch.setattr(kept, "renderer_version", lambda: "another")
    faces().prepare()
    assert len(list(folder.glob("*.npy"))) == 2


def test_the_version_stands_for_the_code_that_draws() -> None:
    code = hashlib.sha256(cv2.__version__.encode())
    drawing = sorted(Path(renderer.__file__).parent.glob("*.py"))
    assert {"person.py", "renderer.py", "surface.py"} <= {path.name for path in drawing}
    for path in drawing:
        code.update(path.read_bytes())
    assert kept.renderer_version() == code.hexdigest()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"no array"])
def test_a_damaged_file_is_rendered_anew(folder: Path, content: bytes) -> None:
    expected = all_pictures(faces())
    (path,) = folder.glob("*.npy")
    path.write_bytes(content)
    np.testing.assert_array_equal(all_pictures(faces()), expected)
    np.testing.assert_array_equal(np.load(path), expected)


def test_nothing_is_kept_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kept.FOLDER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    faces().prepare()
    assert list(tmp_path.iterdir()) == []


def _prepare() -> None:
    faces().prepare()


def test_processes_at_once_leave_one_file(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_prepare) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(list(folder.glob("*.npy"))) == 1
    assert not list(folder.glob("*.unfinished"))
