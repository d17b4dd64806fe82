"""What a dry run says, against counts of the real thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sphereface2.backbones import build_backbone
from sphereface2.config.schema import RunConfig, load_config
from sphereface2.data.loader.loader import Batch
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.proxy import ProxyHead
from sphereface2.runs import estimate as estimating
from sphereface2.runs.counting import _PeakBytes, backbone_cost, head_cost
from sphereface2.runs.estimate import ASSUMED_PEOPLE, Speed, estimate, plan_run, probe
from sphereface2.runs.train import train
from sphereface2.training.distributed import current_team
from sphereface2.training.step import Update
from tests.runs.test_runs import NO_SETS, SMALL

CPU = torch.device("cpu")


def small(*overrides: str) -> RunConfig:
    return load_config("quickstart", [*SMALL, *NO_SETS, *overrides])


def trained(config: RunConfig) -> Update:
    """A run of 12 people after its first step."""
    backbone = build_backbone(config.backbone.name, seed=0, **config.backbone.options)
    head = build_head(config.head.name, backbone.embedding_dim, 12, **config.head.options)
    update = Update(backbone, head, config, team=current_team(), device=CPU)
    update.join()
    labels = torch.arange(16) // head.images_per_person % 12
    batch = Batch(
        torch.zeros(16, 32, 32, 3, dtype=torch.uint8), labels, wait_seconds=0, wait_cpu_seconds=0
    )
    update.differentiate(batch, step=0, rate=0.1, stops=False)
    return update


# Against what a real step holds


@pytest.mark.parametrize("fused", ["false", "true"])
@pytest.mark.parametrize("name", ["sphereface2-c", "softmax", "cosface", "ring"])
def test_weights_gradients_momentum_and_checkpoint(name: str, fused: str) -> None:
    config = small(f"head.name={name}", f"optimizer.fused_head={fused}")
    said = estimate(config, with_speed=False)
    update = trained(config)
    modules = (update.backbone, update.head)
    assert said.backbone_parameters == sum(p.numel() for p in update.backbone.parameters())
    assert said.head_parameters == sum(p.numel() for p in update.head.parameters())
    gradients = [p.grad for each in modules for p in each.parameters() if p.grad is not None]
    assert said.memory.gradients == sum(gradient.nbytes for gradient in gradients)
    weights = sum(t.nbytes for each in modules for t in each.state_dict().values())
    assert said.memory.weights == weights
    update.apply()
    assert said.checkpoint_bytes == sum(tensor.nbytes for tensor in update.tensors().values())
    assert said.memory.momentum == said.checkpoint_bytes - weights


@pytest.mark.parametrize("average", ["decay=0.9", "last_epochs=2"])
def test_what_adamw_and_an_average_keep(average: str) -> None:
    config = small("optimizer=adamw", f"training.average.{average}")
    said, update = estimate(config, with_speed=False), trained(config)
    kept = sum(tensor.nbytes for tensor in update.tensors().values())
    # A count of updates for each parameter is not worth counting.
    assert said.checkpoint_bytes == pytest.approx(kept, rel=0.01)
    assert said.memory.total > said.memory.weights + said.memory.momentum + said.memory.average


@pytest.mark.parametrize("name", ["sphereface2-c", "cosface", "curricularface", "unitsface"])
def test_the_step_of_a_head_on_a_gpu_is_counted_on_shapes(name: str) -> None:
    """What is counted without a value lived in a real step of as many classes."""
    head = build_head(name, 8, 37)
    assert isinstance(head, ProxyHead)
    embeddings = torch.randn(4, 8, requires_grad=True)
    labels = torch.tensor([3, 1, 3, 36])
    with _PeakBytes([embeddings, labels, *head.state_dict().values()]) as real:
        head(embeddings, labels).backward()
    gradients = sum(p.grad.nbytes for p in head.parameters() if p.grad is not None)
    gpu = torch.device("cuda")
    cost = head_cost(name, {}, dim=8, people=37, batch_size=4, device=gpu)
    # Numbers of a few bytes are made in other places; a K×B matrix has 592.
    assert cost.block_bytes == pytest.approx(real.bytes - gradients, abs=200)
    whole = head_cost(name, {}, dim=8, people=1_000_000, batch_size=4, device=gpu)
    assert whole.block_bytes > 4 * 4 * 1_000_000


def test_the_peak_is_what_lives_at_a_time() -> None:
    given = torch.zeros(1000)
    with _PeakBytes([given]) as peak:
        for _ in range(3):
            given.add_(1)
            one = given + 1
            two = one.view(10, 100) * 2
            del one
            two.sum()
    assert peak.bytes == pytest.approx(3 * 4000, abs=4)  # the last round's second one, too


@pytest.mark.parametrize("name", list(HEADS))
def test_a_head_is_counted_for_any_number_of_people(name: str) -> None:
    head = build_head(name, 8, 37)
    cost = head_cost(name, {}, dim=8, people=37, batch_size=4, device=CPU)
    assert cost.parameters == sum(p.numel() for p in head.parameters())
    assert cost.state_bytes == sum(tensor.nbytes for tensor in head.state_dict().values())


@pytest.mark.parametrize("name", ["sfnet4", "iresnet18", "mobilefacenet"])
def test_activations_are_what_a_real_forward_pass_keeps(name: str) -> None:
    options = {"width": 8, "input_size": 32, "embedding_dim": 16}
    backbone = build_backbone(name, **options)
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(torch.zeros(6, 3, 32, 32))
        own = {p.data_ptr() for p in (*backbone.parameters(), *backbone.buffers())}
        held = sum(t.untyped_storage().nbytes() for k, t in kept.items() if k not in own)
    cost = backbone_cost(name, options)
    assert cost.activation_bytes_fixed + 6 * cost.activation_bytes_per_image == held


@pytest.mark.parametrize("name", ["sfnet10", "iresnet18", "mobilefacenet"])
def test_operations_are_two_for_each_weight_and_place(name: str) -> None:
    options = {"width": 4, "input_size": 16, "embedding_dim": 8}
    backbone = build_backbone(name, **options).eval()
    counted = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal counted
        weight = module.weight
        assert isinstance(weight, Tensor)
        places = output.shape[2] * output.shape[3] if isinstance(module, nn.Conv2d) else 1
        counted += 2 * weight.numel() * places

    for module in backbone.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    backbone(torch.zeros(1, 3, 16, 16))
    assert backbone_cost(name, options).operations_per_image == counted


def test_a_micro_batch_is_what_is_held_at_a_time() -> None:
    whole = estimate(small(), with_speed=False).memory
    parts = estimate(small("training.accumulate=4"), with_speed=False).memory
    half = estimate(small("precision=bf16"), with_speed=False).memory
    assert parts.activations < 0.3 * whole.activations
    assert half.activations == whole.activations // 2
    assert parts.weights == half.weights == whole.weights
    assert whole.total > whole.activations + whole.weights


# Steps


def test_steps_epochs_and_passes() -> None:
    said = estimate(small(), with_speed=False)
    assert (said.images, said.people, said.counted) == (48, 12, "counted in the data")
    assert (said.steps, said.steps_per_epoch, said.epochs) == (6, 3, 2.0)
    assert said.image_passes == 96
    assert said.operations == 3 * 96 * said.operations_per_image
    assert said.seconds is None
    by_steps = estimate(small("training.steps=10"), with_speed=False)
    assert (by_steps.steps, by_steps.epochs) == (10, 10 / 3)


def test_strangers_are_in_the_batch_but_not_among_the_images() -> None:
    strangers = "open_set={share: 0.25, data: {name: synthetic, people: 4, first_person: 90}}"
    said = estimate(small(strangers, "training.epochs=2"), with_speed=False)
    assert (said.images, said.steps_per_epoch) == (48, 48 // 12)
    assert [need.use for need in said.data] == ["training", "strangers"]


def test_an_average_over_more_epochs_than_so_many_steps_make_is_refused(tmp_path: Path) -> None:
    def steps(last_epochs: int) -> RunConfig:
        average = f"training.average.last_epochs={last_epochs}"
        return small("training.steps=4", "schedule.warmup=0", average)

    estimate(steps(2), with_speed=False)  # the second is shorter
    said = r"last_epochs=3 is more than the 2 epochs of the training \(4 steps of 3 an epoch\)"
    with pytest.raises(ValueError, match=said):
        estimate(steps(3), with_speed=False)
    with pytest.raises(ValueError, match=said):
        train(steps(3), tmp_path / "run")


def test_a_warm_up_longer_than_the_training_is_found() -> None:
    with pytest.raises(ValueError, match=r"schedule\.warmup"):
        estimate(small("schedule.unit=steps", "schedule.warmup=9"), with_speed=False)


# Data that are not there


def test_published_numbers_stand_in_for_missing_data() -> None:
    config, known = plan_run("ms1mv3-iresnet100", ["backbone.name=sfnet4", "device=cpu"])
    said = estimate(config, known_data=known, with_speed=False)
    assert (said.images, said.people) == (5_179_510, 93_431)
    assert said.steps == 240_000
    assert said.head_parameters == 93_431 * 512 + 1
    assert said.epochs == 240_000 / (5_179_510 // 512)
    (need,) = said.data
    assert (need.found, need.path, need.problem) == (False, None, "path not given yet")


def test_a_path_that_is_not_there_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    overrides = [
        f"data.path={path}",
        "backbone=sfnet4",
        f"evaluation.sets=[{{name: bin, path: {path}}}]",
    ]
    said = estimate(plan_run("own-faces", overrides)[0], with_speed=False)
    assert [(need.use, need.found) for need in said.data] == [
        ("training", False),
        ("verification", False),
    ]
    assert (said.images, said.steps, said.image_passes) == (None, None, None)
    assert said.people == ASSUMED_PEOPLE


def test_data_that_are_there_are_counted_even_if_the_set_is_known(tmp_path: Path) -> None:
    import cv2

    for person in ("a", "b", "c"):
        (tmp_path / person).mkdir()
        for number in range(4):
            cv2.imwrite(str(tmp_path / person / f"{number}.png"), np.zeros((112, 112, 3), np.uint8))
    overrides = [f"data.path={tmp_path}", "training.batch_size=6", "backbone.width=4", "device=cpu"]
    config, known = plan_run("vggface2-sfnet20", overrides)
    said = estimate(config, known_data=known, with_speed=False)
    assert (said.images, said.people, said.steps_per_epoch) == (12, 3, 2)


# Speed


@pytest.mark.parametrize("head", ["sphereface2-c", "contrastive"])
def test_a_step_is_timed_in_parts_and_leaves_random_numbers_alone(head: str) -> None:
    config = (
        small(f"head.name={head}", "training.sample_rate=0.5")
        if head != "contrastive"
        else (small(f"head.name={head}"))
    )
    before = torch.get_rng_state()
    speed = probe(config, people=20_000, seconds=0.01)
    assert torch.equal(before, torch.get_rng_state())
    assert min(speed.backbone_seconds, speed.head_seconds, speed.update_seconds) > 0
    total = speed.backbone_seconds + speed.head_seconds + speed.update_seconds
    assert speed.seconds_per_step == total
    assert speed.images_per_second == pytest.approx(16 / total)
    assert "8,192 people" in speed.how


def test_a_probe_has_the_threads_that_the_run_will_have() -> None:
    before = torch.get_num_threads()
    speed = probe(small(), people=12, seconds=0.01, threads=2)
    assert "cpu with 2 threads" in speed.how
    assert torch.get_num_threads() == before


def test_the_time_is_that_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int | None]] = []

    def timed(config: RunConfig, *, people: int, threads: int | None) -> Speed:
        asked.append((people, threads))
        return Speed(1.0, 0.5, 0.25, batch_size=config.training.batch_size, how="made up")

    monkeypatch.setattr(estimating, "probe", timed)
    said = estimate(small(), threads=3)
    assert said.speed is not None
    assert said.seconds == 6 * 1.75
    assert said.speed.images_per_second == 16 / 1.75
    assert asked == [(12, 3)]
