"""Weigh the axes of an embedding by how well they tell people apart, within the network itself.

A short training leaves directions in which the images of one person differ as much as two people
do; cosines count them like all others. Linear discriminant analysis finds them, and a linear map
that shrinks them is part of the last layer from then on, so that nothing is added to the network.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.backbones.backbone import Backbone

_TO_SPHERE = 0.7  # so much of the scatter is taken as equal in all directions: it varies too much
# Classes that were trained on lie closer together than people who were not: their means are taken
# to be twice as uncertain as they are.
_DOUBT = 2.0


def require_pairs(labels: NDArray[np.integer]) -> None:
    """A ValueError if no two images are of one person, or all of them are."""
    counts = np.unique(labels[labels >= 0], return_counts=True)[1]
    if len(counts) < 2 or counts.max() < 2:
        raise ValueError(
            "training.discriminant compares images of a person with each other: it needs two "
            "people, and one of them with two images; training.discriminant=false skips it"
        )


def discriminant_axes(
    embeddings: NDArray[np.floating], labels: NDArray[np.integer]
) -> NDArray[np.float64]:
    """The (D, D) map A after which e·A has cosines that count each axis by its worth.

    With W the scatter within people, shrunk towards a sphere, and B that of their means, the axes
    are the generalised eigenvectors of (B, W). One with eigenvalue w has s = max(0, w - 2/n) of
    signal for 1 of noise, n images per person, and is weighed by √(s / (s + 1)): on either side of
    a cosine, that is the factor with which a noisy value is best believed (Wiener). Embeddings
    keep their mean length.
    """
    require_pairs(labels)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12)
    people, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.zeros((len(people), unit.shape[1]))
    np.add.at(means, place, unit.astype(np.float64))
    means /= counts[:, None]
    within = unit - means[place]
    scatter = within.T @ within / (len(unit) - len(people))
    sphere = np.trace(scatter) / len(scatter) * np.eye(len(scatter))
    values, vectors = np.linalg.eigh((1 - _TO_SPHERE) * scatter + _TO_SPHERE * sphere)
    whitened = vectors / np.sqrt(values.clip(1e-12))
    centred = (means - means.mean(axis=0)) @ whitened
    values, vectors = np.linalg.eigh(centred.T @ centred / len(people))
    signal = (values - _DOUBT * np.mean(1 / counts)).clip(0)
    axes: NDArray[np.float64] = whitened @ vectors * np.sqrt(signal / (signal + 1))
    if not signal.any():
        return np.eye(len(axes))  # nothing is known of who is who: all axes are worth the same
    return axes / float(np.linalg.norm(unit @ axes, axis=1).mean())


def weigh_axes(
    backbone: Backbone, embeddings: NDArray[np.floating], labels: NDArray[np.integer]
) -> None:
    """Weigh the axes of a network, or of each of its parts, by embeddings that it has given."""
    networks = backbone.parts()
    for network, part in zip(networks, np.split(embeddings, len(networks), axis=1), strict=True):
        apply_axes(network, discriminant_axes(part, labels))


def apply_axes(backbone: Backbone, axes: NDArray[np.float64]) -> None:
    """Make a network in evaluation give e·A instead of its embeddings e; its layers stay the same.

    The last two are a linear layer and batch norm, or none; both are linear in evaluation.
    """
    linear, norm = backbone.last_layers()
    turn = torch.from_numpy(axes.T).to(linear.weight.device)
    with torch.no_grad():
        weight = linear.weight.double()
        bias = torch.zeros_like(weight[:, 0]) if linear.bias is None else linear.bias.double()
        if norm is not None:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
            weight = scale[:, None] * weight
            bias = scale * (bias - norm.running_mean.double()) + norm.bias.double()
            norm.running_mean.zero_()
            norm.running_var.fill_(1 - norm.eps)
            norm.weight.fill_(1)
            norm.bias.copy_(turn @ bias)
            bias = torch.zeros_like(bias)
        linear.weight.copy_(turn @ weight)
        if linear.bias is not None:
            linear.bias.copy_(turn @ bias)
