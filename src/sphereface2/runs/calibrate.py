"""Calibrate a model folder: embed the pairs of some sets, fit, and keep the result beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.evaluation.calibration import FAR_TARGETS, Calibration, calibrate, check_request
from sphereface2.evaluation.pair_scores import combine
from sphereface2.evaluation.scoring import prepare_sets, score_sets
from sphereface2.models.embedder import offering_to_skip
from sphereface2.models.extraction import open_embedder
from sphereface2.models.folder import store_calibration
from sphereface2.training.result import ModelStep
from sphereface2.workers import Watch, unwatched


def calibrate_model(
    folder: Path,
    sets: Sequence[VerificationSet],
    *,
    far_targets: Sequence[float] = FAR_TARGETS,
    prior: float = 0.5,
    flip: bool | None = None,
    workers: int = 1,
    device: str = "cpu",
    history: Sequence[Mapping[str, Any]] = (),
    watch: Watch = unwatched,
) -> Calibration:
    """Calibrate the model in `folder` on the sets, pooled if there are several, and store it there.

    `flip` is by default what the folder says. `workers` threads read the images, or processes
    render them. `history` are the lines of the run's metrics.jsonl, where the bias of a model is
    looked up whose folder does not have it.
    """
    check_request(far_targets, prior)
    embedder = open_embedder(folder, flip=flip, workers=workers, device=device)
    with offering_to_skip():
        prepare_sets(sets, workers=workers, watch=watch)
        scored = score_sets(embedder, sets, watch=watch)
    with watch("calibrating"):
        calibration = calibrate(
            scored[0] if len(scored) == 1 else combine(scored),
            model=embedder.digest,
            flip=embedder.flip,
            far_targets=far_targets,
            prior=prior,
            bias=learned_bias(embedder.model.config.get("extra", {}), history),
        )
    store_calibration(folder, calibration.to_mapping())
    return calibration


def learned_bias(
    extra: Mapping[str, Any], history: Sequence[Mapping[str, Any]] = ()
) -> tuple[float, float, float] | None:
    """(b, r, t) of the SphereFace2 head that a model was trained with, or None.

    b is `head_bias` of the model folder, or else the last one logged up to the step of the model.
    A model whose axes were weighed (`training.discriminant`) has other cosines than the head saw.
    """
    head = None if extra.get("discriminant") else extra.get("head")
    if not isinstance(head, Mapping) or not str(head.get("name", "")).startswith("sphereface2"):
        return None
    bias = extra.get("head_bias")
    if bias is None:
        step = ModelStep.of_model(extra, history)
        last = None if step is None else step.step
        logged = [
            line["head"]["bias"]
            for line in history
            if line.get("kind") == "train"
            and (last is None or line.get("step", 0) <= last)
            and "bias" in (line.get("head") or {})
        ]
        bias = logged[-1] if logged else None
    radius, sharpness = head.get("radius"), head.get("sharpness")
    if bias is None or radius is None or sharpness is None:
        return None
    return float(bias), float(radius), float(sharpness)
