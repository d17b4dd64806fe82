"""Parts of a network that keep their given weights for the first epochs of a training."""

from torch import nn

from sphereface2.config.schema import FreezeConfig
from sphereface2.registry import did_you_mean, near


class Freezing:
    """Freezes modules of a backbone until an epoch: no gradients, batch norm in evaluation mode.

    Built after the optimiser, which is to know all parameters that will ever move.
    """

    def __init__(self, backbone: nn.Module, config: FreezeConfig | None) -> None:
        self.epochs = 0.0
        self.modules: list[nn.Module] = []
        if config is not None:
            self.epochs = float("inf") if config.epochs is None else config.epochs
            self.modules = [_part(backbone, name) for name in config.parts] or [backbone]
        # Others may be frozen for good, as the scale of an IResNet's last norm is.
        self.parameters = [
            parameter
            for module in self.modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        self.is_frozen = False

    def apply(self, epoch: float) -> bool:
        """Freeze or release the parts as this epoch has it; whether that is a change."""
        is_frozen = epoch < self.epochs
        changes = is_frozen != self.is_frozen
        self.is_frozen = is_frozen
        if changes:
            for parameter in self.parameters:
                parameter.requires_grad_(not is_frozen)
            for module in self.modules:
                module.train(not is_frozen)
        return changes

    def keep(self) -> None:
        """Put frozen parts back into evaluation mode after `train()` was called on the whole."""
        for module in self.modules if self.is_frozen else ():
            module.eval()


def _part(backbone: nn.Module, name: str) -> nn.Module:
    if name not in {each for each, _ in backbone.named_modules() if each}:
        children = [n for n, child in backbone.named_children() if [*child.parameters()]]
        meant, top = did_you_mean(near(name, children)), ", ".join(children)
        raise ValueError(
            f"training.freeze.parts: the backbone has no part '{name}'{meant} (its parts are "
            f"{top}, and theirs, such as stages.0)"
        )
    return backbone.get_submodule(name)
