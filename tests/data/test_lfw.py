"""Pairs in the form of LFW's pairs.txt."""

from pathlib import Path

import numpy as np
import pytest

from sphereface2.data.pairs.lfw import lfw_pairs
from tests.data.test_folder import write_image

NAMES = ["Abel_Pacheco", "Ana_Paula", "Zoë"]
IMAGES = 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for person, name in enumerate(NAMES):
        for number in range(1, IMAGES + 1):
            write_image(
                tmp_path / "lfw" / name / f"{name}_{number:04d}.png", rgb=(person, number, 0)
            )
    return tmp_path / "lfw"


def lines(folds: int = 10, pairs: int = 2) -> list[str]:
    written = []
    for fold in range(folds):
        for pair in range(pairs):
            written.append(f"{NAMES[(fold + pair) % 3]}\t1\t{2 + pair % 3}")
        for pair in range(pairs):
            written.append(f"{NAMES[fold % 3]}\t{1 + pair}\t{NAMES[(fold + 1) % 3]}\t2")
    return written


def write(path: Path, header: str | None, written: list[str]) -> str:
    path.write_text("\n".join([*([] if header is None else [header]), *written]) + "\n")
    return str(path)


def test_the_folds_people_and_images_of_the_file(root: Path) -> None:
    path = write(root / "pairs.txt", "10\t2", lines())
    (found,) = lfw_pairs(path=path)
    assert found.name == "pairs"
    assert found.folds.tolist() == np.repeat(np.arange(10), 4).tolist()
    assert found.same.tolist() == [True, True, False, False] * 10
    assert found.people is not None
    for row, line in enumerate(lines()):
        fields = line.split("\t")
        first = (fields[0], int(fields[1]))
        second = (fields[0] if len(fields) == 3 else fields[2], int(fields[-1]))
        for index, (name, number) in zip(found.pairs[row], (first, second), strict=True):
            assert found.images[index][0, 0].tolist() == [NAMES.index(name), number, 0]
            assert found.people[index] == NAMES.index(name)


def test_other_numbers_of_folds_are_kept(root: Path) -> None:
    path = write(root / "pairs.txt", "4 3", lines(4, 3))
    (found,) = lfw_pairs(path=path)
    assert found.folds.tolist() == np.repeat(np.arange(4), 6).tolist()


@pytest.mark.parametrize("header", ["20", None])
def test_without_folds_there_are_ten_with_both_kinds_each(root: Path, header: str | None) -> None:
    # pairsDevTest.txt: the number of pairs, all genuine ones, all impostors
    chosen = sorted(lines(), key=lambda line: line.count("\t"))
    (found,) = lfw_pairs(path=write(root / "pairs.txt", header, chosen), title="dev")
    assert found.name == "dev"
    assert len(found.pairs) == 40
    for fold in range(10):
        assert sorted(found.same[found.folds == fold].tolist()) == [False, False, True, True]


def test_blanks_root_and_endings(root: Path, tmp_path: Path) -> None:
    write_image(root / "Zoë" / "Zoë_0001.jpg", rgb=(99, 99, 99))  # goes before the .png
    (root / "Ana_Paula" / "Ana_Paula_0002.png").rename(root / "Ana_Paula" / "Ana_Paula_0002.PNG")
    path = write(tmp_path / "p.txt", "10 2", [line.replace("\t", "  ") for line in lines()])
    (found,) = lfw_pairs(path=path, root=str(root))
    files = {file.name for file in found.images.paths}  # type: ignore[attr-defined]
    assert {"Zoë_0001.jpg", "Ana_Paula_0002.PNG", "Abel_Pacheco_0001.png"} <= files
    with pytest.raises(FileNotFoundError, match=r"Ana_Paula_0002\.png; give the"):
        lfw_pairs(path=path, root=str(root), suffix="png")


def test_missing_images_are_counted_and_the_first_are_named(root: Path, tmp_path: Path) -> None:
    path = write(root / "pairs.txt", "10 2", lines())
    (root / "Zoë" / "Zoë_0002.png").unlink()
    (root / "Zoë" / "Zoë_0001.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of the \d+ images .*Zoë_0001\.jpg, .*0002"):
        lfw_pairs(path=path)
    with pytest.raises(
        FileNotFoundError, match=r"9 of the 9 images .*give the folder .* with root, or"
    ):
        lfw_pairs(path=path, root=str(tmp_path))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("Zoë", "expected 'name i j'"),
        ("Zoë\t1", "expected 'name i j'"),
        ("Zoë\t1\t2\t3\t4", "expected 'name i j'"),
        ("Zoë\tone\t2", "expected 'name i j'"),
        ("Zoë\t1\t-2", "expected 'name i j'"),
        ("Zoë\t1\tAna_Paula\tx", "expected 'name i j'"),
        ("\t1\t2", "expected 'name i j'"),
        ("Zoë\t2\t2", "image 2 of Zoë is paired with itself"),
        ("Zoë\t1\tZoë\t2", "both names are Zoë"),
        ("10\t2", "expected 'name i j'"),
    ],
)
def test_a_mistake_is_named_with_its_line(root: Path, line: str, sentence: str) -> None:
    written = lines()
    written[6] = line
    path = write(root / "pairs.txt", "10 2", written)
    with pytest.raises(ValueError, match=rf"pairs\.txt, line 8: {sentence}"):
        lfw_pairs(path=path)


def test_the_header_must_agree_with_the_pairs(root: Path) -> None:
    path = write(root / "pairs.txt", "10 2", lines()[:-1])
    with pytest.raises(ValueError, match=r"line 1 promises 10 x 2 .* 40 in all, but 39 follow"):
        lfw_pairs(path=path)
    written = lines()
    written[5], written[8] = written[11], written[12 + 2]
    written[8] = "Zoë\t1\tAna_Paula\t1"
    path = write(root / "pairs.txt", "10 2", written)
    with pytest.raises(ValueError, match=r"lines 6 to 9: fold 2 has 1 genuine pairs, .* 2"):
        lfw_pairs(path=path)
    with pytest.raises(ValueError, match="has no pairs"):
        lfw_pairs(path=write(root / "pairs.txt", "10 2", []))
    with pytest.raises(ValueError, match="line 1: counts must be at least 1"):
        lfw_pairs(path=write(root / "pairs.txt", "0 2", []))
