"""What every backbone is: a network from square RGB images to embeddings of one size."""

from torch import Tensor, nn

LARGEST = 65_536
"""No side or width of a network is near it; the sizes of tensors stay within 64 bits."""


class Backbone(nn.Module):
    """Maps (B, 3, S, S) in [-1, 1] to (B, D); the embeddings are not normalised.

    A subclass builds its layers and embeds in `embed`. Its keyword arguments are the options that
    a config may set; `width` is the channels of the first layer, to which all others keep their
    proportion, and `dropout` is the share of the last features that each training step drops
    before they are projected to the embedding.
    """

    def __init__(
        self, *, width: int, input_size: int, embedding_dim: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        _check("width", width, at_least=1)
        # Every network here halves the image four times.
        _check("input_size", input_size, at_least=16)
        _check("embedding_dim", embedding_dim, at_least=1)
        if not 0 <= dropout < 1:
            raise ValueError(f"backbone.dropout must lie in [0, 1), got {dropout}")
        self.dropout = nn.Dropout(dropout)
        self.input_size = input_size
        self.embedding_dim = embedding_dim

    def forward(self, images: Tensor) -> Tensor:
        expected = (3, self.input_size, self.input_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"this backbone takes images of shape (B, 3, {expected[1]}, {expected[2]}), "
                f"got {tuple(images.shape)}"
            )
        return self.embed(images)

    def embed(self, images: Tensor) -> Tensor:
        """The embeddings of images that have the right shape."""
        raise NotImplementedError  # every backbone defines its own

    def last_layers(self) -> tuple[nn.Linear, nn.BatchNorm1d | None]:
        """The layers that end the network: its projection and the norm of the embedding, if any."""
        *_, linear = (module for module in self.modules() if isinstance(module, nn.Linear))
        *_, last = self.children()
        return linear, last if isinstance(last, nn.BatchNorm1d) else None


def summed_embeddings(backbone: nn.Module, inputs: Tensor, *, flip: bool) -> Tensor:
    """The (B, D) embeddings of inputs; with `flip`, each plus that of its mirror image.

    The plain sum: neither summand is normalised first.
    """
    embeddings: Tensor = backbone(inputs).float()
    return embeddings + backbone(inputs.flip(3)).float() if flip else embeddings


def _check(option: str, value: int, *, at_least: int) -> None:
    """Refuse an option that is too small, or so large that torch cannot count the numbers."""
    if not at_least <= value <= LARGEST:
        raise ValueError(
            f"backbone.{option} must lie between {at_least} and {LARGEST}, got {value}"
        )


def halved(size: int, times: int) -> int:
    """The side of a feature map after that many layers of stride 2 (3×3 with padding, or 1×1)."""
    for _ in range(times):
        size = (size + 1) // 2
    return size
