"""Every head of the table against its naive loop, and at the ends of what it may be given."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import sphereface2.heads.engine as engine
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.pairs import pair_masks
from sphereface2.heads.simple import SimPLE
from sphereface2.registry import option_names
from tests.heads.naive import NAIVE, gradients

# Options that turn each head's features on one by one, on top of its defaults.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in HEADS),
    *(
        (name, {"gradient": "straight-through"})
        for name, factory in HEADS.items()
        if "gradient" in option_names(factory)
    ),
    # the ablation ladder of SphereFace2, from the naive losses to the final one
    ("sphereface2-c", {"normalize": False, "bias": "per-class", "balance": None, "radius": 1.0,
                       "margin": 0.0, "sharpness": 1.0}),  # L_f
    ("sphereface2-c", {"bias": "none", "balance": None, "radius": 1.0, "margin": 0.0,
                       "sharpness": 1.0}),  # L_s, Eq. 1
    ("sphereface2-c", {"bias": "none", "balance": "class-fraction", "radius": 1.0, "margin": 0.0,
                       "sharpness": 1.0}),  # L_b
    ("sphereface2-c", {"bias": "none", "margin": 0.0, "sharpness": 1.0}),  # L_e
    ("sphereface2-c", {"margin": 0.2, "margin_negative": 0.1, "sharpness": 1.0}),  # L_a
    ("sphereface2-c", {"bias": "per-class", "bias_start": -3.0}),
    ("sphereface2-c", {"sharpness": 0.5, "loss_weight": 10.0}),
    ("sphereface2-c", {"sharpness": 2.7, "balance": 1.0}),
    ("sphereface2-c", {"balance": 0.0}),
    ("sphereface2-a", {"sharpness": 1.0, "margin": 2.0}),
    ("sphereface2-m", {"margin": 3.0}),
    ("cosface", {"sharpness": 3.0}),
    ("cosface", {"sharpness": 3.0, "gradient": "straight-through"}),
    ("arcface", {"sharpness": 3.0}),
    *(
        ("arcface", {"margin": 1.5, "past_pi": past_pi, "gradient": gradient})
        for past_pi in ("falling", "cosine", "flat")
        for gradient in ("exact", "straight-through")
    ),
    ("magface", {"easy_margin": False}),
    ("magface", {"margin_low": 1.2, "margin_high": 2.5}),
    ("magface", {"margin_low": 1.2, "margin_high": 2.5, "easy_margin": False}),
    ("simple", {"margin": 0.5, "radius": 3.0, "balance": 0.3, "memory": 5, "bias_start": -0.5}),
    ("simple", {"memory": 0}),
    ("simple", {"detach_batch": False, "balance": 0.3, "bias_start": -0.5}),
    ("simple", {"normalize": True, "balance": 0.3, "bias_start": -0.5}),
    ("contrastive", {"margin": 1.6}),
    *((f"sphereface2-{kind}", {"sub_centres": 3, "bias": "per-class"}) for kind in "cam"),
    ("sphereface2-c", {"sub_centres": 2, "gradient": "straight-through"}),
    ("uniface", {"scale": 20.0, "margin": 0.2, "negative_weight": 0.3, "bias_start": -1.0}),
    ("sigmoid", {"scale_start": 7.0, "relative_bias_start": 0.3, "margin": 0.2}),
    ("sigmoid", {"negative_weight": 0.2}),
    ("sphereface2-c", {"pair_weight": 0.5, "pair_margin": 0.3, "radius": 9.0}),
    ("sphereface2-c", {"pair_weight": 2.0, "gradient": "straight-through", "balance": None}),
    ("sphereface2-m", {"pair_weight": 1.0}),
    ("unitsface", {"pair_scale": 9.0, "pair_margin": 0.3, "pair_weight": 0.5}),
]  # fmt: skip


def remembers(head: Any) -> bool:
    """Whether a head compares with embeddings of earlier batches."""
    return isinstance(head, SimPLE) or getattr(head, "pairs", None) is not None


def identifier(variant: tuple[str, dict[str, Any]]) -> str:
    name, options = variant
    return name + "".join(f",{key}={value}" for key, value in options.items())


def batch(*, rows: int = 7, dim: int = 6, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings of length 1 to 60 and labels with repeats; the last row is of no known class."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    x = x * torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 20
    y = torch.randint(0, classes, (rows,), generator=generator)
    y[-1] = -1
    return x, y


def quiet(head: Any, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # softmax heads say that they skip label -1
        loss: Tensor = head(x, y)
        return loss


def make(name: str, options: dict[str, Any], *, dim: int = 6, classes: int = 5) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return build_head(name, dim, classes, **options).double()


@pytest.mark.parametrize("variant", VARIANTS, ids=identifier)
@pytest.mark.parametrize("block", [2, 1 << 20], ids=["blocks", "one-block"])
def test_loss_and_gradients_equal_the_naive_loop(
    variant: tuple[str, dict[str, Any]], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "block_classes", lambda *_: block)
    name, options = variant
    head = make(name, options)
    for seed in range(3):
        x, y = batch(seed=seed)
        x.requires_grad_()
        before = copy.deepcopy(head)
        loss = quiet(head, x, y)
        # A memory counts as it was before the batch entered; running averages count after.
        reference = NAIVE[name](before if remembers(head) else head, x, y)
        torch.testing.assert_close(loss, reference, rtol=1e-11, atol=1e-11)
        expected = gradients(reference, before if remembers(head) else head, x)
        for ours, theirs in zip(gradients(loss, head, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=2e-9)


def test_every_head_has_a_naive_loop() -> None:
    assert set(NAIVE) == set(HEADS)


SMOOTH = ["sphereface2-c", "softmax", "normface", "cosface", "arcface", "magface", "ring"]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradient_is_the_slope_of_the_loss(name: str) -> None:
    """Against finite differences: heads that detach nothing."""
    head = make(name, {})
    x, y = batch()
    direction = [torch.randn_like(p) for p in [x, *head.parameters()]]
    step = 1e-6
    x.requires_grad_()
    slope = sum(
        (grad * d).sum()
        for grad, d in zip(gradients(quiet(head, x, y), head, x), direction, strict=True)
    )

    def moved(sign: float) -> Tensor:
        other = copy.deepcopy(head)
        with torch.no_grad():
            for p, d in zip(other.parameters(), direction[1:], strict=True):
                p += sign * step * d
            return quiet(other, x + sign * step * direction[0], y)

    numeric = (moved(1.0) - moved(-1.0)) / (2 * step)
    torch.testing.assert_close(slope, numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", list(HEADS))
class TestExtremes:
    """The loss of the naive loop and finite gradients wherever a training run may end up."""

    def check(self, head: Any, x: Tensor, y: Tensor, *, defined: bool = True) -> None:
        x = x.clone().requires_grad_()
        before = copy.deepcopy(head)
        loss = quiet(head, x, y)
        name = next(name for name, factory in HEADS.items() if factory is type(head))
        # A memory counts as it was before the batch entered; running averages count after.
        counted = copy.deepcopy(before if remembers(head) else head).double()
        expected = NAIVE[name](counted, x.detach().double(), y).detach()
        # The root of contrastive distances is kept off 0, where its slope is infinite.
        rough = 2e-4 if name == "contrastive" else 1e-6
        if defined:
            torch.testing.assert_close(loss.detach().double(), expected, rtol=rough, atol=1e-6)
        assert loss.isfinite()
        for grad in gradients(loss, head, x):
            assert grad.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_cosine_plus_and_minus_one(self, name: str, dtype: torch.dtype) -> None:
        head = make(name, {}, classes=3).to(dtype)
        if not hasattr(head, "weight"):
            x = torch.ones(4, 6, dtype=dtype)
            x[1::2] *= -1
        else:
            w = head.weight.detach()
            x = torch.stack([w[0], -w[0], w[1] * 7, -w[2] * 0.01])
        self.check(head, x, torch.tensor([0, 0, 1, 2]))

    def test_two_classes(self, name: str) -> None:
        head = make(name, {}, classes=2)
        x, _ = batch()
        self.check(head, x, torch.tensor([0, 1, 0, 1, 1, 1, 0]))

    def test_one_sample(self, name: str) -> None:
        x, _ = batch(rows=1)
        self.check(make(name, {}), x, torch.tensor([3]))

    def test_no_known_class(self, name: str) -> None:
        x, y = batch()
        self.check(make(name, {}), x, torch.full_like(y, -1))

    def test_zero_embedding(self, name: str) -> None:
        x, y = batch()
        x[0] = 0.0
        # A vector without a direction has no distance on the sphere.
        self.check(make(name, {}), x, y, defined=name not in ("contrastive", "deepid2"))

    def test_float32_follows_float64(self, name: str) -> None:
        x, y = batch(rows=32, dim=6, classes=5)
        exact = quiet(make(name, {}), x, y)
        single = quiet(make(name, {}).float(), x.float(), y)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), exact, rtol=2e-5, atol=2e-5)

    def test_autocast_keeps_the_margin_maths_in_float32(self, name: str) -> None:
        head = make(name, {}).float()
        x, y = batch(rows=16)
        x = x.float().requires_grad_()
        plain = quiet(copy.deepcopy(head), x, y)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = quiet(head, x, y)
        assert mixed.dtype == torch.float32
        # Margins in bfloat16 would cost from 1e-3 (softmax) to 6e-3 (sphereface2-m) of the loss.
        torch.testing.assert_close(mixed, plain, rtol=1e-3, atol=0.0)
        assert all(grad.isfinite().all() for grad in gradients(mixed, head, x))

    def test_forward_leaves_parameters_and_inputs_alone(self, name: str) -> None:
        head = make(name, {})
        x, y = batch()
        kept = [t.clone() for t in (x, y, *head.parameters())]
        quiet(head, x, y)
        for now, then in zip((x, y, *head.parameters()), kept, strict=True):
            assert torch.equal(now, then)

    def test_no_gradient_is_computed_under_no_grad(self, name: str) -> None:
        head = make(name, {}).eval()
        x, y = batch()
        with torch.no_grad():
            loss = quiet(head, x, y)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, quiet(head, x, y).detach())

    def test_statistics_only_when_asked(self, name: str) -> None:
        head = make(name, {})
        x, y = batch(rows=12)
        quiet(head, x, y)
        assert head.statistics() == {}
        head.collect_statistics = True
        quiet(head, x, y)
        statistics = head.statistics()
        assert {"positive_score", "negative_score"} <= set(statistics)
        bound = 1.0 if name not in ("softmax", "deepid2", "ring") else float("inf")
        assert abs(statistics["positive_score"]) <= bound


@pytest.mark.parametrize("name", ["sphereface2-c", "triplet"])  # with class weights, and without
def test_wrong_batches_are_refused(name: str) -> None:
    head = make(name, {})
    x, y = batch()
    with pytest.raises(ValueError, match=r"label 5 of row 2 is outside 0\.\.4"):
        head(x, torch.tensor([0, 1, 5, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match=r"shape \(batch, 6\)"):
        head(x[:, :4], y)
    with pytest.raises(ValueError, match="labels must have the shape"):
        head(x, y[:3])
    with pytest.raises(ValueError, match="integers"):
        head(x, y.double())
    with pytest.raises(ValueError, match="empty"):
        head(x[:0], y[:0])


@pytest.mark.parametrize("name", ["sphereface2-c", "triplet"])
def test_num_classes_below_two_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        build_head(name, 8, 1)


def test_statistics_are_means_over_all_pairs() -> None:
    head = make("sphereface2-c", {"bias_start": 2.0})
    head.collect_statistics = True
    x, y = batch()
    head(x, y)
    cosine = (
        torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight.detach()).T
    )
    target = torch.nn.functional.one_hot(y.clamp_min(0), 5).bool() & (y >= 0)[:, None]
    logit = 30 * (2 * ((cosine + 1) / 2) ** 3 - 1 + 0.4) + 2.0
    found = head.statistics()
    assert found["positive_score"] == pytest.approx(float(cosine[target].mean()))
    assert found["negative_score"] == pytest.approx(float(cosine[~target].mean()))
    assert found["active_negatives"] == pytest.approx(float((logit[~target] > 0).double().mean()))
    assert found["bias"] == pytest.approx(2.0)


def test_softmax_heads_say_that_they_leave_out_unknown_samples() -> None:
    x, y = batch()
    with pytest.warns(UserWarning, match="leaves out samples of no known class"):
        make("cosface", {})(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("sphereface2-c", {})(x, y)


@pytest.mark.parametrize("name", ["sphereface2-c", "cosface", "arcface"])
@pytest.mark.parametrize("gradient", ["exact", "straight-through"])
@pytest.mark.parametrize("label", [0, 1], ids=["target", "negative"])
def test_a_sharpness_below_one_is_finite_at_cosine_minus_one(
    name: str, gradient: str, label: int
) -> None:
    """((c+1)/2)^t has an infinite slope there, and 0·∞ is not a number."""
    head = make(name, {"sharpness": 0.5, "gradient": gradient})
    with torch.no_grad():
        head.weight.copy_(torch.eye(5, 6))
    x = -torch.eye(1, 6, dtype=torch.float64).requires_grad_()
    y = torch.tensor([label])
    loss = head(x, y)
    # The slope is kept finite by (c+1)/2 >= 1e-6, whose root of 1e-3 shows in a logit.
    torch.testing.assert_close(loss, NAIVE[name](head, x, y), rtol=1e-3, atol=64 * 2e-3)
    assert all(grad.isfinite().all() for grad in gradients(loss, head, x))


def test_adaface_clips_the_lengths_that_it_reads() -> None:
    head = make("adaface", {})
    x, y = batch()
    x = torch.nn.functional.normalize(x)
    x *= torch.tensor([1e-5, 3.0, 60.0, 99.0, 130.0, 400.0, 1e4], dtype=x.dtype)[:, None]
    x[-1], y[-1] = x[0], 0
    clipped = x.norm(dim=1).clamp(0.001, 100.0)
    loss = head(x, y)
    torch.testing.assert_close(loss, NAIVE["adaface"](head, x, y), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(head.mean_norm, 20 + 0.01 * (clipped.mean() - 20))
    torch.testing.assert_close(head.norm_deviation, 100 + 0.01 * (clipped.std() - 100))


def test_a_negative_as_far_as_the_positive_is_not_semi_hard() -> None:
    """Anchor e0, positive e1, negatives e2 (just as far) and -e0 (farther)."""
    x = torch.eye(4, 6, dtype=torch.float64)
    x[3] = -x[0]
    loss = make("triplet", {"margin": 0.2})(x, torch.tensor([0, 0, 1, 2]))
    # From e0 the farther negative is taken: 2 - 4 + 0.2 < 0. From e1 all are as far as e0: 0.2.
    torch.testing.assert_close(loss, torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize("memory", [0, 1, 3, 5, 8])
def test_the_memory_of_simple_holds_the_latest_embeddings(memory: int) -> None:
    head = make("simple", {"memory": memory})
    seen: list[float] = []
    for rows in (5, 2, 7, 1, 4):
        x = torch.arange(len(seen), len(seen) + rows, dtype=torch.float64)[:, None].expand(-1, 6)
        seen += x[:, 0].tolist()
        head(x + 1, torch.arange(rows) % 5)
        filled = head.memory_x[head.memory_y > -2][:, 0] - 1
        assert sorted(filled.tolist()) == (seen[-memory:] if memory else [])


def test_pairs_are_told_apart_where_one_of_the_two_is_known() -> None:
    same, different = pair_masks(torch.tensor([0, 1, -1]), torch.tensor([0, -1]))
    assert same.tolist() == [[True, False], [False, False], [False, False]]
    assert different.tolist() == [[False, True], [True, True], [True, False]]


def test_a_loss_is_differentiated_once() -> None:
    x, y = batch()
    loss = make("sphereface2-c", {})(x.requires_grad_(), y)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="only once"):
        loss.backward()


def test_learns_with_any_optimiser() -> None:
    head = make("sphereface2-c", {}).float()
    x = torch.nn.Parameter(torch.randn(20, 6, generator=torch.Generator().manual_seed(0)))
    y = torch.arange(20) % 5
    optimiser = torch.optim.Adam([x, *head.parameters()], lr=0.05)
    first = float(head(x, y).detach())
    for _ in range(100):
        optimiser.zero_grad()
        loss = head(x, y)
        loss.backward()
        optimiser.step()
    cosine = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight).T
    assert float(loss.detach()) < 0.2 * first
    assert torch.equal(cosine.argmax(dim=1), y)


@pytest.mark.parametrize("variant", VARIANTS, ids=identifier)
def test_embeddings_near_their_class_equal_the_naive_loop(
    variant: tuple[str, dict[str, Any]],
) -> None:
    """As late in a training: people lie close together, and far from the others."""
    name, options = variant
    head = make(name, options)
    generator = torch.Generator().manual_seed(3)
    y = torch.tensor([0, 0, 1, 1, 2, 2, 4, 4, 4])
    weight = getattr(head, "weight", None)
    if weight is None:
        weight = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    elif weight.ndim == 3:
        weight = weight[:, 0]  # near the first of a class's centres
    noise = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    x = 15 * torch.nn.functional.normalize(weight.detach()[y], dim=1) + 3 * noise
    x.requires_grad_()
    before = copy.deepcopy(head)
    loss = head(x, y)
    reference_head = before if remembers(head) else head
    reference = NAIVE[name](reference_head, x, y)
    torch.testing.assert_close(loss, reference, rtol=1e-10, atol=1e-10)
    expected = gradients(reference, reference_head, x)
    for ours, theirs in zip(gradients(loss, head, x), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
