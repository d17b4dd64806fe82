"""Records as JSON lines and in TensorBoard."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

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
