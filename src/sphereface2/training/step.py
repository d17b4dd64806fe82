"""One update of backbone and head by a batch: gradients, agreement among ranks, optimisers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm

from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import RunConfig
from sphereface2.data.loader.loader import Batch
from sphereface2.data.transforms import preprocessing_of
from sphereface2.heads.head import Head
from sphereface2.heads.proxy import ProxyHead, require_class_weights
from sphereface2.training.averaging import build_average
from sphereface2.training.devices import (
    can_compile,
    choose_precision,
    own_random_numbers,
    quiet_compiler,
    seed_random_numbers,
)
from sphereface2.training.distributed import Team
from sphereface2.training.muon import turned_by
from sphereface2.training.optimizer import (
    build_fused_sgd,
    build_optimizer,
    clip_gradients,
    remembered,
    set_learning_rate,
    squared_norm,
)


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
        self.preprocessing = preprocessing_of(config, backbone.input_size)
        self.fused = build_fused_sgd(head, config.optimizer)
        self.optimizer = build_optimizer(
            backbone, head, config.optimizer, precision=self.precision, team=team
        )
        self.optimizers = [self.optimizer, *([] if self.fused is None else [self.fused])]
        self.average = build_average(backbone, config.training.average)
        self.scaler = team.grad_scaler(device, enabled=self.precision is torch.float16)
        self._agree = StepAgreement(team, backbone, head, turned=turned_by(self.optimizer))
        self.is_compiled = config.training.compile and can_compile(device)
        if self.is_compiled:
            for module in head.modules():
                if isinstance(module, ProxyHead):
                    module.compile_maps()
        fit_head(head, backbone, sample_rate=config.training.sample_rate)

    def join(self) -> None:
        """Connect the network with those of the other ranks; all of them call it.

        Again where a part of it is frozen or released: gradients are exchanged of the rest only.
        """
        self.network: nn.Module = self.backbone
        if _learns(self.backbone):
            self.network = self.team.data_parallel(self.backbone, self.device)
        if self.network is not self.backbone:
            size = self.backbone.input_size
            warm_up_ddp(self.network, torch.zeros(2, 3, size, size, device=self.device))
        if self.is_compiled and gains_by_fusion(self.backbone, self.device):
            # One form for each shape, whatever came before it: a resumed run has the same. Dropout
            # draws torch's own random numbers, as in the plain form.
            compiled = torch.compile(self.network, dynamic=False, options={"fallback_random": True})
            self.network = cast(nn.Module, compiled)

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
        with quiet_compiler() if self.is_compiled else nullcontext():
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
        # A frozen network with a fused head leaves nothing to move here, which a scaler refuses.
        if not self.skips_overflows or any(
            p.grad is not None for group in self.optimizer.param_groups for p in group["params"]
        ):
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @property
    def skips_overflows(self) -> bool:
        """Whether a gradient that is not finite only means that the loss was scaled too high."""
        return self.scaler.is_enabled()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by name: the tensors themselves, so filling them sets the state.

        Momentum is kept under the name of its parameter, whichever optimiser moves that.
        """
        parts = {"backbone": self.backbone, "head": self.head}
        found: dict[str, Tensor] = {}
        names: dict[nn.Parameter, str] = {}
        for part, module in parts.items():
            found |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
            names |= {value: f"{part}.{name}" for name, value in module.named_parameters()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for kind, value in remembered(optimizer, parameter).items():
                        found[f"{kind}.{names[parameter]}"] = value
        return found if self.average is None else {**found, **self.average.tensors()}

    def rows(self) -> dict[str, int]:
        """The tensors that are cut over ranks, and their rows over all ranks."""
        if not isinstance(self.head, ProxyHead):
            return {}
        names = [f"head.{name}" for name in self.head.per_class]
        for kind in ("momentum", "mean_square"):
            names += [f"{kind}.head.{name}" for name in _class_parameters(self.head)]
        return dict.fromkeys(names, self.head.num_classes)


def fit_head(head: Head, backbone: Backbone, *, sample_rate: float) -> None:
    """Let the head see a share of the classes in each step, and the part of each view by itself.

    A head without class weights can do neither.
    """
    if sample_rate != 1.0:
        what = f"training.sample_rate={sample_rate:g}"
        require_class_weights(head, what).sample_negatives(sample_rate)
    parts = len(backbone.parts())
    if parts > 1:
        require_class_weights(head, f"a backbone of {parts} views").split(parts)


# The gradient of one step, in one piece or in micro-batches that give the very same gradient.


def add_gradients(
    backbone: nn.Module,
    head: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    micro_batches: int = 1,
    prepare: Callable[[Tensor], Tensor] | None = None,
    precision: torch.dtype | None = None,
    scaler: GradScaler | None = None,
    seed: tuple[int, ...] = (0,),
    head_seed: tuple[int, ...] = (0,),
) -> Tensor:
    """Add the gradient of the batch's loss to the parameters of both; returns the loss.

    The head sees the whole batch once, however many micro-batches there are: a loss may
    couple the samples of a batch. With several micro-batches the backbone therefore runs twice:
    first without a graph for the embeddings, then, once the head has given their gradient, micro-
    batch by micro-batch with a graph. So memory is that of a micro-batch, time is a third more,
    and the gradient is that of the large batch. Batch norm alone differs: it normalises over a
    micro-batch, and updates its running statistics once for each.

    `prepare` turns the images into the network's input. `precision` is for the products of the
    backbone and of the head; the head gets its embeddings in float32, and keeps its margins in
    that. `seed` determines dropout, `head_seed` what the head draws. On several ranks `images` and
    `labels` are a rank's share of the batch.
    """

    def half_products() -> AbstractContextManager[None]:
        return torch.autocast(images.device.type, dtype=precision, enabled=precision is not None)

    def embed(part: int, part_images: Tensor) -> Tensor:
        # Seeded by its number, a micro-batch draws the same dropout in both passes.
        seed_random_numbers(*seed, part, device=images.device)
        inputs = part_images if prepare is None else prepare(part_images)
        with half_products():
            embeddings: Tensor = backbone(inputs)
        return embeddings if precision is None else embeddings.float()

    def head_backward(embeddings: Tensor) -> Tensor:
        seed_random_numbers(*head_seed, device=images.device)
        with half_products():
            loss: Tensor = head(embeddings, labels)
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
        return loss.detach()

    with own_random_numbers(images.device):
        if micro_batches == 1:
            return head_backward(embed(0, images))
        parts = images.chunk(micro_batches)
        with torch.no_grad(), _kept_statistics(backbone):
            embeddings = torch.cat([embed(part, piece) for part, piece in enumerate(parts)])
        embeddings.requires_grad_()
        loss = head_backward(embeddings)
        if not _learns(backbone):
            return loss
        assert embeddings.grad is not None
        gradients = embeddings.grad.chunk(micro_batches)
        for part, (piece, gradient) in enumerate(zip(parts, gradients, strict=True)):
            is_last = part == micro_batches - 1
            with nullcontext() if is_last else _without_exchange(backbone):
                torch.autograd.backward(embed(part, piece), gradient)
        return loss


def _learns(backbone: nn.Module) -> bool:
    """Whether any part of a network is not frozen."""
    return any(parameter.requires_grad for parameter in backbone.parameters())


def gains_by_fusion(backbone: nn.Module, device: torch.device) -> bool:
    """Whether a network is worth compiling: on a CPU where norms stand between dense convolutions.

    There iresnet18 becomes 1.3 times as fast. sfnet20, which has nothing to fuse but a ReLU in
    place, and mobilefacenet with its convolutions of single channels become 8 % slower
    (docs/performance.md).
    """
    modules = list(backbone.modules())
    has_norms = any(isinstance(module, _BatchNorm) for module in modules)
    has_groups = any(isinstance(module, nn.Conv2d) and module.groups > 1 for module in modules)
    return device.type != "cpu" or (has_norms and not has_groups)


def warm_up_ddp(backbone: nn.Module, inputs: Tensor) -> None:
    """Run a network forward and backward once, without a trace in its state.

    A data-parallel network puts the gradients into the order in which they arrived the first time,
    and the order is in the last bits of their sums. After this a resumed run has the same
    order as one that was never stopped.
    """
    with own_random_numbers(inputs.device), _kept_statistics(backbone):
        torch.autograd.backward(backbone(inputs).sum())
    for parameter in backbone.parameters():
        parameter.grad = None


def _without_exchange(backbone: nn.Module) -> AbstractContextManager[None]:
    """Gradients stay on their rank, to be summed with those of the last micro-batch."""
    if isinstance(backbone, nn.parallel.DistributedDataParallel):
        return backbone.no_sync()
    return nullcontext()


@contextmanager
def _kept_statistics(backbone: nn.Module) -> Iterator[None]:
    """Batch norm normalises by the batch, as ever, but leaves its running statistics alone."""
    norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    try:
        for norm in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


# What the ranks exchange after each backward pass, all at once.


@dataclass(frozen=True)
class Agreed:
    """A step as all ranks see it."""

    loss: float
    gradient_norm: float
    stops: bool
    """Whether any rank was asked to stop."""


class StepAgreement:
    """Agrees on a step: its loss, its gradient's norm, and whether the training stops after it.

    The backbone's gradients are the same on all ranks by then. Of the head's, those of the class
    weights are parts of one gradient, and the others are averaged here.
    """

    def __init__(
        self,
        team: Team,
        backbone: nn.Module,
        head: nn.Module,
        *,
        turned: Sequence[nn.Parameter] = (),
    ) -> None:
        self.team = team
        self.turned = turned
        per_class = _class_parameters(head)
        # One rank has no parts: all its parameters count alike.
        self.shards = [] if team.is_alone else list(per_class.values())
        self.averaged = [p for name, p in head.named_parameters() if name not in per_class]
        apart = {id(parameter) for parameter in (*self.shards, *turned)}
        self.whole = [p for p in (*backbone.parameters(), *head.parameters()) if id(p) not in apart]

    def __call__(self, loss: Tensor, *, clip_norm: float | None, stops: bool) -> Agreed:
        """Clip the gradients, too, where `clip_norm` is given."""
        if self.team.is_alone:
            norm = clip_gradients(self.whole, clip_norm, turned=self.turned)
            whole_loss, whole_norm = _read(loss, norm)
            return Agreed(whole_loss, whole_norm, stops)
        gradients = [p.grad for p in self.averaged if p.grad is not None]
        # In float64 the mean of equal float32 numbers is exactly that number.
        numbers = [loss.new_tensor([float(stops)]), squared_norm(self.shards).reshape(1)]
        numbers += [loss.reshape(1), *(gradient.reshape(-1) for gradient in gradients)]
        total = self.team.sum(torch.cat([n.to(loss.device, torch.float64) for n in numbers]))
        mean = total / self.team.world
        place = 3
        for gradient in gradients:
            values = mean[place : place + gradient.numel()]
            gradient.copy_(values.view_as(gradient))
            place += gradient.numel()
        norm = clip_gradients(
            self.whole,
            clip_norm,
            turned=self.turned,
            shards=self.shards,
            shards_square=total[1],
        )
        mean_loss, whole_norm, stopping = _read(mean[2], norm, total[0])
        return Agreed(mean_loss, whole_norm, stopping > 0)


def _read(*numbers: Tensor) -> list[float]:
    """Numbers of a device on the host, by one wait for it."""
    values: list[float] = torch.stack([number.double() for number in numbers]).tolist()
    return values


def _class_parameters(head: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a head with a row for each class, by name."""
    if not isinstance(head, ProxyHead):
        return {}
    return {name: value for name, value in head.named_parameters() if name in head.per_class}
