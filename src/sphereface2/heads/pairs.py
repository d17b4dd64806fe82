"""Proxy-free heads that compare the samples of a batch: contrastive and triplet.

A sample of no known class (label -1) is a negative for every known one; two such samples are not
compared, since nobody knows whether they show the same person.
"""

import torch
from torch import Tensor

from sphereface2.heads.contract import mean_of, require, require_positive
from sphereface2.heads.head import Head, MarginHead, MarginSchedule


class PairHead(MarginHead, Head):
    """A head that needs several images of a person in each batch and has no class weights."""

    def set_pairs(
        self, images_per_person: int, *, margin: float, schedule: MarginSchedule | None
    ) -> None:
        """Keep what every loss of pairs has."""
        require_pairs(images_per_person)
        self.images_per_person = images_per_person
        self.set_margin(margin, schedule)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.check_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings, labels = self.whole_batch(embeddings, labels)
            unit = unit_rows(embeddings)
            return self.pair_loss(unit @ unit.T, *pair_masks(labels))

    def pair_loss(self, cosine: Tensor, same: Tensor, different: Tensor) -> Tensor:
        """The loss of all pairs of the batch, by their cosines."""
        raise NotImplementedError  # every head defines its own

    def note_scores(self, cosine_bb: Tensor, same: Tensor, different: Tensor) -> None:
        """Keep the mean scores of the batch's pairs for the log."""
        if not self.collect_statistics:
            return
        masks = {"positive_score": same, "negative_score": different}
        self._statistics = {
            name: mean_of(cosine_bb.detach(), mask, empty=torch.nan) for name, mask in masks.items()
        }


def require_pairs(images_per_person: int) -> None:
    """A ValueError if a batch with so many images of a person has no pair of one person."""
    require(
        images_per_person >= 2,
        f"images_per_person must be at least 2 to make pairs, got {images_per_person}",
    )


def pair_masks(labels: Tensor, others: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Which (row, other) pairs show the same person, and which show different ones."""
    others = labels if others is None else others
    either_known = (labels[:, None] >= 0) | (others[None, :] >= 0)
    equal = labels[:, None] == others[None, :]
    return equal & (labels[:, None] >= 0), ~equal & either_known


def unit_rows(embeddings: Tensor) -> Tensor:
    """Embeddings on the unit sphere; a zero vector stays zero and has no gradient."""
    rows = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(norm > 1e-12, norm, torch.inf)


class Contrastive(PairHead):
    """Contrastive (Siamese) loss on unit embeddings, over all pairs of the batch.

    ½·mean of d² over pairs of one person + ½·mean of [m - d]₊² over those pairs of two people
    that are closer than m. Averaging over the violating pairs keeps the two sides balanced when
    almost all pairs of different people are already far apart.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 1.0,
        images_per_person: int = 4,
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes)
        self.set_pairs(images_per_person, margin=margin, schedule=margin_schedule)
        require_positive(margin=margin)

    def pair_loss(self, cosine: Tensor, same: Tensor, different: Tensor) -> Tensor:
        self.note_scores(cosine, same.triu(diagonal=1), different)
        return contrastive_loss(cosine, same, different, self.margin)


def contrastive_loss(cosine: Tensor, same: Tensor, different: Tensor, margin: float) -> Tensor:
    """The contrastive loss of all pairs i < j; d² = 2 - 2cos for unit vectors."""
    squared = (2.0 - 2.0 * cosine).clamp_min(0.0)
    # The root's slope is infinite at d = 0, where two people have one and the same embedding.
    repel = (margin - squared.clamp_min(1e-12).sqrt()).square()
    near = different.triu(diagonal=1) & (squared.detach() < margin**2)
    return 0.5 * (mean_of(squared, same.triu(diagonal=1)) + mean_of(repel, near))


class Triplet(PairHead):
    """Triplet loss with semi-hard mining (FaceNet) on unit embeddings.

    For every pair (anchor, positive) of the batch: the nearest negative that is farther from the
    anchor than the positive, or, if there is none, the farthest negative. The loss is the mean of
    [d²(a, p) - d²(a, n) + m]₊.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.2,
        images_per_person: int = 4,
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes)
        self.set_pairs(images_per_person, margin=margin, schedule=margin_schedule)
        require_positive(margin=margin)

    def pair_loss(self, cosine: Tensor, same: Tensor, different: Tensor) -> Tensor:
        squared = (2.0 - 2.0 * cosine).clamp_min(0.0)
        same.fill_diagonal_(False)
        self.note_scores(cosine, same, different)
        anchor, positive = (same & different.any(dim=1, keepdim=True)).nonzero(as_tuple=True)
        if len(anchor) == 0:
            return cosine.sum() * 0.0
        to_positive = squared[anchor, positive]
        negative = self._semi_hard(squared.detach(), different, anchor, to_positive.detach())
        hinge = to_positive - squared[anchor, negative] + self.margin
        return hinge.clamp_min(0.0).mean()

    @staticmethod
    def _semi_hard(
        squared: Tensor, different: Tensor, anchor: Tensor, to_positive: Tensor
    ) -> Tensor:
        """Index of the mined negative for each (anchor, positive) pair."""
        candidates = different[anchor]
        distance = squared[anchor]
        farther = candidates & (distance > to_positive[:, None])
        nearest = distance.masked_fill(~farther, torch.inf).argmin(dim=1)
        farthest = distance.masked_fill(~candidates, -torch.inf).argmax(dim=1)
        return torch.where(farther.any(dim=1), nearest, farthest)
