"""Weights of other projects: the same embeddings under our names, and refusals in a sentence."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from sphereface2.backbones import build_backbone, outline_backbone
from sphereface2.backbones.networks import NETWORKS as OURS
from sphereface2.cli import app
from sphereface2.data.transforms import Preprocessing
from sphereface2.models.folder import TorchModel, load_model
from sphereface2.models.foreign_names import LAYOUTS
from sphereface2.models.importing import import_weights, save_import
from tests.models import peer_networks as peers
from tests.models.peer_networks import Network, Tape

SIZE = 32
R18 = peers.iresnet((2, 2, 2, 2))


def images(count: int = 3, size: int = SIZE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)


def plain(pictures: np.ndarray[Any, np.dtype[np.uint8]], channels: str = "RGB") -> Tensor:
    """Pixels as the peers feed them, without our preprocessing."""
    seen = pictures if channels == "RGB" else pictures[..., ::-1]
    return torch.from_numpy((seen.astype(np.float32) - 127.5) / 127.5).permute(0, 3, 1, 2)


@cache
def taped(network: Network, eps: float) -> Tape:
    """A tape that has the network's state dict and can run it again."""
    tape = Tape(eps=eps)
    network(tape, plain(np.random.default_rng(1).integers(0, 256, (8, SIZE, SIZE, 3), np.uint8)))
    return tape


def saved(path: Path, network: Network = R18, *, eps: float = 1e-5) -> tuple[Path, Tape]:
    """A file with the network's state dict, and its tape."""
    tape = taped(network, eps)
    torch.save(tape.state, path)
    return path, tape


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What a file with nothing but the state dict becomes."""
    path, _ = saved(tmp_path_factory.mktemp("plain") / "a.pth")
    return import_weights(path).backbone.state_dict()


NETWORKS = {
    "iresnet18": (R18, "RGB"),
    "iresnet34": (peers.iresnet((3, 4, 6, 3)), "RGB"),
    "iresnet50": (peers.iresnet((3, 4, 14, 3)), "RGB"),
    "iresnet100": (peers.iresnet((3, 13, 30, 3), width=2), "RGB"),
    "mbf": (peers.mbf(), "RGB"),
    "mbf-large": (peers.mbf((2, 8, 12, 4), scale=4, width=2), "RGB"),
    "mobilefacenet": (peers.mbf(scale=1), "RGB"),
    "sfnet4": (peers.sfnet((0, 0, 0, 0), batch_norm=True), "RGB"),
    "sfnet20": (peers.sfnet((1, 2, 4, 1), batch_norm=False), "RGB"),
    "sfnet36": (peers.sfnet((2, 4, 8, 2), batch_norm=True), "RGB"),
    "sfnet10": (peers.sfnet_deprecated((0, 1, 2, 0)), "RGB"),
    "sfnet64": (peers.sfnet_deprecated((3, 8, 16, 3)), "RGB"),
}
ADAFACE = {"iresnet18": (2, 2, 2, 2), "iresnet50": (3, 4, 14, 3)}


def same_embeddings(path: Path, tape: Tape, network: Network, name: str, channels: str) -> None:
    model = import_weights(path)
    assert (model.name, model.preprocessing.channels) == (name, channels)
    pictures = images()
    with torch.no_grad():
        expected = network(tape, plain(pictures, channels))
        found = model.backbone(model.preprocessing.to_tensor(pictures))
    assert expected.std() > 1e-2
    # Both take their sums in an order of their own: 2.4e-5 on some processors.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    # And through the folder, as it is used.
    save_import(model, path.with_suffix(""), flip=False)
    unit = torch.nn.functional.normalize(expected).numpy()
    np.testing.assert_allclose(load_model(path.with_suffix("")).embed(pictures), unit, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_peers_network_gives_the_same_embeddings(tmp_path: Path, name: str) -> None:
    network, channels = NETWORKS[name]
    path, tape = saved(tmp_path / "weights.pth", network)
    same_embeddings(path, tape, network, name, channels)


@pytest.mark.parametrize("name", ADAFACE)
def test_adafaces_networks_are_iresnets_that_see_bgr(tmp_path: Path, name: str) -> None:
    network = peers.adaface(ADAFACE[name])
    path, tape = saved(tmp_path / "weights.pth", network)
    same_embeddings(path, tape, network, name, "BGR")


def test_every_backbone_is_what_a_peers_network_becomes() -> None:
    assert set(NETWORKS) == set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_a_state_dict_of_our_own_is_found_under_any_name(tmp_path: Path, name: str) -> None:
    backbone = build_backbone(name, seed=1, width=2, input_size=48, embedding_dim=5)
    state = {f"module.net.{key}": value for key, value in backbone.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, "best": [1, 2]}, tmp_path / "a.pt")
    model = import_weights(tmp_path / "a.pt")
    assert (model.name, model.part) == (name, "state_dict.module.net.")
    assert model.options["input_size"] == 48
    found = model.backbone.state_dict()
    for key, value in backbone.state_dict().items():
        assert torch.equal(found[key], value)


def test_the_layouts_name_every_tensor_of_ours_once() -> None:
    keys = {
        name: list(outline_backbone(name, width=1, input_size=16).state_dict()) for name in OURS
    }
    for layout in LAYOUTS:
        for name in layout.backbones:
            theirs = [each for each in layout.names(name, keys[name]).values() if each is not None]
            assert len(set(theirs)) == len(theirs)


# What files look like


@pytest.mark.parametrize(
    ("wrapped", "ignored"),
    [
        (lambda state: state, ()),
        (lambda state: {f"module.{key}": value for key, value in state.items()}, ()),
        (lambda state: {f"_orig_mod.{key}": value for key, value in state.items()}, ()),
        # InsightFace's checkpoint of a training
        (
            lambda state: {
                "epoch": 3,
                "state_dict_backbone": state,
                "state_dict_softmax_fc": {"weight": torch.ones(9, 6)},
                "state_optimizer": {"state": {0: {"momentum_buffer": torch.ones(4, 3, 3, 3)}}},
            },
            ("state_dict_softmax_fc.weight", "state_optimizer.state.0.momentum_buffer"),
        ),
        # OpenSphere's model, and its checkpoint
        (
            lambda state: {"backbone": state, "head": {"w": torch.ones(6, 9), "b": torch.ones(1)}},
            ("head.w", "head.b"),
        ),
        (
            lambda state: {"model": {"backbone": state, "head": {"w": torch.ones(6, 9)}}},
            ("model.head.w",),
        ),
        # Lightning
        (
            lambda state: {
                "state_dict": {
                    **{f"model.{key}": value for key, value in state.items()},
                    "head.kernel": torch.ones(6, 9),
                }
            },
            ("state_dict.head.kernel",),
        ),
        # beside the network, without a name of its own
        (lambda state: {**state, "weight": torch.ones(9, 6)}, ("weight",)),
    ],
)
def test_the_network_is_found_in_what_a_training_saves(
    tmp_path: Path,
    expected: dict[str, Tensor],
    wrapped: Callable[[dict[str, Tensor]], Any],
    ignored: tuple[str, ...],
) -> None:
    torch.save(wrapped(taped(R18, 1e-5).state), tmp_path / "a.pth")
    model = import_weights(tmp_path / "a.pth")
    assert model.ignored == ignored
    found = model.backbone.state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_old_format_of_torch_half_precision_and_safetensors_are_read(
    tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    path, tape = saved(tmp_path / "a.pth")
    torch.save(tape.state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(tape.state, tmp_path / "a.safetensors")
    for other in ("old.pth", "a.safetensors"):
        found = import_weights(tmp_path / other).backbone.state_dict()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    half = {k: v.half() if v.is_floating_point() else v for k, v in tape.state.items()}
    torch.save(half, path)
    found = import_weights(path).backbone.state_dict()
    assert found["stem.0.weight"].dtype == torch.float32
    torch.testing.assert_close(found["stem.0.weight"], expected["stem.0.weight"], atol=1e-3, rtol=0)


def test_files_of_before_batch_norm_counted_its_batches_are_read(tmp_path: Path) -> None:
    path, tape = saved(tmp_path / "a.pth")
    kept = {k: v for k, v in tape.state.items() if not k.endswith("num_batches_tracked")}
    torch.save(kept, path)
    state = import_weights(path).backbone.state_dict()
    assert state["stem.1.num_batches_tracked"] == 0
    assert torch.equal(state["stem.0.weight"], tape.state["conv1.weight"])


def test_a_counter_of_another_shape_is_no_weight(tmp_path: Path) -> None:
    path, tape = saved(tmp_path / "a.pth")
    torch.save({**tape.state, "bn1.num_batches_tracked": torch.ones(3)}, path)
    assert import_weights(path).name == "iresnet18"


def test_another_epsilon_of_batch_norm_is_an_option(tmp_path: Path) -> None:
    path, tape = saved(tmp_path / "a.pth", eps=1e-2)
    pictures = images()
    with torch.no_grad():
        expected = R18(tape, plain(pictures))
        right = import_weights(path, options={"norm_eps": 1e-2}).backbone(plain(pictures))
        wrong = import_weights(path).backbone(plain(pictures))
    torch.testing.assert_close(right, expected, rtol=1e-5, atol=1e-5)
    assert (wrong - expected).abs().max() > 1e-3


def test_of_several_networks_one_must_be_chosen(tmp_path: Path) -> None:
    first, second = Tape(seed=1), Tape(seed=2)
    for tape in (first, second):
        R18(tape, torch.rand(4, 3, SIZE, SIZE, generator=tape.generator))
    path = tmp_path / "a.pth"
    torch.save({"model": first.state, "ema": second.state}, path)
    with pytest.raises(ValueError, match=r"under 'ema\.' and 'model\.'; .* --part model$"):
        import_weights(path)
    model = import_weights(path, part="ema")
    found = model.backbone.state_dict()["stem.0.weight"]
    assert torch.equal(found, second.state["conv1.weight"])
    assert len(model.ignored) == len(first.state)


VIEWS: dict[str, Any] = {
    "view_size": 20,
    "input_size": 32,
    "embedding_dim": 4,
    "network": {"name": "sfnet4", "width": 4, "relu_after_sum": True},
}


def test_a_file_of_views_is_read_once_it_is_said_what_each_of_them_sees(tmp_path: Path) -> None:
    views = ["upper", [0.0, 0.0, 0.5]]
    network = build_backbone("views", seed=0, views=views, **VIEWS).eval()
    state = {f"module.{name}": value for name, value in network.state_dict().items()}
    torch.save({"model": state, "optimizer": {"momentum": torch.ones(3)}}, tmp_path / "v.pt")
    said = {"views": views, "view_size": 20, "network": {"name": "sfnet4", "relu_after_sum": True}}
    model = import_weights(tmp_path / "v.pt", options=said, size=32)
    save_import(model, tmp_path / "model")
    assert model.ignored == ("optimizer.momentum",)
    inputs = plain(images())
    loaded = load_model(tmp_path / "model")
    assert torch.equal(loaded.backbone(inputs), network(inputs))
    assert loaded.config["backbone"]["options"]["network"]["relu_after_sum"]
    code, output = run(
        tmp_path / "v.pt",
        tmp_path / "again",
        "views=[upper,[0,0,0.5]]",
        "view_size=20",
        "--size=32",
    )
    assert code == 0, output
    assert torch.equal(load_model(tmp_path / "again").backbone(inputs), network(inputs))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"views": ["upper"]}, "has 2 networks of the backbone views, and views= names 1"),
        ({"views": ["upper", "left"]}, "unknown view 'left'"),
        ({"view_size": 40}, r"images of 17 to 32 pixels.*networks\.0, with view_size=40"),
        ({"embedding_dim": 8}, "does not fit the backbone views: the tensor networks.0.project"),
        (
            {"network": "sfnet10"},
            r"tensors of .* are not those of|does not fit the backbone sfnet10",
        ),
        ({"network": {"name": "sfnet4", "width": 8}}, "does not fit the backbone sfnet4"),
    ],
)
def test_a_file_of_views_that_is_said_to_be_another_network_is_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    network = build_backbone("views", views=["upper", "lower"], **VIEWS)
    torch.save(network.state_dict(), tmp_path / "v.pt")
    said = {"views": ["upper", "lower"], "view_size": 20, **options}
    with pytest.raises(ValueError, match=sentence):
        import_weights(tmp_path / "v.pt", options=said)
    torch.save({**network.state_dict(), "more.weight": torch.ones(2)}, tmp_path / "v.pt")
    with pytest.raises(ValueError, match=r"the tensor more\.weight is not part of it"):
        import_weights(tmp_path / "v.pt", options={**said, "views": ["upper", "lower"]})


def test_a_file_of_views_does_not_say_what_each_of_them_sees(tmp_path: Path) -> None:
    options = {**VIEWS, "view_size": 16}
    for views in (["upper"], ["upper", "lower"]):
        torch.save(build_backbone("views", views=views, **options).state_dict(), tmp_path / "v.pt")
        for given in (None, "views"):
            with pytest.raises(ValueError, match=r"which part of the face .*--part networks\.0$"):
                import_weights(tmp_path / "v.pt", backbone=given)
    part = import_weights(tmp_path / "v.pt", part="networks.1", size=16)
    assert (part.name, part.backbone.embedding_dim) == ("sfnet4", 2)
    path, _ = saved(tmp_path / "r18.pth")
    with pytest.raises(ValueError, match="which part of the face"):
        import_weights(path, backbone="views")


# The command


def run(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["import", *map(str, words)])
    error = done.exception
    if isinstance(error, SystemExit) or error is None:
        return done.exit_code, done.output
    assert isinstance(error, ValueError | OSError), repr(error)
    return 2, str(error)


def test_the_command_writes_a_model_folder_and_says_what_it_takes(tmp_path: Path) -> None:
    path, _ = saved(tmp_path / "a.pth")
    out = tmp_path / "model"
    code, text = run(path, out, "--colour", "bgr", "--mean", "1,2,3", "--scale", "4", "--no-flip")
    assert code == 0, text
    config = json.loads((out / "config.json").read_text())
    assert config["backbone"]["name"] == "iresnet18"
    assert config["backbone"]["options"]["width"] == 4
    assert config["flip"] is False
    assert config["extra"]["imported"]["source"] == "InsightFace's and OpenSphere's iresnet"
    assert len(config["extra"]["imported"]["sha256"]) == 64
    assert load_model(out).preprocessing == Preprocessing(SIZE, "BGR", (1.0, 2.0, 3.0), 4.0)
    code, text = run(path, out)
    assert code == 2
    assert "already exists" in text
    assert run(path, out, "--overwrite", "--size", "31", "backbone.norm_eps=2e-5")[0] == 0
    model = load_model(out)
    assert isinstance(model, TorchModel)
    assert (model.preprocessing.input_size, model.options["norm_eps"]) == (31, 2e-5)


# Bad input


def cut(path: Path, state: dict[str, Tensor]) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_old(path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)
    cut(path, state)


def cut_safetensors(path: Path, state: dict[str, Tensor]) -> None:
    save_file(state, path)
    cut(path, state)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil-was-here",)


def with_code(path: Path, state: dict[str, Tensor]) -> None:
    torch.save({**state, "evil": Evil()}, path)


def plain_pickle_with_code(path: Path, state: dict[str, Tensor]) -> None:
    path.write_bytes(pickle.dumps(Evil()))


def script(path: Path, state: dict[str, Tensor]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("code/net.py", "constants.pkl", "data.pkl"):
            archive.writestr(f"net/{name}", b"")


def other_zip(path: Path, state: dict[str, Tensor]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", b"")


def changed(**changes: Tensor | None) -> Callable[[Path, dict[str, Tensor]], None]:
    def write(path: Path, state: dict[str, Tensor]) -> None:
        edits = {key.replace("__", "."): value for key, value in changes.items()}
        merged = {**state, **edits}
        torch.save({key: value for key, value in merged.items() if value is not None}, path)

    return write


@pytest.mark.parametrize(
    ("spoil", "flags", "message"),
    [
        (cut, (), "is damaged or cut short"),
        (cut_old, (), "is damaged or cut short"),
        (cut_safetensors, (), "is damaged or cut short"),
        (with_code, (), "holds more than tensors (it asks for posix.mkdir), so that it could run"),
        (plain_pickle_with_code, (), "holds more than tensors"),
        (script, (), "is a TorchScript archive, which holds code; save its state dict"),
        (other_zip, (), "is a zip file, but not one that torch.save has written"),
        (lambda path, _: path.write_bytes(b"\x08\x07onnx"), (), "is not a file of weights"),
        (lambda path, _: path.write_bytes(b""), (), "is not a file of weights"),
        (lambda path, _: path.unlink(), (), "does not exist"),
        (lambda path, _: torch.save({"epoch": 3}, path), (), "holds no tensors by name"),
        (lambda path, _: torch.save([torch.ones(2)], path), (), "holds no tensors by name"),
        (lambda path, _: torch.save(torch.ones(2), path), (), "holds no tensors by name"),
        (changed(fc__weight=torch.ones(6, 128, dtype=torch.int8)), (), "tensor fc.weight does not"),
        (changed(fc__weight=torch.ones(6, 128, dtype=torch.complex64)), (), "hold plain numbers"),
        (changed(fc__weight=torch.ones(6, 128).to(torch.float8_e4m3fn)), (), "save the weights as"),
        (changed(fc__weight=torch.ones(6, 128).to_sparse()), (), "hold plain numbers"),
        (changed(fc__weight=torch.ones(6, 128, device="meta")), (), "hold plain numbers"),
        (
            lambda path, _: torch.save({"a.weight": torch.ones(2), "b": torch.ones(1)}, path),
            (),
            "are not those of a network that is known here (the first are a.weight, b); read are "
            "the weights of sphereface2's sfnet, ",
        ),
        (
            changed(layer2__1__bn2__weight=None),
            (),
            "does not fit the backbone iresnet18: the tensor layer2.1.bn2.weight is missing "
            "(its names are those of InsightFace's and OpenSphere's iresnet)",
        ),
        (
            changed(layer2__1__bn2__weight=torch.ones(3)),
            (),
            "the tensor layer2.1.bn2.weight has shape (3,), not (8,)",
        ),
        (
            changed(se__weight=torch.ones(3), fc2__weight=torch.ones(6, 6)),
            (),
            "the tensor se.weight is not part of it, the tensor fc2.weight is not part of it (",
        ),
        (
            changed(bn2__bias=torch.full((32,), float("nan"))),
            (),
            "its tensor bn2.bias has values that are not finite",
        ),
        (
            changed(fc__weight=torch.zeros(6, 128), fc__bias=torch.zeros(6)),
            (),
            "its weights give the same embedding, or none, for different images",
        ),
        (
            changed(),
            ("--backbone", "iresnet50"),
            "does not fit the backbone iresnet50: the tensor layer1.2.bn1.weight is missing",
        ),
        (changed(), ("--backbone", "iresnet50"), "and 237 more; they are InsightFace's and OpenS"),
        (changed(), ("--backbone", "iresnet50"), "iresnet: the backbone iresnet18 fits"),
        (changed(), ("--backbone", "sfnet20"), "iresnet: the backbone iresnet18 fits"),
        (changed(), ("--backbone", "resnet50"), "unknown backbone 'resnet50'; did you mean"),
        (changed(), ("--part", "ema"), "not those of a network that is known here under 'ema'"),
        (changed(), ("--size", "40"), "is a network for images of 17 to 32 pixels, not 40"),
        (changed(), ("--colour", "GBR"), "--colour must be RGB or BGR, got 'GBR'"),
        (changed(), ("--size", "0"), "--size must lie between 16 and 65536, got 0"),
        (changed(), ("input_size=0",), "backbone.input_size must lie between 16 and 65536, got 0"),
        (changed(), ("--mean", "inf"), "--mean must be one number or three, got inf"),
        (changed(), ("--mean", "1,2"), "--mean takes a number, or three with commas in between"),
        (changed(), ("--scale", "0"), "--scale must be above 0, got 0"),
        (changed(), ("width",), "an option of the backbone looks like norm_eps=2e-5; got 'width'"),
        (changed(), ("widht=3",), "has no option 'widht'; did you mean 'width'?"),
        (changed(), ("width=5",), "does not fit the backbone iresnet18: the tensor conv1.weight"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, dict[str, Tensor]], object],
    flags: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path, tape = saved(tmp_path / "a.pth")
    spoil(path, tape.state)
    code, text = run(path, tmp_path / "out", *flags)
    assert code == 2
    assert message in text
    assert "\n" not in text.strip()
    assert {entry.name for entry in tmp_path.iterdir()} <= {"a.pth"}
