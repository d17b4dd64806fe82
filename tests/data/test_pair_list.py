"""Verification pairs in a text file."""

import os
from pathlib import Path

import numpy as np
import pytest

from sphereface2.data.pairs import VERIFICATION_SETS
from sphereface2.data.pairs.pair_list import lfw_pairs, pair_list
from sphereface2.registry import build
from tests.data.test_folder import write_image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(6):
        write_image(tmp_path / "images" / f"{number}.png", rgb=(10 * number, 0, 0))
    return tmp_path / "images"


def write_list(folder: Path, answers: list[int], *, separator: str = " ") -> Path:
    lines = [
        separator.join((f"{i % 6}.png", f"{(i + 1) % 6}.png", str(a)))
        for i, a in enumerate(answers)
    ]
    path = folder / "some_pairs.txt"
    path.write_text("# a comment\n\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_reads_pairs_relative_to_the_list(images: Path, separator: str) -> None:
    path = write_list(images, [1, 0] * 10, separator=separator)
    (found,) = build("verification set", VERIFICATION_SETS, "pairs", path=str(path))
    assert found.name == "some_pairs"
    assert len(found.images) == 6
    assert found.same.tolist() == [True, False] * 10
    for row in range(20):
        first, second = found.pairs[row]
        assert found.images[first][0, 0].tolist() == [10 * (row % 6), 0, 0]
        assert found.images[second][0, 0].tolist() == [10 * ((row + 1) % 6), 0, 0]


def test_root_and_name_are_options(images: Path, tmp_path: Path) -> None:
    path = write_list(tmp_path, [1, 0] * 10)
    (found,) = pair_list(path=str(path), root=str(images), title="mine")
    assert found.name == "mine"
    assert found.images[5][0, 0].tolist() == [50, 0, 0]


def test_paths_with_blanks_need_tabs(tmp_path: Path) -> None:
    write_image(tmp_path / "a b.png")
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"a b.png\ta b.png\t{i % 2}\n" for i in range(20)))
    (found,) = pair_list(path=str(path))
    assert len(found.images) == 1


def test_folds_are_blocks_in_the_order_of_the_list(images: Path) -> None:
    # As LFW has it: in each fold first the genuine, then the impostor pairs.
    path = write_list(images, [1, 1, 0, 0] * 10)
    (found,) = pair_list(path=str(path))
    assert found.folds.tolist() == np.repeat(np.arange(10), 4).tolist()


def test_sorted_pairs_are_spread_so_that_every_fold_has_both_kinds(images: Path) -> None:
    path = write_list(images, [1] * 23 + [0] * 40)
    (found,) = pair_list(path=str(path))
    for fold in range(10):
        chosen = found.same[found.folds == fold]
        assert 2 <= chosen.sum() <= 3
        assert (~chosen).sum() == 4
    assert (np.diff(found.folds[:23]) >= 0).all()


def test_missing_images_are_counted_and_the_first_are_named(images: Path) -> None:
    path = write_list(images, [1, 0] * 10)
    (images / "2.png").unlink()
    (images / "4.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of the 6 images .*2\.png, .*4\.png; give the"):
        pair_list(path=str(path))


def test_a_missing_list_or_root_is_named(images: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no list of pairs .*nothing\.txt"):
        pair_list(path=str(images / "nothing.txt"))
    path = write_list(images, [1, 0] * 10)
    with pytest.raises(FileNotFoundError, match=r"root: there is no folder .*nowhere"):
        pair_list(path=str(path), root=str(images / "nowhere"))


@pytest.mark.parametrize("line", ["0.png 1.png", "0.png 1.png 2", "1 0.png 1.png", "0.png\t\t1"])
def test_a_line_of_another_form_is_named(images: Path, line: str) -> None:
    path = write_list(images, [1, 0] * 10)
    path.write_text(path.read_text() + line)
    with pytest.raises(ValueError, match=r"some_pairs\.txt, line 23: expected 'path1 path2 0\|1'"):
        pair_list(path=str(path))


def test_too_few_pairs_are_refused(images: Path) -> None:
    path = write_list(images, [1] * 30 + [0] * 9)
    with pytest.raises(ValueError, match="30 genuine and 9 impostor pairs"):
        pair_list(path=str(path))
    path.write_text("# nothing\n")
    with pytest.raises(ValueError, match="0 genuine and 0 impostor pairs"):
        pair_list(path=str(path))


def test_a_binary_file_is_refused(images: Path) -> None:
    with pytest.raises(ValueError, match="not a text file"):
        pair_list(path=str(images / "0.png"))


def write_people(folder: Path, name: str) -> list[str]:
    files = [name.format(person=person, number=n) for person in range(5) for n in range(2)]
    for file in files:
        write_image(folder / file)
    genuine = [f"{files[2 * i]} {files[2 * i + 1]} 1" for i in range(5)] * 4
    impostor = [f"{files[2 * i]} {files[(2 * i + 3) % 10]} 0" for i in range(5)] * 4
    return genuine + impostor


@pytest.mark.parametrize(
    "name", ["p{person}/{number}.png", "p{person}/side{number}/1.png", "all/p{person}/{number}.png"]
)
def test_people_are_known_by_folders_that_every_pair_bears_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / "pairs.txt"
    lines = write_people(tmp_path, name)
    path.write_text("\n".join(lines))
    (found,) = pair_list(path=str(path))
    assert found.people is not None
    assert found.people.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    # One pair that says otherwise, and the folders are not people.
    path.write_text("\n".join([*lines, lines[0][:-1] + "0"]))
    (found,) = pair_list(path=str(path))
    assert found.people is None


def test_people_are_not_guessed_without_folders(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join(write_people(tmp_path, "p{person}_{number}.png")))
    (found,) = pair_list(path=str(path))
    assert found.people is None


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    write_image(tmp_path / "plain.png", rgb=(5, 0, 0))
    name = b"Jos\xe9.png"
    (tmp_path / "plain.png").rename(tmp_path / os.fsdecode(name))
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"".join(name + b" " + name + b" %d\r\n" % (i % 2) for i in range(20)))
    (found,) = pair_list(path=str(path))
    assert found.images[0][0, 0].tolist() == [5, 0, 0]


# -- LFW's pairs.txt -------------------------------------------------------------------------------

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


def test_missing_images_of_lfw_are_counted_and_the_first_are_named(
    root: Path, tmp_path: Path
) -> None:
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
