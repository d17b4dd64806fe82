"""A rehearsal of a training step on a GPU, without one: devices, dtypes, shapes and waits.

The step runs on the meta device, where tensors have no values, so whatever waits for a value fails.
What it does is written down, gradients and updates included, and run again with fake tensors on a
CUDA device. What a real GPU computes and how fast it is, this cannot say.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from sphereface2.backbones import build_backbone
from sphereface2.backbones.backbone import Backbone
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.proxy import ProxyHead

# These three switch autocast off around their own arithmetic, which the meta device does not know.
WITHOUT = ("sigmoid", "deepid2", "unitsface")
PROXY_HEADS = [
    name for name in HEADS if name not in WITHOUT and isinstance(build_head(name, 4, 4), ProxyHead)
]
# The update is the same for all heads: binary and softmax, with a bias, with more than a map.
FUSED = ["sphereface2-c", "uniface", "softmax", "curricularface", "ring"]
CUDA = torch.device("cuda", 0)
BATCH, DIM = 16, 32


@pytest.fixture(autouse=True)
def _cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA cannot say which of its convolutions would run."""
    backend: Any = getattr(torch._C, "_ConvBackend").Cudnn  # noqa: B009  # torch leaves it untyped
    monkeypatch.setattr(torch._C, "_select_conv_backend", lambda *_, **__: backend)
    monkeypatch.setattr(
        torch._C, "_conv_determine_backend_memory_format", lambda *_: torch.contiguous_format
    )


class Projection(Backbone):
    """A network of one layer."""

    def __init__(self) -> None:
        super().__init__(width=1, input_size=16, embedding_dim=DIM)
        self.project = nn.Linear(3 * 16 * 16, DIM)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.project(images.flatten(1))
        return embeddings


def build(name: str, *, classes: int, fused: bool) -> tuple[Backbone, ProxyHead]:
    """A network and a head of many classes, without values; a whole network with one head."""
    backbone: Backbone = Projection()
    if name == "sphereface2-c":
        backbone = build_backbone("sfnet4", input_size=16, width=4, embedding_dim=DIM)
    backbone.to("meta")
    head = build_head(name, DIM, 8)
    assert isinstance(head, ProxyHead)
    for each in ("weight", "bias"):
        parameter = getattr(head, each)
        if parameter is not None and each in head.per_class:
            shape = (classes, *parameter.shape[1:])
            setattr(head, each, nn.Parameter(torch.empty(shape, device="meta")))
    head.num_classes = classes
    head.to("meta")
    if fused:
        head.fused_sgd(lr=0.1, weight_decay=1e-3)
    return backbone, head


def written_down(backbone: Backbone, head: ProxyHead) -> GraphModule:
    """All operations of a training step: network, head, backward pass and update."""
    own = [p for p in head.parameters() if head.fused is None or p is not head.weight]
    optimizer = torch.optim.SGD([*backbone.parameters(), *own], lr=0.1, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = head(backbone(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    images = torch.empty(BATCH, 3, 16, 16, device="meta")
    return make_fx(step)(images, torch.empty(BATCH, dtype=torch.int64, device="meta"))


class OnCuda(Interpreter):
    """Runs what was written down on a pretended CUDA device."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.mode = FakeTensorMode()
        self.held = {
            str(node.target): self.fake(getattr(graph, str(node.target)))
            for node in graph.graph.nodes
            if node.op == "get_attr"
        }

    def fake(self, tensor: Tensor) -> Tensor:
        return FakeTensor(self.mode, torch.empty_like(tensor.detach(), device="meta"), CUDA)

    def fetch_attr(self, target: str) -> Any:
        return self.held[target]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        def there(value: Any) -> Any:
            return CUDA if isinstance(value, torch.device) else value

        out = super().call_function(
            target, tuple(map(there, args)), {key: there(value) for key, value in kwargs.items()}
        )
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                assert tensor.device == CUDA, f"{target} leaves the device"
        return out

    def rehearse(self, *inputs: Tensor) -> Tensor:
        fakes = [self.fake(tensor) for tensor in inputs]
        with self.mode, torch.no_grad():
            loss: Tensor = self.run(*fakes)
        return loss


def inputs() -> tuple[Tensor, Tensor]:
    images = torch.empty(BATCH, 3, 16, 16, device="meta")
    return images, torch.empty(BATCH, dtype=torch.int64, device="meta")


@pytest.mark.parametrize(
    ("name", "fused"), [(name, False) for name in PROXY_HEADS] + [(name, True) for name in FUSED]
)
def test_a_whole_step_stays_on_the_device(name: str, *, fused: bool) -> None:
    backbone, head = build(name, classes=300_000, fused=fused)
    graph = written_down(backbone, head)
    loss = OnCuda(graph).rehearse(*inputs())
    assert loss.device == CUDA
    assert loss.dtype == torch.float32
    assert loss.shape == ()
