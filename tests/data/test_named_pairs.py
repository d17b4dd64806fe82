"""Pairs by name: the same pairs that the readers with images find."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.pairs import named_pairs
from sphereface2.data.pairs.lfw import lfw_pairs
from sphereface2.data.pairs.pair_list import pair_list
from sphereface2.data.pairs.verification_set import ImageFiles, VerificationSet, without_ending


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))


def names_of(found: VerificationSet, root: Path) -> list[tuple[str, str]]:
    assert isinstance(found.images, ImageFiles)
    names = [path.relative_to(root).as_posix() for path in found.images.paths]
    return [(names[left], names[right]) for left, right in found.pairs.tolist()]


@pytest.mark.parametrize("header", ["2 10\n", "20\n", ""])
def test_lfw_as_with_images(tmp_path: Path, header: str) -> None:
    lines = []
    for fold in range(2):
        lines += [f"p{fold}{number}\t1\t2" for number in range(10)]
        lines += [f"p{fold}{number}\t1\tq{fold}{number}\t3" for number in range(10)]
        for number in range(10):
            for name, which in ((f"p{fold}{number}", (1, 2)), (f"q{fold}{number}", (3,))):
                for each in which:
                    image(tmp_path / name / f"{name}_{each:04d}.jpg")
    (tmp_path / "pairs.txt").write_text(header + "\n".join(lines) + "\n")
    (expected,) = lfw_pairs(path=str(tmp_path / "pairs.txt"))
    found = named_pairs(tmp_path / "pairs.txt")
    named = [(found.images[a], found.images[b]) for a, b in found.pairs.tolist()]
    with_images = names_of(expected, tmp_path)
    assert named == [(without_ending(a), without_ending(b)) for a, b in with_images]
    np.testing.assert_array_equal(found.same, expected.same)
    np.testing.assert_array_equal(found.folds, expected.folds)


def test_a_plain_list_as_with_images(tmp_path: Path) -> None:
    lines = ["# path path same"]
    for number in range(10):
        for name in (f"a b/{number}.png", f"c/{number}.png"):
            image(tmp_path / name)
        lines += [f"a b/{number}.png\tc/{number}.png\t1", f"c/{number}.png\ta b/0.png\t0"]
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    (expected,) = pair_list(path=str(tmp_path / "mine.txt"))
    found = named_pairs(tmp_path / "mine.txt")
    named = [(found.images[a], found.images[b]) for a, b in found.pairs.tolist()]
    assert named == names_of(expected, tmp_path)
    np.testing.assert_array_equal(found.folds, expected.folds)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "0 genuine and 0 impostor pairs"),
        ("10 300", "has no pairs"),
        ("a b 2\n", "line 1: expected 'path1 path2 0|1'"),
        ("x 1 2\nx 1\n", "line 2: expected 'name i j'"),
        # Both readers had to say it: there is one now.
        ("x 1 2\nx 1 x 2\n", "line 2: both names are x"),
        ("2 1\nx 1 2\nx 1 3\nx 1 y 1\nx 1 z 1\n", "fold 1 has 2 genuine pairs"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(ValueError, match=part.replace("|", r"\|")):
        named_pairs(tmp_path / "list.txt")
