"""The verification sets of a run, scored: by a network, or by the pixels themselves."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from sphereface2.backbones import Backbone
from sphereface2.backbones.model_folder import LoadedModel, Preprocessing
from sphereface2.config import RunConfig
from sphereface2.data.set_words import sets_of_choice
from sphereface2.data.source import Progress
from sphereface2.data.verification_sets import Missing, VerificationSet
from sphereface2.evaluation.embed import embed, prepare, raw_pixel_embedding
from sphereface2.evaluation.pair_scores import PairScores, score_set

Watch = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows the progress of a named piece of work: `with watch("rendering") as progress: ...`."""


def unwatched(title: str) -> AbstractContextManager[Progress | None]:
    """Work that nobody watches."""
    return nullcontext()


def build_sets(
    config: RunConfig, *, missing: Missing | None = None, watch: Watch
) -> list[VerificationSet]:
    """The sets that the config names, their images ready to be read.

    missing: what becomes of images that cannot be read, where the set does not say it itself
    """
    if not config.evaluation.sets:
        raise ValueError(
            "the config names no verification set; give one, such as "
            "'evaluation.sets=[{name: pairs, path: pairs.txt}]'"
        )
    sets = [
        each
        for choice in config.evaluation.sets
        for each in sets_of_choice(choice.name, choice.options, missing=missing)
    ]
    for each in sets:
        with watch(f"preparing set {each.name}") as progress:
            prepare(each.images, each.missing, workers=config.training.workers, progress=progress)
    return sets


def score_sets(
    backbone: nn.Module,
    preprocessing: Preprocessing,
    sets: Sequence[VerificationSet],
    config: RunConfig,
    device: torch.device | None,
    watch: Watch,
) -> list[PairScores]:
    """The pairs of each set, scored by a network that is where it should be."""
    scored = []
    for each in sets:
        with watch(f"embedding set {each.name}") as progress:
            embeddings = embed(
                backbone,
                each.images,
                preprocessing=preprocessing,
                batch_size=config.evaluation.batch_size,
                flip=config.evaluation.flip,
                workers=config.training.workers,
                device=device,
                missing=each.missing,
                progress=progress,
            )
        scored.append(score_set(each, embeddings))
    return scored


def network_scores(
    backbone: Backbone,
    model: LoadedModel,
    sets: Sequence[VerificationSet],
    config: RunConfig,
    device: torch.device,
    watch: Watch,
) -> list[PairScores]:
    """The same for a network that is first brought to its device."""
    return score_sets(backbone.to(device), model.preprocessing, sets, config, device, watch)


def pixel_scores(
    preprocessing: Preprocessing, sets: Sequence[VerificationSet], watch: Watch
) -> list[PairScores]:
    """The pairs of each set, scored without a network: the baseline."""
    scored = []
    for each in sets:
        with watch(f"comparing pixels of {each.name}"):
            pixels = raw_pixel_embedding(
                each.images, input_size=preprocessing.input_size, missing=each.missing
            )
        scored.append(score_set(each, pixels))
    return scored
