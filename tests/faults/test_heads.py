"""Random settings of heads: some hundreds of the 10,000 of `python -m faults.heads`."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from faults.heads import draw, fault_of, run
from faults.outcomes import Outcomes
from sphereface2.heads import HEADS, CosFace


def test_settings_give_finite_numbers_or_a_refusal(tmp_path: Path) -> None:
    outcomes = Outcomes(tmp_path / "heads.json")
    came = run(outcomes, settings=300)
    assert outcomes.losses() == []
    assert sum(came.values()) == 300
    assert min(came["finite"], came["refused"]) > 30
    assert {draw(seed).head for seed in range(300)} == set(HEADS)
    run(outcomes, settings=300)  # has been tried: nothing is added
    assert outcomes.rows()[0].tried == 300


class Overflowing(CosFace):
    """A head with a fault."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().forward(embeddings, labels) * torch.tensor(1e30) * 1e30


def test_a_loss_that_overflows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(999) if draw(seed).head == "cosface"
                and not draw(seed).options and draw(seed).rows == "random")  # fmt: skip
    assert fault_of(draw(seed)) == ("", "finite")
    monkeypatch.setitem(HEADS, "cosface", Overflowing)
    assert fault_of(draw(seed))[0] == "the loss is inf"
