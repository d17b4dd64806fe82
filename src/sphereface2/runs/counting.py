"""Parameters, operations and bytes of a backbone and a head, counted without training them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from sphereface2.backbones import backbone_without_values
from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import RunConfig
from sphereface2.heads import Head, build_head, native
from sphereface2.heads.contract import Softmax
from sphereface2.heads.engine import working_bytes
from sphereface2.heads.proxy import ProxyHead


@dataclass(frozen=True)
class BackboneCost:
    """Of one network; activations are what a forward pass keeps for the backward one."""

    parameters: int
    trained_bytes: int
    state_bytes: int
    operations_per_image: int
    """Of a forward pass, multiplications and additions counted apart."""
    activation_bytes_per_image: int
    activation_bytes_fixed: int


@dataclass(frozen=True)
class HeadCost:
    """Of one head for a number of people."""

    parameters: int
    trained_bytes: int
    state_bytes: int
    class_weight_bytes: int
    """Of the weights that `optimizer.fused_head` moves without a gradient."""
    block_bytes: int
    """What the passes over blocks of classes hold at a time."""


@dataclass(frozen=True)
class Memory:
    """The bytes that a training holds at its peak, by what they are for."""

    weights: int
    gradients: int
    momentum: int
    """What the optimiser keeps: AdamW keeps two numbers for a weight."""
    average: int
    """What `training.average` keeps."""
    activations: int
    """What the forward pass of a micro-batch keeps."""
    head_blocks: int

    @property
    def total(self) -> int:
        kept = self.weights + self.gradients + self.momentum + self.average
        return kept + self.activations + self.head_blocks


def backbone_cost(name: str, options: Mapping[str, Any]) -> BackboneCost:
    """Counted on shapes alone, so that no network is too large for the machine at hand."""
    backbone = backbone_without_values(name, **options)
    two, three = _kept_bytes(backbone, 2), _kept_bytes(backbone, 3)
    each = three - two
    return BackboneCost(
        parameters=sum(p.numel() for p in backbone.parameters()),
        trained_bytes=_trained_bytes(backbone),
        state_bytes=_state_bytes(backbone),
        operations_per_image=_operations(backbone),
        activation_bytes_per_image=each,
        activation_bytes_fixed=max(0, two - 2 * each),
    )


def head_cost(
    name: str,
    options: Mapping[str, Any],
    *,
    dim: int,
    people: int,
    batch_size: int,
    device: torch.device,
    is_compiled: bool = False,
) -> HeadCost:
    """Counted on two small heads: all that a head holds grows with its classes or not at all."""
    with torch.random.fork_rng(devices=[]):
        small = [build_head(name, dim, count, **options) for count in (4, 5)]

    def grown(count: Callable[[Head], int]) -> int:
        few, more = (count(head) for head in small)
        return few + (more - few) * (people - 4)

    block_bytes = 0
    if isinstance(small[0], ProxyHead):
        is_softmax = isinstance(small[0].reduction(), Softmax)
        block_bytes = working_bytes(batch_size, dim, people, device, is_softmax=is_softmax)
        if device.type != "cpu":
            counted = _step_bytes(small[0], people=people, batch_size=batch_size)
            block_bytes = block_bytes if counted is None else counted
        elif is_compiled:
            block_bytes = native.working_bytes(batch_size, dim, people, is_softmax=is_softmax)
    return HeadCost(
        parameters=grown(lambda head: sum(p.numel() for p in head.parameters())),
        trained_bytes=grown(_trained_bytes),
        state_bytes=grown(_state_bytes),
        class_weight_bytes=grown(lambda h: h.weight.nbytes if isinstance(h, ProxyHead) else 0),
        block_bytes=block_bytes,
    )


def memory_of(
    config: RunConfig, backbone: BackboneCost, head: HeadCost, *, is_half: bool = False
) -> Memory:
    """What the training of a config holds at its peak on one rank.

    Products in half precision (`is_half`) halve the activations and nothing else.
    """
    trained = backbone.trained_bytes + head.trained_bytes
    fused = head.class_weight_bytes if config.optimizer.fused_head else 0
    micro_batch = config.training.batch_size // config.training.accumulate
    kept = backbone.activation_bytes_fixed + micro_batch * backbone.activation_bytes_per_image
    optimizer, average = config.optimizer, config.training.average
    moments = 2 if optimizer.name == "adamw" else int(optimizer.momentum > 0)
    networks = 0 if average is None else 1 + (average.last_epochs or 0)
    return Memory(
        weights=backbone.state_bytes + head.state_bytes,
        gradients=trained - fused,
        momentum=moments * trained,
        average=networks * backbone.state_bytes,
        activations=kept // 2 if is_half else kept,
        head_blocks=head.block_bytes,
    )


def checkpoint_bytes(memory: Memory) -> int:
    """A checkpoint keeps all weights, running statistics, momentum and averages."""
    return memory.weights + memory.momentum + memory.average


def _operations(backbone: Backbone) -> int:
    """Of the forward pass of one image."""
    # Without a graph: the counter's own hooks on it take long in a deep network.
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(_images(backbone, 2))  # batch norm needs two
    return int(counter.get_total_flops()) // 2


def _kept_bytes(backbone: Backbone, batch: int) -> int:
    """What a forward pass keeps besides the parameters."""
    own = {_storage(tensor) for tensor in (*backbone.parameters(), *backbone.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        # Several operations may keep one tensor, or views of it: a storage counts once.
        if _storage(tensor) not in own:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        embeddings = backbone(_images(backbone, batch))
    total = sum(kept.values())
    del embeddings  # only now: a freed storage's number may be given to another
    return total


def _images(backbone: Backbone, batch: int) -> Tensor:
    return torch.empty(batch, 3, backbone.input_size, backbone.input_size, device="meta")


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _step_bytes(head: ProxyHead, *, people: int, batch_size: int) -> int | None:
    """What forward and backward pass hold at their peak besides weights and gradients.

    Counted operation by operation on shapes alone, in blocks as large as on a GPU; None for a head
    that looks at a value on its way.
    """
    planned = copy.deepcopy(head).to("meta")
    planned.num_classes = people
    for name in planned.per_class:
        place, _, own = name.rpartition(".")
        part = planned.get_submodule(place)
        old = getattr(part, own)
        grown = torch.empty(people, *old.shape[1:], dtype=old.dtype, device="meta")
        setattr(part, own, nn.Parameter(grown) if isinstance(old, nn.Parameter) else grown)
    embeddings = torch.empty(batch_size, head.dim, device="meta", requires_grad=True)
    labels = torch.empty(batch_size, dtype=torch.long, device="meta")
    peak = _PeakBytes([embeddings, labels, *planned.state_dict().values()])
    with peak:
        try:
            planned(embeddings, labels).backward()
        except RuntimeError:  # what torch raises for a value of a shape
            return None
    gradients = sum(p.grad.nbytes for p in planned.parameters() if p.grad is not None)
    return max(0, peak.bytes - gradients)


class _PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts what operations allocate and release; `bytes` is the most that lived at a time."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor here
        self.bytes = self._living = 0
        self._known = {_storage(tensor) for tensor in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and _storage(tensor) not in self._known:
                storage = tensor.untyped_storage()
                self._known.add(_storage(tensor))
                self._living += storage.nbytes()
                self.bytes = max(self.bytes, self._living)
                weakref.finalize(storage, self._release, _storage(tensor), storage.nbytes())
        return made

    def _release(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self._living -= size


def _trained_bytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters() if p.requires_grad)


def _state_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())
