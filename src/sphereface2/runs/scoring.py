"""The verification sets of a run, scored: by a network, or by the pixels themselves."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from sphereface2.backbones import Backbone
from sphereface2.backbones.preprocessing import Preprocessing
from sphereface2.config.schema import Choice, RunConfig
from sphereface2.data.mixing import set_aside_of
from sphereface2.data.pairs.by_word import sets_of_choice
from sphereface2.data.pairs.verification_set import Missing, VerificationSet
from sphereface2.data.sources.source import Source
from sphereface2.evaluation.pair_scores import PairScores, score_set
from sphereface2.models.embedding import embed, prepare, raw_pixel_embedding
from sphereface2.models.folder import LoadedModel
from sphereface2.progress import Progress

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
            "the config names no verification set; give one with --on SET, or to the config as "
            "'evaluation.sets=[{name: pairs, path: pairs.txt}]'"
        )
    return _prepared("sets", config, missing=missing, watch=watch)


def build_choice_sets(config: RunConfig, source: Source, *, watch: Watch) -> list[VerificationSet]:
    """The sets on which the step to export is chosen; `source` is what is trained on, prepared."""
    sets = _prepared("choose_on", config, watch=watch)
    aside = set_aside_of(source)
    return sets if aside is None else [*sets, aside.verification_set()]


def _prepared(
    part: Literal["sets", "choose_on"],
    config: RunConfig,
    *,
    watch: Watch,
    missing: Missing | None = None,
) -> list[VerificationSet]:
    choices: list[Choice] = getattr(config.evaluation, part)
    sets = [
        each
        for number, choice in enumerate(choices)
        for each in sets_of_choice(
            choice.name, choice.options, key=f"evaluation.{part}.{number}", missing=missing
        )
    ]
    for each in sets:
        with watch(f"preparing set {each.name}") as progress:
            prepare(each.images, each.missing, workers=config.training.workers, progress=progress)
    return sets


def refuse_shared_people(config: RunConfig) -> None:
    """A ValueError where `evaluation.choose_on` names what is reported or trained on.

    `config` is resolved.
    """
    for choice in config.evaluation.choose_on:
        path = _shared_path(choice, config.data)
        if path:
            raise ValueError(
                f"evaluation.choose_on shows the people who are trained on ({path}), on whom every "
                "later step looks better; give others, or set some of them aside with "
                "evaluation.set_aside=0.02"
            )
        for other in config.evaluation.sets:
            hint = _shared(choice, other)
            if hint:
                raise ValueError(
                    "evaluation.choose_on shows people of evaluation.sets, so that the step would "
                    f"be chosen on what is reported; {hint}"
                )


def _shared(choice: Choice, other: Choice) -> str:
    """What to do about people whom two choices share; nothing where they share none."""
    ours, theirs = choice.options, other.options
    if choice.name == other.name == "synthetic":
        behind = theirs["first_person"] + 4 * theirs["people"]
        apart = ours["first_person"] >= behind or (
            ours["first_person"] + 4 * ours["people"] <= theirs["first_person"]
        )
        is_shared = ours["seed"] == theirs["seed"] and not apart
        return f"give those after them, as first_person: {behind}" if is_shared else ""
    path = _shared_path(choice, other)
    return f"give others than {path}, or leave it out of one of the two" if path else ""


def _shared_path(choice: Choice, other: Choice) -> str:
    ours, theirs = (each.options.get("path") for each in (choice, other))
    is_shared = ours and theirs and Path(ours).resolve() == Path(theirs).resolve()
    return str(ours) if is_shared else ""


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
