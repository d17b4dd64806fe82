import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_curve as sklearn_roc

from benchmarks.generate.megaface import write_feature
from sphereface2.datatools.rendered_benchmarks import write_list
from sphereface2.evaluation.embedding_files import (
    gather_features,
    read_feature,
    strip_noise_column,
)
from sphereface2.evaluation.protocols.megaface import (
    CENTRED,
    MegaFaceResult,
    MegaFaceSet,
    megaface,
    noisy,
    read_megaface,
    read_noises,
)
from tests.evaluation.grid import grid_vectors


def features(
    root: Path, listed: MegaFaceSet, **options: Any
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """The tables of probes and distractors, and which distractors their files mark as noisy."""
    store = options.pop("store", root)
    kinds = {"facescrub": listed.probe_names, "megaface": listed.distractor_names}
    tables = {kind: store / f"{kind}.npy" for kind in kinds}
    for kind, names in kinds.items():
        if not tables[kind].is_file():
            gather_features(root / kind, names, tables[kind], **options)
    (probes, _), (distractors, marked) = (
        strip_noise_column(np.load(path)) for path in tables.values()
    )
    return probes, distractors, marked


Case = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.float32]]
FPRS = (1e-4, 1e-3, 1e-2, 0.2)


def _case(seed: int, *, ties: bool) -> Case:
    rng = np.random.default_rng(seed)
    people = rng.permutation(np.array([0] * 4 + [1] * 3 + [2] * 2 + [3]))
    if ties:
        return grid_vectors(10, rng), people, grid_vectors(300, rng)
    centres = rng.normal(size=(4, 6))
    probes = centres[people] + 0.7 * rng.normal(size=(10, 6))
    return probes.astype(np.float32), people, rng.normal(size=(300, 6)).astype(np.float32)


def _unit(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = table.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return wide


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_number_equals_a_brute_force_loop(
    seed: int, ties: bool, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.evaluation.search._BLOCK", 37)
    probes, people, distractors = _case(seed, ties=ties)
    noisy_probes = np.zeros(10, bool)
    noisy_distractors = np.zeros(300, bool)
    if clean:
        noisy_probes[[1, 5]] = True
        noisy_distractors[[3, 40, 41, 299]] = True
    result = megaface(
        probes, people, distractors, sizes=(10, 100, 300, 1_000), fpr_targets=FPRS, longest_rank=20,
        noisy_probes=noisy_probes, noisy_distractors=noisy_distractors,
    )  # fmt: skip
    unit, strangers = _unit(probes), _unit(distractors)
    genuine, impostors = [], []
    ahead: dict[int, list[int]] = {10: [], 100: [], 300: []}
    for p in np.flatnonzero(~noisy_probes):
        scores = [float(unit[p] @ d) for d in strangers]
        impostors += [s for s, bad in zip(scores, noisy_distractors, strict=True) if not bad]
        for g in np.flatnonzero(~noisy_probes):
            if g != p and people[g] == people[p]:
                own = float(unit[p] @ unit[g])
                genuine.append(own)
                for size, counts in ahead.items():
                    counts.append(
                        sum(s >= own for s, bad in
                            zip(scores[:size], noisy_distractors[:size], strict=True) if not bad)
                    )  # fmt: skip
    removed = [int(noisy_distractors[:size].sum()) for size in ahead]
    assert result.sizes == tuple(s - r for s, r in zip(ahead, removed, strict=True))
    for counts, measure in zip(ahead.values(), result.rank_1, strict=True):
        assert measure.rate.value == np.mean([count == 0 for count in counts])
        assert measure.rate.trials == len(genuine)
    for k, rate in enumerate(result.cmc, start=1):
        assert rate == pytest.approx(np.mean([count < k for count in ahead[300]]), abs=1e-12)
    assert len(result.cmc) == 20
    same = np.array([True] * len(genuine) + [False] * len(impostors))
    fpr, tpr, _ = sklearn_roc(same, np.array(genuine + impostors), drop_intermediate=False)
    for target, measure in zip(FPRS, result.tpr, strict=True):
        assert measure.at is not None
        assert measure.rate.value == tpr[fpr <= target].max()
        assert measure.at.impostors == len(impostors)
        assert measure.at.resolved == (target * len(impostors) >= 1)
    assert (result.roc.far[0], result.roc.tar[0]) == (0.0, 0.0)  # just above all scores
    for far, threshold in zip(result.roc.far[1:], result.roc.threshold[1:], strict=True):
        assert far == np.mean(np.array(impostors, np.float32) >= np.float32(threshold - 1e-6))


def test_noisy_probes_as_their_identitys_centre_flatter_the_result() -> None:
    probes, people, distractors = _case(1, ties=False)
    bad = np.zeros(10, bool)
    bad[np.flatnonzero(people == 0)[0]] = True
    probes[bad] = distractors[0]  # a stranger's image
    removed = megaface(probes, people, distractors, noisy_probes=bad)
    centred = megaface(probes, people, distractors, noisy_probes=bad, noisy_probes_are=CENTRED)
    assert removed.rank_1[-1].rate.trials < centred.rank_1[-1].rate.trials
    assert centred.rank_1[-1].rate.value > removed.rank_1[-1].rate.value
    assert f"noisy probes: {CENTRED}" in centred.conventions
    with pytest.raises(ValueError, match=r"1 people have noisy probes only.*\(3\)"):
        megaface(probes, people, distractors, noisy_probes=people == 3, noisy_probes_are=CENTRED)


def test_a_table_on_disk_gives_the_same_and_lives_as_json(tmp_path: Path) -> None:
    probes, people, distractors = _case(0, ties=False)
    np.save(tmp_path / "d.npy", distractors)
    reported: list[tuple[int, int]] = []
    result = megaface(
        probes, people, np.load(tmp_path / "d.npy", mmap_mode="r"),
        progress=lambda done, total: reported.append((done, total)),
    )  # fmt: skip
    assert result == megaface(probes, people, distractors)
    assert MegaFaceResult.from_json(result.to_json()) == result
    assert reported == [(10, 300), (100, 300), (300, 300)]
    assert result.rank_1[-1].name == "rank 1, 300 distractors"
    names = [measure.name for measure in result.measures]
    assert names[0].startswith("rank 1, 10 ")
    assert names[-1].endswith("=0.0001")
    assert len(set(names)) == len(names) == len(result.rank_1) + len(result.tpr)


def test_a_result_says_what_was_counted_and_shows_it() -> None:
    probes, people, distractors = _case(1, ties=False)
    bad_probes, bad_distractors = np.zeros(10, bool), np.zeros(300, bool)
    bad_probes[np.flatnonzero(people == 3)], bad_distractors[:12] = True, True
    plain = megaface(probes, people, distractors)
    assert (plain.probes, plain.people, plain.distractors) == (10, 4, 300)
    assert (plain.noisy_probes, plain.noisy_distractors) == (0, 0)
    assert plain.conventions[-2:] == ("noisy probes: none listed", "noisy distractors: none listed")
    assert len(plain.cmc) == 100
    assert [measure.name for measure in plain.tpr] == [f"TPR@FPR={t:g}" for t in (1e-6, 1e-5, 1e-4)]
    result = megaface(
        probes, people, distractors, sizes=(10, 100), fpr_targets=(0.01, 0.1),
        noisy_probes=bad_probes, noisy_distractors=bad_distractors,
    )  # fmt: skip
    assert (result.probes, result.people, result.distractors) == (9, 3, 288)
    assert (result.noisy_probes, result.noisy_distractors) == (1, 12)
    assert result.conventions[-2:] == (
        "noisy probes: removed",
        "noisy distractors: left out",
    )
    assert result.sizes == (88, 288)  # of the first ten none is left
    assert [m.name for m in result.rank_1] == [f"rank 1, {n} distractors" for n in (88, 288)]
    view = result.view()
    assert view.summary == "9 probes of 3 people, 288 distractors"
    (part,) = view.parts
    assert part.measures == result.rank_1 + result.tpr
    assert part.headline[0] == result.rank_1[-1]
    (roc,) = part.rocs
    assert (roc.genuine, roc.impostors) == (result.rank_1[0].rate.trials, 9 * 288)
    cmc, growth = part.curves
    assert list(cmc.y) == list(result.cmc)
    assert (growth.x_label, growth.y_label, growth.title) == (
        "distractors", "rank 1 (%)", "megaface",
    )  # fmt: skip
    assert list(growth.x) == [88, 288]
    assert growth.y == [measure.rate.value for measure in result.rank_1]
    assert growth.marks == list(zip((88, 288), result.rank_1, strict=True))
    (alone,) = megaface(probes, people, distractors, sizes=()).view().parts
    assert len(alone.curves) == 1


def test_bad_input_gets_a_sentence() -> None:
    probes, people, distractors = _case(0, ties=False)
    with pytest.raises(ValueError, match="probes have 6 dimensions and distractors 5"):
        megaface(probes, people, distractors[:, :5])
    with pytest.raises(ValueError, match="megaface probes: 10 embeddings for 9 images"):
        megaface(probes, people[:9], distractors)
    with pytest.raises(ValueError, match="a distractors"):
        megaface(probes, people, distractors[:0], name="a")
    with pytest.raises(ValueError, match="megaface probes: the mask of noisy ones must be 10 bool"):
        megaface(probes, people, distractors, noisy_probes=np.zeros(9, bool))
    with pytest.raises(ValueError, match="no person has two probe images"):
        megaface(probes, np.arange(10), distractors)
    with pytest.raises(ValueError, match="no distractor is left"):
        megaface(probes, people, distractors, noisy_distractors=np.ones(300, bool))
    with pytest.raises(ValueError, match="must be 300 bools"):
        megaface(probes, people, distractors, noisy_distractors=np.ones(3, bool))
    with pytest.raises(ValueError, match="noisy_probes_are must be"):
        megaface(probes, people, distractors, noisy_probes_are="kept")  # type: ignore[arg-type] # deliberately wrong
    distractors[[7, 9]] = 0
    with pytest.raises(ValueError, match=r"2 of 300 embeddings are zero.*\(number 7, 9\)"):
        megaface(probes, people, distractors)


def test_a_feature_file_is_four_integers_and_floats(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg_algo.bin"
    write_feature(path, np.array([1.5, -2.0], np.float32))
    assert path.read_bytes() == struct.pack("<4i2f", 2, 1, 4, 5, 1.5, -2.0)
    assert read_feature(path).tolist() == [1.5, -2.0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="should have 24 bytes for 2 dimensions but has 23"):
        read_feature(path)
    path.write_bytes(struct.pack("<4i2d", 2, 1, 8, 6, 1.5, -2.0))
    with pytest.raises(ValueError, match=r"its header is \(2, 1, 8, 6\)"):
        read_feature(path)
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match="it has 1 bytes"):
        read_feature(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_feature(tmp_path / "none.bin")


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    names = ["A_B/A_B_1.png", "A_B/A_B_2.png", "C/C_3.png"]
    strangers = [f"1/{i}@N00/{i}_0.jpg" for i in range(5)]
    write_list(
        tmp_path / "templatelists" / "facescrub_features_list.json",
        names,
        people=["A_B", "A_B", "C"],
    )
    write_list(tmp_path / "templatelists" / "megaface_features_list.json_5_1", strangers)
    (tmp_path / "fs.txt").write_text("# comment\nA_B_2.png\n")
    (tmp_path / "mf.txt").write_text(f"3\t{strangers[3]}\n")
    for kind, listed in (("facescrub", names), ("megaface", strangers)):
        for i, name in enumerate(listed):
            write_feature(tmp_path / kind / f"{name}_algo.bin", np.array([i + 1, 1, 0], np.float32))
    return tmp_path


def test_the_devkits_lists_and_folders_are_read(devkit: Path) -> None:
    listed = read_megaface(
        devkit, size=5, probe_noises=devkit / "fs.txt", distractor_noises=devkit / "mf.txt"
    )
    assert listed.people.tolist() == ["A_B", "A_B", "C"]
    assert listed.noisy_probes.tolist() == [False, True, False]
    assert listed.noisy_distractors.tolist() == [False, False, False, True, False]
    for _ in range(2):  # from the files, then from the gathered tables
        probes, distractors, marked = features(devkit, listed)
        assert distractors[:, 0].tolist() == [1, 2, 3, 4, 5]
        assert probes.shape == (3, 2)  # a last column of zeros alone is the clean-up script's
        assert not marked.any()
    with pytest.raises(FileNotFoundError, match=r"_7_1 does not exist; the folder's lists are"):
        read_megaface(devkit, size=7)
    path = devkit / "templatelists" / "facescrub_features_list.json"
    path.write_text(json.dumps({"path": ["x"], "id": ["a", "b"]}))
    with pytest.raises(ValueError, match="has 1 paths but 2 ids"):
        read_megaface(devkit, size=5)
    path.write_text(json.dumps(["x"]))
    with pytest.raises(ValueError, match="has no list 'path'"):
        read_megaface(devkit, size=5)
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_megaface(devkit, size=5)


def test_noise_marks_of_the_clean_up_script_are_understood() -> None:
    table = np.array([[1, 2, 0], [3, 4, 100], [5, 6, 0]], np.float32)
    stripped, marked = strip_noise_column(table)
    assert stripped.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert marked.tolist() == [False, True, False]
    assert strip_noise_column(table[:, :2])[0].shape == (3, 2)


def test_gathering_resumes_where_it_was_interrupted(
    devkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.evaluation.embedding_files._STORED", 2)
    listed = read_megaface(devkit, size=5)
    output = devkit / "out" / "megaface.npy"
    read: list[str] = []

    def reading(path: Path) -> npt.NDArray[np.float32]:
        read.append(path.name)
        if len(read) == 5:
            raise KeyboardInterrupt
        return read_feature(path)

    monkeypatch.setattr("sphereface2.evaluation.embedding_files.read_feature", reading)
    with pytest.raises(KeyboardInterrupt):
        gather_features(devkit / "megaface", listed.distractor_names, output)
    assert not output.exists()
    gather_features(devkit / "megaface", listed.distractor_names, output)
    assert np.load(output)[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert len(read) == 5 + 1 + 3  # the first again, for the width, then three that were left
    assert list(output.parent.iterdir()) == [output]


def test_a_disk_without_room_for_the_table_is_reported_before_anything_is_read(
    devkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    listed = read_megaface(devkit, size=5)
    with pytest.raises(OSError, match="no space left on device; nothing is gathered yet"):
        gather_features(devkit / "megaface", listed.distractor_names, devkit / "x.npy")
    assert not (devkit / "x.npy").exists()


def test_gathering_reports_how_far_it_is(devkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphereface2.evaluation.embedding_files._REPORTED", 2)
    seen: list[tuple[int, int]] = []
    features(
        devkit,
        read_megaface(devkit, size=5),
        store=devkit / "tables",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(2, 3), (3, 3), (2, 5), (4, 5), (5, 5)]
    assert sorted(path.name for path in (devkit / "tables").iterdir()) == [
        "facescrub.npy",
        "megaface.npy",
    ]


def test_features_that_are_missing_are_skipped_if_asked(devkit: Path) -> None:
    listed = read_megaface(devkit, size=5)
    (devkit / "megaface" / f"{listed.distractor_names[3]}_algo.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"has 1 bytes; --missing skip leaves such images out"):
        features(devkit, listed)
    (devkit / "megaface" / f"{listed.distractor_names[0]}_algo.bin").unlink()
    with pytest.raises(ValueError, match=r"should hold one feature file .* but has none"):
        features(devkit, listed)
    _, distractors, marked = features(devkit, listed, missing="skip")
    assert np.isnan(distractors).all(axis=1).tolist() == [True, False, False, True, False]
    assert distractors[[1, 2, 4], 0].tolist() == [2, 3, 5]
    assert not marked.any()


def test_features_of_another_width_are_named(devkit: Path) -> None:
    listed = read_megaface(devkit, size=5)
    wrong = devkit / "megaface" / f"{listed.distractor_names[2]}_algo.bin"
    write_feature(wrong, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"3 dimensions but at least 1 others have not \(1/2@N00"):
        gather_features(devkit / "megaface", listed.distractor_names, devkit / "x.npy")
    wrong.unlink()
    with pytest.raises(FileNotFoundError, match=r"2_0.jpg_algo.bin does not exist"):
        gather_features(devkit / "megaface", listed.distractor_names, devkit / "x.npy")
    with pytest.raises(ValueError, match="should hold one feature file"):
        gather_features(devkit / "megaface", ["nobody.jpg"], devkit / "x.npy")


def test_names_in_other_bytes_than_utf_8_are_read_and_gathered(devkit: Path) -> None:
    path = devkit / "templatelists" / "megaface_features_list.json_5_1"
    path.write_bytes(path.read_bytes().replace(b"/0_0.jpg", b"/\xeb.jpg"))
    folder = devkit / "megaface" / "1" / "0@N00"
    (folder / "0_0.jpg_algo.bin").rename(folder / os.fsdecode(b"\xeb.jpg_algo.bin"))
    listed = read_megaface(devkit, size=5)
    assert listed.distractor_names[0] == os.fsdecode(b"1/0@N00/\xeb.jpg")
    _, distractors, _ = features(devkit, listed)
    assert distractors[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_names_match_by_path_or_by_file(tmp_path: Path) -> None:
    assert noisy(["a/b.png", "c/d.png"], frozenset({"b.png"})).tolist() == [True, False]
    assert noisy([], frozenset({"b.png"})).dtype == np.bool_
    assert read_noises(None) == frozenset()
    (tmp_path / "noises.txt").write_bytes(b"Zo\xeb.png\n")
    assert read_noises(tmp_path / "noises.txt") == {os.fsdecode(b"Zo\xeb.png")}
    with pytest.raises(FileNotFoundError, match="should list the noisy images"):
        read_noises(tmp_path / "none.txt")
