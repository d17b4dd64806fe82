"""A whole training step against the bare forward and backward pass of the same network.

    python -m benchmarks.training                       # to docs/performance/training.json
    python -m benchmarks.training mobilefacenet --batch 32 --rounds 6
    python -m benchmarks.training sfnet20 --compile     # with training.compile=true

The training is what `sphereface2 train` runs: rendered faces as 112x112 JPEGs in a folder, read by
one worker process, a head of 10,000 classes with its fused update, SGD of the network, a record of
every step. The bare pass is of a copy of the network, not compiled, on random numbers, with nothing
around it. A few steps of each take turns in one process.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import cv2
import torch

from sphereface2.backbones import build_backbone
from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import config_from_mapping
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.experiments.paper.parallel import describe_machine
from sphereface2.heads import build_head
from sphereface2.training.events import Events
from sphereface2.training.trainer import Trainer

OUTPUT = Path("docs/performance/training.json")
NETWORKS = ("sfnet20", "iresnet18", "mobilefacenet")
SIZE, PEOPLE, IMAGES, CLASSES = 112, 40, 8, 10_000
TURN = 3  # steps of a contender in a row, of which the first counts for neither


@dataclass(frozen=True)
class Speed:
    """Images per second, of the faster quarter's slowest step; `share` is the ratio of the two.

    A machine that others use, too, disturbs most steps and hastens none.
    """

    network: str
    compiled: bool
    batch: int
    threads: int
    bare: float
    training: float
    share: float


@dataclass
class TakingTurns(Events):
    """After every few steps of the training, as many bare passes."""

    bare: Backbone
    batch: int
    rounds: int
    trainer: Trainer | None = None
    full_seconds: list[float] = field(default_factory=list)
    bare_seconds: list[float] = field(default_factory=list)
    _steps: list[float] = field(default_factory=list)
    _ended: float = 0.0

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        self._steps.append(time.perf_counter() - self._ended)
        if len(self._steps) == TURN:
            passes = [self._pass() for _ in range(TURN)]
            if step > TURN:  # the first round warms up
                self.full_seconds += self._steps[1:]
                self.bare_seconds += passes[1:]
            self._steps = []
            if len(self.full_seconds) == self.rounds * (TURN - 1):
                assert self.trainer is not None
                self.trainer.stop()
        self._ended = time.perf_counter()

    def _pass(self) -> float:
        assert self.trainer is not None
        pixels = torch.randint(0, 256, (self.batch, SIZE, SIZE, 3), dtype=torch.uint8)
        images = self.trainer.update.preprocessing.to_tensor(pixels)  # also in the same order
        began = time.perf_counter()
        self.bare.zero_grad()
        torch.autograd.backward(self.bare(images).sum())
        return time.perf_counter() - began


def measure(name: str, images: Path, *, batch: int, rounds: int, is_compiled: bool) -> Speed:
    """Train the network called `name` for a while, beside the bare passes of its copy."""
    backbone = build_backbone(name, input_size=SIZE, embedding_dim=512)
    turns = TakingTurns(copy.deepcopy(backbone).train(), batch, rounds)
    config = config_from_mapping(
        {
            "device": "cpu",
            "data": {"name": "folder", "path": str(images)},
            "backbone": {"name": name, "embedding_dim": 512},
            "head": "sphereface2-c",
            "optimizer": {"fused_head": True, "learning_rate": 0.01},
            "training": {
                "steps": 1_000_000,
                "batch_size": batch,
                "workers": 1,
                "checkpoint_every": 1_000_000,  # epochs, which are very short ones here
                "compile": is_compiled,
            },
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        head = build_head("sphereface2-c", 512, CLASSES)
        trainer = Trainer(
            backbone,
            head,
            ImageFolder(path=str(images)),
            config,
            run_folder=Path(folder),
            events=turns,
        )
        turns.trainer = trainer
        trainer.run()
    both = (turns.bare_seconds, turns.full_seconds)
    bare, full = (statistics.quantiles(seconds, n=4)[0] for seconds in both)
    return Speed(
        network=name,
        compiled=is_compiled,
        batch=batch,
        threads=torch.get_num_threads(),
        bare=batch / bare,
        training=batch / full,
        share=bare / full,
    )


def render(folder: Path) -> None:
    """A folder a person of rendered faces."""
    source = SyntheticFaces(people=PEOPLE, images_per_person=IMAGES, image_size=SIZE)
    for number in range(len(source)):
        image, label = source[number]
        path = folder / f"{label:03}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image[:, :, ::-1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("networks", nargs="*", help=f"of all backbones; {', '.join(NETWORKS)}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--compile", action="store_true", help="with training.compile=true")
    given = parser.parse_args(arguments)
    forms = [given.compile] if given.networks or given.compile else [False, True]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        render(Path(folder))
        for name in given.networks or NETWORKS:
            for is_compiled in forms:
                speed = measure(
                    name,
                    Path(folder),
                    batch=given.batch,
                    rounds=given.rounds,
                    is_compiled=is_compiled,
                )
                found.append(speed)
                form = "compiled" if is_compiled else "plain"
                print(
                    f"{name:14} {form:8}  bare {speed.bare:6.1f}  training {speed.training:6.1f} "
                    f"images/s  {speed.share:.1%}",
                    flush=True,
                )
    if not given.networks and not given.compile:
        stored = {"machine": describe_machine(), "speeds": [asdict(speed) for speed in found]}
        OUTPUT.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
