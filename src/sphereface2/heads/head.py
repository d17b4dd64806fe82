"""What every head is: a module that turns embeddings and labels into a loss."""

import inspect
import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from sphereface2.heads.contract import UNKNOWN, require
from sphereface2.heads.sharding import shard_exchange
from sphereface2.registry import nearest, option_names, shown


class Head(nn.Module):
    """A loss over a batch of embeddings; it owns the class weights, and nothing of the network.

    The trainer knows no particular head. It reads `images_per_person` to compose the batches,
    calls `advance` before each step, and logs `statistics()` of steps for which
    `collect_statistics` is set.

    A head that is built inside `class_shards` is one of several, a rank each: it is given its
    rank's part of the batch, returns the loss of the whole batch, and leaves gradients that add up
    to those of one rank alone once the network's are averaged over ranks (as DDP does).
    """

    images_per_person: int = 1
    """How many images of one person the loss needs in a batch; 1 if it does not compare samples."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _refusing_unknown_options(vars(cls)["__init__"])  # type: ignore[method-assign]  # the same signature

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        require(dim >= 1, f"dim must be at least 1, got {dim}")
        require(num_classes >= 2, f"num_classes must be at least 2, got {num_classes}")
        self.dim = dim
        self.num_classes = num_classes
        self.exchange = shard_exchange(num_classes)
        self.collect_statistics = False
        self.warns_of_unknown = True
        self._statistics: dict[str, Tensor] = {}
        self._extremes: Tensor | None = None  # least and largest label not yet looked at

    @property
    def note_on_unknown(self) -> str | None:
        """What a user should know of samples of no known class (label -1): None where they count.

        A head that leaves them out warns of it once; set `warns_of_unknown` to False to say it
        some other way.
        """
        return None

    def advance(self, epoch: float) -> None:
        """Tell the head how far training is; margin schedules follow it."""

    def statistics(self) -> dict[str, float]:
        """What the last forward pass with `collect_statistics` saw, as plain numbers.

        What a batch had none of, such as samples of a known class, is left out. Labels that a
        device was given since the last call are found wrong here, see `check_batch`.
        """
        self._report_labels()
        found = {name: float(value) for name, value in self._statistics.items()}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def whole_batch(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch of all ranks, for losses that compare its samples.

        Such a loss is computed alike on every rank, so the head's own parameters get their whole
        gradient everywhere. A column of other numbers may take the place of the embeddings.
        """
        return self.exchange.gather_with_gradient(embeddings, labels)

    def check_batch(self, embeddings: Tensor, labels: Tensor) -> None:
        """Refuse a batch that does not fit this head, in one sentence.

        The values of labels on a device are not waited for: `statistics` reports wrong ones.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dim:
            raise ValueError(
                f"embeddings must have the shape (batch, {self.dim}), got {tuple(embeddings.shape)}"
            )
        if labels.shape != embeddings.shape[:1]:
            raise ValueError(
                f"labels must have the shape ({len(embeddings)},), got {tuple(labels.shape)}"
            )
        if labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise ValueError(f"labels must be integers, got {labels.dtype}")
        if len(labels) == 0:
            raise ValueError("the batch is empty: a loss needs at least one sample")
        if labels.device.type != "cpu":
            extremes = torch.stack([-labels.amin(), labels.amax()])
            before = extremes if self._extremes is None else self._extremes
            self._extremes = torch.maximum(before, extremes)
            return
        values = labels.numpy()
        (wrong,) = ((values >= self.num_classes) | (values < UNKNOWN)).nonzero()
        if len(wrong):
            raise ValueError(self._wrong_label(values[wrong[0]], f" of row {wrong[0]}"))
        self._warn_of_unknown(bool(values.min() < 0), frames=5)

    def _report_labels(self) -> None:
        """Look at the labels that a device has seen since the last time."""
        if self._extremes is None:
            return
        lowest, largest = (-self._extremes[0]).item(), self._extremes[1].item()
        self._extremes = None
        if lowest < UNKNOWN or largest >= self.num_classes:
            raise ValueError(self._wrong_label(lowest if lowest < UNKNOWN else largest))
        self._warn_of_unknown(lowest < 0, frames=3)

    def _warn_of_unknown(self, is_there: bool, *, frames: int) -> None:
        """The warning shows the user's line, which is that many calls above: torch's own count."""
        if is_there and self.warns_of_unknown and self.note_on_unknown:
            self.warns_of_unknown = False
            warnings.warn(self.note_on_unknown, stacklevel=frames + 1)

    def _wrong_label(self, label: float, row: str = "") -> str:
        return (
            f"label {label}{row} is outside 0..{self.num_classes - 1} "
            f"(num_classes = {self.num_classes}; -1 marks a sample of no known class)"
        )


def _refusing_unknown_options(build: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` that names the right option where a head does not know the one it is given.

    Python would only say that it is unexpected, and other projects have other words for ours.
    """
    parameters, known = inspect.signature(build).parameters, option_names(build)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return build

    @wraps(build)
    def checked(self: Head, *arguments: Any, **options: Any) -> None:
        for key in options:
            require(
                key in parameters,
                f"{type(self).__name__} has no option '{key}'{nearest(key, known)} (options: "
                f"{', '.join(known) or 'none'})",
            )
        build(self, *arguments, **options)

    return checked


def _checked_warm_up(given: Any) -> Any:
    """For a config, so that a misspelt key is found when it is read."""
    if isinstance(given, dict):
        try:
            _warm_up(given, margin=0.0, low=0.0)
        except ValueError as error:
            raise ValueError(str(error).removeprefix("margin_schedule").lstrip(" .")) from None
    return given


MarginSchedule = Annotated[
    list[tuple[float, float]] | dict[str, Any], BeforeValidator(_checked_warm_up)
]
"""(epoch, margin) points, or a warm-up as {from: 0, to: 0.4, epochs: [2, 6], shape: linear}."""

_WARM_UP = ("from", "to", "epochs", "shape")
_SHAPES = ("linear", "exponential")
_REMAINDER = 1e-3  # of the way, which an exponential warm-up leaves to its very end


class MarginHead:
    """A head with a margin that may follow a schedule (mix-in beside `Head`).

    A schedule is a list of (epoch, margin) points, straight lines in between, constant outside.
    Or it is a warm-up, a mapping: `epochs` are its first and its last one, `from` and `to` the
    margins before and after it (the least one, and `margin`, if not given), and `shape` is linear
    (the default) or exponential: steep at first, and slower and slower towards the end.
    """

    margin: float
    _margin_schedule: list[tuple[float, float]] | None
    _is_exponential: bool = False

    def set_margin(
        self, margin: float, schedule: MarginSchedule | None, *, low: float = 0.0
    ) -> None:
        """Keep the margin and its schedule; `low` is the least margin that means anything."""
        if isinstance(schedule, dict):
            schedule, shape = _warm_up(schedule, margin=margin, low=low)
            self._is_exponential = shape == "exponential"
        points = None if schedule is None else [(float(e), float(m)) for e, m in schedule]
        if points is not None:
            require(len(points) > 0, "margin_schedule must name at least one (epoch, margin) point")
            epochs = [epoch for epoch, _ in points]
            require(
                epochs == sorted(set(epochs)), f"margin_schedule must have rising epochs: {points}"
            )
        for value in [margin] if points is None else [m for _, m in points]:
            require(
                math.isfinite(value) and value >= low,
                f"margin must be at least {low:g}, got {value}",
            )
        self.margin = float(margin)
        self._margin_schedule = points
        self.advance(0.0)

    def advance(self, epoch: float) -> None:
        """Set the margin that the schedule gives for this epoch (a fraction counts)."""
        points = self._margin_schedule
        if points is None:
            return
        passed = bisect_right([start for start, _ in points], epoch)
        if passed in (0, len(points)):
            self.margin = points[max(0, passed - 1)][1]
            return
        (start, low), (end, high) = points[passed - 1 : passed + 1]
        share = (epoch - start) / (end - start)
        if self._is_exponential:
            share = 1.0 - _REMAINDER**share
        self.margin = low + (high - low) * share


def _warm_up(
    given: Mapping[str, Any], *, margin: float, low: float
) -> tuple[list[tuple[float, float]], str]:
    """The points and the shape of a warm-up as a config has it."""
    for key in given:
        require(
            key in _WARM_UP,
            f"margin_schedule has no key '{key}'{nearest(key, _WARM_UP)} (keys: "
            f"{', '.join(_WARM_UP)})",
        )
    start, end = given.get("from", low), given.get("to", margin)
    shape, epochs = given.get("shape", "linear"), given.get("epochs")
    for key, value in (("from", start), ("to", end)):
        require(_is_number(value), f"margin_schedule.{key} must be a number, got {shown(value)}")
    require(
        shape in _SHAPES,
        f"margin_schedule.shape must be linear or exponential, got {shown(shape)}"
        f"{nearest(str(shape), _SHAPES)}",
    )
    require(
        isinstance(epochs, list | tuple)
        and len(epochs) == 2
        and all(map(_is_number, epochs))
        and 0 <= epochs[0] < epochs[1],
        "margin_schedule.epochs must be the first and the last epoch of the warm-up, such as "
        f"[2, 6], got {shown(epochs)}",
    )
    assert isinstance(epochs, list | tuple)
    return [(epochs[0], start), (epochs[1], end)], shape


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
