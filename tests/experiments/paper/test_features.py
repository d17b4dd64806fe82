"""Learned features: a tiny training gives them, and their boundaries are those of the loss."""

import fcntl
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sphereface2.config.schema import load_config
from sphereface2.data.mixing import build_people
from sphereface2.evaluation.experiment_results import LearnedFeatures, plain_rows
from sphereface2.experiments.paper.features import learn_features
from sphereface2.models.folder import load_model
from sphereface2.runs import train as runs
from sphereface2.runs.folder import read_history
from sphereface2.training.result import TrainingResult


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def learned(workdir: Path) -> LearnedFeatures:
    return tiny(workdir)


def tiny(workdir: Path) -> LearnedFeatures:
    return learn_features(
        dim=2, margin=0.2, people=3, images_per_person=4, image_size=16, epochs=2, workdir=workdir
    )


def test_features_are_those_of_the_exported_network_on_its_training_images(
    learned: LearnedFeatures, workdir: Path
) -> None:
    run = workdir / "features-2d-margin-0.2"
    images = build_people(load_config(run))
    model = load_model(run / "model")
    pixels = torch.from_numpy(np.stack([images[i][0] for i in range(len(images))]))
    with torch.no_grad():
        raw = model.backbone(model.preprocessing.to_tensor(pixels)).numpy()
    assert np.asarray(learned.features) == pytest.approx(
        raw / np.linalg.norm(raw, axis=1, keepdims=True), abs=1e-4
    )
    assert learned.labels == (0,) * 4 + (1,) * 4 + (2,) * 4
    assert model.config["extra"]["head_bias"] == pytest.approx(learned.bias)
    assert (learned.dim, learned.people) == (2, 3)
    assert (learned.radius, learned.margin, learned.sharpness) == (30, 0.2, 1)
    # Three people on a circle are 120° apart: the threshold starts midway, and has moved a little.
    start = -30 * (1 + math.cos(math.radians(120))) / 2
    assert learned.bias == pytest.approx(start, abs=0.1)
    assert learned.bias != start


def test_a_finished_run_is_not_trained_again(learned: LearnedFeatures, workdir: Path) -> None:
    run = workdir / "features-2d-margin-0.2"
    before = [line for line in read_history(run) if line["kind"] == "train"]
    assert tiny(workdir) == learned
    assert [line for line in read_history(run) if line["kind"] == "train"] == before


def test_a_second_process_waits_for_the_first(
    learned: LearnedFeatures, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held while the run is trained, and beside its folder."""
    held = []

    def resumed(folder: Path, **_: object) -> TrainingResult:
        with pytest.raises(BlockingIOError), (workdir / f".{folder.name}.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(folder.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "resume", resumed)
    with pytest.raises(KeyboardInterrupt):
        tiny(workdir)
    assert held == ["features-2d-margin-0.2"]
    assert not (workdir / ".features-2d-margin-0.2.lock").exists()  # free again


def test_other_dimensions_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dim must be 2 or 3, got 4"):
        learn_features(dim=4, margin=0.2, workdir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_logits_are_zero_on_the_boundaries(sharpness: float) -> None:
    features = square(bias=-15.0, margin=0.3, sharpness=sharpness)

    def score(cosine: float) -> float:
        return float(2 * ((cosine + 1) / 2) ** sharpness - 1)

    positive, baseline, negative = features.boundaries
    assert 30 * (score(positive) - 0.3) - 15 == pytest.approx(0)
    assert 30 * score(baseline) - 15 == pytest.approx(0)
    assert 30 * (score(negative) + 0.3) - 15 == pytest.approx(0)
    assert features.induced_margin == pytest.approx(positive - negative)


def test_without_adjustment_the_induced_margin_is_twice_m() -> None:
    assert square(bias=-7.0, margin=0.3).induced_margin == pytest.approx(0.6)
    # At a threshold below -1 there is no boundary: it is held at the far end of the sphere.
    assert square(bias=45.0, margin=0.3, sharpness=3.0).boundaries[2] == -1


def test_gaps_are_found_by_looking_at_every_image() -> None:
    features = square(bias=-15.0, margin=0.3)
    for person, gap in enumerate(features.gaps()):
        own: list[float] = []
        others: list[float] = []
        for image, label in zip(features.features, features.labels, strict=True):
            cosine = sum(a * b for a, b in zip(image, features.classifiers[person], strict=True))
            (own if label == person else others).append(cosine)
        assert gap == pytest.approx(min(own) - max(others))


def test_features_round_trip_through_json(tmp_path: Path) -> None:
    features = square(bias=-15.0, margin=0.3)
    features.save(tmp_path / "features.json")
    assert LearnedFeatures.load(tmp_path / "features.json") == features


def test_features_that_do_not_fit_together_are_refused() -> None:
    features = square(bias=0.0, margin=0.0)
    with pytest.raises(ValueError, match="7 labels for 8 features"):
        replace(features, labels=features.labels[1:])
    with pytest.raises(ValueError, match="the same dimension"):
        replace(features, classifiers=((1.0, 0.0, 0.0),) * 4)


def square(*, bias: float, margin: float, sharpness: float = 1.0) -> LearnedFeatures:
    """Four people at the corners of a square, with images scattered around their classifiers."""
    angles = np.radians([0, 90, 180, 270])
    scattered = np.concatenate([angles + 0.1, angles - 0.3])
    return LearnedFeatures(
        features=plain_rows(5 * np.column_stack([np.cos(scattered), np.sin(scattered)])),
        labels=(0, 1, 2, 3) * 2,
        classifiers=plain_rows(np.column_stack([np.cos(angles), np.sin(angles)])),
        bias=bias,
        radius=30.0,
        margin=margin,
        sharpness=sharpness,
    )
