"""Start a training from weights that are there: the network's, and the classes'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from sphereface2.backbones import Backbone, backbone_options
from sphereface2.config.schema import START, Choice, PreprocessingConfig, RunConfig
from sphereface2.data.sources.source import Faces, Source
from sphereface2.heads.head import Head
from sphereface2.heads.proxy import ProxyHead, require_class_weights
from sphereface2.heads.sharding import class_range, class_shards
from sphereface2.models.embedder import Embeddings, NetworkEmbedder
from sphereface2.models.folder import TorchModel, find_model, load_model, weights_digest
from sphereface2.models.importing import ImportedModel, import_weights, require_output
from sphereface2.registry import shown
from sphereface2.runs.folder import CHECKPOINTS, require_run, run_config
from sphereface2.training.checkpoint import (
    dotted,
    load_checkpoint,
    load_tensors,
    require_same_people,
)
from sphereface2.training.distributed import Team
from sphereface2.workers import Progress, Watch

MODEL = "model"  # the source of weights that are a run's or in a model folder
_TRAINING_ONLY = ("dropout",)  # options that may differ: the network is the same


def read_start(config: RunConfig) -> ImportedModel:
    """The network of `training.start_from`; a ValueError where it is not that of the config."""
    assert config.training.start_from is not None
    path, wanted = Path(config.training.start_from), config.backbone
    if path.is_dir():
        model = load_model(path)
        if not isinstance(model, TorchModel):
            raise ValueError(
                f"{path} holds {model.name}, which cannot be trained; training.start_from takes "
                "the weights of one of our backbones"
            )
        require_output(path, model.backbone)
        start = ImportedModel(
            model.backbone,
            model.name,
            model.options,
            model.preprocessing,
            source=MODEL,
            part="",
            digest=weights_digest(find_model(path)),
        )
    else:
        start = import_weights(path, **_hints(wanted))
    _refuse_other_network(path, start, wanted)
    if start.source == MODEL:  # which knows what it is shown; of a file the user may know better
        for key, value in _shown(config).items():
            own = getattr(start.preprocessing, key)
            if own != value:
                raise ValueError(
                    f"training.start_from={path} was trained with preprocessing.{key}={own}, but "
                    f"preprocessing.{key}={value} is given; leave it out"
                )
    return start


def _shown(config: RunConfig) -> dict[str, Any]:
    """What the config itself says of the preprocessing."""
    given = config.preprocessing
    return {} if given is None else given.model_dump(exclude_unset=True)


def _hints(wanted: Choice) -> dict[str, Any]:
    """What the config says of a network whose file may leave it open."""
    known = ("norm_eps", "input_size", "views", "view_size", "network")
    options = {key: wanted.options[key] for key in known if key in wanted.options}
    return {"backbone": None if wanted.name == START else wanted.name, "options": options}


def _refuse_other_network(path: Path, start: ImportedModel, wanted: Choice) -> None:
    has = f"training.start_from={path} is"
    if wanted.name != START and wanted.name != start.name:
        raise ValueError(
            f"{has} a network {start.name}, but backbone.name={wanted.name}; set backbone.name="
            f"{START} to take its own"
        )
    resolved = dotted(backbone_options(start.name, {**start.options, **wanted.options}))
    for key, value in dotted(start.options).items():
        if key.rpartition(".")[2] not in _TRAINING_ONLY and resolved.get(key) != value:
            raise ValueError(
                f"{has} a network with {key} {shown(value)}, but backbone.{key}="
                f"{shown(resolved.get(key))}; leave it out, or start from other weights"
            )


def with_start(config: RunConfig) -> dict[str, Any]:
    """The sections of a config that the weights to start from determine, if there are any.

    A run that began has them in its config, so that the weights are not read again.
    """
    parts, given = PreprocessingConfig.model_fields, _shown(config)
    is_known = len(given) == len(parts) and START not in (config.backbone.name, config.head.name)
    if config.training.start_from is None or is_known:
        return {}
    start = read_start(config)
    own = {part: getattr(start.preprocessing, part) for part in parts}
    found: dict[str, Any] = {
        "backbone": {"name": start.name, **start.options, **config.backbone.options},
        "preprocessing": {**own, **given},
    }
    if config.head.name == START:
        path = Path(config.training.start_from)
        run = _require_run(path, f"head.name={START}", "name the head and its options")
        head = run_config(run).head
        found["head"] = {"name": head.name, **head.options, **config.head.options}
    return found


def _require_run(path: Path, what: str, instead: str) -> Path:
    try:
        return require_run(path)
    except FileNotFoundError:
        raise ValueError(
            f"{what} needs a run in training.start_from, and {path} is not one; {instead}"
        ) from None


# -- the weights ---------------------------------------------------------------------------------


def start_weights(
    config: RunConfig,
    backbone: Backbone,
    head: Head,
    source: Source,
    *,
    settings: Mapping[str, Any],
    embedder: NetworkEmbedder,
    team: Team,
    watch: Watch,
) -> ImportedModel | None:
    """Fill a network, and the class weights, as `training.start_from` says; all ranks call it.

    settings: of this run, as `training.checkpoint.run_settings` gives them

    Returns what the network's weights were; None where none are given.
    """
    if config.training.start_from is None:
        return None
    with team.together():
        start = read_start(config)
        backbone.load_state_dict(start.backbone.state_dict())
    team.require_same({"the SHA-256 of training.start_from": start.digest})
    classes = config.training.start_classes
    if classes == "random":
        return start
    with team.together():
        proxies = require_class_weights(head, f"training.start_classes={classes}")
    if classes == "same":
        _load_classes(Path(config.training.start_from), config, proxies, settings, team)
    else:
        with watch("embedding the training images for their class weights") as progress:
            means = _class_means(proxies, source, embedder, team, progress=progress)
        _set_directions(proxies, means)
    return start


def _load_classes(
    run: Path, config: RunConfig, head: ProxyHead, settings: Mapping[str, Any], team: Team
) -> None:
    with team.together():
        means = "training.start_classes=means makes them from the images"
        _require_run(run, "training.start_classes=same", means)
        extra = load_model(run).config.get("extra") or {}
        if extra.get("discriminant"):
            raise ValueError(
                f"training.start_classes=same needs the network that the class weights of {run} "
                "were trained with, and training.discriminant has weighed the axes of its model "
                f"since: {means}"
            )
        which = extra.get("model_step", {}).get("which")
        place = run / CHECKPOINTS / ("best" if which == "best" else "last")
        require_same_people(load_checkpoint(place), settings, run)
        old, new = run_config(run).head, config.head
    # Of another head only the class weights mean the same, not its bias or its running means.
    state = head.state_dict()
    chosen = state if old.name == new.name else {"weight": state["weight"]}
    if bool(old.options.get("pair_weight")) != bool(new.options.get("pair_weight")):
        chosen = {name: value for name, value in chosen.items() if not name.startswith("pairs.")}
    tensors = {f"head.{name}": value for name, value in chosen.items()}
    rows = {f"head.{name}": head.num_classes for name in chosen if name in head.per_class}
    part = "head." if chosen is state else tuple(tensors)
    load_tensors(place, tensors, rows=rows, team=team, part=part)


def _class_means(
    head: ProxyHead, source: Source, embedder: NetworkEmbedder, team: Team, *, progress: Progress
) -> Tensor:
    """The sums of the unit embeddings of each class of this rank; nothing: a row of zeros.

    The ranks share the images; each takes from every block what is of its classes, so that none
    holds more than its rows.
    """
    with class_shards(team.rank, team.world):
        first, stop = class_range(head.num_classes)
    labels = source.labels
    known = np.flatnonzero(labels >= 0)
    mine = known[team.rank :: team.world]
    size = embedder.batch_size
    blocks = [range(at, min(at + size, len(mine))) for at in range(0, len(mine), size)]
    found = embedder.embed_blocks(Faces(source, mine), blocks, missing="skip")
    sums = torch.zeros(stop - first, head.dim, dtype=torch.float64)
    done = 0
    for _ in range(-(-len(known) // (size * team.world))):
        with team.together():
            numbers, embeddings = _next_block(found, mine, head.dim)
        for theirs, rows in team.gather((numbers, embeddings)):
            done += len(theirs)
            own = labels[theirs] - first
            is_here = (own >= 0) & (own < stop - first) & np.isfinite(rows).all(axis=1)
            unit = normalize(torch.from_numpy(rows[is_here]).double())
            sums.index_add_(0, torch.from_numpy(own[is_here]), unit)
        progress(done, len(known))
    return sums


def _next_block(
    found: Iterator[tuple[range, Embeddings]], mine: NDArray[np.int64], dim: int
) -> tuple[NDArray[np.int64], Embeddings]:
    """The next images of this rank and their embeddings; none where its share is done."""
    block, embeddings = next(found, (range(0), np.empty((0, dim), np.float32)))
    return mine[block.start : block.stop], embeddings


def _set_directions(head: ProxyHead, sums: Tensor) -> None:
    """Point class weights along the sums, at the length they have; those of nobody stay random.

    Of several centres the first is the mean; the others, half-way to their random start, are free
    to find another part of the class.
    """
    with torch.no_grad():
        weight = head.weight
        length = torch.linalg.vector_norm(weight, dim=-1, keepdim=True)
        towards = normalize(sums).to(weight)
        has_images = torch.linalg.vector_norm(sums, dim=-1).to(weight.device) > 0
        if weight.ndim == 3:
            random = normalize(weight, dim=-1)
            random[:, 0] = 0
            towards = normalize(towards[:, None] + random, dim=-1)
        weight[has_images] = (towards * length)[has_images]
