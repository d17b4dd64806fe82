"""Our PReLU is torch's, number for number; only its backward pass is another computation."""

import pytest
import torch
from torch import Tensor, nn

from sphereface2.backbones.backbone import PReLU


def run(module: nn.PReLU, features: Tensor, grad: Tensor) -> list[Tensor]:
    inputs = features.clone(memory_format=torch.preserve_format).requires_grad_()
    out = module(inputs)
    out.backward(grad)
    assert inputs.grad is not None
    assert module.weight.grad is not None
    return [out.detach(), inputs.grad, module.weight.grad]


@pytest.mark.parametrize("shape", [(6, 5, 9, 7), (8, 5), (3, 5, 11)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("slopes", [5, 1])
def test_the_same_bits_as_torch(
    shape: tuple[int, ...], slopes: int, *, channels_last: bool
) -> None:
    torch.manual_seed(0)
    features, grad = torch.randn(shape), torch.randn(shape)
    features[0, 0] = 0.0
    if channels_last and len(shape) == 4:
        features = features.contiguous(memory_format=torch.channels_last)
    ours, theirs = PReLU(slopes), nn.PReLU(slopes)
    with torch.no_grad():
        slope = torch.linspace(-0.5, 1.5, slopes)
        ours.weight.copy_(slope)
        theirs.weight.copy_(slope)
    found, expected = run(ours, features, grad), run(theirs, features, grad)
    if slopes > 1:
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    torch.testing.assert_close(found, expected)


def test_a_frozen_slope_has_no_gradient() -> None:
    module = PReLU(2)
    module.weight.requires_grad_(False)
    features = torch.randn(3, 2, 4, 4, requires_grad=True)
    module(features).sum().backward()
    assert module.weight.grad is None
    assert features.grad is not None


def test_gradients_are_right() -> None:
    module = PReLU(3).double()
    features = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (features,))
