"""A model folder: a network and its config.json, all that is needed to use a trained model.

The network is model.safetensors (weights of one of our backbones), model.onnx, or model.xml with
model.bin (OpenVINO). Reading one runs no code from it: weights are plain tensors, graphs are looked
at first, and the config is plain JSON.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.transforms import Preprocessing
from sphereface2.files import is_locked, naming, parse_json, read_note, replacing, write_atomically
from sphereface2.models.embedder import BatchEmbedder, MissingImageError, NetworkEmbedder, unit_rows
from sphereface2.models.runtimes import (
    GRAPHS,
    ONNX,
    OPENVINO,
    OPENVINO_WEIGHTS,
    Graph,
    GraphEmbedder,
    embedding_width,
)

if TYPE_CHECKING:
    import torch

    from sphereface2.backbones.backbone import Backbone

FORMAT = "sphereface2-model"
VERSION = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
NETWORKS = (WEIGHTS, ONNX, OPENVINO)
"""The files of which a model folder has one."""
IN_RUN = "model"
"""Where a run folder has its model folder."""
RUN_CONFIG = "config.yaml"
RUN_LOCK = "run.lock"


@dataclass(frozen=True)
class LoadedModel(ABC):
    """A model from its folder, ready for use, and all that was said about it.

    flip: whether an embedding is the sum of an image's and its mirror image's
    """

    name: str
    preprocessing: Preprocessing
    config: dict[str, Any]
    flip: bool

    @property
    @abstractmethod
    def embedding_dim(self) -> int: ...

    @property
    def backbone(self) -> Backbone:
        """The torch network; a ValueError for a model that has none."""
        raise ValueError(f"this needs a torch model ({WEIGHTS}), and the model is {self.name}")

    def embedder(
        self,
        *,
        flip: bool | None = None,
        workers: int = 1,
        batch_size: int = 256,
        device: torch.device | str | None = None,
    ) -> BatchEmbedder:
        """What embeds many images with this model; `flip` is by default the model's own."""
        flip = self.flip if flip is None else flip
        return self._embedder(device, flip=flip, workers=workers, batch_size=batch_size)

    @abstractmethod
    def _embedder(self, device: torch.device | str | None, **batches: Any) -> BatchEmbedder:
        """The embedder on a device; `batches` are the options that all of them have."""

    def embed(
        self, images: Sequence[npt.ArrayLike] | npt.NDArray[np.uint8], *, flip: bool | None = None
    ) -> npt.NDArray[np.float32]:
        """Unit embeddings (N, D) of N aligned crops, made as those that the model is judged by.

        images: uint8 RGB of any size, (height, width, 3) each. `flip` is by default the model's
        own, which its calibrated thresholds hold for. The cosine of two images is the product of
        their rows: `embeddings @ embeddings.T`.
        """
        if not len(images):
            return np.empty((0, self.embedding_dim), np.float32)
        try:
            summed = self.embedder(flip=flip).embed([np.asarray(image) for image in images])
        except MissingImageError as error:
            raise ValueError(
                f"images must be a list of uint8 RGB images of the shape (height, width, 3): "
                f"{error}; give a single image as [image]"
            ) from None
        return unit_rows(summed, source="the model's output")


@dataclass(frozen=True)
class TorchModel(LoadedModel):
    """One of our backbones with its weights, in evaluation mode."""

    network: Backbone
    options: dict[str, Any]

    @property
    def embedding_dim(self) -> int:
        return self.network.embedding_dim

    @property
    def backbone(self) -> Backbone:
        return self.network

    def _embedder(self, device: torch.device | str | None, **batches: Any) -> NetworkEmbedder:
        network = self.network if device is None else self.network.to(device)
        return NetworkEmbedder(network, self.preprocessing, device=device, **batches)


@dataclass(frozen=True)
class GraphModel(LoadedModel):
    """A network in an ONNX or OpenVINO file: anybody's, and run without torch on the CPU.

    at_once: images that it takes at once
    """

    graph: Graph
    width: int
    at_once: int

    @property
    def embedding_dim(self) -> int:
        return self.width

    def _embedder(self, device: torch.device | str | None, **batches: Any) -> GraphEmbedder:
        return GraphEmbedder(self.graph, self.preprocessing, self.at_once, **batches)


def save_model(
    folder: Path | str,
    backbone: Backbone,
    *,
    name: str,
    options: Mapping[str, Any],
    preprocessing: Preprocessing,
    flip: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder, whole or not at all; a model folder that is there is replaced.

    `name` and `options` are those the backbone was built with. `flip` says whether the mirror
    image's embedding is added wherever the model is used. `extra` is any more that should be known
    of the model, such as its head and the training; it is kept in config.json.
    """
    from safetensors.torch import save

    from sphereface2.backbones import backbone_options, outline_backbone

    resolved = backbone_options(name, options)
    state = {key: value.detach().cpu().contiguous() for key, value in backbone.state_dict().items()}
    wrong = differences(_shapes(backbone), _shapes(outline_backbone(name, **resolved)))
    if wrong:
        raise ValueError(f"the network to save is not a {name} with these options: {wrong[0]}")
    _check_input_size(preprocessing, backbone)
    config = {
        "backbone": {"name": name, "options": resolved},
        "embedding_dim": backbone.embedding_dim,
        "preprocessing": asdict(preprocessing),
        "flip": flip,
        "extra": dict(extra or {}),
    }

    def describe(made: Path) -> dict[str, Any]:
        (made / WEIGHTS).write_bytes(save(state))
        return config

    _write_folder(folder, describe)


def save_graph(
    folder: Path | str,
    write: Callable[[Path], None],
    *,
    preprocessing: Preprocessing,
    output: str | None = None,
    flip: bool = True,
    extra: Mapping[str, Any] | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write a model folder around a graph, whole or not at all, checked on test images.

    write: puts the file of the graph into the folder that it is given: model.onnx, or model.xml
        and model.bin
    output: which of the graph's outputs is the embedding; the first if not given
    finish: called with the folder before it takes its place; an error leaves all as it was
    """

    def describe(made: Path) -> dict[str, Any]:
        write(made)
        network = network_file(made)
        graph = GRAPHS[network.name](network, output=output)
        width, at_once = embedding_width(graph, preprocessing)
        return {
            "graph": {"output": output, "at_once": at_once},
            "embedding_dim": width,
            "preprocessing": asdict(preprocessing),
            "flip": flip,
            "extra": dict(extra or {}),
        }

    _write_folder(folder, describe, finish)


def import_onnx(
    path: Path,
    folder: Path | str,
    *,
    preprocessing: Preprocessing,
    output: str | None = None,
    flip: bool = True,
) -> int:
    """Make a model folder of an ONNX file, which is checked on test images; the dimensions."""
    try:
        width, _ = embedding_width(GRAPHS[ONNX](path, output=output), preprocessing)
    except ValueError as error:
        said = str(error)
        raise ValueError(said if str(path) in said else f"{path} is not taken: {said}") from None

    def copy(made: Path) -> None:
        shutil.copyfile(path, made / ONNX)

    extra = {"imported": {"file": path.name}}
    save_graph(folder, copy, preprocessing=preprocessing, output=output, flip=flip, extra=extra)
    return width


def _write_folder(
    folder: Path | str,
    describe: Callable[[Path], Mapping[str, Any]],
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write a model folder; `describe` puts the network into it and gives the config."""
    # Not the path itself: replacing a symbolic link would leave the model behind it as it was.
    folder = Path(folder).resolve()
    _check_replaceable(folder)
    with replacing(folder) as made:
        made.mkdir()
        config = {"format": FORMAT, "version": VERSION, **describe(made)}
        try:
            text = json.dumps(config, indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"the config of a model must be plain JSON: {error}") from None
        (made / CONFIG).write_text(text, encoding="utf-8")
        for name in (WEIGHTS, ONNX):
            # safetensors keeps its files to their owner; a model is as readable as any other file.
            if (made / name).exists():
                shutil.copymode(made / CONFIG, made / name)
        if finish is not None:
            finish(made)


def find_model(path: Path | str) -> Path:
    """The model folder that a path means: itself, that of its network, or of a finished run."""
    folder = Path(path)
    if folder.name in NETWORKS and folder.is_file() and folder.with_name(CONFIG).is_file():
        folder = folder.parent
    if folder.suffix.lower() == ".onnx" and folder.is_file():
        raise ValueError(
            f"{folder} says nothing about the pixels that it takes; make a model folder of it: "
            f"sphereface2 import {folder} FOLDER --size 112 (--help has the rest)"
        )
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run or model folder {folder}")
    if not any((folder / file).is_file() for file in (CONFIG, *NETWORKS)):
        if not (folder / IN_RUN).is_dir():
            if (folder / RUN_CONFIG).is_file():
                raise FileNotFoundError(_unfinished(folder))
            raise FileNotFoundError(
                f"{folder} holds no model: neither {CONFIG} and {WEIGHTS}, as a model folder does, "
                f"nor {IN_RUN}/, as a finished run does"
            )
        folder = folder / IN_RUN
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} is not a model folder: it holds no {CONFIG}")
    network_file(folder)
    return folder


def network_file(folder: Path | str) -> Path:
    """The file of a model folder that holds the network, or the graph of it."""
    for name in NETWORKS:
        if (path := Path(folder) / name).is_file():
            return path
    raise FileNotFoundError(f"{folder} is not a model folder: it holds no {WEIGHTS}")


def _unfinished(run: Path) -> str:
    text = f"{run} is an unfinished run, which holds no trained model yet"
    if not is_locked(run / RUN_LOCK):
        return f"{text}: finish it with 'sphereface2 resume {run}'"
    owner = read_note(run / RUN_LOCK)
    who = f"process {owner['pid']} on {owner['host']}" if "pid" in owner else "another process"
    return f"{text}: {who} is training it; wait for its end"


def load_model(path: Path | str) -> LoadedModel:
    """The model in a folder that `save_model` wrote, or in a run folder that holds one.

    A ValueError or FileNotFoundError says what is wrong with it.
    """
    folder = find_model(path)
    config = _read_config(folder / CONFIG)
    load = _load_weights if network_file(folder).name == WEIGHTS else _load_graph
    return load(folder, config)


def _load_graph(folder: Path, config: dict[str, Any]) -> GraphModel:
    network = network_file(folder)
    with _faults_of(folder / CONFIG):
        preprocessing, flip = _preprocessing(config["preprocessing"]), _flip(config)
        output, at_once = config["graph"]["output"], int(config["graph"]["at_once"])
        width = int(config["embedding_dim"])
    return GraphModel(
        name=network.name,
        preprocessing=preprocessing,
        config=config,
        flip=flip,
        graph=GRAPHS[network.name](network, output=output),
        width=width,
        at_once=at_once,
    )


def _load_weights(folder: Path, config: dict[str, Any]) -> TorchModel:
    try:
        from sphereface2.backbones import backbone_options, outline_backbone
    except ImportError:
        raise ValueError(
            f"{folder} is a model for torch, which is not installed: pip install torch, or bring "
            "it as ONNX from where torch is (sphereface2 export MODEL OUT --to onnx)"
        ) from None
    from safetensors import safe_open
    from safetensors.torch import load_file

    with _faults_of(folder / CONFIG):
        name = config["backbone"]["name"]
        options = backbone_options(name, config["backbone"]["options"])
        backbone = outline_backbone(name, **options)
        preprocessing, flip = _preprocessing(config["preprocessing"]), _flip(config)
    # Nothing is allocated yet, so the file's shapes are checked before any memory is taken.
    weights = folder / WEIGHTS
    with faults_of_tensors(weights):
        with safe_open(weights, framework="pt") as file:
            found = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        wrong = differences(found, _shapes(backbone))
        if wrong:
            raise ValueError(f"{weights} does not fit the backbone {name} of {CONFIG}: {wrong[0]}")
        state = load_file(weights)
    backbone.to_empty(device="cpu")
    backbone.load_state_dict(state)
    backbone.eval()
    with _faults_of(folder / CONFIG):
        _check_input_size(preprocessing, backbone)
    return TorchModel(name, preprocessing, config, flip, backbone, options)


@contextmanager
def faults_of_tensors(path: Path) -> Iterator[None]:
    """What is wrong with a file of safetensors, with its path."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or cut short: {error}") from None
    except RuntimeError as error:  # torch opens the file once more, by itself
        reason = str(error).splitlines()[0]
        raise OSError(f"{path} cannot be read ({reason}); run the same command again") from None


@contextmanager
def _faults_of(config: Path) -> Iterator[None]:
    """What is wrong with a config, with its path."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{config} lacks the key {error}") from None
    except (TypeError, AttributeError):
        raise ValueError(f"{config} is damaged: its sections have the wrong form") from None
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None


def recorded_flip(folder: Path | str) -> bool:
    """Whether the model in a folder adds the mirror image's embedding, without loading it."""
    return _flip(_read_config(Path(folder) / CONFIG))


def weights_digest(folder: Path | str) -> str:
    """Stands for the network in a model folder: what was made with it holds for no other.

    Of a graph it counts in the preprocessing, which the user stated: other pixels make another
    model.
    """
    path = network_file(folder)
    digest = file_digest(path)
    if path.name == WEIGHTS:
        return digest.hexdigest()
    if path.name == OPENVINO:
        digest.update(file_digest(path.parent / OPENVINO_WEIGHTS).digest())
    config = _read_config(Path(folder) / CONFIG)
    treatment = [config.get("preprocessing"), config.get("graph")]
    digest.update(json.dumps(treatment, sort_keys=True).encode())
    return digest.hexdigest()


def file_digest(path: Path) -> hashlib._Hash:
    """SHA-256 of a file."""
    with naming(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


def store_calibration(folder: Path | str, calibration: Mapping[str, Any]) -> None:
    """Keep a calibration in config.json, which is written again, whole or not at all.

    Its key `model` must be the digest of the weights in the folder.
    """
    folder = Path(folder).resolve()
    if calibration.get("model") != weights_digest(folder):
        raise ValueError(f"the calibration was made with other weights than those in {folder}")
    path = folder / CONFIG
    config = {**_read_config(path), "calibration": dict(calibration)}
    write_atomically(path, json.dumps(config, indent=2, allow_nan=False) + "\n")


def stored_calibration(folder: Path | str) -> dict[str, Any] | None:
    """The calibration in a model folder, or None; one that was made with other weights is refused.

    `evaluation.calibration.Calibration.from_mapping` reads it.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a model folder: it holds no {CONFIG}")
    calibration = _read_config(path).get("calibration")
    if calibration is None:
        return None
    if not isinstance(calibration, dict):
        raise ValueError(f"{path} is damaged: its calibration has the wrong form")
    if calibration.get("model") != weights_digest(folder):
        raise ValueError(
            f"the calibration in {path} was made with another model than the "
            f"{network_file(folder).name} beside it; calibrate again (sphereface2 calibrate "
            f"{folder})"
        )
    return calibration


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with naming(path):
            config = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} does not describe a sphereface2 model (no format {FORMAT!r})")
    if config.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {config.get('version')!r} of the model format, this sphereface2 "
            f"reads version {VERSION}; use the sphereface2 that wrote it, or a newer one"
        )
    return config


def _preprocessing(values: Mapping[str, Any]) -> Preprocessing:
    found: dict[str, Any] = {}
    for field in fields(Preprocessing):
        value, name = values[field.name], field.name
        kinds = {"input_size": int, "channels": str}.get(name, int | float)
        each = value if isinstance(value, list) and name in ("mean", "scale") else [value]
        if not all(isinstance(one, kinds) and not isinstance(one, bool) for one in each):
            raise ValueError(f"preprocessing.{name} has the wrong type, got {value!r}")
        found[name] = tuple(value) if isinstance(value, list) else value
    return Preprocessing(**found)


def _flip(config: Mapping[str, Any]) -> bool:
    flip = config.get("flip", True)  # folders of before it was recorded: always added
    if not isinstance(flip, bool):
        raise ValueError(f"flip must be true or false, got {flip!r}")
    return flip


def _check_input_size(preprocessing: Preprocessing, backbone: Backbone) -> None:
    if preprocessing.input_size != backbone.input_size:
        raise ValueError(
            f"preprocessing.input_size ({preprocessing.input_size}) is not the backbone's "
            f"({backbone.input_size})"
        )


def _check_replaceable(folder: Path) -> None:
    """Saving replaces the whole folder, so it must hold nothing but a model."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"cannot save a model to {folder}: it is a file, not a folder")
    others = sorted(
        {entry.name for entry in folder.iterdir()} - {*NETWORKS, OPENVINO_WEIGHTS, CONFIG}
    )
    if others:
        raise ValueError(
            f"cannot save a model to {folder}: it holds other things ({others[0]}); "
            "give a new folder"
        )


def _shapes(backbone: Backbone) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in backbone.state_dict().items()}


def differences(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """What is different between two sets of tensors, in words."""
    wrong = []
    for key, shape in expected.items():
        if key not in found:
            wrong.append(f"the tensor {key} is missing")
        elif found[key] != shape:
            wrong.append(f"the tensor {key} has shape {found[key]}, not {shape}")
    return wrong + [f"the tensor {key} is not part of it" for key in found if key not in expected]
