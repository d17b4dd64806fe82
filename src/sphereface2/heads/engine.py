"""One engine for every proxy head: loss and gradients from passes over blocks of classes.

A proxy head compares each embedding with K class weights. Its loss is always made of three parts:

1. a target pre-pass: the cosine of each row with its own class, B numbers, from which the head
   makes what it needs to know of a row, and the target's logit;
2. a map from the cosine of any other class to a logit, with its slope, elementwise;
3. a reduction over classes: a sum of softplus terms (binary) or a log-sum-exp (softmax).

So no B×K matrix has to exist. A binary head needs one pass over blocks of classes: product, map,
dL/dX += G·W, dL/dW = Gᵀ·X. A softmax head needs its normaliser first, hence a second pass.
The weights are never copied in normalised form: a row's norm only scales its products.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK_ELEMENTS = 1 << 20
"""Logits a block may hold on the CPU: 4 MB in float32, so that a block stays in the cache."""


def block_classes(rows: int, device: torch.device) -> int:
    """How many classes make a block for a batch of `rows`."""
    limit = BLOCK_ELEMENTS if device.type == "cpu" else 64 * BLOCK_ELEMENTS
    return max(64, limit // rows)


@dataclass(frozen=True)
class Binary:
    """Reduction of K independent classifiers: a weighted sum of softplus terms."""

    positive_weight: float
    negative_weight: float


@dataclass(frozen=True)
class Softmax:
    """Reduction of one K-way classifier: cross-entropy. Rows of no known class are left out."""

    weight: float = 1.0


@dataclass(frozen=True)
class Rows:
    """What a head's logit maps know of each row (sample) besides the cosine at hand.

    `context` is the head's own: B numbers, such as CurricularFace's boundary of each row.
    """

    norm: Tensor
    known: Tensor
    context: Tensor | None = None


class ProxyMaps(Protocol):
    """The contract between a head and the engine."""

    unit_weights: bool
    unit_embeddings: bool
    collect_statistics: bool

    def reduction(self) -> Binary | Softmax:
        """How logits become a loss."""

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        """Target pre-pass, without gradient: gather what the maps need; update running averages."""

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        """Logit of each row's own class, bias excluded; autograd differentiates these B numbers."""

    def other_logit(self, cosine_bc: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        """Logit of all other classes, bias excluded, and its slope d logit / d cosine.

        `cosine_bc` must stay as it is; what is returned may be overwritten.
        """


@dataclass
class Outcome:
    """Loss and gradients of one batch; gradients are None where they were not asked for."""

    loss: Tensor
    embeddings: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    statistics: dict[str, Tensor] | None = None


def proxy_loss(
    maps: ProxyMaps, embeddings: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a proxy head as a differentiable scalar, and the statistics of the batch."""
    statistics: dict[str, Tensor] = {}
    loss: Tensor = _ProxyLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        embeddings, weight, bias, labels, maps, torch.is_grad_enabled(), statistics
    )
    return loss, statistics


class _ProxyLoss(torch.autograd.Function):
    """Gradients come out of the same pass as the loss, so backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        maps: ProxyMaps,
        grad_enabled: bool,
        statistics: dict[str, Tensor],
    ) -> Tensor:
        needs = ctx.needs_input_grad if grad_enabled else (False, False, False)
        outcome = evaluate(maps, embeddings, weight, bias, labels, needs=needs[:3])
        ctx.gradients = (outcome.embeddings, outcome.weight, outcome.bias)
        statistics.update(outcome.statistics or {})
        return outcome.loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("a head's loss can be differentiated only once per forward pass")
        # Scaled in place: a second K×D tensor would cost as much memory as the gradient itself.
        scaled = [g if g is None else g.mul_(grad_output.to(g.dtype)) for g in ctx.gradients]
        ctx.gradients = None
        return (*scaled, None, None, None, None)


def evaluate(
    maps: ProxyMaps,
    embeddings: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    needs: tuple[bool, bool, bool],
) -> Outcome:
    """Loss and the needed gradients of (embeddings, weight, bias) in passes over class blocks."""
    device = embeddings.device.type
    autocast = torch.is_autocast_enabled(device)
    product_dtype = torch.get_autocast_dtype(device) if autocast else weight.dtype
    with torch.autocast(device, enabled=False):
        return _Evaluation(maps, embeddings, weight, bias, labels, product_dtype, needs).run()


class _Evaluation:
    """One batch on its way through the blocks; the state that the passes share."""

    def __init__(
        self,
        maps: ProxyMaps,
        embeddings: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        product_dtype: torch.dtype,
        needs: tuple[bool, bool, bool],
    ) -> None:
        self.maps = maps
        self.original = embeddings
        self.weight = weight
        self.bias = bias
        self.product_dtype = product_dtype
        self.needs_embeddings, self.needs_weight, self.needs_bias = needs
        self.reduction = maps.reduction()
        # Softmax has no place for a sample of no class: such rows are left out of the batch.
        self.kept = None
        if isinstance(self.reduction, Softmax) and bool((labels < 0).any()):
            self.kept = (labels >= 0).nonzero().squeeze(1)
            embeddings, labels = embeddings[self.kept], labels[self.kept]
        self.labels = labels
        # Margin maths runs in the precision of the weights (float32 or float64), products may not.
        self.rows_x = embeddings.to(weight.dtype)
        self.norm = torch.linalg.vector_norm(self.rows_x, dim=1)
        self.inverse_norm = _inverse(self.norm) if maps.unit_embeddings else None
        if self.inverse_norm is not None:
            self.rows_x = self.rows_x * self.inverse_norm[:, None]
        self.product_x = self.rows_x.to(product_dtype)
        self.grad_x = torch.zeros_like(self.rows_x) if self.needs_embeddings else None
        self.grad_weight = torch.empty_like(weight) if self.needs_weight else None
        self.grad_bias = torch.zeros_like(bias) if self.needs_bias and bias is not None else None
        self.statistics = _Statistics() if maps.collect_statistics else None

    def run(self) -> Outcome:
        count = len(self.labels)
        if count == 0:
            return self._nothing()
        self._target_pass()
        # Every dL/dlogit is kept relative to this factor, so that a half-precision product sees
        # numbers of order one; the factor is applied to the float32 results.
        if isinstance(self.reduction, Binary):
            self.unit = max(self.reduction.positive_weight, self.reduction.negative_weight) / count
            loss = self._binary()
        else:
            self.unit = self.reduction.weight / count
            loss = self._softmax()
        grads = self._finish()
        statistics = self.statistics.result(self) if self.statistics else None
        return Outcome(loss, *grads, statistics)

    # -- the three parts -------------------------------------------------------------------------

    def _target_pass(self) -> None:
        """Part 1: the target's cosine and logit, as a small autograd graph of B numbers."""
        self.known = self.labels >= 0
        index = self.labels.clamp_min(0)
        own = self.weight[index]
        cosine = (self.rows_x * own).sum(dim=1)
        if self.maps.unit_weights:
            cosine = cosine * _inverse(torch.linalg.vector_norm(own, dim=1))
        self.target_cosine = self._clamp(cosine)
        with torch.no_grad():
            rows = self.maps.prepare(self.target_cosine, self.norm, self.known)
        with torch.enable_grad():
            self.leaf_cosine = self.target_cosine.clone().requires_grad_()
            self.leaf_norm = self.norm.clone().requires_grad_()
            self.rows = Rows(rows.norm, rows.known, rows.context)
            graph_rows = Rows(self.leaf_norm, rows.known, rows.context)
            self.target_graph = self.maps.target_logit(self.leaf_cosine, graph_rows)
        self.target_logit = self.target_graph.detach()
        if self.bias is not None:
            self.target_logit = self.target_logit + (
                self.bias[index] if self.bias.ndim else self.bias
            )

    def _block(self, start: int, stop: int) -> "_Block":
        """Part 2 for classes start..stop-1: cosines, logits and slopes of a block."""
        weight_cd = self.weight[start:stop]
        product_w = weight_cd.to(self.product_dtype)
        cosine_bc = (self.product_x @ product_w.T).to(self.weight.dtype)
        inverse_c = None
        if self.maps.unit_weights:
            inverse_c = _inverse(torch.linalg.vector_norm(weight_cd, dim=1))
            cosine_bc.mul_(inverse_c)
        cosine_bc = self._clamp(cosine_bc)
        logit_bc, slope_bc = self.maps.other_logit(cosine_bc, self.rows)
        if self.bias is not None:
            logit_bc = logit_bc.add_(self.bias[start:stop] if self.bias.ndim else self.bias)
        inside = (self.labels >= start) & (self.labels < stop)
        rows = inside.nonzero().squeeze(1)
        return _Block(
            start=start,
            stop=stop,
            weight_cd=weight_cd,
            product_w=product_w,
            inverse_c=inverse_c,
            cosine_bc=cosine_bc,
            logit_bc=logit_bc,
            slope_bc=slope_bc,
            target_rows=rows,
            target_columns=self.labels[rows] - start,
        )

    def _binary(self) -> Tensor:
        """Part 3, binary: one pass; each term is added and differentiated where it arises."""
        assert isinstance(self.reduction, Binary)
        positive = self.reduction.positive_weight / len(self.labels)
        negative = self.reduction.negative_weight / len(self.labels)
        known = self.known.to(self.target_logit.dtype)
        loss = positive * (F.softplus(-self.target_logit) * known).sum()
        self._differentiate_target(-(positive / self.unit) * known * (-self.target_logit).sigmoid())
        wants_gradient = self.needs_embeddings or self.needs_weight or self.needs_bias
        for start, stop in self._blocks():
            block = self._block(start, stop)
            # The target is no negative: softplus(-inf) and its gradient are zero.
            block.logit_bc[block.target_rows, block.target_columns] = -torch.inf
            if self.statistics:
                self.statistics.add(block, active=block.logit_bc > 0)
            loss = loss + negative * F.softplus(block.logit_bc).sum()
            if wants_gradient:
                grad_bc = block.logit_bc.sigmoid_().mul_(negative / self.unit)
                self._accumulate(block, grad_bc)
        return loss

    def _softmax(self) -> Tensor:
        """Part 3, softmax: first the log-sum-exp over all classes, then the gradients."""
        highest = torch.full_like(self.target_logit, -torch.inf)
        total = torch.zeros_like(self.target_logit)
        for start, stop in self._blocks():
            block = self._block(start, stop)
            if self.statistics:
                above = block.logit_bc > self.target_logit[:, None]
                above[block.target_rows, block.target_columns] = False
                self.statistics.add(block, active=above)
            block.logit_bc[block.target_rows, block.target_columns] = self.target_logit[
                block.target_rows
            ]
            now = torch.maximum(highest, block.logit_bc.amax(dim=1))
            total = total * (highest - now).exp() + (
                block.logit_bc.sub_(now[:, None]).exp_().sum(dim=1)
            )
            highest = now
        normaliser = highest + total.log()
        loss = self.unit * (normaliser - self.target_logit).sum()
        if self.needs_embeddings or self.needs_weight or self.needs_bias:
            self._differentiate_target((self.target_logit - normaliser).exp() - 1.0)
            for start, stop in self._blocks():
                block = self._block(start, stop)
                self._accumulate(block, block.logit_bc.sub_(normaliser[:, None]).exp_())
        return loss

    # -- gradients -------------------------------------------------------------------------------

    def _differentiate_target(self, grad_logit_b: Tensor) -> None:
        """dL/dlogit of the targets -> dL/dcosine, dL/dnorm (in units of `unit`)."""
        self.target_grad_logit = grad_logit_b
        grad_cosine, grad_norm = torch.autograd.grad(
            self.target_graph, [self.leaf_cosine, self.leaf_norm], grad_logit_b, allow_unused=True
        )
        self.target_grad_cosine = grad_cosine
        self.target_grad_norm = grad_norm

    def _accumulate(self, block: "_Block", grad_bc: Tensor) -> None:
        """dL/dlogit of a block -> its share of dL/dX, dL/dW and dL/db; `grad_bc` is used up."""
        rows, columns = block.target_rows, block.target_columns
        if self.grad_bias is not None:
            grad_bc[rows, columns] = self.target_grad_logit[rows]
            if self.grad_bias.ndim:
                self.grad_bias[block.start : block.stop] = grad_bc.sum(dim=0)
            else:
                self.grad_bias += grad_bc.sum()
        grad_bc.mul_(block.slope_bc)  # dL/dlogit -> dL/dcosine
        grad_bc[rows, columns] = self.target_grad_cosine[rows]
        projection_c = None
        if block.inverse_c is not None:
            if self.grad_weight is not None:
                projection_c = (grad_bc * block.cosine_bc).sum(dim=0)
            grad_bc.mul_(block.inverse_c)
        product_g = grad_bc.to(self.product_dtype)
        if self.grad_x is not None:
            self.grad_x += product_g @ block.product_w
        if self.grad_weight is not None:
            grad_cd = self.grad_weight[block.start : block.stop]
            grad_cd.copy_(product_g.T @ self.product_x)
            if projection_c is not None and block.inverse_c is not None:
                # d cosine / d w has no part along w: that part of the product is taken off.
                grad_cd.addcmul_(
                    block.weight_cd, (projection_c * block.inverse_c.square())[:, None], value=-1.0
                )
            grad_cd.mul_(self.unit)

    def _finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients in the shape and precision of the inputs."""
        if self.grad_bias is not None:
            self.grad_bias *= self.unit
        if self.grad_x is None:
            return None, self.grad_weight, self.grad_bias
        grad = self.grad_x
        if self.inverse_norm is not None:
            along = (grad * self.rows_x).sum(dim=1, keepdim=True)
            grad = (grad - along * self.rows_x) * self.inverse_norm[:, None]
            if self.target_grad_norm is not None:
                grad = grad + self.target_grad_norm[:, None] * self.rows_x
        elif self.target_grad_norm is not None:
            unit_x = self.rows_x * _inverse(self.norm)[:, None]
            grad = grad + self.target_grad_norm[:, None] * unit_x
        grad = (grad * self.unit).to(self.original.dtype)
        if self.kept is not None:
            grad = torch.zeros_like(self.original).index_copy_(0, self.kept, grad)
        return grad, self.grad_weight, self.grad_bias

    def _nothing(self) -> Outcome:
        """A batch without any usable row: zero loss, zero gradients."""
        return Outcome(
            self.weight.new_zeros(()),
            torch.zeros_like(self.original) if self.needs_embeddings else None,
            torch.zeros_like(self.weight) if self.needs_weight else None,
            self.grad_bias,
        )

    def _clamp(self, cosine: Tensor) -> Tensor:
        """Rounding can push a cosine out of [-1, 1]; plain products have no such bound."""
        if self.maps.unit_weights and self.maps.unit_embeddings:
            return cosine.clamp_(-1.0, 1.0)
        return cosine

    def _blocks(self) -> list[tuple[int, int]]:
        classes = len(self.weight)
        size = block_classes(len(self.labels), self.weight.device)
        return [(start, min(start + size, classes)) for start in range(0, classes, size)]


@dataclass
class _Block:
    """One block of classes with everything that the reduction needs of it."""

    start: int
    stop: int
    weight_cd: Tensor
    product_w: Tensor
    inverse_c: Tensor | None
    cosine_bc: Tensor
    logit_bc: Tensor
    slope_bc: Tensor | float
    target_rows: Tensor
    target_columns: Tensor


class _Statistics:
    """Sums over all blocks from which the numbers for the log are made."""

    def __init__(self) -> None:
        self.cosine_sum: Tensor | float = 0.0
        self.active: Tensor | float = 0.0
        self.count = 0

    def add(self, block: _Block, *, active: Tensor) -> None:
        self.cosine_sum = self.cosine_sum + (
            block.cosine_bc.sum() - block.cosine_bc[block.target_rows, block.target_columns].sum()
        )
        self.active = self.active + active.sum()
        self.count += block.cosine_bc.numel() - len(block.target_rows)

    def result(self, evaluation: _Evaluation) -> dict[str, Tensor]:
        positives = evaluation.target_cosine[evaluation.known]
        result = {
            "negative_score": torch.as_tensor(self.cosine_sum) / max(self.count, 1),
            "active_negatives": torch.as_tensor(self.active) / max(self.count, 1),
        }
        if len(positives):
            result["positive_score"] = positives.mean()
        return result


def _inverse(norm: Tensor) -> Tensor:
    """1/norm, and 0 for a zero vector: it then has cosine 0 with everything and no gradient."""
    return torch.where(norm > 1e-12, norm.clamp_min(1e-12).reciprocal(), torch.zeros_like(norm))
