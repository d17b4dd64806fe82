"""SimPLE: proxy-free pairs with a bias on the angle, SphereFace2's successor (ICCV 2023)."""

import torch
from torch import Tensor, nn

from sphereface2.heads.contract import require, require_positive, require_share
from sphereface2.heads.head import MarginSchedule
from sphereface2.heads.pairs import PairHead, pair_masks, unit_rows


class SimPLE(PairHead):
    """Binary classification of pairs of samples, without normalising their embeddings.

    Score of a pair: x·x' - b_θ‖x‖‖x'‖. Positive logit (score - m + b)/r, negative logit
    (score + m + b)·r; the loss is loss_weight·(α·mean softplus(-pos) + (1-α)·mean softplus(neg)).

    The authors fill the memory with a momentum encoder. Here it holds the embeddings of the latest
    batches as the network made them, detached: a head owns nothing of the network, so it cannot
    run a second copy of it. With the small steps late in training the two differ little; with a
    very large memory or learning rate the older entries are out of date. Their published training
    also splits off the length of an embedding as a softplus of its first number, with α = .001,
    r = 2, loss_weight = 500 and a memory of 524,288; the defaults here are those of their class.

    Args:
        balance: α, weight of the positive pairs.
        radius: r, divides positive and multiplies negative logits.
        angular_bias: b_θ, subtracted from the cosine.
        memory: how many recent embeddings are kept beside the batch.
        normalize: True takes unit embeddings, so that the score is cos θ - b_θ.
        detach_batch: whether the second image of a pair within the batch is detached, as those of
            the memory always are. False lets both learn, which doubles the gradient of such pairs.
    """

    memory_x: Tensor
    memory_y: Tensor
    memory_end: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        balance: float = 0.0001,
        radius: float = 1.0,
        margin: float = 0.0,
        angular_bias: float = 0.3,
        bias_start: float = -10.0,
        loss_weight: float = 1000.0,
        memory: int = 4096,
        normalize: bool = False,
        detach_batch: bool = True,
        images_per_person: int = 2,
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes)
        self.set_pairs(images_per_person, margin=margin, schedule=margin_schedule)
        require_share(balance=balance)
        require_positive(radius=radius, loss_weight=loss_weight)
        require(-1.0 <= angular_bias < 1.0, f"angular_bias must lie in [-1, 1), got {angular_bias}")
        require(memory >= 0, f"memory must be at least 0, got {memory}")
        self.balance = float(balance)
        self.radius = float(radius)
        self.angular_bias = float(angular_bias)
        self.loss_weight = float(loss_weight)
        self.normalize = normalize
        self.detach_batch = detach_batch
        self.bias = nn.Parameter(torch.tensor(float(bias_start)))
        self.register_buffer("memory_x", torch.zeros(memory, dim))
        self.register_buffer("memory_y", torch.full((memory,), -2, dtype=torch.int64))
        self.register_buffer("memory_end", torch.zeros((), dtype=torch.int64))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.check_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings, labels = self.whole_batch(embeddings, labels)
            rows = embeddings.to(self.bias.dtype)
            if self.normalize:
                rows = unit_rows(rows)
            filled = self.memory_y > -2
            # detached: the authors compare the batch with a bank that holds the batch itself too
            batch = rows.detach() if self.detach_batch else rows
            others = torch.cat([batch, self.memory_x[filled].to(rows.dtype)])
            same, different = pair_masks(labels, torch.cat([labels, self.memory_y[filled]]))
            same[:, : len(labels)].fill_diagonal_(False)
            score = rows @ others.T - self.angular_bias * _lengths(rows, others)
            loss = self._loss(score, same, different)
            if self.collect_statistics:
                self._note(rows, others, score, same, different)
            if self.training:
                self._remember(rows.detach(), labels)
            return loss

    def _loss(self, score: Tensor, same: Tensor, different: Tensor) -> Tensor:
        positive = (score[same] - self.margin + self.bias) / self.radius
        negative = (score[different] + self.margin + self.bias) * self.radius
        loss = score.sum() * 0.0
        if positive.numel():
            loss = loss + self.balance * nn.functional.softplus(-positive).mean()
        if negative.numel():
            loss = loss + (1.0 - self.balance) * nn.functional.softplus(negative).mean()
        return self.loss_weight * loss

    def _note(
        self, rows: Tensor, others: Tensor, score: Tensor, same: Tensor, different: Tensor
    ) -> None:
        cosine = score.detach() / _lengths(rows, others).detach().clamp_min(1e-12)
        self.note_scores(cosine + self.angular_bias, same, different)
        self._statistics["bias"] = self.bias.detach().clone()
        if different.any():
            active = score.detach()[different] + self.margin + self.bias.detach() > 0
            self._statistics["active_negatives"] = active.double().mean()

    def _remember(self, rows: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest entries of the ring with this batch."""
        size = len(self.memory_y)
        rows, labels = rows[-size:] if size else rows[:0], labels[-size:] if size else labels[:0]
        slots = (self.memory_end + torch.arange(len(labels), device=labels.device)) % max(size, 1)
        self.memory_x[slots] = rows.to(self.memory_x.dtype)
        self.memory_y[slots] = labels
        self.memory_end.copy_((self.memory_end + len(labels)) % max(size, 1))


def _lengths(rows: Tensor, others: Tensor) -> Tensor:
    """‖x‖‖x'‖ of every pair."""
    return torch.outer(
        torch.linalg.vector_norm(rows, dim=1), torch.linalg.vector_norm(others, dim=1)
    )
