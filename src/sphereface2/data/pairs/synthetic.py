"""Four verification sets of synthetic people, as LFW, AgeDB-30, CA-LFW and CP-LFW ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import FOLDS, PairFormat, VerificationSet
from sphereface2.data.sources.synthetic import FIRST_UNSEEN, SyntheticImages
from sphereface2.rendering.person import EVERYDAY, Person, Setting, draw_person
from sphereface2.rendering.surface import SIZE

IMAGES_PER_PERSON = 10
_LOOK_ALIKES = 3
_STREAM = 3


@dataclass(frozen=True)
class _Kind:
    """One set: the settings of the two pictures of a pair, and how impostors are chosen."""

    name: str
    first: Setting
    second: Setting
    look_alikes: bool = False

    @property
    def crossing(self) -> bool:
        """Whether a pair takes one picture from each setting."""
        return self.first != self.second


_KINDS = (
    _Kind("plain", EVERYDAY, EVERYDAY),
    _Kind("age-30", Setting(age=(18, 34)), Setting(age=(64, 80))),
    _Kind("cross-age", Setting(age=(18, 36)), Setting(age=(48, 70)), look_alikes=True),
    _Kind("cross-pose", Setting(yaw=(0, 12)), Setting(yaw=(50, 68))),
)


def synthetic_verification_sets(
    *,
    people: int = 200,
    pairs: int = 3000,
    image_size: int = SIZE,
    seed: int = 0,
    first_person: int = FIRST_UNSEEN,
) -> list[VerificationSet]:
    """Sets plain, age-30, cross-age and cross-pose, each of its own people unseen in training.

    Each set has `pairs` pairs, half of them genuine, in ten folds that share no person. A genuine
    pair of age-30 lies at least 30 years apart, one of cross-age at least 12, one of cross-pose
    is a frontal and a near-profile view; impostor pairs are made of the same two kinds of picture.
    In cross-age the two people of an impostor pair look alike in skin, hair and sex.
    """
    _require_possible(people, pairs, image_size, seed, first_person)
    half, wanted = IMAGES_PER_PERSON // 2, pairs // (2 * FOLDS)
    drawn = []
    for number, kind in enumerate(_KINDS):
        rng = np.random.default_rng((seed, number, _STREAM))
        first = first_person + number * people
        images = SyntheticImages(
            people,
            [kind.first] * half + [kind.second] * half,
            image_size=image_size,
            seed=seed,
            first_person=first,
        )
        chosen: list[NDArray[np.int64]] = []
        for members in np.array_split(np.arange(people), FOLDS):
            chosen.append(_genuine(kind, members, wanted, rng))
            who = [draw_person(seed, first + int(member)) for member in members]
            chosen.append(_impostors(kind, members, who, wanted, rng))
        numbers = np.concatenate(chosen)
        drawn.append(
            VerificationSet(
                name=kind.name,
                images=images,
                pairs=numbers,
                same=np.tile(np.repeat([True, False], wanted), FOLDS),
                folds=np.repeat(np.arange(FOLDS, dtype=np.int64), 2 * wanted),
                people=np.repeat(np.arange(people, dtype=np.int64) + first, IMAGES_PER_PERSON),
                attributes=_attributes(images, numbers),
            )
        )
    return drawn


def _require_possible(
    people: int, pairs: int, image_size: int, seed: int, first_person: int
) -> None:
    if seed < 0:
        raise ValueError(f"synthetic sets: seed must not be negative, got {seed}")
    if image_size < 8:
        raise ValueError(f"synthetic sets: image_size must be at least 8, got {image_size}")
    if first_person < FIRST_UNSEEN:
        raise ValueError(
            f"synthetic sets: first_person must be at least {FIRST_UNSEEN}, got {first_person}; "
            "people below are for training"
        )
    if people < 2 * FOLDS:
        raise ValueError(
            f"synthetic sets: people must be at least {2 * FOLDS} (two per fold), got {people}"
        )
    if pairs < 2 * FOLDS or pairs % (2 * FOLDS):
        raise ValueError(
            f"synthetic sets: pairs must be a positive multiple of {2 * FOLDS} "
            f"(ten folds, half of each genuine), got {pairs}"
        )
    # The genuine pairs of the smallest fold set the limit where they cross two settings.
    most = 2 * FOLDS * (people // FOLDS) * (IMAGES_PER_PERSON // 2) ** 2
    if pairs > most:
        raise ValueError(
            f"synthetic sets: {people} people give at most {most} pairs, got pairs={pairs}; "
            "ask for fewer pairs or more people"
        )


def _attributes(images: SyntheticImages, pairs: NDArray[np.int64]) -> dict[str, NDArray[np.str_]]:
    """What the two pictures of each pair differ in, in words that sort as they should."""
    used, places = np.unique(pairs, return_inverse=True)
    taken = [images.conditions(int(number)) for number in used]
    places = places.reshape(pairs.shape)
    age = np.array([conditions.age for conditions in taken])[places]
    yaw = np.array([conditions.yaw for conditions in taken])[places]
    covered = np.array([conditions.accessory != "none" for conditions in taken])[places]
    years, turn = np.abs(age[:, 0] - age[:, 1]), np.abs(yaw[:, 0] - yaw[:, 1])
    return {
        "age gap": np.select(
            [years < 10, years < 30],
            ["below 10 years", "from 10 to 30 years"],
            "over 30 years",
        ),
        "turn of the head": np.select(
            [turn < 20, turn < 45], ["below 20°", "from 20 to 45°"], "over 45°"
        ),
        "accessories": np.select(
            [covered.sum(axis=1) == 0, covered.sum(axis=1) == 1], ["in none", "in one"], "in two"
        ),
    }


def _genuine(
    kind: _Kind, members: NDArray[np.int64], wanted: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Pairs of one person's images, spread evenly over the people of a fold."""
    half = IMAGES_PER_PERSON // 2
    samples = np.array(
        list(product(range(half), range(half, 2 * half)))
        if kind.crossing
        else list(combinations(range(2 * half), 2))
    )
    by_person = np.stack(
        [rng.permutation(samples) + member * IMAGES_PER_PERSON for member in members]
    )
    # One pair of everybody, then the second of everybody, and so on.
    return by_person.swapaxes(0, 1).reshape(-1, 2)[:wanted].astype(np.int64)


def _impostors(
    kind: _Kind,
    members: NDArray[np.int64],
    who: Sequence[Person],
    wanted: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Pairs of two people's images, drawn without repetition."""
    half = IMAGES_PER_PERSON // 2
    count = len(members)
    if kind.look_alikes:
        couples = _look_alikes(who)
    elif kind.crossing:
        couples = list(permutations(range(count), 2))
    else:
        couples = list(combinations(range(count), 2))
    first = range(half) if kind.crossing else range(2 * half)
    second = range(half, 2 * half) if kind.crossing else range(2 * half)
    samples = list(product(first, second))
    picks = rng.choice(len(couples) * len(samples), wanted, replace=False)
    couple = np.array(couples)[picks // len(samples)]
    sample = np.array(samples)[picks % len(samples)]
    return np.asarray(members[couple] * IMAGES_PER_PERSON + sample, dtype=np.int64)


def _look_alikes(who: Sequence[Person]) -> list[tuple[int, int]]:
    """Everybody with the people of the fold that look most like them at first sight."""
    traits = np.array(
        [(3 * p.femininity, 4 * p.melanin, *np.array(p.hair) / 60, 2 * p.hair_length) for p in who]
    )
    distance = np.linalg.norm(traits[:, None] - traits[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, : min(_LOOK_ALIKES, len(who) - 1)]
    return [(person, int(other)) for person, others in enumerate(nearest) for other in others]


SYNTHETIC = PairFormat(synthetic_verification_sets)
