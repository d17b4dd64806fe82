"""What moves, and how far: SGD, AdamW or Muon, clipping, the learning rate, and frozen parts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sphereface2.config.schema import FreezeConfig, OptimizerConfig, ScheduleConfig
from sphereface2.heads.class_rows import FusedSGD
from sphereface2.heads.head import Head
from sphereface2.heads.proxy import ProxyHead, require_class_weights
from sphereface2.registry import did_you_mean, near
from sphereface2.training.distributed import ALONE, Team
from sphereface2.training.muon import Muon, turning


def build_optimizer(
    backbone: nn.Module,
    head: nn.Module,
    config: OptimizerConfig,
    *,
    precision: torch.dtype | None = None,
    team: Team = ALONE,
) -> torch.optim.Optimizer:
    """SGD with momentum, as the paper trains, AdamW, or Muon for the backbone's matrices.

    With SGD weight decay is on all of the backbone, biases and norms included, as in the authors'
    code; with the others only on weights of two dimensions and more, as is usual with them;
    `decay_norms_and_biases` sets either. It is on the class weights of the head but not on its
    biases: SphereFace2's shared bias is the threshold that all classifiers agree on (-24 to 22 at
    the start of the published settings), and decay would pull it to zero whatever the data say.
    Class weights that `build_fused_sgd` has taken over are left out.

    AdamW moves every number by at most about the learning rate per step, however large it is. The
    head's bias is in logits, which are r times a cosine, so its rate is in these units, and ten
    times that: a margin that rises by 0.3 in some hundred steps moves the best bias by 0.3 r, and
    a bias that lags behind lets all embeddings collapse to one.

    Muon moves the backbone's matrices, with products in `precision`, the work divided over the
    `team`; all else, class weights too, moves by SGD.
    """
    moved = moved_by_head(head)
    # The head's own and that of a head within it, such as the term on pairs.
    with_bias = [
        (each, bias)
        for each in head.modules()
        if (each is head or isinstance(each, Head))
        and isinstance(bias := getattr(each, "bias", None), nn.Parameter)
        and bias.requires_grad
    ]
    network = [p for p in backbone.parameters() if p.requires_grad]
    trained = [p for p in head.parameters() if p.requires_grad and p is not moved]
    decays_all = config.decay_norms_and_biases
    if decays_all is None:
        decays_all = config.name == "sgd"
    turned = turning(network) if config.name == "muon" else []
    plain = [p for p in network if not any(p is matrix for matrix in turned)]
    per_rate = config.learning_rate / config.matrix_step
    decay, rate = config.weight_decay, config.backbone_learning_rate
    other = [p for p in trained if p.ndim <= 1 and not any(p is bias for _, bias in with_bias)]
    # Parameters, their weight decay, and their learning rate in units of the config's.
    parts: list[tuple[list[nn.Parameter], float, float]] = [
        # They shrink by as much as SGD would shrink them, whatever the size of their steps.
        (turned, decay * per_rate, rate / per_rate),
        ([p for p in plain if decays_all or p.ndim > 1], decay, rate),
        ([p for p in plain if not decays_all and p.ndim <= 1], 0.0, rate),
        ([p for p in trained if p.ndim > 1], _head_decay(config), config.head_learning_rate),
        (other, 0.0, 1.0),
        *(([bias], 0.0, _bias_rate(each, config)) for each, bias in with_bias),
    ]
    groups: list[dict[str, Any]] = [
        {"params": params, "weight_decay": decay, "rate": rate, "turns": params is turned}
        for params, decay, rate in parts
        if params
    ]
    # Fused: one pass over the weights; else it is three, each from memory.
    built: torch.optim.Optimizer
    if config.name == "adamw":
        built = torch.optim.AdamW(groups, betas=config.betas, eps=config.eps)
    elif config.name == "muon":
        built = Muon(groups, momentum=config.momentum, fused=True, precision=precision, team=team)
    else:
        built = torch.optim.SGD(
            groups, momentum=config.momentum, nesterov=config.nesterov, fused=True
        )
    set_learning_rate(built, config.learning_rate)
    return built


def build_fused_sgd(head: nn.Module, config: OptimizerConfig) -> FusedSGD | None:
    """The optimiser that moves the class weights inside the head, if the config asks for it."""
    if not config.fused_head:
        return None
    fused = require_class_weights(head, "optimizer.fused_head").fused_sgd(
        lr=config.learning_rate, momentum=config.momentum, weight_decay=_head_decay(config)
    )
    fused.param_groups[0]["rate"] = config.head_learning_rate
    set_learning_rate(fused, config.learning_rate)
    return fused


def moved_by_head(head: nn.Module) -> nn.Parameter | None:
    """The class weights that `build_fused_sgd` has taken over."""
    return head.weight if isinstance(head, ProxyHead) and head.fused is not None else None


_BIAS_RATE = 10.0  # with AdamW, in units of the logits


def _bias_rate(head: nn.Module, config: OptimizerConfig) -> float:
    """Of a head's bias; with AdamW in units of what the cosines are multiplied by: r or s."""
    if config.name != "adamw":
        return 1.0
    unit = getattr(head, "radius", getattr(head, "scale", 1.0))
    return _BIAS_RATE * (unit if isinstance(unit, float) else 1.0)


def _head_decay(config: OptimizerConfig) -> float:
    return config.weight_decay if config.head_weight_decay is None else config.head_weight_decay


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate for every parameter, times the `rate` of its group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]


def remembered(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """What an optimiser keeps of a parameter from step to step, by its name in checkpoints.

    Before the first step it is made here, as the optimiser would make it with the first gradient.
    """
    state = optimizer.state[parameter]
    if isinstance(optimizer, torch.optim.AdamW):
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter).detach()
            state["exp_avg_sq"] = torch.zeros_like(parameter).detach()
        return {
            "momentum": state["exp_avg"],
            "mean_square": state["exp_avg_sq"],
            "updates": state["step"],
        }
    if not optimizer.param_groups[0]["momentum"]:
        return {}
    if state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(parameter).detach()
    return {"momentum": state["momentum_buffer"]}


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    clip_norm: float | None,
    *,
    turned: Iterable[nn.Parameter] = (),
    shards: Iterable[nn.Parameter] = (),
    shards_square: Tensor | None = None,
) -> Tensor:
    """The norm of the gradient over all parameters together, which is then at most `clip_norm`.

    `turned` are matrices of Muon, which looks at the direction of a gradient only: they have no
    part in the norm, but make it nan where they are not finite. `shards` are parameters of which
    this rank holds a part, and `shards_square` is the squared norm of their gradients over all
    ranks.
    """
    norm = torch.nn.utils.get_total_norm(_gradients(parameters := list(parameters)))
    if shards_square is not None:
        norm = (norm.double().square() + shards_square).sqrt().to(norm.dtype)
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_([*parameters, *shards], clip_norm, norm)
    matrices = _gradients(turned)
    return norm + 0.0 * torch.nn.utils.get_total_norm(matrices) if matrices else norm


def squared_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The squared norm of the gradients, to be summed over ranks."""
    return torch.nn.utils.get_total_norm(_gradients(parameters)).double().square()


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


# The learning rate as a pure function of the step.


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to the peak, then one of four shapes over the remaining steps."""

    config: ScheduleConfig
    peak: float
    total_steps: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        # The config cannot check this where the training's length is given in the other unit.
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"schedule.warmup ({self.config.warmup:g} {self.config.unit}) must be shorter than "
                f"the training ({self.total_steps} steps of {self.steps_per_epoch} an epoch); "
                "schedule.warmup=0 leaves it out"
            )

    @property
    def warmup_steps(self) -> int:
        return round(self.config.warmup * self._unit)

    def learning_rate(self, step: int) -> float:
        """The rate of the update that follows `step` completed ones."""
        warmup = self.warmup_steps
        if step < warmup:
            # The first update is not lost on a rate of zero, the last warm-up step is the peak.
            return self.peak * (step + 1) / warmup
        return self.peak * self._share(step, (step - warmup) / (self.total_steps - warmup))

    def _share(self, step: int, progress: float) -> float:
        config = self.config
        if config.name == "step":
            drops = bisect_right([m * self._unit for m in config.milestones], step)
            return math.pow(config.decay, drops)
        if config.name == "cosine":
            return config.final + (1 - config.final) * (1 + math.cos(math.pi * progress)) / 2
        if config.name == "polynomial":
            return config.final + (1 - config.final) * math.pow(1 - progress, config.power)
        assert config.name == "constant"
        return 1.0

    @property
    def _unit(self) -> int:
        return self.steps_per_epoch if self.config.unit == "epochs" else 1


class Freezing:
    """Freezes modules of a backbone until an epoch: no gradients, batch norm in evaluation mode.

    Built after the optimiser, which is to know all parameters that will ever move.
    """

    def __init__(self, backbone: nn.Module, config: FreezeConfig | None) -> None:
        self.epochs = 0.0
        self.modules: list[nn.Module] = []
        if config is not None:
            self.epochs = float("inf") if config.epochs is None else config.epochs
            self.modules = [_part(backbone, name) for name in config.parts] or [backbone]
        # Others may be frozen for good, as the scale of an IResNet's last norm is.
        self.parameters = [
            parameter
            for module in self.modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        self.is_frozen = False

    def apply(self, epoch: float) -> bool:
        """Freeze or release the parts as this epoch has it; whether that is a change."""
        is_frozen = epoch < self.epochs
        changes = is_frozen != self.is_frozen
        self.is_frozen = is_frozen
        if changes:
            for parameter in self.parameters:
                parameter.requires_grad_(not is_frozen)
            for module in self.modules:
                module.train(not is_frozen)
        return changes

    def keep(self) -> None:
        """Put frozen parts back into evaluation mode after `train()` was called on the whole."""
        for module in self.modules if self.is_frozen else ():
            module.eval()


def _part(backbone: nn.Module, name: str) -> nn.Module:
    if name not in {each for each, _ in backbone.named_modules() if each}:
        children = [n for n, child in backbone.named_children() if [*child.parameters()]]
        meant, top = did_you_mean(near(name, children)), ", ".join(children)
        raise ValueError(
            f"training.freeze.parts: the backbone has no part '{name}'{meant} (its parts are "
            f"{top}, and theirs, such as stages.0)"
        )
    return backbone.get_submodule(name)
