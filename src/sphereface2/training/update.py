"""One update of backbone and head by a batch: gradients, agreement among ranks, optimisers."""

from __future__ import annotations

import torch
from torch import Tensor

from sphereface2.backbones.backbone import Backbone
from sphereface2.backbones.model_folder import Preprocessing
from sphereface2.config import RunConfig
from sphereface2.data.loader import Batch
from sphereface2.heads.head import Head
from sphereface2.heads.proxy import ProxyHead
from sphereface2.training.agreement import Agreed, StepAgreement
from sphereface2.training.devices import choose_precision
from sphereface2.training.distributed import Team
from sphereface2.training.gradients import add_gradients, settle
from sphereface2.training.optimizer import build_fused_sgd, build_optimizer, set_learning_rate
from sphereface2.training.state import state_rows, state_tensors


class Update:
    """Owns what moves the parameters; the trainer says when, and at which rate.

    `differentiate` comes first. All ranks agree on what it returns, so they can decide alike
    whether `apply` follows.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        config: RunConfig,
        *,
        team: Team,
        device: torch.device,
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.config = config
        self.team = team
        self.device = device
        self.precision = choose_precision(config.precision, device)
        self.preprocessing = Preprocessing(input_size=backbone.input_size)
        self.fused = build_fused_sgd(head, config.optimizer)
        self.optimizer = build_optimizer(backbone, head, config.optimizer)
        self.optimizers = [self.optimizer, *([] if self.fused is None else [self.fused])]
        self.scaler = team.grad_scaler(device, enabled=self.precision is torch.float16)
        self._agree = StepAgreement(team, backbone, head)
        _sample_negatives(head, config.training.sample_rate)

    def join(self) -> None:
        """Connect the network with those of the other ranks; all of them call it."""
        self.network = self.team.data_parallel(self.backbone, self.device)
        if not self.team.is_alone:
            size = self.backbone.input_size
            settle(self.network, torch.zeros(2, 3, size, size, device=self.device))

    def differentiate(self, batch: Batch, *, step: int, rate: float, stops: bool) -> Agreed:
        """The gradients of the whole batch, clipped; `batch` is this rank's share of it.

        Random numbers are a function of the seed, the step, the micro-batch and the rank.
        """
        training = self.config.training
        for optimizer in self.optimizers:
            set_learning_rate(optimizer, rate)
        if self.fused is not None:
            self.fused.loss_scale = self.scaler.get_scale()
        self.optimizer.zero_grad()
        # A head that holds a part of the classes draws for its part; one that is the same on all
        # ranks must draw the same on all.
        part = self.team.rank if isinstance(self.head, ProxyHead) else 0
        loss = add_gradients(
            self.network,
            self.head,
            batch.images.to(self.device, non_blocking=True),
            batch.labels.to(self.device, non_blocking=True),
            micro_batches=training.accumulate,
            prepare=self.preprocessing.to_tensor,
            precision=self.precision,
            scaler=self.scaler,
            seed=(self.config.seed, step, self.team.rank),
            head_seed=(self.config.seed, step, part, training.accumulate),
        )
        self.scaler.unscale_(self.optimizer)
        return self._agree(loss, clip_norm=training.clip_norm, stops=stops)

    def apply(self) -> None:
        """Move the parameters."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @property
    def skips_overflows(self) -> bool:
        """Whether a gradient that is no number only means that the loss was scaled too high."""
        return self.scaler.is_enabled()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint keeps, by name; filling the tensors sets the state."""
        return state_tensors(self.backbone, self.head, self.optimizers)

    def rows(self) -> dict[str, int]:
        """The tensors that are cut over ranks, and their rows over all ranks."""
        return state_rows(self.head)


def _sample_negatives(head: Head, rate: float) -> None:
    if rate == 1.0:
        return
    if not isinstance(head, ProxyHead):
        raise ValueError(
            f"training.sample_rate={rate:g} needs a head with class weights; "
            f"{type(head).__name__} has none"
        )
    head.sample_negatives(rate)
