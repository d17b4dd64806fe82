"""Every number of small evaluations, as recorded: one that moves without a reason is a mistake.

Numbers that are meant to change are written again with `python -m tests.evaluation.test_recorded`,
and the commit says why.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sphereface2.evaluation.calibration import calibrate, reliability
from sphereface2.evaluation.comparison import compare
from sphereface2.evaluation.mislabelled import find_mislabelled
from sphereface2.evaluation.protocols.groups import ACROSS, measure_groups
from sphereface2.evaluation.protocols.identification import identify
from sphereface2.evaluation.protocols.ijb import evaluate_ijb
from sphereface2.evaluation.protocols.megaface import CENTRED, megaface
from sphereface2.evaluation.protocols.protocol import Embedded, Embeddings, ProtocolResult
from sphereface2.evaluation.protocols.tinyface import LISTS, TinyFace
from sphereface2.evaluation.verification import measure, measure_all
from tests.evaluation import test_identification as identification
from tests.evaluation import test_ijb as ijb
from tests.evaluation import test_megaface as megaface_cases
from tests.evaluation import test_verification as verification
from tests.evaluation.test_comparison import scored
from tests.evaluation.test_mislabelled import HARD, gallery, spoiled
from tests.golden.cases import numbers
from tests.golden.test_golden import differences

RECORDED = Path(__file__).with_name("recorded.json")
TOLERANCE = 1e-5  # processors round sums in different ways


def ijb_plain() -> Any:
    listed, images = ijb._set()
    return evaluate_ijb(listed, images)


def ijb_variants() -> Any:
    listed, images = ijb._set(1)
    both = np.concatenate([images, images[::-1]], axis=1)
    return evaluate_ijb(
        listed,
        both,
        mirror="sum",
        image_norm="unit",
        detector_weights=True,
        far_targets=(0.01, 0.2),
    )


def ijb_with_gaps() -> Any:
    listed, images = ijb._set(2)
    absent = np.isin(listed.templates, np.unique(listed.templates)[::7])
    absent[::5] = True
    return evaluate_ijb(listed.without(absent), images[~absent], parts=("1:1", "1:N standard"))


def megaface_with_noise(**options: Any) -> Any:
    probes, people, distractors = megaface_cases._case(2, ties=False)
    noisy = np.arange(10) == np.flatnonzero(people == 0)[0]
    return megaface(
        probes, people, distractors, noisy_probes=noisy,
        noisy_distractors=np.arange(300) % 50 == 3, **options,
    )  # fmt: skip


def identification_of(seed: int, **options: Any) -> Any:
    case = identification._case(seed, ties=False, per_person=2)
    return identify(*case, thresholds=(0.3, 0.6), **options)


def sliced() -> Any:
    pairs = scored(3, noise=0.4)
    kinds = np.where(np.arange(600) % 3 == 0, "near", "far")
    return measure(replace(pairs, attributes={"distance": kinds}), model="m", replicates=60)


def grouped(fmr: float) -> Any:
    pairs = scored(4, noise=0.4)
    kinds = np.where(np.arange(600) % 3 == 0, "north", "south")
    across = ~pairs.same & (np.arange(600) % 5 == 0)
    groups = np.where(across, ACROSS, kinds)
    return measure_groups(replace(pairs, attributes={"group": groups}), fmr=fmr)


def few_pairs() -> Any:
    pairs = scored(1, noise=0.9, pairs=40)
    result = measure(pairs, model="m", far_targets=(0.3,), replicates=60)
    worst = {name: getattr(result, name)[:3] for name in ("hardest_genuine", "hardest_impostor")}
    return replace(result, **worst)


def tiny_faces() -> Any:
    """Thirty people, two images of each enrolled; three of the probes are of strangers."""
    generator = np.random.default_rng(8)
    people = generator.normal(size=(33, 16))

    def embedded(who: Any, *, start: int = 0) -> Embedded:
        vectors = people[who] + generator.normal(size=(len(who), 16))
        names = [f"{person + start}_{number}.jpg" for number, person in enumerate(who)]
        everyone = np.ones(len(who), np.bool_)
        return Embedded(vectors.astype(np.float32), "given", names, None, everyone, "example")

    lists = (
        embedded(np.repeat(np.arange(30), 2)),
        embedded(generator.integers(0, 33, 80), start=1000),
        embedded(np.arange(33).repeat(3)),
    )
    return TinyFace().measure(Embeddings(dict(zip(LISTS, lists, strict=True))))


def mislabelled(case: str, seed: int, **options: Any) -> Any:
    generator = np.random.default_rng(seed)
    images = gallery(generator, scatter=0.08, **HARD[case])
    embeddings, labels, *_ = spoiled(generator, *images, 0.06)
    # One person under two labels, two people under one, and images without a label.
    labels[labels == 7] = 8
    labels[np.flatnonzero(labels == 11)[::2]] = labels.max() + 1
    labels[::97] = -1
    return find_mislabelled(embeddings, labels, **options)


CASES: dict[str, Callable[[], Any]] = {
    "ijb": ijb_plain,
    "ijb, variants": ijb_variants,
    "ijb, missing images": ijb_with_gaps,
    "megaface": lambda: megaface_with_noise(sizes=(10, 100, 1000), fpr_targets=(1e-3, 0.1)),
    "megaface, centred": lambda: megaface_with_noise(noisy_probes_are=CENTRED, longest_rank=7),
    "identification": lambda: identification_of(0, name="doors", ranks=(1, 2, 3)),
    "identification, max": lambda: identification_of(1, pooling="max", fpir_targets=(0.2,)),
    "groups": lambda: grouped(0.05),
    "groups, no threshold": lambda: grouped(1e-4),
    "tinyface": tiny_faces,
    "verification": lambda: measure(scored(0, noise=0.5), model="m", replicates=60),
    "verification, sets": lambda: measure_all(
        [verification.scored("a", 0), verification.scored("b", 1)], model="m", replicates=60
    ),
    "verification, slices": sliced,
    "verification, few pairs": few_pairs,
    "comparison": lambda: compare(
        [(f"m{noise}", [scored(0, noise=noise), scored(1, noise=noise, name="b")])
         for noise in (0.3, 0.5, 0.9)],
        replicates=60, far_targets=(0.1, 0.01),
    ).comparisons,
    "calibration": lambda: calibrate(
        scored(0, noise=0.5), model="m", far_targets=(0.01, 0.1, 0.2), prior=0.2,
        bias=(0.3, 30.0, 3.0), replicates=60,
    ),
    "reliability": lambda: reliability(
        *(getattr(scored(2, noise=0.7), name) for name in ("scores", "same", "folds")), prior=0.1
    )[0],
    **{
        f"mislabelled, {case}": partial(mislabelled, case, 5)
        for case in ("easy", "hard images", "few images", "two unlike looks")
    },
    "mislabelled, strict": lambda: mislabelled("hard images", 6, false_alarms=0.01),
    "mislabelled, threshold": lambda: mislabelled("easy", 6, threshold=0.1),
}  # fmt: skip


def found(case: Callable[[], Any]) -> Any:
    value = case()
    plain: Any = [asdict(each) for each in value] if isinstance(value, Sequence) else asdict(value)
    if isinstance(value, ProtocolResult):
        plain["view"] = asdict(value.view())
    plain = json.loads(json.dumps(plain, default=lambda each: np.asarray(each).tolist()))
    return numbers(in_columns(plain))


def in_columns(value: Any) -> Any:
    """Many suspects, say, as a list for each of their fields: of numbers only the moments stay."""
    if isinstance(value, dict):
        return {key: in_columns(each) for key, each in value.items()}
    if (
        isinstance(value, list)
        and len(value) > 12
        and all(isinstance(each, dict) for each in value)
    ):
        return {key: [each[key] for each in value] for key in value[0]}
    return [in_columns(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_recorded(name: str) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert list(differences(recorded[name], found(CASES[name]), TOLERANCE)) == []


def test_every_recorded_case_is_asked() -> None:
    assert set(json.loads(RECORDED.read_text(encoding="utf-8"))) == set(CASES)


if __name__ == "__main__":
    content = {name: found(case) for name, case in CASES.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in content.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
