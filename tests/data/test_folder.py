"""Training images in a folder for each person."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.folder import ImageFolder
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


def test_images_are_rgb(folder: Path) -> None:
    source = ImageFolder(path=str(folder))
    image, label = source[3]
    assert image.dtype == np.uint8
    assert image.shape == (8, 8, 3)
    assert image[0, 0].tolist() == list(RED)
    assert label == 1


def test_a_grey_image_gets_three_channels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    cv2.imwrite(str(tmp_path / "a" / "1.png"), np.full((9, 9), 77, np.uint8))
    image, _ = ImageFolder(path=str(tmp_path))[0]
    assert image.shape == (9, 9, 3)
    assert (image == 77).all()


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


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "only_at_the_top.png")
    with pytest.raises(ValueError, match=r"no images in the folders .* PERSON/IMAGE"):
        ImageFolder(path=str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff\xe0 cut short"])
def test_an_unreadable_image_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot decode the image .*broken\.jpg"):
        ImageFolder(path=str(tmp_path))[0]


def test_an_image_that_vanished_is_named(folder: Path) -> None:
    source = ImageFolder(path=str(folder))
    source.image_path(0).unlink()
    with pytest.raises(FileNotFoundError, match=r"no image .*2\.JPG"):
        source[0]
