"""Benchmarks of generated embeddings: of the official sizes, and scoring what they must."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta
from typer.testing import CliRunner

from benchmarks.generate.__main__ import main
from benchmarks.generate.ijb import EMBEDDINGS, IJBB, IJBC, IjbSizes, generate_ijb
from benchmarks.generate.megaface import MEGAFACE, generate_megaface
from benchmarks.generate.truth import (
    SphereCosine,
    first_among,
    genuine_scores,
    read_truth,
)
from sphereface2.cli import app
from sphereface2.evaluation.protocols.ijb import evaluate_ijb
from sphereface2.evaluation.protocols.ijb_files import read_ijb
from sphereface2.evaluation.protocols.megaface import megaface, read_megaface
from sphereface2.evaluation.protocols.protocol import TRUTH
from sphereface2.evaluation.thresholds import Measure
from tests.evaluation.test_megaface import features


@pytest.mark.parametrize("dim", [3, 16, 512])
def test_the_law_of_cosines_on_the_sphere(dim: int) -> None:
    """(1 + cos) / 2 of two random directions is Beta((D-1)/2, (D-1)/2)."""
    law, exact = SphereCosine(dim), beta((dim - 1) / 2, (dim - 1) / 2)
    scores = np.array([-0.1, 0.0, 0.05, 0.15, 0.2])
    np.testing.assert_allclose(law.above(scores), exact.sf((1 + scores) / 2), rtol=2e-3)
    for chance in (1e-6, 1e-3, 0.1, 0.9):
        assert law.threshold(chance) == pytest.approx(2 * exact.isf(chance) - 1, abs=1e-4)


def test_genuine_scores_follow_the_vectors_they_stand_for() -> None:
    rng = np.random.default_rng(0)
    dim, count = 12, 40_000
    noise = np.array([0.5, 2.0])
    person = np.zeros(dim)
    person[0] = 1.0
    left, right = (person + rng.normal(0, np.sqrt(each / dim), (count, dim)) for each in noise)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    real = np.sort(np.sum(left * right, axis=1) / norms)
    drawn = np.sort(
        genuine_scores(np.full(count, noise[0]), np.full(count, noise[1]), dim=dim, rng=rng)
    )
    levels = np.linspace(0.05, 0.95, 30)
    np.testing.assert_allclose(np.quantile(drawn, levels), np.quantile(real, levels), atol=0.012)


def test_being_first_among_strangers() -> None:
    law = SphereCosine(8)
    scores = np.array([0.5, 0.9])
    expected = (1 - law.above(scores)) ** 20
    assert first_among(scores, law, 20) == pytest.approx(expected.mean())
    assert first_among(scores, law, 20, at_least=0.6) == pytest.approx(expected[1] / 2)


def test_the_sizes_are_those_of_the_benchmarks() -> None:
    assert IJBC.people == 3_531
    assert IJBB.galleries == (("S1", 931), ("S2", 914))
    assert (IJBB.images, IJBB.genuine, IJBB.impostors) == (227_630, 10_270, 8_000_000)
    assert IJBC.galleries == (("G1", 1_772), ("G2", 1_759))
    assert (IJBC.images, IJBC.genuine, IJBC.impostors) == (469_375, 19_557, 15_638_932)
    assert IJBC.people + IJBC.probes == 23_124
    assert IJBB.people + IJBB.probes == 12_115
    assert (MEGAFACE.people, MEGAFACE.probes, MEGAFACE.distractors) == (530, 3_530, 1_000_000)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ijb", "megaface"):
        monkeypatch.setattr(f"benchmarks.generate.{module}.DRAWS", 50_000)


def _agrees(measure: Measure, expected: float, *, slack: float = 0.03) -> bool:
    interval = measure.rate.interval
    return interval.low - slack <= expected <= interval.high + slack


@pytest.mark.parametrize("sizes", [IJBB, IJBC])
def test_a_small_ijb_scores_what_it_must(tmp_path: Path, sizes: IjbSizes) -> None:
    truth = generate_ijb(tmp_path, sizes=sizes, scale=0.02, dim=64, seed=1)
    assert read_truth(tmp_path) == truth
    small = sizes.scaled(0.02)
    ijb = read_ijb(tmp_path)
    images = np.load(tmp_path / "embeddings.npy", mmap_mode="r")
    assert len(ijb) == len(images) == small.images
    assert len(np.unique(ijb.templates)) == small.people + small.probes
    assert int(ijb.same.sum()) == small.genuine
    assert int((~ijb.same).sum()) == small.impostors
    result = evaluate_ijb(ijb, images)
    assert result.verification is not None
    assert result.standard is not None
    assert result.legacy is not None
    for far in ("0.01", "0.1"):
        name = f"TAR@FAR={far}"
        measure = next(m for m in result.verification.tar_at_far if m.name == name)
        assert _agrees(measure, truth.expected[name])
    for kind, part in (("standard", result.standard), ("legacy", result.legacy)):
        assert _agrees(part.ranks[0], truth.expected[f"{kind} rank 1"])
        name = "legacy TPIR@FPIR=0.1" if kind == "legacy" else "standard TPIR@FPIR=0.1"
        assert _agrees(part.tpir[1], truth.expected[name])


@pytest.mark.parametrize("feature_files", [False, True])
def test_a_small_megaface_scores_what_it_must(tmp_path: Path, feature_files: bool) -> None:
    scale = 0.0005 if feature_files else 0.02
    truth = generate_megaface(tmp_path, scale=scale, dim=64, seed=1, feature_files=feature_files)
    small = MEGAFACE.scaled(scale)
    listed = read_megaface(
        tmp_path, size=small.distractors, probe_noises=tmp_path / "facescrub_noises.txt",
        distractor_noises=tmp_path / "megaface_noises.txt",
    )  # fmt: skip
    assert int(listed.noisy_probes.sum()) == small.noisy_probes
    assert int(listed.noisy_distractors.sum()) == small.noisy_distractors
    probes, distractors, _ = features(tmp_path, listed)
    assert distractors.shape == (small.distractors, 64)
    result = megaface(
        probes, listed.people, distractors, noisy_probes=listed.noisy_probes,
        noisy_distractors=listed.noisy_distractors,
    )  # fmt: skip
    if not feature_files:  # a handful of people says nothing about a rate
        assert _agrees(result.rank_1[-1], truth.expected["rank 1"])
        assert _agrees(result.tpr[-1], truth.expected["TPR@FPR=0.0001"])
        assert _agrees(result.rank_1[1], truth.expected["rank 1, first 100"])
        dirty = megaface(probes, listed.people, distractors)
        assert dirty.rank_1[-1].rate.value < result.rank_1[-1].rate.value


def test_smaller_sets_keep_their_shares_and_never_run_out_of_anybody() -> None:
    assert MEGAFACE.scaled(1.0) == MEGAFACE
    half = MEGAFACE.scaled(0.5)
    assert (half.people, half.probes, half.distractors) == (265, 1765, 500_000)
    assert (half.noisy_probes, half.noisy_distractors) == (12, 343)
    least = MEGAFACE.scaled(1e-6)
    assert (least.people, least.probes, least.distractors) == (8, 32, 100)
    assert (least.noisy_probes, least.noisy_distractors) == (2, 2)
    assert IJBB.scaled(1.0) == IJBB
    tenth = IJBB.scaled(0.1)
    assert tenth.galleries == (("S1", 93), ("S2", 91))
    assert (tenth.images, tenth.probes, tenth.genuine) == (22_763, 1_027, 1_027)
    assert tenth.impostors == 80_000  # pairs: they shrink with the square
    few = IJBB.scaled(1e-6)
    assert few.galleries == (("S1", 4), ("S2", 4))
    assert (few.images, few.probes, few.genuine, few.impostors) == (48, 16, 8, 100)


# What this seed and scale gave when the files were first written down.
IJB_FILES = {
    "ijbc_1N_gallery_G1.csv": "4414e785",
    "ijbc_1N_gallery_G2.csv": "28e5dee0",
    "ijbc_1N_probe_mixed.csv": "8d66e82a",
    "ijbc_face_tid_mid.txt": "729e0532",
    "ijbc_name_5pts_score.txt": "350f07f1",
    "ijbc_template_pair_label.txt": "2f9c145f",
}
IJB_EMBEDDINGS = [939.0, 8.0, -0.5460994, 0.6472788, 1.670653]
IJB_TRUTH = {
    "TAR@FAR=1e-06": 1.998521e-05,
    "TAR@FAR=1e-05": 0.0002198373,
    "TAR@FAR=0.0001": 0.001478906,
    "TAR@FAR=0.001": 0.01089194,
    "TAR@FAR=0.01": 0.07818215,
    "TAR@FAR=0.1": 0.3979255,
    "standard rank 1": 0.5593016,
    "standard TPIR@FPIR=0.01": 0.02399653,
    "standard TPIR@FPIR=0.1": 0.152909,
    "legacy rank 1": 0.3915213,
    "legacy TPIR@FPIR=0.01": 0.0344545,
    "legacy TPIR@FPIR=0.1": 0.1051622,
}
IJB_ACCEPTED = 0.487839
MEGAFACE_FILES = {
    "facescrub_noises.txt": "26093b97",
    "megaface_noises.txt": "231012a3",
    "facescrub_features_list.json": "22b4f487",
    "megaface_features_list.json_1000_1": "dce84dd8",
}
MEGAFACE_PROBES = [32.0, 8.0, -0.5372573, 0.1745536, 0.5141928]
MEGAFACE_DISTRACTORS = [1000.0, 8.0, -0.2119961, -0.2926501, 0.2841675]
MEGAFACE_TRUTH = {
    "TPR@FPR=1e-06": 0.0,
    "TPR@FPR=1e-05": 5.998081e-05,
    "TPR@FPR=0.0001": 0.0008597249,
    "rank 1": 0.007808271,
    "rank 1, first 10": 0.2960772,
    "rank 1, first 100": 0.05830754,
}
DRAWN = [0.553807406998, 0.790027900215, 0.575143996141]


def digests(root: Path) -> dict[str, str]:
    """Of the lists, which are text: the same on every machine."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in (TRUTH, "facescrub.npy", "megaface.npy", EMBEDDINGS)
    }


def summary(path: Path) -> list[float]:
    table = np.load(path)
    return [*table.shape, float(table[0, 0]), float(table[-1, -1]), float(np.abs(table).mean())]


def test_a_seed_names_one_ijb_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever generates it gets the same files and the same truth."""
    monkeypatch.setattr("benchmarks.generate.ijb._LINES", 64)
    monkeypatch.setattr("benchmarks.generate.truth._BLOCK", 1000)
    reported: list[tuple[int, int]] = []
    truth = generate_ijb(
        tmp_path, sizes=IJBC, scale=0.002, dim=8, seed=3,
        progress=lambda done, total: reported.append((done, total)),
    )  # fmt: skip
    assert reported == [*((done, 939) for done in range(125, 939, 125)), (939, 939)]
    assert digests(tmp_path) == IJB_FILES
    assert summary(tmp_path / EMBEDDINGS) == pytest.approx(IJB_EMBEDDINGS, rel=1e-5)
    assert truth.expected == pytest.approx(IJB_TRUTH, rel=1e-5)
    assert (truth.dim, len(truth.thresholds)) == (8, 400)
    assert (truth.thresholds[0], truth.thresholds[-1]) == (-0.2, 1.0)
    assert truth.accepted[200] == pytest.approx(IJB_ACCEPTED, rel=1e-5)
    assert generate_ijb(tmp_path, sizes=IJBC, scale=0.002, dim=8).expected != truth.expected


def test_a_seed_names_one_megaface_set(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    truth = generate_megaface(
        tmp_path, scale=0.001, dim=8, seed=3,
        progress=lambda done, total: reported.append((done, total)),
    )  # fmt: skip
    assert reported == [(1000, 1000)]
    assert digests(tmp_path) == MEGAFACE_FILES
    assert summary(tmp_path / "facescrub.npy") == pytest.approx(MEGAFACE_PROBES, rel=1e-5)
    assert summary(tmp_path / "megaface.npy") == pytest.approx(MEGAFACE_DISTRACTORS, rel=1e-5)
    assert truth.expected == pytest.approx(MEGAFACE_TRUTH, rel=1e-5)
    assert generate_megaface(tmp_path, scale=0.001, dim=8).expected != truth.expected


def test_genuine_scores_of_a_seed() -> None:
    noise = np.array([0.5, 1.0, 2.0])
    drawn = genuine_scores(noise, noise[::-1], dim=5, rng=np.random.default_rng(0))
    assert drawn == pytest.approx(DRAWN, rel=1e-9)


def made(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", *words])
    main()


@pytest.mark.parametrize("kind", ["ijb-b", "megaface"])
def test_generated_benchmarks_are_evaluated_as_their_last_line_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made(monkeypatch, kind, "made", "--scale", "0.002", "--dim", "16")
    command = capsys.readouterr().err.strip().splitlines()[-1].removeprefix("next: sphereface2 ")
    judged = CliRunner().invoke(app, command.split())
    assert judged.exit_code == 0, judged.output
    assert "made data" in judged.stdout
    assert [path.name for path in tmp_path.iterdir() if "mak" in path.name] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ijbc", "made"], "choose from"),
        (["ijb-c", "full"], "full already exists and is not empty"),
        (["ijb-c", "made", "--scale", "0"], "--scale must be above 0"),
        (["megaface", "full/file/made"], "cannot be written"),
    ],
)
def test_a_mistake_makes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(SystemExit) as ended:
        made(monkeypatch, *words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]
