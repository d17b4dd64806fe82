"""The public names, as people outside face recognition use them: just the loss, in three lines."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sphereface2
from sphereface2.data.transforms import Preprocessing
from sphereface2.models.folder import save_model

README = Path(__file__).parent.parent / "README.md"


def test_three_lines() -> None:
    embeddings, labels = torch.randn(8, 192, requires_grad=True), torch.arange(8)
    head = sphereface2.SphereFace2(192, num_classes=5994, margin=0.2, radius=32)
    loss = head(embeddings, labels)
    loss.backward()
    assert head.weight.shape == (5994, 192)
    assert embeddings.grad is not None
    assert head.bias is not None


def test_the_code_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a model of 56×56, as the demo trains, and crops of 112×112, as `align` writes."""
    options: dict[str, Any] = {"width": 4, "input_size": 56, "embedding_dim": 6}
    save_model(
        tmp_path / "runs/own-faces/model",
        sphereface2.build_backbone("sfnet4", **options),
        name="sfnet4",
        options=options,
        preprocessing=Preprocessing(56),
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "embeddings": torch.randn(8, 192),
        "labels": torch.arange(8),
        "images": np.zeros((2, 112, 112, 3), np.uint8),
    }
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    assert names["loss"].isfinite()
    assert names["embeddings"].shape == (2, 6)


def test_every_public_name_is_there() -> None:
    for name in sphereface2.__all__:
        assert getattr(sphereface2, name) is not None
        assert name in dir(sphereface2)
    with pytest.raises(AttributeError, match="no attribute 'SphereFace3'"):
        sphereface2.SphereFace3  # noqa: B018


@pytest.mark.usefixtures("quick_processes")
def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphereface2", "recipes"], capture_output=True, text=True, check=True
    )
    assert "quickstart" in done.stdout
