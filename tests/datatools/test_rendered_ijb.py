"""The small IJB of rendered people: readable, restored by its points, the same every time."""

from pathlib import Path

import numpy as np
import pytest

from sphereface2.data.sources.image_list import AlignedFiles
from sphereface2.data.sources.synthetic import render_sample, sample_conditions
from sphereface2.datatools.rendered_ijb import _FIRST_PERSON, render_ijb
from sphereface2.evaluation.protocols.ijb_files import IjbSet, image_folder, read_ijb

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
    from sphereface2.datatools.rendered_ijb import _shots

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
