"""How strongly a loss pulls, against the slope of its formula."""

import math
from typing import Any

import pytest

from sphereface2.heads import ProxyHead, build_head
from sphereface2.heads.proxy import SHOWN_CLASSES, SHOWN_COSINES, pull

CLASSES = 50


def made(name: str, **options: object) -> ProxyHead:
    head = build_head(name, 3, CLASSES, **options)
    assert isinstance(head, ProxyHead)
    return head


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z))


@pytest.mark.parametrize("cosine", [-0.3, 0.0, 0.5])
@pytest.mark.parametrize("centres", [1, 2])
def test_sphereface2_pulls_by_the_slope_of_its_positive_term(cosine: float, centres: int) -> None:
    head = made("sphereface2-c", loss_weight=10.0, margin=0.3, sub_centres=centres)
    # λ·w·g'(c)·σ(-(r(g(c) - m) + b)), with g'(c) = 3·((c+1)/2)²
    assert head.bias is not None
    half = (cosine + 1.0) / 2.0
    logit = 30.0 * (2.0 * half**3 - 1.0 - 0.3) + float(head.bias.detach())
    expected = 0.7 * 10.0 * 3.0 * half**2 * sigmoid(-logit)
    assert pull(head, cosine) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("cosine", [-0.3, 0.0, 0.5])
def test_cosface_pulls_by_its_scale_times_what_is_missing(cosine: float) -> None:
    target = math.exp(20.0 * (cosine - 0.35))
    expected = 20.0 * (1.0 - target / (target + CLASSES - 1))
    assert pull(made("cosface", scale=20.0), cosine) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("cosine", [0.0, 0.4])
def test_a_unified_threshold_pulls_by_its_distance(cosine: float) -> None:
    bias = -math.log(10.0 * CLASSES)
    expected = 16.0 * sigmoid(-(16.0 * (cosine - 0.4) + bias))
    assert pull(made("uniface", scale=16.0), cosine) == pytest.approx(expected, rel=1e-4)
    expected = 16.0 * sigmoid(-(16.0 * cosine + bias))
    assert pull(made("sigmoid", scale_start=16.0), cosine) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["sphereface2-c", "sphereface2-a", "sphereface2-m"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sharpness": 1.0},
        {"sharpness": 5.0, "radius": 40.0},
        {"balance": 0.9},
        {"balance": None},
        {"balance": "class-fraction", "gradient": "straight-through"},
    ],
)
def test_the_usual_strength_is_that_of_cosface_with_scale_30(name: str, options: Any) -> None:
    # The start of the bias leaves the A and M types, whose negatives have no margin, a little less.
    assert pull(made(name, **options), 0.0) == pytest.approx(29.0, abs=1.1)
    assert pull(made("cosface", scale=30.0), 0.0) == pytest.approx(30.0, rel=1e-3)


def test_what_has_no_pull_to_compare_keeps_its_weight() -> None:
    products: Any = made("sphereface2-c", normalize=False, sharpness=1.0)
    assert products.loss_weight == 1.0
    only_negatives: Any = made("sphereface2-c", balance=0.0)
    assert only_negatives.loss_weight == pytest.approx(30.0 / 0.75)


@pytest.mark.parametrize("cosine", [0.0, 0.5])
def test_lengths_are_those_that_mean_nothing_to_a_head(cosine: float) -> None:
    """1, so that products are cosines; half-way between the least and the largest of MagFace."""
    own = math.exp(cosine) / (math.exp(cosine) + CLASSES - 1)
    assert pull(made("softmax"), cosine) == pytest.approx(1.0 - own, rel=1e-4)
    head = made("magface", norm_low=20.0, margin_low=0.2, margin_high=0.6, easy_margin=False)
    turned = math.acos(cosine) + 0.4
    target = math.exp(64.0 * math.cos(turned))
    slope = 64.0 * math.sin(turned) / math.sin(math.acos(cosine))
    assert pull(head, cosine) == pytest.approx(slope * (CLASSES - 1) / (target + CLASSES - 1), 1e-4)


def test_the_pull_that_is_shown_is_that_of_the_papers_training_set() -> None:
    assert SHOWN_CLASSES == 8631  # people of VGGFace2
    assert SHOWN_COSINES == (0.0, 0.5)
