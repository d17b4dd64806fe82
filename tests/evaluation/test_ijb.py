import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_curve as sklearn_roc

from sphereface2.evaluation.protocols.ijb import IjbC, IjbResult, evaluate_ijb, verify_templates
from sphereface2.evaluation.protocols.ijb_files import IjbSet
from sphereface2.evaluation.protocols.ijb_templates import (
    TemplateList,
    Templates,
    identify_legacy,
    identify_standard,
    pair_scores,
)
from sphereface2.evaluation.protocols.protocol import Embedded, Embeddings
from tests.evaluation.grid import grid_vectors

FPIRS = (0.02, 0.06, 0.14, 0.3)  # of 40 probes: 0.8, 2.4, 5.6, 12
Lists = tuple[Templates, tuple[TemplateList, TemplateList], TemplateList]


def _lists(seed: int, *, ties: bool) -> Lists:
    """Nine people in two galleries, forty probes of them, template ids with gaps."""
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(500, 49, replace=False))
    places = rng.permutation(ids)
    people = np.concatenate([np.arange(9), rng.integers(0, 9, 40)]) + 70
    if ties:
        vectors = grid_vectors(49, rng)
    else:
        centres = rng.normal(size=(9, 6))
        noisy = centres[people - 70] + rng.normal(size=(49, 6))
        vectors = (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32)
    table = np.empty_like(vectors)
    table[np.searchsorted(ids, places)] = vectors
    galleries = (
        TemplateList("G1", places[:4], people[:4]),
        TemplateList("G2", places[4:9], people[4:9]),
    )
    return Templates(ids, table), galleries, TemplateList("probes", places[9:], people[9:])


def _score(templates: Templates, left: int, right: int) -> float:
    rows = [int(np.flatnonzero(templates.ids == each)[0]) for each in (left, right)]
    return float(templates.vectors[rows[0]].astype(float) @ templates.vectors[rows[1]])


def _standard_loop(case: Lists, fpir: float) -> tuple[list[float], float]:
    """Rank 1 and TPIR of each gallery in turn, averaged, every score tried as the threshold."""
    templates, galleries, probes = case
    first, found = [], []
    for gallery in galleries:
        rows = []
        for probe, person in zip(probes.templates, probes.people, strict=True):
            scores = [_score(templates, probe, each) for each in gallery.templates]
            rows.append((person, scores))
        enrolled = gallery.people.tolist()
        mated = [(enrolled.index(p), s) for p, s in rows if p in enrolled]
        strangers = [max(s) for p, s in rows if p not in enrolled]
        firsts = [all(s[i] > x for j, x in enumerate(s) if j != i) for i, s in mated]
        best = 0.0
        for threshold in {x for _, s in rows for x in s}:
            if np.mean([x >= threshold for x in strangers]) <= fpir:
                hits = [f and s[i] >= threshold for f, (i, s) in zip(firsts, mated, strict=True)]
                best = max(best, float(np.mean(hits)))
        first.append(float(np.mean(firsts)))
        found.append(best)
    return first, float(np.mean(found))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_standard_search_equals_a_brute_force_loop(seed: int, ties: bool) -> None:
    case = _lists(seed, ties=ties)
    result = identify_standard(*case, name="x", fpir_targets=FPIRS)
    for fpir, measure in zip(FPIRS, result.tpir, strict=True):
        first, expected = _standard_loop(case, fpir)
        assert measure.rate.value == expected
        assert measure.at is not None
        assert measure.at.reached <= fpir
        assert [gallery.ranks[0].rate.value for gallery in result.galleries] == first
        assert result.ranks[0].rate.value == np.mean(first)
    assert sum(gallery.mated for gallery in result.galleries) == 40
    assert "standard" in result.conventions[0]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_legacy_search_equals_a_brute_force_loop(seed: int, ties: bool) -> None:
    case = _lists(seed, ties=ties)
    templates, galleries, probes = case
    result = identify_legacy(*case, name="x", fpir_targets=FPIRS)
    genuine, impostor, ranks = [], [], []
    for probe, person in zip(probes.templates, probes.people, strict=True):
        own, others = math.nan, []
        for gallery in galleries:
            for template, enrolled in zip(gallery.templates, gallery.people, strict=True):
                score = _score(templates, probe, template)
                if enrolled == person:
                    own = score
                else:
                    others.append(score)
        genuine.append(own)
        impostor += others
        ranks.append(1 + sum(score >= own for score in others))
    for fpir, measure in zip(FPIRS, result.tpir, strict=True):
        threshold = sorted(impostor, reverse=True)[math.ceil(fpir * 40) - 1]
        assert measure.rate.value == np.mean([score > threshold for score in genuine])
        assert measure.at is not None
        assert measure.at.threshold == pytest.approx(threshold, abs=1e-6)
        assert measure.name == f"legacy TPIR@FPIR={fpir:g}"
    for k, measure in zip((1, 5, 10), result.ranks, strict=True):
        assert measure.rate.value == np.mean([rank <= k for rank in ranks])
    assert "legacy" in result.conventions[0]


@pytest.mark.parametrize("identify", [identify_standard, identify_legacy])
def test_a_template_that_occurs_twice_is_refused(identify: Callable[..., object]) -> None:
    templates, galleries, probes = _lists(0, ties=False)
    twice = np.concatenate([galleries[0].templates[:1], probes.templates[1:]])
    again = replace(probes, templates=twice)
    with pytest.raises(ValueError, match="x: 1 templates occur twice"):
        identify(templates, galleries, again, name="x", fpir_targets=FPIRS)


def test_the_two_variants_are_different_numbers() -> None:
    case = _lists(1, ties=False)
    standard = identify_standard(*case, name="x", fpir_targets=FPIRS).tpir
    legacy = identify_legacy(*case, name="x", fpir_targets=FPIRS).tpir
    assert [m.rate.value for m in standard] != [m.rate.value for m in legacy]


def _pairs(seed: int, count: int = 400) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    templates, galleries, probes = _lists(seed, ties=True)
    rng = np.random.default_rng(seed + 50)
    people = dict(zip(probes.templates.tolist(), probes.people.tolist(), strict=True))
    for gallery in galleries:
        people |= dict(zip(gallery.templates.tolist(), gallery.people.tolist(), strict=True))
    pairs = rng.choice(templates.ids, (count, 2))
    same = np.array([people[a] == people[b] for a, b in pairs.tolist()])
    return pairs, same


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rates_of_template_pairs_equal_scikit_learns(
    seed: int, ties: bool, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.evaluation.protocols.ijb_templates._SCORES", 100)
    monkeypatch.setattr("sphereface2.evaluation.search._CHUNK", 64)
    monkeypatch.setattr(
        "sphereface2.evaluation.protocols.ijb_templates._SPARSE", 0 if sparse else 1e9
    )
    templates, *_ = _lists(seed, ties=ties)
    pairs, same = _pairs(seed)
    left, right = (np.searchsorted(templates.ids, pairs[:, side]) for side in (0, 1))
    scores = np.array([_score(templates, a, b) for a, b in pairs.tolist()])
    found = pair_scores(templates, left.astype(np.int32), right.astype(np.int32))
    np.testing.assert_allclose(found, scores, atol=1e-6)
    targets = (0.003, 0.01, 0.1, 0.5)
    result = verify_templates(templates, pairs, same, name="x", far_targets=targets)
    fpr, tpr, _ = sklearn_roc(same, found, drop_intermediate=False)
    for target, measure in zip(targets, result.tar_at_far, strict=True):
        assert measure.rate.value == tpr[fpr <= target].max()
        assert measure.rate.interval.method.startswith(
            "wilson,"
        )  # nobody said whose templates they are
    assert sum(result.histogram.genuine) == result.genuine == int(same.sum())
    assert sum(result.histogram.impostor) == result.impostors == int((~same).sum())


def _set(seed: int = 0) -> tuple[IjbSet, npt.NDArray[np.float32]]:
    """Each template of `_lists` as two media with one and two images."""
    templates, galleries, probes = _lists(seed, ties=False)
    rng = np.random.default_rng(seed)
    ids = np.repeat(templates.ids, 3)
    images = np.repeat(templates.vectors, 3, axis=0) + rng.normal(0, 0.1, (147, 6))
    pairs, same = _pairs(seed)
    order = rng.permutation(147)
    ijb = IjbSet(
        name="ijb-c",
        image_names=[f"{i}.jpg" for i in range(147)],
        landmarks=np.zeros((147, 5, 2), np.float32),
        detector_scores=rng.uniform(0.1, 1, 147).astype(np.float32),
        templates=ids[order],
        media=np.tile([1, 2, 2], 49)[order],
        pairs=pairs,
        same=same,
        galleries=galleries,
        probes=probes,
    )
    return ijb, images[order].astype(np.float32)


def test_the_whole_protocol_and_its_json() -> None:
    ijb, images = _set()
    result = evaluate_ijb(ijb, images)
    assert len(result.measures) == 6 + 5 + 5
    assert result.verification is not None
    method = result.verification.tar_at_far[-2].rate.interval.method
    assert method == "bootstrap over people, with the threshold's own interval"
    assert IjbResult.from_json(result.to_json()) == result
    only = evaluate_ijb(ijb, images, parts=("1:1",))
    assert (only.standard, only.legacy) == (None, None)
    assert only.verification == result.verification


def test_variants_are_named_and_change_the_numbers() -> None:
    ijb, images = _set()
    mirrored = np.concatenate([images, images[::-1]], axis=1)
    plain = evaluate_ijb(ijb, mirrored, mirror="first", parts=("1:1",))
    assert plain.verification == evaluate_ijb(ijb, images, parts=("1:1",)).verification
    summed = evaluate_ijb(ijb, mirrored, mirror="sum", parts=("1:1",))
    assert summed.verification != plain.verification
    assert "mirror image (F): added to the image's" in summed.conventions
    weighted = evaluate_ijb(ijb, images, detector_weights=True, image_norm="unit", parts=("1:1",))
    assert weighted.verification != plain.verification
    assert "detector score as weight (D): yes" in weighted.conventions
    assert "norm of an image's embedding (N): unit" in weighted.conventions


def test_bad_input_names_the_first_offenders_and_their_count() -> None:
    ijb, images = _set()
    pairs = ijb.pairs.copy()
    pairs[[3, 8], 1] = [1001, 1002]
    with pytest.raises(ValueError, match=r"2 templates have no image \(template 1001, 1002\)"):
        evaluate_ijb(replace(ijb, pairs=pairs), images)
    with pytest.raises(ValueError, match="400 genuine and 0 impostor"):
        evaluate_ijb(replace(ijb, same=np.ones(400, bool)), images)
    gallery = ijb.galleries[0]
    absent = replace(gallery, templates=gallery.templates + 5000)
    with pytest.raises(ValueError, match="gallery G1: 4 templates have no image"):
        evaluate_ijb(replace(ijb, galleries=(absent,)), images, parts=("1:N standard",))
    with pytest.raises(ValueError, match=r"4 templates occur twice \(\d+ in G1 and G1"):
        evaluate_ijb(replace(ijb, galleries=(gallery, gallery)), images, parts=("1:N legacy",))
    with pytest.raises(ValueError, match=r"show people of no gallery .*use the standard one"):
        evaluate_ijb(replace(ijb, galleries=(gallery,)), images, parts=("1:N legacy",))
    with pytest.raises(ValueError, match="has no gallery or probe list"):
        evaluate_ijb(replace(ijb, galleries=()), images)
    with pytest.raises(ValueError, match=r"unknown part '1:2' of ijb-c \(known: 1:1"):
        evaluate_ijb(ijb, images, parts=("1:2",))
    with pytest.raises(ValueError, match="146 embeddings for 147 images"):
        evaluate_ijb(ijb, images[1:])
    with pytest.raises(
        ValueError, match=r"^ijb-c embeddings: 147 of 147 embeddings are not finite"
    ):
        evaluate_ijb(ijb, np.full_like(images, np.nan))
    one = replace(gallery, templates=gallery.templates[:1], people=gallery.people[:1])
    probes = ijb.probes
    assert probes is not None
    own = probes.people == one.people[0]
    probes = replace(probes, templates=probes.templates[own], people=probes.people[own])
    alone = replace(ijb, galleries=(one,), probes=probes)
    with pytest.raises(ValueError, match="1:N legacy: 0 impostor pairs are too few for these FPIR"):
        evaluate_ijb(alone, images, parts=("1:N legacy",))
    others = replace(ijb, galleries=(replace(gallery, people=gallery.people + 900),))
    with pytest.raises(ValueError, match="1:N standard: no probe shows a person of gallery G1"):
        evaluate_ijb(others, images, parts=("1:N standard",))


def test_progress_of_pairs_and_galleries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphereface2.evaluation.search._CHUNK", 150)
    monkeypatch.setattr("sphereface2.evaluation.protocols.ijb_templates._BLOCK", 60)
    ijb, images = _set()
    seen: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        seen.append((done, total))

    evaluate_ijb(ijb, images, progress=note)
    # Templates, pairs, both galleries of 1:N standard, the probes of 1:N legacy.
    assert seen[:3] == [(20, 49), (40, 49), (49, 49)]
    assert seen[-4:] == [(400, 400), (1, 2), (2, 2), (40, 40)]
    monkeypatch.setattr("sphereface2.evaluation.protocols.ijb_templates._SPARSE", 0)
    evaluate_ijb(ijb, images, parts=("1:1",), progress=note)
    assert seen[-3:] == [(150, 400), (300, 400), (400, 400)]


def test_a_set_without_some_images_keeps_the_rest() -> None:
    ijb, _ = _set()
    gone = int(ijb.galleries[0].templates[0])
    absent = ijb.templates == gone
    absent[np.flatnonzero(~absent)[0]] = True
    left = ijb.without(absent)
    assert len(left) == 147 - 4
    assert left.image_names == [
        n for n, out in zip(ijb.image_names, absent, strict=True) if not out
    ]
    for name in ("landmarks", "detector_scores", "templates", "media"):
        np.testing.assert_array_equal(getattr(left, name), getattr(ijb, name)[~absent])
    both = (ijb.pairs != gone).all(axis=1)
    np.testing.assert_array_equal(left.pairs, ijb.pairs[both])
    np.testing.assert_array_equal(left.same, ijb.same[both])
    assert left.galleries[0].templates.tolist() == ijb.galleries[0].templates[1:].tolist()
    assert left.galleries[0].people.tolist() == ijb.galleries[0].people[1:].tolist()
    assert left.galleries[1].templates.tolist() == ijb.galleries[1].templates.tolist()
    assert left.probes is not None
    assert ijb.probes is not None
    assert left.probes.templates.tolist() == ijb.probes.templates.tolist()
    assert replace(ijb, probes=None).without(absent).probes is None


def test_one_probe_in_as_many_as_there_are_is_resolved() -> None:
    """Of forty probes: a rate of 1 in 40 can be resolved, a smaller one cannot."""
    result = identify_legacy(*_lists(0, ties=False), name="x", fpir_targets=(0.025, 0.02499))
    assert [measure.resolved for measure in result.tpir] == [True, False]


def test_the_options_of_the_protocol_reach_the_numbers() -> None:
    ijb, images = _set()
    mirrored = np.concatenate([images, images[::-1]], axis=1)
    everyone = np.ones(len(images), np.bool_)
    names = [str(number) for number in range(len(images))]
    given = Embedded(mirrored, "sum", names, None, everyone, "e.npy")
    seen: list[tuple[int, int]] = []
    protocol = IjbC(part=["1:1"], norm="unit", detector_weights=True)
    protocol._lists = ijb
    result = protocol.measure(
        Embeddings({"embeddings": given}, progress=lambda *now: seen.append(now))
    )
    expected = evaluate_ijb(
        ijb, mirrored, mirror="sum", image_norm="unit", detector_weights=True, parts=("1:1",)
    )
    assert result == expected
    assert seen[-1] == (len(ijb.pairs), len(ijb.pairs))
    assert result.verification != evaluate_ijb(ijb, images, parts=("1:1",)).verification
