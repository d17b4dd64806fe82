"""The verification sets that the config of a run names: built, and kept apart from its training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sphereface2.config.schema import Choice, RunConfig
from sphereface2.data.mixing import set_aside_of
from sphereface2.data.pairs import sets_of_choice
from sphereface2.data.pairs.verification_set import (
    Missing,
    VerificationSet,
    notes_on_pairs,
    notes_on_trained,
)
from sphereface2.data.sources.source import Source
from sphereface2.evaluation.scoring import prepare_sets
from sphereface2.workers import Watch, unwatched


def build_sets(
    config: RunConfig, *, missing: Missing | None = None, watch: Watch = unwatched
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
    prepare_sets(sets, workers=config.training.workers, watch=watch)
    return sets


def notes_on_sets(config: RunConfig | None, sets: Sequence[VerificationSet]) -> list[str]:
    """What is odd about sets, also in view of what a config trained on."""
    notes = [note for each in sets for note in notes_on_pairs(each)]
    path = None if config is None else config.data.options.get("path")
    return notes if path is None else [*notes_on_trained(Path(str(path)), sets), *notes]


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
