"""What a config trains on: its people, with noise in their labels and strangers among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.config.schema import Choice, RunConfig
from sphereface2.data.augmentation import build_augmentation
from sphereface2.data.loader.loader import BatchPlan, MixedPlan, Plan, require_whole_groups
from sphereface2.data.pairs.drawn import SetAside
from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.folder import LooseImages
from sphereface2.data.sources.source import (
    BadImage,
    DerivedSource,
    Source,
    bad_images,
    exclude,
    notes_on,
    suits_processes,
)
from sphereface2.files import csv_text
from sphereface2.registry import build, resolve_options
from sphereface2.workers import Progress, unseen

# Label noise: training labels made wrong on purpose, to study how a loss bears it.

Kind = Literal["flip", "resample"]


class NoisyLabels(DerivedSource):
    """A source with new labels for some images, a function of the labels and the seed.

    `flip`: of every person with n images exactly round(rate * n) get a wrong label, each of the
    other people equally likely. `resample`, as the authors' code does it: each image by itself,
    with probability `rate`, gets the label of anybody, which may be its own, so that about
    rate * (K - 1) / K of the labels of K people are wrong.

    Images of no known person (label -1) stay what they are.
    """

    def __init__(self, source: Source, *, rate: float, kind: Kind = "flip", seed: int = 0) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"label_noise.rate must be above 0 and at most 1, got {rate:g}")
        if source.num_classes < 2:
            raise ValueError("label_noise needs at least 2 people in the data, found 1")
        super().__init__(source)
        self.true_labels = source.labels
        # A third number beside those of the images' order (seed, epoch): with the same stream as an
        # epoch, the wrong labels would come first in it. The strangers' order has 1 in this place.
        generator = np.random.default_rng([seed, 0, 2])
        draw = flipped if kind == "flip" else resampled
        self.drawn, given = draw(source.labels, source.num_classes, rate, generator)
        self.labels: NDArray[np.int64] = source.labels.copy()
        self.labels[self.drawn] = given

    @property
    def realised_rate(self) -> float:
        """The share of wrong labels among the images of known people."""
        known = int((self.true_labels >= 0).sum())
        return float((self.labels != self.true_labels).sum()) / known

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        image, label = self.source[index]
        # Another person's image, in place of one that cannot be read, comes with its own label.
        return image, int(self.labels[index]) if label == self.true_labels[index] else label

    def manifest(self) -> str:
        """CSV of the images whose label was drawn: index, name, true and given label.

        With `resample` some of them have drawn their true label.
        """
        name = getattr(self.source, "name", lambda index: "")
        rows = (
            (index, name(index), self.true_labels[index], self.labels[index])
            for index in self.drawn.tolist()
        )
        return csv_text(["index", "name", "true_label", "given_label"], rows)


def flipped(
    labels: NDArray[np.int64], classes: int, rate: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of exactly round(rate * n) images of each person, and a wrong label for each."""
    known = np.flatnonzero(labels >= 0)
    # Each person's images in a random order, of which the first ones are taken.
    shuffled = known[generator.permutation(len(known))]
    by_person = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels[known], minlength=classes)
    place = np.arange(len(known)) - np.repeat(np.cumsum(counts) - counts, counts)
    wrong = np.rint(rate * counts).astype(np.int64)
    drawn = np.sort(by_person[place < np.repeat(wrong, counts)])
    # One of the K - 1 others: those from the true label on move up by one.
    given = generator.integers(0, classes - 1, len(drawn))
    return drawn, given + (given >= labels[drawn])


def resampled(
    labels: NDArray[np.int64], classes: int, rate: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of images taken with probability `rate` each, and any label for each."""
    known = np.flatnonzero(labels >= 0)
    drawn = known[generator.random(len(known)) < rate]
    return drawn, generator.integers(0, classes, len(drawn))


# Open set: images of people whom nobody knows (label -1), mixed in as negatives for every class.
#
# To a binary classifier of SphereFace2 an image needs no identity to be a negative: it is enough
# that it shows somebody else. Softmax heads pass over such images.


class WithStrangers(DerivedSource):
    """A source and, behind its images, those of another one with label -1 each.

    `share` is the part of every batch that strangers make up.
    """

    def __init__(self, source: Source, strangers: Source, *, share: float) -> None:
        if not 0 < share < 1:
            raise ValueError(f"open_set.share must be above 0 and below 1, got {share:g}")
        super().__init__(source)
        self.strangers = strangers
        self.share = share
        self.labels: NDArray[np.int64] = np.concatenate(
            [source.labels, np.full(len(strangers), -1, np.int64)]
        )

    @property
    def image_size(self) -> int | None:
        sizes = {self.source.image_size, self.strangers.image_size}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def bad(self) -> tuple[BadImage, ...]:
        behind = len(self.source)
        return (
            *bad_images(self.source),
            *(replace(bad, index=behind + bad.index) for bad in bad_images(self.strangers)),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (*notes_on(self.source), *notes_on(self.strangers))

    @property
    def suits_processes(self) -> bool:
        return suits_processes(self.source) and suits_processes(self.strangers)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        known = len(self.source)
        exclude(self.source, [each for each in bad if each.index < known])
        strange = [each for each in bad if each.index >= known]
        exclude(self.strangers, [replace(each, index=each.index - known) for each in strange])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        known = len(self.source)
        return self.source[index] if index < known else (self.strangers[index - known][0], -1)

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Prepare both, one after the other, under one count."""
        first, second = len(self.source), len(self.strangers)

        def part(start: int, size: int) -> Progress:
            return lambda done, of: progress(start + done * size // of, first + second)

        self.source.prepare(workers=workers, progress=part(0, first))
        try:
            self.strangers.prepare(workers=workers, progress=part(first, second))
        except ValueError as error:
            # A source knows its options by the name that they have for the training images.
            sentence = str(error).replace("data.on_bad_image", "open_set.data.on_bad_image")
            raise ValueError(f"open_set.data: {sentence}") from None


def plan_batches(
    source: Source, *, batch_size: int, images_per_person: int = 1, seed: int = 0
) -> Plan:
    """The batches of a source; one with strangers has the same number of them in each.

    That number is the share of the batch, rounded to whole groups of `images_per_person`.
    """
    if not isinstance(source, WithStrangers):
        return BatchPlan(
            source.labels, batch_size=batch_size, images_per_person=images_per_person, seed=seed
        )
    require_whole_groups(batch_size, images_per_person)
    groups = round(source.share * batch_size / images_per_person)
    per_batch = groups * images_per_person
    if not 0 < per_batch < batch_size:
        unit = "image" if images_per_person == 1 else f"group of {images_per_person} images"
        whom = "of strangers" if per_batch == 0 else "of known people"
        least = images_per_person / batch_size
        raise ValueError(
            f"open_set.share={source.share:g} leaves no {unit} {whom} in a batch of {batch_size}; "
            f"take a share from {least:.3g} to {1 - least:.3g}, or a larger training.batch_size"
        )
    try:
        known = BatchPlan(
            source.source.labels,
            batch_size=batch_size - per_batch,
            images_per_person=images_per_person,
            seed=seed,
        )
    except ValueError:
        raise ValueError(
            f"training.batch_size={batch_size} with open_set.share={source.share:g} takes "
            f"{batch_size - per_batch} images of known people, more than the "
            f"{len(source.source)} of the data; set a smaller training.batch_size"
        ) from None
    return MixedPlan(
        known, first=len(source.source), strangers=len(source.strangers), per_batch=per_batch
    )


# Where strangers come from. Who they are does not matter, so a folder may have any structure.
STRANGERS: dict[str, Callable[..., Source]] = {**SOURCES, "folder": LooseImages}


def build_people(config: RunConfig) -> Source:
    """The people as they are given: without noise and without strangers."""
    return build("data", SOURCES, config.data.name, **config.data.options)


def build_training_source(config: RunConfig) -> Source:
    """The images that are trained on, with the labels that the head gets."""
    source = build_people(config)
    _require_two_people(source, config.data)
    if config.evaluation.set_aside:
        source = SetAside(source, share=config.evaluation.set_aside, seed=config.seed)
    noise, open_set = config.label_noise, config.open_set
    if noise is not None:
        seed = config.seed if noise.seed is None else noise.seed
        source = NoisyLabels(source, rate=noise.rate, kind=noise.kind, seed=seed)
    if open_set is not None:
        _refuse_known_strangers(config.data, open_set.data)
        strangers = build("open_set.data", STRANGERS, open_set.data.name, **open_set.data.options)
        source = WithStrangers(source, strangers, share=open_set.share)
    return source


def learned_people(config: RunConfig, people: int) -> int:
    """How many people the head learns: those of the images, and whom augmentation makes of them."""
    choice = config.augmentation
    return build_augmentation(choice.name, **choice.options).people(people)


def _require_two_people(source: Source, data: Choice) -> None:
    """A loss learns to tell people apart."""
    if source.num_classes < 2:
        found = "images of one person only" if source.num_classes else "no image with a label"
        raise ValueError(
            f"data.path: {data.options['path']} has {found}; training needs at least two people"
            + (", each in a folder of their own" if data.name == "folder" else "")
        )


def _refuse_known_strangers(people: Choice, strangers: Choice) -> None:
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
