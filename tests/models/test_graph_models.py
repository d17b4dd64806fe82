"""Models in ONNX and OpenVINO files: folders like any other, with torch's embeddings."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor
from typer.testing import CliRunner

from sphereface2 import build_backbone, load_model
from sphereface2.cli import app
from sphereface2.data.transforms import Preprocessing, resize
from sphereface2.models.export import export_graph, export_torchscript, write_onnx
from sphereface2.models.folder import (
    LoadedModel,
    TorchModel,
    find_model,
    save_model,
    store_calibration,
    stored_calibration,
    weights_digest,
)
from tests.models.onnx_files import build
from tests.models.onnx_files import save as save_onnx

OPTIONS: dict[str, Any] = {"width": 4, "input_size": 32, "embedding_dim": 16}
IMAGENET = Preprocessing(32, "BGR", (123.675, 116.28, 103.53), (58.4, 57.1, 57.4))


def save(folder: Path, *, preprocessing: Preprocessing = IMAGENET, flip: bool = True) -> Path:
    network = build_backbone("sfnet4", seed=0, **OPTIONS)
    save_model(
        folder, network, name="sfnet4", options=OPTIONS, preprocessing=preprocessing, flip=flip
    )
    return folder


@pytest.fixture(scope="module")
def images() -> list[NDArray[np.uint8]]:
    generator = np.random.default_rng(0)
    sizes = [(32, 32), (112, 112), (40, 50), (9, 9)] * 10
    return [generator.integers(0, 256, (*size, 3), np.uint8) for size in sizes]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A torch model, and its exports to the two runtimes."""
    place = tmp_path_factory.mktemp("models")
    save(place / "torch")
    digest = weights_digest(place / "torch")
    store_calibration(place / "torch", {"model": digest, "set_name": "mine"})
    for form in ("onnx", "openvino"):
        found = export_graph(place / "torch", place / form, to=form)
        assert found.lowest_cosine > 0.99999
    return place


@pytest.mark.parametrize(
    "preprocessing", [IMAGENET, Preprocessing(32), Preprocessing(32, "BGR", 0.1, 3.3)]
)
def test_numpy_and_torch_prepare_the_very_same_numbers(
    images: list[NDArray[np.uint8]], preprocessing: Preprocessing
) -> None:
    for image in images:
        array = preprocessing.to_array(image)
        assert array.dtype == np.float32
        assert np.array_equal(array, preprocessing.to_tensor(image).numpy())


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_an_export_gives_the_embeddings_of_torch(
    place: Path, images: list[NDArray[np.uint8]], form: str
) -> None:
    first, second = load_model(place / "torch"), load_model(place / form)
    assert second.embedding_dim == first.embedding_dim == 16
    assert second.preprocessing == first.preprocessing
    for flip in (None, False):
        one, other = (model.embed(images, flip=flip) for model in (first, second))
        assert np.sum(one * other, axis=1).min() > 0.99999
        assert np.abs(one - other).max() < 1e-5
    with pytest.raises(ValueError, match="this needs a torch model"):
        _ = second.backbone


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_an_export_sees_parts_of_the_face_as_torch_does(tmp_path: Path, form: str) -> None:
    options: dict[str, Any] = {
        # Seen smaller, as it is, and larger.
        "views": ("whole", (0.0, 0.25, 0.625), (0.25, 0.25, 0.5)), "view_size": 20,
        "input_size": 32, "embedding_dim": 6, "network": {"name": "sfnet4", "width": 4},
    }  # fmt: skip
    network = build_backbone("views", seed=0, **options)
    save_model(
        tmp_path / "torch", network, name="views", options=options, preprocessing=Preprocessing(32)
    )
    found = export_graph(tmp_path / "torch", tmp_path / form, to=form)
    assert found.largest_difference < 1e-5


@pytest.fixture
def views() -> LoadedModel:
    options: dict[str, Any] = {
        "views": ("whole",), "view_size": 16, "input_size": 24, "embedding_dim": 4,
        "network": {"name": "sfnet4", "width": 2},
    }  # fmt: skip
    network = build_backbone("views", seed=0, **options).eval()
    return TorchModel("views", Preprocessing(24), {}, False, network, options)


def test_a_network_can_be_used_while_it_is_exported(
    views: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.rand(2, 3, 24, 24)
    before = views.backbone(images)
    meanwhile: list[Tensor] = []
    export = torch.onnx.export

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        meanwhile.append(views.backbone(images))
        return export(*arguments, **settings)

    monkeypatch.setattr(torch.onnx, "export", interrupted)
    write_onnx(views, tmp_path / "model.onnx")
    assert torch.equal(meanwhile[0], before)
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert "Resize" not in {node.op_type for node in graph.node}


def test_exports_in_threads_leave_output_and_log_as_they_were(
    views: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ends while the second is on its way, unless that waits for the first."""
    first_is_over, second_is_in = Event(), Event()

    def export(*_: Any, **__: Any) -> None:
        if current_thread() is second:
            second_is_in.set()
            first_is_over.wait(10)
        else:
            second.start()
            second_is_in.wait(1)
        raise RuntimeError("no export")

    def fail() -> None:
        with pytest.raises(RuntimeError, match="no export"):
            write_onnx(views, tmp_path / "model.onnx")

    second = Thread(target=fail)
    monkeypatch.setattr(torch.onnx, "export", export)
    before = sys.stdout, logging.root.manager.disable
    fail()
    first_is_over.set()
    second.join()
    assert (sys.stdout, logging.root.manager.disable) == before


def test_the_calibration_comes_along_with_the_digest_of_the_export(place: Path) -> None:
    stored = stored_calibration(place / "onnx")
    assert stored is not None
    assert stored["set_name"] == "mine"
    digests = {weights_digest(place / form) for form in ("torch", "onnx", "openvino")}
    assert len(digests) == 3


def test_other_pixels_make_another_model(place: Path, tmp_path: Path) -> None:
    for name in ("model.onnx", "config.json"):
        (tmp_path / name).write_bytes((place / "onnx" / name).read_bytes())
    assert weights_digest(tmp_path) == weights_digest(place / "onnx")
    config = json.loads((tmp_path / "config.json").read_text())
    config["preprocessing"]["channels"] = "RGB"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert weights_digest(tmp_path) != weights_digest(place / "onnx")
    with pytest.raises(ValueError, match=r"another model than the model\.onnx beside it"):
        stored_calibration(tmp_path)


def test_an_onnx_file_holds_the_preprocessing_and_no_paths_of_this_machine(place: Path) -> None:
    from sphereface2.models.onnx_graph import look_at_onnx

    path = place / "onnx" / "model.onnx"
    said = json.loads(look_at_onnx(path).metadata["sphereface2"])
    assert said["preprocessing"]["mean"] == [123.675, 116.28, 103.53]
    assert b".py" not in path.read_bytes()
    assert b"116.28" in (place / "openvino" / "model.xml").read_bytes()


def test_torchscript_is_one_file_with_the_preprocessing(place: Path, tmp_path: Path) -> None:
    import torch

    found = export_torchscript(place / "torch", tmp_path / "out" / "model.pt")
    assert found.lowest_cosine > 0.99999
    extra = {"sphereface2": ""}
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        network = torch.jit.load(  # type: ignore[no-untyped-call]
            tmp_path / "out" / "model.pt", _extra_files=extra
        )
    inputs = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(network(inputs), load_model(place / "torch").backbone(inputs))
    assert json.loads(extra["sphereface2"])["preprocessing"]["input_size"] == 32


def test_every_command_that_takes_a_model_takes_this_one(place: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for person in range(12):
        base = generator.integers(0, 256, (32, 32, 3))
        for number in range(4):
            picture = np.clip(base + generator.normal(0, 40, base.shape), 0, 255).astype(np.uint8)
            path = tmp_path / "crops" / f"p{person:02}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), picture)
    model = Path(shutil.copytree(place / "onnx", tmp_path / "model"))
    tables = []
    for chosen in (model, place / "torch"):
        output = tmp_path / f"{chosen.name}.npy"
        _run("extract", chosen, tmp_path / "crops", output)
        tables.append(np.load(output))
    assert np.abs(tables[0] - tables[1]).max() < 1e-4 * np.abs(tables[1]).max()
    _run("evaluate", model, "--on", tmp_path / "crops", "--output", tmp_path / "e")
    _run("calibrate", model, "--on", tmp_path / "crops", "--far", "0.1")
    _run("inspect", tmp_path / "crops", "--model", model, "--output", tmp_path / "i")
    assert json.loads((tmp_path / "i" / "inspection.json").read_text())["labels"] is not None


def test_no_torch_is_loaded_for_them(place: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"  # importing it fails from here on
        "import numpy as np\n"
        "from sphereface2 import load_model\n"
        f"model = load_model({str(place / 'onnx')!r})\n"
        "print(model.embed(np.zeros((1, 32, 32, 3), np.uint8)).shape)\n"
        f"load_model({str(place / 'torch')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 16)\n"
    assert "is a model for torch, which is not installed" in done.stderr


def test_a_runtime_leaves_nothing_in_the_home_folder(place: Path, tmp_path: Path) -> None:
    """ONNX Runtime's events go to its maker, and their first trace is an id in the home folder."""
    script = f"from sphereface2 import load_model; load_model({str(place / 'onnx')!r})"
    home = {each: str(tmp_path) for each in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORT_")}
    subprocess.run([sys.executable, "-c", script], check=True, env={**clean, **home})
    assert not list(tmp_path.iterdir())


def test_a_missing_runtime_is_named_with_its_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form, package in (("onnx", "onnxruntime"), ("openvino", "openvino")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=f"needs .*: pip install .*{form}"):
            load_model(place / form)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"needs packages: pip install .*(onnx|export)"):
        export_graph(place / "torch", place / "never")
    assert not (place / "never").exists()


def test_damage_is_a_sentence(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make a model folder of it: sphereface2 import"):
        find_model(save_onnx(tmp_path / "bare.onnx"))
    folder = Path(shutil.copytree(place / "onnx", tmp_path / "m"))
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="is not an ONNX model, or is damaged"):
        load_model(folder)
    (folder / "config.json").write_text('{"format": "sphereface2-model", "version": 1}')
    with pytest.raises(ValueError, match="lacks the key 'preprocessing'"):
        load_model(folder)
    xml = Path(shutil.copytree(place / "openvino", tmp_path / "x"))
    text = (xml / "model.xml").read_text()
    (xml / "model.xml").write_text(text.replace('type="Convolution"', 'type="Loop"'))
    with pytest.raises(ValueError, match="control flow"):
        load_model(xml)
    (xml / "model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no model\.bin beside it"):
        load_model(xml)


# Importing


def test_an_imported_file_is_a_model(tmp_path: Path, images: list[NDArray[np.uint8]]) -> None:
    file = save_onnx(tmp_path / "r50.onnx")
    out = tmp_path / "out"
    words = ["--mean", "123,116,103", "--scale", "58", "--colour", "bgr", "--no-flip"]
    _run("import", file, out, *words)
    model = load_model(out)
    assert model.preprocessing == Preprocessing(16, "BGR", (123.0, 116.0, 103.0), 58.0)
    assert (model.flip, model.embedding_dim) == (False, 6)
    # By hand: the network of that file is one matrix.
    matrix = numpy_helper.to_array(onnx.load(file).graph.initializer[0])
    shrunk = np.stack([resize(image, 16) for image in images]).astype(np.float64)
    inputs = (shrunk[..., ::-1] - [123, 116, 103]) / 58
    expected = inputs.transpose(0, 3, 1, 2).reshape(len(images), -1) @ matrix
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(images), expected, atol=1e-4)


def test_an_export_of_ours_brings_its_preprocessing(place: Path, tmp_path: Path) -> None:
    _run("import", place / "onnx" / "model.onnx", tmp_path / "out")
    assert load_model(tmp_path / "out").preprocessing == IMAGENET


def test_of_several_outputs_one_is_chosen(tmp_path: Path, images: list[NDArray[np.uint8]]) -> None:
    both = build([*build().graph.node], outputs=("flat", "y"))
    file = save_onnx(tmp_path / "two.onnx", both)
    _run("import", file, tmp_path / "out", "--embedding", "y")
    assert load_model(tmp_path / "out").embed(images).shape == (len(images), 6)


def test_a_graph_for_one_image_takes_them_one_by_one(
    tmp_path: Path, images: list[NDArray[np.uint8]]
) -> None:
    for name, batch in (("one", 1), ("any", "n")):
        model = build(shape=(batch, 3, 16, 16))
        _run("import", save_onnx(tmp_path / f"{name}.onnx", model), tmp_path / name)
    one, free = (load_model(tmp_path / name).embed(images) for name in ("one", "any"))
    np.testing.assert_allclose(one, free, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--size", "112"], "takes images of 16 × 16 pixels, not of --size 112"),
        (["--embedding", "z"], "has no output 'z'"),
        (["--backbone", "iresnet50"], "--backbone is not for an ONNX file"),
        (["--mean", "1,2"], "--mean takes a number, or three"),
    ],
)
def test_mistakes_of_an_import_leave_nothing(tmp_path: Path, words: list[str], why: str) -> None:
    file = save_onnx(tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["import", str(file), str(tmp_path / "out"), *words])
    assert isinstance(done.exception, ValueError)
    assert why in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_a_free_size_must_be_said(tmp_path: Path) -> None:
    pooled = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    file = save_onnx(tmp_path / "m.onnx", build(pooled, [], shape=("n", 3, "h", "w")))
    done = CliRunner().invoke(app, ["import", str(file), str(tmp_path / "out")])
    assert "say which with --size" in str(done.exception)
    _run("import", file, tmp_path / "out", "--size", "24")
    assert load_model(tmp_path / "out").preprocessing.input_size == 24


def _run(*words: object) -> None:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
