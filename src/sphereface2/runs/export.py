"""Export a model, and for one in 8 bits measure on pairs of faces what that costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sphereface2.data.sources import open_images
from sphereface2.evaluation.comparison import Difference, compare
from sphereface2.evaluation.scoring import find_sets, prepare_sets, score_sets
from sphereface2.models.export import FORMS, Agreement, ImageArray, export_graph, export_torchscript
from sphereface2.models.folder import LoadedModel
from sphereface2.registry import look_up
from sphereface2.workers import Watch, unwatched

TORCHSCRIPT = "model.pt"
_RANGE_IMAGES = 200  # more do not change the ranges of a layer's values


@dataclass(frozen=True)
class Exported:
    """How far an export agrees with torch; in 8 bits also what verification loses by it."""

    agreement: Agreement
    loss: Difference | None = None
    set_name: str = ""

    def sentences(self) -> list[str]:
        """What was checked, in words."""
        loss = [] if self.loss is None else [_loss_in_words(self.loss, self.set_name)]
        return [str(self.agreement), *loss]


def export_model(
    model: Path,
    output: Path,
    *,
    to: str = "onnx",
    calibration_data: Path | None = None,
    on: Sequence[str] = (),
    root: Path | None = None,
    most_loss: float = 0.01,
    workers: int = 1,
    watch: Watch = unwatched,
) -> Exported:
    """Write a model as `to`, checked; in 8 bits if there is `calibration_data`.

    calibration_data: faces whose values show the range of each layer: a folder of people, a list
    on: verification sets for the loss in TAR; without any, pairs drawn of the calibration data
    most_loss: by how much TAR at the strictest FAR that the pairs resolve may fall; an export that
        loses more is refused
    """
    look_up("form of export", {form: form for form in FORMS}, to)
    if to == "torchscript":
        if calibration_data is not None:
            raise ValueError("TorchScript is exported in float32 only; int8 is for onnx, openvino")
        return Exported(export_torchscript(model, output / TORCHSCRIPT))
    if calibration_data is None:
        with watch("exporting"):
            return Exported(export_graph(model, output, to=to))
    sets = find_sets(list(on) or [str(calibration_data)], root=root)
    prepare_sets(sets, workers=workers, watch=watch)
    images = spread_images(calibration_data)
    losses: list[tuple[str, Difference]] = []

    def check(before: LoadedModel, after: LoadedModel) -> None:
        scored = [
            (name, score_sets(each.embedder(workers=workers), sets, watch=watch))
            for name, each in (("float32", before), ("int8", after))
        ]
        with watch("comparing"):
            last = compare(scored).comparisons[-1]  # of several sets, all of them combined
        rates = [each for each in last.differences if each.target is not None]
        if not rates:
            raise ValueError(f"{last.set_name} has too few pairs to say what 8 bits cost")
        losses.append((last.set_name, rates[-1]))
        if -rates[-1].difference > most_loss:
            said = _loss_in_words(rates[-1], last.set_name)
            raise ValueError(
                f"8 bits cost too much, and nothing is written: {said}; at most "
                f"{100 * most_loss:g} are allowed (--most-loss)"
            )

    found = export_graph(model, output, to=to, int8=images, check=check)
    return Exported(found, losses[0][1], losses[0][0])


def spread_images(data: Path) -> list[ImageArray]:
    """Some images of a source, from all over it."""
    source = open_images(data)
    numbers = np.unique(np.linspace(0, len(source) - 1, _RANGE_IMAGES).astype(int))
    return [source[int(number)][0] for number in numbers]


def _loss_in_words(loss: Difference, set_name: str) -> str:
    ends = loss.interval
    return (
        f"{loss.measure} on {set_name}: {100 * loss.baseline:.2f} → {100 * loss.value:.2f}, "
        f"{_points(loss.difference)} points (95% interval {_points(ends.low)} to "
        f"{_points(ends.high)})"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")
