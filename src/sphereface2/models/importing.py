"""Weights that others have saved, made into a model of ours: read as data, and fitted strictly.

The layers' names say whose network it is (`models/foreign_names.py`) and the shapes how large it
is; every tensor of the network must be there, with its shape, and nothing else.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from sphereface2.backbones import BACKBONES, Backbone, backbone_options, outline_backbone
from sphereface2.backbones.backbone import halved
from sphereface2.backbones.iresnet import IResNet
from sphereface2.backbones.mobilefacenet import MobileFaceNet
from sphereface2.backbones.networks import NETWORKS
from sphereface2.config.loading import named
from sphereface2.data.transforms import PerChannel, Preprocessing
from sphereface2.models.folder import differences, faults_of_tensors, file_digest, save_model
from sphereface2.models.foreign_names import LAYOUTS, Layout, neutral
from sphereface2.registry import look_up

Tensors = dict[str, Tensor]

_COUNTER = "num_batches_tracked"  # of batch norm: no weight, and not in files of before torch 0.4.1
_DEEPEST = 8  # dictionaries within dictionaries
# What a checkpoint holds beside the network and is left behind knowingly: the class centres and
# what else a loss has, and the state of the training.
_OF_A_HEAD = re.compile(
    r"head|classifier|softmax|margin|metric|kernel|(arc|cos|ada|mag|sphere)face|partial_?fc|loss"
    r"|criterion|logits|fc7"
)
_OF_THE_TRAINING = re.compile(r"optim|sched|scaler|^amp$|callbacks|loops|rng|random")
_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BARE_CENTRES = {"weight", "kernel", "W"}  # as a head alone has them


@dataclass(frozen=True)
class ImportedModel:
    """A network with the weights of a file, in evaluation mode."""

    backbone: Backbone
    name: str
    options: dict[str, Any]
    preprocessing: Preprocessing
    source: str
    """Whose layout the file has, in words."""
    part: str
    """With what the names of the network's tensors begin in the file."""
    digest: str
    """SHA-256 of the file."""
    ignored: tuple[str, ...] = field(default=())
    """The tensors that belong to a head or to the state of a training."""

    @property
    def left_behind(self) -> str | None:
        """What is not taken, in a sentence; None if all is."""
        if not self.ignored:
            return None
        first = ", ".join(self.ignored[:3]) + (" ..." if len(self.ignored) > 3 else "")
        return f"left behind, since a model has no use for them: {first}"


def import_weights(
    path: Path | str,
    *,
    backbone: str | None = None,
    options: Mapping[str, Any] | None = None,
    part: str | None = None,
    channels: str | None = None,
    mean: PerChannel = 127.5,
    scale: PerChannel = 127.5,
    size: int | None = None,
) -> ImportedModel:
    """The network in a file that torch or safetensors has written; a ValueError says what differs.

    backbone, options: which of our backbones it is, where the file alone does not say enough;
        options that its tensors show need not be given, but `views` must be: which part of the
        face each network of the backbone views sees
    part: what the names of its tensors begin with, where a file holds several networks
    channels, mean, scale, size: what the network was trained with, as `Preprocessing` has it; by
        default what the layout's own project uses
    """
    path = Path(path)
    if backbone is not None:
        look_up("backbone", BACKBONES, backbone)
    given = dict(options or {})
    if size is not None:
        given["input_size"] = size
    tensors = read_tensors(path)
    prefixes = {
        found[1] or "" for key in tensors if (found := re.match(r"(.*\.)?networks\.\d+\.", key))
    }
    if part is None and (prefixes or backbone == "views"):
        network, fit, resolved, ignored = _views(path, tensors, given, min(prefixes, default=None))
        name, part = "views", min(prefixes)
    else:
        network, fit, resolved, ignored = _network(
            path, tensors, given, backbone=backbone, part=part
        )
        name, part = fit.name, fit.prefix
    require_output(path, network)
    preprocessing = Preprocessing(network.input_size, channels or fit.layout.channels, mean, scale)
    return ImportedModel(
        network,
        name,
        resolved,
        preprocessing,
        fit.layout.source,
        part,
        file_digest(path).hexdigest(),
        tuple(ignored),
    )


def _network(
    path: Path,
    tensors: Tensors,
    given: Mapping[str, Any],
    *,
    backbone: str | None,
    part: str | None,
) -> "tuple[Backbone, _Fit, dict[str, Any], list[str]]":
    """One network, how it fits, its options, and the tensors that are left behind."""
    fit = _best_fit(path, tensors, backbone=backbone, part=part)
    network, resolved = _without_values(path, fit, tensors, given)
    expected = dict(network.state_dict())
    ignored = _check(path, fit, expected, tensors, wanted=backbone, part=part)
    eps = resolved.get("norm_eps", 1e-5)
    state: Tensors = {}
    for key, like in expected.items():
        theirs = fit.names[key]
        found = None if theirs is None else tensors.get(fit.prefix + theirs)
        if found is None or key.endswith(_COUNTER):  # whose shape is not checked
            found = neutral(key, like, eps=eps)
        state[key] = found
    network.to_empty(device="cpu")
    network.load_state_dict(state)
    return network.eval(), fit, resolved, ignored


def _views(
    path: Path, tensors: Tensors, given: Mapping[str, Any], prefix: str | None
) -> "tuple[Backbone, _Fit, dict[str, Any], list[str]]":
    """As `_network`, for the networks of the backbone views, whose names begin with `prefix`."""
    if "views" not in given or prefix is None:
        one = "" if prefix is None else f"sphereface2 import {path} MODEL --part {prefix}networks.0"
        raise ValueError(
            f"{path} does not say which part of the face each network of the backbone views sees; "
            "name them in their order, such as views=[whole,upper] (and view_size and input_size, "
            "where they are not the usual ones), take the run or the model folder that it comes "
            "from" + (f", or make a model of one network: {one}" if one else "")
        )
    place = re.compile(rf"{re.escape(prefix)}networks\.(\d+)\.")
    count = len({found[1] for key in tensors if (found := place.match(key))})
    options = backbone_options("views", given)
    if len(options["views"]) != count:
        raise ValueError(
            f"{path} has {count} networks of the backbone views, and views= names "
            f"{len(options['views'])} parts of the face; give one for each network"
        )
    left = [key for key in tensors if not place.match(key)]
    unknown = [key for key in left if not _is_known_extra(key.removeprefix(prefix))]
    if unknown:
        raise ValueError(
            f"{path} does not fit the backbone views: the tensor {unknown[0]} is not part of it"
        )
    wanted = {**named(given.get("network", {})), "input_size": options["view_size"]}
    backbone = wanted.pop("name", None)
    networks: Tensors = {}
    for number in range(count):
        part = f"{prefix}networks.{number}"
        try:
            network, fit, own, _ = _network(path, tensors, wanted, backbone=backbone, part=part)
        except ValueError as error:
            raise ValueError(
                f"{error} (the network {part}, with view_size={options['view_size']})"
            ) from None
        networks |= {f"networks.{number}.{key}": v for key, v in network.state_dict().items()}
    width = own.pop("embedding_dim") * count
    del own["input_size"]
    options = {"embedding_dim": width, **given, "network": {"name": fit.name, **own}}
    whole = outline_backbone("views", **options)
    shapes = (
        {key: tuple(v.shape) for key, v in of.items()} for of in (networks, whole.state_dict())
    )
    if wrong := differences(*shapes):
        raise ValueError(f"{path} does not fit the backbone views: {wrong[0]}")
    whole.to_empty(device="cpu")
    whole.load_state_dict(networks)
    return whole.eval(), fit, backbone_options("views", options), left


def save_import(model: ImportedModel, folder: Path | str, *, flip: bool = True) -> None:
    """Write the model folder; where it comes from is kept in its config.json."""
    save_model(
        folder,
        model.backbone,
        name=model.name,
        options=model.options,
        preprocessing=model.preprocessing,
        flip=flip,
        extra={"imported": {"source": model.source, "part": model.part, "sha256": model.digest}},
    )


# -- reading -------------------------------------------------------------------------------------


def read_tensors(path: Path) -> Tensors:
    """All tensors of a file by their dotted names; nothing in the file is run."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"the weights {path}: it {what}")
    with path.open("rb") as file:
        start = file.read(16)
    if start[8:9] == b"{":
        with faults_of_tensors(path):
            return load_file(path)
    if start[:4] != b"PK\x03\x04" and start[:1] != b"\x80":
        raise ValueError(
            f"{path} is not a file of weights that can be read: it is neither what torch.save nor "
            "what safetensors writes (.pt, .pth, .safetensors)"
        )
    if start[:2] == b"PK":
        _require_checkpoint(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it may not know: it says so where it does not
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)|global (\S+)", str(error))
        asks = f"(it asks for {next(filter(None, named.groups()))})" if named else "or is damaged"
        raise ValueError(
            f"{path} holds more than tensors {asks}, so that it could run code and is not read; "
            "save the state dict alone, where you trust the file: torch.save(model.state_dict(), "
            "FILE)"
        ) from None
    except Exception:  # a broken pickle raises any kind of error
        raise ValueError(f"{path} is damaged or cut short: torch cannot read it") from None
    found = dict(_flat(content, "", _DEEPEST))
    if not found:
        raise ValueError(f"{path} holds no tensors by name; save the state dict of a network")
    return found


def _require_checkpoint(path: Path) -> None:
    """Refuse other things that are zip files, and one that is cut short."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise ValueError(f"{path} is damaged or cut short: torch cannot read it") from None
    tops = {name.partition("/")[2].partition("/")[0] for name in names}
    if "code" in tops and "constants.pkl" in tops:
        raise ValueError(
            f"{path} is a TorchScript archive, which holds code; save its state dict instead: "
            "torch.save(model.state_dict(), FILE)"
        )
    if "data.pkl" not in tops:
        raise ValueError(f"{path} is a zip file, but not one that torch.save has written")


def _flat(value: Any, prefix: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if prefix:
            yield prefix, value.detach()
    elif isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key), depth - 1)


# -- which network it is -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """A backbone of ours, under the names of a layout, as part of a file."""

    layout: Layout
    name: str
    options: dict[str, Any]
    prefix: str
    names: dict[str, str | None]
    """Our names of its tensors to those of the layout."""
    matched: int
    missing: list[str]
    surplus: list[str]

    @property
    def score(self) -> float:
        return self.matched / (self.matched + len(self.missing) + len(self.surplus))


def _best_fit(
    path: Path, tensors: Tensors, *, backbone: str | None = None, part: str | None = None
) -> _Fit:
    """The backbone whose names the file has most of."""
    fits = [fit for layout in LAYOUTS for fit in _fits(layout, tensors, backbone, part)]
    best = max(fits, key=lambda fit: fit.score, default=None)
    if best is None or (backbone is None and best.matched < len(best.missing)):
        first = ", ".join(list(tensors)[:3])
        known = ", ".join(layout.source for layout in LAYOUTS)
        where = "" if part is None else f" under {part!r}"
        of = "a network that is known here" if backbone is None else f"the backbone {backbone}"
        meant = f"; read are the weights of {known}"
        if backbone is not None:
            meant = _fitting(path, tensors, part) or meant
        raise ValueError(
            f"the tensors of {path} are not those of {of}{where} (the first are {first}){meant}"
        )
    twins = {fit.prefix for fit in fits if fit.score == best.score and fit.prefix != best.prefix}
    if twins:
        parts = sorted({best.prefix, *twins})
        raise ValueError(
            f"{path} holds several networks, under {' and '.join(map(repr, parts))}; choose one: "
            f"sphereface2 import {path} MODEL --part {parts[-1].removesuffix('.')}"
        )
    alike = [fit for fit in fits if fit.score == best.score]
    return min(alike, key=lambda fit: _misshapen(fit, tensors)) if len(alike) > 1 else best


def _fits(
    layout: Layout, tensors: Tensors, backbone: str | None, part: str | None
) -> Iterator[_Fit]:
    names = [each for each in layout.backbones if backbone in (None, each)]
    # All members of a family begin and end alike: where the first finds nothing, none does.
    if not names or not _prefixes(tensors, _names(layout, names[0], False), part):
        return
    for name in names:
        for options in _variants(layout, name):
            ours = _names(layout, name, bool(options.get("batch_norm")))
            theirs = [each for each in ours.values() if each is not None]
            weights = [each for each in theirs if not each.endswith(_COUNTER)]
            for prefix in _prefixes(tensors, ours, part):
                here = {each.removeprefix(prefix) for each in tensors if each.startswith(prefix)}
                surplus = [each for each in here - {*theirs} if not _is_known_extra(each)]
                missing = [each for each in weights if each not in here]
                matched = len(weights) - len(missing)
                yield _Fit(layout, name, options, prefix, ours, matched, missing, surplus)


@cache
def _names(layout: Layout, name: str, batch_norm: bool) -> dict[str, str | None]:
    return layout.names(name, _our_names(name, batch_norm))


@cache
def _our_names(name: str, batch_norm: bool) -> list[str]:
    options = {"batch_norm": True} if batch_norm else {}
    smallest = outline_backbone(name, width=1, input_size=16, embedding_dim=1, **options)
    return list(smallest.state_dict())


def _variants(layout: Layout, name: str) -> list[dict[str, Any]]:
    """The options that change which tensors a backbone has."""
    fixed = dict(layout.fixed)
    if "batch_norm" not in backbone_options(name, {}):
        return [fixed]
    return [{**fixed, "batch_norm": value} for value in (False, True)]


def _prefixes(
    tensors: Iterable[str], names: Mapping[str, str | None], part: str | None
) -> set[str]:
    """With what the names of a network may begin, by where its first and last tensors are."""
    if part is not None:
        return {part if part.endswith(".") or not part else f"{part}."}
    weights = [each for each in names.values() if each is not None and each.endswith(".weight")]
    anchors = (weights[0], *weights[-2:])
    found = set()
    for name in tensors:
        for anchor in anchors:
            if name == anchor or name.endswith(f".{anchor}"):
                found.add(name.removesuffix(anchor))
    return found


@lru_cache(maxsize=1 << 14)
def _is_known_extra(name: str) -> bool:
    """Whether a tensor beside a network is of a head or of the training's state."""
    return name in _BARE_CENTRES or any(
        _OF_A_HEAD.search(word) or _OF_THE_TRAINING.search(word) for word in name.lower().split(".")
    )


# -- whether it fits -----------------------------------------------------------------------------


def _without_values(
    path: Path, fit: _Fit, tensors: Tensors, given: Mapping[str, Any]
) -> tuple[Backbone, dict[str, Any]]:
    """Our backbone, whose tensors have no values yet, and its options."""
    options = {**fit.options, **_sizes(fit, tensors), **given}
    resolved = backbone_options(fit.name, options)
    network = outline_backbone(fit.name, **resolved)
    side = _sizes(fit, tensors).get("input_size", 0) // 16
    if side and "input_size" in given and halved(network.input_size, 4) != side:
        raise ValueError(
            f"{path} is a network for images of {16 * side - 15} to {16 * side} pixels, not "
            f"{network.input_size}"
        )
    return network, resolved


def _misshapen(fit: _Fit, tensors: Tensors) -> int:
    """How many shapes differ where the names are the same, as those of mobilefacenet and mbf."""
    network = outline_backbone(fit.name, **{**fit.options, **_sizes(fit, tensors)})
    pairs = ((value, fit.names[key]) for key, value in network.state_dict().items())
    return sum(
        tensors[fit.prefix + theirs].shape != value.shape
        for value, theirs in pairs
        if theirs is not None and fit.prefix + theirs in tensors
    )


def _sizes(fit: _Fit, tensors: Tensors) -> dict[str, int]:
    """Width, embedding size and input size, as the shapes of some tensors say."""

    def shape(ours: str) -> tuple[int, ...]:
        theirs = fit.names[ours]
        found = tensors.get(f"{fit.prefix}{theirs}")
        return () if found is None else tuple(found.shape)

    kind = NETWORKS[fit.name]
    first, last = "stages.0.0.weight", "project.weight"
    scale = 1
    if issubclass(kind, IResNet):
        first, last = "stem.0.weight", "output.3.weight"
    elif issubclass(kind, MobileFaceNet):
        first, scale = "layers.0.0.weight", kind.scale
    sizes: dict[str, int] = {}
    if len(shape(first)) == 4:
        sizes["width"] = max(1, shape(first)[0] // scale)
    if len(shape(last)) == 2:
        sizes["embedding_dim"] = shape(last)[0]
        places = shape(last)[1] // (8 * sizes.get("width", 64))
        if issubclass(kind, MobileFaceNet):
            places = shape("whole.0.weight")[-1] ** 2 if shape("whole.0.weight") else 0
        if places:
            sizes["input_size"] = 16 * max(1, round(places**0.5))
    return sizes


def _check(
    path: Path,
    fit: _Fit,
    expected: Tensors,
    tensors: Tensors,
    *,
    wanted: str | None,
    part: str | None,
) -> list[str]:
    """A ValueError that names the first tensors that differ; else those that are left behind."""
    theirs = {key: name for key, name in fit.names.items() if name is not None}
    shapes = {f"{fit.prefix}{theirs[key]}": tuple(expected[key].shape) for key in theirs}
    found = {
        name: tuple(value.shape)
        for name, value in tensors.items()
        if name in shapes or not _is_known_extra(name.removeprefix(fit.prefix))
    }
    if part is not None:
        found = {name: shape for name, shape in found.items() if name.startswith(fit.prefix)}
    found |= {name: shapes[name] for name in shapes if name.endswith(_COUNTER)}
    wrong = differences(found, shapes)
    if wrong:
        text = f"{path} does not fit the backbone {fit.name}: {', '.join(wrong[:3])}"
        text += f" and {len(wrong) - 3:,} more" if len(wrong) > 3 else ""
        names = f" (its names are those of {fit.layout.source})"
        raise ValueError(text + (names if wanted is None else _fitting(path, tensors, part)))
    for name in shapes:
        value = tensors.get(name)
        if value is None or name.endswith(_COUNTER):
            continue
        if value.dtype not in _NUMBERS or value.layout is not torch.strided or value.is_meta:
            raise ValueError(
                f"{path} is not usable: its tensor {name} does not hold plain numbers "
                f"({value.dtype}, {value.layout}, {value.device}); save the weights as float32"
            )
        if not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"{path} is not usable: its tensor {name} has values that are not finite"
            )
    return [name for name in tensors if name not in shapes]


def _fitting(path: Path, tensors: Tensors, part: str | None) -> str:
    """The backbone of ours that would fit, in words, if there is one."""
    try:
        best = _best_fit(path, tensors, part=part)
    except ValueError:
        return ""
    if best.missing or best.surplus:
        return ""
    return f"; they are {best.layout.source}: the backbone {best.name} fits"


def require_output(path: Path, network: Backbone) -> None:
    """A ValueError where two noises do not give two finite embeddings."""
    generator = torch.Generator().manual_seed(0)
    size = network.input_size
    with torch.inference_mode():
        found = network(torch.rand(2, 3, size, size, generator=generator) * 2 - 1)
    if not bool(torch.isfinite(found).all()) or bool(torch.equal(found[0], found[1])):
        raise ValueError(
            f"{path} is not usable: as {type(network).__name__} its weights give the same "
            "embedding, or none, for different images"
        )
