"""Pictures of features: dots on the sphere, boundaries where the loss has them."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.axes import Axes

from sphereface2.evaluation.experiment_results import LearnedFeatures, plain_rows
from sphereface2.reporting.figures.features import (
    boundary_chord,
    boundary_rim,
    feature_plane,
    feature_sphere,
    margin_sentence,
    person_colour,
    sphere_view,
)

Array = npt.NDArray[np.floating[Any]]


def example(*, dim: int = 2, margin: float = 0.2, bias: float = -18.0) -> LearnedFeatures:
    """Three people at right angles, each with two images 10° off the classifier."""
    axes = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0]], dtype=float)[:, :dim]
    turned = math.radians(10)
    off = np.roll(axes[:, :2], 1, axis=1) * (-1, 1)  # a quarter turn
    images = [
        math.cos(turned) * axes[person, :2] + sign * math.sin(turned) * off[person]
        for person in range(3)
        for sign in (-1, 1)
    ]
    features = np.zeros((6, dim))
    features[:, :2] = images
    return LearnedFeatures(
        features=plain_rows(features),
        labels=(0, 0, 1, 1, 2, 2),
        classifiers=plain_rows(axes),
        bias=bias,
        radius=30.0,
        margin=margin,
    )


def dot_groups(axes: Axes) -> list[Array]:
    return [np.asarray(each.get_offsets()) for each in axes.collections]


def test_plane_draws_every_image_on_the_circle_in_its_persons_colour() -> None:
    learned = example()
    (axes,) = feature_plane([learned]).axes
    names = [each.get_label() for each in axes.collections]
    assert names == ["person 1", "person 2", "person 3"]
    for person, points in enumerate(dot_groups(axes)):
        assert points == pytest.approx(30 * np.asarray(learned.features)[2 * person :][:2])
    assert len({person_colour(person) for person in range(6)}) == 6


@pytest.mark.parametrize(("margin", "levels"), [(0.2, (0.8, 0.6, 0.4)), (0.0, (0.6,))])
def test_plane_draws_the_boundaries_of_every_class(margin: float, levels: tuple[float]) -> None:
    learned = example(margin=margin)
    (axes,) = feature_plane([learned]).axes
    lines = [np.asarray(line.get_xydata()) for line in axes.lines]
    assert len(lines) == 3 * len(levels)
    for number, ends in enumerate(lines):
        classifier = np.asarray(learned.classifiers)[number // len(levels)]
        # From the definition: r(cos θ ∓ m) + b = 0 at both ends, which lie on the circle.
        assert ends @ classifier == pytest.approx([30 * levels[number % len(levels)]] * 2)
        assert np.linalg.norm(ends, axis=1) == pytest.approx([30, 30])


def test_boundary_outside_the_circle_is_left_out() -> None:
    (axes,) = feature_plane([example(bias=-27.0)]).axes  # (1) at 0.9 + 0.2
    assert {str(line.get_label()) for line in axes.lines} == {"(2)", "(3)"}


def test_chord_stands_across_its_classifier() -> None:
    direction = np.array([0.6, 0.8])
    first, second = boundary_chord(direction, 0.5, radius=2.0)
    assert (second - first) @ direction == pytest.approx(0)
    assert np.linalg.norm(second - first) == pytest.approx(2 * 2 * math.sqrt(1 - 0.5**2))


def test_panels_are_told_apart_by_their_margin() -> None:
    figure = feature_plane([example(margin=0.0), example(margin=0.2)])
    text = [each.get_text() for each in figure.texts]
    assert len(figure.axes) == 2
    assert any("(a)" in each and "m = 0," in each for each in text)
    assert any("(b)" in each and "m = 0.2," in each for each in text)


def test_sentence_gives_the_induced_and_the_empirical_margin() -> None:
    own, right_angle = math.cos(math.radians(10)), math.sin(math.radians(10))
    expected = f"empirical {own - right_angle:.2f}"  # the next person's nearer image is 80° away
    assert margin_sentence(example()).startswith(f"induced margin 0.40, {expected}")


def test_sphere_shows_all_images_and_the_planes_of_one_class() -> None:
    (axes,) = feature_sphere(example(dim=3), person=1).axes
    assert sum(len(points) for points in dot_groups(axes)) == 6
    text = " ".join(each.get_text() for each in axes.texts)
    assert all(part in text for part in ("(1)", "(2)", "(3)", "$W_1$", "$W_3$"))


def test_view_is_a_rotation_with_one_direction_upright() -> None:
    directions = np.array([[0.6, 0.0, 0.8], [0.0, 1.0, 0.0], [-0.8, 0.0, 0.6]])
    view = sphere_view(directions, up=2)
    assert view @ view.T == pytest.approx(np.eye(3), abs=1e-12)
    assert np.linalg.det(view) == pytest.approx(1)  # no mirror image
    right, up, towards = view @ directions[2]
    assert right == pytest.approx(0, abs=1e-12)
    assert up > 0.9
    assert towards > 0
    rim = boundary_rim(directions[2], 0.3)
    assert rim @ directions[2] == pytest.approx(np.full(len(rim), 0.3))
    assert np.linalg.norm(rim, axis=1) == pytest.approx(np.ones(len(rim)))


def test_features_of_another_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="2 dimensions, but these have 3"):
        feature_plane([example(dim=3)])
    with pytest.raises(ValueError, match="3 dimensions, but these have 2"):
        feature_sphere(example())
    with pytest.raises(ValueError, match="at least one"):
        feature_plane([])
