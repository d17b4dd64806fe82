"""Rendered benchmarks: readable, restored by their points, the same every time, made once."""

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
import pytest

from sphereface2.data.sources.image_list import AlignedFiles
from sphereface2.data.sources.synthetic import render_sample, sample_conditions
from sphereface2.datatools import rendered_benchmarks
from sphereface2.datatools.rendered_benchmarks import (
    _FIRST_PERSON,
    SMALL,
    SmallIjb,
    SmallMegaFace,
    render_ijb,
    small_root,
)
from sphereface2.evaluation.protocols.ijb_files import IjbSet, image_folder, read_ijb
from sphereface2.evaluation.protocols.megaface import read_megaface
from sphereface2.evaluation.protocols.protocol import MADE, is_made

PEOPLE = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small") / "ijb"
    reported: list[tuple[int, int]] = []
    images = render_ijb(root, people=PEOPLE, progress=lambda *state: reported.append(state))
    assert reported[-1] == (images, images)
    return root


@pytest.fixture(scope="module")
def ijb(root: Path) -> IjbSet:
    return read_ijb(root, name="ijb-c")


def test_it_has_what_the_protocol_asks(ijb: IjbSet) -> None:
    assert ijb.probes is not None
    assert len(set(ijb.templates.tolist())) == 4 * PEOPLE
    assert [part.name for part in ijb.galleries] == ["G1", "G2"]
    enrolled = [set(part.people.tolist()) for part in ijb.galleries]
    assert not enrolled[0] & enrolled[1]  # each is non-mated for the other
    assert set(ijb.probes.people.tolist()) == enrolled[0] | enrolled[1] == set(range(1, 5))
    person = dict(zip(ijb.probes.templates.tolist(), ijb.probes.people.tolist(), strict=True))
    for part in ijb.galleries:
        person |= dict(zip(part.templates.tolist(), part.people.tolist(), strict=True))
    same = [person[left] == person[right] for left, right in ijb.pairs.tolist()]
    assert same == ijb.same.tolist()
    assert len(ijb.same) == PEOPLE * 3 * PEOPLE
    assert np.all((ijb.detector_scores > 0.4) & (ijb.detector_scores < 1))


def test_a_video_is_one_media_of_several_frames(ijb: IjbSet) -> None:
    counts = np.bincount(ijb.media)[1:]
    assert set(counts.tolist()) <= {1, 2, 3, 4}
    assert np.count_nonzero(counts > 1) == 2 * PEOPLE
    for media in np.flatnonzero(counts) + 1:
        assert len(set(ijb.templates[ijb.media == media].tolist())) == 1


def test_the_points_restore_the_rendered_face(root: Path, ijb: IjbSet) -> None:
    faces = AlignedFiles(image_folder(root), ijb.image_names, ijb.landmarks)
    faces.prepare(workers=1)
    for person in range(2):
        # The first image of a person is the still of sample 0.
        first = int(np.flatnonzero(ijb.templates == person + 1)[0])
        rendered = render_sample(_FIRST_PERSON + person, 0)
        off = np.abs(faces[first].astype(float) - rendered)[8:-8, 8:-8].mean()
        other = np.abs(faces[first].astype(float) - faces[first + 1])[8:-8, 8:-8].mean()
        assert off < 5 < other


def test_frames_share_light_and_age(ijb: IjbSet, root: Path) -> None:
    from sphereface2.datatools.rendered_benchmarks import _shots

    shots = list(_shots(PEOPLE, 0))
    assert [shot.media for shot in shots] == ijb.media.tolist()
    for media in range(1, shots[-1].media + 1):
        seen = [shot.conditions for shot in shots if shot.media == media]
        assert len({(each.age, each.light_azimuth, each.nuisance_seed) for each in seen}) == 1
        if len(seen) > 1:
            assert len({each.yaw for each in seen}) > 1
            assert np.ptp([each.yaw for each in seen]) < 40
    assert shots[0].conditions == sample_conditions(_FIRST_PERSON, 0)


def test_the_same_seed_writes_the_same_files(root: Path, tmp_path: Path) -> None:
    render_ijb(tmp_path / "again", people=PEOPLE)
    for path in sorted(root.rglob("*.*")):
        again = tmp_path / "again" / path.relative_to(root)
        assert again.read_bytes() == path.read_bytes(), path
    with pytest.raises(ValueError, match="people must be at least 4, got 2"):
        render_ijb(tmp_path / "few", people=2)


# -- benchmarks that are made once ----------------------------------------------------------------

IJB = SmallIjb(people=4, seed=3)
MEGA = SmallMegaFace(people=2, images=3, strangers=3, stranger_images=2, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


def test_every_template_is_compared_with_every_other(folder: Path) -> None:
    ijb = read_ijb(small_root("ijb-b", folder, size=IJB), name="ijb-b")
    assert ijb.probes is not None
    person = {
        int(template): int(who)
        for part in (*ijb.galleries, ijb.probes)
        for template, who in zip(part.templates, part.people, strict=True)
    }
    assert len(person) == 4 * 4
    wanted = {
        frozenset((left, right)): person[left] == person[right]
        for left in person
        for right in person
        if left != right
    }
    found = {
        frozenset(map(int, pair)): bool(same)
        for pair, same in zip(ijb.pairs, ijb.same, strict=True)
    }
    assert found == wanted
    assert len(ijb.pairs) == len(wanted)
    assert {int(template) for template in ijb.templates} == set(person)


def test_megaface_has_crops_for_its_lists_and_no_noise(folder: Path) -> None:
    root = small_root("megaface", folder, size=MEGA, workers=1)
    listed = read_megaface(
        root,
        size=6,
        probe_noises=root / "facescrub_noises.txt",
        distractor_noises=root / "megaface_noises.txt",
    )
    assert np.unique(listed.people, return_counts=True)[1].tolist() == [3, 3]
    assert not listed.noisy_probes.any()
    assert not listed.noisy_distractors.any()
    assert len(set(listed.distractor_names)) == 6
    for kind, names in (("facescrub", listed.probe_names), ("megaface", listed.distractor_names)):
        for name in names:
            assert (root / kind / name).is_file()
    picture = cv2.imread(str(root / "facescrub" / listed.probe_names[4]))
    assert picture is not None
    first = rendered_benchmarks._FIRST_PROBE
    wanted = render_sample(first + 1, 1, seed=3).astype(np.float64)
    others = render_sample(first, 1, seed=3).astype(np.float64)
    error, apart = (np.abs(picture[:, :, ::-1] - image).mean() for image in (wanted, others))
    assert error < 8 < 16 < apart  # JPEG loses a little


def test_is_made_once_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_root("ijb-b", folder, size=IJB)
    assert is_made(root)
    assert json.loads((root / MADE).read_text())["people"] == 4

    def never(*_: object, **__: object) -> None:
        raise AssertionError("rendered again")

    monkeypatch.setattr(rendered_benchmarks, "render_ijb", never)
    assert small_root("ijb-b", folder, size=IJB) == root
    for protocol, size in (("ijb-b", replace(IJB, seed=4)), ("ijb-c", IJB)):
        with pytest.raises(AssertionError, match="rendered again"):
            small_root(protocol, folder, size=size)
    monkeypatch.setattr(rendered_benchmarks, "renderer_version", lambda: "another")
    with pytest.raises(AssertionError, match="rendered again"):
        small_root("ijb-b", folder, size=IJB)


def test_what_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(root: Path, **_: object) -> None:
        (root / "meta").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(rendered_benchmarks, "render_ijb", stopped)
    with pytest.raises(KeyboardInterrupt):
        small_root("ijb-b", tmp_path, size=IJB)
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_takes_what_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = SmallIjb.make
    making: list[Path] = []
    found: list[Path] = []
    second = Thread(target=lambda: found.append(small_root("ijb-b", tmp_path, size=IJB)))

    def overtaken(self: SmallIjb, root: Path, **options: object) -> None:
        making.append(root)
        if len(making) == 1:
            second.start()
        make(self, root, **options)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(SmallIjb, "make", overtaken)
    first = small_root("ijb-b", tmp_path, size=IJB)
    second.join(timeout=120)
    assert found == [first]
    assert len(making) == 1
    assert list(tmp_path.iterdir()) == [first]


def test_mistakes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown protocol 'ijb'; did you mean 'ijb-"):
        small_root("ijb", tmp_path)
    with pytest.raises(ValueError, match="size of another protocol"):
        small_root("megaface", tmp_path, size=IJB)


def test_the_sizes_resolve_the_papers_lowest_rates() -> None:
    for name, target in (("ijb-b", 1e-5), ("ijb-c", 1e-5)):
        size = SMALL[name]
        assert isinstance(size, SmallIjb)
        templates = 4 * size.people
        impostors = templates * (templates - 1) // 2 - 6 * size.people
        assert impostors * target >= 3
    mega = SMALL["megaface"]
    assert isinstance(mega, SmallMegaFace)
    assert mega.people * mega.images * mega.strangers * mega.stranger_images * 1e-6 >= 3
