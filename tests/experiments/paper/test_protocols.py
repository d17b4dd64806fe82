"""The columns of the paper's tables against naive loops; measured once; rows beside the paper's."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.backbones import build_backbone
from sphereface2.data.pairs.verification_set import ImageFiles
from sphereface2.data.sources.image_list import AlignedFiles
from sphereface2.data.sources.source import Images
from sphereface2.data.transforms import Preprocessing
from sphereface2.datatools.rendered_benchmarks import SmallIjb, SmallMegaFace, small_root
from sphereface2.evaluation.experiment_results import SeedRun, SweepResult, SweepRow
from sphereface2.evaluation.protocols import PROTOCOLS
from sphereface2.evaluation.protocols.ijb_files import image_folder, read_ijb
from sphereface2.evaluation.protocols.megaface import MegaFace, MegaFaceResult, read_megaface
from sphereface2.evaluation.protocols.protocol import Embeddings, Protocol
from sphereface2.experiments.paper.protocols import protocol_result, protocol_roc, run_on_protocol
from sphereface2.experiments.paper.published import IJB_B_ADJUSTED
from sphereface2.models.embedder import NetworkEmbedder
from sphereface2.models.folder import load_model, save_model
from sphereface2.workers import Progress, unseen

OPTIONS = {"width": 4, "input_size": 16, "embedding_dim": 6}
Vectors = npt.NDArray[np.float64]


def save_run(run: Path, *, seed: int = 0) -> Path:
    save_model(
        run / "model",
        build_backbone("sfnet4", seed=seed, **OPTIONS),
        name="sfnet4",
        options=OPTIONS,
        preprocessing=Preprocessing(input_size=16),
        extra={"head": {"name": "cosface"}},
    )
    return run


@pytest.fixture(scope="module")
def ijb_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirteen people: enough impostors for FAR 1e-3, too few for less."""
    return small_root(
        "ijb-b", tmp_path_factory.mktemp("ijb"), size=SmallIjb(people=13, seed=5), workers=1
    )


@pytest.fixture(scope="module")
def mega_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = SmallMegaFace(people=4, images=3, strangers=10, stranger_images=2, seed=5)
    return small_root("megaface", tmp_path_factory.mktemp("mega"), size=size, workers=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for number in range(3):
        save_run(runs / f"run-{number}", seed=number)
    return runs


def embeddings(run: Path, images: Images) -> Vectors:
    model = load_model(run / "model")
    found = NetworkEmbedder(model.backbone, model.preprocessing).embed(images)
    return found.astype(np.float64)


def unit(vector: Vectors) -> Vectors:
    return np.asarray(vector / np.linalg.norm(vector))


def naive_ijb(run: Path, root: Path) -> dict[str, float]:
    """Template by template and pair by pair."""
    ijb = read_ijb(root, name="ijb-b")
    assert ijb.probes is not None
    raw = embeddings(
        run, AlignedFiles(image_folder(root, name="ijb-b"), ijb.image_names, ijb.landmarks)
    )
    vectors: dict[int, Vectors] = {}
    for template in {int(each) for each in ijb.templates}:
        of_template = ijb.templates == template
        total = np.zeros(raw.shape[1])
        for media in set(ijb.media[of_template].tolist()):
            total += raw[of_template & (ijb.media == media)].mean(axis=0)
        vectors[template] = unit(total)
    genuine: list[float] = []
    impostor: list[float] = []
    for (left, right), same in zip(ijb.pairs.tolist(), ijb.same, strict=True):
        (genuine if same else impostor).append(float(vectors[left] @ vectors[right]))
    assert 1_000 <= len(impostor) < 10_000
    threshold = min(
        score
        for score in (*genuine, np.inf)
        if sum(other >= score for other in impostor) <= 1e-3 * len(impostor)
    )
    gallery = {
        int(who): vectors[int(template)]
        for part in ijb.galleries
        for template, who in zip(part.templates, part.people, strict=True)
    }
    first = 0
    mates: list[float] = []
    others: list[float] = []
    for template, who in zip(
        ijb.probes.templates.tolist(), ijb.probes.people.tolist(), strict=True
    ):
        scores = {name: float(vector @ vectors[template]) for name, vector in gallery.items()}
        first += max(scores, key=lambda name: scores[name]) == who
        mates.append(scores.pop(who))
        others += scores.values()
    bound = sorted(others, reverse=True)[int(np.ceil(0.1 * len(mates))) - 1]
    return {
        "TAR@FAR 1e-3": 100 * float(np.mean(np.array(genuine) >= threshold)),
        "rank-1": 100 * first / len(mates),
        "TPIR@FPIR 1e-1": 100 * float(np.mean(np.array(mates) > bound)),
    }


def test_ijb_has_the_papers_columns_as_far_as_resolved(runs: Path, ijb_root: Path) -> None:
    values = run_on_protocol(runs / "run-0", "ijb-b", root=ijb_root).values
    wanted = naive_ijb(runs / "run-0", ijb_root)
    assert list(values) == list(wanted)
    assert values == pytest.approx(wanted)
    assert len(set(values.values())) > 1


def test_megaface_finds_mates_among_strangers(runs: Path, mega_root: Path) -> None:
    run = runs / "run-0"
    listed = read_megaface(mega_root, size=20)
    probes = embeddings(run, ImageFiles([mega_root / "facescrub" / n for n in listed.probe_names]))
    others = embeddings(
        run, ImageFiles([mega_root / "megaface" / n for n in listed.distractor_names])
    )
    found = []
    for left, who in enumerate(listed.people):
        best = max(float(unit(probes[left]) @ unit(other)) for other in others)
        for right, mate in enumerate(listed.people):
            if left != right and who == mate:
                found.append(float(unit(probes[left]) @ unit(probes[right])) > best)
    assert len(found) == 4 * 6
    values = run_on_protocol(run, "megaface", root=mega_root).values
    # 240 impostor pairs resolve no FPR of 1e-6, and without noisy images there is no "before".
    assert values == pytest.approx({"rank-1, refined": 100 * float(np.mean(found))})


def test_is_measured_once_for_these_weights_and_images(
    runs: Path, ijb_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_run(tmp_path / "run")
    first = run_on_protocol(run, "ijb-b", root=ijb_root)
    kept = run / "protocols" / "ijb-b.json"
    left = {path.name for path in kept.parent.iterdir()}
    assert left == {"ijb-b.json"}  # no embeddings
    asked: list[str] = []
    ijb_b = PROTOCOLS["ijb-b"]

    def counted(**options: Any) -> Protocol[Any]:
        asked.append("ijb-b")
        return ijb_b(**options)

    monkeypatch.setitem(PROTOCOLS, "ijb-b", counted)
    assert run_on_protocol(run, "ijb-b", root=ijb_root) == first
    assert not asked
    # Other weights, other images, a torn file: each is a reason to measure again.
    save_run(run, seed=1)
    other = run_on_protocol(run, "ijb-b", root=ijb_root)
    assert other.model != first.model
    assert other.values != first.values
    assert len(asked) == 1
    twin = tmp_path / "twin"
    shutil.copytree(ijb_root, twin)
    assert run_on_protocol(run, "ijb-b", root=twin) == other
    assert len(asked) == 1
    (twin / "made.json").write_text(json.dumps({"what": "something else"}))
    assert run_on_protocol(run, "ijb-b", root=twin).root != other.root
    assert len(asked) == 2
    kept.write_text(kept.read_text()[:100])
    assert run_on_protocol(run, "ijb-b", root=twin).values == other.values
    assert len(asked) == 3
    before = json.loads(kept.read_text())
    del before["impostors"]  # as an earlier version wrote it
    kept.write_text(json.dumps(before))
    assert run_on_protocol(run, "ijb-b", root=twin).impostors > 1_000
    assert len(asked) == 4


def test_a_process_that_waited_takes_what_the_first_measured(
    ijb_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_run(tmp_path / "run")
    first = run_on_protocol(run, "ijb-b", root=ijb_root)
    kept = run / "protocols" / "ijb-b.json"
    text = kept.read_text()
    kept.unlink()
    waited = []

    @contextmanager
    def released(title: str) -> Iterator[Progress]:
        """The other process ends only when this one waits for it."""
        waited.append(title)
        kept.write_text(text)
        lock.close()
        yield unseen

    monkeypatch.setitem(PROTOCOLS, "ijb-b", lambda *_, **__: pytest.fail("measured again"))
    with (run / "protocols" / ".ijb-b.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_on_protocol(run, "ijb-b", root=ijb_root, watch=released) == first
    assert waited == ["waiting for another process on ijb-b, run"]


def test_a_benchmark_that_was_not_made_is_known_by_its_lists(
    runs: Path, ijb_root: Path, tmp_path: Path
) -> None:
    real = tmp_path / "real"
    shutil.copytree(ijb_root, real)
    (real / "made.json").unlink()
    run = save_run(tmp_path / "run")
    before = run_on_protocol(run, "ijb-b", root=real)
    pairs = real / "meta" / "ijbb_template_pair_label.txt"
    pairs.write_text("".join(pairs.read_text().splitlines(keepends=True)[:-1]))
    assert run_on_protocol(run, "ijb-b", root=real).root != before.root


def test_a_megaface_with_noisy_images_is_measured_before_and_after(
    runs: Path, mega_root: Path, tmp_path: Path
) -> None:
    real = tmp_path / "real"
    shutil.copytree(mega_root, real)
    (real / "made.json").unlink()
    listed = read_megaface(real, size=20)
    (real / "facescrub_noises.txt").write_text(listed.probe_names[0] + "\n")
    run = save_run(tmp_path / "run")
    values = run_on_protocol(run, "megaface", root=real).values
    assert list(values) == ["rank-1", "rank-1, refined"]
    before = run_on_protocol(run, "megaface", root=real)
    assert before.impostors == (4 * 3 - 1) * 20  # the refined probes with every stranger
    clean = run_on_protocol(runs / "run-0", "megaface", root=mega_root).values
    assert values["rank-1"] == clean["rank-1, refined"]  # the same weights, nothing left out
    # Another list of noisy images is another benchmark.
    (real / "facescrub_noises.txt").write_text("\n".join(listed.probe_names[:2]) + "\n")
    after = run_on_protocol(run, "megaface", root=real)
    assert (after.root != before.root, after.impostors) == (True, (4 * 3 - 2) * 20)


def sweep(*rows: SweepRow) -> SweepResult:
    return SweepResult("losses", "Losses", "small", ("combined",), rows, where="Table 5")


def row(label: str, method: str, *runs: SeedRun) -> SweepRow:
    return SweepRow(label, method, (), "", "", runs)


def test_a_sweep_on_a_protocol_stands_beside_the_paper(runs: Path, ijb_root: Path) -> None:
    base = sweep(
        row(
            "CosFace",
            "cosface",
            SeedRun(0, "run-0", {"combined": 90.0}, seconds=7.0),
            SeedRun(1, "run-1", {"combined": 91.0}),
        ),
        row("CosFace, t=3", "cosface", SeedRun(0, "run-2", {"combined": 80.0})),
        row("ArcFace", "arcface", SeedRun(0, "gone", {}, error="it diverged")),
        row("own", "own", SeedRun(0, "run-0")),
    )
    result = protocol_result(
        base,
        "ijb-b",
        runs=runs,
        root=ijb_root,
        table=IJB_B_ADJUSTED,
        rows={
            "cosface": "CosFace w/o SA",
            "CosFace, t=3": "CosFace w/ SA",
            "arcface": "ArcFace w/o SA",
        },
    )
    columns = ("TAR@FAR 1e-3", "rank-1", "TPIR@FPIR 1e-1")
    assert (result.name, result.where, result.columns) == ("losses", "Table 5", columns)
    assert result.published_columns == {column: column for column in columns}
    by_label = {each.label: each for each in result.rows}
    assert by_label["CosFace"].published == dict(zip(columns, (93.71, 92.54, 86.40), strict=True))
    assert by_label["CosFace, t=3"].published["rank-1"] == 92.59
    assert by_label["own"].published == {}
    first, second = by_label["CosFace"].runs
    assert first.values == run_on_protocol(runs / "run-0", "ijb-b", root=ijb_root).values
    assert second.values == run_on_protocol(runs / "run-1", "ijb-b", root=ijb_root).values
    assert (first.seconds, first.folder) == (7.0, "run-0")
    failed = by_label["ArcFace"].runs[0]
    assert (failed.values, failed.error) == ({}, "it diverged")
    assert SweepResult.from_json(result.to_json()) == result


def test_a_column_of_our_own_has_no_number_of_the_paper(
    runs: Path, mega_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resolved(MegaFace):
        """As if a million impostors were behind every rate."""

        def measure(self, embeddings: Embeddings) -> MegaFaceResult:
            result = super().measure(embeddings)
            tpr = []
            for measure in result.tpr:
                assert measure.at is not None
                tpr.append(replace(measure, at=replace(measure.at, resolved=True)))
            return replace(result, tpr=tuple(tpr))

    monkeypatch.setitem(PROTOCOLS, "megaface", Resolved)
    save_run(tmp_path / "run")
    base = sweep(row("ArcFace", "arcface", SeedRun(0, "run")))
    result = protocol_result(
        base,
        "megaface",
        runs=tmp_path,
        root=mega_root,
        rows={"arcface": "ArcFace"},
    )
    theirs = ("rank-1, refined", "TPR@FPR 1e-6, refined")
    assert result.columns == (*theirs, "TPR@FPR 1e-4, refined")
    assert result.rows[0].published == dict(zip(theirs, (87.88, 89.88), strict=True))
    assert tuple(result.published_columns) == theirs


def test_a_table_of_failures_keeps_its_columns(runs: Path, ijb_root: Path) -> None:
    base = sweep(row("ArcFace", "arcface", SeedRun(0, "gone", {}, error="it diverged")))
    result = protocol_result(base, "ijb-c", runs=runs, root=ijb_root)
    assert result.columns[0] == "TAR@FAR 1e-5"
    assert result.judged_by == "TAR@FAR 1e-4"


def test_rocs_are_of_all_seeds_that_did_not_fail(runs: Path, ijb_root: Path) -> None:
    base = sweep(
        row("A", "cosface", SeedRun(0, "gone", {}, error="it diverged"), SeedRun(1, "run-1")),
        row("B", "arcface", SeedRun(0, "gone", {}, error="it diverged")),
        row("C", "sphereface2", SeedRun(0, "run-2"), SeedRun(1, "run-0")),
    )
    curves = protocol_roc(base, "ijb-b", runs=runs, root=ijb_root)
    assert [curve.label for curve in curves] == ["A", "C"]
    same = read_ijb(ijb_root, name="ijb-b").same.tolist()
    assert {curve.impostors for curve in curves} == {same.count(False)}
    for curve, folders in zip(curves, (["run-1"], ["run-2", "run-0"]), strict=True):
        for roc, folder in zip(curve.rocs, folders, strict=True):
            assert roc == run_on_protocol(runs / folder, "ijb-b", root=ijb_root).roc
            # The curve runs through the table's number.
            points = zip(roc.far, roc.tar, strict=True)
            at = max((tar for far, tar in points if far <= 1e-3), default=0.0)
            values = run_on_protocol(runs / folder, "ijb-b", root=ijb_root).values
            assert 100 * at == pytest.approx(values["TAR@FAR 1e-3"])


def test_mistakes_are_reported(runs: Path, ijb_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown protocol 'ijb-d'"):
        run_on_protocol(runs / "run-0", "ijb-d", root=ijb_root)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        run_on_protocol(runs / "run-0", "ijb-b", root=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="there is no run or model folder"):
        run_on_protocol(tmp_path / "none", "ijb-b", root=ijb_root)
    base = sweep(row("A", "cosface", SeedRun(0, "run-0")))
    with pytest.raises(ValueError, match="did you mean 'CosFace'"):
        protocol_result(base, "ijb-b", runs=runs, root=ijb_root, rows={"A": "Cosface"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="has neither meta/ nor templatelists/"):
        run_on_protocol(runs / "run-0", "ijb-b", root=tmp_path / "empty")
