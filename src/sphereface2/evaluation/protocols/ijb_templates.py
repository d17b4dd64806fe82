"""IJB's templates: a person's images pooled into one vector, compared 1:1 and searched 1:N.

1:N is there as the protocol says and as it used to be run; both are named.
Standard 1:N searches each gallery alone; probes of people outside it set the threshold. Legacy 1:N
(older InsightFace, AdaFace, OpenSphere) merges the galleries, so that every probe is mated, and
takes its threshold from impostor pairs, not probes. The two numbers differ: never mix them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.protocols.protocol import (
    Part,
    ProtocolResult,
    Table,
    View,
    cmc_view,
    strictest,
)
from sphereface2.evaluation.search import (
    FPIR_TARGETS,
    HEADLINE_FPIR,
    RANKS,
    Searched,
    cmc_curve,
    dot_products,
    rank_rates,
    search,
    tpir_at_fpirs,
    tpir_swing,
)
from sphereface2.evaluation.thresholds import (
    HighestScores,
    Measure,
    OperatingPoint,
    Scores,
    Trials,
    counted_off,
    rank_name,
    widened,
)
from sphereface2.evaluation.uncertainty import mean_rate, rate_of
from sphereface2.models.embedder import (
    Float32,
    Mirror,
    Vectors,
    check_rows,
    check_table,
    fold_mirror,
    folded_width,
    sound,
    unit_block,
)
from sphereface2.workers import Progress, first_of, unseen

Ids = npt.NDArray[np.integer[Any]]
ImageNorm = Literal["kept", "unit"]
IMAGE_NORMS: tuple[ImageNorm, ...] = ("kept", "unit")

_BLOCK = 8_192  # images per block, or one template if it has more
_DENSE = 1 << 25  # up to this id a table answers "where"; beyond it a binary search does
_SCORES = 1 << 23  # scores per block: 32 MB
_SPARSE = 64  # products per pair beyond which a list is too sparse for a matrix product


@dataclass(frozen=True, eq=False)
class Templates:
    """ids: (t,) rising, each once; vectors: (t, D) float32 of length 1."""

    ids: npt.NDArray[np.int64]
    vectors: Float32

    def where(self, ids: Ids, *, source: str) -> npt.NDArray[np.int32]:
        """The row of each id; refuses ids without a template."""
        rows = positions(self.ids, ids)
        if rows.size and rows.min() < 0:
            missing = np.unique(np.asarray(ids)[rows < 0])
            raise ValueError(
                f"{source}: {missing.size:,} templates have no image (template "
                f"{first_of(missing.tolist())})"
            )
        return rows


def pool_templates(
    embeddings: Vectors,
    templates: Ids,
    media: Ids,
    *,
    weights: npt.NDArray[np.floating[Any]] | None = None,
    mirror: Mirror = "given",
    image_norm: ImageNorm = "kept",
    source: str = "embeddings",
    progress: Progress = unseen,
) -> Templates:
    """Mean within each media id of a template, sum over its media, unit norm.

    templates, media: (n,) the template and the media id of each image
    weights: (n,) a factor for each image (variant D: its detector score); None for none
    mirror: "sum" or "first" if the columns are [image | mirror image] (variant F)
    image_norm: "kept" or "unit", before the mean (variant N)
    """
    check_table(embeddings, source=source, rows=len(templates))
    width = folded_width(embeddings.shape[1], mirror)
    if image_norm not in IMAGE_NORMS:
        raise ValueError(f"image_norm must be one of {', '.join(IMAGE_NORMS)}, got '{image_norm}'")
    if len(media) != len(templates):
        raise ValueError(f"{len(templates):,} template ids but {len(media):,} media ids")
    factors = _factors(len(templates), weights, source=source)
    order = np.lexsort((media, templates))
    ids, counts = np.unique(templates, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    # The mean within a media id: each image counts 1 / (images of that media in the template).
    tid, mid = np.asarray(templates)[order], np.asarray(media)[order]
    first = np.flatnonzero(np.append(True, (np.diff(tid) != 0) | (np.diff(mid) != 0)))
    per_media = np.diff(np.append(first, len(order)))
    shares = (factors[order] / np.repeat(per_media, per_media)).astype(np.float32)
    vectors = np.empty((ids.size, width), dtype=np.float32)
    template = 0
    while template < ids.size:
        stop = int(np.searchsorted(starts, starts[template] + _BLOCK, side="right")) - 1
        stop = max(stop, template + 1)
        rows = slice(starts[template], starts[stop])
        block = fold_mirror(embeddings[order[rows]], mirror).astype(np.float32)
        # A zero row would vanish in the sum unseen, and stands for an image that was not embedded.
        if not (unit_block(block, out=block) if image_norm == "unit" else sound(block)):
            check_rows(embeddings, source=source, mirror=mirror)
        block *= shares[rows, None]
        sums = np.add.reduceat(block, starts[template:stop] - starts[template], axis=0)
        if not unit_block(sums, out=vectors[template:stop]):
            _refuse_empty(ids[template:stop], sums, source=source)
        template = stop
        progress(template, ids.size)
    return Templates(ids.astype(np.int64), vectors)


def _factors(
    count: int, weights: npt.NDArray[np.floating[Any]] | None, *, source: str
) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.ones(count)
    factors = np.asarray(weights, dtype=np.float64)
    if factors.shape != (count,):
        raise ValueError(f"{source}: {factors.size:,} detector scores for {count:,} images")
    faulty = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
    if faulty.size:
        raise ValueError(
            f"{source}: {faulty.size:,} of {count:,} detector scores are negative or not finite "
            f"(number {first_of(faulty.tolist())})"
        )
    return factors


def _refuse_empty(ids: Ids, sums: Float32, *, source: str) -> None:
    # Every image is sound, so the sum cancelled or all weights of the template are 0.
    empty = ids[~sums.any(axis=1)]
    raise ValueError(
        f"{source}: {max(empty.size, 1):,} templates sum to zero or overflow (template "
        f"{first_of((empty if empty.size else ids).tolist())}); check the detector scores"
    )


def positions(known: Ids, ids: Ids) -> npt.NDArray[np.int32]:
    """The position of each of `ids` in the rising `known`, -1 where it is not there."""
    wanted = np.asarray(ids)
    if known.size and known[0] >= 0 and known[-1] < _DENSE:
        table = np.full(int(known[-1]) + 2, -1, dtype=np.int32)
        table[known] = np.arange(known.size, dtype=np.int32)
        outside = (wanted < 0) | (wanted > known[-1])
        if outside.any():
            wanted = np.where(outside, known[-1] + 1, wanted)
        return table[wanted]
    places = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[places] == wanted, places, -1).astype(np.int32)


def pair_scores(
    templates: Templates,
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    *,
    progress: Progress = unseen,
) -> Scores:
    """The cosine of each pair of rows, in float32 and bounded memory.

    IJB pairs few left templates with many right ones, so blocks of the full matrix product and a
    look-up are some hundred times faster than a dot product per pair. Sparse lists go pair by pair.
    """
    vectors, count = templates.vectors, len(left)
    lefts, left_codes = _codes(left, len(vectors))
    rights, right_codes = _codes(right, len(vectors))
    if lefts.size * rights.size > _SPARSE * count:
        return np.clip(dot_products(vectors, left, right, progress=progress), -1.0, 1.0)
    scores = np.empty(count, dtype=np.float32)
    order = np.argsort(left_codes, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(left_codes, minlength=lefts.size))])
    right_vectors = vectors[rights]
    step = max(1, _SCORES // rights.size)
    for start in range(0, lefts.size, step):
        stop = min(start + step, lefts.size)
        product = vectors[lefts[start:stop]] @ right_vectors.T
        numbers = order[bounds[start] : bounds[stop]]
        rows = left_codes[numbers].astype(np.intp) - start
        scores[numbers] = product[rows, right_codes[numbers]]
        progress(int(bounds[stop]), count)
    return np.clip(scores, -1.0, 1.0, out=scores)  # rounding may step over


def _codes(
    rows: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.unsignedinteger[Any]]]:
    """The distinct rows, and the place of each row among them in the smallest type that holds it.

    Few templates fit into 16 bits, for which numpy sorts by radix.
    """
    present = np.zeros(count, dtype=np.bool_)
    present[rows] = True
    distinct = np.flatnonzero(present)
    table = np.cumsum(present) - 1
    if distinct.size <= 1 << 16:
        return distinct, table.astype(np.uint16)[rows]
    return distinct, table.astype(np.uint32)[rows]


# -- 1:N -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TemplateList:
    """A gallery or the probes: the person of each template, each template once."""

    name: str
    templates: Ids
    people: Ids


@dataclass(frozen=True)
class GallerySearch:
    """One gallery's own numbers."""

    gallery: str
    people: int
    mated: int
    non_mated: int
    ranks: tuple[Measure, ...]
    tpir: tuple[Measure, ...]


@dataclass(frozen=True)
class IjbIdentification(ProtocolResult):
    """1:N; `ranks`, `tpir` and `cmc` are averages over the galleries (legacy: one, merged)."""

    galleries: tuple[GallerySearch, ...]
    ranks: tuple[Measure, ...]
    tpir: tuple[Measure, ...]
    cmc: tuple[float, ...]

    def view(self) -> View:
        first = self.galleries[0]
        by_gallery = Table(
            title=f"{self.protocol}, gallery by gallery (%)",
            columns=(
                "gallery",
                "people",
                "mated",
                "non-mated",
                *(measure.name for measure in (*first.ranks, *first.tpir)),
            ),
            rows=tuple(
                (each.gallery, each.people, each.mated, each.non_mated, *each.ranks, *each.tpir)
                for each in self.galleries
            ),
            note="probes are mated if their person is in the gallery",
        )
        part = Part(
            self.protocol,
            measures=self.ranks + self.tpir,
            headline=[self.ranks[0], *strictest(self.tpir, target=HEADLINE_FPIR)],
            tables=[by_gallery] if len(self.galleries) > 1 else [],
            curves=[cmc_view(self.protocol, self.cmc, self.ranks)],
            conventions=self.conventions,
        )
        return View([part])


def identify_standard(
    templates: Templates,
    galleries: Sequence[TemplateList],
    probes: TemplateList,
    *,
    name: str,
    fpir_targets: Sequence[float] = FPIR_TARGETS,
    progress: Progress = unseen,
) -> IjbIdentification:
    """Each gallery by itself, then the average over them."""
    check_lists(galleries, probes, name=name)
    found: list[Searched] = []
    for number, gallery in enumerate(galleries):
        found.append(_search(templates, gallery, probes, name=name))
        if not found[-1].mated.any():
            raise ValueError(f"{name}: no probe shows a person of gallery {gallery.name}")
        progress(number + 1, len(galleries))
    single = tuple(
        GallerySearch(
            gallery=gallery.name,
            people=each.gallery_people,
            mated=int(np.count_nonzero(each.mated)),
            non_mated=int(np.count_nonzero(~each.mated)),
            ranks=rank_rates(each, RANKS),
            tpir=tpir_at_fpirs(each, fpir_targets),
        )
        for gallery, each in zip(galleries, found, strict=True)
    )
    mean_ranks = tuple(
        Measure(rank_name(k), mean_rate([(e.rank[e.mated] <= k, e.people[e.mated]) for e in found]))
        for k in RANKS
    )
    return IjbIdentification(
        protocol=name,
        conventions=(
            "standard: each gallery alone, average over the galleries",
            "FPIR: probes of people outside the gallery whose best score reaches the threshold",
            "TPIR: the best match is right and reaches the threshold; a tied person stands before",
        ),
        galleries=single,
        ranks=mean_ranks,
        # None where a gallery has none, and as many ranks as the smallest gallery.
        tpir=tuple(_mean_tpir(found, at) for at in zip(*(e.tpir for e in single), strict=False)),
        cmc=tuple(float(np.mean(at)) for at in zip(*map(cmc_curve, found), strict=False)),
    )


def identify_legacy(
    templates: Templates,
    galleries: Sequence[TemplateList],
    probes: TemplateList,
    *,
    name: str,
    fpir_targets: Sequence[float] = FPIR_TARGETS,
    progress: Progress = unseen,
) -> IjbIdentification:
    """Galleries merged; the threshold is the ceil(FPIR × probes)-th largest impostor pair score.

    A probe counts if the score of its own person lies above that, whatever its rank.
    """
    check_lists(galleries, probes, name=name)
    merged = TemplateList(
        " + ".join(gallery.name for gallery in galleries),
        np.concatenate([gallery.templates for gallery in galleries]),
        np.concatenate([gallery.people for gallery in galleries]),
    )
    alone = ~np.isin(probes.people, merged.people)
    if alone.any():
        raise ValueError(
            f"{name}: {np.count_nonzero(alone):,} of {alone.size:,} probes show people of no "
            f"gallery (template {first_of(probes.templates[alone].tolist())}); the legacy variant "
            "needs every probe mated, use the standard one"
        )
    count = len(probes.templates)
    places = [max(1, math.ceil(target * count)) for target in fpir_targets]
    pairs = count * (len(np.unique(merged.people)) - 1)
    if pairs < max(places, default=1):
        raise ValueError(f"{name}: {pairs:,} impostor pairs are too few for these FPIRs")
    most = max((counted_off(place, pairs)[1] for place in places), default=0)
    impostors = HighestScores(min(most + 1, pairs))
    found = _search(templates, merged, probes, name=name, impostors=impostors, progress=progress)
    trials = Trials(found.genuine, impostors.falling(), pairs)
    measures = []
    for target, place in zip(fpir_targets, places, strict=True):
        threshold = trials.highest[place - 1]
        above = int(np.count_nonzero(trials.highest > threshold))
        rate = rate_of(found.genuine > threshold, found.people)
        measures.append(
            Measure(
                f"legacy TPIR@FPIR={target:g}",
                trials.with_threshold(rate, count=place - 1),
                OperatingPoint(
                    float(target), above / count, float(threshold), count, target * count >= 1
                ),
            )
        )
    single = GallerySearch(
        gallery=merged.name,
        people=found.gallery_people,
        mated=count,
        non_mated=0,
        ranks=rank_rates(found, RANKS),
        tpir=tuple(measures),
    )
    return IjbIdentification(
        protocol=name,
        conventions=(
            "legacy: galleries merged, every probe mated",
            "threshold: the ceil(FPIR × probes)-th largest impostor pair score, to be exceeded",
            "TPIR: the right person's score exceeds the threshold, whatever its rank",
        ),
        galleries=(single,),
        ranks=single.ranks,
        tpir=single.tpir,
        cmc=cmc_curve(found),
    )


def check_lists(galleries: Sequence[TemplateList], probes: TemplateList, *, name: str) -> None:
    """Refuse a template that occurs twice, be it in one list or in two."""
    seen: dict[int, str] = {}
    twice: list[str] = []
    for part in (*galleries, probes):
        for template in np.asarray(part.templates).tolist():
            if template in seen:
                twice.append(f"{template} in {seen[template]} and {part.name}")
            seen[template] = part.name
    if twice:
        raise ValueError(f"{name}: {len(twice):,} templates occur twice ({first_of(twice)})")


def _search(
    templates: Templates,
    gallery: TemplateList,
    probes: TemplateList,
    *,
    name: str,
    impostors: HighestScores | None = None,
    progress: Progress = unseen,
) -> Searched:
    enrolled = templates.where(gallery.templates, source=f"{name}, gallery {gallery.name}")
    wanted = templates.where(probes.templates, source=f"{name}, {probes.name}")
    return search(
        templates.vectors[enrolled],
        gallery.people,
        templates.vectors[wanted],
        probes.people,
        pooling="max",  # a person has one template; if a list has more, the best one counts
        impostor_pairs=impostors,
        progress=progress,
    )


def _mean_tpir(found: Sequence[Searched], single: Sequence[Measure]) -> Measure:
    points = [measure.at for measure in single if measure.at is not None]
    parts, swings = [], []
    for each, point in zip(found, points, strict=True):
        swings.append(tpir_swing(each, point.target))
        hits = (each.rank == 1) & (each.genuine >= np.float32(point.threshold))
        parts.append((hits[each.mated], each.people[each.mated]))
    # The thresholds of the galleries come from different probes: their errors add in squares.
    below, above = (math.hypot(*side) / len(swings) for side in zip(*swings, strict=True))
    return Measure(
        single[0].name,
        widened(mean_rate(parts), below, above),
        OperatingPoint(
            target=points[0].target,
            reached=float(np.mean([point.reached for point in points])),
            threshold=float(np.mean([point.threshold for point in points])),
            impostors=min(point.impostors for point in points),
            resolved=all(point.resolved for point in points),
        ),
    )
