"""Calibrate a model folder: embed the pairs of some sets, fit, and keep the result beside it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.sources.source import images_digest
from sphereface2.evaluation.calibration import FAR_TARGETS, Calibration, calibrate, check_request
from sphereface2.evaluation.pair_scores import combine, score_set
from sphereface2.models.embedding import SKIP, MissingImageError, embed, prepare
from sphereface2.models.folder import load_model, store_calibration, weights_digest
from sphereface2.progress import Progress
from sphereface2.training.result import ModelStep

Watch = Callable[[str], AbstractContextManager[Progress | None]]


def _unwatched(title: str) -> AbstractContextManager[Progress | None]:
    return nullcontext()


def calibrate_model(
    folder: Path,
    sets: Sequence[VerificationSet],
    *,
    far_targets: Sequence[float] = FAR_TARGETS,
    prior: float = 0.5,
    flip: bool | None = None,
    batch_size: int = 256,
    workers: int = 1,
    device: torch.device | str = "cpu",
    history: Sequence[Mapping[str, Any]] = (),
    watch: Watch = _unwatched,
) -> Calibration:
    """Calibrate the model in `folder` on the sets, pooled if there are several, and store it there.

    `flip` is by default what the folder says. `workers` threads read the images, or processes
    render them. `history` are the lines of the run's metrics.jsonl, where the bias of a model is
    looked up whose folder does not tell it.
    """
    check_request(far_targets, prior)
    model = load_model(folder)
    flip = model.flip if flip is None else flip
    digest = weights_digest(folder)
    scored = []
    for each in sets:
        try:
            with watch(f"preparing set {each.name}") as progress:
                prepare(each.images, each.missing, workers=workers, progress=progress)
            with watch(f"embedding set {each.name}") as progress:
                embeddings = embed(
                    model.backbone.to(device),
                    each.images,
                    preprocessing=model.preprocessing,
                    batch_size=batch_size,
                    flip=flip,
                    workers=workers,
                    device=device,
                    missing=each.missing,
                    progress=progress,
                )
        except MissingImageError as error:
            raise MissingImageError(f"{error}; {SKIP}") from None
        scored.append(score_set(each, embeddings, images=images_digest(each.images)))
    with watch("calibrating"):
        calibration = calibrate(
            scored[0] if len(scored) == 1 else combine(scored),
            model=digest,
            flip=flip,
            far_targets=far_targets,
            prior=prior,
            bias=learned_bias(model.config.get("extra", {}), history),
        )
    store_calibration(folder, calibration.to_mapping())
    return calibration


def learned_bias(
    extra: Mapping[str, Any], history: Sequence[Mapping[str, Any]] = ()
) -> tuple[float, float, float] | None:
    """(b, r, t) of the SphereFace2 head that a model was trained with, or None.

    b is `head_bias` of the model folder, or else the last one logged up to the step of the model.
    """
    head = extra.get("head")
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
