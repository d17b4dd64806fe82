"""The parallelisation measurement: real processes, counted exchanges, and nothing left behind."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pytest

from sphereface2.experiments.paper import parallel
from sphereface2.experiments.paper.parallel import (
    RankFailedError,
    Work,
    measure_parallel,
    possible_ranks,
    rank_team,
)
from sphereface2.training.distributed import Team


def test_two_ranks_are_measured_and_their_exchanges_counted() -> None:
    seen: list[tuple[int, int]] = []
    result = measure_parallel(
        ("sphereface2-c",), ranks=(2,), identities=50, dim=8, batch=4, repeats=2,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    (run,) = result.runs
    assert (run.method, run.ranks, len(run.seconds)) == ("sphereface2-c", 2, 2)
    assert all(seconds > 0 for seconds in run.seconds)
    # In a ring of two a rank sends half of what is gathered or summed: here the batch of
    # embeddings and labels, the gradient of the embeddings, and twice the half of two sums.
    gathered, scattered = 4 * (8 * 4 + 8), 4 * 8 * 4
    assert run.exchanges == 3
    assert run.bytes_sent == pytest.approx(gathered / 2 + scattered / 2 + 2 * 4, abs=8)
    assert result.images_per_second(run) == pytest.approx(4 / (sum(run.seconds) / 2))
    assert seen[-1] == (4, 4)
    assert not multiprocessing.active_children()


class MadeUpTeam:
    """Stands in for processes: which contenders are alive, and in which order they step."""

    alive: ClassVar[list[str]] = []
    seen: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def step(self) -> float:
        self.seen.append((self.name, len(self.alive)))
        return 0.5

    def numbers(self) -> list[Mapping[str, float]]:
        return [{"exchanges": 0.0, "bytes_sent": 0.0}]


@contextmanager
def made_up_team(name: str, work: object, *, ranks: int) -> Iterator[MadeUpTeam]:
    MadeUpTeam.alive.append(name)
    yield MadeUpTeam(name)
    MadeUpTeam.alive.remove(name)


def test_only_the_heads_on_one_number_of_ranks_are_alive_and_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel, "rank_team", made_up_team)
    monkeypatch.setattr(MadeUpTeam, "seen", [])
    reported: list[tuple[int, int]] = []
    result = measure_parallel(
        ("cosface", "arcface"), ranks=(1, 2), identities=9, dim=2, batch=4, repeats=2,
        progress=lambda done, total: reported.append((done, total)),
    )  # fmt: skip
    on_one = ["cosface on 1 rank", "arcface on 1 rank"] * 3
    on_two = ["cosface on 2 ranks", "arcface on 2 ranks"] * 3
    assert [name for name, _ in MadeUpTeam.seen] == on_one + on_two
    assert {alive for _, alive in MadeUpTeam.seen} == {2}
    assert reported == [(number, 16) for number in [*range(1, 17), 16]]
    assert [(run.method, run.ranks) for run in result.runs] == [
        ("cosface", 1), ("arcface", 1), ("cosface", 2), ("arcface", 2),
    ]  # fmt: skip


@dataclass(frozen=True)
class Failing:
    dies: bool = False

    def __call__(self, team: Team) -> Work:
        return self

    def step(self) -> None:
        if self.dies:
            os._exit(1)
        raise ValueError("cannot step\nand a trace of many lines")

    def numbers(self) -> Mapping[str, float]:
        return {}


@pytest.mark.parametrize(
    ("dies", "sentence"),
    [
        (False, "failing: ValueError on rank 0: cannot step$"),
        (True, "failing: a rank has ended before its time, most likely for lack of memory; free"),
    ],
)
def test_an_error_in_a_rank_ends_them_all_with_a_sentence(dies: bool, sentence: str) -> None:
    with (
        pytest.raises(RankFailedError, match=sentence),
        rank_team("failing", Failing(dies), ranks=1) as team,
    ):
        team.step()
    assert issubclass(RankFailedError, OSError)  # which the command line shows as a sentence
    assert not multiprocessing.active_children()


def test_mistakes_are_reported_before_a_process_starts() -> None:
    with pytest.raises(ValueError, match="unknown head 'cosfase'; did you mean 'cosface'"):
        measure_parallel(("cosfase",))
    with pytest.raises(ValueError, match=r"a batch of 256 .* cannot be shared out over 3 ranks"):
        measure_parallel(ranks=(3,))
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        measure_parallel(repeats=0)
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'mps'"):
        measure_parallel(device="mps", ranks=(1,))
    with pytest.raises(
        ValueError, match=r"a GPU of its own, 64 in all, .* leave out --scale paper"
    ):
        measure_parallel(device="cuda", ranks=(64,))


@pytest.mark.parametrize(
    ("cores", "batch", "ranks"),
    [
        (1, 256, (1,)),
        (2, 256, (1, 2)),
        (6, 256, (1, 2, 4)),
        (6, 12, (1, 2, 4, 6)),
        (7, 9, (1,)),
        (8, 256, (1, 2, 4, 8)),
        (96, 256, (1, 2, 4, 8)),
    ],
)
def test_ranks_double_up_to_the_cores_and_divide_the_batch(
    cores: int, batch: int, ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    assert possible_ranks(batch=batch) == ranks


def test_every_gpu_is_a_rank_if_the_batch_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 16)
    assert possible_ranks("cuda") == (1, 2, 4, 8, 16)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert possible_ranks("cuda") == (1,)  # refused, but with a sentence
