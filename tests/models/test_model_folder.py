"""Model folders: saved whole or not at all, loaded as they were, refused with a reason."""

import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sphereface2.backbones import BACKBONES, backbone_options, build_backbone
from sphereface2.data.transforms import Preprocessing, resize
from sphereface2.files import file_lock
from sphereface2.models.folder import (
    TorchModel,
    load_model,
    save_model,
    store_calibration,
    stored_calibration,
    weights_digest,
)

OPTIONS: dict[str, Any] = {"width": 4, "input_size": 16, "embedding_dim": 6}
VIEWS: dict[str, Any] = {
    "views": ["whole", [0.0, 0.0, 1.0]], "view_size": 16, "network": {"name": "sfnet4", "width": 4},
    "input_size": 16, "embedding_dim": 6,
}  # fmt: skip


def save(folder: Path, *, name: str = "sfnet4", seed: int = 0, **more: Any) -> None:
    save_model(
        folder,
        build_backbone(name, seed=seed, **OPTIONS),
        name=name,
        options=OPTIONS,
        preprocessing=more.pop("preprocessing", Preprocessing(input_size=16)),
        **more,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model")
    return tmp_path / "model"


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def refusal(folder: Path) -> str:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_model(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert str(folder) in text
    return text


@pytest.mark.parametrize("name", BACKBONES)
def test_a_model_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    options = VIEWS if name == "views" else OPTIONS
    backbone = build_backbone(name, seed=1, **options)
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    backbone(images)  # moves the running statistics of batch norm away from their start
    preprocessing = Preprocessing(input_size=16)
    extra = {"head": {"name": "cosface", "margin": 0.35}, "people": [1, 2]}
    save_model(
        tmp_path / "a/model",
        backbone,
        name=name,
        options=options,
        preprocessing=preprocessing,
        extra=extra,
    )
    assert entries(tmp_path / "a") == ["model"]
    assert entries(tmp_path / "a/model") == ["config.json", "model.safetensors"]

    state = torch.get_rng_state()
    model = load_model(str(tmp_path / "a/model"))
    assert isinstance(model, TorchModel)
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.name, model.preprocessing) == (name, preprocessing)
    assert model.options.items() >= backbone_options(name, options).items()
    assert model.config["extra"] == extra
    assert model.config["embedding_dim"] == 6
    assert not model.backbone.training
    with torch.no_grad():
        assert torch.equal(model.backbone(images), backbone.eval()(images))
    frozen = [key for key, value in backbone.named_parameters() if not value.requires_grad]
    loaded = model.backbone.named_parameters()
    assert [key for key, value in loaded if not value.requires_grad] == frozen


def test_options_are_written_out_so_that_later_defaults_cannot_change_them(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    options = {**OPTIONS, "batch_norm": False, "relu_after_sum": False, "dropout": 0.0}
    assert config["backbone"] == {"name": "sfnet4", "options": options}


def test_half_precision_weights_are_loaded_as_float32(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({key: value.half() for key, value in weights.items()}, folder / "model.safetensors")
    assert {value.dtype for value in load_model(folder).backbone.parameters()} == {torch.float32}


# Saving


def test_a_model_folder_is_replaced(folder: Path) -> None:
    first = load_model(folder).backbone.state_dict()
    save(folder, seed=1, extra={"round": 2})
    second = load_model(folder)
    assert second.config["extra"] == {"round": 2}
    assert any(not torch.equal(first[k], v) for k, v in second.backbone.state_dict().items())
    assert entries(folder.parent) == ["model"]


def test_a_linked_model_folder_is_replaced_behind_the_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    save(link, extra={"round": 2})
    assert link.is_symlink()
    assert load_model(folder).config["extra"] == {"round": 2}


@pytest.mark.parametrize("existing", [True, False])
def test_a_write_that_fails_leaves_everything_as_it_was(tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "model"
    if existing:
        save(folder, extra={"round": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # bytes of a file
    try:
        with pytest.raises(OSError, match="File too large") as failed:
            save(folder, extra={"round": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failed.value.filename == str(folder)
    assert entries(tmp_path) == (["model"] if existing else [])
    if existing:
        assert load_model(folder).config["extra"] == {"round": 1}


def test_a_move_that_fails_puts_the_old_model_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.suffix == ".part":
            raise OSError("cannot move")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="cannot move"):
        save(folder, seed=1, extra={"round": 2})
    assert entries(folder.parent) == ["model"]
    assert load_model(folder).config["extra"] == {}


def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"it holds other things \(thesis\.txt\)"):
        save(tmp_path)
    assert entries(tmp_path) == ["thesis.txt"]
    with pytest.raises(ValueError, match="it is a file, not a folder"):
        save(tmp_path / "thesis.txt")


def test_what_does_not_fit_together_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"input_size \(112\) is not the backbone's \(16\)"):
        save(tmp_path / "a", preprocessing=Preprocessing(input_size=112))
    with pytest.raises(ValueError, match=r"must be plain JSON: Object of type Tensor"):
        save(tmp_path / "a", extra={"bias": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"must be plain JSON"):
        save(tmp_path / "a", extra={"loss": float("nan")})
    backbone = build_backbone("sfnet4", **OPTIONS)
    for name, options in (("sfnet10", OPTIONS), ("sfnet4", {**OPTIONS, "width": 5})):
        with pytest.raises(ValueError, match=f"the network to save is not a {name} with these"):
            save_model(
                tmp_path / "a",
                backbone,
                name=name,
                options=options,
                preprocessing=Preprocessing(input_size=16),
            )
    assert entries(tmp_path) == []


# Loading


def test_a_missing_folder_or_file_is_named(folder: Path) -> None:
    assert refusal(folder / "no") == f"there is no run or model folder {folder / 'no'}"
    (folder / "config.json").rename(folder / "x")
    assert refusal(folder) == f"{folder} is not a model folder: it holds no config.json"
    (folder / "x").rename(folder / "config.json")
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == f"{folder} is not a model folder: it holds no model.safetensors"


def test_a_run_folder_means_the_model_in_it(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    unfinished = f"{run} is an unfinished run, which holds no trained model yet: "
    assert refusal(run) == f"{unfinished}finish it with 'sphereface2 resume {run}'"
    with file_lock(run / "run.lock"):
        who = f"process {os.getpid()} on {socket.gethostname()}"
        assert refusal(run) == f"{unfinished}{who} is training it; wait for its end"
    (run / "run.lock").touch()  # as a killed process leaves it
    assert refusal(run).startswith(f"{unfinished}finish it")
    folder.rename(run / "model")
    assert load_model(run).config == load_model(run / "model").config
    (run / "model" / "model.safetensors").unlink()
    assert "model is not a model folder: it holds no model.safetensors" in refusal(run)


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_both_files_are_as_readable_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {0o666 & ~umask}


def change(*keys: str, to: object) -> Callable[[dict[str, Any]], None]:
    def apply(config: dict[str, Any]) -> None:
        for key in keys[:-1]:
            config = config[key]
        if to is None:
            del config[keys[-1]]
        else:
            config[keys[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        (change("format", to="other"), "does not describe a sphereface2 model"),
        (change("version", to=2), "has version 2 of the model format, this sphereface2 reads"),
        (change("version", to=None), "has version None of the model format"),
        (change("backbone", to=None), "lacks the key 'backbone'"),
        (change("backbone", to="sfnet4"), "is damaged: its sections have the wrong form"),
        (change("backbone", "options", to=[1]), "is damaged: its sections have the wrong form"),
        (change("backbone", "name", to="sfnet5"), "unknown backbone 'sfnet5'; did you mean 'sfnet"),
        (change("backbone", "options", "widht", to=4), "has no option 'widht'; did you mean"),
        (change("backbone", "options", "width", to="x"), "backbone.width: must be a whole number"),
        *(
            (
                change("backbone", "options", option, to=size),
                f"config.json: backbone.{option} must lie between {least} and 65536, got {size}",
            )
            for option, least in (("width", 1), ("input_size", 16), ("embedding_dim", 1))
            for size in (-1, 0, 10**6, 10**9, 10**30)
        ),
        (
            change("backbone", "options", "width", to=5),
            "the tensor stages.0.0.weight has shape (4,",
        ),
        (
            change("backbone", "options", "width", to=65_536),
            "the tensor stages.0.0.weight has shape",
        ),
        (change("backbone", "name", to="sfnet10"), "does not fit the backbone sfnet10 of config"),
        (change("preprocessing", to=None), "lacks the key 'preprocessing'"),
        (change("preprocessing", "mean", to=None), "lacks the key 'mean'"),
        (change("preprocessing", "mean", to="x"), "preprocessing.mean has the wrong type, got 'x'"),
        (change("preprocessing", "scale", to=0), "preprocessing.scale must be above 0, got 0"),
        (
            change("preprocessing", "mean", to=[1, 2]),
            "mean must be one number or three, got (1, 2)",
        ),
        (change("preprocessing", "mean", to=[1, 2, True]), "preprocessing.mean has the wrong type"),
        (change("preprocessing", "mean", to=10**400), "mean must be one number or three, got 1"),
        (change("preprocessing", "scale", to=[1, 1, 0]), "scale must be above 0, got (1, 1, 0)"),
        (change("preprocessing", "channels", to=["RGB"]), "channels has the wrong type"),
        (change("preprocessing", "channels", to="XYZ"), "channels must be RGB or BGR, got 'XYZ'"),
        (change("preprocessing", "input_size", to=112), "input_size (112) is not the backbone's"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    folder: Path, edited: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit(folder, edited)
    assert message in refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udc80", '{"format": 1}'])
def test_a_config_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert str(folder / "config.json") in refusal(folder)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_weights_that_are_cut_short_are_refused(folder: Path, share: float) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert refusal(folder).startswith(f"{path} is damaged or cut short: ")


def test_weights_that_are_a_pickle_are_refused_unread(folder: Path) -> None:
    torch.save({"a": torch.zeros(3)}, folder / "model.safetensors")
    assert "is damaged or cut short" in refusal(folder)


def test_missing_and_surplus_tensors_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, "more": torch.zeros(1)}, path)
    assert refusal(folder).endswith("the tensor more is not part of it")
    del weights["project.bias"]
    save_file(weights, path)
    assert refusal(folder).endswith("the tensor project.bias is missing")


# Preprocessing


def test_pixels_go_from_minus_one_to_one_channels_first() -> None:
    images = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    images[0, 1, 2] = torch.tensor([255, 0, 51], dtype=torch.uint8)
    tensor = Preprocessing(input_size=4).to_tensor(images)
    assert tensor.shape == (2, 3, 4, 4)
    assert tensor.dtype == torch.float32
    torch.testing.assert_close(tensor[0, :, 1, 2], torch.tensor([1.0, -1.0, -0.6]))
    assert (tensor[1] == -1).all()
    swapped = Preprocessing(input_size=4, channels="BGR").to_tensor(images)
    assert torch.equal(swapped, tensor.flip(1))


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_mean_and_scale_may_differ_from_channel_to_channel(channels: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    mean, scale = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    preprocessing = Preprocessing(16, channels, mean, scale)
    seen = images if channels == "RGB" else images[..., ::-1]
    expected = (seen.astype(np.float64) - mean) / scale
    found = preprocessing.to_tensor(images)
    np.testing.assert_allclose(found.numpy(), expected.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-5)
    save(tmp_path / "model", preprocessing=preprocessing)
    assert load_model(tmp_path / "model").preprocessing == preprocessing


def test_arrays_and_single_images_are_taken_as_well() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), np.uint8)
    preprocessing = Preprocessing(input_size=4)
    expected = preprocessing.to_tensor(torch.from_numpy(images))
    assert torch.equal(preprocessing.to_tensor(images), expected)
    assert torch.equal(preprocessing.to_tensor(images[1]), expected[1:])
    # As OpenCV's BGR is turned around, and as Pillow hands its pixels out.
    assert torch.equal(preprocessing.to_tensor(images[..., ::-1]), expected.flip(1))
    images.flags.writeable = False
    assert torch.equal(preprocessing.to_tensor(images), expected)


def test_images_of_another_size_are_scaled_as_everywhere() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 6, 3), np.uint8)
    preprocessing = Preprocessing(input_size=4)
    expected = preprocessing.to_tensor(np.stack([resize(image, 4) for image in images]))
    assert torch.equal(preprocessing.to_tensor(images), expected)
    assert torch.equal(preprocessing.to_tensor(torch.from_numpy(images)), expected)


@pytest.mark.parametrize(
    ("images", "got"),
    [
        (torch.zeros(1, 4, 4, 3), r"float32 of the shape \(1, 4, 4, 3\)"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), r"uint8 of the shape \(1, 3, 4, 4\)"),
        (np.zeros((1, 4, 4, 3)), r"float64 of the shape \(1, 4, 4, 3\)"),
        (np.zeros((1, 0, 4, 3), np.uint8), r"uint8 of the shape \(1, 0, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"uint8 of the shape \(4, 4\)"),
    ],
)
def test_images_of_another_form_are_refused(images: Any, got: str) -> None:
    with pytest.raises(ValueError, match=f"images must be uint8 of the shape .*, got {got}"):
        Preprocessing(input_size=4).to_tensor(images)


def test_preprocessing_without_an_input_size_is_refused() -> None:
    with pytest.raises(ValueError, match="input_size must be at least 1, got 0"):
        Preprocessing(input_size=0)


class TestCalibration:
    def test_it_is_kept_beside_the_model(self, folder: Path) -> None:
        assert stored_calibration(folder) is None
        before = load_model(folder)
        calibration = {"model": weights_digest(folder), "thresholds": [{"far": 0.1}]}
        store_calibration(folder, calibration)
        assert stored_calibration(folder) == calibration
        assert entries(folder) == ["config.json", "model.safetensors"]
        after = load_model(folder)
        assert {**before.config, "calibration": calibration} == after.config
        store_calibration(folder, {**calibration, "set_name": "lfw"})
        kept = stored_calibration(folder)
        assert kept is not None
        assert kept["set_name"] == "lfw"

    def test_it_holds_for_no_other_weights(self, folder: Path, tmp_path: Path) -> None:
        save(tmp_path / "other", seed=1)
        store_calibration(folder, {"model": weights_digest(folder)})
        with pytest.raises(ValueError, match="made with other weights than those in"):
            store_calibration(tmp_path / "other", {"model": weights_digest(folder)})
        (tmp_path / "other" / "config.json").write_bytes((folder / "config.json").read_bytes())
        with pytest.raises(ValueError, match=r"with another model than the model\.safetensors"):
            stored_calibration(tmp_path / "other")
        load_model(tmp_path / "other")  # the model itself is sound

    def test_a_model_that_is_saved_again_has_none(self, folder: Path) -> None:
        store_calibration(folder, {"model": weights_digest(folder)})
        save(folder, seed=1)
        assert stored_calibration(folder) is None

    def test_a_failed_write_leaves_the_config_as_it_was(self, folder: Path) -> None:
        before = (folder / "config.json").read_bytes()
        digest = weights_digest(folder)
        for broken in ({"model": digest, "value": float("nan")}, {"model": digest, "value": {1}}):
            with pytest.raises((ValueError, TypeError)):
                store_calibration(folder, broken)
        assert (folder / "config.json").read_bytes() == before
        assert entries(folder) == ["config.json", "model.safetensors"]

    def test_a_folder_that_is_none_is_named(self, folder: Path, tmp_path: Path) -> None:
        for function in (stored_calibration, weights_digest):
            with pytest.raises(FileNotFoundError, match="nowhere is not a model folder"):
                function(tmp_path / "nowhere")
        edit(folder, lambda config: config.update(calibration=[1]))
        with pytest.raises(ValueError, match="its calibration has the wrong form"):
            stored_calibration(folder)


# -- embeddings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flip", [True, False])
def test_embed_makes_unit_rows_as_the_folder_says(flip: bool, tmp_path: Path) -> None:
    save(tmp_path / "model", flip=flip)
    model = load_model(tmp_path / "model")
    assert model.flip is flip
    images = np.random.default_rng(0).integers(0, 256, (300, 16, 16, 3), np.uint8)
    found = model.embed(images)
    assert found.dtype == np.float32
    with torch.no_grad():
        inputs = model.preprocessing.to_tensor(torch.from_numpy(images))
        plain = model.backbone(inputs)
        mirrored = model.backbone(inputs.flip(3))
    for how in (True, False):
        summed = (plain + mirrored if how else plain).numpy()
        expected = summed / np.linalg.norm(summed, axis=1, keepdims=True)
        np.testing.assert_allclose(model.embed(images, flip=how), expected, atol=1e-5)
    np.testing.assert_array_equal(found, model.embed(images, flip=flip))
    assert np.abs(found - model.embed(images, flip=not flip)).max() > 0.01


def test_embed_takes_crops_of_any_size_and_refuses_what_is_not_one(folder: Path) -> None:
    model = load_model(folder)
    large = np.repeat(np.repeat(np.full((16, 16, 3), 7, np.uint8), 2, axis=0), 2, axis=1)
    one, other = model.embed([large, large[:16, :16]])
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert model.embed([]).shape == (0, 6)
    for wrong in (large, [large / 255.0], [large[:, :, 0]]):
        with pytest.raises(ValueError, match=r"uint8 RGB images .* give a single image as \[image"):
            model.embed(wrong)


def test_a_folder_without_a_word_on_mirror_images_adds_them(folder: Path) -> None:
    edit(folder, lambda config: config.pop("flip"))
    assert load_model(folder).flip is True
    edit(folder, lambda config: config.update(flip="no"))
    assert "flip must be true or false, got 'no'" in refusal(folder)
