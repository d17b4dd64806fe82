"""What users get wrong unawares: odd pairs, people trained on, images that are not crops."""

import os
from pathlib import Path

import numpy as np
import pytest

from sphereface2.data.mixing import NoisyLabels
from sphereface2.data.pairs.bin_set import bin_set
from sphereface2.data.pairs.drawn import drawn_pairs
from sphereface2.data.pairs.pair_list import lfw_pairs, pair_list
from sphereface2.data.pairs.synthetic import synthetic_verification_sets
from sphereface2.data.pairs.verification_set import notes_on_pairs, notes_on_people
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.datatools.convert import convert
from tests.data.bin_files import write_bin
from tests.data.test_folder import write_image


def write_people(folder: Path, names: list[str], *, images: int = 4) -> Path:
    for person, name in enumerate(names):
        for number in range(images):
            rgb = (7 * person, 40 * number, len(folder.name))
            write_image(folder / name / f"{name}_{number + 1:04d}.png", rgb=rgb)
    return folder


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write_people(tmp_path / "crops", [f"person{number}" for number in range(30)])


def lines(count: int = 20) -> list[str]:
    """Genuine and impostor pairs in turns, two a fold: `a b 1`, `a c 0`."""
    found = []
    for number in range(count // 2):
        one, other = f"person{number}", f"person{number + 10}"
        found.append(f"{one}/{one}_0001.png {one}/{one}_0002.png 1")
        found.append(f"{one}/{one}_0001.png {other}/{other}_0001.png 0")
    return found


def notes(people: Path, pairs: list[str]) -> list[str]:
    (people.parent / "mine.txt").write_text("".join(f"{line}\n" for line in pairs))
    (found,) = pair_list(path=str(people.parent / "mine.txt"), root=str(people))
    return notes_on_pairs(found)


def test_sets_without_mistakes_have_no_notes(people: Path) -> None:
    assert notes(people, lines()) == []
    (drawn,) = drawn_pairs(path=str(people), pairs=60)
    assert notes_on_pairs(drawn) == []
    for made in synthetic_verification_sets(people=20, pairs=60, image_size=16):
        assert notes_on_pairs(made) == []


def test_an_image_paired_with_itself(people: Path) -> None:
    pairs = lines()
    pairs[4] = "person2/person2_0001.png person2/person2_0001.png 1"
    (note,) = notes(people, pairs)
    assert note == (
        "set mine: an image is paired with itself in pair 5, which any model gets right; take that "
        "out"
    )


def test_pairs_that_repeat_in_another_fold_in_either_order(people: Path) -> None:
    pairs = lines()
    pairs[18] = " ".join([*reversed(pairs[0].split()[:2]), "1"])
    (note,) = notes(people, pairs)
    assert note.startswith("set mine: two images are a pair of several folds in 2 pairs, first in ")
    # Within a fold it only weighs more.
    pairs = lines(40)
    pairs[2] = pairs[0]
    assert notes(people, pairs) == []


def test_pairs_that_contradict_each_other(people: Path) -> None:
    pairs = lines()
    one, other, _ = pairs[7].split()
    pairs[8] = f"{other} {one} 1"
    (note,) = notes(people, pairs)
    assert note == (
        "set mine: two images are called one person and two people in 2 pairs, first in pair 8; "
        "correct the list"
    )


def test_the_images_of_a_bin_are_known_by_their_bytes(tmp_path: Path) -> None:
    images = [b"image %d" % number for number in range(40)]
    images[6] = images[7]
    images[38], images[39] = images[1], images[0]
    same = [number % 2 == 0 for number in range(20)]
    write_bin(tmp_path / "own.bin", images, same)
    (found,) = bin_set(path=str(tmp_path / "own.bin"))
    with_itself, contradictory = notes_on_pairs(found)
    assert "paired with itself in pair 4" in with_itself
    assert "one person and two people in 2 pairs, first in pair 1" in contradictory


def test_a_set_has_a_name_that_can_be_printed_whatever_its_file_is_called(people: Path) -> None:
    odd = people.parent / os.fsdecode(b"l\xff")
    write_bin(odd.with_suffix(".bin"), map(str.encode, lines(40)), [True, False] * 10)
    odd.with_suffix(".txt").write_text("".join(f"{line}\n" for line in lines()))
    names = [f"person{number}" for number in range(10)]
    text = "".join(f"{name} 1 2\n{name} 1 person20 3\n" for name in names)
    odd.with_suffix(".lfw").write_text(text)
    found = [
        *bin_set(path=f"{odd}.bin"),
        *pair_list(path=f"{odd}.txt", root=str(people)),
        *lfw_pairs(path=f"{odd}.lfw", root=str(people)),
        *drawn_pairs(path=str(people.rename(odd)), pairs=60),
    ]
    assert [each.name for each in found] == ["l\\xff"] * 4


def test_people_of_the_training_data_by_name(people: Path, tmp_path: Path) -> None:
    names = [*(f"person{number}" for number in range(2)), *(f"new{number}" for number in range(20))]
    write_people(tmp_path / "lfw", names)
    text = "".join(f"{name} 1 2\n{name}\t1\t{names[-1]}\t3\n" for name in names[:-1])
    (tmp_path / "pairs.txt").write_text(text)
    (found,) = lfw_pairs(path=str(tmp_path / "pairs.txt"), root=str(tmp_path / "lfw"))
    noisy = NoisyLabels(ImageFolder(path=str(people)), rate=0.1, seed=0)
    (note,) = notes_on_people(noisy, [found])
    assert note.startswith(
        "set pairs: 2 of its 22 people have the names of people trained on (person0, person1); if"
    )
    # A .rec holds numbers; the names lie beside it.
    convert(people, tmp_path / "train.rec")
    (again,) = notes_on_people(RecordIO(path=str(tmp_path / "train.rec")), [found])
    assert again == note


def test_images_of_the_training_data(people: Path) -> None:
    source = ImageFolder(path=str(people))
    (drawn,) = drawn_pairs(path=f"{people}/../crops", pairs=60)
    (note,) = notes_on_people(source, [drawn])
    assert note.startswith("set crops: 120 of its 120 images are training images, so its accuracy")
    (people.parent / "mine.txt").write_text("".join(f"{line}\n" for line in lines()))
    (listed,) = pair_list(path=str(people.parent / "mine.txt"), root=str(people))
    assert "of its 30 images are training images" in notes_on_people(source, [listed])[0]


def test_numbers_of_two_data_sets_are_not_the_same_people(tmp_path: Path) -> None:
    numbers = [f"{number:03d}" for number in range(20)]
    source = ImageFolder(path=str(write_people(tmp_path / "train", numbers)))
    (drawn,) = drawn_pairs(path=str(write_people(tmp_path / "test", numbers)), pairs=60)
    assert notes_on_people(source, [drawn]) == []


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([(112, 112)] * 4, None),
        ([(112, 96)] * 4, None),
        ([(250, 250)] * 4, "they are 250×250, as LFW's photos are"),
        ([(40, 30), (50, 60), (50, 60), (80, 90)], "they have 3 sizes, such as 60×50 and"),
    ],
)
def test_images_that_look_unaligned(
    tmp_path: Path, sizes: list[tuple[int, int]], said: str | None
) -> None:
    for number, size in enumerate(sizes):
        write_image(tmp_path / f"person{number % 2}" / f"{number}.png", rgb=(0, 0, 0), size=size)
    source = ImageFolder(path=str(tmp_path))
    source.prepare()
    source.prepare()  # says it once
    if said is None:
        assert source.notes == ()
    else:
        (note,) = source.notes
        assert said in note
        assert "sphereface2 align" in note
    assert np.array_equal(source.labels, [0, 0, 1, 1])
