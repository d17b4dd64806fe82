"""Records as JSON lines, in TensorBoard and on the terminal."""

import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sphereface2.training.events import (
    EvaluationRecord,
    EventGroup,
    Events,
    MetricsFile,
    Notice,
    TensorBoard,
    TrainingRecord,
    headline,
)
from sphereface2.training.progress import ProgressDisplay


def training(step: int, *, loss: float = 1.5, **head: float) -> TrainingRecord:
    return TrainingRecord(
        step=step,
        epoch=step / 10,
        loss=loss,
        learning_rate=0.1,
        images_per_second=200.0,
        data_wait=0.25,
        gradient_norm=3.0,
        head=head,
    )


def evaluation(step: int, **metrics: float) -> EvaluationRecord:
    return EvaluationRecord(step=step, epoch=step / 10, metrics=metrics)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_headline_is_combined_or_the_mean() -> None:
    assert headline({"plain": 0.9, "combined": 0.8}) == 0.8
    assert headline({"plain": 0.9, "age": 0.7}) == pytest.approx(0.8)
    assert math.isnan(headline({}))


def test_json_lines_hold_every_record(tmp_path: Path) -> None:
    sink = MetricsFile(tmp_path / "metrics.jsonl")
    sink.started(step=0, total_steps=20)
    sink.trained(training(1, bias=2.0))
    sink.evaluated(evaluation(10, plain=0.9))
    sink.noticed(Notice("label_noise", "some are wrong", {"wrong_labels": 0.2}, step=10))
    sink.finished()
    assert read(sink.path) == [
        {
            "kind": "train",
            "step": 1,
            "epoch": 0.1,
            "loss": 1.5,
            "learning_rate": 0.1,
            "images_per_second": 200.0,
            "data_wait": 0.25,
            "gradient_norm": 3.0,
            "head": {"bias": 2.0},
            "bad_images": 0,
        },
        {"kind": "evaluation", "step": 10, "epoch": 1.0, "metrics": {"plain": 0.9}, "choice": {}},
        {
            "kind": "notice",
            "topic": "label_noise",
            "text": "some are wrong",
            "values": {"wrong_labels": 0.2},
            "step": 10,
        },
    ]


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    sink = MetricsFile(tmp_path / "metrics.jsonl")
    sink.started(step=0, total_steps=20)
    sink.trained(training(1, positive_score=math.nan, bias=math.inf))
    sink.finished()
    assert read(sink.path)[0]["head"] == {"positive_score": None, "bias": None}


def test_going_on_cuts_what_comes_after_the_step_and_a_torn_line(tmp_path: Path) -> None:
    sink = MetricsFile(tmp_path / "metrics.jsonl")
    sink.started(step=0, total_steps=20)
    for step in (2, 4, 6):
        sink.trained(training(step))
    sink.evaluated(evaluation(6, plain=0.5))
    sink.finished()
    with sink.path.open("a") as file:
        file.write('{"kind": "train", "st')
    sink.started(step=5, total_steps=20)
    sink.trained(training(6, loss=0.5))
    sink.finished()
    assert [(line["step"], line.get("loss")) for line in read(sink.path)] == [
        (2, 1.5),
        (4, 1.5),
        (6, 0.5),
    ]
    sink.started(step=0, total_steps=20)
    sink.finished()
    assert sink.path.read_text() == ""


def test_records_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, **_: Any) -> str:
        raise OSError(5, "Input/output error")  # as a read fails, which does not know its file

    lines = MetricsFile(tmp_path / "metrics.jsonl")
    lines.path.touch()
    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(OSError, match=r"Input/output error: .*metrics\.jsonl"):
        lines.started(step=0, total_steps=1)


def test_a_group_passes_everything_on() -> None:
    heard: list[str] = []

    class Listener(Events):
        def __getattribute__(self, name: str) -> Any:
            heard.append(name)
            return super().__getattribute__(name)

    group = EventGroup([Listener(), Listener()])
    group.started(step=0, total_steps=2)
    group.stepped(1, loss=1.0, learning_rate=0.1, rate=5.0)
    group.trained(training(1))
    group.evaluated(evaluation(1))
    group.noticed(Notice("data", "a note"))
    group.finished()
    expected = ["started", "stepped", "trained", "evaluated", "noticed", "finished"]
    assert heard[::2] == heard[1::2] == expected


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = TensorBoard(tmp_path)
    sink.started(step=0, total_steps=20)
    sink.trained(training(1, bias=2.0))
    sink.evaluated(evaluation(10, plain=0.9))
    sink.noticed(Notice("data_wait", "what would help", step=10))
    sink.finished()
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {
        "train/loss",
        "train/learning_rate",
        "train/images_per_second",
        "train/data_wait",
        "train/gradient_norm",
        "head/bias",
        "evaluation/plain",
    }
    assert found.Scalars("evaluation/plain")[0].step == 10
    assert found.Tags()["tensors"] == ["notice/data_wait/text_summary"]


def test_tensorboard_that_is_not_installed_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ValueError, match=r"pip install 'tensorboard>=[\d.]+'$"):
        TensorBoard(tmp_path)


class Clock:
    """Time that passes only when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_file_gets_a_plain_line_now_and_then() -> None:
    clock, output = Clock(), io.StringIO()
    display = ProgressDisplay(Console(file=output), seconds_between_lines=10, clock=clock)
    display.started(step=0, total_steps=100)
    for step in range(1, 41):
        clock.now += 1.0
        display.stepped(step, loss=2.0, learning_rate=0.1, rate=128.0)
    display.evaluated(evaluation(40, plain=0.9, combined=0.8765))
    display.noticed(Notice("data_wait", "training.workers=3 (now 2) would help"))
    display.finished()
    lines = output.getvalue().splitlines()
    assert lines == [
        "step 10/100  loss 2  lr 0.1  128 images/s  0:01:30 left",
        "step 20/100  loss 2  lr 0.1  128 images/s  0:01:20 left",
        "step 30/100  loss 2  lr 0.1  128 images/s  0:01:10 left",
        "step 40/100  loss 2  lr 0.1  128 images/s  0:01:00 left",
        "step 40/100  accuracy 87.65%",
        "training.workers=3 (now 2) would help",
    ]


def test_lines_above_the_bar_are_plain_text() -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, force_terminal=True, color_system="standard"))
    display.noticed(
        Notice("data_wait", "training.workers=3 [now 2] reads 'faces' 1.5 times faster")
    )
    assert output.getvalue() == "training.workers=3 [now 2] reads 'faces' 1.5 times faster\n"


def test_a_terminal_gets_a_live_bar() -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, force_terminal=True, width=140))
    display.started(step=20, total_steps=100)
    display.evaluated(evaluation(20, combined=0.75))
    display.stepped(21, loss=2.25, learning_rate=0.1, rate=128.0)
    display.noticed(Notice("data_wait", "what would help"))
    display.finished()
    display.finished()
    shown = output.getvalue()
    for part in (
        "21/100",
        "loss 2.25",
        "lr 0.1",
        "128 images/s",
        "accuracy 75.00%",
        "what would help",
    ):
        assert part in shown


@pytest.mark.parametrize("width", [60, 79, 80, 99, 100, 120])
def test_a_terminal_shows_the_whole_line_at_its_width(width: int) -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, force_terminal=True, width=width))
    display.started(step=0, total_steps=80_000)
    display.evaluated(evaluation(1, plain=0.98765))
    display.stepped(7_000, loss=12.3456, learning_rate=0.0123, rate=1234.0)
    display.finished()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())
    line = plain.replace("\r", "\n").strip().splitlines()[-1]
    assert len(line) <= width
    assert " 7000/80000 " in line
    assert "loss 12.35 " in line
    assert (" 1234 images/s " if width >= 80 else " 1234 img/s ") in line
    assert ("accuracy 98" if width >= 80 else "acc 98") in line
    assert ("lr 0.0123" in line) is (width >= 100)
    assert re.search(r"[-\d]+:[-\d]{2}:[-\d]{2}", line)
    assert line.rstrip().endswith("98.77%")
    assert "━" in line


def test_tensorboard_has_the_numbers_at_their_steps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = TensorBoard(tmp_path)
    sink.started(step=0, total_steps=20)
    sink.trained(training(3, bias=2.0))
    sink.trained(training(6, loss=0.5))
    sink.evaluated(EvaluationRecord(4, 0.4, {"plain": 0.75}, {"own": 0.25}))
    sink.finished()
    sink.finished()
    sink.started(step=4, total_steps=20)  # what came after step 4 is written again
    sink.trained(training(6, loss=0.25))
    sink.finished()
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()

    def scalars(tag: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in found.Scalars(tag)]

    assert scalars("train/loss") == [(3, 1.5), (6, 0.25)]
    assert scalars("train/images_per_second") == [(3, 200.0), (6, 200.0)]
    assert scalars("train/data_wait") == [(3, 0.25), (6, 0.25)]
    assert scalars("head/bias") == [(3, 2.0)]
    assert scalars("evaluation/plain") == [(4, 0.75)]
    assert scalars("choice/own") == [(4, 0.25)]
