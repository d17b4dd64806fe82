"""Networks that run without torch: an ONNX file by ONNX Runtime, an OpenVINO file by OpenVINO."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.transforms import PerChannel, Preprocessing
from sphereface2.files import parse_json
from sphereface2.models.embedder import BatchEmbedder, Embeddings, ImageArray, RunNetwork
from sphereface2.models.onnx_graph import Shape, look_at_onnx
from sphereface2.workers import install_command, usable_cores

ONNX = "model.onnx"
OPENVINO = "model.xml"
OPENVINO_WEIGHTS = "model.bin"
METADATA = "sphereface2"
"""Where files that we export keep the preprocessing: a key of ONNX's metadata, for one."""
MOST_MEMORY = 4 * 2**30
"""Bytes that a graph may take while it runs: a stranger's cannot take the machine."""
AT_ONCE = 32
"""Images: more at once are not faster on a CPU, and take more memory."""
_WIDEST = 65_536

Inputs = NDArray[np.float32]


Graph = Callable[[Inputs], Embeddings]
"""A network in a file: (B, 3, S, S) to (B, D), by a runtime that is not torch."""


@dataclass(frozen=True, eq=False)
class GraphEmbedder(BatchEmbedder):
    """A network in a file, in use.

    at_once: images that the graph takes at once; 1 where it was exported for one only
    """

    graph: Graph
    preprocessing: Preprocessing
    at_once: int = AT_ONCE

    @property
    def input_size(self) -> int:
        return self.preprocessing.input_size

    @contextmanager
    def running(self) -> Iterator[RunNetwork]:
        yield self._run

    def _run(self, batch: ImageArray) -> Embeddings:
        inputs = self.preprocessing.to_array(batch)
        parts = []
        for start in range(0, len(inputs), self.at_once):
            part = inputs[start : start + self.at_once]
            found = self.graph(part)
            if self.flip:
                found = found + self.graph(np.ascontiguousarray(part[..., ::-1]))
            parts.append(found)
        return np.concatenate(parts)


def import_preprocessing(
    path: Path,
    *,
    size: int | None = None,
    channels: str | None = None,
    mean: PerChannel | None = None,
    scale: PerChannel | None = None,
) -> Preprocessing:
    """What an ONNX file takes: what is given, else what the file says, else 127.5 and RGB.

    A file that we have exported says all of it; any other its size at most.
    """
    facts = look_at_onnx(path)
    said: dict[str, Any] = {}
    with suppress(ValueError, KeyError, TypeError):
        said = dict(parse_json(facts.metadata[METADATA])["preprocessing"])
    shape = next(iter(facts.inputs.values()), ())
    fixed = shape[2] if len(shape) == 4 and shape[2] == shape[3] else None
    side = size or fixed or said.get("input_size")
    if side is None:
        raise ValueError(f"{path} takes images of any size; say which with --size, such as 112")
    if fixed is not None and side != fixed:
        raise ValueError(f"{path} takes images of {fixed} × {fixed} pixels, not of --size {size}")

    def chosen(name: str, given: object, otherwise: object) -> Any:
        value = said.get(name, otherwise) if given is None else given
        return tuple(value) if isinstance(value, list) else value

    return Preprocessing(
        int(side),
        chosen("channels", channels, "RGB"),
        chosen("mean", mean, 127.5),
        chosen("scale", scale, 127.5),
    )


def onnx_graph(path: Path, *, output: str | None = None) -> Graph:
    """The network of an ONNX file, which `look_at_onnx` has nothing against; `output` by name."""
    facts = look_at_onnx(path)
    if len(facts.inputs) != 1:
        raise ValueError(f"{path} takes {len(facts.inputs)} inputs, not one: a batch of images")
    ((name, shape),) = facts.inputs.items()
    if len(shape) != 4 or shape[1] not in (3, None):
        raise ValueError(
            f"{path} takes an input of the shape {_words(shape)}, not (B, 3, S, S): colours before "
            "rows and columns"
        )
    wanted = output or next(iter(facts.outputs), "")
    if wanted not in facts.outputs:
        raise ValueError(f"{path} has no output '{wanted}' (it has {', '.join(facts.outputs)})")
    runtime = require_package(
        "onnxruntime", "onnx", f"{path} is an ONNX model, which needs ONNX Runtime"
    )
    _limit_memory()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and not printed as well
    options.intra_op_num_threads = usable_cores()
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _in_a_sentence(path, "ONNX Runtime"):
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> Any:
        (found,) = session.run([wanted], {name: inputs})
        return found

    return _checked(path, "ONNX Runtime", run)


def openvino_graph(path: Path, *, output: str | None = None) -> Graph:
    """The network of an OpenVINO file (.xml, with its weights in the .bin beside it)."""
    beside = path.with_suffix(".bin")
    if not beside.is_file():
        raise FileNotFoundError(f"{path} lacks its weights: there is no {beside.name} beside it")
    text = path.read_bytes()
    again = re.search(rb'type="(Loop|If|TensorIterator)"', text)
    if again is not None or b"<!ENTITY" in text:
        raise ValueError(f"{path} is not run: it has control flow, which may never end")
    runtime = require_package("openvino", "openvino", f"{path} needs OpenVINO")
    # On processors that have it, OpenVINO would by default compute in bfloat16.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": usable_cores()}
    with _in_a_sentence(path, "OpenVINO"):
        compiled = runtime.Core().compile_model(path, "CPU", settings)
        request = compiled.create_infer_request()
        chosen = compiled.output(output or 0)

    def run(inputs: Inputs) -> Any:
        return request.infer({0: inputs})[chosen].copy()

    return _checked(path, "OpenVINO", run)


GRAPHS: dict[str, Callable[..., Graph]] = {ONNX: onnx_graph, OPENVINO: openvino_graph}
"""What opens the network of a model folder, by the name of its file."""


def embedding_width(graph: Graph, preprocessing: Preprocessing) -> tuple[int, int]:
    """The dimensions of a graph's embeddings and the images it takes at once, by test images.

    A ValueError if it gives anything but finite embeddings that depend on the image.
    """
    rng = np.random.default_rng(0)
    side = preprocessing.input_size
    pictures = rng.integers(0, 256, (2, side, side, 3), np.uint8)
    pictures[0] = np.linspace(0, 255, side, dtype=np.uint8)[:, None, None]
    inputs = preprocessing.to_array(pictures)
    alone = np.concatenate([graph(inputs[:1]), graph(inputs[1:])])
    if not np.isfinite(alone).all():
        raise ValueError("it gives embeddings of a test image that are not finite")
    if np.array_equal(alone[0], alone[1]):
        raise ValueError("it gives the same embedding for every image")
    try:
        together = graph(inputs)
    except ValueError:
        return alone.shape[1], 1  # exported for one image at a time
    if not np.allclose(alone, together, rtol=1e-3, atol=1e-3 * float(np.abs(alone).max())):
        raise ValueError("it gives an image another embedding when another image is beside it")
    return alone.shape[1], AT_ONCE


def _checked(path: Path, runtime: str, run: Callable[[Inputs], Any]) -> Graph:
    """The graph, whose faults are a sentence and whose output is a table of floats."""

    def call(inputs: Inputs) -> Embeddings:
        with _in_a_sentence(path, runtime):
            found = np.asarray(run(inputs))
        table = found.reshape(len(found), -1) if found.ndim > 1 else found
        if table.ndim != 2 or len(table) != len(inputs) or not 2 <= table.shape[1] <= _WIDEST:
            raise ValueError(
                f"{path} gives an output of the shape {found.shape} for {len(inputs)} images, not "
                "an embedding for each"
            )
        return np.ascontiguousarray(table, np.float32)

    return call


@contextmanager
def _in_a_sentence(path: Path, runtime: str) -> Iterator[None]:
    """Runtimes raise errors of their own kinds, many lines long."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        if "Available memory" in reason or "bfc_arena" in reason:
            most = MOST_MEMORY // 2**30
            raise ValueError(f"{path} is not run: it takes more than {most} GB of memory") from None
        raise ValueError(f"{path} cannot be run by {runtime}: {reason[:300]}") from None


@cache
def _limit_memory() -> None:
    """Register the memory that ONNX Runtime may use, once in a process."""
    runtime = import_runtime("onnxruntime")
    kind = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = runtime.OrtMemoryInfo("Cpu", kind, 0, runtime.OrtMemType.DEFAULT)
    # The others by default: how it grows, its first size and how much may lie idle.
    runtime.create_and_register_allocator(place, runtime.OrtArenaCfg(MOST_MEMORY, -1, -1, -1))


def import_runtime(module: str) -> Any:
    """Import a module of a runtime that must not report to its maker.

    Unless forbidden before it loads, ONNX Runtime sends events and writes an id to the home folder.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module(module)


def require_package(package: str, extra: str, why: str) -> Any:
    """Import a package of an extra; a ValueError says why it is needed and how it is installed."""
    try:
        return import_runtime(package)
    except ImportError:
        raise ValueError(f"{why}: {install_command(extra)}") from None


def _words(shape: Shape) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"
