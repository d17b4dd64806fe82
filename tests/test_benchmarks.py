"""Benchmarks on folders of the user: a mistake is one sentence and exit code 2."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import detectors, loader

GREY = np.full((60, 60, 3), 120, np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "anna").mkdir(parents=True)
    for name in ("1.jpg", "2.jpg"):
        cv2.imwrite(str(folder / "anna" / name), GREY)
    return folder


def complaint(
    main: object,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    with pytest.raises(SystemExit) as ended:
        main()  # type: ignore[operator]  # the `main` of a benchmark
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_the_loader_refuses_folders_that_it_cannot_read(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(folder: Path) -> str:
        return complaint(loader.main, ["--crops", str(folder)], monkeypatch, capsys)

    assert "--crops: " in said(photos / "nowhere")
    assert "no images in the folders" in said(photos / "anna")
    assert "has 2 images; give 125 or more" in said(photos)
    (photos / "anna" / "1.jpg").write_bytes(b"")
    assert "1 of the 2 images cannot be used" in said(photos)


def test_the_detectors_refuse_photos_without_marks(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(folder: Path) -> str:
        return complaint(detectors.main, [str(folder)], monkeypatch, capsys)

    assert "there is no folder" in said(photos / "nowhere")
    (photos / "empty").mkdir()
    assert "ends in .jpg" in said(photos / "empty")
    assert "there are no marks for 2 of 2 photos in" in said(photos)
    for marks in ("1.txt", "2.txt"):
        (photos / "anna" / marks).write_text("1,2\n3,four\n")
    assert "1.txt does not hold 30 lines x,y" in said(photos)
