"""One engine for every proxy head: loss and gradients from passes over blocks of classes.

A proxy head compares each embedding with K class weights. Its loss is always made of three parts:

1. a target pre-pass: the cosine of each row with its own class, B numbers, from which the head
   makes what it needs to know of a row, and the target's logit;
2. a map from the cosine of any other class to a logit, with its slope, elementwise;
3. a reduction over classes: a sum of softplus terms (binary) or a log-sum-exp (softmax).

So no B×K matrix has to exist. A binary head needs one pass over blocks of classes: product, map,
dL/dX += G·W, dL/dW = Gᵀ·X, and even the update of the block's weights. A softmax head needs its
normaliser first, hence a second pass. The weights are never copied in normalised form: a row's
norm only scales its products.

Blocks are laid out class by row (C×B): what belongs to a class (its norm, its bias, the projection
of its gradient) then runs along contiguous memory.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sphereface2.heads.class_rows import BlockGradient, ClassRows
from sphereface2.heads.contract import UNKNOWN, Binary, ProxyMaps, Rows, Softmax
from sphereface2.heads.sharding import Alone

BLOCK_ELEMENTS = 1 << 20
"""Logits a block may hold on the CPU: 4 MB in float32, so that a block stays in the cache."""


def block_classes(rows: int, device: torch.device) -> int:
    """How many classes make a block for a batch of `rows`."""
    limit = BLOCK_ELEMENTS if device.type == "cpu" else 64 * BLOCK_ELEMENTS
    return max(64, limit // rows)


@dataclass
class Outcome:
    """Loss and gradients of one batch; gradients are None where they were not asked for."""

    loss: Tensor
    embeddings: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    statistics: dict[str, Tensor] = field(default_factory=dict)


def evaluate(
    maps: ProxyMaps,
    embeddings: Tensor,
    classes: ClassRows,
    bias: Tensor | None,
    labels: Tensor,
    *,
    needs: tuple[bool, bool, bool],
    exchange: Alone,
) -> Outcome:
    """Loss and the needed gradients of (embeddings, weight, bias) in passes over class blocks.

    `labels` count within `classes`; see UNKNOWN and ELSEWHERE for the others. On several ranks,
    `embeddings` and `labels` are the whole batch, the loss is the whole loss, and the gradient of
    the embeddings is this rank's share of a sum.
    """
    device = embeddings.device.type
    autocast = torch.is_autocast_enabled(device)
    product_dtype = torch.get_autocast_dtype(device) if autocast else classes.dtype
    with torch.autocast(device, enabled=False), torch.no_grad():
        return _Evaluation(
            maps, embeddings, classes, bias, labels, product_dtype, needs, exchange
        ).run()


class _Evaluation:
    """One batch on its way through the blocks; the state that the passes share."""

    def __init__(
        self,
        maps: ProxyMaps,
        embeddings: Tensor,
        classes: ClassRows,
        bias: Tensor | None,
        labels: Tensor,
        product_dtype: torch.dtype,
        needs: tuple[bool, bool, bool],
        exchange: Alone,
    ) -> None:
        self.maps = maps
        self.original = embeddings
        self.classes = classes
        self.bias = bias
        self.product_dtype = product_dtype
        self.exchange = exchange
        self.needs_embeddings, self.needs_weight, self.needs_bias = needs
        self.needs_gradient = any(needs)
        self.reduction = maps.reduction()
        # Softmax has no place for a sample of no class: such rows are left out of the batch.
        self.kept = None
        if isinstance(self.reduction, Softmax) and bool((labels == UNKNOWN).any()):
            self.kept = (labels != UNKNOWN).nonzero().squeeze(1)
            embeddings, labels = embeddings[self.kept], labels[self.kept]
        self.labels = labels
        self.known = labels != UNKNOWN
        self.is_here = labels >= 0
        # Margin maths runs in the precision of the weights (float32 or float64), products may not.
        self.rows_x = embeddings.to(classes.dtype)
        self.norm = torch.linalg.vector_norm(self.rows_x, dim=1)
        self.inverse_norm = inverse(self.norm) if maps.unit_embeddings else None
        if self.inverse_norm is not None:
            self.rows_x = self.rows_x * self.inverse_norm[:, None]
        self.product_x = self.rows_x.to(product_dtype)
        self.grad_x = torch.zeros_like(self.rows_x) if self.needs_embeddings else None
        self.grad_bias = torch.zeros_like(bias) if self.needs_bias and bias is not None else None
        self.statistics = _Statistics() if maps.collect_statistics else None

    def run(self) -> Outcome:
        count = len(self.labels)
        if count == 0:
            return self._nothing()
        self._target_pass()
        # Every dL/dlogit is kept relative to this factor, so that a half-precision product sees
        # numbers of order one; the factor is applied to the results.
        if isinstance(self.reduction, Binary):
            positive, negative = self.reduction.positive_weight, self.reduction.negative_weight
            # The negatives' own weight, where a positive counts at most a thousand times as much.
            near = negative > 0.0 and positive <= 1000.0 * negative
            self.unit = (negative if near else max(positive, negative)) / count
            loss = self._binary()
        else:
            self.unit = self.reduction.weight / count
            loss = self._softmax()
        loss = self._sum_over_ranks(loss)
        statistics = self.statistics.result(self) if self.statistics else {}
        return Outcome(
            loss, self._embedding_gradient(), self.classes.gradient(), self.grad_bias, statistics
        )

    # -- the three parts -------------------------------------------------------------------------

    def _target_pass(self) -> None:
        """Part 1: the target's cosine and logit, as a small autograd graph of B numbers."""
        index = self.labels.clamp_min(0)
        cosine = torch.zeros_like(self.norm)
        if len(self.classes):
            own = self.classes.gather(index)
            of_centres = (self.rows_x[:, None] * own).sum(dim=2)
            if self.maps.unit_weights:
                of_centres = of_centres * inverse(torch.linalg.vector_norm(own, dim=2))
            cosine = self._clamp(of_centres.amax(dim=1)) * self.is_here
        if self.maps.needs_all_targets or self.statistics:
            cosine = self.exchange.sum(cosine)
        self.target_cosine = cosine
        self.rows = self.maps.prepare(self.target_cosine, self.norm, self.known)
        with torch.enable_grad():
            self.leaf_cosine = self.target_cosine.clone().requires_grad_()
            self.leaf_norm = self.norm.clone().requires_grad_()
            graph_rows = Rows(self.leaf_norm, self.rows.known, self.rows.context)
            self.target_graph = self.maps.target_logit(self.leaf_cosine, graph_rows)
        self.target_logit = self.target_graph.detach()
        if self.bias is not None and self.bias.ndim:
            own_bias = torch.zeros_like(self.target_logit)
            if len(self.bias):
                own_bias = self.classes.pick(self.bias)[index] * self.is_here
            if self.statistics:  # which compare with the target also where its class is elsewhere
                own_bias = self.exchange.sum(own_bias)
            self.target_logit = self.target_logit + own_bias
        elif self.bias is not None:
            self.target_logit = self.target_logit + self.bias

    def _block(self, start: int, stop: int) -> "_Block":
        """Part 2 for classes start..stop-1: cosines, logits and slopes of a block."""
        weight_cd = self.classes.read(start, stop)
        product_w = weight_cd.to(self.product_dtype)
        cosine_cb = (product_w @ self.product_x.T).to(self.classes.dtype)
        inverse_c = None
        if self.maps.unit_weights:
            # x·x is faster than a norm, and far from overflow for any sensible row.
            inverse_c = inverse(torch.linalg.vecdot(weight_cd, weight_cd).sqrt_())
            cosine_cb.mul_(inverse_c[:, None])
        cosine_rows = cosine_cb = self._clamp(cosine_cb)
        nearest = None
        if self.classes.centres > 1:
            # The cosine with a class is that with its nearest centre, which alone is pulled.
            cosine_cb, nearest = cosine_rows.view(stop - start, self.classes.centres, -1).max(dim=1)
        logit_cb, slope_cb = self.maps.other_logit(cosine_cb, self.rows)
        bias = self.bias
        if bias is not None:
            bias = self.classes.pick(bias)[start:stop, None] if bias.ndim else bias
            logit_cb = logit_cb.add_(bias)
        rows = ((self.labels >= start) & (self.labels < stop)).nonzero().squeeze(1)
        return _Block(
            start=start,
            stop=stop,
            weight_cd=weight_cd,
            product_w=product_w,
            inverse_c=inverse_c,
            cosine_rows=cosine_rows,
            cosine_cb=cosine_cb,
            nearest=nearest,
            logit_cb=logit_cb,
            slope_cb=slope_cb,
            targets=(self.labels[rows] - start, rows),
        )

    def _binary(self) -> Tensor:
        """Part 3, binary: one pass; each term is added and differentiated where it arises."""
        assert isinstance(self.reduction, Binary)
        count = len(self.labels)
        positive = self.reduction.positive_weight / count
        negative = self.reduction.negative_weight / count
        here = self.is_here.to(self.target_logit.dtype)
        loss = positive * (F.softplus(-self.target_logit) * here).sum()
        self._differentiate_target(-(positive / self.unit) * here * (-self.target_logit).sigmoid())
        for start, stop in self._blocks():
            block = self._block(start, stop)
            # The target is not a negative: softplus(-inf) and its gradient are zero.
            block.logit_cb[block.targets] = -torch.inf
            if self.statistics:
                self.statistics.add(block, active=block.logit_cb > 0)
            class_weight = self.classes.class_weight(start, stop)
            terms = F.softplus(block.logit_cb)
            total = terms.sum() if class_weight is None else terms.sum(dim=1) @ class_weight
            loss = loss + negative * total
            if not self.needs_gradient:
                continue
            grad_cb = block.logit_cb.sigmoid_()
            if class_weight is not None:
                grad_cb.mul_(class_weight[:, None])
            if negative != self.unit:
                grad_cb.mul_(negative / self.unit)
            self._accumulate(block, grad_cb)
        return loss

    def _softmax(self) -> Tensor:
        """Part 3, softmax: first the log-sum-exp over all classes, then the gradients."""
        highest = torch.full_like(self.target_logit, -torch.inf)
        total = torch.zeros_like(self.target_logit)
        for start, stop in self._blocks():
            block = self._block(start, stop)
            if self.statistics:
                above = block.logit_cb > self.target_logit
                above[block.targets] = False
                self.statistics.add(block, active=above)
            block.logit_cb[block.targets] = self.target_logit[block.targets[1]]
            now = torch.maximum(highest, block.logit_cb.amax(dim=0))
            total = total * (highest - now).exp() + block.logit_cb.sub_(now).exp_().sum(dim=0)
            highest = now
        # Kept apart, not as highest + log(total): logits of 60 would round away seven bits.
        highest, total = self.exchange.softmax_sum(highest, total)
        here = self.is_here.to(total.dtype)
        loss = self.unit * ((highest - self.target_logit + total.log()) * here).sum()
        if self.needs_gradient:
            probability = (self.target_logit - highest).exp() / total
            self._differentiate_target(here * (probability - 1.0))
            share = total.reciprocal()
            for start, stop in self._blocks():
                block = self._block(start, stop)
                self._accumulate(block, block.logit_cb.sub_(highest).exp_().mul_(share))
        return loss

    # -- gradients -------------------------------------------------------------------------------

    def _differentiate_target(self, grad_logit_b: Tensor) -> None:
        """dL/dlogit of the targets -> dL/dcosine, dL/dnorm (in units of `unit`)."""
        self.target_grad_logit = grad_logit_b
        self.target_grad_cosine, self.target_grad_norm = torch.autograd.grad(
            self.target_graph, [self.leaf_cosine, self.leaf_norm], grad_logit_b, allow_unused=True
        )

    def _accumulate(self, block: "_Block", grad_cb: Tensor) -> None:
        """dL/dlogit of a block -> its share of dL/dX, dL/dW and dL/db; `grad_cb` is used up."""
        targets, rows = block.targets, block.targets[1]
        if self.grad_bias is not None:
            grad_cb[targets] = self.target_grad_logit[rows]
            if self.grad_bias.ndim:
                self.classes.put(self.grad_bias, block.start, block.stop, grad_cb.sum(dim=1))
            else:
                self.grad_bias += grad_cb.sum()
        grad_cb.mul_(block.slope_cb)  # dL/dlogit -> dL/dcosine
        grad_cb[targets] = self.target_grad_cosine[rows]
        if block.nearest is not None:
            of_centres = grad_cb.new_zeros(len(grad_cb), self.classes.centres, grad_cb.shape[1])
            grad_cb = of_centres.scatter_(1, block.nearest[:, None], grad_cb[:, None])
            grad_cb = grad_cb.view(-1, grad_cb.shape[2])
        along_c = None
        if block.inverse_c is not None:
            # d cosine / d w has no part along w: `along_c` is what the product has too much.
            if self.needs_weight:
                along_c = torch.linalg.vecdot(grad_cb, block.cosine_rows) * block.inverse_c.square()
            grad_cb.mul_(block.inverse_c[:, None])
        product_g = grad_cb.to(self.product_dtype)
        if self.grad_x is not None:
            if self.product_dtype == self.grad_x.dtype:
                self.grad_x.addmm_(product_g.T, block.product_w)
            else:
                self.grad_x += product_g.T @ block.product_w
        if self.needs_weight:
            # Last, because it may move the weights.
            gradient = BlockGradient(product_g, self.product_x, along_c, self.unit)
            self.classes.write(block.start, block.stop, gradient)

    def _sum_over_ranks(self, loss: Tensor) -> Tensor:
        """The whole loss and the whole gradient of a shared bias, in one exchange."""
        shared = self.grad_bias is not None and not self.grad_bias.ndim
        if self.grad_bias is not None:
            self.grad_bias *= self.unit
        if self.grad_bias is None or not shared:
            return self.exchange.sum(loss)
        both = self.exchange.sum(torch.stack([loss, self.grad_bias]))
        self.grad_bias = both[1].clone()  # no view: a gradient is scaled in place later
        return both[0].clone()

    def _embedding_gradient(self) -> Tensor | None:
        """dL/dX in the shape and precision of the embeddings."""
        if self.grad_x is None:
            return None
        grad = self.grad_x
        if self.inverse_norm is not None:
            along = (grad * self.rows_x).sum(dim=1, keepdim=True)
            grad = (grad - along * self.rows_x) * self.inverse_norm[:, None]
        if self.target_grad_norm is not None:
            unit_x = self.original if self.kept is None else self.original[self.kept]
            unit_x = unit_x.to(grad.dtype) * inverse(self.norm)[:, None]
            grad = grad + self.target_grad_norm[:, None] * unit_x
        grad = (grad * self.unit).to(self.original.dtype)
        if self.kept is not None:
            grad = torch.zeros_like(self.original).index_copy_(0, self.kept, grad)
        return grad

    def _nothing(self) -> Outcome:
        """A batch without any usable row: zero loss, zero gradients."""
        return Outcome(
            self.norm.new_zeros(()),
            torch.zeros_like(self.original) if self.needs_embeddings else None,
            self.classes.zero_gradient(),
            self.grad_bias,
        )

    def _clamp(self, cosine: Tensor) -> Tensor:
        """Rounding can push a cosine out of [-1, 1]; plain products have no such bound."""
        if self.maps.unit_weights and self.maps.unit_embeddings:
            return cosine.clamp_(-1.0, 1.0)
        return cosine

    def _blocks(self) -> list[tuple[int, int]]:
        classes = len(self.classes)
        size = block_classes(len(self.labels), self.original.device)
        return [(start, min(start + size, classes)) for start in range(0, classes, size)]


@dataclass
class _Block:
    """One block of classes with everything that the reduction needs of it.

    `targets` are the (class, row) places of the block where a row meets its own class. Of a class
    with several centres `cosine_rows` has a row each, and `nearest` says which one counts.
    """

    start: int
    stop: int
    weight_cd: Tensor
    product_w: Tensor
    inverse_c: Tensor | None
    cosine_rows: Tensor
    cosine_cb: Tensor
    nearest: Tensor | None
    logit_cb: Tensor
    slope_cb: Tensor | float
    targets: tuple[Tensor, Tensor]


class _Statistics:
    """Sums over all blocks from which the numbers for the log are made."""

    def __init__(self) -> None:
        self.cosine_sum: Any = 0.0
        self.active: Any = 0.0
        self.count = 0

    def add(self, block: _Block, *, active: Tensor) -> None:
        self.cosine_sum += block.cosine_cb.sum() - block.cosine_cb[block.targets].sum()
        self.active += active.sum()
        self.count += block.cosine_cb.numel() - len(block.targets[0])

    def result(self, evaluation: _Evaluation) -> dict[str, Tensor]:
        sums = evaluation.norm.new_tensor([self.cosine_sum, self.active, self.count])
        cosine_sum, active, count = evaluation.exchange.sum(sums).unbind()
        positives = evaluation.target_cosine[evaluation.known]
        result = {
            "negative_score": cosine_sum / count.clamp_min(1),
            "active_negatives": active / count.clamp_min(1),
        }
        if len(positives):
            result["positive_score"] = positives.mean()
        return result


def inverse(norm: Tensor) -> Tensor:
    """1/norm, and 0 for a zero vector: it then has cosine 0 with everything and no gradient."""
    return torch.where(norm > 1e-12, norm.clamp_min(1e-12).reciprocal(), torch.zeros_like(norm))
