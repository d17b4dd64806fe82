"""One of three processes that train the same runs on 1, 2 and 3 ranks, and resume each other's.

The parent starts all three; in a phase with fewer ranks the others wait for the next one.
"""

import itertools
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sphereface2.config.schema import OptimizerConfig
from sphereface2.data.transforms import Preprocessing
from sphereface2.heads import ProxyHead, build_head
from sphereface2.heads.sharding import class_shards
from sphereface2.models.embedder import NetworkEmbedder
from sphereface2.runs.start import _class_means
from sphereface2.training.distributed import Team, joined
from sphereface2.training.events import Events
from sphereface2.training.optimizer import build_optimizer
from sphereface2.training.trainer import Trainer
from sphereface2.workers import unseen
from tests.training.conftest import SIZE, Crowd, TinyNet, make_config

WORLDS = (1, 2, 3)
PHASES = [("train", 1), ("train", 2), ("train", 3), ("resume", 1), ("resume", 2), ("resume", 3)]
STEPS = 6  # three an epoch
STOP_AT = 4

# From how many ranks to how many a stopped run is resumed. Cutting what is kept of the classes in
# any other way is one matter; that a case keeps and finds all of its state is another.
ANY = tuple(itertools.product(WORLDS, WORLDS))
SAME_FEWER_MORE = ((2, 2), (2, 1), (1, 2))


@dataclass(frozen=True)
class Case:
    """A run; `noisy` is one that draws numbers, which differ with the number of ranks."""

    head: str = "sphereface2-c"
    people: int = 7
    noisy: bool = False
    worlds: tuple[int, ...] = (1, 2)
    resumed: tuple[tuple[int, int], ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)


CASES = {
    "binary": Case(worlds=WORLDS, training={"clip_norm": 0.5}),
    "fused": Case(
        worlds=WORLDS,
        resumed=((3, 3), (3, 1), (2, 3)),
        optimizer={"fused_head": True, "head_weight_decay": 0.01},
    ),
    # Of three ranks the last has no class; and each class has a bias, which is cut as well.
    "an empty shard": Case(
        head="softmax",
        people=4,
        worlds=WORLDS,
        resumed=ANY,
        training={"clip_norm": 0.5, "accumulate": 2},
    ),
    "running mean": Case(head="curricularface"),
    "proxy-free": Case(head="simple", training={"accumulate": 2}),
    "hybrid": Case(head="ring", optimizer={"fused_head": True}),
    "adamw": Case(
        resumed=SAME_FEWER_MORE,
        training={"average": {"decay": 0.8}},
        optimizer={"name": "adamw", "learning_rate": 0.002, "eps": 1e-3},
    ),
    "muon": Case(
        worlds=WORLDS,
        resumed=SAME_FEWER_MORE,
        optimizer={"name": "muon", "matrix_step": 0.01},
    ),
    # Stopped within the frozen epochs, and after them.
    "a frozen part": Case(
        resumed=SAME_FEWER_MORE,
        training={
            "start_from": "unused",
            "freeze": {"parts": ["layers.0"], "epochs": 1.6},
            "accumulate": 2,
        },
    ),
    "a frozen network": Case(
        resumed=SAME_FEWER_MORE, training={"start_from": "unused", "freeze": {"epochs": 1.0}}
    ),
    # Batch norm, dropout and sampled negatives: the same bits on the same number of ranks.
    "noisy": Case(
        noisy=True,
        resumed=SAME_FEWER_MORE,
        training={"sample_rate": 0.5, "accumulate": 2, "average": {"last_epochs": 2}},
        optimizer={"nesterov": True},
    ),
}


class Losses(Events):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        self.found.append(loss)


def build(case: Case, folder: Path, team: Team, events: Events | None = None) -> Trainer:
    torch.manual_seed(5)
    noise = 0.2 if case.noisy else 0.0
    net = TinyNet(batch_norm=case.noisy, dropout=noise)
    with class_shards(team.rank, team.world):
        head = build_head(case.head, 8, case.people)
    config = make_config(
        epochs=2,
        batch_size=12,
        head=case.head,
        optimizer={"learning_rate": 0.02, **case.optimizer},
        **case.training,
    )
    crowd = Crowd(people=case.people, images=-(-36 // case.people))
    return Trainer(net, head, crowd, config, run_folder=folder, events=events)


def train(root: Path, team: Team) -> None:
    """Every run straight to its end, and once more with a stop on the way."""
    keep_class_means(root, team)
    check_divided(team)
    check_turns(team)
    for name, case in CASES.items():
        if team.world not in case.worlds:
            continue
        losses = Losses()
        folder = root / "straight" / f"{name} {team.world}"
        build(case, folder, team, losses).run()
        if team.is_first:
            (folder / "losses.json").write_text(json.dumps(losses.found))
        if not case.resumed:
            continue
        stopped = build(case, root / "stopped" / f"{name} {team.world}", team)
        ask_to_stop(stopped, team)
        result = stopped.run()
        assert result.interrupted
        assert result.steps == STOP_AT, (name, result)


def keep_class_means(root: Path, team: Team) -> None:
    """The sums of the embeddings of each class, every sixth image of nobody known."""
    torch.manual_seed(5)
    net, crowd = TinyNet(), Crowd(people=7, images=9)
    crowd.labels[::6] = -1
    with class_shards(team.rank, team.world):
        head = build_head("sphereface2-c", 8, 7)
    assert isinstance(head, ProxyHead)
    embedder = NetworkEmbedder(net, Preprocessing(SIZE), batch_size=5)
    sums = _class_means(head, crowd, embedder, team, progress=unseen)
    whole = [row for part in team.gather(sums.tolist()) for row in part]
    if team.is_first:
        (root / f"means {team.world}.json").write_text(json.dumps(whole))


def check_divided(team: Team) -> None:
    """Each task is done once, the costly ones apart, and all ranks have all results to the bit."""
    types = (torch.float32, torch.bfloat16, torch.int64)
    done = []

    def compute(task: int) -> torch.Tensor:
        done.append(task)
        values = torch.arange(6).view(2, 3).T / (task + 1)  # not contiguous
        return values.to(types[task % 3])

    def outline(task: int) -> torch.Tensor:
        return torch.empty(3, 2, dtype=types[task % 3])

    found = list(team.divided(range(4), compute, outline=outline, cost=lambda task: task))
    by_rank = team.gather(sorted(done))
    whole = {1: [[0, 1, 2, 3]], 2: [[0, 3], [1, 2]], 3: [[3], [2], [0, 1]]}
    assert by_rank == whole[team.world], by_rank
    for task, values in enumerate(found):
        expected = compute(task)
        assert values.dtype == expected.dtype
        assert torch.equal(values, expected)
    assert list(team.divided([], compute, outline=outline, cost=float)) == []


def check_turns(team: Team) -> None:
    """Matrices turn by the same bits whether their work is divided or not."""
    layers = [
        nn.Sequential(nn.Conv2d(3, 64, 3), nn.Linear(160, 130), nn.Linear(130, 160))
        for _ in range(2)
    ]
    for layer, whose in zip(layers, (Team(), team), strict=True):
        numbers = torch.Generator().manual_seed(7)
        optimizer = build_optimizer(
            layer, nn.Identity(), OptimizerConfig(name="muon"), precision=torch.bfloat16, team=whose
        )
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=numbers)
        for _ in range(3):
            for parameter in layer.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=numbers)
            optimizer.step()
    for one, other in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(one, other), tuple(one.shape)


def ask_to_stop(trainer: Trainer, team: Team) -> None:
    """The last rank alone is asked; several hear of it with the next step."""
    step, at = trainer._train_step, STOP_AT - (0 if team.is_alone else 1)

    def step_and_stop(batch: Any) -> None:
        step(batch)
        if trainer.step == at and team.rank == team.world - 1:
            trainer.stop()

    # A step that also stops: the ignore is for replacing a method on purpose.
    trainer._train_step = step_and_stop  # type: ignore[method-assign]


def resume(root: Path, team: Team) -> None:
    """The stopped runs of 1, 2 and 3 ranks, on this number of ranks."""
    for name, case in CASES.items():
        for before in (before for before, after in case.resumed if after == team.world):
            folder = root / "resumed" / f"{name} {before} {team.world}"
            source = root / "stopped" / f"{name} {before}"
            team.from_first(lambda a=source, b=folder: str(shutil.copytree(a, b)))  # type: ignore[misc]  # no type for a default
            assert build(case, folder, team).run(resume=True).steps == STEPS
    if not team.is_alone:
        check_mistakes(root, team)


def check_mistakes(root: Path, team: Team) -> None:
    """What goes wrong on one rank is said on rank 0 and ends all."""
    said = []

    def note(action: Callable[[], object]) -> None:
        try:
            action()
        except (ValueError, OSError) as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("nothing")

    def fail_on_last() -> None:
        with team.together():
            if team.rank == team.world - 1:
                raise FileNotFoundError("list.txt: there is no such file")

    def fail_on_all() -> None:
        with team.together():
            raise ValueError("unknown head 'arc'")

    note(fail_on_last)
    note(fail_on_all)
    note(lambda: team.require_same({"seed": 0, "margin": 0.4 if team.is_first else 0.5}))
    note(lambda: team.require_same({"seed": 0}))
    note(lambda: team.from_first(lambda: 1 // 1))
    folder = root / "damaged" / str(team.world)
    team.from_first(
        lambda: str(shutil.copytree(root / "straight" / f"binary {team.world}", folder))
    )
    shard = folder / "checkpoints" / "last" / f"__{team.world - 1}_0.distcp"
    note(lambda: build(Case(head="cosface"), folder, team).run(resume=True))
    note(lambda: build(Case(people=8), folder, team).run(resume=True))
    team.from_first(lambda: shard.write_bytes(bytes(shard.stat().st_size)))
    note(lambda: build(CASES["binary"], folder, team).run(resume=True))
    team.from_first(lambda: shard.write_bytes(shard.read_bytes()[:100]))
    note(lambda: build(CASES["binary"], folder, team).run(resume=True))
    (root / f"said by {team.rank} of {team.world}.json").write_text(json.dumps(said))


def main(folder: str, *ports: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for port, (what, world) in zip(ports, PHASES, strict=True):
        if rank >= world:
            continue
        os.environ.update({"MASTER_PORT": port, "WORLD_SIZE": str(world)})
        # Else a rank that waits for the phase before asks for the store again and again, after
        # pauses that grow to seconds.
        opened = Path(folder) / f"rank 0 comes to {port}"
        if rank == 0:
            opened.touch()
        while not opened.exists():
            time.sleep(0.01)
        with joined() as team:
            assert team.world == world
            (train if what == "train" else resume)(Path(folder), team)


if __name__ == "__main__":
    main(*sys.argv[1:])
