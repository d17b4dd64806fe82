"""Checkpoints: whole or not at all, safe to read, and of one run only."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sphereface2.training.checkpoint import (
    Checkpoint,
    check_settings,
    has_checkpoint,
    load_checkpoint,
    load_tensors,
    run_settings,
    save_checkpoint,
)
from sphereface2.training.distributed import Team
from tests.training.conftest import make_config


def make_checkpoint(step: int = 3, **settings: Any) -> Checkpoint:
    return Checkpoint(step=step, settings=settings, scaler={}, best_metric=0.75, best_step=2)


def make_tensors(value: float = 1.0) -> dict[str, Tensor]:
    return {
        "backbone.weight": torch.arange(3.0) * value,
        "backbone.count": torch.tensor(7),
        "head.weight": torch.full((5, 2), value),
    }


def save(path: Path, step: int = 3, **settings: Any) -> None:
    save_checkpoint(path, make_checkpoint(step, **settings), make_tensors(step))


def loaded(path: Path) -> dict[str, Tensor]:
    tensors = {name: torch.zeros_like(value) for name, value in make_tensors().items()}
    load_tensors(path, tensors)
    return tensors


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "last"
    assert not has_checkpoint(path)
    save(path, seed=1)
    assert has_checkpoint(path)
    assert load_checkpoint(path) == make_checkpoint(seed=1)
    found = loaded(path)
    assert all(torch.equal(found[name], value) for name, value in make_tensors(3).items())
    assert [file.name for file in path.parent.iterdir()] == ["last"]
    assert str(tmp_path).encode() not in (path / ".metadata").read_bytes()


def test_a_part_can_be_read_alone(tmp_path: Path) -> None:
    save(tmp_path / "last")
    part = {"backbone.weight": torch.zeros(3), "backbone.count": torch.tensor(0)}
    load_tensors(tmp_path / "last", part, part="backbone.")
    assert torch.equal(part["backbone.weight"], torch.arange(3.0) * 3)


class Killed(BaseException):
    """The process ends here."""


def kill_at(moment: int, patch: pytest.MonkeyPatch) -> None:
    """End before the moment-th touch of the file system that a checkpoint makes."""
    left = iter(range(moment))

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return original(*arguments, **options)

        return call

    patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    patch.setattr(os, "fsync", counted(os.fsync))
    for name in ("mkdir", "rename"):
        patch.setattr(Path, name, counted(getattr(Path, name)))
    patch.setattr(Team, "save_tensors", counted(Team.save_tensors))


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last"
    save(path, step=3)
    seen = set()
    for moment in range(30):
        try:
            with monkeypatch.context() as patch:
                kill_at(moment, patch)
                save(path, step=4)
        except (Killed, OSError):
            step = load_checkpoint(path).step
            seen.add(step)
            assert torch.equal(loaded(path)["head.weight"], torch.full((5, 2), float(step)))
            save(path, step=3)
            assert load_checkpoint(path).step == 3
            assert [file.name for file in tmp_path.iterdir()] == ["last"]
            continue
        break
    assert moment > 8
    assert seen == {3, 4}
    assert load_checkpoint(path).step == 4


def test_a_full_disk_is_one_sentence_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last"
    save(path, step=3)

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match=r"last\.partial cannot be written .*no space left"):
        save(path, step=4)
    monkeypatch.undo()
    assert load_checkpoint(path).step == 3
    assert torch.equal(loaded(path)["head.weight"], torch.full((5, 2), 3.0))


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*last"):
        load_checkpoint(tmp_path / "last")


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_file_that_is_cut_off_or_missing_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "last"
    save(path)
    file = path / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"last is damaged: its file {name} of \d+ bytes has \d+"):
        load_checkpoint(path)
    # Even a reader who looks at no sizes gets one sentence.
    with pytest.raises(ValueError, match=r"^.*last is damaged.*$"):
        loaded(path)
    file.unlink()
    with pytest.raises(ValueError, match=rf"its file {name} of \d+ bytes is missing"):
        load_checkpoint(path)
    with pytest.raises(ValueError, match=r"^.*last is damaged.*$"):
        loaded(path)


def test_facts_that_are_broken_or_foreign_give_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "last"
    save(path)
    facts = path / "checkpoint.json"
    whole = json.loads(facts.read_text())
    for content in (
        "",
        "text",
        json.dumps(whole)[:50],
        "[1, 2]",
        "{}",
        json.dumps({**whole, "a": 1}),
    ):
        facts.write_text(content)
        with pytest.raises(ValueError, match=r"^.*last is damaged or no checkpoint; .*$"):
            load_checkpoint(path)
    facts.write_text(json.dumps({**whole, "format": "sphereface2 checkpoint 99"}))
    with pytest.raises(ValueError, match="is a checkpoint of another version of sphereface2"):
        load_checkpoint(path)
    facts.unlink()
    with pytest.raises(ValueError, match="is damaged or no checkpoint"):
        load_checkpoint(path)


def test_any_flipped_bit_of_the_facts_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "last"
    save(path)
    facts, before = path / "checkpoint.json", load_checkpoint(path)
    whole = facts.read_bytes()
    noticed = 0
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        facts.write_bytes(flipped)
        try:
            assert load_checkpoint(path) == before, f"bit {place}"
        except ValueError:
            noticed += 1
    assert noticed > 7 * len(whole)  # the rest are blanks


def test_other_tensors_are_named_and_nothing_is_filled(tmp_path: Path) -> None:
    save(tmp_path / "last")
    changes: list[tuple[dict[str, Tensor | None], str]] = [
        ({"head.weight": torch.zeros(6, 2)}, r"head.weight is of shape \(5, 2\), not \(6, 2\)"),
        ({"head.bias": torch.zeros(())}, "it lacks head.bias"),
        ({"backbone.count": None}, "it has backbone.count, which is not in them"),
    ]
    for change, sentence in changes:
        mine = {**{name: torch.zeros_like(t) for name, t in make_tensors().items()}, **change}
        tensors = {name: value for name, value in mine.items() if value is not None}
        with pytest.raises(ValueError, match=f"does not fit this backbone and head: {sentence}"):
            load_tensors(tmp_path / "last", tensors)
        assert not tensors["backbone.weight"].any()


def test_a_file_that_is_not_the_one_that_was_saved_is_named(tmp_path: Path) -> None:
    """Of the right size each, so that only their digests tell."""
    path, other = tmp_path / "last", tmp_path / "other"
    save(path, step=3)
    save(other, step=4)
    file = path / "__0_0.distcp"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (bytes(flipped), (other / file.name).read_bytes()):
        assert len(content) == len(whole)
        file.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"last is damaged: its file __0_0\.distcp is not the one that was sav"
        ):
            loaded(path)
    file.write_bytes(whole)
    assert torch.equal(loaded(path)["head.weight"], torch.full((5, 2), 3.0))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_checkpoint_that_cannot_be_read_for_a_moment_is_not_called_damaged(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "last"
    save(path)
    (path / name).unlink()
    (path / name).symlink_to("/proc/self/mem")  # can be opened; its first byte cannot be read
    with pytest.raises(OSError, match="Input/output error") as refused:
        Team().load_tensors(path, make_tensors(), rows={})
    assert str(path) in str(refused.value)
    assert "damaged" not in str(refused.value)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def sign(path: Path) -> None:
    """Write the digests of changed files, as somebody who changed them would."""
    facts = json.loads((path / "checkpoint.json").read_text())
    facts.pop("digest", None)  # as versions before have written it
    for name in facts["files"]:
        content = (path / name).read_bytes()
        facts["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
    (path / "checkpoint.json").write_text(json.dumps(facts))


def test_a_checkpoint_from_a_stranger_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "last"
    save(path)
    index, data = path / ".metadata", path / "__0_0.distcp"
    whole, evil = index.read_bytes(), Evil(tmp_path / "ran")
    metadata = pickle.loads(whole)
    metadata.planner_data = evil
    for content in (pickle.dumps(evil), pickle.dumps(metadata), pickle.dumps([1, 2])):
        index.write_bytes(content)
        sign(path)
        with pytest.raises(ValueError, match=r"last is damaged: its index cannot be read"):
            loaded(path)
    index.write_bytes(whole)
    torch.save(evil, data)
    sign(path)
    with pytest.raises(ValueError, match=r"last is damaged"):
        loaded(path)
    assert not (tmp_path / "ran").exists()


def test_settings_that_change_the_numbers_must_agree(tmp_path: Path) -> None:
    people = np.arange(45) % 5
    settings = run_settings(make_config(), classes=5, labels=people)
    path = tmp_path / "run" / "checkpoints" / "last"
    save(path, **settings)
    found = load_checkpoint(path)
    check_settings(found, settings, path)
    free = make_config(workers=0, log_every=7, evaluate_every=2, checkpoint_every_steps=5)
    check_settings(found, run_settings(free, classes=5, labels=people), path)
    fused = {"optimizer": {"fused_head": True}}
    for config, labels, classes, sentence in [
        (
            make_config(batch_size=4),
            people,
            5,
            r"training\.batch_size was 8 .* become 4: it is part",
        ),
        (make_config(seed=1), people, 5, r"seed was 0 .* become 1: all random choices"),
        (
            make_config(**fused),
            people,
            5,
            r"optimizer\.fused_head was false .* become true: the sav",
        ),
        (make_config(head="cosface"), people, 5, r" head\.name=cosface --output NEW$"),
        (make_config(), np.arange(46) % 5, 5, "the number of images was 45 and is 46"),
        (make_config(), people, 6, "the number of classes was 5 and is 6"),
        (make_config(), people[::-1], 5, "the digest of the labels was"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            check_settings(found, run_settings(config, classes=classes, labels=labels), path)
