"""Every command that takes a model takes a run, a model folder, ONNX, or the file in its folder."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from sphereface2 import build_backbone, load_model
from sphereface2.cli import app
from sphereface2.data.transforms import Preprocessing
from sphereface2.models.export import export_graph
from sphereface2.models.folder import save_model

OPTIONS: dict[str, Any] = {"width": 4, "input_size": 32, "embedding_dim": 16}
FORMS = {"run": "run", "folder": "run/model", "onnx": "onnx", "onnx file": "onnx/model.onnx"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, rendered: list[NDArray[np.uint8]]) -> Path:
    """A run, its ONNX export, that file alone, and crops of six people, four of each."""
    place = tmp_path_factory.mktemp("models")
    network = build_backbone("sfnet4", seed=0, **OPTIONS)
    save_model(
        place / "run" / "model",
        network,
        name="sfnet4",
        options=OPTIONS,
        preprocessing=Preprocessing(input_size=32),
    )
    export_graph(place / "run", place / "onnx")
    (place / "alone.onnx").write_bytes((place / "onnx" / "model.onnx").read_bytes())
    for number, face in enumerate(rendered):
        folder = place / "crops" / f"p{number}"
        folder.mkdir(parents=True)
        for copy in range(4):
            moved = np.roll(face, copy, axis=1)
            cv2.imwrite(str(folder / f"{copy}.png"), moved[..., ::-1])
    return place


def words(command: str, model: Path, place: Path, out: Path) -> list[str]:
    crops = place / "crops"
    first, second = crops / "p0" / "0.png", crops / "p0" / "1.png"
    gallery = ["--gallery", str(out / "gallery"), "--model", str(model)]
    line: dict[str, list[object]] = {
        "extract": [model, crops, out / "x.npy"],
        "evaluate": [model, "--on", crops, "--output", out / "evaluated"],
        "calibrate": [model, "--on", crops],
        "inspect": [crops, "--model", model, "--output", out / "inspected"],
        "verify": [first, second, "--model", model, "--crops"],
        "group": [crops, out / "people", "--model", model, "--crops", "--threshold", 0.5],
        "enroll": ["Anna", first, *gallery, "--allow", "all", "--crops"],
        "identify": [second, *gallery, "--crops"],
    }
    return [command, *(str(word) for word in line[command])]


COMMANDS = ("extract", "evaluate", "inspect", "verify", "group", "enroll", "identify", "calibrate")


@pytest.mark.parametrize("form", ["run", "onnx file"])
def test_every_command_takes_it(form: str, place: Path, tmp_path: Path) -> None:
    model = place / FORMS[form]
    for command in COMMANDS:
        done = CliRunner().invoke(app, words(command, model, place, tmp_path))
        assert done.exit_code == 0, f"{command}: {done.output}{done.exception!r}"
    assert json.loads((tmp_path / "x.json").read_text())["dim"] == 16


def test_all_forms_embed_alike(place: Path, rendered: list[NDArray[np.uint8]]) -> None:
    found = [load_model(place / form).embed(rendered) for form in FORMS.values()]
    for other in found[1:]:
        assert np.sum(found[0] * other, axis=1).min() > 0.99999


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_alone_says_nothing_about_pixels(command: str, place: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words(command, place / "alone.onnx", place, tmp_path))
    assert isinstance(done.exception, ValueError), done.output
    assert "sphereface2 import" in str(done.exception)
    assert not list(tmp_path.iterdir())
