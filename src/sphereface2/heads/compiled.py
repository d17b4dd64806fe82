"""The maps of a block of classes as compiled kernels: one walk through memory instead of twenty.

The engine's plain form is the reference; here the same formulas are written without a change in
place, traced once for every shape, and compiled by torch's inductor: to C++ on a CPU, to a Triton
kernel on a GPU. What a head's `other_logit` says goes into the kernel as it stands.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from sphereface2.heads.contract import ProxyMaps, Rows
from sphereface2.heads.engine import Cosines, Evaluation, Span, Sums, inverse
from sphereface2.heads.native import NativeEvaluation, NativeMaps, Unsupported, covers, with_state

_NO_LOGIT = -1e4  # of a target among the other classes: exp gives 0
_LOWEST = -1e30  # the same in a softmax, whose logits have no bound; see the engine

_OPTIONS: dict[str, Any] = {
    "cpp.threads": 1,  # the engine shares blocks out over threads
    # One loop: by default inductor writes down what is read more than a few times.
    "realize_opcount_threshold": 10_000,
    "realize_reads_threshold": 10_000,
    "realize_acc_reads_threshold": 10_000,
}

Block = Mapping[str, Tensor]
"""The tensors of a block by name: `product_cb`, `place_b`, and where there are such `norm_c`,
`bias`, `class_weight`, and those that a single map asks for."""

BlockMap = Callable[..., tuple[Tensor, ...]]


class Kernels:
    """The compiled maps of one head, made when a shape comes for the first time."""

    def __init__(self, head: Any) -> None:
        self._head = head
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._compiling = Lock()  # of the threads that share the blocks, one compiles

    def __getstate__(self) -> dict[str, Any]:
        """A head that is copied or pickled makes its kernels again: libraries cannot be."""
        return {"head": self._head}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        Kernels.__init__(self, state["head"])

    def __len__(self) -> int:
        return len(self._made)

    def state(self) -> dict[str, Tensor]:
        """What moves between steps and would be a constant of the kernel otherwise, as tensors."""
        found = {name: value for name, value in self._head._buffers.items() if value is not None}
        margin = getattr(self._head, "margin", None)
        if margin is not None:
            found["margin"] = self._head.weight.new_full((), margin)
        return found

    def evaluation(self, *arguments: Any) -> Evaluation:
        """A batch on its way through the blocks, with compiled maps where they can be."""
        classes, needs = arguments[2], arguments[6]
        # The nearest of several centres is found by plain operations; so is a loss by itself.
        if classes.centres > 1 or not any(needs):
            return Evaluation(*arguments)
        native = self.native if covers(arguments[1], classes, arguments[5]) else None
        if native is not None:
            return NativeEvaluation(native, self.state, *arguments)
        return CompiledEvaluation(self, *arguments)

    @cached_property
    def native(self) -> NativeMaps | None:
        """The passes in C++, made when they are needed; None: the map has no such form."""
        try:
            return NativeMaps(self._head, self.state())
        except Unsupported:
            return None

    def __call__(
        self, block_map: BlockMap, state: Block, block: Block, **constants: Any
    ) -> tuple[Tensor, ...]:
        """What `block_map(maps, block, **constants)` gives; `state` is that of this step."""
        inputs = (*block.values(), *state.values())
        shapes = ((tensor.shape, tensor.dtype) for tensor in inputs)
        key = (block_map, *block, *constants.values(), *shapes)
        kernel = self._made.get(key)
        if kernel is None:
            with self._compiling:
                kernel = self._made.get(key) or self._compile(block_map, state, block, constants)
                self._made[key] = kernel
        outputs: tuple[Tensor, ...] = kernel(*inputs)
        return outputs

    def _compile(
        self, block_map: BlockMap, state: Block, block: Block, constants: Mapping[str, Any]
    ) -> Callable[..., Any]:
        def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip((*block, *state), inputs, strict=True))
            maps = with_state(self._head, {name: given[name] for name in state})
            return block_map(maps, {name: given[name] for name in block}, **constants)

        inputs: list[Any] = [*block.values(), *state.values()]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # inductor's own, of parts of torch
            graph = make_fx(flat)(*inputs)
            baked = [str(n.target) for n in graph.graph.nodes if n.op == "get_attr"]
            assert not baked, f"{type(self._head).__name__}.other_logit reads a tensor of its own"
            compiled: Callable[..., Any] = torch._inductor.compile(graph, inputs, options=_OPTIONS)
        return compiled


class CompiledEvaluation(Evaluation):
    """The engine's passes with a kernel for the maps of a block; products remain torch's own."""

    def __init__(self, kernels: Kernels, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kernels = kernels
        self._state = kernels.state()
        # The place of each row's target in each block, -1 for a row without.
        self._marks = [torch.where(s.is_here, s.place, -1).float() for s in self.spans]

    def block_classes(self, rows: int, dim: int) -> int:
        """More than in the plain form: a block has few matrices, and each kernel takes a call."""
        most = super().block_classes(rows, dim)
        if self.rows_x.device.type != "cpu":
            return most
        count = -(-len(self.classes) // (4 * most))
        # Several come in fours, so that two or four threads get equal shares.
        return 4 * most if count <= 1 else -(-len(self.classes) // (-(-count // 4) * 4))

    def binary_blocks(self, spans: list[Span]) -> Sums:
        sums = Sums()
        of_rows = self._of_rows(target_grad=self.target_grad_cosine)
        for span in spans:
            product_w, block = self._block(span)
            product_g, along_c, bias_c, terms, *counted = self._kernels(
                binary_block,
                self._state,
                block | of_rows,
                factor=self.negative_factor,
                product_dtype=self.product_dtype,
                statistics=self.maps.collect_statistics,
            )
            sums.loss += terms
            if counted:
                sums.count_classes(counted, len(self.labels), block.get("class_weight"))
            self.add_bias(bias_c, span, sums)
            self.add_gradients(product_g, along_c, product_w, span, sums)
        return sums

    def softmax_sums(self, spans: list[Span]) -> tuple[Tensor, Tensor, Sums, list[Cosines]]:
        sums, kept = Sums(), []
        tops, totals = [], []
        of_rows = self._of_rows()
        if self.maps.collect_statistics:
            of_rows["target_logit"] = self.target_logit
        for span in spans:
            _, block = self._block(span)
            top_b, total_b, *counted = self._kernels(
                softmax_sums,
                self._state,
                block | of_rows,
                statistics=self.maps.collect_statistics,
            )
            tops.append(top_b)
            totals.append(total_b)
            if counted:
                sums.count_classes(counted, len(self.labels), block.get("class_weight"))
            if span.stop <= self.kept_classes:
                product_cb = block["product_cb"]
                kept.append(Cosines(None, product_cb, product_cb, None))
        highest = torch.stack(tops)
        top = highest.amax(dim=0)
        total = (torch.stack(totals) * (highest - top).exp()).sum(dim=0)
        return top, total, sums, kept

    def softmax_blocks(self, spans: list[Span]) -> Sums:
        sums = Sums()
        of_rows = self._of_rows(target_grad=self.target_grad_cosine, top=self.top, share=self.share)
        for span in spans:
            kept = self.kept[span.number].cosine_cb if span.number < len(self.kept) else None
            product_w, block = self._block(span, kept)
            product_g, along_c, bias_c = self._kernels(
                softmax_block, self._state, block | of_rows, product_dtype=self.product_dtype
            )
            self.add_bias(bias_c, span, sums)
            self.add_gradients(product_g, along_c, product_w, span, sums)
        return sums

    def _block(
        self, span: Span, product_cb: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weights of a block for products, and what its kernels take."""
        weight_cd, product_w = self._read(span)
        if product_cb is None:
            product_cb = product_w @ self.product_x.T
        block = {"product_cb": product_cb, "place_b": self._marks[span.number]}
        if self.maps.unit_weights:
            block["norm_c"] = torch.linalg.vector_norm(weight_cd, dim=1)
        if self.bias is not None:
            bias = self.bias.detach()
            block["bias"] = self.classes.pick(bias)[span.start : span.stop] if bias.ndim else bias
        class_weight = self.classes.class_weight(span.start, span.stop)
        if class_weight is not None:
            block["class_weight"] = class_weight
        return product_w, block

    def _of_rows(self, **more: Tensor) -> dict[str, Tensor]:
        """What the kernels of all blocks take of the rows, and what those of one pass do."""
        rows = {"norm_b": self.rows.norm, "known_b": self.rows.known}
        context = {} if self.rows.context is None else {"context": self.rows.context}
        return rows | context | more


# The maps of a block, as functions that change nothing in place.


def binary_block(
    maps: ProxyMaps, block: Block, *, factor: float, product_dtype: torch.dtype, statistics: bool
) -> tuple[Tensor, ...]:
    """dL/dproduct, what it has too much along the weights, the loss, dL/db, and for the log
    the sum of cosines and the number of logits above 0; each class's own for the log and the bias.
    """
    cosine_cb, inverse_c, logit_cb, slope_cb, is_target = _logits(maps, block)
    logit_cb = torch.where(is_target, _NO_LOGIT, logit_cb)
    # softplus and sigmoid from one exp that cannot overflow
    small = torch.exp(-logit_cb.abs())
    terms_c = (torch.log1p(small) + logit_cb.clamp_min(0.0)).sum(dim=1)
    grad_cb = torch.where(logit_cb >= 0, 1.0, small) / (1.0 + small)
    if factor != 1.0:
        grad_cb = grad_cb * factor
    if "class_weight" in block:
        terms_c = terms_c * block["class_weight"]
        grad_cb = grad_cb * block["class_weight"][:, None]
    bias_c = grad_cb.sum(dim=1)
    gradient = _gradient(block, cosine_cb, inverse_c, grad_cb * slope_cb, is_target, product_dtype)
    counted = (cosine_cb.sum(dim=1), (logit_cb > 0).sum(dim=1)) if statistics else ()
    return (*gradient, bias_c, terms_c.sum(), *counted)


def softmax_sums(maps: ProxyMaps, block: Block, *, statistics: bool) -> tuple[Tensor, ...]:
    """The highest logit of each row and the sum of exp over it, and the same for the log."""
    cosine_cb, _, logit_cb, _, is_target = _logits(maps, block)
    logit_cb = torch.where(is_target, _LOWEST, logit_cb)
    counted: tuple[Tensor, ...] = ()
    if statistics:
        counted = (cosine_cb.sum(dim=1), (logit_cb > block["target_logit"]).sum(dim=1))
    logit_cb = _leave_out(block, logit_cb)
    highest_b = logit_cb.amax(dim=0)
    terms_cb = torch.exp(logit_cb - highest_b)
    if "class_weight" in block:
        terms_cb = terms_cb * block["class_weight"][:, None]
    return (highest_b, terms_cb.sum(dim=0), *counted)


def softmax_block(
    maps: ProxyMaps, block: Block, *, product_dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """dL/dproduct, what it has too much along the weights, and dL/db of each class."""
    cosine_cb, inverse_c, logit_cb, slope_cb, is_target = _logits(maps, block)
    logit_cb = _leave_out(block, logit_cb)
    grad_cb = torch.exp(logit_cb - block["top"]) * block["share"]
    if "class_weight" in block:
        grad_cb = grad_cb * block["class_weight"][:, None]
    grad_cb = torch.where(is_target, 0.0, grad_cb)
    bias_c = grad_cb.sum(dim=1)
    return (
        *_gradient(block, cosine_cb, inverse_c, grad_cb * slope_cb, is_target, product_dtype),
        bias_c,
    )


def _leave_out(block: Block, logit_cb: Tensor) -> Tensor:
    """Classes that weigh nothing as the lowest: the largest logit must be one that counts."""
    if "class_weight" not in block:
        return logit_cb
    return torch.where((block["class_weight"] == 0.0)[:, None], _LOWEST, logit_cb)


def _logits(
    maps: ProxyMaps, block: Block
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | float, Tensor]:
    """Cosines, 1/norm of the weights, logits, slopes, and where the targets are."""
    product_cb, norm_b = block["product_cb"], block["norm_b"]
    cosine_cb, inverse_c = product_cb.to(norm_b.dtype), None
    if "norm_c" in block:
        inverse_c = inverse(block["norm_c"])
        cosine_cb = cosine_cb * inverse_c[:, None]
    if product_cb.dtype != norm_b.dtype and maps.unit_embeddings:
        cosine_cb = cosine_cb.clamp(-1.0, 1.0)
    rows = Rows(norm_b, block["known_b"], block.get("context"))
    logit_cb, slope_cb = maps.other_logit(cosine_cb, rows)
    if "bias" in block:
        bias = block["bias"]
        logit_cb = logit_cb + (bias[:, None] if bias.ndim else bias)
    # In floating point, which a processor compares and selects without a detour.
    number_c = torch.arange(len(cosine_cb), dtype=torch.float32, device=cosine_cb.device)
    return cosine_cb, inverse_c, logit_cb, slope_cb, number_c[:, None] == block["place_b"]


def _gradient(
    block: Block,
    cosine_cb: Tensor,
    inverse_c: Tensor | None,
    grad_cb: Tensor,
    is_target: Tensor,
    product_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """dL/dcosine of the others -> dL/dproduct of all, and `along_c` (see the engine)."""
    grad_cb = torch.where(is_target, block["target_grad"], grad_cb)
    if inverse_c is None:
        return grad_cb.to(product_dtype), torch.zeros_like(grad_cb[:, 0])
    along_c = (cosine_cb * grad_cb).sum(dim=1) * inverse_c.square()
    return (grad_cb * inverse_c[:, None]).to(product_dtype), along_c
