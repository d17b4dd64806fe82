"""The base of every head with one weight vector (proxy) per class, and how strongly it pulls."""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sphereface2.heads.class_rows import ClassRows, FusedSGD, Sample, sample_classes
from sphereface2.heads.compiled import Kernels
from sphereface2.heads.contract import Binary, Rows, Softmax, require
from sphereface2.heads.engine import evaluate, joined
from sphereface2.heads.head import Head
from sphereface2.heads.sharding import class_range

BiasKind = Literal["shared", "per-class", "none"]
_SEED_CLASSES = 4096  # rows of class weights that are drawn from one seed


class ProxyHead(Head):
    """K class weights and the maps that the engine needs (see `contract.ProxyMaps`).

    A new head defines `target_logit` and `other_logit`, and `prepare` or `reduction` where it
    differs from the defaults: no state of a row, softmax over the classes.

    `weight` holds all classes, or those of this rank if the head was built inside `class_shards`;
    `exchange` then says which. With several `sub_centres` per class it is K × centres × D, and the
    cosine with a class is that with the nearest of its centres.
    """

    unit_weights = True
    unit_embeddings = True
    needs_all_targets = False
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        bias: BiasKind = "none",
        bias_start: float = 0.0,
        normalize: bool = True,
        sub_centres: int = 1,
    ) -> None:
        super().__init__(dim, num_classes)
        require(sub_centres >= 1, f"sub_centres must be at least 1, got {sub_centres}")
        start, stop = class_range(num_classes)
        self.unit_weights = self.unit_embeddings = normalize
        shape = (dim,) if sub_centres == 1 else (sub_centres, dim)
        self.weight = nn.Parameter(_start_weights(start, stop, shape, num_classes, unit=normalize))
        if bias == "none":
            self.register_parameter("bias", None)
        else:
            biases = (stop - start,) if bias == "per-class" else ()
            self.bias = nn.Parameter(torch.full(biases, float(bias_start)))
        self.sample_rate = 1.0
        self.parts = 1
        self.fused: FusedSGD | None = None
        self.kernels: Kernels | None = None

    @property
    def per_class(self) -> set[str]:
        """The parameters and buffers with a row for each class, which are cut over ranks."""
        is_per_class = self.bias is not None and self.bias.ndim == 1
        return {"weight", "bias"} if is_per_class else {"weight"}

    @property
    def note_on_unknown(self) -> str | None:
        if isinstance(self.reduction(), Binary):
            return None
        return (
            "a softmax head leaves out samples of no known class (label -1); the sphereface2 heads "
            "learn from them as negatives"
        )

    def reduction(self) -> Binary | Softmax:
        return Softmax()

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        return Rows(norm=norm_b, known=known_b)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        raise NotImplementedError  # every head defines its own

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        raise NotImplementedError  # every head defines its own

    def fused_sgd(self, *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> FusedSGD:
        """An optimiser of the class weights that moves them inside the forward pass of training.

        It saves the K×D gradient and a second walk through the weights. All other parameters of
        the head, such as the bias, stay with the optimiser of the network.
        """
        self.fused = FusedSGD(self.weight, lr=lr, momentum=momentum, weight_decay=weight_decay)
        return self.fused

    def compile_maps(self) -> None:
        """Let the maps of a block run as compiled kernels (see `heads.compiled`)."""
        self.kernels = Kernels(self)

    def sample_negatives(self, rate: float) -> None:
        """Let each training step see the batch's classes and a random share of the others.

        A binary head weighs what it sees by 1/rate, so its gradient is right on average. A softmax
        cannot be sampled without bias: such a head takes its softmax over the sampled classes, as
        InsightFace does. With `fused_sgd` only the sampled rows are read, moved and decayed.
        """
        require(0.0 < rate <= 1.0, f"sample_rate must lie in (0, 1], got {rate}")
        self.sample_rate = float(rate)

    def split(self, parts: int) -> None:
        """Classify each of so many equal parts of the embedding by itself; the losses are summed.

        So every part learns as it would with a head of its own, but for what a head remembers of
        the samples' norms or cosines, which is of all parts together. The classes' rows are split
        alike, each part a unit row at the start where the whole was one; the bias is that of all.
        """
        require(
            parts >= 1 and self.dim % parts == 0,
            f"an embedding of {self.dim} numbers has no {parts} equal parts",
        )
        self.parts = parts
        if self.unit_weights:
            with torch.no_grad():
                rows = self.weight.view(*self.weight.shape[:-1], parts, self.dim // parts)
                # Rows that remember nobody yet are zero, and stay so.
                rows /= torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(1e-12)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the batch; a label of -1 marks a sample of no known class."""
        self.check_batch(embeddings, labels)
        return self.engine_loss(embeddings, labels, self.bias)

    def engine_loss(self, embeddings: Tensor, labels: Tensor, bias: Tensor | None) -> Tensor:
        """The loss of a checked batch; `bias` may be computed, and then gets its gradient."""
        statistics: dict[str, Tensor] = {}
        loss: Tensor = _ProxyLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            embeddings, self.weight, bias, labels, self, torch.is_grad_enabled(), statistics
        )
        if self.collect_statistics:
            if bias is not None and not bias.ndim:
                statistics["bias"] = bias.detach().clone()
            self._statistics = statistics
        return loss

    def statistics(self) -> dict[str, float]:
        if self.fused is not None:
            self.fused.check_weight()
        return super().statistics()

    def taking_part(self, labels: Tensor) -> Sample:
        """The classes that this step compares with."""
        if not self.training or self.sample_rate == 1.0:
            return Sample(None, labels)
        sample = sample_classes(labels, len(self.weight), self.sample_rate, dtype=self.weight.dtype)
        # A softmax over a sample is biased whatever the weights: InsightFace's form has none.
        if sample.class_weight is None or isinstance(self.reduction(), Binary):
            return sample
        return replace(sample, class_weight=sample.class_weight.clamp_max(1.0))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_classes={self.num_classes}"


def require_class_weights(head: nn.Module, what: str) -> ProxyHead:
    """The head, for what works with class weights only; another one is refused."""
    if not isinstance(head, ProxyHead):
        raise ValueError(f"{what} needs a head with class weights; {type(head).__name__} has none")
    return head


class _ProxyLoss(torch.autograd.Function):
    """Gradients come out of the same pass as the loss, so backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        head: ProxyHead,
        grad_enabled: bool,
        statistics: dict[str, Tensor],
    ) -> Tensor:
        needs = tuple(ctx.needs_input_grad[:3]) if grad_enabled else (False, False, False)
        exchange = head.exchange
        embeddings, labels = exchange.gather(embeddings, labels)
        sample = head.taking_part(exchange.local_labels(labels))
        fused = head.fused if head.training and needs[1] else None
        width = head.dim // head.parts
        outcomes = []
        for columns in (slice(at, at + width) for at in range(0, head.dim, width)):
            classes = ClassRows(
                weight, sample, wants_gradient=needs[1], step=fused, columns=columns
            )
            outcomes.append(
                evaluate(
                    head,
                    embeddings[:, columns],
                    classes,
                    bias,
                    sample.labels,
                    needs=needs,
                    exchange=exchange,
                    form=None if head.kernels is None else head.kernels.evaluation,
                )
            )
        outcome = outcomes[0] if head.parts == 1 else joined(outcomes)
        if outcome.embeddings is not None:
            outcome.embeddings = exchange.scatter_sum(outcome.embeddings)
        ctx.gradients = (outcome.embeddings, outcome.weight, outcome.bias)
        ctx.fused = fused
        statistics.update(outcome.statistics)
        return outcome.loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("a head's loss can be differentiated only once per forward pass")
        if ctx.fused is not None:
            ctx.fused.note_weight(grad_output)
        # Scaled in place: a second K×D tensor would cost as much memory as the gradient itself.
        scaled = [g if g is None else g.mul_(grad_output.to(g.dtype)) for g in ctx.gradients]
        ctx.gradients = None
        return (*scaled, None, None, None, None)


def _start_weights(
    start: int, stop: int, shape: tuple[int, ...], num_classes: int, *, unit: bool
) -> Tensor:
    """Random rows for the classes start..stop-1, the same whichever rank holds the others.

    Every group of classes is drawn from a seed of its own, so a class starts alike on any number
    of ranks. Rows of length one (`unit`): their length sets how far one step turns them.
    Otherwise Xavier's deviation.
    """
    base = int(torch.randint(2**62, ()))
    weight = torch.empty(stop - start, *shape)
    generator = torch.Generator()
    for group in range(start // _SEED_CLASSES, -(-stop // _SEED_CLASSES)):
        generator.manual_seed((base + group) % 2**63)
        first = group * _SEED_CLASSES
        rows = torch.randn(min(_SEED_CLASSES, num_classes - first), *shape, generator=generator)
        low, high = max(start, first), min(stop, first + len(rows))
        weight[low - start : high - start] = rows[low - first : high - first]
    if unit:
        return weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True))
    return weight.mul_((2.0 / (shape[-1] + num_classes)) ** 0.5)


SHOWN_CLASSES = 8631  # of VGGFace2, the paper's training set
SHOWN_COSINES = (0.0, 0.5)


def pull(head: ProxyHead, cosine: float) -> float:
    """-dL/d cos θ_y of one sample at this cosine, every other class at a right angle.

    A step moves a class by the learning rate times this. The head's weights are overwritten.
    """
    x = torch.zeros(1, head.dim)
    x[0, 0] = 1.0
    with torch.no_grad():
        head.weight.zero_()
        centres = head.weight if head.weight.ndim == 3 else head.weight[:, None]
        centres[:, :, 2] = 1.0
        own = torch.zeros(head.dim)
        own[0], own[1] = cosine, (1.0 - cosine**2) ** 0.5
        centres[0] = own
    loss = head(_length(head) * x, torch.zeros(1, dtype=torch.int64))
    (gradient,) = torch.autograd.grad(loss, [head.weight])
    # d cos θ / d w of a unit row is x - cos θ·w, and it is as long as sin θ.
    along: Tensor = gradient[0].reshape(-1, head.dim).sum(dim=0) @ (x[0] - cosine * own)
    return -float(along) / (1.0 - cosine**2)


def _length(head: ProxyHead) -> float:
    """An embedding's length that means nothing in particular to heads that look at it."""
    low, high = getattr(head, "norm_low", 1.0), getattr(head, "norm_high", 1.0)
    return float(low + high) / 2
