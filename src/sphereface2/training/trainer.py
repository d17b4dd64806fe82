"""The training of a backbone with a head: steps, records, evaluations and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import nn

from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import RunConfig
from sphereface2.data.augmentation import build_augmentation
from sphereface2.data.loader.loader import Batch, Loader, multiples_near
from sphereface2.data.mixing import plan_batches
from sphereface2.data.sources.source import Source, bad_images
from sphereface2.heads.head import Head
from sphereface2.training.checkpoint import (
    FOLDER,
    Checkpoint,
    check_settings,
    load_checkpoint,
    load_tensors,
    run_settings,
    save_checkpoint,
)
from sphereface2.training.devices import NO_COMPILER, choose_device, keep_freed_memory
from sphereface2.training.distributed import current_team
from sphereface2.training.events import (
    EvaluationRecord,
    EventGroup,
    Events,
    MetricsFile,
    Notice,
    TensorBoard,
    TrainingRecord,
    WaitingAdvice,
    Window,
    headline,
)
from sphereface2.training.optimizer import Freezing, Schedule
from sphereface2.training.result import ModelStep, TrainingResult
from sphereface2.training.step import Update
from sphereface2.training.stopping import DivergedError, stop_signals

Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Trainer:
    """Trains as the config says and keeps metrics.jsonl and checkpoints/ in the run folder.

    Every step is a function of the state before it, the seed and the step's number, so a run that
    is stopped, or killed, and resumed ends with the same bits as one that was not (on the CPU;
    other devices add in an order of their own).

    Where a process group is up, the trainers of all ranks train together: each takes its share of
    every batch, and rank 0 evaluates, writes and reports the events. Build the head inside
    `heads.sharding.class_shards` then, so that each rank holds its part of the classes.

    With `training.average` the averaged network is what is evaluated and exported.

    The step to export is the best by `choose`, which scores sets that serve this choice alone, or
    else the last one. Without `choose` the best by `evaluate` is kept beside it, but not exported:
    a maximum over the very pairs that are reported reads too high.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        source: Source,
        config: RunConfig,
        *,
        run_folder: Path,
        evaluate: Evaluate | None = None,
        choose: Evaluate | None = None,
        events: Events | None = None,
    ) -> None:
        training = config.training
        self.config = config
        self.team = team = current_team()
        parts = team.world * training.accumulate
        if training.batch_size % parts:
            shares = f"{team.world} ranks"
            if training.accumulate > 1:
                shares += f" times {training.accumulate} micro-batches (training.accumulate)"
            fitting = multiples_near(training.batch_size, math.lcm(parts, head.images_per_person))
            raise ValueError(
                f"training.batch_size={training.batch_size} is not a multiple of {shares}; take "
                f"{fitting}"
            )
        if head.exchange.world == 1 and not team.is_alone:
            raise ValueError(
                f"the head must be built inside class_shards(rank, {team.world}) to be one of "
                f"{team.world} ranks"
            )
        self.device = choose_device(team.device_name(config.device))
        self.backbone = backbone.to(self.device)
        self.head = head.to(self.device)
        self.source = source
        self.evaluate = evaluate
        self.choose = choose
        self.last_path, self.best_path = (run_folder / FOLDER / name for name in ("last", "best"))
        plan = plan_batches(
            source,
            batch_size=training.batch_size,
            images_per_person=head.images_per_person,
            seed=config.seed,
        )
        augmentation = build_augmentation(config.augmentation.name, **config.augmentation.options)
        if augmentation.reshape and head.images_per_person > 1:
            raise ValueError(
                f"augmentation.reshape={augmentation.reshape:g} makes other people of single "
                f"images, and the head {config.head.name} compares images of one person with each "
                "other; set augmentation.reshape=0"
            )
        self.loader = Loader(
            source,
            plan,
            size=backbone.input_size,
            flip=training.flip,
            augmentation=None if augmentation.is_idle else augmentation,
            workers=training.workers,
            worker_kind=training.worker_kind,
            pin_memory=self.device.type == "cuda",
            share=(team.rank, team.world),
        )
        self.steps_per_epoch = plan.steps_per_epoch
        self.total_steps = training.steps or cast(int, training.epochs) * plan.steps_per_epoch
        self.schedule = Schedule(
            config.schedule,
            peak=config.optimizer.learning_rate,
            total_steps=self.total_steps,
            steps_per_epoch=plan.steps_per_epoch,
        )
        self.update = Update(self.backbone, self.head, config, team=team, device=self.device)
        self.freezing = Freezing(self.backbone, training.freeze)
        if self.total_steps <= self.freezing.epochs * plan.steps_per_epoch < math.inf:
            raise ValueError(
                f"training.freeze.epochs={self.freezing.epochs:g} lasts for the whole training "
                f"({self.total_steps:,} steps), so that what is frozen would never learn; train "
                "longer, or say training.freeze.epochs=null to keep it on purpose"
            )
        sinks: list[Events] = [MetricsFile(run_folder / "metrics.jsonl")]
        if training.tensorboard:
            sinks.append(TensorBoard(run_folder / "tensorboard"))
        sinks += [] if events is None else [events]
        self.events = EventGroup(sinks if team.is_first else [])
        self.state = Checkpoint(
            settings=run_settings(config, classes=head.num_classes, labels=source.labels),
            own_sets=choose is not None,
        )
        self.window = Window()
        self.waiting = WaitingAdvice(workers=training.workers)
        self._last_good: Path | None = None
        self._stop_requested = False
        self._stops = False

    @property
    def step(self) -> int:
        """Updates done so far, over all parts of the run."""
        return self.state.step

    def stop(self) -> None:
        """Ask the running training to end after its present step, with a checkpoint."""
        self._stop_requested = True

    def run(self, *, resume: bool = False, notices: Sequence[Notice] = ()) -> TrainingResult:
        """Train to the end, from the start or from the last checkpoint of the run folder.

        `notices` are passed on at the start. Ctrl-C, SIGTERM and SIGHUP end it early, with a
        checkpoint and `interrupted` in the result.
        """
        if resume:
            self._restore()
        elif self.update.average is not None:
            self.update.average.start()
        self._stop_requested = self._stops = False
        self._began = time.monotonic()
        if self.device.type == "cpu":
            keep_freed_memory()
        try:
            with stop_signals(self.stop, only_first=self.team.is_alone) as caught:
                self.events.started(step=self.step, total_steps=self.total_steps)
                if self.config.training.compile and not self.update.is_compiled:
                    notices = [*notices, Notice("compile", NO_COMPILER)]
                for notice in notices:
                    self.events.noticed(replace(notice, step=self.step))
                self._train()
        finally:
            self.events.finished()
        numbers = [number for number in self.team.gather(caught.number) if number is not None]
        state = self.state
        is_chosen = self.choose is not None and state.own_sets and state.best_step is not None
        return TrainingResult(
            steps=self.step,
            total_steps=self.total_steps,
            interrupted=not self._is_finished,
            stopped_by=numbers[0] if numbers else None,
            model_step=state.best_of(self.step)
            if is_chosen
            else ModelStep("last", self.step, self.step),
            checkpoint=self.best_path if is_chosen else self.last_path,
            last_checkpoint=self.last_path,
            seconds=self._seconds(),
        )

    def _train(self) -> None:
        self.backbone.train()
        self.head.train()
        training = self.config.training
        self.freezing.apply(self.step / self.steps_per_epoch)
        self.freezing.keep()
        self.update.join()
        # A run that was stopped just before an evaluation makes up for it.
        if self.step > self.state.evaluated_step and self._is_due(training.evaluate_every):
            self._evaluate()
            self._save(self.last_path)
        with closing(self.loader.batches(self.step, self.total_steps)) as batches:
            for batch in batches:
                self._train_step(batch)
                if not self._must_stop and self._is_due(training.evaluate_every):
                    self._evaluate()
                if self._must_stop or self._is_checkpoint_due():
                    self._save(self.last_path)
                if self._must_stop:
                    return

    @property
    def _is_finished(self) -> bool:
        evaluates = self._judges or self.update.average is not None
        is_evaluated = not evaluates or self.state.evaluated_step >= self.total_steps
        return self.step >= self.total_steps and is_evaluated

    @property
    def _judges(self) -> bool:
        return self.evaluate is not None or self.choose is not None

    @property
    def _must_stop(self) -> bool:
        """Whether this rank, or among several any of them in the last step, was asked to stop."""
        return self._stop_requested if self.team.is_alone else self._stops

    def _train_step(self, batch: Batch) -> None:
        began = time.perf_counter()
        training = self.config.training
        number = self.step + 1
        is_recorded = number in (1, self.total_steps) or number % training.log_every == 0
        rate = self.schedule.learning_rate(self.step)
        epoch = self.step / self.steps_per_epoch
        if self.freezing.apply(epoch):
            self.update.join()
        self.head.advance(epoch)
        self.head.collect_statistics = is_recorded
        agreed = self.update.differentiate(
            batch, step=self.step, rate=rate, stops=self._stop_requested
        )
        self._check_finite("loss", agreed.loss, rate)
        if not self.update.skips_overflows:
            self._check_finite("gradient", agreed.gradient_norm, rate)
        self.update.apply()
        self.state.step = number
        if self.update.average is not None:
            self.update.average.add(number, ends_epoch=self._is_due(1))
        self._stops = agreed.stops
        seconds = batch.wait_seconds + time.perf_counter() - began
        self.window.add(
            agreed.loss,
            images=len(batch.labels) * self.team.world,
            seconds=seconds,
            wait_seconds=batch.wait_seconds,
        )
        self.waiting.add(
            seconds=seconds,
            wait_seconds=batch.wait_seconds,
            wait_cpu_seconds=batch.wait_cpu_seconds,
        )
        speed = self.window.images_per_second
        self.events.stepped(number, loss=agreed.loss, learning_rate=rate, rate=speed)
        if is_recorded:
            self._record(rate, gradient_norm=agreed.gradient_norm)

    def _record(self, rate: float, *, gradient_norm: float) -> None:
        """Report the steps since the last record, and what would shorten the waiting in them."""
        record = TrainingRecord(
            step=self.step,
            epoch=self.step / self.steps_per_epoch,
            loss=self.window.mean_loss,
            learning_rate=rate,
            images_per_second=self.window.images_per_second,
            data_wait=self.window.data_wait,
            gradient_norm=gradient_norm,
            head=self.head.statistics(),
            bad_images=len(bad_images(self.source)),
        )
        self.events.trained(record)
        self.window = Window()
        advice = self.waiting.notice(self.step)
        if advice is not None:
            self.events.noticed(advice)

    def _check_finite(self, quantity: str, value: float, rate: float) -> None:
        if math.isfinite(value):
            return
        kept = "there is no checkpoint yet, so it starts again"
        if self._last_good is not None:
            kept = f"the last good checkpoint is {self._last_good}"
        run, lower = self.last_path.parent.parent, self.config.optimizer.learning_rate / 2
        with self.team.together():
            raise DivergedError(
                f"the {quantity} turned {value} at step {self.step + 1} with learning rate "
                f"{rate:.4g}; {kept}; resume with a lower rate: sphereface2 resume {run} "
                f"optimizer.learning_rate={lower:g} (or set training.clip_norm, or lengthen "
                "schedule.warmup)"
            )

    def _is_due(self, epochs: int) -> bool:
        """Whether what happens every so many epochs (0: at the end) happens after this step."""
        steps = epochs * self.steps_per_epoch
        return self.step == self.total_steps or (steps > 0 and self.step % steps == 0)

    def _is_checkpoint_due(self) -> bool:
        steps = self.config.training.checkpoint_every_steps
        is_step = steps > 0 and self.step % steps == 0
        return is_step or self._is_due(self.config.training.checkpoint_every)

    def _evaluate(self) -> None:
        if not self._judges and self.step < self.total_steps:
            return
        network = self.backbone
        if self.update.average is not None:
            network = self.update.average.network
            self.team.from_first(self._renew_statistics)
            self.state.evaluated_step = self.step
        if not self._judges:
            return
        network.eval()
        try:
            metrics = self._measure(self.evaluate, network)
            choice = self._measure(self.choose, network)
        finally:
            self.backbone.train()
            self.freezing.keep()
        record = EvaluationRecord(self.step, self.step / self.steps_per_epoch, metrics, choice)
        self.events.evaluated(record)
        state = self.state
        state.evaluated_step = self.step
        judged, own = (metrics, False) if self.choose is None else (choice, True)
        if (state.judged_on, state.own_sets) != (list(judged), own):
            # A run that is resumed with other sets: the best on those before says nothing here.
            state.judged_on, state.own_sets = list(judged), own
            state.best_metric, state.best_step, state.evaluations = None, None, 0
        state.evaluations += 1
        reached = headline(judged)
        if reached > (-math.inf if state.best_metric is None else state.best_metric):
            state.best_metric, state.best_step = reached, self.step
            self._save(self.best_path)

    def _renew_statistics(self) -> None:
        """Make the averaged network's batch-norm statistics from the first training images.

        They are those of the first epoch's first steps, as evaluation would see them: neither
        mirrored nor augmented.
        """
        training, average = self.config.training, self.update.average
        assert training.average is not None
        assert average is not None
        steps = math.ceil(training.average.statistics / training.batch_size)
        loader = Loader(
            self.source,
            self.loader.plan,
            size=self.backbone.input_size,
            flip=False,
            workers=self.loader.workers,
            worker_kind=self.loader.worker_kind,
        )
        # In near-equal pieces: batch norm cannot normalise over a single image that is left.
        pieces = math.ceil(self.loader.plan.batch_size / self.config.evaluation.batch_size)
        prepare = self.update.preprocessing.to_tensor
        # As it was in the last step: a resumed run may have released it by now.
        is_frozen = (self.step - 1) / self.steps_per_epoch < self.freezing.epochs
        with closing(loader.batches(0, min(steps, self.steps_per_epoch))) as batches:
            average.renew_statistics(
                (
                    prepare(piece.to(self.device))
                    for batch in batches
                    for piece in batch.images.chunk(pieces)
                ),
                frozen=self.freezing.modules if is_frozen else (),
            )

    def _measure(self, evaluate: Evaluate | None, network: nn.Module) -> dict[str, float]:
        """What rank 0 finds, on all ranks."""
        if evaluate is None:
            return {}
        return self.team.from_first(lambda: dict(evaluate(network)))

    def _save(self, path: Path) -> None:
        checkpoint = replace(
            self.state,
            scaler=self.update.scaler.state_dict(),
            finished=self._is_finished,
            loss_sum=self.window.loss,
            loss_steps=self.window.steps,
            seconds=self._seconds(),
        )
        average = self.update.average
        if average is not None and self.state.evaluated_step != self.step:
            average.borrow_statistics()
        tensors, rows = self.update.tensors(), self.update.rows()
        save_checkpoint(path, checkpoint, tensors, rows=rows, team=self.team)
        self._last_good = path

    def require_own(self, checkpoint: Checkpoint) -> None:
        """A ValueError if the run of the last checkpoint cannot continue as this training."""
        check_settings(checkpoint, self.state.settings, self.last_path)
        if self.total_steps < checkpoint.step:
            training = self.config.training
            length = (
                f"training.steps={training.steps}"
                if training.steps
                else f"training.epochs={training.epochs}, which is {self.total_steps} steps,"
            )
            raise ValueError(
                f"{length} is shorter than what {self.last_path.parent.parent} has done already: "
                f"{checkpoint.step} steps; give at least as many"
            )

    def _restore(self) -> None:
        with self.team.together():
            checkpoint = load_checkpoint(self.last_path)
            self.require_own(checkpoint)
        tensors, rows = self.update.tensors(), self.update.rows()
        load_tensors(self.last_path, tensors, rows=rows, team=self.team)
        if checkpoint.scaler:  # else precision was another, and the scale starts as in a new run
            self.update.scaler.load_state_dict(checkpoint.scaler)
        self.state = replace(checkpoint, settings=self.state.settings)
        self.window = Window(loss=checkpoint.loss_sum, steps=checkpoint.loss_steps)
        self._last_good = self.last_path

    def _seconds(self) -> float:
        return self.state.seconds + time.monotonic() - self._began
