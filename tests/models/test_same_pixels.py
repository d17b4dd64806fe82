"""Training and evaluation show a network the same pixels of an image, whatever its size."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from typer.testing import CliRunner

from sphereface2 import build_backbone, load_model
from sphereface2.backbones.backbone import Backbone
from sphereface2.cli import app
from sphereface2.config.schema import load_config
from sphereface2.data.loader.loader import BatchPlan, Loader
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.transforms import Preprocessing
from sphereface2.models.folder import save_model
from sphereface2.runs.train import train
from tests.runs.test_runs import SMALL, write_crops

SIDES = [(16, 16), (32, 32), (112, 112), (40, 40), (23, 31), (9, 9), (33, 17), (250, 250)]


@pytest.fixture
def shown() -> Iterator[list[torch.Tensor]]:
    """What backbones are shown in evaluation from now on."""
    seen: list[torch.Tensor] = []

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, Backbone) and not module.training:
            seen.append(inputs[0].clone())

    handle = register_module_forward_pre_hook(note)
    yield seen
    handle.remove()


@pytest.mark.parametrize("size", [16, 32, 112])
def test_loader_extract_and_model_show_the_same_pixels(
    tmp_path: Path, size: int, shown: list[torch.Tensor]
) -> None:
    rng = np.random.default_rng(0)
    for number, (height, width) in enumerate(SIDES):
        path = tmp_path / "crops" / f"p{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 256, (height, width, 3), np.uint8))
    options = {"width": 2, "input_size": size, "embedding_dim": 4}
    preprocessing = Preprocessing(input_size=size)
    network = build_backbone("sfnet4", seed=0, **options)
    folder = tmp_path / "model"
    save_model(folder, network, name="sfnet4", options=options, preprocessing=preprocessing)
    source = ImageFolder(path=str(tmp_path / "crops"))
    plan = BatchPlan(source.labels, batch_size=len(source))
    (batch,) = Loader(source, plan, size=size, flip=False, workers=0).batches(0, 1)
    trained = torch.empty(len(source), 3, size, size)
    trained[torch.from_numpy(plan.epoch(0)[0])] = preprocessing.to_tensor(batch.images)
    shown.clear()
    words = ["extract", folder, tmp_path / "crops", tmp_path / "x.npy", "--no-flip"]
    done = CliRunner().invoke(app, [*map(str, words), "--device", "cpu", "--batch-size", "3"])
    assert done.exit_code == 0, done.output
    assert torch.equal(torch.cat(shown)[-len(source) :], trained)
    shown.clear()
    load_model(folder).embed([source[index][0] for index in range(len(source))], flip=False)
    assert torch.equal(torch.cat(shown), trained)


def test_what_a_training_evaluates_is_not_augmented(
    tmp_path: Path, shown: list[torch.Tensor]
) -> None:
    for person in "abcd":
        write_crops(tmp_path / "crops" / person, 4)
    crops = ImageFolder(path=str(tmp_path / "crops"))
    given = [f"data={{name: folder, path: {tmp_path / 'crops'}}}", "training.batch_size=4"]
    given += [f"evaluation.sets=[{tmp_path / 'crops'}]", "training.evaluate_every=1"]
    config = load_config("quickstart", [*SMALL[3:], *given, "augmentation={name: strong, move: 1}"])
    train(config, tmp_path / "run")
    size = config.backbone.options["input_size"]
    images = [Preprocessing(size).to_tensor(crops[index][0])[0] for index in range(len(crops))]
    images += [image.flip(2) for image in images]
    evaluated = torch.cat(shown)
    assert len(evaluated) > len(images)
    for each in evaluated:
        assert any(torch.equal(each, image) for image in images)
