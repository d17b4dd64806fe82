"""Small ONNX files for tests, sound and hostile ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, WIDTH = 16, 6
FLATTEN = helper.make_node("Flatten", ["x"], ["flat"])
PROJECT = helper.make_node("MatMul", ["flat", "w"], ["y"])


def weight(name: str = "w", seed: int = 0) -> Any:
    values = np.random.default_rng(seed).normal(size=(3 * SIDE * SIDE, WIDTH))
    return numpy_helper.from_array(values.astype(np.float32), name)


def build(
    nodes: Sequence[Any] = (FLATTEN, PROJECT),
    weights: Sequence[Any] | None = None,
    *,
    shape: Sequence[str | int | None] = ("n", 3, SIDE, SIDE),
    outputs: Sequence[str] = ("y",),
    **more: Any,
) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [weight()] if weights is None else list(weights),
    )
    opsets = more.pop("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def save(path: Path, model: Any | None = None) -> Path:
    onnx.save(build() if model is None else model, str(path))
    return path
