"""Options of heads: what the papers publish is the default, what makes no sense is refused."""

import copy
import inspect
import math
from typing import Any

import pytest
import torch

from sphereface2.heads import HEADS, AdaFace, ArcFace, MagFace, ProxyHead, UniFace, build_head
from sphereface2.heads.contract import Rows
from sphereface2.heads.head import MarginHead
from tests.heads.naive import NAIVE

_SPHEREFACE2 = {
    "balance": 0.7, "radius": 30.0, "margin": None, "margin_negative": None, "sharpness": 3.0,
    "loss_weight": None, "bias": "shared", "bias_start": None, "gradient": "exact",
    "normalize": True, "sub_centres": 1, "pair_weight": 0.0, "pair_margin": 0.2,
}  # fmt: skip
# Every default but that of `margin_schedule`, which is None everywhere.
PUBLISHED: dict[str, dict[str, Any]] = {
    "sphereface2-c": _SPHEREFACE2,
    "sphereface2-a": _SPHEREFACE2,
    "sphereface2-m": _SPHEREFACE2,
    "uniface": {"scale": 64.0, "margin": 0.4, "negative_weight": 1.0, "bias_start": None},
    "sigmoid": {
        "scale_start": 30.0, "relative_bias_start": None, "margin": 0.0, "negative_weight": 1.0,
    },
    "softmax": {},
    "normface": {"scale": 30.0},
    # SphereFace-R, as in the paper's comparison
    "sphereface": {"scale": 30.0, "margin": 1.5, "gradient": "exact"},
    "cosface": {"scale": 64.0, "margin": 0.35, "sharpness": 1.0, "gradient": "exact"},
    "arcface": {
        "scale": 64.0, "margin": 0.5, "sharpness": 1.0, "past_pi": "falling", "gradient": "exact",
    },
    "curricularface": {"scale": 64.0, "margin": 0.5, "ema": 0.01, "gradient": "exact"},
    "circle": {"scale": 256.0, "margin": 0.25, "gradient": "exact"},
    "magface": {
        "scale": 64.0, "norm_low": 10.0, "norm_high": 110.0, "margin_low": 0.45,
        "margin_high": 0.8, "norm_weight": 35.0, "easy_margin": True, "gradient": "exact",
    },
    "adaface": {
        "scale": 64.0, "margin": 0.4, "concentration": 0.333, "ema": 0.01, "gradient": "exact",
    },
    "contrastive": {"margin": 1.0, "images_per_person": 4},
    "triplet": {"margin": 0.2, "images_per_person": 4},
    "simple": {
        "balance": 0.0001, "radius": 1.0, "margin": 0.0, "angular_bias": 0.3, "bias_start": -10.0,
        "loss_weight": 1000.0, "memory": 4096, "normalize": False, "detach_batch": True,
        "images_per_person": 2,
    },
    "deepid2": {"margin": 1.0, "pair_weight": 1.0, "images_per_person": 2},
    "ring": {"ring_weight": 0.01, "ring_start": 20.0},
    "unitsface": {
        "scale": 64.0, "margin": 0.4, "pair_scale": 64.0, "pair_margin": 0.1, "pair_weight": 1.0,
    },
}  # fmt: skip


def defaults(name: str) -> dict[str, Any]:
    parameters = inspect.signature(HEADS[name]).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("name", HEADS)
def test_the_defaults_are_the_published_settings(name: str) -> None:
    found = defaults(name)
    assert found.pop("margin_schedule", None) is None
    assert found == PUBLISHED[name]


@pytest.mark.parametrize("name", HEADS)
def test_a_number_that_is_given_is_the_one_that_the_head_has(name: str) -> None:
    numbers = {key: value for key, value in defaults(name).items() if type(value) in (int, float)}
    for key, default in numbers.items():
        value = default + 1 if isinstance(default, int) else 1.25 * default + 0.01
        head = build_head(name, 8, 10, **{key: value})
        assert getattr(head, key, value) == value, key


@pytest.mark.parametrize("name", [name for name in HEADS if "margin_schedule" in defaults(name)])
def test_a_margin_follows_its_schedule_in_every_head(name: str) -> None:
    head = build_head(name, 8, 10, margin_schedule=[(0, 1.25), (4, 1.75)])
    assert isinstance(head, MarginHead)
    margins = []
    for epoch in (0.0, 1.0, 4.0):
        head.advance(epoch)
        margins.append(head.margin)
    assert margins == [1.25, 1.375, 1.75]


def test_where_the_learned_numbers_start() -> None:
    """A threshold or a bias starts where the sum over all negatives is a tenth."""
    uniface, sigmoid = build_head("uniface", 8, 100), build_head("sigmoid", 8, 100)
    assert uniface.get_parameter("bias").item() == pytest.approx(-math.log(1000.0))
    assert sigmoid.get_parameter("log_scale").exp().item() == pytest.approx(30.0)
    assert sigmoid.get_parameter("relative_bias").item() == pytest.approx(math.log(1000.0) / 30.0)
    assert build_head("simple", 8, 100).get_parameter("bias").item() == -10.0
    assert build_head("ring", 8, 100, ring_start=7.0).get_parameter("ring_radius").item() == 7.0
    pairs = build_head("unitsface", 8, 100, pair_scale=9.0, pair_margin=0.3).get_submodule("pairs")
    assert isinstance(pairs, UniFace)
    assert (pairs.scale, pairs.margin) == (9.0, 0.3)
    adaface = build_head("adaface", 8, 100)
    assert adaface.get_buffer("mean_norm").item() == 20.0
    assert adaface.get_buffer("norm_deviation").item() == 100.0


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("cosface", {"scale": 0.0}, "scale must be above 0, got 0.0"),
    ("cosface", {"scale": math.inf}, "scale: must be a finite number, got inf"),
    ("cosface", {"sharpness": 0.0}, "sharpness must be above 0"),
    ("arcface", {"margin": -0.1}, "margin must be at least 0, got -0.1"),
    ("sphereface", {"margin": 0.9}, "margin must be at least 1, got 0.9"),
    ("circle", {"margin": math.nan}, "margin: must be a finite number, got nan"),
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
    ("cosface", {"margin_schedule": [(2, 0.1), (1, 0.2)]}, "rising epochs"),
    ("cosface", {"margin_schedule": []}, "at least one .epoch, margin. point"),
    ("cosface", {"margin_schedule": [(1, 0.1), (2, -0.2)]}, "margin must be at least 0, got -0.2"),
    ("cosface", {"margin_schedule": {"epochs": [2, 2]}}, r"such as \[2, 6\], got \[2, 2\]"),
    ("cosface", {"margin_schedule": {"epochs": [-1, 2]}}, r"such as \[2, 6\], got \[-1, 2\]"),
    ("cosface", {"margin_schedule": {"epochs": [1, 2, 3]}}, r"such as \[2, 6\], got \[1, 2, 3\]"),
    ("cosface", {"margin_schedule": {"epochs": [True, 2]}}, r"such as \[2, 6\], got"),
    ("cosface", {"margin_schedule": {}}, r"such as \[2, 6\], got"),
    (
        "cosface",
        {"margin_schedule": {"epochs": [0, 2], "from": "a"}},
        "head.margin_schedule: from must be a number",
    ),
    (
        "cosface",
        {"margin_schedule": {"epochs": [0, 2], "to": True}},
        "head.margin_schedule: to must be a number",
    ),
    ("contrastive", {"margin": 0.0}, "margin must be above 0"),
    ("triplet", {"margin": 0.0}, "margin must be above 0"),
    ("deepid2", {"margin": 0.0}, "margin must be above 0"),
    ("uniface", {"scale": 0.0}, "scale must be above 0"),
    ("uniface", {"negative_weight": 0.0}, "negative_weight must be above 0"),
    ("uniface", {"bias_start": math.inf}, "bias_start: must be a finite number, got inf"),
    ("sigmoid", {"scale_start": 0.0}, "scale_start must be above 0"),
    ("sigmoid", {"negative_weight": 0.0}, "negative_weight must be above 0"),
    ("sigmoid", {"relative_bias_start": math.nan}, "relative_bias_start: must be a finite number"),
    ("sphereface2-c", {"pair_weight": -1.0}, "pair_weight must be at least 0, got -1.0"),
    ("sphereface2-a", {"pair_weight": math.inf}, "pair_weight: must be a finite number, got inf"),
    (
        "sphereface2-c",
        {"pair_weight": 1.0, "pair_margin": -0.1},
        "pair_margin must be at least 0, got -0.1",
    ),
    ("sphereface2-m", {"pair_margin": -1.0}, "pair_margin must be at least 0, got -1.0"),
    (
        "sphereface2-c",
        {"pair_weight": 1.0, "normalize": False, "sharpness": 1.0},
        "pair_weight compares angles: it does not go with normalize=False",
    ),
    ("unitsface", {"pair_scale": 0.0}, "pair_scale must be above 0"),
    ("unitsface", {"pair_margin": -0.1}, "pair_margin must be at least 0, got -0.1"),
    ("unitsface", {"pair_weight": 0.0}, "pair_weight must be above 0"),
    ("ring", {"ring_weight": math.inf}, "ring_weight: must be a finite number, got inf"),
    ("deepid2", {"pair_weight": math.inf}, "pair_weight: must be a finite number, got inf"),
    ("sphereface2-m", {"sharpness": 1e4}, "sharpness must be at most 32, got 10000"),
]


@pytest.mark.parametrize(
    ("name", "option", "value", "sentence"),
    [
        ("cosface", "scale", math.inf, "scale must be above 0, got inf"),
        ("circle", "margin", math.nan, "margin must be at least 0, got nan"),
        ("uniface", "bias_start", math.inf, "bias_start must be a finite number, got inf"),
        ("sigmoid", "relative_bias_start", math.nan, "relative_bias_start must be a finite number"),
        ("sphereface2-c", "radius", math.inf, "radius must be above 0, got inf"),
        ("sphereface2-c", "bias_start", math.inf, "bias_start must be a finite number, got inf"),
    ],
)
def test_a_head_that_is_built_by_its_class_refuses_too(
    name: str, option: str, value: float, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        HEADS[name](8, 10, **{option: value})


@pytest.mark.parametrize(
    ("name", "word", "sentence"),
    [
        ("sphereface2-c", "scale", "SphereFace2 has no option 'scale'; did you mean 'radius'?"),
        ("sphereface2-m", "lam", "SphereFace2M has no option 'lam'; did you mean 'balance'?"),
        ("arcface", "m", "ArcFace has no option 'm'; did you mean 'margin'?"),
        ("magface", "u_a", "MagFace has no option 'u_a'; did you mean 'norm_high'?"),
        ("unitsface", "sclae", "UniTSFace has no option 'sclae'; did you mean 'scale'?"),
        ("triplet", "xyz", r"Triplet has no option 'xyz' \(options: margin, images_per_person, "),
        ("softmax", "bias", r"PlainSoftmax has no option 'bias' \(options: none\)"),
    ],
)
def test_a_head_that_is_built_by_its_class_says_which_option_is_meant(
    name: str, word: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        HEADS[name](8, 10, **{word: 32})


@pytest.mark.parametrize("name", HEADS)
def test_every_head_names_its_options_where_its_class_does_not_know_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"has no option 'other' .*{', '.join(defaults(name))}"):
        HEADS[name](dim=8, num_classes=10, other=1)


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
    head: Any = build_head(name, 8, 2, **options).double()
    x, y = 20 * torch.eye(8, dtype=torch.float64)[:4], torch.tensor([0, 0, 1, 1])
    before = copy.deepcopy(head)
    loss = head(x, y)
    # A memory counts as it was before the batch entered; running averages count after.
    torch.testing.assert_close(loss, NAIVE[name](before if name == "simple" else head, x, y))


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


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("ring", "mean_norm", 3.0),
        ("ring", "ring_radius", 20.0),
        ("magface", "mean_norm", 10.0),  # the least length that it knows
        ("sigmoid", "scale", 30.0),
        ("sigmoid", "positive_score", 0.5),
        ("simple", "bias", -10.0),
        ("simple", "positive_score", 1.0),
        ("simple", "negative_score", 0.0),
        ("simple", "active_negatives", 0.0),
    ],
)
def test_the_statistics_that_are_a_heads_own(name: str, key: str, expected: float) -> None:
    """Two images of one person, of lengths 2 and 4, and one of nobody known, of length 9."""
    head = build_head(name, 4, 3)
    if name != "simple":
        with torch.no_grad():
            head.get_parameter("weight").copy_(torch.eye(4)[[3, 1, 2]])
            head.get_parameter("weight")[0, 0] = math.sqrt(1 / 3)  # 60 degrees from the images
    head.warns_of_unknown = False
    rows = torch.eye(4)[[0, 0, 1]] * torch.tensor([[2.0], [4.0], [9.0]])
    head(rows, torch.tensor([0, 0, -1]))
    assert head.statistics() == {}
    head.collect_statistics = True
    head(rows, torch.tensor([0, 0, -1]))
    assert head.statistics()[key] == pytest.approx(expected)


def test_a_negative_pair_of_simple_is_active_above_its_threshold() -> None:
    """The score x·x' - 0.3‖x‖‖x'‖ of the two is 2.8, and with margin and bias just about 0."""
    for margin, share in ((0.1, 0.0), (0.3, 1.0)):
        head = build_head("simple", 2, 2, memory=0, bias_start=-3.0, margin=margin)
        head.collect_statistics = True
        head(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        assert head.statistics()["active_negatives"] == share


def test_a_head_shows_what_it_is() -> None:
    assert "margin=0.25" in repr(build_head("sigmoid", 4, 3, margin=0.25))
    assert "scale=9, margin=0.25" in repr(build_head("uniface", 4, 3, scale=9.0, margin=0.25))


SHOWN: dict[str, str] = {
    **{f"sphereface2-{kind}": f"balance=0.7, radius=30, margin={margin}, sharpness=3, "
       "gradient=exact" for kind, margin in zip("cam", ("0.4", "0.5", "1.7"), strict=True)},
    "uniface": "scale=64, margin=0.4",
    "sigmoid": "margin=0",
    "sphereface": "scale=30, margin=1.5",
    "cosface": "scale=64, margin=0.35",
    "arcface": "scale=64, margin=0.5",
    "unitsface": "scale=64, margin=0.4",
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_every_head_shows_its_sizes_and_what_sets_its_margin(name: str) -> None:
    head = build_head(name, 4, 3)
    if not isinstance(head, ProxyHead):
        assert head.extra_repr() == ""
        return
    own = f", {SHOWN[name]}" if name in SHOWN else ""
    assert head.extra_repr() == f"dim=4, num_classes=3{own}"


@pytest.mark.parametrize(
    ("name", "options", "cut"),
    [
        ("cosface", {}, {"weight"}),
        ("softmax", {}, {"weight", "bias"}),
        ("sphereface2-c", {}, {"weight"}),  # one bias for all
        ("sphereface2-c", {"bias": "none"}, {"weight"}),
        ("sphereface2-c", {"bias": "per-class"}, {"weight", "bias"}),
        ("unitsface", {}, {"weight", "pairs.weight", "pairs.filled"}),
        ("sphereface2-c", {"pair_weight": 1.0}, {"weight", "pairs.weight", "pairs.filled"}),
    ],
)
def test_what_is_cut_over_ranks(name: str, options: dict[str, Any], cut: set[str]) -> None:
    head = build_head(name, 4, 3, **options)
    assert isinstance(head, ProxyHead)
    assert head.per_class == cut


def test_a_dimension_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        build_head("triplet", 0, 3)
    assert build_head("triplet", 1, 2).dim == 1


def test_a_softmax_head_warns_of_unknown_samples_once() -> None:
    rows, labels = torch.eye(4)[:3], torch.tensor([0, 1, -1])
    head = build_head("cosface", 4, 3)
    with pytest.warns(UserWarning, match="leaves out samples") as warned:
        head(rows, labels)
    assert warned[0].filename == __file__  # the user's line, not one of torch or of the package
    head(rows, labels)  # a second warning would be an error
    head = build_head("cosface", 4, 3)
    head.warns_of_unknown = False
    head(rows, labels)


def test_easy_margin_begins_above_a_right_angle() -> None:
    cosine = torch.tensor([-0.2, 0.0, 0.2], dtype=torch.float64)
    head = build_head("magface", 4, 3, scale=1.0, norm_low=10.0)
    assert isinstance(head, MagFace)
    rows = Rows(norm=torch.full((3,), 10.0).double(), known=torch.ones(3, dtype=torch.bool))
    expected = [-0.2, 0.0, math.cos(math.acos(0.2) + 0.45)]
    assert head.target_logit(cosine, rows).tolist() == pytest.approx(expected)


def test_adaface_keeps_turned_angles_off_the_ends() -> None:
    cosine = torch.tensor([1.0, -1.0], dtype=torch.float64)
    turned = AdaFace._turn(cosine, torch.tensor([-0.2, 0.2], dtype=torch.float64))
    assert turned.tolist() == pytest.approx([math.cos(1e-3), -math.cos(1e-3)], abs=1e-12)
    inner = AdaFace._turn(cosine, torch.tensor([0.2, -0.2], dtype=torch.float64))
    kept = math.acos(1.0 - 1e-6) + 0.2
    assert inner.tolist() == pytest.approx([math.cos(kept), -math.cos(kept)], abs=1e-9)


def test_people_as_far_apart_as_the_contrastive_margin_do_not_count() -> None:
    """People 0 and 1 at a right angle, 2 opposite to 0, as far as the margin of 2 goes."""
    head = build_head("contrastive", 2, 3, margin=2.0)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    expected = 0.5 * (2.0 - math.sqrt(2.0)) ** 2
    assert head(rows, torch.tensor([0, 1, 2])).item() == pytest.approx(expected)
    # Two people with one embedding: the root has a finite slope there.
    same = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    loss = head(same, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(2.0, rel=1e-5)
    (slope,) = torch.autograd.grad(loss, [same])
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("gradient", ["exact", "straight-through"])
@pytest.mark.parametrize("sharpness", [1.0, 2.0, 3.0])
def test_the_others_of_a_margin_softmax_follow_the_adjustment(
    sharpness: float, gradient: str
) -> None:
    head = build_head("arcface", 4, 5, sharpness=sharpness, scale=20.0, gradient=gradient)
    assert isinstance(head, ArcFace)
    cosine = torch.linspace(-0.95, 0.95, 21, dtype=torch.float64)[:, None].requires_grad_()
    rows = Rows(norm=torch.ones(1, dtype=torch.float64), known=torch.ones(1, dtype=torch.bool))
    expected = 20.0 * (2 * ((cosine + 1) / 2) ** sharpness - 1)
    (derivative,) = torch.autograd.grad(expected.sum(), [cosine])
    if gradient == "straight-through":
        derivative = torch.full_like(derivative, 20.0)
    logit, slope = head.other_logit(cosine.detach().clone(), rows)
    torch.testing.assert_close(logit, expected.detach())
    torch.testing.assert_close(torch.as_tensor(slope).expand_as(derivative).double(), derivative)
