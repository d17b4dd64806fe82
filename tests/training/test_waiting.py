"""What is said of a training that waits for its images."""

import math
from pathlib import Path
from typing import Any

import pytest

from sphereface2.heads import build_head
from sphereface2.training.events import Events, Notice, WaitingAdvice, own_cores, workers_wanted
from sphereface2.training.trainer import Trainer
from tests.training.conftest import Crowd, TinyNet, make_config


def advice(
    *, share: float, busy: float, steps: int = 20, seconds: float = 0.1, **options: Any
) -> Notice | None:
    """After steps of so many seconds, a share of which was waited with so many processors busy."""
    waiting = WaitingAdvice(**{"workers": 2, "cores": 8.0, **options})
    waiting.add(seconds=9.0, wait_seconds=9.0, wait_cpu_seconds=0.0)  # the first batch
    for _ in range(steps):
        wait = seconds * share
        waiting.add(seconds=seconds, wait_seconds=wait, wait_cpu_seconds=wait * busy)
    return waiting.notice(40)


def test_a_training_that_does_not_wait_is_left_alone() -> None:
    assert advice(share=0.0, busy=0.0) is None
    assert advice(share=0.04, busy=2.0) is None
    assert advice(share=0.9, busy=2.0, steps=9) is None  # too short to say
    assert advice(share=0.9, busy=2.0, seconds=0.04) is None


def test_more_workers_are_advised_where_processors_are_free() -> None:
    notice = advice(share=0.23, busy=2.0)
    assert notice is not None
    assert notice.text == (
        "the training waited 23% of the time for images; training.workers=3 (now 2) would help"
    )
    assert (notice.topic, notice.step) == ("data_wait", 40)
    assert notice.values == pytest.approx({"data_wait": 0.23, "workers": 2, "workers_wanted": 3})


def test_other_ways_are_advised_where_all_processors_are_busy() -> None:
    notice = advice(share=0.4, busy=2.0, cores=2.0)
    assert notice is not None
    assert "waited 40% of the time" in notice.text
    assert "all 2 processors are busy" in notice.text
    assert "'sphereface2 convert'" in notice.text
    assert "workers_wanted" not in notice.values


def test_ten_steps_and_a_second_are_enough_to_judge() -> None:
    for share, steps, seconds in ((0.5, 10, 0.5), (0.5, 16, 1 / 16), (0.0625, 20, 0.1)):
        notice = advice(share=share, busy=2.0, steps=steps, seconds=seconds)
        assert notice is not None
        assert notice.values["data_wait"] == pytest.approx(share)


def test_a_window_that_was_quiet_does_not_count_in_the_next_one() -> None:
    waiting = WaitingAdvice(workers=2, cores=8.0)
    waiting.add(seconds=9.0, wait_seconds=9.0, wait_cpu_seconds=0.0)  # the first batch
    for _ in range(20):
        waiting.add(seconds=1.0, wait_seconds=0.03125, wait_cpu_seconds=0.25)
    assert waiting.notice(20) is None
    assert (waiting.steps, waiting.seconds) == (0, 0.0)
    assert (waiting.wait_seconds, waiting.cpu_seconds) == (0.0, 0.0)
    for _ in range(10):
        waiting.add(seconds=1.0, wait_seconds=0.5, wait_cpu_seconds=1.0)
    notice = waiting.notice(30)
    assert notice is not None
    assert notice.values == {"data_wait": 0.5, "workers": 2.0, "workers_wanted": 4.0}


def test_it_is_said_once() -> None:
    waiting = WaitingAdvice(workers=1, cores=4.0)
    said = 0
    for step in range(1, 101):
        waiting.add(seconds=0.1, wait_seconds=0.05, wait_cpu_seconds=0.05)
        said += waiting.notice(step) is not None
    assert said == 1


@pytest.mark.parametrize(
    ("share", "busy", "workers", "cores", "expected"),
    [
        (0.1, 1.0, 1, 8, 2),
        (0.5, 2.0, 2, 8, 4),  # twice as fast
        (0.5, 2.0, 2, 3, 3),  # as far as there are processors
        (0.5, 1.9, 2, 2, None),
        (0.9, 0.1, 2, 2, 20),  # readers that wait for a disk need no processors
        (0.985, 0.1, 1, 16, 67),
        (0.3, 1.0, 0, 2, 1),  # read in between so far
        (0.8, 1.0, 0, 8, 4),
        (0.8, 1.0, 0, 1, None),
    ],
)
def test_as_many_workers_as_would_keep_up(
    share: float, busy: float, workers: int, cores: float, expected: int | None
) -> None:
    assert workers_wanted(share, busy=busy, workers=workers, cores=cores) == expected
    if expected is not None and workers and expected - workers > 1:
        # That many read a batch in the time that the rest of a step takes.
        assert workers / expected <= (1 - share) + 1e-9
        assert expected == math.ceil(workers / (1 - share) - 1e-9)


def test_the_processors_are_shared_with_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = own_cores()
    assert alone >= 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert own_cores() == alone / 4


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_on_a_slow_source_says_so_once(run_folder: Path, workers: int) -> None:
    heard: list[Notice] = []

    class Ear(Events):
        def noticed(self, notice: Notice) -> None:
            heard.append(notice)

    config = make_config(workers=workers, log_every=4)
    trainer = Trainer(
        TinyNet(), build_head("cosface", 8, 5), Crowd(), config,
        run_folder=run_folder, events=Ear(),
    )  # fmt: skip
    trainer.run()
    (notice,) = heard
    assert notice.topic == "data_wait"
    assert notice.values == {"data_wait": 0.25, "workers": workers, "workers_wanted": workers + 1}
    assert f"25% of the time for images; training.workers={workers + 1} (now" in notice.text
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    (line,) = [line for line in lines if '"kind": "notice"' in line]
    assert notice.text in line
