"""Which step of a training is exported, how it was chosen, and where that is said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from sphereface2.cli import app
from sphereface2.config.schema import RunConfig, load_config
from sphereface2.data.pairs.drawn import SET_ASIDE
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.models import discriminant
from sphereface2.models.discriminant import discriminant_axes
from sphereface2.models.embedder import unit_rows
from sphereface2.models.folder import find_model, load_model, weights_digest
from sphereface2.runs import folder as run_folder
from sphereface2.runs import train as runs
from sphereface2.runs.evaluate import evaluate, learned_bias
from sphereface2.runs.folder import read_history
from sphereface2.training.result import ModelStep, Which
from tests.evaluation.test_protocols import faces
from tests.runs.test_runs import NO_SETS, SMALL, stop_at

EVERY_EPOCH = ["training.evaluate_every=1", "training.epochs=3"]


def config_of(*overrides: str) -> RunConfig:
    return load_config("quickstart", [*SMALL, *EVERY_EPOCH, *overrides])


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders of people: to learn, to report, to choose on."""
    place = tmp_path_factory.mktemp("crops")
    for seed, name in enumerate(("learnt", "reported", "kept")):
        faces(place / name, 12, 4, seed=seed)
    return place


def with_crops(crops: Path, *, choose: bool = False) -> RunConfig:
    sets = f"evaluation.sets=[{{name: drawn, path: {crops / 'reported'}, pairs: 40}}]"
    kept = f"evaluation.choose_on=[{{name: drawn, path: {crops / 'kept'}, pairs: 40}}]"
    data = f"data={{name: folder, path: {crops / 'learnt'}}}"
    few = [word for word in SMALL if not word.startswith("data.")]
    words = [*few, *EVERY_EPOCH, data, sets, *([kept] if choose else [])]
    return load_config("quickstart", words)


def logged(folder: Path) -> list[dict[str, dict[str, float]]]:
    lines = (folder / run_folder.METRICS).read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "evaluation"]


@pytest.fixture(scope="module")
def chosen(crops: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "chosen"
    runs.train(with_crops(crops, choose=True), folder)
    return folder


@pytest.fixture(scope="module")
def last(crops: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "last"
    runs.train(with_crops(crops), folder)
    evaluate(folder)
    return folder


class TestWords:
    def test_each_way_of_choosing_has_its_words(self) -> None:
        best = ModelStep("best", 632, 948, 12, ("plain",))
        assert ModelStep("last", 948, 948).in_words(["plain"]) == "the last step, 948"
        assert ModelStep("last", 36, 6000).in_words() == "step 36 of 6,000, unfinished"
        assert ModelStep("last", 36, 0).in_words() == "step 36, unfinished"
        assert best.in_words(["plain", "combined"]) == (
            "step 632 of 948, the best of 12 evaluations on these very pairs: reads too high"
        )
        assert best.in_words(["lfw"]) == "step 632 of 948, the best of 12 evaluations on plain"
        own = ModelStep("best", 632, 948, 12, ("plain", "combined"), own_sets=True)
        assert own.in_words(["plain"]) == (
            "step 632 of 948, the best of 12 evaluations on sets of their own (plain)"
        )
        only = ModelStep("best", 948, 948, 1, ("plain",))
        assert only.in_words(["plain"]) == "step 948 of 948, the only one that was evaluated"

    def test_a_model_of_before_is_the_best_on_what_was_reported(self) -> None:
        history = [
            {"kind": "evaluation", "step": step, "metrics": {"plain": 0.5}} for step in (1, 2)
        ]
        extra = {"steps": 2, "best_step": 1, "best_metric": 0.5}
        step = ModelStep.of_model(extra, history)
        assert step == ModelStep("best", 1, 2, 2, ("plain",), accuracy=0.5)
        # Evaluated at its end only, nothing was chosen.
        extra["best_step"] = 2
        assert ModelStep.of_model(extra, history[1:]) == ModelStep("last", 2, 2)
        assert ModelStep.of_model({"people": 3}) is None


class TestRuns:
    def test_sets_to_choose_by_are_checked_as_those_that_are_reported(self, chosen: Path) -> None:
        lines = map(json.loads, (chosen / run_folder.METRICS).read_text().splitlines())
        notices = [line["text"] for line in lines if line["kind"] == "notice"]
        for name in ("reported", "kept"):
            same = f"set {name}: 12 of its 12 people have the names of people trained on (p0, "
            assert any(text.startswith(same) for text in notices), notices

    def test_the_model_is_the_best_on_the_sets_to_choose_by(self, chosen: Path) -> None:
        lines = logged(chosen)
        assert [(set(line["metrics"]), set(line["choice"])) for line in lines] == [
            ({"reported"}, {"kept"})
        ] * 3
        reached = [line["choice"]["kept"] for line in lines]
        best = 3 * (1 + reached.index(max(reached)))
        said = load_model(chosen / "model").config["extra"]["model_step"]
        assert (said["which"], said["step"], said["steps"]) == ("best", best, 9)
        assert (said["evaluations"], said["own_sets"]) == (3, True)
        assert said["accuracy"] == max(reached)

        result = evaluate(chosen).result
        step = result.model_step
        assert step is not None
        assert (step.step, step.own_sets) == (best, True)
        assert EvaluationResult.load(chosen / run_folder.EVALUATION).model_step == step
        # The metric on the reported sets at that step is the one that is now printed.
        reported = result.find("sphereface2-c", "reported")
        assert reported is not None
        assert reported.accuracy == lines[best // 3 - 1]["metrics"]["reported"]
        page = (chosen / run_folder.REPORT).read_text()
        assert (
            f"Checkpoint: step {best} of 9, the best of 3 evaluations on sets of their own" in page
        )
        assert "Accuracy on the sets to choose by" in page

    def test_without_such_sets_the_model_is_the_last_step(self, last: Path) -> None:
        result = EvaluationResult.load(last / run_folder.EVALUATION)
        assert result.model_step == ModelStep("last", 9, 9)
        reported = result.find("sphereface2-c", "reported")
        assert reported is not None
        assert reported.accuracy == logged(last)[-1]["metrics"]["reported"]
        assert "Checkpoint: the last step, 9." in (last / run_folder.REPORT).read_text()

    def test_a_checkpoint_is_judged_beside_the_run(self, last: Path) -> None:
        before = (last / run_folder.EVALUATION).read_bytes()
        words = ["evaluate", str(last), "--checkpoint", "best"]
        shown = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
        assert shown.exit_code == 0, shown.output
        reached = [line["metrics"]["reported"] for line in logged(last)]
        result = EvaluationResult.load(last / "evaluation-best" / run_folder.EVALUATION)
        reported = result.find("sphereface2-c", "reported")
        assert reported is not None
        assert reported.accuracy == max(reached)
        step = 3 * (1 + reached.index(max(reached)))
        said = f"step {step} of 9, the best of 3 evaluations on these very pairs: reads too high"
        assert f"checkpoint: {said}" in shown.stdout
        assert f"Checkpoint: {said}." in (last / "evaluation-best" / run_folder.REPORT).read_text()
        assert (last / run_folder.EVALUATION).read_bytes() == before

    def test_the_last_checkpoint_is_what_was_exported(self, last: Path) -> None:
        again = evaluate(last, checkpoint="last").result
        assert again.model_step == ModelStep("last", 9, 9)
        assert again.rows == EvaluationResult.load(last / run_folder.EVALUATION).rows

    def test_a_resumed_run_exports_the_same_bits(
        self, chosen: Path, crops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop_at(5, monkeypatch)
        assert runs.train(with_crops(crops, choose=True), tmp_path / "run").interrupted
        monkeypatch.undo()
        unfinished = evaluate(tmp_path / "run", checkpoint="last").result
        assert unfinished.step_in_words == "step 5 of 9, unfinished"
        runs.resume(tmp_path / "run")
        one, other = (load_model(folder / "model") for folder in (chosen, tmp_path / "run"))
        assert one.config["extra"] == other.config["extra"]
        state = other.backbone.state_dict()
        for key, value in one.backbone.state_dict().items():
            assert torch.equal(value, state[key]), key

    def test_an_averaged_network_is_what_is_exported_and_judged(
        self, last: Path, tmp_path: Path
    ) -> None:
        words = ["training.average={decay: 0.9, statistics: 32}"]
        runs.train(load_config(last, words), tmp_path / "run")
        averaged, plain = (load_model(folder / "model") for folder in (tmp_path / "run", last))
        assert averaged.config["extra"]["average"] == {"decay": 0.9, "statistics": 32}
        assert "average" not in plain.config["extra"]
        weights = [model.backbone.state_dict()["project.weight"] for model in (averaged, plain)]
        assert not torch.equal(*weights)
        whole: tuple[Which | None, ...] = (None, "last")
        for checkpoint in whole:
            reported = evaluate(tmp_path / "run", checkpoint=checkpoint).result.rows[0]
            assert reported.accuracy == logged(tmp_path / "run")[-1]["metrics"]["reported"]


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class TestDiscriminant:
    def test_the_axes_of_the_exported_network_are_weighed(
        self, last: Path, crops: Path, tmp_path: Path
    ) -> None:
        """A finished run exports again, from the same weights, and back."""
        run = shutil.copytree(last, tmp_path / "run")
        before, kept = load_model(run), bytes_of(run / "checkpoints")
        assert runs.resume(run, overrides=["training.discriminant=true"]).steps == 9
        after = load_model(run)
        learnt = ImageFolder(path=str(crops / "learnt"))
        images = [learnt[number][0] for number in range(len(learnt))]
        raw = before.embedder().embed(images)
        wanted = unit_rows(raw @ discriminant_axes(raw, learnt.labels), source="")
        assert np.allclose(after.embed(images), wanted, atol=1e-5)
        assert not np.allclose(after.embed(images), before.embed(images), atol=0.1)
        assert bytes_of(run / "checkpoints") == kept
        assert after.config["extra"]["discriminant"] is True
        assert learned_bias(before.config["extra"], read_history(run)) is not None
        assert learned_bias(after.config["extra"], read_history(run)) is None
        with pytest.raises(ValueError, match=r"weighed the axes .*start_classes=means"):
            runs.train(
                load_config(last, [f"training.start_from={run}", "training.start_classes=same"]),
                tmp_path / "new",
            )
        digest = weights_digest(find_model(run))
        assert runs.resume(run).was_finished
        assert weights_digest(find_model(run)) == digest
        runs.resume(run, overrides=["training.discriminant=false"])
        runs.resume(run)  # which is to leave it so
        assert weights_digest(find_model(run)) == weights_digest(find_model(last))

    def test_a_training_that_is_given_it_ends_with_such_axes(
        self, last: Path, tmp_path: Path
    ) -> None:
        runs.train(load_config(last, ["training.discriminant=true"]), tmp_path / "new")
        run = shutil.copytree(last, tmp_path / "run")
        runs.resume(run, overrides=["training.discriminant=true"])
        one, other = (weights_digest(find_model(each)) for each in (tmp_path / "new", run))
        assert one == other

    def test_people_with_one_image_each_are_refused_before_the_training(
        self, last: Path, tmp_path: Path
    ) -> None:
        faces(tmp_path / "single", 4, 1, seed=9)
        words = ["training.discriminant=true", f"data.path={tmp_path / 'single'}"]
        with pytest.raises(ValueError, match="discriminant=false skips it"):
            runs.train(load_config(last, words), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_of_many_images_whole_people_are_taken(
        self, last: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, ...]] = []

        def axes(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
            seen.append((len(embeddings), *np.bincount(labels)[np.unique(labels)]))
            return np.eye(embeddings.shape[1])

        monkeypatch.setattr(runs, "_AXES_IMAGES", 15)
        monkeypatch.setattr(discriminant, "discriminant_axes", axes)
        runs.resume(
            shutil.copytree(last, tmp_path / "run"), overrides=["training.discriminant=true"]
        )
        assert seen == [(12, 4, 4, 4)]


class TestSetAside:
    def test_a_share_of_the_people_chooses_the_step(self, tmp_path: Path) -> None:
        runs.train(config_of("evaluation.set_aside=0.4", *NO_SETS), tmp_path / "run")
        extra = load_model(tmp_path / "run" / "model").config["extra"]
        assert extra["people"] == 7
        assert extra["model_step"]["sets"] == [SET_ASIDE]
        assert all(list(line["choice"]) == [SET_ASIDE] for line in logged(tmp_path / "run"))
        with pytest.raises(
            ValueError, match=r"evaluation\.set_aside was 0\.4 .* cannot become 0\.5"
        ):
            runs.resume(tmp_path / "run", overrides=["evaluation.set_aside=0.5"])


class TestRefused:
    @pytest.mark.parametrize(
        ("sets", "choose_on", "message"),
        [
            ("{name: synthetic}", "{name: synthetic}", "first_person: 1000800"),
            (
                "{name: synthetic, people: 20}",
                "{name: synthetic, first_person: 1000079}",
                "first_person: 1000080",
            ),
            ("{name: bin, path: a/x.bin}", "{name: bin, path: a/../a/x.bin}", "give others than"),
            (
                "{name: drawn, path: p}",
                "{name: drawn, path: p, seed: 3}",
                r"give others than \S*p, or",
            ),
        ],
    )
    def test_people_who_are_reported(self, sets: str, choose_on: str, message: str) -> None:
        config = config_of(f"evaluation.sets=[{sets}]", f"evaluation.choose_on=[{choose_on}]")
        with pytest.raises(ValueError, match=rf"choose_on shows people of .*{message}"):
            runs.resolve(config)

    def test_people_who_are_trained_on(self, crops: Path) -> None:
        data = f"data={{name: folder, path: {crops / 'learnt'}}}"
        few = [word for word in SMALL if not word.startswith("data.")]
        choose_on = f"evaluation.choose_on=[{crops}/kept/../learnt]"
        with pytest.raises(ValueError, match=r"choose_on shows the people who are trained on \("):
            runs.resolve(load_config("quickstart", [*few, data, choose_on]))

    def test_others_are_fine(self) -> None:
        after = "evaluation.choose_on=[{name: synthetic, first_person: 1000800}]"
        runs.resolve(config_of(after, "evaluation.sets=[{name: synthetic}]"))
        runs.resolve(config_of("evaluation.choose_on=[{name: synthetic, seed: 1}]"))
