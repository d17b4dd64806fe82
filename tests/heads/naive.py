"""Every head as a plain loop over samples and classes, straight from its formula.

Slow and readable: the reference that the engine must agree with, value and gradient. Gradients
come from autograd; where a formula detaches something, `.detach()` stands at the same place.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sphereface2.heads.head import Head

# Any: torch types norm() and products with untyped numbers as Any.
Naive = Callable[[Any, Tensor, Tensor], Any]


def unit(x: Tensor) -> Any:
    """x / ‖x‖; a zero vector stays one, at a right angle to everything."""
    return x / x.norm().clamp_min(1e-12)


def cosine(x: Tensor, w: Tensor) -> Any:
    return (unit(x) @ unit(w)).clamp(-1.0, 1.0)


def g(c: Tensor, t: float) -> Any:
    half = (c + 1.0) / 2.0
    return 2.0 * (half if t == 1.0 else half.clamp_min(0.0)) ** t - 1.0


def with_gradient(head: Any, value: Tensor, c: Tensor) -> Any:
    """`exact`: as it is; `straight-through`: the value with the slope of the cosine."""
    return value if head.gradient == "exact" else c + (value - c).detach()


def sphereface2(head: Any, x: Tensor, y: Tensor, positive: Any, negative: Any) -> Any:
    """λ/r·softplus(-pos) + (1-λ)/r·Σ softplus(neg), mean over the batch, times the loss weight.

    With `pairs`, the C type of it again against the remembered embeddings, as they are before the
    head's forward; a person who is not remembered takes no part.
    """
    weights = (1.0, 1.0) if head.balance is None else (head.balance, 1.0 - head.balance)
    present = [True] * head.num_classes
    total = torch.zeros((), dtype=x.dtype)
    for n in range(len(x)):
        for i in range(head.num_classes):
            if not getattr(head, "filled", present)[i]:
                continue
            product = cosine if head.unit_weights else torch.dot
            centres = head.weight[i] if head.weight.ndim == 3 else [head.weight[i]]
            c = torch.stack([product(x[n], centre) for centre in centres]).amax()
            b = 0.0
            if head.bias is not None:
                b = head.bias[i] if head.bias.ndim else head.bias
            if i == y[n]:
                total = total + weights[0] / head.radius * logistic(-(positive(head, c) + b))
            else:
                total = total + weights[1] / head.radius * logistic(negative(head, c) + b)
    loss = head.loss_weight * total / len(x)
    if head.pairs is not None:
        loss = loss + head.pair_weight * sphereface2_c(head.pairs, x, y)
    return loss


def sphereface2_c(head: Any, x: Tensor, y: Tensor) -> Any:
    m_n = head.margin if head.margin_negative is None else head.margin_negative
    return sphereface2(
        head,
        x,
        y,
        lambda h, c: h.radius * (with_gradient(h, g(c, h.sharpness), c) - h.margin),
        lambda h, c: h.radius * (with_gradient(h, g(c, h.sharpness), c) + m_n),
    )


def sphereface2_angular(turn: Callable[[Tensor, float], Tensor]) -> Naive:
    """The A and M types: the margin on the positive's angle, its gradient detached."""

    def loss(head: Any, x: Tensor, y: Tensor) -> Any:
        def positive(h: Any, c: Tensor) -> Any:
            plain = with_gradient(h, g(c, h.sharpness), c)
            turned = torch.cos(turn(torch.arccos(c), h.margin))
            return h.radius * plain + h.radius * (g(turned, h.sharpness) - plain).detach()

        return sphereface2(
            head, x, y, positive, lambda h, c: h.radius * with_gradient(h, g(c, h.sharpness), c)
        )

    return loss


def cross_entropy(
    head: Any,
    x: Tensor,
    y: Tensor,
    target: Callable[[Tensor, int], Any],
    other: Callable[[Tensor, int], Any],
    product: Callable[[Tensor, Tensor], Tensor] = cosine,
) -> Any:
    """-log softmax of the target's logit, rows without a class left out."""
    losses = []
    for n in range(len(x)):
        if y[n] < 0:
            continue
        logits = []
        for i in range(head.num_classes):
            c = product(x[n], head.weight[i])
            logit = target(c, n) if i == y[n] else other(c, n)
            logits.append(logit if head.bias is None else logit + head.bias[i])
        stacked = torch.stack(logits)
        losses.append(torch.logsumexp(stacked, 0) - stacked[y[n]])
    return torch.stack(losses).mean() if losses else x.sum() * 0.0


def softmax(head: Any, x: Tensor, y: Tensor) -> Any:
    return cross_entropy(head, x, y, lambda c, n: c, lambda c, n: c, product=torch.dot)


def normface(head: Any, x: Tensor, y: Tensor) -> Any:
    return cross_entropy(head, x, y, lambda c, n: head.scale * c, lambda c, n: head.scale * c)


def sphereface(head: Any, x: Tensor, y: Tensor) -> Any:
    def target(c: Tensor, n: int) -> Any:
        theta = torch.arccos(c)
        most = math.pi / max(float(theta.detach()), 1e-12)
        turned = torch.cos(min(head.margin, most) * theta)
        return head.scale * (c + (turned - c).detach())

    return cross_entropy(head, x, y, target, lambda c, n: head.scale * c)


def cosface(head: Any, x: Tensor, y: Tensor) -> Any:
    def score(c: Tensor) -> Any:
        return with_gradient(head, g(c, head.sharpness), c)

    return cross_entropy(
        head,
        x,
        y,
        lambda c, n: head.scale * (score(c) - head.margin),
        lambda c, n: head.scale * score(c),
    )


def arc(c: Tensor, margin: Tensor | float, past_pi: str = "falling") -> Any:
    """cos(θ+m); past θ + m = π it is c - m·sin(π-m), continues as cos(θ+m), or stays at -1."""
    m = torch.as_tensor(margin, dtype=c.dtype)
    if past_pi != "cosine" and float(torch.arccos(c.detach())) + float(m.detach()) > math.pi:
        return c - m * torch.sin(math.pi - m) if past_pi == "falling" else c * 0.0 - 1.0
    return torch.cos(torch.arccos(c) + m)


def arcface(head: Any, x: Tensor, y: Tensor) -> Any:
    t = head.sharpness
    return cross_entropy(
        head,
        x,
        y,
        lambda c, n: head.scale * with_gradient(head, g(arc(c, head.margin, head.past_pi), t), c),
        lambda c, n: head.scale * with_gradient(head, g(c, t), c),
    )


def curricularface(head: Any, x: Tensor, y: Tensor) -> Any:
    """`head.curriculum` as it stands after the head's own forward has moved it."""
    t = head.curriculum.to(x.dtype)

    def target(c: Tensor, n: int) -> Any:
        return head.scale * with_gradient(head, arc(c, head.margin), c)

    def other(c: Tensor, n: int) -> Any:
        own = cosine(x[n], head.weight[y[n]]).detach()
        hard = c.detach() > torch.cos(torch.arccos(own) + head.margin)
        return head.scale * with_gradient(head, c * (t + c) if hard else c, c)

    return cross_entropy(head, x, y, target, other)


def circle(head: Any, x: Tensor, y: Tensor) -> Any:
    gamma, m = head.scale, head.margin

    def mode(logit: Tensor, c: Tensor) -> Any:
        return with_gradient(head, logit / gamma, c) * gamma

    return cross_entropy(
        head,
        x,
        y,
        lambda c, n: mode(gamma * (1 + m - c).relu().detach() * (c - (1 - m)), c),
        lambda c, n: mode(gamma * (c + m).relu().detach() * (c - m), c),
    )


def magface(head: Any, x: Tensor, y: Tensor) -> Any:
    def length(n: int) -> Any:
        return x[n].norm().clamp(head.norm_low, head.norm_high)

    def target(c: Tensor, n: int) -> Any:
        slope = (head.margin_high - head.margin_low) / (head.norm_high - head.norm_low)
        margin = slope * (length(n) - head.norm_low) + head.margin_low
        if not head.easy_margin:
            return head.scale * with_gradient(head, arc(c, margin), c)
        return (
            head.scale * with_gradient(head, torch.cos(torch.arccos(c) + margin), c)
            if c > 0
            else head.scale * c
        )

    known = [n for n in range(len(x)) if y[n] >= 0]
    loss = cross_entropy(head, x, y, target, lambda c, n: head.scale * c)
    if known:
        terms = [1 / length(n) + length(n) / head.norm_high**2 for n in known]
        loss = loss + head.norm_weight * torch.stack(terms).mean()
    return loss


def adaface(head: Any, x: Tensor, y: Tensor) -> Any:
    """The running statistics as they stand after the head's own forward has moved them."""

    def target(c: Tensor, n: int) -> Any:
        length = x[n].detach().norm().clamp(0.001, 100.0)
        z = (length - head.mean_norm) / (head.norm_deviation + 1e-3) * head.concentration
        z = z.clamp(-1.0, 1.0).to(c.dtype)
        theta = (torch.arccos(c) - head.margin * z).clamp(1e-3, math.pi - 1e-3)
        return head.scale * (
            with_gradient(head, torch.cos(theta), c) - (head.margin + head.margin * z)
        )

    return cross_entropy(head, x, y, target, lambda c, n: head.scale * c)


def relation(a: Tensor, b: Tensor) -> str:
    """Same person, different people, or nobody knows."""
    if a < 0 and b < 0:
        return "unknown"
    return "same" if a == b else "different"


def contrastive_pairs(margin: float, x: Tensor, y: Tensor) -> Any:
    attract, repel = [], []
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            d = (unit(x[i]) - unit(x[j])).norm()
            kind = relation(y[i], y[j])
            if kind == "same":
                attract.append(d**2)
            elif kind == "different" and d < margin:
                repel.append((margin - d) ** 2)
    total = x.sum() * 0.0
    for part in (attract, repel):
        if part:
            total = total + 0.5 * torch.stack(part).mean()
    return total


def contrastive(head: Any, x: Tensor, y: Tensor) -> Any:
    return contrastive_pairs(head.margin, x, y)


def triplet(head: Any, x: Tensor, y: Tensor) -> Any:
    units = [unit(v) for v in x]
    d2 = [[(a - b).square().sum() for b in units] for a in units]
    terms = []
    for a in range(len(x)):
        negatives = [n for n in range(len(x)) if relation(y[a], y[n]) == "different"]
        if not negatives:
            continue
        for p in range(len(x)):
            if p == a or relation(y[a], y[p]) != "same":
                continue
            farther = [n for n in negatives if d2[a][n] > d2[a][p]]
            if farther:
                chosen = min(farther, key=lambda n: float(d2[a][n].detach()))
            else:
                chosen = max(negatives, key=lambda n: float(d2[a][n].detach()))
            terms.append((d2[a][p] - d2[a][chosen] + head.margin).relu())
    return torch.stack(terms).mean() if terms else x.sum() * 0.0


def simple(head: Any, x: Tensor, y: Tensor) -> Any:
    """Against the batch itself and `head.memory_x` as it stands before the head's forward."""
    filled = head.memory_y > -2
    if head.normalize:
        x = torch.stack([unit(v) for v in x])
    batch = x.detach() if head.detach_batch else x
    others = torch.cat([batch, head.memory_x[filled].to(x.dtype)])
    other_y = torch.cat([y, head.memory_y[filled]])
    positive, negative = [], []
    for i in range(len(x)):
        for j in range(len(others)):
            if i == j:
                continue
            score = x[i] @ others[j] - head.angular_bias * x[i].norm() * others[j].norm()
            kind = relation(y[i], other_y[j])
            if kind == "same":
                positive.append(softplus(-(score - head.margin + head.bias) / head.radius))
            elif kind == "different":
                negative.append(softplus((score + head.margin + head.bias) * head.radius))
    total = x.sum() * 0.0
    if positive:
        total = total + head.balance * torch.stack(positive).mean()
    if negative:
        total = total + (1 - head.balance) * torch.stack(negative).mean()
    return head.loss_weight * total


def deepid2(head: Any, x: Tensor, y: Tensor) -> Any:
    return softmax(head, x, y) + head.pair_weight * contrastive_pairs(head.margin, x, y)


def ring(head: Any, x: Tensor, y: Tensor) -> Any:
    loss = softmax(head, x, y)
    known = [n for n in range(len(x)) if y[n] >= 0]
    if known:
        pulls = torch.stack([(x[n].norm() - head.ring_radius) ** 2 for n in known])
        loss = loss + head.ring_weight / 2 * pulls.mean()
    return loss


def unified(
    x: Tensor, y: Tensor, scores: list[list[Any]], *, margin: Any, bias: Any, weight: float = 1.0
) -> Any:
    """Σ softplus(-(score_y - m + b)) + w·Σ softplus(score_i + b), mean over the batch."""
    total = x.sum() * 0.0
    for n in range(len(x)):
        for i, score in enumerate(scores[n]):
            if score is None:
                continue
            if i == y[n]:
                total = total + logistic(-(score - margin + bias))
            else:
                total = total + weight * logistic(score + bias)
    return total / len(x)


def logistic(z: Tensor) -> Any:
    """log(1 + exp(z)); torch's softplus is z itself from 20 on, which is 2e-9 off."""
    return torch.logaddexp(z, torch.zeros_like(z))


def uniface(head: Any, x: Tensor, y: Tensor) -> Any:
    scores = [[head.scale * cosine(v, w) for w in head.weight] for v in x]
    return unified(
        x,
        y,
        scores,
        margin=head.scale * head.margin,
        bias=head.bias,
        weight=head.negative_weight,
    )


def sigmoid(head: Any, x: Tensor, y: Tensor) -> Any:
    s = head.log_scale.exp()
    scores = [[s * cosine(v, w) for w in head.weight] for v in x]
    return unified(
        x,
        y,
        scores,
        margin=s * head.margin,
        bias=-s * head.relative_bias,
        weight=head.negative_weight,
    )


def unitsface(head: Any, x: Tensor, y: Tensor) -> Any:
    """Against `head.pairs.weight` as it stands before the head's forward."""
    pairs = head.pairs
    scores = [
        [
            pairs.scale * cosine(v, remembered) if filled else None
            for remembered, filled in zip(pairs.weight, pairs.filled, strict=True)
        ]
        for v in x
    ]
    loss = unified(x, y, scores, margin=pairs.scale * pairs.margin, bias=pairs.bias)
    return cosface(head, x, y) + head.pair_weight * loss


NAIVE: dict[str, Naive] = {
    "sphereface2-c": sphereface2_c,
    "sphereface2-a": sphereface2_angular(lambda theta, m: (theta + m).clamp_max(math.pi)),
    "sphereface2-m": sphereface2_angular(lambda theta, m: (theta * m).clamp_max(math.pi)),
    "uniface": uniface,
    "sigmoid": sigmoid,
    "softmax": softmax,
    "normface": normface,
    "sphereface": sphereface,
    "cosface": cosface,
    "arcface": arcface,
    "curricularface": curricularface,
    "circle": circle,
    "magface": magface,
    "adaface": adaface,
    "contrastive": contrastive,
    "triplet": triplet,
    "simple": simple,
    "deepid2": deepid2,
    "ring": ring,
    "unitsface": unitsface,
}


def gradients(loss: Tensor, head: Head, x: Tensor) -> list[Tensor]:
    """dL/dx and dL/d(parameter) for every parameter; zeros where a parameter plays no part."""
    inputs = [x, *head.parameters()]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [
        torch.zeros_like(i) if grad is None else grad for i, grad in zip(inputs, found, strict=True)
    ]
