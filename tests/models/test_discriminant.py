"""The axes of an embedding weighed by how well they tell people apart."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sphereface2.backbones import build_backbone
from sphereface2.models.discriminant import apply_axes, discriminant_axes, weigh_axes


def people(
    count: int, images: int, *, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Eight axes: two that tell people apart, one that hardly does, five that are noise."""
    random = np.random.default_rng(seed)
    who = random.normal(size=(count, 1, 8)) * [1, 1, 0.3, 0, 0, 0, 0, 0]
    noise = random.normal(size=(count, images, 8)) * [0.3, 0.3, 0.3, 0.9, 0.9, 0.9, 0.3, 0.3]
    labels = np.repeat(np.arange(count), images)
    return (who + noise).reshape(-1, 8), labels


def separation(embeddings: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Share of pairs of two images, one genuine and one not, whose cosines are in order."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    cosines = unit @ unit.T
    upper = np.triu_indices(len(labels), 1)
    same = (labels[:, None] == labels)[upper]
    genuine, impostor = cosines[upper][same], np.sort(cosines[upper][~same])
    return float(np.searchsorted(impostor, genuine).mean() / len(impostor))


def test_other_people_are_told_apart_better() -> None:
    axes = discriminant_axes(*people(200, 5))
    others, labels = people(80, 4, seed=1)
    before, after = separation(others, labels), separation(others @ axes, labels)
    assert before < 0.85
    assert after > before + 0.07


def test_the_formula_by_hand() -> None:
    embeddings, labels = people(40, 3, seed=2)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    means = np.stack([unit[labels == each].mean(axis=0) for each in range(40)])
    within = sum(
        np.outer(row - means[label], row - means[label])
        for row, label in zip(unit, labels, strict=True)
    ) / (120 - 40)
    within = 0.3 * within + 0.7 * np.trace(within) / 8 * np.eye(8)
    between = np.cov(means.T, bias=True)
    # What A·Aᵀ must be: W^(-1/2) · f(W^(-1/2) B W^(-1/2)) · W^(-1/2), f the weight of a value.
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    values, vectors = np.linalg.eigh(root @ between @ root)
    signal = np.maximum(values - 2 / 3, 0)
    wanted = root @ vectors @ np.diag(signal / (signal + 1)) @ vectors.T @ root
    axes = discriminant_axes(embeddings, labels)
    found = axes @ axes.T
    assert found / np.trace(found) == pytest.approx(wanted / np.trace(wanted), abs=1e-12)
    assert np.linalg.norm(unit @ axes, axis=1).mean() == pytest.approx(1)


def test_where_nothing_tells_people_apart_nothing_changes() -> None:
    embeddings = np.random.default_rng(3).normal(size=(400, 8))
    axes = discriminant_axes(embeddings, np.repeat(np.arange(200), 2))
    assert (axes == np.eye(8)).all()


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_too_few_images_are_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="two people, and one of them with two images"):
        discriminant_axes(np.eye(4), np.array(labels))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sfnet4", {"batch_norm": True}),
        ("sfnet4", {}),
        ("iresnet18", {}),
        ("mobilefacenet", {}),  # whose projection has no bias
    ],
)
def test_the_network_gives_what_the_map_gives(name: str, options: dict[str, bool]) -> None:
    net = build_backbone(name, width=8, input_size=32, embedding_dim=6, seed=0, **options)
    torch.manual_seed(1)
    images = torch.randn(16, 3, 32, 32)
    with torch.no_grad():
        for _ in range(5):
            net(images)  # running statistics that are not 0 and 1
        net.eval()
        for value in net.last_layers():
            if isinstance(value, torch.nn.BatchNorm1d):
                torch.nn.init.normal_(value.bias)
        before = net(images)
        axes = np.random.default_rng(4).normal(size=(6, 6))
        apply_axes(net, axes)
        wanted = before.double() @ torch.from_numpy(axes)
        assert torch.allclose(net(images).double(), wanted, rtol=1e-4, atol=1e-4)


def test_each_view_is_weighed_by_itself() -> None:
    net = build_backbone(
        "views",
        network={"name": "sfnet4", "width": 8, "batch_norm": True},
        views=["whole", "side"],
        view_size=32,
        input_size=32,
        embedding_dim=16,
        seed=0,
    ).eval()
    torch.manual_seed(1)
    images, labels = torch.randn(24, 3, 32, 32), np.repeat(np.arange(6), 4)
    with torch.no_grad():
        before = net(images).double().numpy()
        weigh_axes(net, before, labels)
        found = net(images).double().numpy()
    parts = [part @ discriminant_axes(part, labels) for part in np.split(before, 2, axis=1)]
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    np.testing.assert_allclose(found, np.hstack(unit), atol=1e-4)
