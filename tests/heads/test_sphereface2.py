"""What only SphereFace2 has: the start of its bias, its schedule, its balance."""

import math
from typing import Any

import pytest
import torch

from sphereface2.heads import SphereFace2, SphereFace2A, SphereFace2M, build_head, head_options
from sphereface2.heads.contract import Rows

# K = 8631 (VGGFace2), λ = 0.7, t = 3 unless it says otherwise
PUBLISHED = [
    (SphereFace2, {"radius": 30.0, "margin": 0.4}, 2.285),
    (SphereFace2, {"radius": 40.0, "margin": 0.4}, 5.785),
    (SphereFace2, {"radius": 40.0, "margin": 0.4, "sharpness": 1.0}, -24.215),
    (SphereFace2A, {"radius": 40.0}, 21.785),
    (SphereFace2M, {"radius": 40.0}, 21.785),
]


@pytest.mark.parametrize(("head_class", "options", "bias"), PUBLISHED)
def test_bias_starts_at_the_published_values(
    head_class: type[SphereFace2], options: dict[str, Any], bias: float
) -> None:
    head = head_class(4, 8631, balance=0.7, **options)
    assert head.bias is not None
    assert head.bias.item() == pytest.approx(bias, abs=5e-4)


@pytest.mark.parametrize("name", ["sphereface2-c", "sphereface2-a", "sphereface2-m"])
def test_bias_starts_where_the_loss_is_flat_in_it(name: str) -> None:
    """Appendix G: dL/db = 0 when every embedding is at right angles to every class weight."""
    for balance in [0.05, 0.7, 0.99]:
        for classes in [2, 50]:
            head: Any = build_head(
                name, 8, classes, balance=balance, radius=5.0, loss_weight=1.0
            ).double()
            with torch.no_grad():
                head.weight.zero_()
                head.weight[:, 0] = 1.0
            x = torch.zeros(3, 8, dtype=torch.float64)
            x[:, 1] = 1.0
            head(x, torch.tensor([0, 1, 1])).backward()
            assert float(head.bias.grad) == pytest.approx(0.0, abs=1e-6)  # it is kept in float32


def test_bias_starts_where_the_loss_is_flat_at_the_ends_of_the_balance_too() -> None:
    for balance in (0.0, 1.0, None, "class-fraction"):
        for classes in (2, 10_000_000):
            head = SphereFace2.__new__(SphereFace2)  # ten million classes without their weights
            torch.nn.Module.__init__(head)
            head.num_classes = classes
            head.balance = (classes - 1) / classes if isinstance(balance, str) else balance
            head.radius, head.sharpness, head.gradient = 30.0, 3.0, "exact"
            head.margin, head.margin_negative, head._margin_schedule = 0.4, None, None
            bias = head.minimising_bias()
            # Where dL/db = 0: the pull of one positive is that of all negatives. λ = 0 and 1 are
            # taken as close to the end as rounding allows.
            share = head.balance
            weights = (1.0, 1.0) if share is None else (max(share, 1e-9), max(1 - share, 1e-9))
            g = 2 * 0.5**3 - 1
            pull = weights[0] / (1 + math.exp(30 * (g - 0.4) + bias))
            push = (classes - 1) * weights[1] / (1 + math.exp(-30 * (g + 0.4) - bias))
            assert pull == pytest.approx(push, rel=1e-6)


def test_default_margins_of_the_three_types() -> None:
    margins = [head(4, 10).margin for head in (SphereFace2, SphereFace2A, SphereFace2M)]
    assert margins == [0.4, 0.5, 1.7]


def test_class_fraction_weighs_one_positive_like_all_negatives() -> None:
    reduction = SphereFace2(4, 10, balance="class-fraction").reduction()
    assert reduction.positive_weight == pytest.approx(9 * reduction.negative_weight)


def test_unknown_samples_are_negatives_for_every_class() -> None:
    """A batch of one known and one unknown sample: the unknown has no positive term."""
    head = SphereFace2(6, 4, loss_weight=1.0).double()
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cosine = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight).T
    score = 2 * ((cosine + 1) / 2) ** 3 - 1
    assert head.bias is not None
    negative = torch.nn.functional.softplus(30 * (score + 0.4) + head.bias) * 0.3 / 30
    positive = torch.nn.functional.softplus(-30 * (score - 0.4) - head.bias) * 0.7 / 30
    expected = (positive[0, 2] + negative[0].sum() - negative[0, 2] + negative[1].sum()) / 2
    torch.testing.assert_close(head(x, torch.tensor([2, -1])), expected)


def test_margin_schedule_is_a_line_between_its_points() -> None:
    head = SphereFace2(4, 10, margin_schedule=[(20, 0.0), (40, 0.2)])
    seen = []
    for epoch in (0, 20, 25, 30, 40, 100):
        head.advance(epoch)
        seen.append(head.margin)
    assert seen == pytest.approx([0.0, 0.0, 0.05, 0.1, 0.2, 0.2])


def test_a_margin_schedule_bends_at_each_of_its_points() -> None:
    head = SphereFace2(4, 10, margin_schedule=[(2, 0.1), (10, 0.3), (20, 0.2)])
    seen = []
    for epoch in (0, 2, 6, 10, 15, 20, 30):
        head.advance(epoch)
        seen.append(head.margin)
    assert seen == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.25, 0.2, 0.2])


def wespeaker_margin(step: int, *, start: int, end: int, initial: float, final: float) -> float:
    """The exponential increase of wespeaker's MarginScheduler, in its own steps."""
    if step < start:
        return initial
    if step >= end:
        return final
    initial_value, final_value = 1.0, 1e-3
    ratio = 1.0 - initial_value * math.exp(
        (step - start) / (end - start) * math.log(final_value / (initial_value + 1e-6))
    )
    return initial + (final - initial) * ratio


@pytest.mark.parametrize("low", [0.0, 0.1])
def test_an_exponential_warm_up_is_wespeakers(low: float) -> None:
    schedule = {"from": low, "to": 0.4, "epochs": [2, 6], "shape": "exponential"}
    head = SphereFace2(4, 10, margin_schedule=schedule)
    for step in range(0, 700, 7):  # a hundred an epoch
        head.advance(step / 100)
        expected = wespeaker_margin(step, start=200, end=600, initial=low, final=0.4)
        assert head.margin == pytest.approx(expected, abs=1e-6)


def test_a_linear_warm_up_ends_at_the_margin_if_nothing_else_is_said() -> None:
    head = SphereFace2(4, 10, margin=0.3, margin_schedule={"epochs": [2, 6]})
    points = SphereFace2(4, 10, margin_schedule=[(2, 0.0), (6, 0.3)])
    for epoch in (0.0, 2.0, 3.1, 5.9, 6.0, 9.0):
        head.advance(epoch)
        points.advance(epoch)
        assert head.margin == points.margin


def test_bias_starts_for_the_first_margin_of_a_schedule() -> None:
    scheduled = SphereFace2(4, 100, margin=0.3, margin_schedule=[(1, 0.1), (2, 0.3)])
    plain = SphereFace2(4, 100, margin=0.1)
    assert scheduled.bias is not None
    assert plain.bias is not None
    assert scheduled.bias.item() == plain.bias.item()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("sphereface2-c", {"balance": 1.2}, r"balance must lie in \[0, 1\], got 1.2"),
    ("sphereface2-c", {"balance": -0.1}, "balance"),
    ("sphereface2-c", {"radius": 0.0}, "radius must be above 0, got 0.0"),
    ("sphereface2-c", {"radius": math.nan}, "radius: must be a finite number"),
    ("sphereface2-c", {"sharpness": -1.0}, "sharpness must be above 0"),
    ("sphereface2-c", {"loss_weight": 0.0}, "loss_weight must be above 0"),
    ("sphereface2-c", {"margin": -0.4}, "margin must be at least 0, got -0.4"),
    ("sphereface2-m", {"margin": 0.4}, "margin must be at least 1, got 0.4"),
    ("sphereface2-a", {"margin_negative": 0.1}, "margin_negative goes with the C-type margin"),
    ("sphereface2-c", {"normalize": False}, "sharpness=1 only"),
    ("sphereface2-c", {"bias_start": math.inf}, "bias_start: must be a finite number"),
    ("sphereface2-c", {"margin_schedule": []}, "at least one"),
    ("sphereface2-c", {"margin_schedule": [(2, 0.1), (1, 0.2)]}, "rising epochs"),
    ("sphereface2-c", {"margin_schedule": {"to": 0.4}}, r"epochs must be the first and the last"),
    ("sphereface2-c", {"margin_schedule": {"epochs": [6, 2]}}, r"such as \[2, 6\], got \[6, 2\]"),
    ("sphereface2-c", {"margin_schedule": {"epochs": [-1, 2]}}, "margin_schedule: epochs must be"),
    ("arcface", {"margin_schedule": {"epochs": [2, 6], "form": 1}}, "has no key 'form'"),
    ("cosface", {"margin_schedule": {"epochs": [2, 6], "shap": 1}}, "did you mean 'shape'"),
    (
        "adaface",
        {"margin_schedule": {"epochs": [2, 6], "shape": "exp"}},
        "shape must be linear or exponential, got 'exp'; did you mean 'exponential'",
    ),
    ("cosface", {"margin_schedule": {"epochs": [2, 6], "to": "a"}}, "to must be a number, got 'a'"),
    ("cosface", {"margin_schedule": {"epochs": [2, 6], "to": -1}}, "margin must be at least 0"),
    ("sphereface2-c", {"radis": 30}, r"no option 'radis'; did you mean 'radius'\?"),
    ("sphereface2-c", {"radius": "wide"}, r"head\.radius: .*valid number.*'wide'"),
    ("sphereface2-c", {"bias": "some"}, r"head\.bias: .*'shared', 'per-class' or 'none'"),
    ("sphereface2-c", {"r": 3, "radius": 4}, "mean the same option"),
    ("sphereface2-c", {"margin_type": "A"}, "the head for margin_type=A is 'sphereface2-a'"),
    ("sphereface2-c", {"magn_type": "M"}, "the head for magn_type=M is 'sphereface2-m'"),
    ("sphereface2-c", {"margin_type": "X"}, "unknown head 'sphereface2-x'"),
    ("cosface", {"margin_type": "C"}, "no option 'margin_type'"),
    ("sphreface2-c", {}, r"unknown head 'sphreface2-c'; did you mean 'sphereface2-c'\? \(known:"),
]


@pytest.mark.parametrize(("name", "options", "sentence"), WRONG)
def test_a_wrong_option_gets_one_sentence(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        build_head(name, 8, 10, **options)
    assert "\n" not in str(caught.value)


def test_the_peers_names_mean_the_same() -> None:
    theirs = build_head("sphereface2-c", 8, 10, magn_type="C", alpha=0.6, r=40, m=0.3, t=2, lw=10)
    assert isinstance(theirs, SphereFace2)
    assert (theirs.balance, theirs.radius, theirs.margin) == (0.6, 40.0, 0.3)
    assert (theirs.sharpness, theirs.loss_weight) == (2.0, 10.0)
    lam = build_head("sphereface2-a", 8, 10, lam=0.6, scale=32)
    assert isinstance(lam, SphereFace2)
    assert (lam.balance, lam.radius) == (0.6, 32.0)
    assert build_head("cosface", 8, 10, s=30, m=0.4).scale == 30.0
    assert build_head("arcface", 8, 10, r=40).scale == 40.0


def test_wespeakers_words_and_form() -> None:
    """Its loss has no 1/r and its bias starts at 0: loss_weight = radius and bias_start = 0."""
    theirs = {"scale": 32.0, "margin": 0.2, "t": 3, "lanbuda": 0.7, "margin_type": "C"}
    head: Any = build_head("sphereface2-c", 6, 5, loss_weight=32.0, bias_start=0.0, **theirs)
    head.double()
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 3, 3, 1])
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(x, y, strict=True):
        for i, weight in enumerate(head.weight):
            c = row @ weight / (row.norm() * weight.norm())
            score = 2 * ((c + 1) / 2) ** 3 - 1
            if i == label:
                total = total + 0.7 * torch.log(1 + torch.exp(-(32 * (score - 0.2) + head.bias)))
            else:
                total = total + 0.3 * torch.log(1 + torch.exp(32 * (score + 0.2) + head.bias))
    assert head.bias.item() == 0.0
    torch.testing.assert_close(head(x, y), total / 4)
    assert head_options("sphereface2-c", theirs)["balance"] == 0.7


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0, 3.0, 4.5, 6.0])
def test_the_negatives_logit_and_slope_follow_the_adjustment(sharpness: float) -> None:
    head = build_head("sphereface2-c", 4, 5, sharpness=sharpness, radius=20.0, margin=0.3)
    assert isinstance(head, SphereFace2)
    cosine = torch.linspace(-0.95, 0.95, 21, dtype=torch.float64)[:, None].requires_grad_()
    rows = Rows(norm=torch.ones(1, dtype=torch.float64), known=torch.ones(1, dtype=torch.bool))
    expected = 20.0 * (2 * ((cosine + 1) / 2) ** sharpness - 1 + 0.3)
    (derivative,) = torch.autograd.grad(expected.sum(), [cosine])
    logit, slope = head.other_logit(cosine.detach().clone(), rows)
    torch.testing.assert_close(logit, expected.detach())
    torch.testing.assert_close(torch.as_tensor(slope).expand_as(derivative).double(), derivative)


@pytest.mark.parametrize(("end", "near"), [(0.0, 1e-9), (1.0, 1.0 - 1e-9)])
def test_a_bias_at_the_ends_of_the_balance_starts_as_close_to_them_as_rounding_allows(
    end: float, near: float
) -> None:
    biases = [SphereFace2(4, 50, balance=balance).bias for balance in (end, near)]
    assert biases[0] is not None
    assert biases[1] is not None
    assert biases[0].item() == pytest.approx(biases[1].item(), abs=1e-4)
