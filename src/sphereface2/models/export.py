"""A model for elsewhere: ONNX, OpenVINO or TorchScript, float32 or int8, compared with torch."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.transforms import Preprocessing, resize
from sphereface2.files import remove, replacing
from sphereface2.models.embedder import Embedder, NetworkEmbedder, unit_rows
from sphereface2.models.folder import (
    LoadedModel,
    find_model,
    load_model,
    save_graph,
    store_calibration,
    stored_calibration,
    weights_digest,
)
from sphereface2.models.runtimes import METADATA, ONNX, OPENVINO, import_runtime, require_package

FORMS = ("onnx", "openvino", "torchscript")
INPUT, OUTPUT = "images", "embeddings"
LEAST_COSINE = 0.99999
"""Embeddings in float32 agree that far with torch's, or the export is refused."""
_COMPARED = 16  # images
_NEEDS = "this export needs packages"
# Output, log and warnings are the whole process's: of two exports in threads one waits, or the one
# that ends last would leave them as the other had silenced them.
_SILENCE = Lock()

ImageArray = NDArray[np.uint8]
Check = Callable[[LoadedModel, LoadedModel], None]


@dataclass(frozen=True)
class Agreement:
    """How far an export agrees with torch on the same images, by unit embeddings."""

    images: int
    largest_difference: float
    lowest_cosine: float

    def __str__(self) -> str:
        return (
            f"against torch on {self.images} test images: largest difference "
            f"{self.largest_difference:.2g}, lowest cosine {self.lowest_cosine:.7f}"
        )


def export_graph(
    path: Path | str,
    folder: Path | str,
    *,
    to: str = "onnx",
    int8: Sequence[ImageArray] | None = None,
    check: Check | None = None,
) -> Agreement:
    """Write the torch model in `path` as a model folder that runs without torch.

    to: onnx or openvino
    int8: images that show the range of each layer's values, for an export in 8 bits
    check: called with torch's model and the export before that takes its place

    An export in float32 that does not agree with torch is refused; it takes the calibration along.
    One in int8 has somewhat other scores and needs a calibration of its own.
    """
    source = find_model(path)
    model = load_model(source)
    found: list[Agreement] = []

    def write(made: Path) -> None:
        write_onnx(model, made / ONNX)
        if int8 is not None:
            _quantize(made / ONNX, int8, model.preprocessing)
        if to == "openvino":
            _to_openvino(made / ONNX, made / OPENVINO, model.preprocessing)
            remove(made / ONNX)

    def finish(made: Path) -> None:
        exported = load_model(made)
        found.append(agreement(model.embedder(), exported.embedder(), _test_images(model)))
        if int8 is None:
            _require_agreement(found[0])
            if (calibration := stored_calibration(source)) is not None:
                store_calibration(made, {**calibration, "model": weights_digest(made)})
        if check is not None:
            check(model, exported)

    extra = {
        **model.config.get("extra", {}),
        "exported": {"from": weights_digest(source), "numbers": "int8" if int8 else "float32"},
    }
    save_graph(
        folder,
        write,
        preprocessing=model.preprocessing,
        flip=model.flip,
        extra=extra,
        finish=finish,
    )
    return found[0]


def export_torchscript(path: Path | str, file: Path) -> Agreement:
    """Write the torch model in `path` as one TorchScript file for other programs of torch."""
    import torch

    model = load_model(find_model(path))
    side = model.preprocessing.input_size
    with _quietly():
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            model.backbone.cpu(), torch.zeros(2, 3, side, side)
        )
    found = agreement(
        model.embedder(flip=False),
        NetworkEmbedder(traced, model.preprocessing, flip=False),
        _test_images(model),
    )
    _require_agreement(found)
    with replacing(file) as made, _quietly():
        torch.jit.save(traced, made, _extra_files={METADATA: _metadata(model.preprocessing)})
    return found


def write_onnx(model: LoadedModel, path: Path) -> None:
    """Write a torch model as one ONNX file: any batch, the preprocessing in its metadata."""
    import torch

    onnx = require_package("onnx", "export", _NEEDS)
    require_package("onnxscript", "export", _NEEDS)
    side = model.preprocessing.input_size
    with _quietly():
        program = torch.onnx.export(
            model.backbone.cpu().for_export(),
            (torch.zeros(2, 3, side, side),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert program is not None
    written = program.model_proto
    # The exporter notes where in the source each operator comes from, with this machine's paths.
    del written.metadata_props[:]
    graph = written.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info,
                 *graph.initializer):  # fmt: skip
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.helper.set_model_props(written, {METADATA: _metadata(model.preprocessing)})
    path.write_bytes(written.SerializeToString())


def agreement(first: Embedder, second: Embedder, images: Sequence[ImageArray]) -> Agreement:
    """How far the embeddings of two embedders are apart on the same images."""
    one, other = (
        unit_rows(each.embed(list(images)), source="a network's output").astype(np.float64)
        for each in (first, second)
    )
    cosines = np.sum(one * other, axis=1) / np.linalg.norm(one, axis=1)
    cosines /= np.linalg.norm(other, axis=1)
    return Agreement(len(images), float(np.abs(one - other).max()), float(cosines.min()))


def _require_agreement(found: Agreement) -> None:
    if not found.lowest_cosine > LEAST_COSINE:
        raise ValueError(f"the export does not compute what torch does, and is not kept: {found}")


def _test_images(model: LoadedModel) -> list[ImageArray]:
    """Soft and rough patterns, the same every time: a network's layers see both kinds."""
    rng = np.random.default_rng(0)
    side = model.preprocessing.input_size
    sizes = [max(2, side >> number % 5) for number in range(_COMPARED)]
    return [resize(rng.integers(0, 256, (size, size, 3), np.uint8), side) for size in sizes]


def _metadata(preprocessing: Preprocessing) -> str:
    return json.dumps({"preprocessing": asdict(preprocessing)})


# -- int8 and OpenVINO -----------------------------------------------------------------------------


def _quantize(path: Path, images: Sequence[ImageArray], preprocessing: Preprocessing) -> None:
    """Turn an ONNX file into one of 8-bit layers, in the form that every runtime understands.

    Values are rounded to 7 bits, for processors without VNNI add two products of 8 in 16 bits.
    """
    require_package("onnx", "export", _NEEDS)
    quantization = import_runtime("onnxruntime.quantization")
    shapes = import_runtime("onnxruntime.quantization.shape_inference")

    class Reader:
        """What ONNX Runtime asks for one input after the other, until there is None."""

        def __init__(self) -> None:
            self._left = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self._left, None)
            return None if image is None else {INPUT: preprocessing.to_array(image)}

    prepared = path.with_name("prepared.onnx")
    with _quietly():
        shapes.quant_pre_process(path, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            path,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
    remove(prepared)


def _to_openvino(path: Path, target: Path, preprocessing: Preprocessing) -> None:
    openvino = require_package("openvino", "openvino", _NEEDS)
    model = openvino.Core().read_model(path)
    model.set_rt_info(_metadata(preprocessing), METADATA)
    openvino.save_model(model, target, compress_to_fp16=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Exporters print, log and warn about themselves; what goes wrong they raise."""
    with _SILENCE:
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings(), redirect_stdout(StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)
