"""The public names, as people outside face recognition use them: just the loss, in three lines."""

import subprocess
import sys

import pytest
import torch

import sphereface2


def test_three_lines() -> None:
    embeddings, labels = torch.randn(8, 192, requires_grad=True), torch.arange(8)
    head = sphereface2.SphereFace2(192, num_classes=5994, margin=0.2, radius=32)
    loss = head(embeddings, labels)
    loss.backward()
    assert head.weight.shape == (5994, 192)
    assert embeddings.grad is not None
    assert head.bias is not None


def test_every_public_name_is_there() -> None:
    for name in sphereface2.__all__:
        assert getattr(sphereface2, name) is not None
        assert name in dir(sphereface2)
    with pytest.raises(AttributeError, match="no attribute 'SphereFace3'"):
        sphereface2.SphereFace3  # noqa: B018


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphereface2", "recipes"], capture_output=True, text=True, check=True
    )
    assert "quickstart" in done.stdout
