"""Training images in a list, in each of the forms that users have."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.image_list import AlignedFiles, ImageList, require_images
from sphereface2.faces.face import TEMPLATE
from sphereface2.registry import build
from tests.data.test_folder import write_image

BOX = "\t".join(["1.5"] * 14)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number, name in enumerate(["a/1.jpg", "a/2 with blanks.jpg", "b/1.png", "c/3.png"]):
        write_image(tmp_path / name, rgb=(40 * number, 0, 0))
    return tmp_path


def listed(
    folder: Path, text: str, *, name: str = "list.txt", root: str | None = None
) -> ImageList:
    (folder / name).write_text(text, encoding="utf-8")
    return ImageList(path=str(folder / name), root=root)


FORMS = {
    "blanks": ("list.txt", "a/1.jpg 4\na/2 with blanks.jpg 4\nb/1.png 10\nc/3.png -1\n"),
    "tabs": ("list.txt", "a/1.jpg\t4\na/2 with blanks.jpg\t4\nb/1.png\t10\nc/3.png\t-1\n"),
    "windows": ("list.txt", "\ufeffa/1.jpg 4\r\na/2 with blanks.jpg 4\r\nb/1.png 10\r\nc/3.png -1"),
    "comments": (
        "list.txt",
        "# mine\n\na/1.jpg 4\n  \na/2 with blanks.jpg 4\nb/1.png 10\n# end\nc/3.png -1\n",
    ),
    "csv": ("list.csv", 'a/1.jpg,4\n"a/2 with blanks.jpg",4\nb/1.png,10\nc/3.png,-1\n'),
    "titles": (
        "list.csv",
        "label,age,path\n4,30,a/1.jpg\n4,31,a/2 with blanks.jpg\n10,20,b/1.png\n-1,1,c/3.png\n",
    ),
    "im2rec": (
        "train.lst",
        "0\t4.000000\ta/1.jpg\n1\t4.000000\ta/2 with blanks.jpg\n2\t10.000000\tb/1.png\n"
        "3\t-1.000000\tc/3.png\n",
    ),
    "im2rec, several labels": (
        "train.lst",
        "0\t4.0\t7\ta/1.jpg\n1\t4.0\t8\ta/2 with blanks.jpg\n2\t10.0\t9\tb/1.png\n"
        "3\t-1.0\t9\tc/3.png\n",
    ),
    "InsightFace": (
        "train.lst",
        "1\ta/1.jpg\t4\n1\ta/2 with blanks.jpg\t4\n1\tb/1.png\t10\n1\tc/3.png\t-1\n",
    ),
    "InsightFace, landmarks": (
        "train.lst",
        f"0\ta/1.jpg\t4\t{BOX}\n0\ta/2 with blanks.jpg\t4\t{BOX}\n0\tb/1.png\t10\t{BOX}\n"
        f"0\tc/3.png\t-1\t{BOX}\n",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(images: Path, form: str) -> None:
    name, text = FORMS[form]
    source = listed(images, text, name=name)
    assert source.labels.tolist() == [0, 0, 1, -1]
    assert source.people == ["4", "10"]
    assert source.num_classes == 2
    assert source.image_path(1) == images / "a" / "2 with blanks.jpg"
    image, label = source[2]
    assert image[0, 0].tolist() == [80, 0, 0]
    assert label == 1
    assert source.name(1) == "4/a/2 with blanks.jpg"
    source.prepare(workers=2)
    assert not source.bad


def test_people_may_have_names(images: Path) -> None:
    source = listed(images, "c/3.png\tzoë z\na/1.jpg\tanna\nb/1.png\t-1\na/1.jpg\tanna\n")
    assert source.people == ["anna", "zoë z"]
    assert source.labels.tolist() == [1, 0, -1, 0]


def test_numbers_are_in_their_order_and_keep_their_zeros(images: Path) -> None:
    source = listed(images, "a/1.jpg 0010\nb/1.png 0009\nc/3.png 0100\n")
    assert source.people == ["0009", "0010", "0100"]
    assert source.labels.tolist() == [1, 0, 2]


def test_numbers_may_be_larger_than_any_integer_of_the_machine(images: Path) -> None:
    # As the 21 digits of an account; the order is that of the numbers, not of the texts.
    account, digits = 113456789012345678901, "9" * 5000
    source = listed(images, f"a/1.jpg {account}\nb/1.png 9\nc/3.png {account - 1}\n")
    assert source.people == ["9", str(account - 1), str(account)]
    assert source.labels.tolist() == [2, 0, 1]
    assert listed(images, f"a/1.jpg {digits}\nb/1.png 9\n").people == ["9", digits]


def test_paths_start_from_root_and_may_be_absolute(images: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    text = f"1.jpg 0\n{images / 'b' / '1.png'} 1\n"
    source = listed(tmp_path / "lists", text, root=str(images / "a"))
    source.prepare()
    assert source[1][0][0, 0].tolist() == [80, 0, 0]
    built = build("data", SOURCES, "list", path=str(source.path), root=str(images / "a"))
    assert built.num_classes == 2


def test_a_name_in_the_folder_of_its_person_stays(images: Path) -> None:
    source = listed(images, "a/1.jpg a\nb/1.png other\n")
    assert [source.name(index) for index in range(2)] == ["a/1.jpg", "other/b/1.png"]


def test_names_that_are_not_utf8(images: Path) -> None:
    os.rename(images / "b", os.fsencode(images) + b"/caf\xe9")  # noqa: PTH104 - bytes
    (images / "list.txt").write_bytes(b"a/1.jpg\tanna\ncaf\xe9/1.png\tcaf\xe9\n")
    source = ImageList(path=str(images / "list.txt"))
    source.prepare()
    assert source.people == ["anna", r"caf\xe9"]
    assert source[1][0][0, 0].tolist() == [80, 0, 0]
    assert source.location(1).endswith(r"caf\xe9/1.png")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.txt", "", "l.txt names no images; expected 'path label' lines"),
        ("l.txt", "a/1.jpg\n", "line 1: expected 'path label' in 2 fields, got 'a/1.jpg' in 1"),
        ("l.txt", "a/1.jpg\t1\nb/1.png 2\t\n", "line 2: expected 'path label' in 2 fields, got"),
        ("l.lst", "0\t1.5\ta/1.jpg\n", "line 1: the label '1.5' is not a whole number"),
        ("l.lst", "0\tanna\ta/1.jpg\n", "line 1: the label 'anna' is not a whole number"),
        ("l.txt", "# -5\nb/1.png 3\na/1.jpg -5\n", "l.txt, line 3: the label is -5; labels start"),
        ("l.csv", "path,label\nb/1.png,3\na/1.jpg,-5\n", "l.csv, line 3: the label is -5; labels"),
        ("l.txt", "b/1.png 3\na/1.jpg nan\n", "line 2: the label 'nan' is not a number, and all"),
        ("l.txt", "1.jpg 0\n", "there is no image .*1.jpg; set data.root to the folder that the"),
        ("l.txt", "\0\0\0 1\n", "l.txt is not a text file"),
    ],
)
def test_mistakes_are_named(images: Path, name: str, text: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        listed(images, text, name=name)


def test_other_encodings_and_missing_files(images: Path) -> None:
    (images / "l.txt").write_text("a/1.jpg 0\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"l.txt is in UTF-16; save it as UTF-8"):
        ImageList(path=str(images / "l.txt"))
    with pytest.raises(FileNotFoundError, match=r"the list .*none.txt does not exist"):
        ImageList(path=str(images / "none.txt"))
    with pytest.raises(FileNotFoundError, match=r"the list .* is a folder"):
        ImageList(path=str(images))
    (images / "l.txt").write_text("a/1.jpg 0\n")
    with pytest.raises(FileNotFoundError, match=r"root: there is no folder .*nowhere with the"):
        ImageList(path=str(images / "l.txt"), root=str(images / "nowhere"))


def test_a_single_missing_image_is_found_by_the_check(images: Path) -> None:
    source = listed(images, "a/1.jpg 0\na/none.jpg 0\n")
    with pytest.raises(ValueError, match=r"1 of the 2 images .*none.jpg \(the file is missing\);"):
        source.prepare()
    with pytest.raises(FileNotFoundError, match=r"there is no image .*none.jpg"):
        source[1]


def write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image[:, :, ::-1])


def test_a_turned_face_comes_back_upright(tmp_path: Path) -> None:
    upright = np.zeros((112, 112, 3), np.uint8)
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)]
    for (x, y), colour in zip(TEMPLATE.round().astype(int), colours, strict=True):
        cv2.circle(upright, (int(x), int(y)), 5, colour, -1)
    angle = np.deg2rad(30)
    turn = 1.5 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.column_stack([turn, [80.0, 10.0]])
    write(tmp_path / "a.png", cv2.warpAffine(upright, matrix, (300, 300)))
    points = TEMPLATE @ matrix[:, :2].T + matrix[:, 2]
    faces = AlignedFiles(tmp_path, ["a.png"], points[None])
    faces.prepare(workers=1)
    assert faces[0].shape == (112, 112, 3)
    for (x, y), colour in zip(TEMPLATE.round().astype(int), colours, strict=True):
        np.testing.assert_allclose(faces[0][y, x], colour, atol=30)


def test_missing_images_are_counted_and_the_first_named(tmp_path: Path) -> None:
    write(tmp_path / "1.png", np.zeros((8, 8, 3), np.uint8))
    reported: list[tuple[int, int]] = []
    names = [f"{number}.png" for number in range(1, 6)]
    with pytest.raises(FileNotFoundError, match=r"4 of the 5 images .* such as 2\.png, 3\.png, 4"):
        require_images(tmp_path, names, progress=lambda *state: reported.append(state), every=2)
    assert reported == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("fault", [np.nan, 7.0])
def test_landmarks_without_a_direction_are_refused(tmp_path: Path, fault: float) -> None:
    points = np.tile(TEMPLATE, (3, 1, 1))
    points[1] = fault
    with pytest.raises(ValueError, match=r"1 of the 3 faces .* such as those of b"):
        AlignedFiles(tmp_path, ["a", "b", "c"], points)
    with pytest.raises(ValueError, match=r"need landmarks of the shape \(2, 5, 2\)"):
        AlignedFiles(tmp_path, ["a", "b"], points)
