"""Small benchmarks are made once, whole or not at all, and all templates meet."""

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
import pytest

from sphereface2.data.sources.synthetic import render_sample
from sphereface2.evaluation.protocols.ijb_files import read_ijb
from sphereface2.evaluation.protocols.megaface import read_megaface
from sphereface2.evaluation.protocols.protocol import MADE, is_made
from sphereface2.experiments.paper import small_roots
from sphereface2.experiments.paper.small_roots import SMALL, SmallIjb, SmallMegaFace, small_root

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
    first = small_roots._FIRST_PROBE
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

    monkeypatch.setattr(small_roots, "render_ijb", never)
    assert small_root("ijb-b", folder, size=IJB) == root
    for protocol, size in (("ijb-b", replace(IJB, seed=4)), ("ijb-c", IJB)):
        with pytest.raises(AssertionError, match="rendered again"):
            small_root(protocol, folder, size=size)
    monkeypatch.setattr(small_roots, "renderer_version", lambda: "another")
    with pytest.raises(AssertionError, match="rendered again"):
        small_root("ijb-b", folder, size=IJB)


def test_what_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(root: Path, **_: object) -> None:
        (root / "meta").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(small_roots, "render_ijb", stopped)
    with pytest.raises(KeyboardInterrupt):
        small_root("ijb-b", tmp_path, size=IJB)
    assert list(tmp_path.iterdir()) == []


def test_whoever_is_second_takes_what_the_first_made(
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
