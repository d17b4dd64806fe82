"""The doctor for data: duplicates, colours, alignment and counts, on pictures made here."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.image_list import ImageList
from sphereface2.datatools.inspect import (
    ERROR,
    GOOD,
    NOTE,
    SUSPICION,
    Inspection,
    findings,
    inspect_images,
)
from sphereface2.datatools.inspect.faces import (
    AlignmentCheck,
    FaceAverage,
    check_alignment,
    check_colours,
    detail,
    redness,
)
from sphereface2.datatools.inspect.images import (
    NEAR_IDENTICAL,
    SAME_BYTES,
    distance,
    examine,
    find_duplicates,
    linked,
    near_pairs,
    picture_hash,
)
from sphereface2.datatools.inspect.inspection import clean_list
from sphereface2.files import write_atomically
from tests.data.drawn_faces import Picture, face, save


def grey(picture: Picture) -> Picture:
    return cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.uint8)


def inspected(folder: Path, workers: int = 2) -> Inspection:
    source = ImageFolder(path=str(folder))
    return inspect_images(source, examine(source, workers=workers))[0]


def levels(inspection: Inspection) -> dict[str, str]:
    return {finding.subject: finding.level for finding in findings(inspection)}


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces")
    for number in range(40):
        save(folder / f"person{number % 8}" / f"{number:02}.jpg", face(number))
    return folder


# -- copies --------------------------------------------------------------------------------------


def random_hashes(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64)


def flipped(row: NDArray[np.uint64], bits: int, seed: int) -> NDArray[np.uint64]:
    unpacked = np.unpackbits(row.view(np.uint8))
    unpacked[np.random.default_rng(seed).choice(128, bits, replace=False)] ^= 1
    return np.packbits(unpacked).view(np.uint64)


def test_distance_counts_bits() -> None:
    left, right = random_hashes(50), random_hashes(50, seed=1)
    naive = [
        sum(bin(int(a) ^ int(b)).count("1") for a, b in zip(one, two, strict=True))
        for one, two in zip(left, right, strict=True)
    ]
    assert distance(left, right).tolist() == naive


def test_near_pairs_are_those_of_comparing_all_with_all() -> None:
    hashes = random_hashes(300)
    for number in range(60):
        hashes[299 - number] = flipped(hashes[number], bits=number % 15 + 1, seed=number)
    naive = [
        [i, j]
        for i in range(300)
        for j in range(i + 1, 300)
        if distance(hashes[i], hashes[j]) <= 12
    ]
    assert len(naive) == 48
    found = near_pairs(hashes).tolist()
    assert all(pair in naive for pair in found)
    assert len(found) >= 47  # one in a hundred may be missed


def test_linked_pairs_are_groups() -> None:
    groups = linked(np.array([[4, 7], [7, 2], [9, 11]]))
    assert sorted(group.tolist() for group in groups) == [[2, 4, 7], [9, 11]]
    assert linked(np.empty((0, 2), np.int64)) == []


def test_a_picture_saved_again_keeps_its_hash_and_another_does_not() -> None:
    picture = face(3)
    for other in (
        cv2.imdecode(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 50])[1], 1),
        cv2.resize(picture, (80, 80), interpolation=cv2.INTER_AREA),
        cv2.convertScaleAbs(picture, alpha=0.8, beta=15),
    ):
        same = np.asarray(other, np.uint8)
        assert distance(picture_hash(grey(picture)), picture_hash(grey(same))) <= 12
    others = [distance(picture_hash(grey(picture)), picture_hash(grey(face(n)))) for n in range(9)]
    assert sorted(others)[1] > 12
    assert not picture_hash(np.full((50, 50), 77, np.uint8)).any()


def test_copies_within_and_across_people(faces: Path, tmp_path: Path) -> None:
    for number in range(12):
        save(tmp_path / f"p{number % 4}" / f"{number:02}.jpg", face(number))
    original = (tmp_path / "p0" / "00.jpg").read_bytes()
    (tmp_path / "p0" / "copy.jpg").write_bytes(original)
    (tmp_path / "p1" / "stolen.jpg").write_bytes(original)
    save(tmp_path / "p2" / "again.jpg", face(6), quality=40)
    source = ImageFolder(path=str(tmp_path))
    facts = examine(source)
    groups = find_duplicates(source, facts)
    named = {(g.kind, g.across_people): {source.name(i) for i in g.images} for g in groups}
    assert named == {
        (SAME_BYTES, True): {"p0/00.jpg", "p0/copy.jpg", "p1/stolen.jpg"},
        (NEAR_IDENTICAL, False): {"p2/06.jpg", "p2/again.jpg"},
    }
    inspection, _ = inspect_images(source, facts)
    assert inspection.copies(SAME_BYTES).surplus_images == 2
    assert inspection.copies(SAME_BYTES).across_people == 1
    assert inspection.copies(NEAR_IDENTICAL).groups == 1
    assert levels(inspection)["Copies"] == ERROR
    assert levels(inspected(faces))["Copies"] == GOOD


# -- colour --------------------------------------------------------------------------------------


def test_redness_is_the_mean_over_the_middle() -> None:
    picture = face(1)
    middle = picture[40:89, 30:81].astype(float)
    assert redness(picture) == pytest.approx(float((middle[..., 0] - middle[..., 2]).mean()))
    assert redness(picture[..., ::-1].copy()) == pytest.approx(-redness(picture))
    assert np.isnan(redness(np.repeat(grey(picture)[..., None], 3, axis=2)))


def test_swapped_channels_are_suspected() -> None:
    right = np.array([redness(face(n)) for n in range(40)], np.float32)
    labels, people = np.arange(40) // 4, [f"p{n}" for n in range(10)]
    assert check_colours(right, labels, people).verdict == "right"
    assert check_colours(-right, labels, people).verdict == "swapped"
    mixed = np.where(labels == 7, -right, right)
    check = check_colours(mixed, labels, people)
    assert (check.verdict, check.blue_people) == ("partly swapped", ("p7",))
    assert check_colours(right[:10], labels[:10], people).verdict == "not judged"
    all_grey = check_colours(np.full(40, np.nan, np.float32), labels, people)
    assert (all_grey.verdict, all_grey.grey_images, all_grey.blue_share) == ("not judged", 40, 0)


# -- alignment -----------------------------------------------------------------------------------


def average_of(pictures: list[Picture]) -> FaceAverage:
    whole = FaceAverage()
    for start in range(0, len(pictures), 7):
        part = FaceAverage()
        for picture in pictures[start : start + 7]:
            part.add(picture, grey(picture))
        whole.merge(part)
    return whole


def test_average_and_agreement_are_those_of_plain_loops() -> None:
    pictures = [face(n) for n in range(9)]
    average = average_of(pictures)
    assert average.count == 9
    np.testing.assert_allclose(average.picture(), np.mean(pictures, axis=0), atol=0.51)
    rows, columns = np.mgrid[:56, :56]
    window = np.exp(-(((columns - 27.5) / 17) ** 4) - ((rows - 33) / 20) ** 4)
    seen = [detail(grey(picture)) * window for picture in pictures]
    correlations = [
        float((seen[i] * seen[j]).sum() / np.linalg.norm(seen[i]) / np.linalg.norm(seen[j]))
        for i in range(9)
        for j in range(9)
        if i != j
    ]
    assert average.agreement() == pytest.approx(np.mean(correlations), abs=1e-5)
    assert FaceAverage().agreement() == 0
    blank = np.zeros((112, 112, 3), np.uint8)
    assert average_of([blank, blank]).agreement() == 0


def checked(**moved: float) -> AlignmentCheck:
    return check_alignment(average_of([face(n, **moved) for n in range(30)]))


def test_aligned_faces_are_found_at_their_place() -> None:
    check = checked()
    assert check.verdict == "aligned"
    assert check.displacement < 3


@pytest.mark.parametrize(
    ("moved", "right", "down", "scale"),
    [
        ({"right": 10}, 10, 0, 1),
        ({"down": -10}, 0, -10, 1),
        ({"scale": 0.75}, 0, -3, 0.75),
    ],
)
def test_displaced_faces_are_measured(
    moved: dict[str, float], right: float, down: float, scale: float
) -> None:
    check = checked(**moved)
    assert check.verdict == "displaced"
    assert check.right == pytest.approx(right, abs=1)
    assert check.down == pytest.approx(down, abs=1)
    assert check.scale == pytest.approx(scale, abs=0.1)


def test_scattered_faces_are_suspected() -> None:
    generator = np.random.default_rng(0)
    pictures = [
        face(n, right=generator.normal(0, 14), down=generator.normal(0, 14)) for n in range(40)
    ]
    assert check_alignment(average_of(pictures)).verdict == "scattered"
    assert check_alignment(average_of(pictures[:10])).verdict == "not judged"


# -- the whole -----------------------------------------------------------------------------------


def test_sound_data_has_nothing_wrong(faces: Path) -> None:
    inspection = inspected(faces)
    assert set(levels(inspection).values()) == {GOOD}
    assert (inspection.images, inspection.readable) == (40, 40)
    people = inspection.people
    assert (people.people, people.fewest, people.median, people.most) == (8, 5, 5, 5)
    assert sum(people.counts) == 8


def test_the_number_of_threads_changes_nothing(faces: Path) -> None:
    source = ImageFolder(path=str(faces))
    steps: list[tuple[int, int]] = []
    one = examine(source, workers=1, progress=lambda done, total: steps.append((done, total)))
    many = examine(source, workers=4)
    np.testing.assert_array_equal(one.picture, many.picture)
    np.testing.assert_array_equal(one.average.picture(), many.average.picture())
    assert one.average.agreement() == many.average.agreement()
    assert steps[-1] == (40, 40)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        examine(source, workers=0)


def test_unreadable_single_and_odd_sized_images(tmp_path: Path) -> None:
    for number in range(6):
        save(tmp_path / "a" / f"{number}.jpg", face(number))
    save(tmp_path / "b" / "only.jpg", face(7)[:, :90].copy())
    (tmp_path / "a" / "empty.jpg").touch()
    (tmp_path / "a" / "text.jpg").write_text("not an image")
    whole = (tmp_path / "a" / "0.jpg").read_bytes()
    (tmp_path / "a" / "cut.jpg").write_bytes(whole[:-200])
    inspection = inspected(tmp_path)
    assert (inspection.images, inspection.readable) == (10, 7)
    assert {Path(bad.location).name for bad in inspection.unreadable} == {
        "empty.jpg",
        "text.jpg",
        "cut.jpg",
    }
    assert inspection.people.single_names == ("b",)
    assert {(s.width, s.height): s.images for s in inspection.sizes} == {
        (112, 112): 6,
        (90, 112): 1,
    }
    found = levels(inspection)
    assert (found["Files"], found["People"], found["Sizes"]) == (ERROR, NOTE, SUSPICION)
    assert found["Alignment"] == NOTE


def test_only_unreadable_images_are_a_mistake_of_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").touch()
    with pytest.raises(ValueError, match=r"none of the 1 images of .* because it is empty"):
        inspected(tmp_path)


def test_one_person_alone_is_suspicious(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "only" / f"{number}.jpg", face(number))
    assert levels(inspected(tmp_path))["People"] == SUSPICION


def test_a_clean_list_is_read_by_the_list_source(faces: Path, tmp_path: Path) -> None:
    source = ImageFolder(path=str(faces))
    kept = [number for number in range(len(source)) if number % 3]
    write_atomically(tmp_path / "clean.txt", clean_list(source, kept))
    again = ImageList(path=str(tmp_path / "clean.txt"), root=str(faces))
    assert len(again) == len(kept)
    assert [again.person(i) for i in range(len(kept))] == [source.person(i) for i in kept]
    assert again.encoded(0) == source.encoded(kept[0])
    write_atomically(tmp_path / "less.txt", clean_list(again, [0, 2], root=faces))
    less = ImageList(path=str(tmp_path / "less.txt"), root=str(faces))
    assert [less.location(i) for i in range(2)] == [again.location(0), again.location(2)]
