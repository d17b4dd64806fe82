"""The blocks of classes on a CPU as one call of C++ per pass, made for the head at hand.

`native.cpp` does products, maps, gradients and update of a block while it is in a core's cache,
and shares the blocks out over torch's own threads. A head's `other_logit` is traced and written
down as C++. What it does not cover (half precision, samples of classes, several centres) is left
to the other forms, see `heads.compiled`.
"""

import copy
import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from sphereface2.heads import engine
from sphereface2.heads.class_rows import ClassRows, FusedSGD
from sphereface2.heads.contract import Binary, Rows
from sphereface2.heads.engine import Cosines, Evaluation, Result, Span, Sums

CORE_ELEMENTS = 1 << 17
"""Numbers that a matrix of a block may hold: half a megabyte, a quarter of a core's cache."""

_WIDEST_TILE = 32  # columns of a tile on any processor
_SHARE = 8  # a part has this share of the blocks that are left, so the last ones are small


class Unsupported(ValueError):
    """A map that cannot be written down as C++."""


# -- a head's map as C++ ---------------------------------------------------------------------------

_SIGNS = {
    "mul": "*", "add": "+", "sub": "-", "div": "/", "gt": ">", "lt": "<", "ge": ">=", "le": "<=",
}  # fmt: skip


class MapSource:
    """`struct Map` of a head, in which every number is a variable.

    So heads that differ in their numbers alone share a library, and a margin that moves needs one.
    """

    def __init__(self, head: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
        """`state`: what moves between steps."""
        given = [name for name, value in state.items() if value.numel() == 1]
        self.moving: list[str] = []
        self.constants: list[float] = []

        def flat(cosine: Tensor, norm: Tensor, context: Tensor, *moving: Tensor) -> Any:
            maps: Any = with_state(head, dict(zip(given, moving, strict=True)))
            return maps.other_logit(cosine, Rows(norm, norm > 0, context))

        example = torch.ones(2, 3)
        moving = (state[name].float().reshape(()) for name in given)
        graph = make_fx(torch.func.functionalize(flat))(example, example[0], example[0], *moving)
        inputs = iter(("cosine", "load(norm + b)", "load(context + b)", *given))
        self._names: dict[Node, str] = {}
        lines = []
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                name = next(inputs)
                if name in given and node.users:
                    self.moving.append(name)
                    name = f"s[{len(self.moving) - 1}]"
                self._names[node] = name
            elif node.op == "call_function":
                self._names[node] = node.name
                lines.append(f"const auto {node.name} = {self._expression(node)};")
            elif node.op == "output":
                logit, slope = (self._term(value) for value in node.args[0])
                lines += [f"logit = vec{{}} + {logit};", f"slope = vec{{}} + {slope};"]
            else:
                raise Unsupported(f"{type(head).__name__}.other_logit reads a tensor of its own")
        body = "\n    ".join(lines)
        count = len(self.moving) + len(self.constants)
        self.text = f"""struct Map {{
  const float *norm, *context;
  float s[{count or 1}];
  Map(const float* const* rows, const float* scalars) : norm(rows[0]), context(rows[1]) {{
    std::copy_n(scalars, {count}, s);
  }}
  inline __attribute__((always_inline)) void operator()(
      vec cosine, I b, vec& logit, vec& slope) const {{
    {body}
  }}
}};"""

    def scalars(self, state: Mapping[str, Tensor]) -> list[float]:
        """The variables of the map, at this step."""
        return [*(float(state[name].numpy()) for name in self.moving), *self.constants]

    def _term(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._names[value]
        self.constants.append(float(value))
        return f"s[{len(self.moving) + len(self.constants) - 1}]"

    def _expression(self, node: Node) -> str:
        """An operation on a block, on rows, or on numbers, in C++."""
        target: Any = node.target
        name = target.overloadpacket.__name__
        if name in _SIGNS and not node.kwargs:
            left, right = (self._term(a) for a in node.args)
            return f"{left} {_SIGNS[name]} {right}"
        if name == "addcmul":
            first, *factors = (self._term(a) for a in (*node.args, node.kwargs.get("value", 1.0)))
            return f"{first} + {' * '.join(factors)}"
        if name in ("clone", "alias", "detach", "lift_fresh_copy", "scalar_tensor"):
            return self._term(node.args[0])
        if name == "zeros":
            return self._term(0.0)
        if name == "where":
            condition, *both = (self._term(a) for a in node.args)
            return f"{condition} ? vec{{}} + {both[0]} : vec{{}} + {both[1]}"
        if name == "pow":
            return f"power({', '.join(self._term(a) for a in node.args)})"
        if name in ("clamp_min", "clamp_max", "clamp"):
            bounds = (None, node.args[1]) if name == "clamp_max" else (*node.args[1:], None)
            value = self._term(node.args[0])
            for limit, bound in zip(("larger", "smaller"), bounds, strict=False):
                if bound is not None:
                    value = f"{limit}({value}, all({self._term(bound)}))"
            return value
        raise Unsupported(f"{target} has no form in C++")


def with_state(head: torch.nn.Module, state: Mapping[str, Tensor]) -> Any:
    """The head, with its margin and buffers taken from `state`."""
    maps = copy.copy(head)
    buffers = {name: value for name, value in state.items() if name != "margin"}
    maps._buffers = {**maps._buffers, **buffers}
    if "margin" in state:
        vars(maps)["margin"] = state["margin"]
    return maps


# -- the library -----------------------------------------------------------------------------------

_POINTERS = (
    "weight moved bias bias_gradient x_rows x_numbers target_gradient top share target_logit label "
    "row_values scalars embeddings highest total numbers kept cuts"
)
_COUNTS = (
    "parts classes rows padded dim block kept_classes bias_stride unit_weights moves_weights "
    "needs_embeddings needs_weight statistics"
)


class _Arguments(ctypes.Structure):
    """`struct Arguments` of native.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
        *((name, ctypes.c_int64) for name in _COUNTS.split()),
        *((name, ctypes.c_double) for name in ("factor", "unit", "rate", "momentum", "decay")),
    ]


@cache
def _library(map_struct: str, *, is_binary: bool) -> Any:
    """native.cpp with this map, compiled, or found where torch keeps what it has compiled."""
    from torch._inductor.codecache import CppCodeCache

    source = files("sphereface2.heads").joinpath("native.cpp").read_text(encoding="utf-8")
    library: Any = CppCodeCache.load(
        f"#define BINARY {int(is_binary)}\n{source.replace('// MAP', map_struct)}",
        extra_flags=("-ffp-contract=fast",),
    )
    library.pack.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4, ctypes.c_void_p]
    library.tile_columns.restype = ctypes.c_int64
    return library


class NativeMaps:
    """The compiled passes of one head, and the memory that they use again in each step."""

    def __init__(self, head: Any, state: Mapping[str, Tensor]) -> None:
        self.map = MapSource(head, state)
        is_binary = isinstance(head.reduction(), Binary)
        self.library = _library(self.map.text, is_binary=is_binary)
        self._memory: dict[str, Tensor] = {}

    def memory(self, name: str, *shape: int) -> Tensor:
        """A tensor that is kept from step to step: fresh memory costs time to get."""
        found = self._memory.get(name)
        if found is None or found.shape != shape:
            found = self._memory[name] = torch.zeros(shape)
        return found


def working_bytes(rows: int, dim: int, classes: int, *, is_softmax: bool) -> int:
    """What a step holds besides weights and gradients (compare `engine.working_bytes`)."""
    if not classes:
        return 0
    block, cuts = cut(rows, dim, classes)
    parts = len(cuts) - 1
    padded = -(-rows // _WIDEST_TILE) * _WIDEST_TILE
    at_once = min(parts, torch.get_num_threads()) * block * (padded + 2)
    of_rows = parts * rows * dim + (padded + rows) * dim
    kept = min(engine.KEPT_BYTES, 4 * padded * classes) if is_softmax else 0
    return 4 * (at_once + of_rows) + kept


def covers(embeddings: Tensor, classes: ClassRows, product_dtype: torch.dtype) -> bool:
    """Whether native.cpp can do the blocks of a batch."""
    return (
        embeddings.device.type == "cpu"
        and classes.dtype == product_dtype == torch.float32
        and classes.index is None
        and classes.class_weight(0, 0) is None
        and classes.centres == 1
        and len(classes) > 0
        and classes.weight.shape[1] % _WIDEST_TILE == 0
        and classes.weight.is_contiguous()
    )


class NativeEvaluation(Evaluation):
    """The engine's passes in C++; what does not grow with the classes stays torch's."""

    def __init__(
        self, native: NativeMaps, state: Callable[[], Mapping[str, Tensor]], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._native = native
        self._state = state
        rows, dim = self.rows_x.shape
        library, x = native.library, self.rows_x.contiguous()
        tile = library.tile_columns()
        self._columns = -(-rows // tile) * tile
        self._labels = self.labels.contiguous()  # C++ goes through them one after the other
        self._x_rows = native.memory("x_rows", self._columns * dim)
        self._x_numbers = native.memory("x_numbers", rows * dim)
        library.pack(x.data_ptr(), dim, rows, 1, dim, self._x_rows.data_ptr())
        library.pack(x.data_ptr(), rows, dim, dim, 1, self._x_numbers.data_ptr())
        self._block, self._cuts = cut(rows, dim, len(self.classes))

    def _cut(self) -> list[Span]:
        return []

    def _share_out(self, work: Callable[[list[Span]], Result]) -> list[Result]:
        return [work([])]

    def binary_blocks(self, spans: list[Span]) -> Sums:
        return self._walk("binary", target_gradient=self.target_grad_cosine)

    def softmax_sums(self, spans: list[Span]) -> tuple[Tensor, Tensor, Sums, list[Cosines]]:
        shape = len(self._cuts) - 1, self._columns
        self._highest = self._native.memory("highest", *shape)
        self._total = self._native.memory("total", *shape)
        self.kept_classes = min(self.kept_classes, len(self.classes))
        self._kept = self._native.memory("kept", self.kept_classes * self._columns)
        sums = self._walk("softmax_first", target_logit=self.target_logit)
        highest, total = (t[:, : len(self.labels)] for t in (self._highest, self._total))
        top = highest.amax(dim=0)
        return top, (total * (highest - top).exp()).sum(dim=0), sums, []

    def softmax_blocks(self, spans: list[Span]) -> Sums:
        return self._walk(
            "softmax_second",
            target_gradient=self.target_grad_cosine,
            top=self.top,
            share=self.share,
        )

    def _walk(self, name: str, **of_rows: Tensor) -> Sums:
        """One pass over all blocks: `name` of native.cpp."""
        native, classes, bias = self._native, self.classes, self.bias
        rows, dim = self.rows_x.shape
        parts = len(self._cuts) - 1
        step = classes.step
        rule = step.param_groups[0] if isinstance(step, FusedSGD) else {}
        moved = classes.gradient() if step is None else step.momentum_buffer
        of_rows["norm"] = self.rows.norm
        if self.rows.context is not None:
            of_rows["context"] = self.rows.context
        padded = {key: torch.zeros(self._columns) for key in of_rows}
        for key, values in of_rows.items():
            padded[key][:rows] = values
        at = {key: values.data_ptr() for key, values in padded.items()}
        row_values = (ctypes.c_void_p * 2)(at.pop("norm"), at.pop("context", None))
        variables = native.map.scalars(self._state())
        scalars = (ctypes.c_float * (len(variables) or 1))(*variables)
        numbers = torch.empty(parts, 4, dtype=torch.float64)
        embeddings = None
        if self.needs_embeddings and name != "softmax_first":
            embeddings = native.memory("embeddings", parts, rows, dim)
            at["embeddings"] = embeddings.data_ptr()
        if bias is not None:
            at["bias"] = bias.data_ptr()
        if self.bias_of_classes is not None and name != "softmax_first":
            at["bias_gradient"] = self.bias_of_classes.data_ptr()
        if moved is not None:
            at["moved"] = moved.data_ptr()
        if name != "binary":
            at |= {key: getattr(self, f"_{key}").data_ptr() for key in ("highest", "total", "kept")}
        cuts = (ctypes.c_int64 * (parts + 1))(*self._cuts)
        arguments = _Arguments(
            **at,
            weight=classes.weight.data_ptr(),
            x_rows=self._x_rows.data_ptr(),
            x_numbers=self._x_numbers.data_ptr(),
            label=self._labels.data_ptr(),
            row_values=ctypes.addressof(row_values),
            scalars=ctypes.addressof(scalars),
            numbers=numbers.data_ptr(),
            cuts=ctypes.addressof(cuts),
            parts=parts,
            classes=len(classes),
            rows=rows,
            padded=self._columns,
            dim=dim,
            block=self._block,
            kept_classes=0 if name == "binary" else self.kept_classes,
            bias_stride=0 if bias is None else bias.ndim,
            unit_weights=self.maps.unit_weights,
            moves_weights=step is not None,
            needs_embeddings=self.needs_embeddings,
            needs_weight=self.needs_weight,
            statistics=self.maps.collect_statistics,
            factor=getattr(self, "negative_factor", 1.0),
            unit=self.unit,
            rate=rule.get("lr", 0.0),
            momentum=rule.get("momentum", 0.0),
            decay=rule.get("weight_decay", 0.0),
        )
        getattr(native.library, name)(ctypes.byref(arguments))
        loss, of_bias, cosine, active = numbers.sum(dim=0).float().unbind()
        return Sums(
            loss=loss,
            bias=of_bias,
            embeddings=None if embeddings is None else embeddings[0],
            cosine=cosine,
            active=active,
            pairs=rows * len(classes),
        )


def cut(rows: int, dim: int, classes: int) -> tuple[int, list[int]]:
    """Classes of a block, and where the parts of the blocks begin: large ones first.

    So a thread that is slower than the others, beside another process, takes fewer, and the last
    parts are short to wait for. They depend on the sizes alone.
    """
    block = max(32, CORE_ELEMENTS // max(rows, dim))
    block = -(-classes // -(-classes // block))
    blocks, cuts = -(-classes // block), [0]
    while cuts[-1] < blocks:
        cuts.append(cuts[-1] + max(1, (blocks - cuts[-1]) // _SHARE))
    return block, cuts
