"""The command align: its options, its summary and its mistakes."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from typer.testing import CliRunner

from sphereface2.cli.align import align
from sphereface2.data.sources.image_file import read_image

app = typer.Typer()
app.command()(align)


@pytest.fixture
def photos(tmp_path: Path, rendered: list[NDArray[np.uint8]]) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, face in enumerate(rendered[:2]):
        canvas = np.full((200, 220, 3), 120, np.uint8)
        canvas[40:152, 50:162] = face[..., ::-1]
        cv2.imwrite(str(folder / f"{index}.png"), canvas)
    cv2.imwrite(str(folder / "wall.png"), np.full((90, 90, 3), 80, np.uint8))
    (folder / "broken.jpg").touch()
    return folder


def test_align_reports_what_it_found(photos: Path, tmp_path: Path) -> None:
    arguments = [str(photos), str(tmp_path / "crops"), "--workers", "1", "--size", "96"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "2 crops of 4 photos; 4 in " in first.stdout
    assert " photos/s\n" in first.stdout
    assert "1 without a face, listed in " in first.stdout
    assert "1 unreadable, listed in " in first.stdout
    assert read_image(tmp_path / "crops" / "1.jpg").shape == (96, 96, 3)
    again = CliRunner().invoke(app, arguments)
    assert "2 crops of 4 photos; 3 were done before; 1 in " in again.stdout


def test_a_single_photo_gives_a_single_crop(photos: Path, tmp_path: Path) -> None:
    for other in ("1.png", "wall.png", "broken.jpg"):
        (photos / other).unlink()
    arguments = [str(photos), str(tmp_path / "crops"), "--workers", "1"]
    assert "1 crop of 1 photo; 1 in " in CliRunner().invoke(app, arguments).stdout
    assert "1 crop of 1 photo; 1 was done before\n" in CliRunner().invoke(app, arguments).stdout


def test_a_second_look_is_counted(
    tmp_path: Path, rendered: list[NDArray[np.uint8]], photos: Path
) -> None:
    for index, face in enumerate(rendered[2:]):
        canvas = np.full((90, 90, 3), 120, np.uint8)
        small = cv2.resize(face, (12, 12), interpolation=cv2.INTER_AREA)
        canvas[39:51, 39:51] = small[..., ::-1]
        cv2.imwrite(str(photos / f"small{index}.png"), canvas)
    arguments = [str(photos), str(tmp_path / "crops"), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert re.search(r"of 8 photos \([1-4] found on a second look\); 8 in ", result.stdout)


def test_a_model_for_the_wrong_detector_is_refused(photos: Path, tmp_path: Path) -> None:
    arguments = [str(photos), str(tmp_path / "crops"), "--yunet-model", "x.onnx"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ValueError)
    assert str(result.exception) == "--yunet-model is for --detector yunet, not mtcnn"


def test_ctrl_c_says_how_to_resume(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sphereface2.datatools.align.align_folder", stopped)
    result = CliRunner().invoke(app, [str(photos), str(tmp_path / "crops")])
    assert result.exit_code == 130
    assert "the same command resumes" in result.output
