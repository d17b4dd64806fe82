"""The parallelisation measurement: real processes, counted exchanges, and nothing left behind."""

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from sphereface2.reproducing.parallel import measure_parallel, possible_ranks
from sphereface2.reproducing.rank_team import Work, rank_team
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


@dataclass(frozen=True)
class Failing:
    def __call__(self, team: Team) -> Work:
        return self

    def step(self) -> None:
        raise ValueError("cannot step")

    def told(self) -> Mapping[str, float]:
        return {}


def test_an_error_in_a_rank_ends_them_all_with_its_sentence() -> None:
    with (
        pytest.raises(RuntimeError, match="failing: ValueError on rank 0: cannot step"),
        rank_team("failing", Failing(), ranks=1) as team,
    ):
        team.step()
    assert not multiprocessing.active_children()


def test_mistakes_are_told_before_a_process_starts() -> None:
    with pytest.raises(ValueError, match="unknown head 'cosfase'; did you mean 'cosface'"):
        measure_parallel(("cosfase",))
    with pytest.raises(ValueError, match=r"a batch of 256 .* cannot be shared out over 3 ranks"):
        measure_parallel(ranks=(3,))
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        measure_parallel(repeats=0)
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'mps'"):
        measure_parallel(device="mps", ranks=(1,))
    with pytest.raises(ValueError, match="device=cuda needs a GPU a rank, 64 in all"):
        measure_parallel(device="cuda", ranks=(64,))


@pytest.mark.parametrize(
    ("cores", "ranks"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))]
)
def test_ranks_double_up_to_the_cores(
    cores: int, ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.training.waiting.usable_cores", lambda: float(cores))
    assert possible_ranks() == ranks
