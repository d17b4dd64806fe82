"""The training of a backbone with a head: steps, records, evaluations and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from sphereface2.backbones.backbone import Backbone
from sphereface2.backbones.model_folder import Preprocessing
from sphereface2.config import RunConfig
from sphereface2.data.loader import Batch, BatchPlan, Loader
from sphereface2.data.source import Source
from sphereface2.heads.head import Head
from sphereface2.training.checkpoint import (
    Checkpoint,
    check_settings,
    load_checkpoint,
    run_settings,
    save_checkpoint,
)
from sphereface2.training.devices import choose_device, choose_precision
from sphereface2.training.events import (
    EvaluationRecord,
    EventGroup,
    Events,
    JsonLines,
    TensorBoard,
)
from sphereface2.training.gradients import add_gradients
from sphereface2.training.optimizer import build_optimizer, clip_gradients, set_learning_rate
from sphereface2.training.result import TrainingResult
from sphereface2.training.schedule import Schedule
from sphereface2.training.stopping import DivergedError, stop_signals
from sphereface2.training.window import Window

Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Trainer:
    """Trains as the config says and keeps metrics.jsonl and checkpoints/ in the run folder.

    Every step is a function of the state before it, the seed and the step's number, so a run that
    is stopped, or killed, and resumed ends with the same bits as one that was not (on the CPU;
    other devices add in an order of their own).
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
        events: Events | None = None,
    ) -> None:
        training = config.training
        self.config = config
        self.device = choose_device(config.device)
        self.precision = choose_precision(config.precision, self.device)
        self.backbone = backbone.to(self.device)
        self.head = head.to(self.device)
        self.evaluate = evaluate
        self.last_path = run_folder / "checkpoints" / "last.pt"
        self.best_path = run_folder / "checkpoints" / "best.pt"
        plan = BatchPlan(
            source.labels,
            batch_size=training.batch_size,
            images_per_person=head.images_per_person,
            seed=config.seed,
        )
        self.loader = Loader(
            source,
            plan,
            size=backbone.input_size,
            flip=training.flip,
            workers=training.workers,
            pin_memory=self.device.type == "cuda",
        )
        self.steps_per_epoch = plan.steps_per_epoch
        self.total_steps = training.steps or cast(int, training.epochs) * plan.steps_per_epoch
        self.schedule = Schedule(
            config.schedule,
            peak=config.optimizer.learning_rate,
            total_steps=self.total_steps,
            steps_per_epoch=plan.steps_per_epoch,
        )
        self.optimizer = build_optimizer(self.backbone, self.head, config.optimizer)
        self.scaler = GradScaler(self.device.type, enabled=self.precision is torch.float16)
        self.preprocessing = Preprocessing(input_size=backbone.input_size)
        self.settings = run_settings(config, images=len(source))
        sinks: list[Events] = [JsonLines(run_folder / "metrics.jsonl")]
        if training.tensorboard:
            sinks.append(TensorBoard(run_folder / "tensorboard"))
        self.events = EventGroup([*sinks, *([] if events is None else [events])])
        self.step = 0
        self.best_metric: float | None = None
        self.best_step: int | None = None
        self.evaluated_step = 0
        self.seconds_before = 0.0
        self.window = Window()
        self._last_good: Path | None = None
        self._stop_requested = False

    def stop(self) -> None:
        """Ask the running training to end after its present step, with a checkpoint."""
        self._stop_requested = True

    def run(self, *, resume: bool = False) -> TrainingResult:
        """Train to the end, from the start or from the last checkpoint of the run folder.

        Ctrl-C and SIGTERM end it early, with a checkpoint and `interrupted` in the result.
        """
        if resume:
            self._restore()
        self._stop_requested = False
        self._began = time.monotonic()
        self.last_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with stop_signals(self.stop):
                self.events.started(step=self.step, total_steps=self.total_steps)
                self._train()
        finally:
            self.events.finished()
        unevaluated = self.evaluate is not None and self.evaluated_step < self.total_steps
        return TrainingResult(
            steps=self.step,
            total_steps=self.total_steps,
            interrupted=self.step < self.total_steps or unevaluated,
            best_metric=self.best_metric,
            best_step=self.best_step,
            last_checkpoint=self.last_path,
            best_checkpoint=self.last_path if self.best_step is None else self.best_path,
            seconds=self._seconds(),
        )

    def _train(self) -> None:
        self.backbone.train()
        self.head.train()
        training = self.config.training
        # A run that was stopped just before an evaluation makes up for it.
        if self.step > self.evaluated_step and self._is_due(training.evaluate_every):
            self._evaluate()
            self._save(self.last_path)
        with closing(self.loader.batches(self.step, self.total_steps)) as batches:
            for batch in batches:
                self._train_step(batch)
                if not self._stop_requested and self._is_due(training.evaluate_every):
                    self._evaluate()
                if self._stop_requested or self._is_due(training.checkpoint_every):
                    self._save(self.last_path)
                if self._stop_requested:
                    return

    def _train_step(self, batch: Batch) -> None:
        began = time.perf_counter()
        training = self.config.training
        number = self.step + 1
        is_recorded = number in (1, self.total_steps) or number % training.log_every == 0
        rate = self.schedule.learning_rate(self.step)
        set_learning_rate(self.optimizer, rate)
        self.head.advance(self.step / self.steps_per_epoch)
        self.head.collect_statistics = is_recorded
        self.optimizer.zero_grad()
        loss = add_gradients(
            self.backbone,
            self.head,
            batch.images.to(self.device, non_blocking=True),
            batch.labels.to(self.device, non_blocking=True),
            micro_batches=training.accumulate,
            prepare=self.preprocessing.to_tensor,
            precision=self.precision,
            scaler=self.scaler,
            seed=(self.config.seed, self.step),
        ).item()
        self._check_finite("loss", loss, rate)
        self.scaler.unscale_(self.optimizer)
        parameters = [*self.backbone.parameters(), *self.head.parameters()]
        gradient_norm = clip_gradients(parameters, training.clip_norm).item()
        if not self.scaler.is_enabled():  # a scaler passes over such steps and lowers its scale
            self._check_finite("gradient", gradient_norm, rate)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step = number
        self.window.add(
            loss,
            images=len(batch.labels),
            seconds=batch.wait_seconds + time.perf_counter() - began,
            wait_seconds=batch.wait_seconds,
        )
        speed = self.window.images_per_second
        self.events.stepped(number, loss=loss, learning_rate=rate, rate=speed)
        if is_recorded:
            record = self.window.record(
                step=number,
                epoch=number / self.steps_per_epoch,
                learning_rate=rate,
                gradient_norm=gradient_norm,
                head=self.head.statistics(),
            )
            self.events.trained(record)
            self.window = Window()

    def _check_finite(self, quantity: str, value: float, rate: float) -> None:
        if not math.isfinite(value):
            raise DivergedError(
                quantity,
                value=value,
                step=self.step + 1,
                learning_rate=rate,
                checkpoint=self._last_good,
            )

    def _is_due(self, epochs: int) -> bool:
        """Whether what happens every so many epochs (0: at the end) happens after this step."""
        steps = epochs * self.steps_per_epoch
        return self.step == self.total_steps or (steps > 0 and self.step % steps == 0)

    def _evaluate(self) -> None:
        if self.evaluate is None:
            return
        self.backbone.eval()
        try:
            metrics = dict(self.evaluate(self.backbone))
        finally:
            self.backbone.train()
        record = EvaluationRecord(self.step, self.step / self.steps_per_epoch, metrics)
        self.evaluated_step = self.step
        self.events.evaluated(record)
        if record.headline > (-math.inf if self.best_metric is None else self.best_metric):
            self.best_metric, self.best_step = record.headline, self.step
            self._save(self.best_path)

    def _save(self, path: Path) -> None:
        checkpoint = Checkpoint(
            step=self.step,
            settings=self.settings,
            backbone=self.backbone.state_dict(),
            head=self.head.state_dict(),
            optimizer=self.optimizer.state_dict(),
            scaler=self.scaler.state_dict(),
            best_metric=self.best_metric,
            best_step=self.best_step,
            evaluated_step=self.evaluated_step,
            loss_sum=self.window.loss,
            loss_steps=self.window.steps,
            seconds=self._seconds(),
        )
        save_checkpoint(path, checkpoint)
        self._last_good = path

    def _restore(self) -> None:
        checkpoint = load_checkpoint(self.last_path)
        check_settings(checkpoint, self.settings, self.last_path)
        try:
            self.backbone.load_state_dict(checkpoint.backbone)
            self.head.load_state_dict(checkpoint.head)
            self.optimizer.load_state_dict(checkpoint.optimizer)
            self.scaler.load_state_dict(checkpoint.scaler)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self.last_path} does not fit this backbone and head: {reason}"
            ) from None
        self.step = checkpoint.step
        self.best_metric, self.best_step = checkpoint.best_metric, checkpoint.best_step
        self.evaluated_step = checkpoint.evaluated_step
        self.window = Window(loss=checkpoint.loss_sum, steps=checkpoint.loss_steps)
        self.seconds_before = checkpoint.seconds
        self._last_good = self.last_path

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._began
