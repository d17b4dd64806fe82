"""Models and runs under test: configs, model folders, foreign weights, graphs, checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save as save_safetensors

from faults.fuzzing.parser import Parser, part, write_parts
from faults.fuzzing.run_files import scored
from sphereface2.backbones import build_backbone
from sphereface2.data.transforms import Preprocessing
from sphereface2.evaluation.calibration import Calibration, calibrate
from sphereface2.evaluation.embedding_files import read_embeddings
from sphereface2.models.folder import (
    import_onnx,
    load_model,
    save_model,
    store_calibration,
    stored_calibration,
    weights_digest,
)
from sphereface2.models.importing import import_weights
from sphereface2.models.onnx_graph import look_at_onnx
from sphereface2.models.runtimes import import_preprocessing, openvino_graph
from sphereface2.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_tensors,
    save_checkpoint,
)

OPTIONS = {"width": 1, "input_size": 16, "embedding_dim": 4}
SIDE = 16


# -- model folders ---------------------------------------------------------------------------------


def small_model(folder: Path) -> Path:
    """A calibrated model of a few thousand numbers."""
    network = build_backbone("sfnet4", seed=0, **OPTIONS)
    pixels = Preprocessing(input_size=SIDE)
    save_model(folder, network, name="sfnet4", options=OPTIONS, preprocessing=pixels)
    known = calibrate(scored(), model=weights_digest(folder), replicates=0)
    store_calibration(folder, known.to_mapping())
    return folder


def _folders(folder: Path) -> list[list[bytes]]:
    made = small_model(folder / "model")
    config = json.loads((made / "config.json").read_bytes())
    weights = (made / "model.safetensors").read_bytes()
    plain = {key: value for key, value in config.items() if key != "calibration"}
    return [[json.dumps(each).encode(), weights] for each in (plain, config)]


def _read_folder(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["config.json", "model.safetensors"], parts)
    calibration = stored_calibration(folder)
    if calibration is not None:
        Calibration.from_mapping(calibration)
    load_model(folder)


# -- weights of others -----------------------------------------------------------------------------


@cache
def _state() -> dict[str, torch.Tensor]:
    return dict(build_backbone("sfnet4", seed=0, **OPTIONS).state_dict())


def _saved(value: Any, *, legacy: bool = False) -> bytes:
    made = io.BytesIO()
    torch.save(value, made, _use_new_zipfile_serialization=not legacy)
    return made.getvalue()


def _weights(folder: Path) -> list[list[bytes]]:
    small = {"a.weight": torch.zeros(2), "b": {"c": torch.ones(1)}, "epoch": 3}
    found = [save_safetensors(_state()), _saved(small), _saved(small, legacy=True)]
    return [[each] for each in found]


def _read_weights(folder: Path, parts: Sequence[bytes]) -> None:
    path = folder / "a.pt"
    path.write_bytes(part(parts, 0))
    import_weights(path)


def _tensor_lists(folder: Path) -> list[list[bytes]]:
    lines = [f"{name} {list(value.shape)} float32" for name, value in _state().items()]
    text = "\n".join(lines).encode()
    return [[text, b"torch"], [text.replace(b"stages", b"net.stages"), b"safetensors"]]


def _read_tensor_list(folder: Path, parts: Sequence[bytes]) -> None:
    """A sound file of tensors whose names, shapes and kinds are whatever the input says."""
    state: dict[str, torch.Tensor] = {}
    for line in part(parts, 0).decode("utf-8", "replace").split("\n")[:300]:
        name, _, rest = line.partition(" ")
        shape, _, kind = rest.rpartition(" ")
        try:
            sizes = [int(word) for word in shape.strip("[] ").split(",") if word.strip()]
            dtype = getattr(torch, kind)
            if not isinstance(dtype, torch.dtype) or np.prod([1, *sizes], dtype=float) > 1e5:
                continue
            state[name] = torch.zeros(sizes, dtype=dtype)
        except (ValueError, AttributeError, RuntimeError, OverflowError, TypeError):
            continue
    path = folder / "a.pt"
    if part(parts, 1) == b"safetensors":
        try:
            path.write_bytes(save_safetensors(state))
        except (KeyError, ValueError, RuntimeError):
            return
    else:
        torch.save(state, path)
    import_weights(path)


def _tensors(folder: Path) -> list[list[bytes]]:
    table = torch.arange(12.0).reshape(3, 4) + 1
    found = [_saved(table), _saved(table, legacy=True), _saved(table.reshape(3, 2, 2).half())]
    return [[each] for each in found]


def _read_tensor(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.pt", "a.txt"], parts, optional=False)
    read_embeddings(folder / "a.pt", check_values=True)


def _tensor_members(folder: Path) -> list[list[bytes]]:
    found = []
    for value in (torch.arange(12.0).reshape(3, 4), {"a.weight": torch.zeros(2)}):
        with zipfile.ZipFile(io.BytesIO(_saved(value))) as archive:
            names = [name for name in archive.namelist() if name.endswith(("data.pkl", "data/0"))]
            found.append([archive.read(name) for name in names])
    return found


def _read_tensor_members(folder: Path, parts: Sequence[bytes]) -> None:
    """A zip file as torch writes it, sound around a changed pickle and changed numbers."""
    path = folder / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in zip(("data.pkl", "data/0", "data/1"), parts, strict=False):
            archive.writestr(f"archive/{name}", content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    try:
        read_embeddings(path, check_values=True)
    except ValueError:
        import_weights(path)


# -- graphs ----------------------------------------------------------------------------------------


@cache
def small_onnx(side: int = 4) -> bytes:
    """A network of one matrix."""
    values = np.random.default_rng(0).normal(size=(3 * side * side, 4)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    said = {"preprocessing": {"input_size": side, "channels": "RGB", "mean": 127.5, "scale": 128}}
    onnx.helper.set_model_props(model, {"sphereface2": json.dumps(said)})
    return bytes(model.SerializeToString())


def _graphs(folder: Path) -> list[list[bytes]]:
    return [[small_onnx()]]


def _look(folder: Path, parts: Sequence[bytes]) -> None:
    path = folder / "a.onnx"
    path.write_bytes(part(parts, 0))
    look_at_onnx(path)
    import_preprocessing(path)


def _import(folder: Path, parts: Sequence[bytes]) -> None:
    path = folder / "a.onnx"
    path.write_bytes(part(parts, 0))
    pixels = import_preprocessing(path)
    if pixels.input_size <= 256:
        import_onnx(path, folder / "model", preprocessing=pixels)


def _openvinos(folder: Path) -> list[list[bytes]]:
    import openvino

    (folder / "a.onnx").write_bytes(small_onnx())
    model = openvino.convert_model(folder / "a.onnx")
    openvino.save_model(model, folder / "a.xml", compress_to_fp16=False)
    return [[(folder / "a.xml").read_bytes(), (folder / "a.bin").read_bytes()]]


def _read_openvino(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["a.xml", "a.bin"], parts, optional=False)
    graph = openvino_graph(folder / "a.xml")
    graph(np.zeros((1, 3, 4, 4), np.float32))


# -- checkpoints -----------------------------------------------------------------

_CHECKPOINT = ("checkpoint.json", ".metadata", "__0_0.distcp")
_HELD = {"model.a": (2, 3), "head.b": (4,)}


def _checkpoints(folder: Path) -> list[list[bytes]]:
    tensors = {name: torch.ones(shape) for name, shape in _HELD.items()}
    save_checkpoint(folder / "last", Checkpoint(settings={"seed": 1}, step=7), tensors)
    parts = [(folder / "last" / name).read_bytes() for name in _CHECKPOINT]
    return [[*parts, b"sound"], parts]


def _read_checkpoint(folder: Path, parts: Sequence[bytes]) -> None:
    """With the word `sound` as the last part the digests are right again after a change."""
    place = folder / "last"
    place.mkdir()
    write_parts(place, _CHECKPOINT, parts, optional=False)
    if part(parts, 3) == b"sound":
        _seal(place)
    load_checkpoint(place)
    load_tensors(place, {name: torch.zeros(shape) for name, shape in _HELD.items()})


def _seal(place: Path) -> None:
    try:
        facts = json.loads((place / _CHECKPOINT[0]).read_bytes())
        facts.pop("digest", None)
        files = facts["files"]
        for name in _CHECKPOINT[1:]:
            content = (place / name).read_bytes()
            files[name] = [len(content), hashlib.sha256(content).hexdigest()]
        (place / _CHECKPOINT[0]).write_text(json.dumps(facts), encoding="utf-8")
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        return


PARSERS = {
    "model-folder": Parser(_folders, _read_folder),
    "weights": Parser(_weights, _read_weights),
    "tensor-names": Parser(_tensor_lists, _read_tensor_list),
    "pt": Parser(_tensors, _read_tensor),
    "pt-members": Parser(_tensor_members, _read_tensor_members),
    "onnx": Parser(_graphs, _look),
    "onnx-import": Parser(_graphs, _import),
    "openvino": Parser(_openvinos, _read_openvino),
    "checkpoint": Parser(_checkpoints, _read_checkpoint),
}
