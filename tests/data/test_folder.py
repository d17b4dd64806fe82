"""Training images in folders: which files are images, whose they are, and their packed names."""

import os
import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.folder import ImageFolder, LooseImages, PackedNames, find_images
from sphereface2.registry import build

RED = (200, 10, 20)


def write_image(
    path: Path, *, size: tuple[int, int] = (8, 8), rgb: tuple[int, int, int] = RED
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((*size, 3), rgb[::-1], np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "zoë" / "1.png")
    write_image(tmp_path / "anna" / "2.JPG")
    write_image(tmp_path / "anna" / "album" / "deep" / "1.webp")
    write_image(tmp_path / "anna" / "3.bmp")
    write_image(tmp_path / ".cache" / "1.png")
    write_image(tmp_path / "stray.png")
    (tmp_path / "anna" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_people_are_sorted_folders_and_images_lie_at_any_depth(folder: Path) -> None:
    source = ImageFolder(path=str(folder))
    assert source.people == ["anna", "zoë"]
    assert source.num_classes == 2
    assert source.labels.tolist() == [0, 0, 0, 1]
    assert source.labels.dtype == np.int64
    assert [source.image_path(i).name for i in range(4)] == ["2.JPG", "3.bmp", "1.webp", "1.png"]
    assert source.image_size is None
    image, label = source[3]
    assert image.dtype == np.uint8
    assert image.shape == (8, 8, 3)
    assert image[0, 0].tolist() == list(RED)
    assert label == 1


def test_image_size_resizes_and_the_table_builds_it(folder: Path) -> None:
    source = build("data", SOURCES, "folder", path=str(folder), image_size=3)
    assert source.image_size == 3
    assert source[0][0].shape == (3, 3, 3)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; give the folder"):
        ImageFolder(path=str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="file is not a folder"):
        ImageFolder(path=str(tmp_path / "file"))


def test_an_image_that_vanished_is_named(folder: Path) -> None:
    source = ImageFolder(path=str(folder))
    source.image_path(0).unlink()
    with pytest.raises(FileNotFoundError, match=r"no image .*2\.JPG"):
        source[0]


WHITE = np.full((16, 16, 3), 255, np.uint8)


def write(path: Path, ending: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(ending, WHITE)[1].tobytes())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
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


def test_images_are_told_by_their_ending_or_their_beginning(photos: Path) -> None:
    found = find_images(photos)
    names = ["1.jpg", "2.jfif", "3.TIFF", "4", "5.jpg_large", "6.gif"]
    assert found.names == [f"anna/{name}" for name in names]
    assert sorted(found.unread) == ["anna/7.HEIC", "anna/8", "anna/9.nef"]
    assert found.unread["anna/8"] == (
        "it is of the kind AVIF, which is not read; convert it to JPEG or PNG"
    )


def test_links_to_folders_are_followed_and_end(photos: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "a.png", ".png")
    (photos / "otto").symlink_to(tmp_path / "elsewhere")
    (photos / "anna" / "album").symlink_to(tmp_path / "elsewhere")
    # Three ways round: up, to itself, and two that point at each other.
    (photos / "anna" / "up").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "left").mkdir()
    write(tmp_path / "right" / "r.png", ".png")
    (tmp_path / "left" / "to").symlink_to(tmp_path / "right")
    (tmp_path / "right" / "to").symlink_to(tmp_path / "left")
    (photos / "both").symlink_to(tmp_path / "left")
    linked = [name for name in find_images(photos).names if name.endswith(".png")]
    assert linked == ["anna/album/a.png", "both/to/r.png", "otto/a.png"]
    (photos / "all").symlink_to(photos)
    assert ImageFolder(path=str(photos)).people == ["anna", "both", "otto"]


@pytest.mark.parametrize("source", [ImageFolder, LooseImages])
def test_sources_read_all_kinds_and_say_once_what_they_do_not_read(
    photos: Path, source: type[ImageFolder] | type[LooseImages]
) -> None:
    images = source(path=str(photos))
    images.prepare()
    assert len(images) == 6
    assert all(images[index][0].min() > 250 for index in range(6))
    (note,) = images.notes
    assert note == (
        f"3 images of other kinds in {photos} are not read, such as anna/7.HEIC; convert them to "
        "JPEG or PNG"
    )
    for name in list(images.unread):
        (photos / name).unlink()
    assert source(path=str(photos)).notes == ()


@pytest.mark.parametrize("source", [ImageFolder, LooseImages])
def test_a_folder_of_other_kinds_only_says_so(
    tmp_path: Path, source: type[ImageFolder] | type[LooseImages]
) -> None:
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "1.heic").touch()
    with pytest.raises(ValueError, match=r"no images .*; 1 image of other kinds .* is not read"):
        source(path=str(tmp_path))


NAMES = ["a/1.jpg", "", "Zoë/ü.png", "b/\udcff\udc80.jpg", "\ud800", "a/1.jpg", "日本/顔.webp"]


def test_names_come_back_as_they_were() -> None:
    packed = PackedNames(NAMES)
    assert len(packed) == len(NAMES)
    assert [packed[index] for index in range(len(NAMES))] == NAMES
    assert list(pickle.loads(pickle.dumps(packed))) == NAMES
    assert packed[-1] == NAMES[-1]
    for index in (len(NAMES), -len(NAMES) - 1):
        with pytest.raises(IndexError):
            packed[index]


def test_there_may_be_none() -> None:
    assert len(PackedNames([])) == 0


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for person in ("anna", "bert"):
        (tmp_path / person).mkdir()
        (tmp_path / person / "1.png").touch()
    assert find_images(tmp_path).names == ["anna/1.png", "bert/1.png"]
    scandir = os.scandir

    def failing(path: str) -> Any:
        if path.endswith("bert"):
            raise OSError(5, "Input/output error", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OSError, match="bert"):
        find_images(tmp_path)
