"""What a run may be resumed with: which settings differ, what they change, what may not change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sphereface2.training.checkpoint import (
    Change,
    Checkpoint,
    changed_settings,
    check_settings,
    differing_settings,
    require_same_people,
    run_settings,
)
from tests.training.conftest import make_config

RUN = Path("runs/mine")


@pytest.mark.parametrize(
    ("change", "shown", "steps", "images", "length"),
    [
        (Change("optimizer.learning_rate", 0.1, 0.2), "0.1 -> 0.2", True, False, False),
        (Change("schedule.name", "cosine", "step"), "cosine -> step", True, False, False),
        (Change("training.epochs", 3, None), "3 -> null", True, False, True),
        (Change("training.steps", None, 9), "null -> 9", True, False, True),
        (Change("training.clip_norm", None, 1.0), "null -> 1.0", True, False, False),
        (Change("data.path", "a", "b"), "a -> b", False, True, False),
        (Change("evaluation.sets", ["a"], []), '["a"] -> []', False, True, False),
        (Change("open_set.data.path", "a", "b"), "a -> b", False, True, False),
        (Change("device", "cpu", "cuda"), "cpu -> cuda", False, False, False),
        (Change("training.workers", 1, 2), "1 -> 2", False, False, False),
    ],
)
def test_what_a_change_is_about(
    change: Change, shown: str, steps: bool, images: bool, length: bool
) -> None:
    assert str(change) == f"{change.key} {shown}"
    assert change.changes_steps is steps
    assert change.names_images is images
    assert change.changes_length is length


def test_names_come_first_and_what_is_the_same_is_left_out() -> None:
    before = {"a.x": 1, "b.name": "p", "c": 3, "number of images": 4}
    now = {"a.x": 2, "b.name": "q", "c": 3, "d": 5, "younger": 0.0, "number of images": 6}
    assert differing_settings(before, now) == [
        Change("b.name", "p", "q"),
        Change("a.x", 1, 2),
        Change("d", None, 5),
    ]


def test_an_option_that_came_later_than_the_run_is_at_its_default() -> None:
    before = {"head.name": "sphereface2-c", "head.radius": 30.0}
    now = {**before, "head.pair_weight": 0.0, "head.pair_margin": 0.2}
    assert differing_settings(before, now) == []
    assert differing_settings(before, {**now, "head.pair_margin": 0.3}) == [
        Change("head.pair_margin", None, 0.3)
    ]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("augmentation.reshape", "the saved class weights are of the people whom it makes"),
        ("backbone.width", "the saved weights are of that network"),
        ("data.people", "the steps so far have seen those images"),
        ("evaluation.set_aside", "the steps so far have seen the others' images"),
        ("head.margin", "the saved class weights were learned by that loss"),
        ("label_noise.rate", "the steps so far have seen those labels"),
        ("open_set.share", "the steps so far have seen those images"),
        ("optimizer.fused_head", "the saved momentum is in its order"),
        ("optimizer.name", "the saved momentum is of that optimiser"),
        ("preprocessing.mean", "the saved weights are of a network that sees pixels so"),
        ("seed", "all random choices of the steps so far come from it"),
        ("training.start_from", "weights to start from are read once, when a run begins"),
        ("training.batch_size", "it is part of what a step is"),
    ],
)
def test_what_may_not_change_has_a_reason_and_a_command(key: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{key} was 1 when runs/mine began and") as caught:
        changed_settings({key: 1}, {key: 2}, run=RUN)
    assert str(caught.value) == (
        f"{key} was 1 when runs/mine began and cannot become 2: {reason}; leave it at 1, or train "
        f"another run: sphereface2 train runs/mine {key}=2 --output NEW"
    )
    with pytest.raises(ValueError, match=r"sphereface2 train runs/mine 'a b' c=d --output NEW$"):
        changed_settings({key: 1}, {key: 2}, run=RUN, overrides=["a b", "c=d"])


@pytest.mark.parametrize(
    "key",
    [
        "data.on_bad_image", "data.path", "data.root", "device", "evaluation.sets",
        "open_set.data.path", "training.accumulate", "training.checkpoint_every_steps",
        "training.evaluate_every", "training.log_every", "training.tensorboard", "training.workers",
        "training.worker_kind", "training.epochs", "augmentation.blur", "optimizer.learning_rate",
        "precision", "schedule.warmup", "training.clip_norm",
    ],
)  # fmt: skip
def test_what_may_change_is_listed(key: str) -> None:
    assert changed_settings({key: 1}, {key: 2}, run=RUN) == [Change(key, 1, 2)]
    assert changed_settings({key: 1}, {key: 1}, run=RUN) == []


def settings(*, classes: int = 3, images: int = 6, shift: int = 0) -> dict[str, Any]:
    labels = (np.arange(images) + shift) % classes
    return run_settings(make_config(), classes=classes, labels=labels.astype(np.int64))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"classes": 2}, "number of classes was 3 and is 2"),
        ({"images": 9}, "number of images was 6 and is 9"),
        ({"shift": 1}, "digest of the labels was "),
    ],
)
def test_other_images_are_named_by_what_is_known_of_them(other: dict[str, int], named: str) -> None:
    checkpoint = Checkpoint(settings())
    last = RUN / "checkpoints" / "last"
    check_settings(checkpoint, settings(), last)
    with pytest.raises(ValueError, match=f"^the data cannot be what runs/mine was .* the {named}"):
        check_settings(checkpoint, settings(**other), last)
    require_same_people(checkpoint, settings(), RUN)
    same = named.replace(" and is", " there and is")
    with pytest.raises(ValueError, match=f"class weights of runs/mine are of other .* the {same}"):
        require_same_people(checkpoint, settings(**other), RUN)
    at = {"data.path": "crops"}
    with pytest.raises(ValueError, match=r"^crops cannot be what runs/mine was trained on"):
        check_settings(Checkpoint(settings() | at), settings(**other) | at, last)
