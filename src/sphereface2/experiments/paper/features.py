"""Learn features of two or three dimensions from six people, to draw them with their boundaries.

Six people on a circle make a picture, not a face recogniser. Neighbours are at most 60° apart, so
the threshold that all classifiers share has to lie between cos 60° and 1, far from where the bias
of the loss starts for many dimensions, and classifiers that start side by side can hardly pass
each other. Bias and class weights therefore start where they can be learned from; all else is the
training line of every run.
"""

import math
from pathlib import Path

import torch

from sphereface2.config.schema import RunConfig, load_config
from sphereface2.data.mixing import build_people
from sphereface2.data.sources.source import Faces
from sphereface2.evaluation.experiment_results import LearnedFeatures, plain_rows
from sphereface2.files import file_lock
from sphereface2.models.embedder import NetworkEmbedder
from sphereface2.models.folder import load_model
from sphereface2.runs import train as runs
from sphereface2.runs.folder import CONFIG, run_config
from sphereface2.training.checkpoint import load_tensors
from sphereface2.training.result import TrainingResult
from sphereface2.training.stopping import StoppedError
from sphereface2.workers import Watch, unwatched

_RADIUS = 30.0
SEEDS = {2: 1875, 3: 2740}
"""For each dimension a seed whose six class weights start well apart: by 49° and 70° or more."""


def learn_features(
    *,
    dim: int,
    margin: float,
    workdir: Path,
    people: int = 6,
    images_per_person: int = 60,
    image_size: int = 32,
    epochs: int = 60,
    watch: Watch = unwatched,
) -> LearnedFeatures:
    """Train SphereFace2-C on rendered people, then embed the images that it was trained on.

    The similarity adjustment is off (t = 1), so that decision boundaries are straight. The run has
    a folder of its own below `workdir`; one that is already there with the same config is resumed.
    """
    if dim not in SEEDS:
        raise ValueError(f"dim must be 2 or 3, got {dim}: other features cannot be drawn")
    config = load_config(
        "quickstart",
        [
            f"seed={SEEDS[dim]}",
            "device=cpu",
            f"data.people={people}",
            f"data.images_per_person={images_per_person}",
            f"data.image_size={image_size}",
            "backbone.width=16",
            f"backbone.input_size={image_size}",
            f"backbone.embedding_dim={dim}",
            f"head.radius={_RADIUS}",
            f"head.margin={margin}",
            "head.sharpness=1",
            "head.loss_weight=1",
            f"head.bias_start={_bias_start(dim, people)}",
            f"training.epochs={epochs}",
            f"training.batch_size={min(60, people * images_per_person)}",
            "training.workers=0",
            f"training.checkpoint_every={epochs}",
            "optimizer.learning_rate=0.01",
            f"schedule.warmup={min(1.0, epochs / 2)}",
            "evaluation.sets=[]",
        ],
    )
    folder = workdir / f"features-{dim}d-margin-{margin:g}"
    # Beside the folder: what is in there may be removed for a new start.
    with file_lock(
        workdir / f".{folder.name}.lock",
        while_waiting=lambda: watch(f"waiting for another process that trains {folder}"),
    ):
        result = _trained(config, folder, watch)
        return _features(config, folder, result, watch)


def _bias_start(dim: int, people: int) -> float:
    """The bias whose threshold is midway between one's own classifier and an even neighbour's.

    On a circle neighbours are 2π/K apart; on a sphere six people are at right angles.
    """
    neighbour = math.cos(2 * math.pi / people) if dim == 2 else 0.0
    return -_RADIUS * (1 + neighbour) / 2


def _trained(config: RunConfig, folder: Path, watch: Watch) -> TrainingResult:
    config = runs.resolve(config)
    if (folder / CONFIG).is_file() and run_config(folder) == config:
        result = runs.resume(folder, watch=watch)
    else:
        result = runs.train(config, folder, overwrite=True, watch=watch)
    if result.interrupted:
        # The trainer has kept it until its checkpoint was written.
        raise StoppedError("stopped", number=result.stopped_by)
    return result


def _features(
    config: RunConfig, folder: Path, result: TrainingResult, watch: Watch
) -> LearnedFeatures:
    """The exported network's features beside the classifiers of the same step."""
    people, model, head = build_people(config), load_model(folder), config.head.options
    with watch("embedding the training images") as progress:
        embedder = NetworkEmbedder(model.backbone, model.preprocessing, flip=False)
        features = embedder.embed(Faces(people), progress=progress)
    weight = torch.empty(people.num_classes, model.backbone.embedding_dim)
    bias = torch.empty(())
    tensors = {"head.weight": weight, "head.bias": bias}
    load_tensors(result.checkpoint, tensors, part="head.")
    return LearnedFeatures(
        features=plain_rows(features),
        labels=tuple(int(label) for label in people.labels),
        classifiers=plain_rows(weight.numpy()),
        bias=float(bias),
        radius=float(head["radius"]),
        margin=float(head["margin"]),
        sharpness=float(head["sharpness"]),
    )
