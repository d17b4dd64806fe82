"""One engine for every proxy head: loss and gradients from passes over blocks of classes.

A proxy head compares each embedding with K class weights. Its loss is always made of three parts:

1. a target pre-pass: the cosine of each row with its own class, B numbers, from which the head
   makes what it needs to know of a row, and the target's logit;
2. a map from the cosine of any other class to a logit, with its slope, elementwise;
3. a reduction over classes: a sum of softplus terms (binary) or a log-sum-exp (softmax).

So no B×K matrix has to exist. A binary head needs one pass over blocks of classes: product, map,
dL/dX += G·W, dL/dW = Gᵀ·X, and even the update of the block's weights. A softmax head needs its
normaliser first, hence a second pass, for which it keeps the cosines of the first where memory
allows. The weights are never copied in normalised form: a row's norm only scales its products.

Blocks are laid out class by row (C×B): what belongs to a class (its norm, its bias, the projection
of its gradient) then runs along contiguous memory. On the CPU each thread works on blocks of its
own, and the threads meet once per pass. No shape and no branch depends on the values of a tensor,
so nothing waits for a device.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from sphereface2.heads.class_rows import BlockGradient, ClassRows
from sphereface2.heads.contract import UNKNOWN, Binary, ProxyMaps, Rows, mean_of
from sphereface2.heads.sharding import Alone
from sphereface2.heads.threads import on_torch_threads

CACHE_ELEMENTS = 1 << 19
"""Numbers that a matrix of a block may hold on the CPU, two megabytes: about the cache of a core.

Smaller blocks stay in the cache as a whole, but then the calls of their operations weigh more.
"""

DEVICE_ELEMENTS = 1 << 26
"""The same on other devices, which want few and large operations."""

KEPT_BYTES = 1 << 25
"""Cosines that a softmax head keeps from its first pass for its second one."""

MOST_PARTS = 32
"""Parts that the blocks are cut into for threads to take; each has a gradient of embeddings."""

_LARGEST_EXPONENT = 60.0  # of which exp is finite in float32, with a bias of up to 28 on top
_LARGEST_WITH_BIAS = 88.0
_BLOCK_TENSORS = 5  # of class by row at once: cosine, logit, its slope and gradient, one more
_LOWEST = -1e30  # below every logit, and finite: no difference of two such is NaN

Result = TypeVar("Result")


def block_classes(rows: int, dim: int, device: torch.device) -> int:
    """How many classes make a block for a batch of `rows` embeddings of `dim` numbers."""
    limit = CACHE_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS
    return max(64, limit // max(rows, dim))


def working_bytes(
    rows: int, dim: int, classes: int, device: torch.device, *, is_softmax: bool
) -> int:
    """What a step holds besides weights and gradients, in float32."""
    size = min(classes, block_classes(rows, dim, device))
    is_cpu = device.type == "cpu"
    parts = min(-(-classes // max(1, size)), MOST_PARTS) if is_cpu else 1
    at_once = min(parts, torch.get_num_threads()) if is_cpu else 1
    kept = min(KEPT_BYTES, 4 * rows * classes) if is_softmax else 0
    return 4 * (at_once * _BLOCK_TENSORS * size * rows + parts * rows * dim) + kept


@dataclass
class Outcome:
    """Loss and gradients of one batch; gradients are None where they were not asked for."""

    loss: Tensor
    embeddings: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    statistics: dict[str, Tensor] = field(default_factory=dict)


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of the parts of an embedding as that of the whole: the loss is their sum."""

    def side_by_side(parts: list[Tensor | None]) -> Tensor | None:
        known = [part for part in parts if part is not None]
        return torch.cat(known, dim=-1) if known else None

    biases = [outcome.bias for outcome in outcomes if outcome.bias is not None]
    return Outcome(
        torch.stack([outcome.loss for outcome in outcomes]).sum(dim=0),
        side_by_side([outcome.embeddings for outcome in outcomes]),
        side_by_side([outcome.weight for outcome in outcomes]),
        torch.stack(biases).sum(dim=0) if biases else None,
        {
            name: torch.stack([outcome.statistics[name] for outcome in outcomes]).mean(dim=0)
            for name in outcomes[0].statistics
        },
    )


def evaluate(
    maps: ProxyMaps,
    embeddings: Tensor,
    classes: ClassRows,
    bias: Tensor | None,
    labels: Tensor,
    *,
    needs: tuple[bool, bool, bool],
    exchange: Alone,
    form: "Callable[..., Evaluation] | None" = None,
) -> Outcome:
    """Loss and the needed gradients of (embeddings, weight, bias) in passes over class blocks.

    `labels` count within `classes`; see UNKNOWN and ELSEWHERE for the others. On several ranks,
    `embeddings` and `labels` are the whole batch, the loss is the whole loss, and the gradient of
    the embeddings is this rank's share of a sum. `form` does the blocks: as here, or otherwise
    (see `heads.compiled`).
    """
    device = embeddings.device.type
    product_dtype = classes.dtype
    as_it_is: AbstractContextManager[None] = nullcontext()
    if torch.amp.is_autocast_available(device):  # not on the meta device, which plans a step
        as_it_is = torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device):
            product_dtype = torch.get_autocast_dtype(device)
    with as_it_is, torch.no_grad():
        return (form or Evaluation)(
            maps, embeddings, classes, bias, labels, product_dtype, needs, exchange
        ).run()


@dataclass(eq=False)
class Evaluation:
    """One batch on its way through the blocks; the state that the passes share.

    The plain form: every operation of a block is one of torch, in place where it can be.
    """

    maps: ProxyMaps
    original: Tensor
    classes: ClassRows
    bias: Tensor | None
    labels: Tensor
    product_dtype: torch.dtype
    needs: tuple[bool, bool, bool]
    exchange: Alone

    def __post_init__(self) -> None:
        self.needs_embeddings, self.needs_weight, self.needs_bias = self.needs
        self.needs_gradient = any(self.needs)
        self.reduction = self.maps.reduction()
        self.labels = self.labels.long()
        self.known = self.labels != UNKNOWN
        self.is_here = self.labels >= 0
        # Margin maths runs in the precision of the weights (float32 or float64), products may not.
        self.rows_x = self.original.to(self.classes.dtype)
        self.norm = torch.linalg.vector_norm(self.rows_x, dim=1)
        self.inverse_norm = inverse(self.norm) if self.maps.unit_embeddings else None
        if self.inverse_norm is not None:
            self.rows_x = self.rows_x * self.inverse_norm[:, None]
        self.product_x = self.rows_x.to(self.product_dtype)
        self.bias_of_classes: Tensor | None = None  # dL/db of one bias per class
        if self.needs_bias and self.bias is not None and self.bias.ndim:
            self.bias_of_classes = torch.zeros_like(self.bias)
        self.spans = self._cut()

    def run(self) -> Outcome:
        self._target_pass()
        # Every dL/dlogit is kept relative to this factor, so that a half-precision product sees
        # numbers of order one; the factor is applied to the results.
        count = len(self.labels)
        if isinstance(self.reduction, Binary):
            positive, negative = self.reduction.positive_weight, self.reduction.negative_weight
            # The negatives' own weight, where a positive counts at most a thousand times as much.
            near = negative > 0.0 and positive <= 1000.0 * negative
            self.unit = (negative if near else max(positive, negative)) / count
            loss, sums = self._binary(self.reduction)
        else:
            self.unit = self.reduction.weight / count
            loss, sums = self._softmax()
        bias = self._bias_gradient(sums)
        if bias is not None and not bias.ndim:
            # The whole loss and the whole gradient of a shared bias, in one exchange.
            both = self.exchange.sum(torch.stack([loss, bias]))
            loss, bias = both[0].clone(), both[1].clone()  # no views: gradients scale in place
        else:
            loss = self.exchange.sum(loss)
        statistics = self._statistics(sums) if self.maps.collect_statistics else {}
        return Outcome(
            loss, self._embedding_gradient(sums), self.classes.gradient(), bias, statistics
        )

    # -- the three parts -------------------------------------------------------------------------

    def _target_pass(self) -> None:
        """Part 1: the target's cosine and logit, as a small autograd graph of B numbers."""
        # Within bounds also where a label is wrong, which is reported later (see `Head`).
        index = self.labels.clamp(0, max(0, len(self.classes) - 1))
        cosine = torch.zeros_like(self.norm)
        if len(self.classes):
            own = self.classes.gather(index)
            of_centres = (self.rows_x[:, None] * own).sum(dim=2)
            if self.maps.unit_weights:
                of_centres = of_centres * inverse(torch.linalg.vector_norm(own, dim=2))
            cosine = of_centres.amax(dim=1) * self.is_here
            if self.maps.unit_weights and self.maps.unit_embeddings:
                cosine = cosine.clamp(-1.0, 1.0)  # rounding can push it out
        if self.maps.needs_all_targets or self.maps.collect_statistics:
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
            if self.maps.collect_statistics:
                # which compare with the target also where its class is elsewhere
                own_bias = self.exchange.sum(own_bias)
            self.target_logit = self.target_logit + own_bias
        elif self.bias is not None:
            self.target_logit = self.target_logit + self.bias

    def _cosines(self, weight_cd: Tensor, product_w: Tensor) -> "Cosines":
        """Part 2, first half: the cosines of a block."""
        cosine_cb = (product_w @ self.product_x.T).to(self.classes.dtype)
        inverse_c = None
        if self.maps.unit_weights:
            inverse_c = inverse(torch.linalg.vector_norm(weight_cd, dim=1))
            cosine_cb.mul_(inverse_c[:, None])
        if self.product_dtype != self.classes.dtype and self.maps.unit_embeddings:
            cosine_cb.clamp_(-1.0, 1.0)  # half precision leaves [-1, 1] by more than rounding
        cosine_rows, nearest = cosine_cb, None
        if self.classes.centres > 1:
            # The cosine with a class is that with its nearest centre, which alone is pulled.
            of_centres = cosine_rows.view(-1, self.classes.centres, cosine_rows.shape[1])
            cosine_cb, nearest = of_centres.max(dim=1)
        return Cosines(inverse_c, cosine_rows, cosine_cb, nearest)

    def _logits(self, block: "Cosines", span: "Span") -> tuple[Tensor, Tensor | float]:
        """Part 2, second half: logits and slopes of a block; the logit of a target is -inf."""
        logit_cb, slope_cb = self.maps.other_logit(block.cosine_cb, self.rows)
        bias = self.bias
        if bias is not None:
            bias = self.classes.pick(bias)[span.start : span.stop, None] if bias.ndim else bias
            logit_cb = logit_cb.add_(bias)
        span.put(logit_cb, -torch.inf)
        return logit_cb, slope_cb

    def _leave_out(self, logit_cb: Tensor, class_weight: Tensor | None) -> Tensor:
        """Logits of classes that weigh nothing as -inf: the largest one must be one that counts.

        A target's own class may be there a second time, with its logit before the margin.
        """
        if class_weight is None:
            return logit_cb
        return logit_cb.masked_fill_((class_weight == 0.0)[:, None], -torch.inf)

    def _binary(self, reduction: Binary) -> tuple[Tensor, "Sums"]:
        """Part 3, binary: one pass; each term is added and differentiated where it arises."""
        count = len(self.labels)
        positive, negative = reduction.positive_weight / count, reduction.negative_weight / count
        here = self.is_here.to(self.target_logit.dtype)
        terms_b = torch.logaddexp(-self.target_logit, torch.zeros_like(here))
        loss = positive * (terms_b * here).sum()
        self._differentiate_target(-(positive / self.unit) * here * (-self.target_logit).sigmoid())
        self.is_bounded = self._is_bounded(reduction.largest_logit)
        self.negative_factor = negative / self.unit
        sums = Sums.total(self._share_out(self.binary_blocks))
        return loss + negative * sums.loss, sums

    def _is_bounded(self, largest_logit: float) -> bool:
        """Whether exp of every logit is finite; nothing waits for the bias of a device."""
        if self.bias is None or largest_logit > _LARGEST_EXPONENT:
            return largest_logit <= _LARGEST_EXPONENT
        if self.bias.device.type != "cpu" or not self.bias.numel():
            return False
        return largest_logit + float(self.bias.detach().numpy().max()) <= _LARGEST_WITH_BIAS

    def _softmax(self) -> tuple[Tensor, "Sums"]:
        """Part 3, softmax: first the log-sum-exp over all classes, then the gradients.

        There is no place for a sample of no class: such a row has the weight 0, and the others
        make up for it.
        """
        # Rows by their weight in the mean, times the number of rows.
        known = self.known.to(self.target_logit.dtype)
        row_weight = known * (len(self.labels) / known.sum().clamp_min(1.0))
        bytes_of_cosine = self.rows_x.element_size() * len(self.labels) * self.classes.centres
        self.kept_classes = KEPT_BYTES // bytes_of_cosine if self.needs_gradient else 0
        found = self._share_out(self.softmax_sums)
        mine = torch.where(self.is_here, self.target_logit, _LOWEST)
        highest = torch.stack([mine, *(part[0] for part in found)])
        total = torch.stack([self.is_here.to(mine.dtype), *(part[1] for part in found)])
        top = highest.amax(dim=0)
        total = (total * (highest - top).exp()).sum(dim=0)
        # Kept apart, not as highest + log(total): logits of 60 would round away seven bits.
        top, total = self.exchange.softmax_sum(top, total)
        each = torch.where(self.is_here, top - self.target_logit + total.log(), 0.0)
        loss = self.unit * (each * row_weight).sum()
        first_pass = Sums.total([part[2] for part in found])
        if not self.needs_gradient:
            return loss, first_pass
        # A row without a class here has a logit of 0, which may be far above its largest one.
        probability = torch.where(self.is_here, (self.target_logit - top).exp() / total, 0.0)
        self._differentiate_target(self.is_here * row_weight * (probability - 1.0))
        self.top, self.share = top, row_weight / total
        self.kept = [block for part in found for block in part[3]]
        sums = Sums.total(self._share_out(self.softmax_blocks))
        sums.cosine, sums.active, sums.pairs = (
            first_pass.cosine, first_pass.active, first_pass.pairs,
        )  # fmt: skip
        return loss, sums

    # -- the blocks of a part, in plain operations ------------------------------------------------

    def binary_blocks(self, spans: "list[Span]") -> "Sums":
        """The blocks of a binary loss: every term is added and differentiated where it arises."""
        sums = Sums()
        for span in spans:
            weight_cd, product_w = self._read(span)
            block = self._cosines(weight_cd, product_w)
            logit_cb, slope_cb = self._logits(block, span)
            class_weight = self.classes.class_weight(span.start, span.stop)
            if self.maps.collect_statistics:
                sums.count(block.cosine_cb, logit_cb > 0, class_weight)
            grad_cb = logit_cb.sigmoid() if self.needs_gradient else None
            terms_c = _softplus_sum(logit_cb, is_bounded=self.is_bounded)
            sums.loss += terms_c.sum() if class_weight is None else terms_c @ class_weight
            if grad_cb is None:
                continue
            if class_weight is not None:
                grad_cb.mul_(class_weight[:, None])
            if self.negative_factor != 1.0:
                grad_cb.mul_(self.negative_factor)
            self._accumulate(block, span, product_w, grad_cb, slope_cb, sums)
        return sums

    def softmax_sums(self, spans: "list[Span]") -> "tuple[Tensor, Tensor, Sums, list[Cosines]]":
        """The highest logit of each row over the blocks, and the sum of exp above it.

        Also the numbers for the log, and what is kept of the first blocks for the second pass.
        """
        highest = torch.full_like(self.target_logit, _LOWEST)
        total, sums, kept = torch.zeros_like(highest), Sums(), []
        for span in spans:
            block = self._cosines(*self._read(span))
            logit_cb, _ = self._logits(block, span)
            class_weight = self.classes.class_weight(span.start, span.stop)
            if self.maps.collect_statistics:
                sums.count(block.cosine_cb, logit_cb > self.target_logit, class_weight)
            logit_cb = self._leave_out(logit_cb, class_weight)
            now = torch.maximum(highest, logit_cb.amax(dim=0))
            terms_cb = logit_cb.sub_(now).exp_()
            terms_b = terms_cb.sum(dim=0) if class_weight is None else class_weight @ terms_cb
            total = total * (highest - now).exp() + terms_b
            highest = now
            if span.stop <= self.kept_classes:
                kept.append(block)
        return highest, total, sums, kept

    def softmax_blocks(self, spans: "list[Span]") -> "Sums":
        """The gradients of a softmax loss over the blocks, once its normaliser is known."""
        sums = Sums()
        for span in spans:
            weight_cd, product_w = self._read(span)
            is_kept = span.number < len(self.kept)
            block = self.kept[span.number] if is_kept else self._cosines(weight_cd, product_w)
            logit_cb, slope_cb = self._logits(block, span)
            class_weight = self.classes.class_weight(span.start, span.stop)
            logit_cb = self._leave_out(logit_cb, class_weight)
            grad_cb = logit_cb.sub_(self.top).exp_().mul_(self.share)
            if class_weight is not None:
                grad_cb.mul_(class_weight[:, None])
            self._accumulate(block, span, product_w, grad_cb, slope_cb, sums)
        return sums

    # -- gradients -------------------------------------------------------------------------------

    def _differentiate_target(self, grad_logit_b: Tensor) -> None:
        """dL/dlogit of the targets -> dL/dcosine, dL/dnorm (in units of `unit`)."""
        self.target_grad_logit = grad_logit_b
        self.target_grad_cosine, self.target_grad_norm = torch.autograd.grad(
            self.target_graph, [self.leaf_cosine, self.leaf_norm], grad_logit_b, allow_unused=True
        )

    def _accumulate(
        self,
        block: "Cosines",
        span: "Span",
        product_w: Tensor,
        grad_cb: Tensor,
        slope_cb: Tensor | float,
        sums: "Sums",
    ) -> None:
        """dL/dlogit of a block -> its share of dL/dX, dL/dW and dL/db; `grad_cb` is used up."""
        if self.bias_of_classes is not None:
            self.add_bias(grad_cb.sum(dim=1), span, sums)
        elif self.needs_bias:
            self.add_bias(grad_cb.sum(), span, sums)
        grad_cb.mul_(slope_cb)  # dL/dlogit -> dL/dcosine
        span.put(grad_cb, self.target_grad_cosine)
        if block.nearest is not None:
            of_centres = grad_cb.new_zeros(len(grad_cb), self.classes.centres, grad_cb.shape[1])
            grad_cb = of_centres.scatter_(1, block.nearest[:, None], grad_cb[:, None])
            grad_cb = grad_cb.view(-1, grad_cb.shape[2])
        along_c = None
        if block.inverse_c is not None:
            # d cosine / d w has no part along w: `along_c` is what the product has too much.
            if self.needs_weight:
                along_c = block.cosine_rows.mul_(grad_cb).sum(dim=1) * block.inverse_c.square()
            grad_cb.mul_(block.inverse_c[:, None])
        self.add_gradients(grad_cb.to(self.product_dtype), along_c, product_w, span, sums)

    def add_bias(self, grad: Tensor, span: "Span", sums: "Sums") -> None:
        """dL/db of a block, of each class or of all; of all where they share a bias."""
        if self.bias_of_classes is not None:
            self.classes.add(self.bias_of_classes, span.start, span.stop, grad)
        elif self.needs_bias:
            sums.bias += grad.sum()

    def add_gradients(
        self,
        product_g: Tensor,
        along_c: Tensor | None,
        product_w: Tensor,
        span: "Span",
        sums: "Sums",
    ) -> None:
        """dL/dproduct of a block -> its share of dL/dX, and dL/dW or the update by it."""
        if self.needs_embeddings:
            if sums.embeddings is None:
                sums.embeddings = (product_g.T @ product_w).to(self.rows_x.dtype)
            elif self.product_dtype == self.rows_x.dtype:
                sums.embeddings.addmm_(product_g.T, product_w)
            else:
                sums.embeddings += product_g.T @ product_w
        if self.needs_weight:
            # Last, because it may move the weights.
            gradient = BlockGradient(product_g, self.product_x, along_c, self.unit)
            self.classes.write(span.start, span.stop, gradient)

    def _bias_gradient(self, sums: "Sums") -> Tensor | None:
        """dL/db; where all classes share one, this rank's part of it."""
        if self.bias is None or not self.needs_bias:
            return None
        if self.bias_of_classes is None:
            return (sums.bias + self.target_grad_logit.sum()) * self.unit
        if len(self.classes):
            targets = self.target_grad_logit * self.is_here
            rows = self.labels.clamp(0, len(self.classes) - 1)
            self.classes.add_rows(self.bias_of_classes, rows, targets)
        return self.bias_of_classes * self.unit

    def _embedding_gradient(self, sums: "Sums") -> Tensor | None:
        """dL/dX in the shape and precision of the embeddings."""
        if not self.needs_embeddings:
            return None
        grad = torch.zeros_like(self.rows_x) if sums.embeddings is None else sums.embeddings
        if self.inverse_norm is not None:
            along = (grad * self.rows_x).sum(dim=1, keepdim=True)
            grad = (grad - along * self.rows_x) * self.inverse_norm[:, None]
        if self.target_grad_norm is not None:
            unit_x = self.original.to(grad.dtype) * inverse(self.norm)[:, None]
            grad = grad + self.target_grad_norm[:, None] * unit_x
        return (grad * self.unit).to(self.original.dtype)

    # -- blocks ----------------------------------------------------------------------------------

    def _read(self, span: "Span") -> tuple[Tensor, Tensor]:
        """The weights of a block, as they are and in the precision of products."""
        weight_cd = self.classes.read(span.start, span.stop)
        return weight_cd, weight_cd.to(self.product_dtype)

    def block_classes(self, rows: int, dim: int) -> int:
        return block_classes(rows, dim, self.rows_x.device)

    def _cut(self) -> "list[Span]":
        """The classes in blocks of one size, with the place of each row's target in each."""
        classes = len(self.classes)
        rows, dim = self.rows_x.shape
        limit = self.block_classes(rows, dim)
        size = -(-classes // max(1, -(-classes // limit)))
        starts = torch.arange(0, classes, max(1, size), device=self.labels.device)[:, None]
        stops = (starts + size).clamp_max(classes)
        is_here = (self.labels >= starts) & (self.labels < stops)
        places = torch.minimum((self.labels - starts).clamp_min(0), stops - starts - 1)
        return [
            Span(number, number * size, min((number + 1) * size, classes), here, place)
            for number, (here, place) in enumerate(zip(is_here, places, strict=True))
        ]

    def _share_out(self, work: "Callable[[list[Span]], Result]") -> list[Result]:
        """What `work` makes of all blocks, in parts that depend on their number alone.

        So the sums over parts are the same whichever thread takes which, and in whatever order.
        """
        count = min(len(self.spans), MOST_PARTS if self.labels.device.type == "cpu" else 1)
        cuts = [len(self.spans) * number // count for number in range(count + 1)] if count else [0]
        parts = [self.spans[a:b] for a, b in pairwise(cuts)]
        return on_torch_threads(work, parts)

    def _statistics(self, sums: "Sums") -> dict[str, Tensor]:
        """Means over all pairs, for the log; without a known row, `positive_score` is NaN."""
        own = (self.target_cosine * self.is_here).sum()
        counted = sums.pairs - self.is_here.sum()
        numbers = torch.stack([sums.cosine - own, own * 0 + sums.active, own * 0 + counted])
        cosine, active, count = self.exchange.sum(numbers).unbind()
        return {
            "negative_score": cosine / count.clamp_min(1),
            "active_negatives": active / count.clamp_min(1),
            "positive_score": mean_of(self.target_cosine, self.known, empty=torch.nan),
        }


@dataclass(frozen=True)
class Span:
    """The classes start..stop-1, which rows have their target among them, and where."""

    number: int
    start: int
    stop: int
    is_here: Tensor
    place: Tensor

    def put(self, block_cb: Tensor, values: Tensor | float) -> None:
        """Write each row's value at its target, for rows whose target is in this block."""
        place = self.place[None]
        block_cb.scatter_(0, place, torch.where(self.is_here, values, block_cb.gather(0, place)))


@dataclass(frozen=True)
class Cosines:
    """The cosines of a block, and 1/norm of its weights where these are unit vectors.

    Of a class with several centres `cosine_rows` has a row each, and `nearest` says which counts.
    """

    inverse_c: Tensor | None
    cosine_rows: Tensor
    cosine_cb: Tensor
    nearest: Tensor | None


@dataclass
class Sums:
    """What a part of the blocks adds up: loss, gradients, and the numbers for the log."""

    loss: Tensor | float = 0.0
    bias: Tensor | float = 0.0
    embeddings: Tensor | None = None
    cosine: Tensor | float = 0.0
    active: Tensor | float = 0.0
    pairs: Tensor | float = 0.0

    def count(self, cosine_cb: Tensor, active: Tensor, class_weight: Tensor | None) -> None:
        """Add a block to the numbers for the log; classes of weight 0 do not count."""
        if class_weight is None:
            self.cosine += cosine_cb.sum()
            self.active += active.sum()
            self.pairs += cosine_cb.numel()
        else:
            of_classes = [cosine_cb.sum(dim=1), active.sum(dim=1)]
            self.count_classes(of_classes, cosine_cb.shape[1], class_weight)

    def count_classes(
        self, cosine_and_active_c: list[Tensor], rows: int, class_weight: Tensor | None
    ) -> None:
        """The same from the sums of each class over `rows` rows."""
        cosine_c, active_c = cosine_and_active_c
        counts = torch.ones_like(cosine_c) if class_weight is None else class_weight != 0
        self.cosine += (cosine_c * counts).sum()
        self.active += (active_c * counts).sum()
        self.pairs += counts.sum() * rows

    @staticmethod
    def total(parts: "list[Sums]") -> "Sums":
        """The sum of all parts, in their order."""
        whole = Sums()
        for part in parts:
            whole.loss, whole.bias = whole.loss + part.loss, whole.bias + part.bias
            whole.cosine, whole.active = whole.cosine + part.cosine, whole.active + part.active
            whole.pairs = whole.pairs + part.pairs
        gradients = [part.embeddings for part in parts if part.embeddings is not None]
        if gradients:
            whole.embeddings = gradients[0]
            for gradient in gradients[1:]:
                whole.embeddings += gradient
        return whole


def _softplus_sum(logit_cb: Tensor, *, is_bounded: bool) -> Tensor:
    """Σ log(1 + exp(z)) over the rows of each class; `logit_cb` is used up.

    exp and log1p are several times as fast as softplus on the CPU, but exp overflows: logits that
    are not known to be bounded are cut, and what is cut off is added as it is. Elsewhere softplus
    is one kernel.
    """
    if is_bounded:
        return logit_cb.exp_().log1p_().sum(dim=1)
    if logit_cb.device.type != "cpu":
        return torch.nn.functional.softplus(logit_cb).sum(dim=1)
    beyond = (logit_cb - _LARGEST_EXPONENT).clamp_min_(0.0).sum(dim=1)
    return logit_cb.clamp_max_(_LARGEST_EXPONENT).exp_().log1p_().sum(dim=1) + beyond


def inverse(norm: Tensor) -> Tensor:
    """1/norm, and 0 for a zero vector: it then has cosine 0 with everything and no gradient."""
    return torch.where(norm > 1e-12, norm.clamp_min(1e-12).reciprocal(), torch.zeros_like(norm))
