"""Those who read batches for the loader, whoever they are."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Read = tuple[torch.Tensor, torch.Tensor]
"""The images and the labels of a batch."""


class Readers(Protocol):
    """Those who read batches: told which, they give them back in that order."""

    ahead: int
    """How many batches should be asked for before the first is taken, to keep all busy."""

    def ask(self, indices: NDArray[np.int64], *, epoch: int) -> None:
        """Have the images of these numbers read."""
        ...

    def take(self) -> Read:
        """The first batch asked for and not taken yet; waits for it, and raises its error."""
        ...

    def cpu_seconds(self) -> float:
        """The processor time of this process and of all readers so far."""
        ...

    def close(self) -> None:
        """End the reading; what was asked for and not taken is lost."""
        ...
