"""Options of heads: what the papers publish is the default, what makes no sense is refused."""

import inspect
import math
from typing import Any

import pytest
import torch

from sphereface2.heads import HEADS, build_head

PUBLISHED: dict[str, dict[str, float]] = {
    "normface": {"scale": 30.0},
    "sphereface": {"scale": 30.0, "margin": 1.5},  # SphereFace-R, as in the paper's comparison
    "cosface": {"scale": 64.0, "margin": 0.35, "sharpness": 1.0},
    "arcface": {"scale": 64.0, "margin": 0.5, "sharpness": 1.0},
    "curricularface": {"scale": 64.0, "margin": 0.5, "ema": 0.01},
    "circle": {"scale": 256.0, "margin": 0.25},
    "magface": {
        "scale": 64.0, "norm_low": 10.0, "norm_high": 110.0, "margin_low": 0.45,
        "margin_high": 0.8, "norm_weight": 35.0, "easy_margin": True,
    },
    "simple": {
        "balance": 0.0001, "radius": 1.0, "margin": 0.0, "angular_bias": 0.3, "bias_start": -10.0,
        "loss_weight": 1000.0, "normalize": False, "detach_batch": True,
    },
    "adaface": {"scale": 64.0, "margin": 0.4, "concentration": 0.333, "ema": 0.01},
    "contrastive": {"margin": 1.0},
    "triplet": {"margin": 0.2},
    "deepid2": {"margin": 1.0},
    "sphereface2-c": {"balance": 0.7, "radius": 30.0, "sharpness": 3.0},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_defaults_are_the_published_settings(name: str) -> None:
    signature = inspect.signature(HEADS[name])
    found = {key: signature.parameters[key].default for key in PUBLISHED[name]}
    assert found == PUBLISHED[name]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("cosface", {"scale": 0.0}, "scale must be above 0, got 0.0"),
    ("cosface", {"scale": math.inf}, "scale must be above 0, got inf"),
    ("cosface", {"sharpness": 0.0}, "sharpness must be above 0"),
    ("arcface", {"margin": -0.1}, "margin must be at least 0, got -0.1"),
    ("sphereface", {"margin": 0.9}, "margin must be at least 1, got 0.9"),
    ("circle", {"margin": math.nan}, "margin must be at least 0, got nan"),
    ("curricularface", {"ema": 1.5}, r"ema must lie in \[0, 1\], got 1.5"),
    ("adaface", {"ema": -0.5}, r"ema must lie in \[0, 1\], got -0.5"),
    ("adaface", {"concentration": 0.0}, "concentration must be above 0"),
    ("magface", {"norm_low": 0.0}, "norm_low must be above 0"),
    ("magface", {"norm_high": 10.0}, "norm_high must be above norm_low = 10.0, got 10.0"),
    ("magface", {"margin_low": 0.9}, r"must rise within \[0, π\], got 0.9, 0.8"),
    ("magface", {"margin_low": -0.1}, r"must rise within \[0, π\], got -0.1, 0.8"),
    ("magface", {"margin_high": 3.2}, r"must rise within \[0, π\], got 0.45, 3.2"),
    ("magface", {"norm_weight": -1.0}, "norm_weight must be at least 0"),
    ("simple", {"balance": 1.1}, r"balance must lie in \[0, 1\]"),
    ("simple", {"radius": 0.0}, "radius must be above 0"),
    ("simple", {"loss_weight": -1.0}, "loss_weight must be above 0"),
    ("simple", {"angular_bias": 1.0}, r"angular_bias must lie in \[-1, 1\), got 1.0"),
    ("simple", {"angular_bias": -1.1}, r"angular_bias must lie in \[-1, 1\), got -1.1"),
    ("simple", {"memory": -1}, "memory must be at least 0, got -1"),
    ("triplet", {"images_per_person": 1}, "images_per_person must be at least 2"),
    ("contrastive", {"images_per_person": 1}, "images_per_person must be at least 2"),
    ("deepid2", {"images_per_person": 1}, "images_per_person must be at least 2"),
    ("deepid2", {"pair_weight": -0.1}, "pair_weight must be at least 0"),
    ("ring", {"ring_weight": -0.1}, "ring_weight must be at least 0"),
    ("ring", {"ring_start": 0.0}, "ring_start must be above 0"),
    ("sphereface2-c", {"balance": -0.1}, r"balance must lie in \[0, 1\]"),
    (
        "sphereface2-c",
        {"margin_negative": 0.1, "margin_schedule": [(0, 0.1)]},
        "not with a margin_schedule",
    ),
    ("sphereface2-a", {"normalize": False, "sharpness": 1.0}, "goes with the C-type margin"),
    ("cosface", {"margin_schedule": [(1, 0.1), (1, 0.2)]}, "rising epochs"),
]


@pytest.mark.parametrize(("name", "options", "sentence"), WRONG)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_head(name, 8, 10, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("arcface", {"margin": 0.0}),
        ("sphereface", {"margin": 1.0}),
        ("curricularface", {"ema": 1.0}),
        ("adaface", {"ema": 0.0}),
        ("magface", {"margin_low": 0.0, "margin_high": 0.0, "norm_weight": 0.0}),
        ("magface", {"margin_high": math.pi}),
        ("simple", {"angular_bias": -1.0, "memory": 0, "balance": 0.0}),
        ("triplet", {"images_per_person": 2}),
        ("deepid2", {"images_per_person": 2, "pair_weight": 0.0}),
        ("ring", {"ring_weight": 0.0}),
        ("sphereface2-c", {"balance": 1.0, "margin_negative": 0.0}),
        ("sphereface2-c", {"normalize": False, "sharpness": 1.0}),
    ],
)
def test_the_ends_of_what_makes_sense_are_taken(name: str, options: dict[str, Any]) -> None:
    head = build_head(name, 8, 2, **options)
    assert torch.isfinite(head(20 * torch.eye(8)[:4], torch.tensor([0, 0, 1, 1])))


def test_only_heads_that_compare_samples_ask_for_several_images_of_a_person() -> None:
    asked = {name for name in HEADS if build_head(name, 4, 4).images_per_person > 1}
    assert asked == {"contrastive", "triplet", "simple", "deepid2"}


def test_the_statistics_count_the_classes_that_beat_the_right_one() -> None:
    """The cosines are 1, 1 and 0: one wrong class ties with the right one, or one beats it."""
    head = build_head("normface", 4, 3)
    with torch.no_grad():
        head.get_parameter("weight").copy_(torch.eye(4)[[0, 0, 1]])
    head.collect_statistics = True
    head(torch.eye(4)[[0]], torch.tensor([0]))
    assert head.statistics() == {
        "negative_score": 0.5,
        "active_negatives": 0.0,
        "positive_score": 1.0,
    }
    head(torch.eye(4)[[0, 1]], torch.tensor([2, 2]))
    assert head.statistics() == {
        "negative_score": 0.5,
        "active_negatives": 0.5,
        "positive_score": 0.5,
    }


def test_a_binary_head_counts_the_negatives_above_its_threshold() -> None:
    """Logits that are the cosines themselves, 0.5 and -0.5: the first is on the wrong side of 0."""
    head = build_head("sphereface2-c", 2, 3, radius=1.0, margin=0.0, sharpness=1.0, bias="none")
    rise = math.sqrt(0.75)
    with torch.no_grad():
        weight = torch.tensor([[1.0, 0.0], [0.5, rise], [-0.5, rise]])
        head.get_parameter("weight").copy_(weight)
    head.collect_statistics = True
    head(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    found = head.statistics()
    assert found["active_negatives"] == 0.5
    assert found["negative_score"] == pytest.approx(0.0, abs=1e-6)
    assert found["positive_score"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["contrastive", "triplet"])
def test_the_statistics_of_pairs_leave_out_an_image_with_itself(name: str) -> None:
    """Two images of a person at 60 degrees and one of another at a right angle to both."""
    head = build_head(name, 3, 2)
    head.collect_statistics = True
    rows = torch.tensor([[2.0, 0.0, 0.0], [0.5, math.sqrt(0.75), 0.0], [0.0, 0.0, 3.0]])
    head(rows, torch.tensor([0, 0, 1]))
    found = head.statistics()
    assert found["positive_score"] == pytest.approx(0.5)
    assert found["negative_score"] == pytest.approx(0.0, abs=1e-6)
