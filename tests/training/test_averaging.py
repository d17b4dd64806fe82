"""The average of the weights: its rule, its batch-norm statistics, resuming and exporting it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sphereface2.config.schema import AverageConfig
from sphereface2.training.averaging import (
    AVERAGED,
    EpochAverage,
    ExponentialAverage,
    WeightAverage,
    build_average,
)
from sphereface2.training.checkpoint import load_checkpoint, load_tensors
from sphereface2.training.distributed import saved_shapes
from sphereface2.training.trainer import Trainer
from tests.training.conftest import SIZE, Crowd, TinyNet, make_config
from tests.training.test_trainer import StopAt, lines, make_trainer

AVERAGES = {"exponential": {"decay": 0.8}, "epochs": {"last_epochs": 2}}


def moving_net(steps: int) -> tuple[TinyNet, list[list[Tensor]]]:
    """A network, and the weights that it is to have after each of some steps."""
    torch.manual_seed(0)
    net = TinyNet()
    return net, [[torch.randn_like(p) for p in net.parameters()] for _ in range(steps)]


def move(net: nn.Module, values: list[Tensor]) -> None:
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data.copy_(value)


def test_the_exponential_average_by_hand() -> None:
    net, path = moving_net(30)
    average = ExponentialAverage(net, decay=0.6)
    expected = [p.detach().clone().double() for p in net.parameters()]
    for step, values in enumerate(path, 1):
        move(net, values)
        average.add(step, ends_epoch=False)
        decay = min(0.6, (1 + step) / (10 + step))  # 0.6 from the 13th step on
        expected = [
            decay * before + (1 - decay) * value.double()
            for before, value in zip(expected, values, strict=True)
        ]
    for mine, wanted in zip(average.network.parameters(), expected, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-6)
        assert not mine.requires_grad


def test_the_epoch_average_is_the_mean_of_the_last_epoch_ends() -> None:
    net, path = moving_net(10)
    average = EpochAverage(net, epochs=3)
    ends: list[list[Tensor]] = []
    for step, values in enumerate(path, 1):
        move(net, values)
        average.add(step, ends_epoch=step % 2 == 0)
        ends += [values] if step % 2 == 0 else []
        if not ends:  # nothing to average yet: the network as it is
            expected = values
        else:
            expected = [torch.stack(each).mean(0) for each in zip(*ends[-3:], strict=True)]
        for mine, wanted in zip(average.network.parameters(), expected, strict=True):
            torch.testing.assert_close(mine.detach(), wanted)


def test_statistics_are_those_of_the_images_without_dropout() -> None:
    torch.manual_seed(1)
    net = TinyNet(dropout=0.5)
    average = WeightAverage(net)
    batches = torch.randn(3, 16, 3, SIZE, SIZE).unbind()
    average.renew_statistics(batches)
    assert isinstance(average.network, TinyNet)
    conv, norm = average.network.layers[0], average.network.layers[1]
    assert isinstance(norm, nn.BatchNorm2d)
    means, variances = [], []
    for batch in batches:
        features = conv(batch).transpose(0, 1).flatten(1)
        means.append(features.mean(1))
        variances.append(features.var(1))
    torch.testing.assert_close(norm.running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack(variances).mean(0))
    assert not any(module.training for module in average.network.modules())
    assert norm.momentum == 0.1
    assert norm.num_batches_tracked == 3


def test_statistics_behind_dropout_do_not_see_it() -> None:
    class Normed(TinyNet):
        def __init__(self) -> None:
            super().__init__(batch_norm=False, dropout=0.9)
            self.layers.append(nn.BatchNorm1d(8))

    torch.manual_seed(1)
    average = WeightAverage(Normed())
    batch = torch.randn(16, 3, SIZE, SIZE)
    average.renew_statistics([batch])
    assert isinstance(average.network, TinyNet)
    norm = average.network.layers[-1]
    assert isinstance(norm, nn.BatchNorm1d)
    embeddings = average.network.layers[:-1](batch)
    torch.testing.assert_close(norm.running_var, embeddings.var(0))


def test_a_config_builds_what_it_says() -> None:
    net = TinyNet()
    assert build_average(net, None) is None
    by_decay = build_average(net, AverageConfig(decay=0.9))
    assert isinstance(by_decay, ExponentialAverage)
    assert by_decay.decay == 0.9
    by_epochs = build_average(net, AverageConfig(last_epochs=4))
    assert isinstance(by_epochs, EpochAverage)
    assert by_epochs.epochs == 4


def tensors_of(checkpoint: Path) -> dict[str, Tensor]:
    whole = ("num_batches_tracked", "added")
    found = {
        name: torch.zeros(shape, dtype=torch.int64 if name.endswith(whole) else torch.float32)
        for name, shape in saved_shapes(checkpoint).items()
    }
    load_tensors(checkpoint, found)
    return found


class Seen:
    """An evaluation that keeps what it was given."""

    def __init__(self) -> None:
        self.networks: list[dict[str, Tensor]] = []

    def __call__(self, backbone: nn.Module) -> Mapping[str, float]:
        assert not backbone.training
        self.networks.append({k: v.clone() for k, v in backbone.state_dict().items()})
        return {"plain": float(len(self.networks))}


@pytest.mark.parametrize("kind", sorted(AVERAGES))
def test_the_average_is_what_is_evaluated_and_kept(run_folder: Path, kind: str) -> None:
    seen = Seen()
    # Augmented while it trains, but not for the statistics.
    config = make_config(average=AVERAGES[kind], augmentation="strong")
    trainer = make_trainer(run_folder, config, evaluate=seen)
    result = trainer.run()
    assert len(seen.networks) == 3
    kept = tensors_of(result.checkpoint)
    for name, value in seen.networks[-1].items():
        assert torch.equal(kept[f"{AVERAGED}{name}"], value), name
        assert torch.equal(kept[f"backbone.{name}"], trainer.backbone.state_dict()[name])
    weights = "layers.0.weight"
    assert not torch.equal(seen.networks[-1][weights], kept[f"backbone.{weights}"])
    # Five batches of eight: all training images of the first epoch, as they are.
    assert seen.networks[-1]["layers.1.num_batches_tracked"] == 5
    assert trainer.update.average is not None
    network, prepare = trainer.update.average.network, trainer.update.preprocessing.to_tensor
    assert isinstance(network, TinyNet)
    images = torch.from_numpy(Crowd().images)[torch.from_numpy(trainer.loader.plan.epoch(0))]
    features = [network.layers[0](prepare(batch)) for batch in images]
    mean = torch.stack([each.mean((0, 2, 3)) for each in features]).mean(0)
    torch.testing.assert_close(seen.networks[-1]["layers.1.running_mean"], mean.detach())


@pytest.fixture(
    scope="module", params=[(kind, sets) for kind in sorted(AVERAGES) for sets in (True, False)]
)
def straight(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trainer, dict[str, Any]]:
    """A run that was never stopped, and what makes a trainer of another one like it."""
    kind, sets = request.param
    more: dict[str, Any] = {} if sets else {"evaluate": None}
    more["config"] = make_config(average=AVERAGES[kind], augmentation="strong")
    trainer = make_trainer(tmp_path_factory.mktemp("straight"), **more)
    trainer.run()
    return trainer, more


@pytest.mark.parametrize("step", [3, 7, 10, 15])
def test_a_resumed_average_has_the_same_bits(
    tmp_path: Path, straight: tuple[Trainer, dict[str, Any]], step: int
) -> None:
    unstopped, more = straight
    events = StopAt(step)
    stopped = make_trainer(tmp_path, events=events, **more)
    events.trainer = stopped
    assert stopped.run().interrupted
    resumed = make_trainer(tmp_path, **more)
    assert not resumed.run(resume=True).interrupted
    expected, found = (tensors_of(each.last_path) for each in (unstopped, resumed))
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    runs = [each.last_path.parent.parent for each in (unstopped, resumed)]
    assert lines(runs[0], "evaluation") == lines(runs[1], "evaluation")


def test_a_stopped_run_has_statistics_that_fit_its_average(run_folder: Path) -> None:
    events = StopAt(7)
    trainer = make_trainer(run_folder, make_config(average={"decay": 0.8}), events=events)
    events.trainer = trainer
    trainer.run()
    kept = tensors_of(trainer.last_path)
    name = "layers.1.running_mean"
    assert torch.equal(kept[f"{AVERAGED}{name}"], kept[f"backbone.{name}"])


@pytest.mark.parametrize("kind", sorted(AVERAGES))
def test_a_frozen_network_with_given_weights_stays_what_it_is(run_folder: Path, kind: str) -> None:
    config = make_config(average=AVERAGES[kind], freeze={"epochs": None}, start_from="given")
    trainer = make_trainer(run_folder, config)
    torch.manual_seed(9)
    with torch.no_grad():  # after it was built, as a run is given the weights to start from
        for value in trainer.backbone.state_dict().values():
            value.copy_(torch.rand(value.shape) + 0.5)
    given = {name: value.clone() for name, value in trainer.backbone.state_dict().items()}
    kept = tensors_of(trainer.run().checkpoint)
    for name, value in given.items():
        torch.testing.assert_close(kept[f"{AVERAGED}{name}"], value)


def test_training_itself_is_the_same_with_and_without(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path / "plain")
    plain.run()
    averaged: Trainer = make_trainer(tmp_path / "averaged", make_config(average={"decay": 0.9}))
    averaged.run()
    for name, value in plain.backbone.state_dict().items():
        assert torch.equal(averaged.backbone.state_dict()[name], value), name


def test_a_run_with_an_average_and_nothing_to_evaluate_is_finished(run_folder: Path) -> None:
    config = make_config(epochs=1, average={"decay": 0.8, "statistics": 16})
    result = make_trainer(run_folder, config, evaluate=None).run()
    assert not result.interrupted
    saved = load_checkpoint(result.last_checkpoint)
    assert (saved.finished, saved.evaluated_step) == (True, 5)
