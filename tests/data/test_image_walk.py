"""Which files below a folder are images, whatever their names, and which are not read."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources.folder import ImageFolder, LooseImages, find_images

WHITE = np.full((16, 16, 3), 255, np.uint8)


def write(path: Path, ending: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(ending, WHITE)[1].tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    write(root / "anna" / "1.jpg", ".jpg")
    write(root / "anna" / "2.jfif", ".jpg")
    write(root / "anna" / "3.TIFF", ".tiff")
    write(root / "anna" / "4", ".png")
    write(root / "anna" / "5.jpg_large", ".jpg")
    write(root / "anna" / "6.gif", ".gif")
    (root / "anna" / "7.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    (root / "anna" / "8").write_bytes(b"\0\0\0\x18ftypavif")
    (root / "anna" / "9.nef").write_bytes(b"II*\0")
    (root / "anna" / "film").write_bytes(b"\0\0\0\x18ftypmp42")
    (root / "anna" / "BMW").write_text("BMW is a word")
    write(root / "anna" / "notes.txt", ".jpg")  # never opened
    write(root / "anna" / ".hidden.jpg", ".jpg")
    write(root / ".trash" / "1.jpg", ".jpg")
    os.mkfifo(root / "anna" / "pipe")
    return root


def test_images_are_told_by_their_ending_or_their_beginning(folder: Path) -> None:
    found = find_images(folder)
    names = ["1.jpg", "2.jfif", "3.TIFF", "4", "5.jpg_large", "6.gif"]
    assert found.names == [f"anna/{name}" for name in names]
    assert sorted(found.unread) == ["anna/7.HEIC", "anna/8", "anna/9.nef"]
    assert found.unread["anna/8"] == (
        "it is of the kind AVIF, which is not read; convert it to JPEG or PNG"
    )


def test_links_to_folders_are_followed_and_end(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "a.png", ".png")
    (folder / "otto").symlink_to(tmp_path / "elsewhere")
    (folder / "anna" / "album").symlink_to(tmp_path / "elsewhere")
    # Three ways round: up, to itself, and two that point at each other.
    (folder / "anna" / "up").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "left").mkdir()
    write(tmp_path / "right" / "r.png", ".png")
    (tmp_path / "left" / "to").symlink_to(tmp_path / "right")
    (tmp_path / "right" / "to").symlink_to(tmp_path / "left")
    (folder / "both").symlink_to(tmp_path / "left")
    linked = [name for name in find_images(folder).names if name.endswith(".png")]
    assert linked == ["anna/album/a.png", "both/to/r.png", "otto/a.png"]
    (folder / "all").symlink_to(folder)
    assert ImageFolder(path=str(folder)).people == ["anna", "both", "otto"]


@pytest.mark.parametrize("source", [ImageFolder, LooseImages])
def test_sources_read_all_kinds_and_say_once_what_they_do_not_read(
    folder: Path, source: type[ImageFolder] | type[LooseImages]
) -> None:
    images = source(path=str(folder))
    images.prepare()
    assert len(images) == 6
    assert all(images[index][0].min() > 250 for index in range(6))
    (note,) = images.notes
    assert note == (
        f"3 images of other kinds in {folder} are not read, such as anna/7.HEIC; convert them to "
        "JPEG or PNG"
    )
    for name in list(images.unread):
        (folder / name).unlink()
    assert source(path=str(folder)).notes == ()


@pytest.mark.parametrize("source", [ImageFolder, LooseImages])
def test_a_folder_of_other_kinds_only_says_so(
    tmp_path: Path, source: type[ImageFolder] | type[LooseImages]
) -> None:
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "1.heic").touch()
    with pytest.raises(ValueError, match=r"no images .*; 1 image of other kinds .* is not read"):
        source(path=str(tmp_path))
