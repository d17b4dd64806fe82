"""IJB 1:N, as the protocol says and as it used to be run; both are named.

Standard 1:N searches each gallery alone; probes of people outside it set the threshold. Legacy 1:N
(older InsightFace, AdaFace, OpenSphere) merges the galleries, so that every probe is mated, and
takes its threshold from impostor pairs, not probes. The two numbers differ: never mix them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    rank_rates,
    search,
    tpir_at_fpirs,
    tpir_swing,
)
from sphereface2.evaluation.templates import Ids, Templates
from sphereface2.evaluation.thresholds import (
    HighestScores,
    Measure,
    OperatingPoint,
    Trials,
    counted_off,
    rank_name,
    widened,
)
from sphereface2.evaluation.uncertainty import mean_rate, rate_of
from sphereface2.workers import Progress, first_of, unseen


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
    ranks: Sequence[int] = RANKS,
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
            ranks=rank_rates(each, ranks),
            tpir=tpir_at_fpirs(each, fpir_targets),
        )
        for gallery, each in zip(galleries, found, strict=True)
    )
    mean_ranks = tuple(
        Measure(rank_name(k), mean_rate([(e.rank[e.mated] <= k, e.people[e.mated]) for e in found]))
        for k in ranks
    )
    open_set = all(each.tpir for each in single)
    curves = [cmc_curve(each) for each in found]
    length = min(len(curve) for curve in curves)
    return IjbIdentification(
        protocol=name,
        conventions=(
            "standard: each gallery alone, average over the galleries",
            "FPIR: probes of people outside the gallery whose best score reaches the threshold",
            "TPIR: the best match is right and reaches the threshold; a tied person stands before",
        ),
        galleries=single,
        ranks=mean_ranks,
        tpir=tuple(
            _mean_tpir(found, [each.tpir[number] for each in single])
            for number in range(len(fpir_targets))
        )
        if open_set
        else (),
        cmc=tuple(np.mean([curve[:length] for curve in curves], axis=0).tolist()),
    )


def identify_legacy(
    templates: Templates,
    galleries: Sequence[TemplateList],
    probes: TemplateList,
    *,
    name: str,
    ranks: Sequence[int] = RANKS,
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
        ranks=rank_rates(found, ranks),
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
    """Refuse a template that stands twice, be it in one list or in two."""
    seen: dict[int, str] = {}
    twice: list[str] = []
    for part in (*galleries, probes):
        for template in np.asarray(part.templates).tolist():
            if template in seen:
                twice.append(f"{template} in {seen[template]} and {part.name}")
            seen[template] = part.name
    if twice:
        raise ValueError(f"{name}: {len(twice):,} templates stand twice ({first_of(twice)})")


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
    points = [measure.at for measure in single]
    parts, reached, thresholds, swings = [], [], [], []
    for each, point in zip(found, points, strict=True):
        assert point is not None
        swings.append(tpir_swing(each, point.target))
        hits = (each.rank == 1) & (each.genuine >= np.float32(point.threshold))
        parts.append((hits[each.mated], each.people[each.mated]))
        reached.append(point.reached)
        thresholds.append(point.threshold)
    known = [point for point in points if point is not None]
    # The thresholds of the galleries come from different probes: their errors add in squares.
    below, above = (math.hypot(*side) / len(swings) for side in zip(*swings, strict=True))
    return Measure(
        single[0].name,
        widened(mean_rate(parts), below, above),
        OperatingPoint(
            target=known[0].target,
            reached=float(np.mean(reached)),
            threshold=float(np.mean(thresholds)),
            impostors=min(point.impostors for point in known),
            resolved=all(point.resolved for point in known),
        ),
    )
