"""SphereFace2: K binary classifiers on the sphere (ICLR 2022)."""

import math
from typing import Literal

import torch
from torch import Tensor

from sphereface2.heads.contract import Binary, Rows, require, require_positive, require_share
from sphereface2.heads.cosine import (
    GradientMode,
    add_angle_saturating,
    adjust,
    adjust_for_gradient,
    adjust_half,
    multiply_angle,
    straight_through,
)
from sphereface2.heads.head import MarginHead, MarginSchedule
from sphereface2.heads.memory import FeatureMemory, PairTerm
from sphereface2.heads.proxy import BiasKind

USUAL_PULL = 30.0
"""How strongly the heads pull a sample at a right angle to its class, by default."""


class SphereFace2(MarginHead, PairTerm):
    """SphereFace2 with the CosFace-type margin (SphereFace2-C), the paper's final loss (Eq. 5):

        λ/r · log(1 + exp(-r(g(cos θ_y) - m) - b))
        + (1-λ)/r · Σ_{i≠y} log(1 + exp(r(g(cos θ_i) + m) + b)),    g(c) = 2((c+1)/2)^t - 1

    >>> head = SphereFace2(512, num_classes=8631)
    >>> loss = head(embeddings, labels)  # a label of -1: of no known class, a negative for all
    >>> loss.backward()

    Args:
        balance: λ in [0, 1], weight of the positive term against 1-λ for the negatives. None
            weighs every term with 1 (the naive losses L_f and L_s), "class-fraction" is
            λ = (K-1)/K, the first row of the paper's ablation.
        radius: r, radius of the sphere; larger looks more at hard samples.
        margin: m of the positive term; None is the default of the type: 0.4 (C), 0.5 (A), 1.7 (M).
        margin_negative: m of the negative terms (C only); None is the same as `margin`.
        sharpness: t of the similarity adjustment g; 1 switches it off.
        loss_weight: factor on the loss, which sets how strongly it pulls at a given learning rate.
            None: a sample at a right angle to its class is pulled with 30 (-dL/dcos θ_y), as
            CosFace with scale 30 pulls it, whatever λ and t are. The authors used 10 on VGGFace2
            and 50 on MS1M, a pull of 5.3 and 26; the paper does not mention it. wespeaker's loss
            has no 1/r: there it is the radius, and bias_start is 0.
        bias: one learnable bias for all classes ("shared"), one per class, or none.
        bias_start: where the bias starts; None minimises the loss at θ = π/2 (Appendix G).
        gradient: "exact" differentiates g, "straight-through" takes d logit/d cos θ = r.
        normalize: False takes products instead of cosines: L_f of the paper.
        margin_schedule: (epoch, margin) points, or {from, to, epochs, shape} (`MarginHead`).
        sub_centres: weights per class; the nearest one counts (Sub-center ArcFace, ECCV 2020), so
            that wrong or unusual images of a person need not spoil its centre.
        pair_weight: of the same loss with the C-type margin once more, against one remembered
            embedding of each person instead of the class weights; 0 leaves it out. It helps where
            people have few images, which their class weights would learn by heart.
        pair_margin: m of that term.
    """

    default_margin = 0.4
    least_margin = 0.0
    additive_margin = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        balance: float | Literal["class-fraction"] | None = 0.7,
        radius: float = 30.0,
        margin: float | None = None,
        margin_negative: float | None = None,
        sharpness: float = 3.0,
        loss_weight: float | None = None,
        bias: BiasKind = "shared",
        bias_start: float | None = None,
        gradient: GradientMode = "exact",
        normalize: bool = True,
        margin_schedule: MarginSchedule | None = None,
        sub_centres: int = 1,
        pair_weight: float = 0.0,
        pair_margin: float = 0.2,
    ) -> None:
        super().__init__(dim, num_classes, bias=bias, normalize=normalize, sub_centres=sub_centres)
        require_positive(radius=radius, sharpness=sharpness)
        # Beyond, g is flat up to its very end, and the usual loss_weight would overflow.
        require(sharpness <= 32.0, f"sharpness must be at most 32, got {sharpness}")
        if loss_weight is not None:
            require_positive(loss_weight=loss_weight)
        if balance == "class-fraction":
            balance = (num_classes - 1) / num_classes
        if balance is not None:
            require_share(balance=balance)
        require(
            normalize or (sharpness == 1.0 and self.additive_margin),
            "normalize=False has products in place of angles: it goes with the C-type margin "
            "and sharpness=1 only",
        )
        require(
            margin_negative is None or (self.additive_margin and margin_schedule is None),
            "margin_negative goes with the C-type margin, and not with a margin_schedule, "
            "which sets both sides",
        )
        self.balance = balance
        self.radius = float(radius)
        self.sharpness = float(sharpness)
        self.gradient: GradientMode = gradient
        self.loss_weight = self._usual_weight() if loss_weight is None else float(loss_weight)
        self.margin_negative = margin_negative
        self.set_margin(
            self.default_margin if margin is None else margin,
            margin_schedule,
            low=self.least_margin,
        )
        if self.bias is not None:
            start = self.minimising_bias() if bias_start is None else bias_start
            require(math.isfinite(start), f"bias_start must be a finite number, got {start}")
            with torch.no_grad():
                self.bias.fill_(start)
        require_positive(or_zero=True, pair_weight=pair_weight, pair_margin=pair_margin)
        require(
            normalize or pair_weight == 0.0,
            "pair_weight compares angles: it does not go with normalize=False",
        )
        self.pair_weight = float(pair_weight)
        self.pairs = None if not pair_weight else _RememberedSphereFace2(
            dim, num_classes, balance=self.balance, radius=radius, margin=pair_margin,
            sharpness=sharpness, loss_weight=self.loss_weight, gradient=gradient,
        )  # fmt: skip

    def reduction(self) -> Binary:
        positive, negative = self._balance_weights()
        scale = self.loss_weight / self.radius
        largest = self.radius * (1.0 + self._negative_margin()) if self.unit_weights else math.inf
        return Binary(positive * scale, negative * scale, largest)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        # Eq. 5, positive: r(g(cos θ_y) - m); b is added by the engine
        score = adjust_for_gradient(cosine_b, self.sharpness, self.gradient)
        return self.radius * (score - self.margin)

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        # Eq. 5, negatives: r(g(cos θ_i) + m)
        margin, radius, t = self._negative_margin(), self.radius, self.sharpness
        if t == 1.0:
            return cosine_cb.mul(radius).add_(radius * margin), radius
        # g in as few walks through the block as it takes: with h = (c+1)/2,
        # r(g + m) = 2r·h^(t-1)·h + r(m-1) and the slope is r·t·h^(t-1).
        if t == 3.0:  # a plain product, which rounding beyond [-1, 1] does not harm
            half = cosine_cb.add(1.0).mul_(0.5)
            power = half * half
        else:
            half = adjust_half(cosine_cb, t)
            power = half.pow(t - 1.0)
        # added to zero, since the margin of a compiled map is a tensor
        offset = torch.zeros((), dtype=half.dtype, device=half.device) + radius * (margin - 1.0)
        logit = torch.addcmul(offset, power, half, value=2.0 * radius)
        slope = radius if self.gradient == "straight-through" else power.mul_(radius * t)
        return logit, slope

    def minimising_bias(self) -> float:
        """The bias with dL/db = 0 when every angle is π/2 (appendix G, the stable form)."""
        right_angle = torch.zeros(1, dtype=torch.float64)
        rows = Rows(norm=right_angle + 1.0, known=right_angle == 0.0)
        positive = float(self.target_logit(right_angle, rows))  # a_y
        negative = float(self.other_logit(right_angle, rows)[0])  # a_i
        # λ = 0 or 1 has no finite solution: it is taken as close to the end as rounding allows.
        weight_positive, weight_negative = (max(w, 1e-9) for w in self._balance_weights())
        z = weight_positive / (weight_negative * (self.num_classes - 1))
        root = math.sqrt((1.0 - z) ** 2 + 4.0 * z * math.exp(positive - negative))
        # For z > 1 the sum 1 - z + root cancels: its conjugate form does not.
        total = 1.0 - z + root
        if z > 1.0:
            total = 4.0 * z * math.exp(positive - negative) / (root - (1.0 - z))
        return math.log(2.0 * z) - negative - math.log(total)

    def _usual_weight(self) -> float:
        """The loss_weight with which a sample at a right angle to its class is pulled with 30."""
        if not self.unit_weights:
            return 1.0  # products have no scale to compare with
        # σ(-logit) is 1 there, so the pull is loss_weight · λ · g'(0), g'(0) = t/2^(t-1).
        t = self.sharpness
        slope = 1.0 if self.gradient == "straight-through" else t * 2.0 ** (1.0 - t)
        return USUAL_PULL / ((self._balance_weights()[0] or 1.0) * slope)

    def _balance_weights(self) -> tuple[float, float]:
        return (1.0, 1.0) if self.balance is None else (self.balance, 1.0 - self.balance)

    def _negative_margin(self) -> float:
        return self.margin if self.margin_negative is None else self.margin_negative

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, balance={self.balance}, radius={self.radius:g}, "
            f"margin={self.margin:g}, sharpness={self.sharpness:g}, gradient={self.gradient}"
        )


class _RememberedSphereFace2(FeatureMemory, SphereFace2):
    """SphereFace2-C of samples with one remembered embedding per class."""


class SphereFace2A(SphereFace2):
    """SphereFace2 with the ArcFace-type margin, cos(min(π, θ_y + m)), on the positive term only.

    The margin's own gradient is detached (characteristic gradient detachment, appendix F).
    """

    default_margin = 0.5
    additive_margin = False

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        # r·g(cos θ_y) + r·detach[g(cos(margin(θ_y))) - g(cos θ_y)]
        score = adjust_for_gradient(cosine_b, self.sharpness, self.gradient)
        with_margin = adjust(self.margin_cosine(cosine_b.detach()), self.sharpness)
        return self.radius * straight_through(with_margin, score)

    def margin_cosine(self, cosine_b: Tensor) -> Tensor:
        """The target's cosine once the margin is applied to its angle."""
        return add_angle_saturating(cosine_b, self.margin)

    def _negative_margin(self) -> float:
        return 0.0


class SphereFace2M(SphereFace2A):
    """SphereFace2 with the multiplicative margin, cos(min(m, π/θ_y)·θ_y), on the positive term."""

    default_margin = 1.7
    least_margin = 1.0

    def margin_cosine(self, cosine_b: Tensor) -> Tensor:
        return multiply_angle(cosine_b, self.margin)
