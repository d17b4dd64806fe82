"""Synthetic people: the same everywhere, a real task, and sets arranged as LFW's."""

from __future__ import annotations

import hashlib
import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.pairs.synthetic import synthetic_verification_sets
from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.sources import synthetic as images
from sphereface2.data.sources import synthetic as kept
from sphereface2.data.sources.source import PreparedImages, Source
from sphereface2.data.sources.synthetic import (
    FOLDER_VARIABLE,
    SyntheticFaces,
    SyntheticImages,
    render_sample,
    sample_conditions,
)
from sphereface2.rendering import renderer
from sphereface2.rendering.person import Setting, draw_conditions, draw_person
from sphereface2.rendering.renderer import render


@pytest.fixture(autouse=True)
def _rendered_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def sets() -> dict[str, VerificationSet]:
    return {s.name: s for s in synthetic_verification_sets(people=40, pairs=400, image_size=32)}


def images_of(verification_set: VerificationSet) -> SyntheticImages:
    assert isinstance(verification_set.images, SyntheticImages)
    return verification_set.images


def digest(picture: NDArray[np.uint8]) -> str:
    return hashlib.sha256(picture.tobytes()).hexdigest()


def test_a_picture_is_the_same_in_any_order() -> None:
    keys = [(0, 0), (5, 3), (0, 1), (70, 2), (5, 4)]
    forward = [digest(render_sample(*key)) for key in keys]
    backward = [digest(render_sample(*key)) for key in reversed(keys)]
    assert forward == backward[::-1]
    assert len(set(forward)) == len(keys)


def test_a_picture_is_the_same_in_any_thread() -> None:
    # Threads share what is cached of a person and of the scene; a picture must not draw on it.
    keys = [(identity, sample) for sample in range(3) for identity in range(6)]
    alone = [digest(render_sample(*key)) for key in keys]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda key: digest(render_sample(*key)), keys))
    assert together == alone


def test_a_picture_is_the_same_in_another_process_and_needs_no_torch() -> None:
    program = (
        "import hashlib, sys\n"
        "from sphereface2.data.sources.synthetic import render_sample\n"
        "print(hashlib.sha256(render_sample(12, 7, seed=3).tobytes()).hexdigest())\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == digest(render_sample(12, 7, seed=3))


def test_seed_person_and_sample_each_change_the_picture() -> None:
    base = render_sample(1, 1, seed=1)
    for other in (render_sample(1, 1, seed=2), render_sample(2, 1, seed=1), render_sample(1, 2)):
        assert not np.array_equal(base, other)


def test_source_keeps_the_protocol() -> None:
    source: Source = SyntheticFaces(
        people=4, images_per_person=3, image_size=40, seed=2, first_person=10
    )
    assert len(source) == 12
    assert source.num_classes == 4
    assert source.image_size == 40
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    picture, label = source[7]
    assert picture.shape == (40, 40, 3)
    assert picture.dtype == np.uint8
    assert label == 2
    assert np.array_equal(picture, render_sample(12, 1, image_size=40, seed=2))
    with pytest.raises(IndexError):
        source[12]


@pytest.mark.parametrize("workers", [1, 2])
def test_preparing_changes_nothing_but_the_speed(workers: int) -> None:
    on_demand = SyntheticFaces(people=3, images_per_person=2, image_size=32)
    prepared = SyntheticFaces(people=3, images_per_person=2, image_size=32)
    seen: list[tuple[int, int]] = []
    prepared.prepare(workers=workers, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 6), (4, 6), (6, 6)]
    for index in range(6):
        assert np.array_equal(prepared[index][0], on_demand[index][0])


def test_every_size_shows_the_same_content() -> None:
    full = render_sample(3, 3).astype(np.float32)
    half = render_sample(3, 3, image_size=56).astype(np.float32)
    means = full.reshape(56, 2, 56, 2, 3).mean(axis=(1, 3))
    assert np.abs(means - half).max() <= 1.0
    assert render_sample(3, 3, image_size=160).shape == (160, 160, 3)


def test_eyes_stand_where_alignment_puts_them() -> None:
    # Opening the eyes of a frontal face changes the picture around the template's eye points.
    rows, columns, weight = 0.0, np.zeros(2), 0.0
    for identity in range(8):
        person = draw_person(0, identity)
        frontal = replace(
            draw_conditions(person, 0, identity, 0), yaw=0, pitch=0, roll=0, shift_x=0, shift_y=0
        )
        frontal = replace(frontal, scale=1, blur=0, jpeg_quality=0, accessory="none")
        wide = render(person, replace(frontal, eye_opening=0.3)).astype(float)
        shut = render(person, replace(frontal, eye_opening=-0.9)).astype(float)
        change = np.abs(wide - shut).sum(axis=2)
        change[change < 30] = 0
        y, x = np.mgrid[0:112, 0:112]
        rows += float((change * y).sum())
        weight += float(change.sum())
        left = change * (x < 56)
        columns += [
            (left * x).sum() / left.sum(),
            ((change - left) * x).sum() / (change - left).sum(),
        ]
    assert rows / weight == pytest.approx(52, abs=3)
    assert columns / 8 == pytest.approx([38, 74], abs=3)


def test_people_differ_more_than_pictures_of_one_person_in_like_conditions() -> None:
    people = [draw_person(0, identity) for identity in range(12)]
    # One light and background for all; pose and expression differ a little.
    common = draw_conditions(people[0], 0, 0, 0)
    common = replace(common, accessory="none", hair_length=0.4, hair_dye=0, beard=0, age=35, blur=0)
    views = [replace(common, yaw=yaw, smile=smile) for yaw, smile in ((0, 0.0), (4, 0.4))]
    pictures = np.array(
        [[render(p, view)[20:100, 25:87].astype(float) for view in views] for p in people]
    )
    within = np.abs(pictures[:, 0] - pictures[:, 1]).mean()
    between = np.mean(
        [
            np.abs(pictures[i, 0] - pictures[j, 1]).mean()
            for i in range(12)
            for j in range(12)
            if i != j
        ]
    )
    assert within < 0.6 * between


def test_conditions_really_vary_and_do_not_tell_who_it_is() -> None:
    conditions = [sample_conditions(identity, k) for identity in range(30) for k in range(10)]
    yaw = np.array([c.yaw for c in conditions])
    light = np.array([c.light_azimuth for c in conditions])
    assert yaw.std() > 12
    assert light.std() > 25
    assert {c.accessory for c in conditions} >= {"none", "glasses", "hat"}
    for values in (yaw, light):
        means = values.reshape(30, 10).mean(axis=1)
        # Means over ten independent draws: the person explains none of the spread.
        assert means.std() < 2 * values.std() / np.sqrt(10)


def test_sets_are_named_after_the_paper_and_share_no_people(
    sets: dict[str, VerificationSet],
) -> None:
    assert list(sets) == ["plain", "age-30", "cross-age", "cross-pose"]
    seen: set[int] = set(range(1_000_000))
    for verification_set in sets.values():
        assert verification_set.people is not None
        people = set(verification_set.people.tolist())
        assert len(people) == 40
        assert not people & seen
        seen |= people


def test_pairs_and_folds(sets: dict[str, VerificationSet]) -> None:
    for s in sets.values():
        images: PreparedImages = s.images
        assert len(images) == 400
        assert s.people is not None
        assert s.pairs.shape == (400, 2)
        assert s.pairs.dtype == s.folds.dtype == np.int64
        unordered = {tuple(sorted(pair)) for pair in s.pairs.tolist()}
        assert len(unordered) == 400
        assert all(first != second for first, second in unordered)
        who = s.people[s.pairs]
        assert np.array_equal(who[:, 0] == who[:, 1], s.same)
        assert np.unique(s.folds).tolist() == list(range(10))
        for fold in range(10):
            chosen = s.folds == fold
            assert chosen.sum() == 40
            assert s.same[chosen].sum() == 20
            inside, outside = set(who[chosen].ravel()), set(who[~chosen].ravel())
            assert not inside & outside


def test_sets_are_drawn_from_their_seed() -> None:
    first, again = (synthetic_verification_sets(people=20, pairs=40, seed=5) for _ in range(2))
    other = synthetic_verification_sets(people=20, pairs=40, seed=6)
    for one, two, three in zip(first, again, other, strict=True):
        assert np.array_equal(one.pairs, two.pairs)
        assert not np.array_equal(one.pairs, three.pairs)


@pytest.mark.parametrize(("name", "least", "most"), [("age-30", 30, 62), ("cross-age", 12, 52)])
def test_age_gap(sets: dict[str, VerificationSet], name: str, least: float, most: float) -> None:
    images = images_of(sets[name])
    ages = np.array([images.conditions(i).age for i in range(len(images))])
    gaps = np.abs(np.diff(ages[sets[name].pairs], axis=1))[:, 0]
    assert gaps.min() >= least
    assert gaps.max() <= most
    same = sets[name].same
    assert gaps[same].mean() == pytest.approx(gaps[~same].mean(), rel=0.1)


def test_pose_gap(sets: dict[str, VerificationSet]) -> None:
    images = images_of(sets["cross-pose"])
    yaws = np.array([abs(images.conditions(i).yaw) for i in range(len(images))])
    first, second = yaws[sets["cross-pose"].pairs].T
    assert first.max() <= 12
    assert second.min() >= 50
    assert images[5].shape == (32, 32, 3)


def test_impostors_of_cross_age_look_alike(sets: dict[str, VerificationSet]) -> None:
    def mean_difference(s: VerificationSet) -> float:
        assert s.people is not None
        who = s.people[s.pairs[~s.same]]
        return float(
            np.mean([abs(draw_person(0, a).melanin - draw_person(0, b).melanin) for a, b in who])
        )

    # Four people a fold leave little choice, so this is a mild difference here.
    assert mean_difference(sets["cross-age"]) < mean_difference(sets["plain"]) + 0.02
    large = {s.name: s for s in synthetic_verification_sets(people=200, pairs=400)}
    assert mean_difference(large["cross-age"]) < 0.6 * mean_difference(large["plain"])


def test_raw_pixels_do_not_solve_it(sets: dict[str, VerificationSet]) -> None:
    plain = sets["plain"]
    raw = np.stack([plain.images[i].ravel() for i in range(len(plain.images))]).astype(float)
    for pixels in (raw, raw - raw.mean(axis=0)):
        rows = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
        scores = (rows[plain.pairs[:, 0]] * rows[plain.pairs[:, 1]]).sum(axis=1)
        # The best threshold on all pairs: an upper bound on what ten folds would give.
        best = max(((scores >= t) == plain.same).mean() for t in scores)
        assert best < 0.75


def test_setting_replaces_only_its_own_ranges() -> None:
    everyday = sample_conditions(8, 2)
    turned = sample_conditions(8, 2, setting=Setting(yaw=(50, 60)))
    assert 50 <= abs(turned.yaw) <= 60
    assert replace(turned, yaw=everyday.yaw) == everyday


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"people": 1}, "people must be at least 2, got 1"),
        ({"images_per_person": 0}, "images_per_person must be at least 1"),
        ({"image_size": 4}, "image_size must be at least 8"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"first_person": 999_900}, "kept for verification"),
    ],
)
def test_bad_options_of_the_source(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SyntheticFaces(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"people": 19}, "people must be at least 20"),
        ({"pairs": 50}, "multiple of 20"),
        ({"pairs": 0}, "multiple of 20"),
        ({"people": 20, "pairs": 2000}, "20 people give at most 1000 pairs"),
        ({"first_person": 10}, "people below are for training"),
        ({"seed": -2}, "seed must not be negative"),
        ({"image_size": 0}, "image_size must be at least 8"),
    ],
)
def test_bad_options_of_the_sets(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        synthetic_verification_sets(**options)


def faces(**changes: int) -> SyntheticFaces:
    options = {"people": 3, "images_per_person": 2, "image_size": 16, **changes}
    return SyntheticFaces(**options)


def all_pictures(source: SyntheticFaces) -> np.ndarray:
    source.prepare()
    return np.stack([source[index][0] for index in range(len(source))])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kept.FOLDER_VARIABLE, str(tmp_path / "rendered"))
    return tmp_path / "rendered"


def test_kept_pictures_are_those_that_are_rendered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = all_pictures(faces())
    monkeypatch.setattr(images, "render", lambda *_: pytest.fail("rendered again"))
    np.testing.assert_array_equal(all_pictures(faces()), first)
    monkeypatch.undo()
    monkeypatch.delenv(kept.FOLDER_VARIABLE, raising=False)
    np.testing.assert_array_equal(all_pictures(faces()), first)
    assert len(list(folder.glob("*.npy"))) == 1


def test_other_people_sizes_and_seeds_are_kept_apart(folder: Path) -> None:
    different = [faces(), faces(people=4), faces(image_size=24), faces(seed=1)]
    different.append(faces(first_person=5))
    for source in different:
        source.prepare()
    assert len(list(folder.glob("*.npy"))) == len(different)


def test_pictures_of_another_renderer_are_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces().prepare()
    monkeypatch.setattr(kept, "renderer_version", lambda: "another")
    faces().prepare()
    assert len(list(folder.glob("*.npy"))) == 2


def test_the_version_stands_for_the_code_that_draws() -> None:
    code = hashlib.sha256(cv2.__version__.encode())
    drawing = sorted(Path(renderer.__file__).parent.glob("*.py"))
    assert {"person.py", "renderer.py", "surface.py"} <= {path.name for path in drawing}
    for path in drawing:
        code.update(path.read_bytes())
    assert kept.renderer_version() == code.hexdigest()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"no array"])
def test_a_damaged_file_is_rendered_again(folder: Path, content: bytes) -> None:
    expected = all_pictures(faces())
    (path,) = folder.glob("*.npy")
    path.write_bytes(content)
    np.testing.assert_array_equal(all_pictures(faces()), expected)
    np.testing.assert_array_equal(np.load(path), expected)


def test_nothing_is_kept_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    faces().prepare()
    assert list(tmp_path.iterdir()) == []


def _prepare() -> None:
    faces().prepare()


def test_processes_at_once_leave_one_file(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_prepare) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(list(folder.glob("*.npy"))) == 1
    assert not list(folder.glob("*.unfinished"))
