"""Every backbone of the table: its size, its options, its start, its gradients."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sphereface2.backbones import (
    BACKBONES,
    Backbone,
    backbone_options,
    build_backbone,
    outline_backbone,
)
from sphereface2.backbones.backbone import halved
from sphereface2.backbones.networks import NETWORKS

PARAMETERS = {
    "sfnet4": 14_396_544,
    "sfnet10": 17_052_032,
    "sfnet20": 24_500_992,
    "sfnet36": 34_605_440,
    "sfnet64": 50_020_864,
    "iresnet18": 24_025_600,
    "iresnet34": 34_139_328,
    "iresnet50": 43_590_848,
    "iresnet100": 65_156_160,
    "mobilefacenet": 1_003_136,
    "mbf": 2_059_520,
    "mbf-large": 6_314_880,
    "views": 19_185_664,
}
SMALL: dict[str, Any] = {"width": 4, "input_size": 32, "embedding_dim": 6}
SMALL_VIEWS: dict[str, Any] = {
    "views": ("upper", "lower"), "view_size": 16, "network": {"name": "sfnet4", "width": 4},
    "input_size": 32, "embedding_dim": 6,
}  # fmt: skip


def small(name: str) -> dict[str, Any]:
    return SMALL_VIEWS if name == "views" else SMALL


def images(count: int = 3, size: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, size, size, generator=generator) * 2 - 1


def test_every_backbone_has_its_count_of_parameters() -> None:
    counted = {
        name: sum(parameter.numel() for parameter in outline_backbone(name).parameters())
        for name in BACKBONES
    }
    assert counted == PARAMETERS


@pytest.mark.parametrize("name", ["sfnet4", "sfnet10", "sfnet20", "sfnet36", "sfnet64"])
def test_the_number_in_an_sfnets_name_counts_its_layers(name: str) -> None:
    modules = list(outline_backbone(name).modules())
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == int(name.removeprefix("sfnet"))
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
    assert [conv.stride for conv in convolutions].count((2, 2)) == 4


@pytest.mark.parametrize("size", [16, 31, 56, 97])
@pytest.mark.parametrize("name", ["sfnet10", "iresnet18", "mobilefacenet"])
def test_any_input_size_gives_embeddings_of_the_size_asked_for(name: str, size: int) -> None:
    backbone = outline_backbone(name, width=4, input_size=size, embedding_dim=10)
    assert (backbone.input_size, backbone.embedding_dim) == (size, 10)
    assert backbone(torch.zeros(2, 3, size, size, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_width_scales_every_layer(name: str) -> None:
    def channels(width: int) -> list[int]:
        modules = outline_backbone(name, width=width, input_size=16).modules()
        return [module.out_channels for module in modules if isinstance(module, nn.Conv2d)]

    assert channels(12) == [3 * count for count in channels(4)]


@pytest.mark.parametrize("name", BACKBONES)
def test_the_outline_is_the_network_without_its_numbers(name: str) -> None:
    def parts(backbone: Backbone) -> list[tuple[object, ...]]:
        buffers = [(key, each.shape, each.dtype) for key, each in backbone.named_buffers()]
        return buffers + [
            (key, each.shape, each.dtype, each.requires_grad)
            for key, each in backbone.named_parameters()
        ]

    outline = outline_backbone(name, **small(name))
    assert parts(outline) == parts(build_backbone(name, **small(name)))
    assert {each.device.type for each in outline.state_dict().values()} == {"meta"}


@pytest.mark.parametrize("name", BACKBONES)
def test_training_reaches_every_parameter_and_leaves_the_images(name: str) -> None:
    backbone = build_backbone(name, seed=0, **small(name)).double()
    batch = images(4).double()
    before = batch.clone()
    generator = torch.Generator().manual_seed(1)
    wanted = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    (backbone(batch) * wanted).sum().backward()
    assert torch.equal(batch, before)
    slope, moved = 0.0, []
    for key, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert parameter.grad.abs().sum() > 0 or "project.bias" in key, key
            way = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            moved.append((parameter, way))
            slope += float((parameter.grad * way).sum())

    def at(step: float) -> float:
        with torch.no_grad():
            for parameter, way in moved:
                parameter.add_(way, alpha=step)
            found = float((backbone(batch) * wanted).sum())
            for parameter, way in moved:
                parameter.sub_(way, alpha=step)
        return found

    # Against finite differences in one direction through all parameters: a step so small that no
    # activation changes its side.
    assert slope == pytest.approx((at(1e-10) - at(-1e-10)) / 2e-10, rel=1e-5)


@pytest.mark.parametrize("name", BACKBONES)
def test_images_do_not_influence_each_other_in_evaluation(name: str) -> None:
    backbone = build_backbone(name, seed=0, **small(name)).eval()
    batch = images(3)
    with torch.no_grad():
        together = backbone(batch)
        alone = torch.cat([backbone(batch[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0], together[1], rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_weights_depend_on_the_seed_alone(name: str) -> None:
    state = torch.get_rng_state()
    first, again, other = (build_backbone(name, seed=seed, **small(name)) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)
    )


def test_without_a_seed_the_global_generator_decides() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = build_backbone("sfnet4", **SMALL)
        second = build_backbone("sfnet4", **SMALL)
    a, b = next(first.parameters()), next(second.parameters())
    assert not torch.equal(a, b)


@pytest.mark.parametrize("name", ["sfnet4", "sfnet64"])
def test_an_sfnet_starts_without_exploding(name: str) -> None:
    with torch.no_grad():
        embeddings = build_backbone(name, seed=0, input_size=48)(images(4, size=48))
    assert 1e-3 < embeddings.std() < 1


def test_the_start_of_the_residual_units_is_what_keeps_sfnet64_from_exploding() -> None:
    backbone = build_backbone("sfnet64", seed=0, width=16, input_size=32)
    units = [module for key, module in backbone.named_modules() if ".branch" in key]
    convolutions = [module for module in units if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 60
    weights = torch.cat([module.weight.flatten() for module in convolutions])
    assert weights.std().item() == pytest.approx(0.01, rel=0.01)
    with torch.no_grad():
        calm = backbone(images()).std()
        for module in convolutions:
            nn.init.xavier_normal_(module.weight)
        assert backbone(images()).std() > 100 * calm


def test_stage_convolutions_start_with_xaviers_deviation() -> None:
    backbone = build_backbone("sfnet20", seed=0, width=32, input_size=16)
    stages = [m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    for module in stages[1:]:
        expected = (2 / (9 * (module.in_channels + module.out_channels))) ** 0.5
        assert module.weight.std().item() == pytest.approx(expected, rel=0.03)


def test_batch_norm_follows_every_convolution_and_the_embedding() -> None:
    backbone = outline_backbone("sfnet20", batch_norm=True, width=8, input_size=32)
    modules = list(backbone.modules())
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert sum(isinstance(module, nn.BatchNorm2d) for module in modules) == len(convolutions) == 20
    assert all(module.bias is None for module in convolutions)
    assert isinstance(backbone.norm, nn.BatchNorm1d)
    with torch.no_grad():
        embeddings = build_backbone("sfnet64", seed=0, batch_norm=True, **SMALL)(images(8))
    assert embeddings.std().item() == pytest.approx(1, rel=0.1)


def test_the_scale_of_an_iresnets_last_batch_norm_is_frozen_at_one() -> None:
    backbone = build_backbone("iresnet18", **SMALL)
    frozen = [(key, value) for key, value in backbone.named_parameters() if not value.requires_grad]
    assert [key for key, _ in frozen] == ["norm.weight"]
    assert torch.equal(frozen[0][1], torch.ones(6))


@pytest.mark.parametrize("name", ["iresnet18", "iresnet34", "iresnet50", "iresnet100"])
def test_an_iresnets_stride_is_in_the_second_convolution(name: str) -> None:
    kernels = [m for m in outline_backbone(name).modules() if isinstance(m, nn.Conv2d)]
    strided = [m for m in kernels if m.stride == (2, 2)]
    assert len([m for m in kernels if m.kernel_size == (3, 3)]) + 1 == int(name[7:])
    assert [(m.in_channels, m.kernel_size) for m in strided] == [
        (channels, (3, 3)) for channels in (64, 128, 256, 512)
    ]
    shortcuts = [m.in_channels for m in kernels if m.kernel_size == (1, 1)]
    assert shortcuts == [64, 64, 128, 256]


@pytest.mark.parametrize("name", ["sfnet4", "iresnet18", "mobilefacenet"])
def test_dropout_acts_in_training_only(name: str) -> None:
    backbone = build_backbone(name, seed=0, dropout=0.5, **SMALL)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        assert not torch.equal(backbone(images()), backbone(images()))
        backbone.eval()
        assert torch.equal(backbone(images()), backbone(images()))


def test_mobilefacenet_weighs_every_place_of_the_last_map() -> None:
    backbone = outline_backbone("mobilefacenet")
    kernels = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    assert kernels[-1].kernel_size == (7, 7)
    assert kernels[-1].groups == kernels[-1].in_channels == 512


@pytest.mark.parametrize(
    ("size", "times", "expected"), [(112, 4, 7), (56, 4, 4), (97, 4, 7), (5, 1, 3)]
)
def test_halved(size: int, times: int, expected: int) -> None:
    assert halved(size, times) == expected
    layers = nn.Sequential(*(nn.Conv2d(1, 1, 3, stride=2, padding=1) for _ in range(times)))
    assert layers(torch.zeros(1, 1, size, size)).shape[-1] == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sfnet21", {}, "unknown backbone 'sfnet21'; did you mean 'sfnet"),
        (
            "sfnet20",
            {"widht": 3},
            "backbone 'sfnet20' has no option 'widht'; did you mean 'width'?",
        ),
        ("mobilefacenet", {"batch_norm": True}, "backbone 'mobilefacenet' has no option 'batch"),
        ("sfnet20", {"dropout": -0.1}, "backbone.dropout must lie in [0, 1), got -0.1"),
        ("sfnet20", {"width": 0}, "backbone.width must lie between 1 and 65536, got 0"),
        ("iresnet50", {"width": 2.5}, "backbone.width: must be a whole number, got 2.5"),
        (
            "iresnet50",
            {"input_size": 15},
            "backbone.input_size must lie between 16 and 65536, got 15",
        ),
        (
            "mobilefacenet",
            {"embedding_dim": 0},
            "backbone.embedding_dim must lie between 1 and 65536, got 0",
        ),
        ("iresnet50", {"dropout": 1.0}, "backbone.dropout must lie in [0, 1), got 1.0"),
        ("sfnet4", {"batch_norm": "x"}, "backbone.batch_norm: must be true or false, got 'x'"),
        ("views", {"views": ["uper"]}, "unknown view 'uper'; did you mean 'upper'? (known: "),
        ("views", {"views": []}, "backbone.views must name at least one view"),
        ("views", {"views": ["whole", 3]}, "backbone.views: must be names or [top, left, side], g"),
        ("views", {"views": [[0, 0]]}, "backbone.views: must be names or [top, left, side], got"),
        ("views", {"views": [[0, 0, float("nan")]]}, "backbone.views: must be names or [top, left"),
        (
            "views",
            {"network": 3},
            "backbone.network: must be a name or {name: ..., options}, got 3",
        ),
        (
            "views",
            {"views": [[0.5, 0.0, 0.6]]},
            "backbone.views: [top, left, side] = [0.5, 0.0, 0.6] is not a square within the image",
        ),
        (
            "views",
            {"views": ["whole", "upper", "lower"]},
            "backbone.embedding_dim=512 is not 3 equal parts, one for each of backbone.views; "
            "backbone.embedding_dim=513 is",
        ),
        ("views", {"network": "sfnet11"}, "backbone.network: unknown network 'sfnet11'; did you m"),
        ("views", {"network": {"width": 4}}, "backbone.network: needs a name, such as {name: sfn"),
        (
            "views",
            {"network": {"name": "sfnet4", "input_size": 40}},
            "backbone.network: has no input_size of its own: it follows from backbone.view_size",
        ),
        (
            "views",
            {"network": {"name": "sfnet4", "widht": 4}},
            "backbone.network: network 'sfnet4' has no option 'widht'; did you mean 'width'?",
        ),
        (
            "views",
            {"network": {"name": "sfnet4", "width": "abc"}},
            "backbone.network: network.width: must be a whole number, got 'abc'",
        ),
        ("views", {"view_size": 8}, "backbone.view_size must lie between 16 and 65536, got 8"),
        (
            "views",
            {"network": {"name": "sfnet4", "width": 0}},
            "backbone.network.width must lie between 1 and 65536, got 0",
        ),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        build_backbone(name, **options)


@pytest.mark.parametrize("shape", [(2, 3, 31, 32), (2, 1, 32, 32), (3, 32, 32), (2, 32, 32, 3)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes images of shape \(B, 3, 32, 32\), got"):
        build_backbone("sfnet4", **SMALL)(torch.zeros(shape))


def test_all_options_with_their_defaults() -> None:
    assert backbone_options("sfnet20", {"width": "32"}) == {
        "width": 32,
        "input_size": 112,
        "embedding_dim": 512,
        "batch_norm": False,
        "relu_after_sum": False,
        "dropout": 0.0,
    }


def test_views_ask_nothing_that_the_oldest_torch_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = build_backbone("views", seed=0, **SMALL_VIEWS)
    # New in 2.7.
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: pytest.fail("2.6 has no such"))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 6)


def test_views_are_networks_of_their_own_for_squares_of_the_image() -> None:
    half = (0.0, 0.5, 0.5)
    whole = build_backbone("views", seed=0, **{**SMALL_VIEWS, "views": ("whole", half)})
    networks = whole.parts()
    assert [(network.input_size, network.embedding_dim) for network in networks] == [(16, 3)] * 2
    first, other = (next(network.parameters()) for network in networks)
    assert not torch.equal(first, other)
    assert build_backbone("sfnet4", **SMALL).parts()[0].embedding_dim == 6
    batch = images()
    # A square of as many pixels as a network sees is shown as it is, a larger one averaged over.
    squares = [
        torch.nn.functional.interpolate(batch, size=16, mode="bilinear", antialias=True),
        batch[:, :, :16, 16:],
    ]
    parts = [network(seen) for network, seen in zip(networks, squares, strict=True)]
    # In training the parts are as they are, for a head that looks at their lengths.
    assert torch.equal(whole(batch), torch.cat(parts, dim=1))
    found = whole.eval()(batch)

    def cosine(rows: Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(rows[0], rows[1], dim=0).detach())

    assert cosine(found) == pytest.approx(sum(map(cosine, parts)) / 2, abs=1e-6)
    changed = batch.clone()
    changed[:, :, 16:] = 0.0  # what the second network does not see does not change its part
    assert torch.equal(whole(changed)[:, 3:], found[:, 3:])
    assert not torch.equal(whole(changed)[:, :3], found[:, :3])


def test_a_square_at_the_edge_of_an_odd_image_ends_with_it() -> None:
    lower = {**SMALL_VIEWS, "views": ((0.5, 0.5, 0.5), "whole"), "input_size": 63}
    assert build_backbone("views", seed=0, **lower).windows == [(32, 32, 31), (0, 0, 63)]


@pytest.mark.usefixtures("quick_processes")
def test_images_as_the_loader_gives_them_do_not_crash_a_narrow_iresnet() -> None:
    # In a process of its own: a torch that writes past its memory takes the whole process along.
    code = (
        "import torch\n"
        "from sphereface2 import build_backbone\n"
        "network = build_backbone('iresnet18', seed=0, width=4, input_size=32, embedding_dim=8)\n"
        "for _ in range(8):\n"
        "    images = torch.rand(8, 32, 32, 3).permute(0, 3, 1, 2)\n"
        "    network(images).square().sum().backward()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_iresnets_shortcut_is_a_convolution_of_stride_2() -> None:
    backbone = build_backbone("iresnet18", seed=0, **SMALL).eval()
    block = backbone.get_submodule("stages.0")
    features = torch.rand(2, 4, 9, 9)
    with torch.no_grad():
        convolution, norm = block.get_submodule("shortcut").children()
        assert isinstance(convolution, nn.Conv2d)
        strided = norm(nn.functional.conv2d(features, convolution.weight, stride=2))
        expected = strided + block.get_submodule("branch")(features)
        torch.testing.assert_close(block(features), expected)
