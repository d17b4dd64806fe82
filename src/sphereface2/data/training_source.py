"""What a config trains on: its people, with noise in their labels and strangers among them."""

from __future__ import annotations

from collections.abc import Callable

from sphereface2.config import Choice, RunConfig
from sphereface2.data import SOURCES
from sphereface2.data.label_noise import NoisyLabels
from sphereface2.data.loose_images import LooseImages
from sphereface2.data.open_set import WithStrangers
from sphereface2.data.set_aside import SetAside
from sphereface2.data.source import Source
from sphereface2.tables import build, resolve_options

# Where strangers come from. Who they are is of no matter, so a folder may have any structure.
STRANGERS: dict[str, Callable[..., Source]] = {**SOURCES, "folder": LooseImages}


def build_people(config: RunConfig) -> Source:
    """The people as they are given: without noise and without strangers."""
    return build("data", SOURCES, config.data.name, **config.data.options)


def build_training_source(config: RunConfig) -> Source:
    """The images that are trained on, with the labels that the head is told."""
    source = build_people(config)
    _require_two_people(source, config.data)
    if config.evaluation.set_aside:
        source = SetAside(source, share=config.evaluation.set_aside, seed=config.seed)
    noise, open_set = config.label_noise, config.open_set
    if noise is not None:
        seed = config.seed if noise.seed is None else noise.seed
        source = NoisyLabels(source, rate=noise.rate, kind=noise.kind, seed=seed)
    if open_set is not None:
        _refuse_acquaintances(config.data, open_set.data)
        strangers = build("open_set.data", STRANGERS, open_set.data.name, **open_set.data.options)
        source = WithStrangers(source, strangers, share=open_set.share)
    return source


def set_aside_of(source: Source) -> SetAside | None:
    """The people whom a training source leaves out, if there are any."""
    while isinstance(source, WithStrangers | NoisyLabels):
        source = source.source
    return source if isinstance(source, SetAside) else None


def noise_of(source: Source) -> NoisyLabels | None:
    """The noise in the labels of a training source, if there is any."""
    labelled = source.source if isinstance(source, WithStrangers) else source
    return labelled if isinstance(labelled, NoisyLabels) else None


def _require_two_people(source: Source, data: Choice) -> None:
    """A loss learns to tell people apart."""
    if source.num_classes < 2:
        found = "images of one person only" if source.num_classes else "no image with a label"
        raise ValueError(
            f"data.path: {data.options['path']} has {found}; training needs at least two people"
            + (", each in a folder of their own" if data.name == "folder" else "")
        )


def _refuse_acquaintances(people: Choice, strangers: Choice) -> None:
    """Strangers who are learnt as people, too, would be pushed away from themselves."""
    if people.name != strangers.name:
        return
    hint = "give other images"
    if people.name == "synthetic":
        (seed, ours), (other_seed, theirs) = _rendered(people), _rendered(strangers)
        if seed != other_seed or not set(ours) & set(theirs):
            return
        hint = f"give those after them, as open_set.data.first_person={ours.stop}"
    elif people.options.get("path") != strangers.options.get("path"):
        return
    raise ValueError(
        "open_set.data shows people of the training data, but strangers must be others than those "
        f"who are learnt; {hint}"
    )


def _rendered(choice: Choice) -> tuple[int, range]:
    """The seed and the numbers of synthetic people."""
    options = resolve_options("data", choice.name, SOURCES[choice.name], choice.options)
    first = options["first_person"]
    return options["seed"], range(first, first + options["people"])
