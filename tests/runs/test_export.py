"""Exports in 8 bits: the loss is measured on pairs, and one that is too large is refused."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from sphereface2 import load_model
from sphereface2.cli import app
from sphereface2.runs.export import export_model
from tests.models.test_graph_models import save


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A torch model, and crops of people who differ in their pixels."""
    place = tmp_path_factory.mktemp("export")
    save(place / "model")
    generator = np.random.default_rng(0)
    for person in range(30):
        base = cv2.resize(generator.integers(0, 256, (4, 4, 3)).astype(np.uint8), (32, 32))
        for number in range(4):
            picture = np.clip(base + generator.normal(0, 60, base.shape), 0, 255).astype(np.uint8)
            path = place / "crops" / f"p{person:02}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), picture)
    return place


def test_an_export_in_8_bits_is_judged_on_pairs(place: Path, tmp_path: Path) -> None:
    done = export_model(
        place / "model", tmp_path / "int8", calibration_data=place / "crops", most_loss=0.2
    )
    assert done.loss is not None
    assert done.loss.measure.startswith("TAR@FAR")
    assert done.loss.difference == pytest.approx(done.loss.value - done.loss.baseline)
    assert done.loss.interval.low <= done.loss.difference <= done.loss.interval.high
    assert 0.9 < done.agreement.lowest_cosine < 0.999999  # it is another network
    said = done.sentences()
    assert "on crops: " in said[1]
    model = load_model(tmp_path / "int8")
    assert model.config["extra"]["exported"]["numbers"] == "int8"
    assert "calibration" not in model.config
    sizes = [
        (folder / name).stat().st_size
        for folder, name in (
            (tmp_path / "int8", "model.onnx"),
            (place / "model", "model.safetensors"),
        )
    ]
    assert sizes[0] < 0.6 * sizes[1]


def test_too_large_a_loss_writes_nothing(place: Path, tmp_path: Path) -> None:
    words = ["export", place / "model", tmp_path / "out", "--int8", "--most-loss", "-1"]
    done = CliRunner().invoke(
        app, [*map(str, words), "--calibration-data", str(place / "crops"), "--workers", "1"]
    )
    assert "8 bits cost too much, and nothing is written: TAR@FAR" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_each_form(place: Path, tmp_path: Path) -> None:
    for form, file in (("onnx", "model.onnx"), ("torchscript", "model.pt")):
        out = tmp_path / form
        done = CliRunner().invoke(app, ["export", str(place / "model"), str(out), "--to", form])
        assert done.exit_code == 0, done.output
        assert "against torch on 16 test images: largest difference" in done.stdout
        assert (out / file).is_file()
    with pytest.raises(ValueError, match="TorchScript is exported in float32 only"):
        export_model(
            place / "model", tmp_path / "x", to="torchscript", calibration_data=place / "crops"
        )
