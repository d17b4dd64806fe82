"""A network, people and a config that train in a moment."""

import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import RunConfig, config_from_mapping
from sphereface2.workers import Progress, unseen

SIZE = 24


class TinyNet(Backbone):
    """A convolution, batch norm, dropout and a projection to eight numbers."""

    def __init__(self, *, batch_norm: bool = True, dropout: float = 0.2) -> None:
        super().__init__(width=4, input_size=SIZE, embedding_dim=8)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, kernel_size=3, stride=4),
            nn.BatchNorm2d(4) if batch_norm else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.LazyLinear(8),
        )
        self.layers(torch.zeros(2, 3, SIZE, SIZE))

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.layers(images)
        return embeddings


class Crowd:
    """People who are each a pattern of noise, and their images, which add more of it."""

    image_size: int | None = SIZE

    def __init__(self, *, people: int = 5, images: int = 9) -> None:
        generator = np.random.default_rng(7)
        faces = generator.integers(0, 200, (people, 1, SIZE, SIZE, 3))
        noise = generator.integers(0, 56, (people, images, SIZE, SIZE, 3))
        self.images = (faces + noise).astype(np.uint8).reshape(-1, SIZE, SIZE, 3)
        self.labels: NDArray[np.int64] = np.repeat(np.arange(people), images)
        self.num_classes = people

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        return self.images[index], int(self.labels[index])

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None: ...


def make_config(**training: Any) -> RunConfig:
    """Three epochs of five steps over `Crowd()`; `training` overrides that section."""
    names = RunConfig.model_fields.keys() - {"training"}
    sections: dict[str, Any] = {key: training.pop(key) for key in names & training.keys()}
    return config_from_mapping(
        {
            "device": "cpu",
            "data": "synthetic",
            "backbone": "sfnet4",
            "head": "sphereface2-c",
            "training": {"epochs": 3, "batch_size": 8, "workers": 1, "log_every": 2, **training},
            "schedule": {"warmup": 0.5},
            **sections,
        }
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The trainer's clock: a step takes four seconds, one of them a wait without any work."""
    ours = SimpleNamespace(perf_counter=count(step=3).__next__, monotonic=time.monotonic)
    loaders = SimpleNamespace(perf_counter=count().__next__, process_time=lambda: 0.0)
    monkeypatch.setattr("sphereface2.training.trainer.time", ours)
    monkeypatch.setattr("sphereface2.data.loader.loader.time", loaders)
    monkeypatch.setattr("sphereface2.data.loader.readers.time", loaders)
    return ours


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
