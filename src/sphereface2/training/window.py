"""The steps between two records of a training, summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sphereface2.training.events import TrainingRecord


@dataclass
class Window:
    """Sums over the steps since the last record.

    After a resume `loss` and `steps` go on as they were, since they belong to the run; time and
    images begin anew, since they belong to the process.
    """

    loss: float = 0.0
    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0

    def add(self, loss: float, *, images: int, seconds: float, wait_seconds: float) -> None:
        """Count one step in."""
        self.loss += loss
        self.steps += 1
        self.images += images
        self.seconds += seconds
        self.wait_seconds += wait_seconds

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    def record(
        self,
        *,
        step: int,
        epoch: float,
        learning_rate: float,
        gradient_norm: float,
        head: Mapping[str, float],
        bad_images: int,
    ) -> TrainingRecord:
        """The record of these steps."""
        return TrainingRecord(
            step=step,
            epoch=epoch,
            loss=self.loss / self.steps,
            learning_rate=learning_rate,
            images_per_second=self.images_per_second,
            data_wait=self.wait_seconds / self.seconds,
            gradient_norm=gradient_norm,
            head=head,
            bad_images=bad_images,
        )
