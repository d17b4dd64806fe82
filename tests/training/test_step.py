"""One step: what ranks agree on, what a checkpoint keeps of it, and which rows are cut."""

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sphereface2.data.loader.loader import Batch
from sphereface2.heads import Head, build_head
from sphereface2.training.distributed import Team
from sphereface2.training.step import Agreed, StepAgreement, Update, warm_up_ddp
from tests.training.conftest import SIZE, TinyNet, make_config


@dataclass
class Meeting:
    """Where the numbers of two threads come together."""

    given: list[Tensor] = field(default_factory=list)
    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=60))


@dataclass(frozen=True)
class InThreads(Team):
    """Two ranks, each in a thread of one process."""

    meeting: Meeting = field(default_factory=Meeting)

    def sum(self, values: Tensor) -> Tensor:
        self.meeting.given.append(values)
        self.meeting.both.wait()
        return torch.stack(self.meeting.given).sum(dim=0)


@pytest.mark.parametrize("clip_norm", [None, 2.0])
@pytest.mark.parametrize("stops", [(False, False), (False, True), (True, True)])
def test_two_ranks_agree_on_a_step(clip_norm: float | None, stops: tuple[bool, bool]) -> None:
    """Class weights are parts of one gradient, other parameters of the head are averaged."""
    meeting = Meeting()
    backbones = [nn.Linear(2, 1, bias=False) for _ in range(2)]
    heads: list[Any] = [build_head("sphereface2-c", 3, 4) for _ in range(2)]
    found: list[Agreed | None] = [None, None]
    for backbone in backbones:  # already the same on all ranks
        backbone.weight.grad = torch.tensor([[3.0, 0.0]])
    for rank, head in enumerate(heads):
        head.weight.grad = torch.zeros(4, 3)
        head.weight.grad[0, 0] = (1.0, 2.0)[rank]
        head.bias.grad = torch.tensor((0.5, 1.5)[rank])

    def work(rank: int) -> None:
        agreement = StepAgreement(InThreads(rank, 2, meeting=meeting), backbones[rank], heads[rank])
        loss = torch.tensor((2.0, 4.0)[rank])
        found[rank] = agreement(loss, clip_norm=clip_norm, stops=stops[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    norm = (3.0**2 + 1.0**2 + (1.0**2 + 2.0**2)) ** 0.5  # network, mean bias, both shards
    factor = 1.0 if clip_norm is None else clip_norm / norm
    for rank, agreed in enumerate(found):
        assert agreed is not None
        assert agreed.loss == 3.0
        assert agreed.gradient_norm == pytest.approx(norm)
        assert agreed.stops is any(stops)
        assert heads[rank].bias.grad.item() == pytest.approx(factor)
        weight_grad = (1.0, 2.0)[rank] * factor
        assert heads[rank].weight.grad[0, 0].item() == pytest.approx(weight_grad, rel=1e-5)
        network_grad = backbones[rank].weight.grad
        assert network_grad is not None
        assert network_grad[0, 0].item() == pytest.approx(3.0 * factor, rel=1e-5)


def test_one_rank_agrees_with_itself() -> None:
    backbone, head = nn.Linear(2, 1, bias=False), build_head("cosface", 3, 4)
    backbone.weight.grad = torch.tensor([[3.0, 0.0]])
    weight = head.get_parameter("weight")
    weight.grad = torch.zeros(4, 3)
    weight.grad[0, 0] = 4.0
    agreement = StepAgreement(Team(), backbone, head)
    agreed = agreement(torch.tensor(2.5), clip_norm=1.0, stops=True)
    assert (agreed.loss, agreed.stops) == (2.5, True)
    assert agreed.gradient_norm == pytest.approx(5.0)
    assert backbone.weight.grad.tolist() == [pytest.approx([0.6, 0.0], rel=1e-5)]


def update_of(head: Head, **sections: Any) -> Update:
    update = Update(
        TinyNet(), head, make_config(**sections), team=Team(), device=torch.device("cpu")
    )
    update.join()
    return update


def test_a_scaled_step_moves_what_has_a_gradient() -> None:
    update = update_of(build_head("cosface", 8, 5))
    update.scaler = torch.amp.GradScaler("cpu")
    weight = update.head.get_parameter("weight")
    before = weight.detach().clone()
    update.apply()  # nothing has one, which the scaler itself would refuse
    assert torch.equal(weight, before)
    torch.autograd.backward(update.scaler.scale(weight.sum()))
    update.scaler.unscale_(update.optimizer)
    update.apply()
    assert not torch.equal(weight, before)


@pytest.mark.parametrize(
    ("name", "options", "optimizer", "cut"),
    [
        ("cosface", {}, {}, {"head.weight"}),
        ("softmax", {}, {}, {"head.weight", "head.bias"}),
        ("sphereface2-c", {}, {"name": "adamw"}, {"head.weight"}),
        (
            "sphereface2-c",
            {"bias": "per-class"},
            {"fused_head": True},
            {"head.weight", "head.bias"},
        ),
        ("triplet", {}, {}, set()),
    ],
)
def test_rows_of_classes_and_their_momentum_are_cut(
    name: str, options: dict[str, Any], optimizer: dict[str, Any], cut: set[str]
) -> None:
    update = update_of(build_head(name, 8, 5, **options), optimizer=optimizer)
    kinds = ("", "momentum.", "mean_square.")
    assert update.rows() == dict.fromkeys((f"{kind}{each}" for kind in kinds for each in cut), 5)
    tensors = update.tensors()
    for each in cut:
        assert len(tensors[each]) == 5
        assert tensors[f"momentum.{each}"].shape == tensors[each].shape
    kept = {"momentum", "mean_square", "updates"} if "name" in optimizer else {"momentum"}
    parameters = {f"backbone.{each}" for each, _ in update.backbone.named_parameters()}
    parameters |= {f"head.{each}" for each, _ in update.head.named_parameters()}
    found = {key for key in tensors if key.partition(".")[0] not in ("backbone", "head")}
    assert found == {f"{kind}.{each}" for kind in kept for each in parameters}
    # The tensors themselves: filling them is setting the state.
    tensors["backbone.layers.0.weight"].fill_(0.5)
    assert bool((next(update.backbone.parameters()) == 0.5).all())


def test_a_step_moves_by_the_rate_and_forgets_the_gradient_before() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        optimizer = {"momentum": 0.0, "weight_decay": 0.0}
        update = update_of(build_head("cosface", 8, 5), optimizer=optimizer)
        images = torch.randint(0, 255, (8, SIZE, SIZE, 3), dtype=torch.uint8)
    batch = Batch(images, torch.arange(8) % 5, wait_seconds=0.0, wait_cpu_seconds=0.0)
    weight = update.head.get_parameter("weight")
    for rate in (0.5, 0.25):
        before = weight.detach().clone()
        agreed = update.differentiate(batch, step=3, rate=rate, stops=False)
        assert not agreed.stops
        assert weight.grad is not None
        gradient = weight.grad.clone()
        again = update.differentiate(batch, step=3, rate=rate, stops=True)
        assert again.stops
        assert again.loss == agreed.loss  # the same step draws the same dropout
        torch.testing.assert_close(weight.grad, gradient)
        update.apply()
        torch.testing.assert_close(weight.detach(), before - rate * gradient)
    other = update.differentiate(batch, step=4, rate=0.25, stops=False)
    assert other.loss != update.differentiate(batch, step=3, rate=0.25, stops=False).loss
    assert not update.skips_overflows


def test_a_network_is_run_once_without_a_trace() -> None:
    net = TinyNet()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    seen: list[bool] = []
    net.register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    warm_up_ddp(net, torch.ones(2, 3, SIZE, SIZE))
    assert seen == [True]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert net.layers[1].track_running_stats
