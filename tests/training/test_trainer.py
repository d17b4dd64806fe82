"""The trainer: what it learns, writes and survives."""

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sphereface2.config.schema import RunConfig
from sphereface2.heads import HEADS, Head, build_head
from sphereface2.training.checkpoint import load_checkpoint, load_tensors
from sphereface2.training.distributed import Team
from sphereface2.training.events import EvaluationRecord, Events, Notice, TrainingRecord
from sphereface2.training.result import ModelStep, TrainingResult
from sphereface2.training.stopping import DivergedError
from sphereface2.training.trainer import Trainer
from tests.training.conftest import Crowd, TinyNet, make_config


def make_trainer(
    run_folder: Path,
    config: RunConfig | None = None,
    *,
    head: str = "sphereface2-c",
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Trainer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, built = TinyNet(), build_head(head, 8, 5, **(options or {}))
    more = {"evaluate": norm_of_weights, **more}
    return Trainer(net, built, Crowd(), config or make_config(), run_folder=run_folder, **more)


def norm_of_weights(backbone: nn.Module) -> Mapping[str, float]:
    """A metric that grows with the training and needs no data."""
    assert not backbone.training
    return {"plain": sum(float(p.detach().norm()) for p in backbone.parameters())}


def parameters(trainer: Trainer) -> dict[str, Tensor]:
    return {
        **{f"backbone.{k}": v for k, v in trainer.backbone.state_dict().items()},
        **{f"head.{k}": v for k, v in trainer.head.state_dict().items()},
    }


def lines(run_folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    text = (run_folder / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


class StopAt(Events):
    """Does something after a step."""

    def __init__(self, step: int, action: Any = None) -> None:
        self.step = step
        self.action = action
        self.trainer: Trainer | None = None

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        if step == self.step:
            if self.action is not None:
                self.action()
            else:
                assert self.trainer is not None
                self.trainer.stop()


def stopped_trainer(run_folder: Path, step: int, **more: Any) -> Trainer:
    events = StopAt(step)
    trainer = make_trainer(run_folder, events=events, **more)
    events.trainer = trainer
    return trainer


def test_a_run_learns_and_records(run_folder: Path, clock: SimpleNamespace) -> None:
    trainer = make_trainer(run_folder, make_config(epochs=8, optimizer={"learning_rate": 0.02}))
    clock.monotonic = lambda: 4 * trainer.step
    result = trainer.run()
    assert result.steps == result.total_steps == 40
    assert not result.interrupted
    assert result.seconds == 160
    records = lines(run_folder)
    assert [line["step"] for line in records] == [1, *range(2, 41, 2)]
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert records[-1]["epoch"] == 8.0
    assert {(line["data_wait"], line["images_per_second"]) for line in records} == {(0.25, 2.0)}
    assert {"bias", "positive_score", "negative_score", "active_negatives"} <= set(
        records[-1]["head"]
    )
    assert records[0]["learning_rate"] == trainer.schedule.learning_rate(0)
    evaluations = lines(run_folder, "evaluation")
    assert [line["step"] for line in evaluations] == list(range(5, 41, 5))


def test_the_recorded_loss_is_the_mean_since_the_last_record(run_folder: Path) -> None:
    seen: list[float] = []

    class Losses(Events):
        def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
            seen.append(loss)

    make_trainer(run_folder, events=Losses()).run()
    assert [line["loss"] for line in lines(run_folder)[:3]] == pytest.approx(
        [seen[0], seen[1], (seen[2] + seen[3]) / 2]
    )


@pytest.mark.parametrize("name", sorted(HEADS))
def test_every_head_learns(run_folder: Path, name: str) -> None:
    # Checkpoints take longer than the steps.
    rarely = {"checkpoint_every": 8, "evaluate_every": 8}
    config = make_config(epochs=8, clip_norm=1.0, optimizer={"learning_rate": 0.05}, **rarely)
    # These people lie farther apart than the usual margin of a triplet from the first step on.
    options = {"margin": 1.5} if name == "triplet" else {}
    make_trainer(run_folder, config, head=name, options=options).run()
    first, *_, last = (line["loss"] for line in lines(run_folder))
    assert last < first / 4


@pytest.fixture(scope="module", params=["sphereface2-c", "simple"])
def unstopped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Trainer, Path, TrainingResult]:
    """The name of a head, and a run with it that was never stopped."""
    folder = tmp_path_factory.mktemp("straight")
    trainer = make_trainer(folder, head=request.param)
    return request.param, trainer, folder, trainer.run()


@pytest.mark.parametrize("step", [7, 10, 14])
def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    tmp_path: Path, unstopped: tuple[str, Trainer, Path, TrainingResult], step: int
) -> None:
    name, straight, unstopped_folder, expected = unstopped
    stopped = stopped_trainer(tmp_path / "resumed", step, head=name).run()
    assert stopped.interrupted
    assert stopped.steps == step
    with torch.random.fork_rng():
        torch.rand(step)  # the random numbers outside are of no matter
        resumed = make_trainer(tmp_path / "resumed", head=name)
        result = resumed.run(resume=True)

    assert not result.interrupted
    assert result.model_step == expected.model_step
    found = parameters(resumed)
    for key, value in parameters(straight).items():
        assert torch.equal(found[key], value), key
    for kind, entry in [("train", "loss"), ("train", "gradient_norm"), ("evaluation", "metrics")]:
        assert [(line["step"], line[entry]) for line in lines(tmp_path / "resumed", kind)] == [
            (line["step"], line[entry]) for line in lines(unstopped_folder, kind)
        ]


def test_a_killed_run_resumes_from_its_last_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    straight = make_trainer(tmp_path / "straight")
    straight.run()

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        make_trainer(tmp_path / "killed", events=StopAt(9, kill)).run()
    assert load_checkpoint(tmp_path / "killed/checkpoints/last").step == 5
    assert lines(tmp_path / "killed")[-1]["step"] == 8
    resumed = make_trainer(tmp_path / "killed")
    resumed.run(resume=True)
    found = parameters(resumed)
    assert all(torch.equal(found[key], value) for key, value in parameters(straight).items())
    steps = [line["step"] for line in lines(tmp_path / "killed")]
    assert steps == [line["step"] for line in lines(tmp_path / "straight")]
    assert not [t for t in threading.enumerate() if t.name.startswith("loader")]


def test_accumulation_and_the_number_of_workers_do_not_change_the_run(
    tmp_path: Path,
) -> None:
    results = []
    for name, options in [("one", {"workers": 0}), ("two", {"workers": 3, "accumulate": 4})]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = TinyNet(batch_norm=False, dropout=0.0).double()
            head = build_head("cosface", 8, 5, scale=8).double()
        net.layers.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(),))
        config = make_config(clip_norm=1.0, **options)
        Trainer(net, head, Crowd(), config, run_folder=tmp_path / name).run()
        results.append(torch.cat([p.detach().ravel() for p in net.parameters()]))
    assert (results[0] - results[1]).abs().max() < 1e-10


def test_the_steps_to_come_may_be_others_than_those_done(tmp_path: Path) -> None:
    """More of them, at another rate: what the checkpoint holds stays as it is."""
    stopped_trainer(tmp_path / "run", 7).run()
    changed = make_config(
        epochs=4, clip_norm=2.0, optimizer={"learning_rate": 0.03}, schedule={"name": "constant"}
    )
    trainer = make_trainer(tmp_path / "run", changed)
    result = trainer.run(resume=True)
    assert (result.steps, result.interrupted) == (20, False)
    rates = {line["step"]: line["learning_rate"] for line in lines(tmp_path / "run")}
    assert rates[20] == 0.03 != rates[6]
    assert load_checkpoint(result.last_checkpoint).finished


def test_a_run_is_not_made_shorter_than_it_is(tmp_path: Path) -> None:
    stopped_trainer(tmp_path, 7).run()
    with pytest.raises(
        ValueError, match=r"training\.epochs=1, which is 5 steps, is shorter .* 7 st"
    ):
        make_trainer(tmp_path, make_config(epochs=1)).run(resume=True)
    with pytest.raises(ValueError, match=r"training\.steps=6 is shorter than what .* 7 steps"):
        make_trainer(tmp_path, make_config(epochs=None, steps=6)).run(resume=True)
    result = make_trainer(tmp_path, make_config(epochs=None, steps=7)).run(resume=True)
    assert (result.steps, result.interrupted) == (7, False)
    assert [line["step"] for line in lines(tmp_path, "evaluation")] == [5, 7]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_finishes_the_step_and_keeps_it(run_folder: Path, number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    trainer = make_trainer(run_folder, events=StopAt(7, lambda: os.kill(os.getpid(), number)))
    result = trainer.run()
    assert result.interrupted
    assert result.stopped_by == number
    assert result.steps == 7
    assert load_checkpoint(result.last_checkpoint).step == 7
    assert not load_checkpoint(result.last_checkpoint).finished
    assert signal.getsignal(number) is handler


def test_under_nohup_a_closed_terminal_does_not_stop_a_run(run_folder: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        events = StopAt(7, lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert not make_trainer(run_folder, events=events).run().interrupted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_ends_at_once_and_a_run_may_be_on_another_thread(run_folder: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell starts what runs in its background with SIGINT ignored; this test may run there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            make_trainer(run_folder, events=StopAt(7, twice)).run()
    finally:
        signal.signal(signal.SIGINT, before)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(make_trainer(run_folder).run(resume=True))
    )
    thread.start()
    thread.join()
    assert results[0].steps == 15


class BreakingHead(Head):
    """A loss that is not a number from a certain call on."""

    def __init__(self, good_steps: int, value: float) -> None:
        super().__init__(8, 5)
        self.weight = nn.Parameter(torch.ones(5, 8))
        self.left = good_steps
        self.value = value

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.left -= 1
        loss = (embeddings * self.weight[labels]).mean()
        return loss if self.left >= 0 else loss * self.value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_a_number_stops_before_the_update(
    run_folder: Path, value: float
) -> None:
    trainer = Trainer(
        TinyNet(), BreakingHead(8, value), Crowd(), make_config(), run_folder=run_folder
    )
    with pytest.raises(DivergedError, match=r"^the loss turned -?(nan|inf) at step 9 ") as caught:
        trainer.run()
    rate = trainer.schedule.learning_rate(8)
    assert f"learning rate {rate:.4g}; the last good checkpoint is " in str(caught.value)
    assert "checkpoints/last;" in str(caught.value)
    assert all(bool(value.isfinite().all()) for value in parameters(trainer).values())
    assert load_checkpoint(run_folder / "checkpoints" / "last").step == 5
    again = Trainer(
        TinyNet(), BreakingHead(0, value), Crowd(), make_config(), run_folder=run_folder
    )
    with pytest.raises(DivergedError, match=r"at step 6 .*last good checkpoint is .*/last;"):
        again.run(resume=True)


def test_without_a_checkpoint_the_sentence_says_so(run_folder: Path) -> None:
    trainer = Trainer(
        TinyNet(), BreakingHead(2, float("nan")), Crowd(), make_config(), run_folder=run_folder
    )
    with pytest.raises(DivergedError, match=r"at step 3 .*; there is no checkpoint yet, so it sta"):
        trainer.run()
    assert not (run_folder / "checkpoints" / "last").exists()


def test_the_checkpoint_named_after_a_failure_is_of_this_run(run_folder: Path) -> None:
    make_trainer(run_folder).run()
    head = BreakingHead(2, float("nan"))
    trainer = Trainer(TinyNet(), head, Crowd(), make_config(), run_folder=run_folder)
    with pytest.raises(DivergedError, match="there is no checkpoint yet"):
        trainer.run()


def test_a_metric_that_is_not_a_number_is_never_the_best(run_folder: Path) -> None:
    scores = iter([float("nan"), 0.5, float("nan")])
    result = make_trainer(run_folder, choose=lambda net: {"plain": next(scores)}).run()
    assert (result.model_step.accuracy, result.model_step.step) == (0.5, 10)


def test_a_gradient_that_is_not_a_number_is_caught_as_well(run_folder: Path) -> None:
    class RootHead(BreakingHead):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return (embeddings * 0.0 * self.weight[labels]).sum().sqrt()

    trainer = Trainer(TinyNet(), RootHead(9, 1.0), Crowd(), make_config(), run_folder=run_folder)
    with pytest.raises(DivergedError, match="the gradient turned nan at step 1 "):
        trainer.run()


def test_the_model_is_the_best_step_on_the_sets_to_choose_by(run_folder: Path) -> None:
    scores = iter([0.6, 0.9, 0.7])
    states: list[Tensor] = []

    def choose(backbone: nn.Module) -> Mapping[str, float]:
        states.append(next(backbone.parameters()).detach().clone())
        return {"plain": 0.5, "combined": next(scores)}

    # On the reported sets the first evaluation is the best: that must not matter.
    reported = iter([0.8, 0.3, 0.2])
    trainer = make_trainer(
        run_folder, evaluate=lambda net: {"plain": next(reported)}, choose=choose
    )
    result = trainer.run()
    assert result.model_step == ModelStep(
        "best", 10, 15, 3, ("plain", "combined"), own_sets=True, accuracy=0.9
    )
    assert load_checkpoint(result.checkpoint).step == 10
    best = {f"backbone.{k}": torch.zeros_like(v) for k, v in trainer.backbone.state_dict().items()}
    load_tensors(result.checkpoint, best, part="backbone.")
    assert torch.equal(best["backbone.layers.0.weight"], states[1])
    assert load_checkpoint(result.last_checkpoint).step == 15
    logged = lines(run_folder, "evaluation")
    assert [line["metrics"]["plain"] for line in logged] == [0.8, 0.3, 0.2]
    assert [line["choice"]["combined"] for line in logged] == [0.6, 0.9, 0.7]


def test_without_such_sets_the_model_is_the_last_step(run_folder: Path) -> None:
    scores = iter([0.6, 0.9, 0.7])
    result = make_trainer(run_folder, evaluate=lambda net: {"plain": next(scores)}).run()
    assert result.model_step == ModelStep("last", 15, 15)
    assert result.checkpoint == result.last_checkpoint
    # The best on the reported pairs is kept, for users who ask for it by name.
    best = load_checkpoint(run_folder / "checkpoints" / "best")
    assert (best.step, best.evaluations, best.judged_on, best.own_sets) == (10, 2, ["plain"], False)


@pytest.mark.parametrize("step", [7, 12])
def test_a_resumed_run_chooses_the_same_step(tmp_path: Path, step: int) -> None:
    def choose(backbone: nn.Module) -> Mapping[str, float]:
        weight = next(backbone.parameters())
        return {"plain": float(weight.detach().abs().sum() % 0.01)}

    expected = make_trainer(tmp_path / "straight", choose=choose).run()
    stopped_trainer(tmp_path / "resumed", step, choose=choose).run()
    result = make_trainer(tmp_path / "resumed", choose=choose).run(resume=True)
    assert result.model_step == expected.model_step
    assert result.model_step.evaluations == 3


def test_the_best_on_other_sets_is_forgotten_on_resume(run_folder: Path) -> None:
    stopped_trainer(run_folder, 7, choose=lambda net: {"easy": 0.99}).run()
    scores = iter([0.5, 0.6])
    trainer = make_trainer(run_folder, choose=lambda net: {"hard": next(scores)})
    assert trainer.run(resume=True).model_step == ModelStep(
        "best", 15, 15, 2, ("hard",), own_sets=True, accuracy=0.6
    )


def test_evaluation_only_at_the_end_or_never(run_folder: Path, tmp_path: Path) -> None:
    make_trainer(run_folder, make_config(evaluate_every=0)).run()
    assert [line["step"] for line in lines(run_folder, "evaluation")] == [15]
    result = make_trainer(tmp_path / "never", evaluate=None).run()
    assert result.model_step == ModelStep("last", 15, 15)
    assert result.checkpoint == result.last_checkpoint
    assert not result.interrupted
    assert lines(tmp_path / "never", "evaluation") == []


def test_the_length_may_be_given_in_steps(run_folder: Path) -> None:
    result = make_trainer(run_folder, make_config(epochs=None, steps=7)).run()
    assert result.steps == 7
    assert [line["step"] for line in lines(run_folder, "evaluation")] == [5, 7]


def test_the_head_hears_of_the_epoch_and_collects_only_for_records(run_folder: Path) -> None:
    class Hearing(BreakingHead):
        def __init__(self) -> None:
            super().__init__(99, 1.0)
            self.epochs: list[float] = []
            self.collected: list[bool] = []

        def advance(self, epoch: float) -> None:
            self.epochs.append(epoch)

        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            self.collected.append(self.collect_statistics)
            return super().forward(embeddings, labels)

    head = Hearing()
    Trainer(TinyNet(), head, Crowd(), make_config(log_every=6), run_folder=run_folder).run()
    assert head.epochs == [step / 5 for step in range(15)]
    assert [step for step, is_on in enumerate(head.collected, start=1) if is_on] == [1, 6, 12, 15]


def test_resuming_with_other_settings_or_without_a_checkpoint_is_refused(run_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        make_trainer(run_folder).run(resume=True)
    stopped_trainer(run_folder, 3).run()
    with pytest.raises(ValueError, match=r"seed was 0 when .* and cannot become 4"):
        make_trainer(run_folder, make_config(seed=4)).run(resume=True)
    with pytest.raises(ValueError, match=r"last does not fit this backbone and head"):
        make_trainer(run_folder, head="curricularface").run(resume=True)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"data": {"name": "synthetic", "people": 7}}, r"data.*people"),
        ({"data": {"name": "synthetic", "seed": 3}}, r"data.*seed"),
        ({"backbone": "sfnet20"}, r"backbone\.name"),
        ({"backbone": {"name": "sfnet4", "width": 8}}, r"backbone.*width"),
        ({"label_noise": {"rate": 0.5}}, r"label_noise"),
    ],
)
def test_a_run_is_not_resumed_with_other_data_or_another_network(
    changed: dict[str, Any], named: str, run_folder: Path
) -> None:
    stopped_trainer(run_folder, 3).run()
    before = (run_folder / "checkpoints" / "last" / "checkpoint.json").read_bytes()
    with pytest.raises(ValueError, match=named):
        make_trainer(run_folder, make_config(**changed)).run(resume=True)
    assert (run_folder / "checkpoints" / "last" / "checkpoint.json").read_bytes() == before


def test_the_time_of_a_run_is_that_of_all_its_parts(run_folder: Path) -> None:
    last = run_folder / "checkpoints" / "last"
    first = stopped_trainer(run_folder, 3).run()
    spent = load_checkpoint(last).seconds
    assert 0 < spent <= first.seconds
    facts = json.loads((last / "checkpoint.json").read_text())
    del facts["digest"]
    facts["seconds"] = 1000.0 + spent
    (last / "checkpoint.json").write_text(json.dumps(facts))
    result = make_trainer(run_folder).run(resume=True)
    assert 1000.0 + spent < load_checkpoint(last).seconds <= result.seconds < 2000.0


def test_images_are_mirrored_only_where_the_config_says_so(tmp_path: Path) -> None:
    crowd = Crowd()
    as_they_are = {image.tobytes() for image in crowd.images}
    for flip in (True, False):
        trainer = make_trainer(tmp_path / str(flip), make_config(epochs=1, flip=flip))
        batches = trainer.loader.batches(0, trainer.total_steps)
        seen = [image.numpy().tobytes() for batch in batches for image in batch.images]
        assert len(seen) == 40
        assert (set(seen) <= as_they_are) is not flip


def test_the_settings_reach_what_they_are_for(run_folder: Path) -> None:
    config = make_config(
        workers=2, worker_kind="threads", optimizer={"learning_rate": 0.3}, seed=4,
        schedule={"name": "constant", "warmup": 1.0},
    )  # fmt: skip
    trainer = make_trainer(run_folder, config)
    loader, plan = trainer.loader, trainer.loader.plan
    assert (loader.workers, loader.worker_kind, loader.has_processes) == (2, "threads", False)
    assert (loader.pin_memory, plan.batch_size, plan.seed) == (False, 8, 4)
    assert next(loader.batches(0, 1)).images.shape == (8, 24, 24, 3)
    assert (trainer.steps_per_epoch, trainer.total_steps) == (5, 15)
    # A warm-up of one epoch to the peak, which stays.
    rates = [trainer.schedule.learning_rate(step) for step in (0, 4, 5, 14)]
    assert rates == pytest.approx([0.06, 0.3, 0.3, 0.3])
    assert trainer.waiting.workers == 2


def test_a_new_run_has_done_nothing(run_folder: Path) -> None:
    trainer = make_trainer(run_folder)
    state = trainer.state
    assert (trainer.step, state.evaluated_step, state.evaluations) == (0, 0, 0)
    assert (state.best_metric, state.best_step, state.seconds) == (None, None, 0.0)
    assert (state.judged_on, state.own_sets) == ([], False)
    assert make_trainer(run_folder, choose=norm_of_weights).state.own_sets


def test_notices_are_reported_at_the_step_at_which_a_run_continues(run_folder: Path) -> None:
    heard: list[tuple[str, int | None]] = []

    class Ear(Events):
        def noticed(self, notice: Notice) -> None:
            heard.append((notice.text, notice.step))

    stopped_trainer(run_folder, 7).run()
    notice = Notice("changes", "the rate is lower now")
    make_trainer(run_folder, events=Ear()).run(resume=True, notices=[notice])
    assert heard == [("the rate is lower now", 7)]


def test_a_checkpoint_holds_the_state_of_its_run(run_folder: Path) -> None:
    trainer = stopped_trainer(run_folder, 8, choose=norm_of_weights)
    trainer.run()
    saved = load_checkpoint(run_folder / "checkpoints" / "last")
    assert (saved.step, saved.finished, saved.evaluated_step) == (8, False, 5)
    assert (saved.best_step, saved.evaluations) == (5, 1)
    assert (saved.judged_on, saved.own_sets) == (["plain"], True)
    assert saved.best_metric == trainer.state.best_metric
    # Step 8 is recorded, so the window is empty again.
    assert (saved.loss_sum, saved.loss_steps) == (0.0, 0)
    resumed = make_trainer(run_folder, choose=norm_of_weights)
    resumed._restore()
    assert resumed.state == saved


@pytest.mark.parametrize(
    ("accumulate", "sentence"),
    [
        (1, r"training\.batch_size=8 is not a multiple of 3 ranks; take 6 or 9$"),
        (2, r"=8 is not .* 3 ranks times 2 micro-batches \(training\.accumulate\); take 6 or 12$"),
    ],
)
def test_a_batch_that_ranks_cannot_share_names_the_nearest_that_fit(
    run_folder: Path, accumulate: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.training.trainer.current_team", lambda: Team(world=3))
    with pytest.raises(ValueError, match=sentence):
        make_trainer(run_folder, make_config(accumulate=accumulate))
    with pytest.raises(ValueError, match=r"built inside class_shards\(rank, 3\) to be one of 3"):
        make_trainer(run_folder, make_config(batch_size=6))


def test_seeds_change_the_run_and_nothing_else_does(tmp_path: Path) -> None:
    found = []
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        trainer = make_trainer(tmp_path / name, make_config(epochs=1, seed=seed))
        trainer.run()
        found.append(parameters(trainer)["backbone.layers.0.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_dropout_differs_from_step_to_step(run_folder: Path) -> None:
    trainer = make_trainer(run_folder, make_config(epochs=1), evaluate=None)
    drawn: list[Tensor] = []
    trainer.backbone.register_forward_pre_hook(lambda module, inputs: drawn.append(torch.rand(4)))
    trainer.run()
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(drawn) == 5


def test_bf16_trains_on_the_cpu(run_folder: Path) -> None:
    config = make_config(epochs=1, precision="bf16", accumulate=2)
    trainer = make_trainer(run_folder, config)
    assert trainer.run().steps == 5
    assert all(p.dtype is torch.float32 for p in trainer.backbone.parameters())


def test_tensorboard_files_are_written_where_asked_for(run_folder: Path) -> None:
    pytest.importorskip("tensorboard")
    make_trainer(run_folder, make_config(epochs=1, tensorboard=True)).run()
    assert list((run_folder / "tensorboard").iterdir())


def test_events_hear_of_a_failure_too(run_folder: Path) -> None:
    heard: list[str] = []

    class Listener(Events):
        def started(self, *, step: int, total_steps: int) -> None:
            heard.append(f"started {step}/{total_steps}")

        def trained(self, record: TrainingRecord) -> None:
            heard.append(f"trained {record.step}")

        def evaluated(self, record: EvaluationRecord) -> None:
            heard.append(f"evaluated {record.step}")

        def finished(self) -> None:
            heard.append("finished")

    def fail(backbone: nn.Module) -> Mapping[str, float]:
        raise ValueError("an image of the verification set is missing")

    with pytest.raises(ValueError, match="verification set"):
        make_trainer(run_folder, make_config(log_every=9), events=Listener(), evaluate=fail).run()
    assert heard == ["started 0/15", "trained 1", "finished"]


def test_checkpoints_within_an_epoch(run_folder: Path) -> None:
    saved: list[int] = []

    class Saves(Events):
        def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
            last = run_folder / "checkpoints" / "last"
            saved.append(load_checkpoint(last).step if last.exists() else 0)

    config = make_config(epochs=2, checkpoint_every=2, checkpoint_every_steps=3)
    make_trainer(run_folder, config, events=Saves(), evaluate=None).run()
    assert saved == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert load_checkpoint(run_folder / "checkpoints" / "last").step == 10


FUSED = {"optimizer": {"fused_head": True, "learning_rate": 0.05, "head_weight_decay": 0.01}}
ADAMW = {"name": "adamw", "betas": [0.8, 0.95], "head_learning_rate": 3.0}
MUON = {"name": "muon", "matrix_step": 0.05, "fused_head": True}


def test_a_fused_head_trains_to_the_same_weights(tmp_path: Path) -> None:
    found = []
    for is_fused in (True, False):
        config = make_config(accumulate=2, optimizer={**FUSED["optimizer"], "fused_head": is_fused})
        trainer = make_trainer(tmp_path / str(is_fused), config)
        assert len(trainer.update.optimizers) == (2 if is_fused else 1)
        trainer.run()
        found.append(parameters(trainer))
    for key, value in found[1].items():
        torch.testing.assert_close(found[0][key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [FUSED["optimizer"], ADAMW, MUON])
def test_what_the_optimiser_remembers_is_kept(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    config = make_config(sample_rate=0.6, optimizer=optimizer)
    straight = make_trainer(tmp_path / "straight", config)
    straight.run()
    stopped_trainer(tmp_path / "resumed", 8, config=config).run()
    resumed = make_trainer(tmp_path / "resumed", config)
    resumed.run(resume=True)
    found = parameters(resumed)
    assert all(torch.equal(found[key], value) for key, value in parameters(straight).items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer": {"fused_head": True}}, "optimizer.fused_head needs a head with class weigh"),
        ({"sample_rate": 0.5}, "training.sample_rate=0.5 needs a head with class weights"),
    ],
)
def test_heads_without_class_weights_refuse_what_needs_them(
    run_folder: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"{sentence}.*Triplet has none"):
        make_trainer(run_folder, make_config(**options), head="triplet")


def test_sampled_negatives_change_from_step_to_step_and_not_from_run_to_run(
    tmp_path: Path,
) -> None:
    found = []
    for name, rate in [("a", 0.4), ("b", 0.4), ("c", 1.0)]:
        trainer = make_trainer(tmp_path / name, make_config(epochs=1, sample_rate=rate))
        trainer.run()
        found.append(parameters(trainer)["head.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
