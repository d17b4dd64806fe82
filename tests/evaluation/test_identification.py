from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.evaluation.protocols.identification import IdentificationResult, identify
from sphereface2.evaluation.search import GalleryPooling, Searched, cmc_curve, dir_at, search
from tests.evaluation.grid import grid_vectors

Case = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
FPIRS = (0.0, 0.05, 0.1, 0.3, 1.0)


def _case(seed: int, *, ties: bool, per_person: int = 1) -> Case:
    rng = np.random.default_rng(seed)
    people = np.array([f"p{i:02d}" for i in range(12)])
    gallery_people = rng.permutation(np.repeat(people[:8], per_person))
    probe_people = rng.choice(people, 50)
    if ties:
        return (
            grid_vectors(gallery_people.size, rng),
            gallery_people,
            grid_vectors(50, rng),
            probe_people,
        )
    centres = {name: rng.normal(size=6) for name in people}
    gallery = np.stack([centres[p] + rng.normal(size=6) for p in gallery_people])
    probes = np.stack([centres[p] + rng.normal(size=6) for p in probe_people])
    return gallery, gallery_people, probes, probe_people


def _unit(vector: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = np.asarray(vector, dtype=np.float64)
    return wide / np.linalg.norm(wide)


def _naive_scores(case: Case, pooling: str) -> list[dict[str, float]]:
    """The score of each person of the gallery, for each probe."""
    gallery, gallery_people, probes, _ = case
    table = []
    for probe in probes:
        scores = {}
        for person in sorted(set(gallery_people.tolist())):
            images = [_unit(v) for v in gallery[gallery_people == person]]
            if pooling == "mean":
                scores[person] = float(_unit(probe) @ _unit(np.sum(images, axis=0)))
            else:
                scores[person] = max(float(_unit(probe) @ image) for image in images)
        table.append(scores)
    return table


def _naive_tpir(case: Case, table: list[dict[str, float]], fpir: float) -> float:
    """Every score as a threshold, one probe after the other."""
    best = 0.0
    thresholds = {score for scores in table for score in scores.values()}
    for threshold in [*thresholds, 2.0]:
        false = strangers = right = mated = 0
        for person, scores in zip(case[3].tolist(), table, strict=True):
            if person in scores:
                mated += 1
                others = [score for name, score in scores.items() if name != person]
                right += scores[person] >= threshold and scores[person] > max(others)
            else:
                strangers += 1
                false += max(scores.values()) >= threshold
        if false / strangers <= fpir:
            best = max(best, right / mated)
    return best


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize(("ties", "per_person"), [(False, 1), (False, 3), (True, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_every_number_equals_a_brute_force_loop(
    pooling: GalleryPooling, ties: bool, per_person: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.evaluation.search._SCORES", 1)  # several blocks
    case = _case(seed, ties=ties, per_person=per_person)
    result = identify(
        *case, pooling=pooling, ranks=range(1, 9), fpir_targets=FPIRS, thresholds=(0.25,)
    )
    table = _naive_scores(case, pooling)
    ranks = []
    for person, scores in zip(case[3].tolist(), table, strict=True):
        if person in scores:
            own = scores.pop(person)
            ranks.append(1 + sum(score >= own for score in scores.values()))
            scores[person] = own
    assert result.mated == len(ranks)
    assert result.non_mated == 50 - len(ranks)
    for k, measure in enumerate(result.ranks, start=1):
        assert measure.rate.value == np.mean([rank <= k for rank in ranks])
        assert measure.rate.value == pytest.approx(result.cmc[k - 1], abs=1e-12)
    for fpir, measure in zip(FPIRS, result.tpir, strict=True):
        assert measure.at is not None
        assert measure.rate.value == _naive_tpir(case, table, fpir)
        assert measure.at.reached <= fpir
    people = case[3].tolist()
    known = [(p, s) for p, s in zip(people, table, strict=True) if p in s]
    hits = [s[p] >= 0.25 and sorted(s.values())[-2:].count(s[p]) == 1
            and s[p] == max(s.values()) for p, s in known]  # fmt: skip
    assert result.dir[0].rate.value == np.mean(hits)


def test_a_tie_goes_to_the_other_person() -> None:
    gallery = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = search(gallery, ["a", "b", "c"], np.array([[1.0, 0.0]]), ["a"])
    assert found.rank.tolist() == [2]
    assert found.genuine.tolist() == found.other.tolist() == [1.0]


def test_results_live_as_json() -> None:
    result = identify(*_case(0, ties=False), thresholds=(0.3,))
    assert IdentificationResult.from_json(result.to_json()) == result
    assert [measure.name for measure in result.measures] == [
        "rank 1", "rank 5", "rank 10", "TPIR@FPIR=0.01", "TPIR@FPIR=0.1", "DIR at 0.3"
    ]  # fmt: skip


def test_a_closed_set_has_no_tpir() -> None:
    gallery, people, probes, probe_people = _case(0, ties=False)
    inside = np.isin(probe_people, people)
    result = identify(gallery, people, probes[inside], probe_people[inside], thresholds=(0.1,))
    assert result.tpir == ()
    assert result.dir[0].at is None


def test_detection_and_identification_at_a_threshold() -> None:
    found = Searched(
        genuine=np.array([0.9, 0.4, 0.8, -np.inf, -np.inf], np.float32),
        other=np.array([0.1, 0.2, 0.9, 0.5, 0.3], np.float32),
        rank=np.array([1, 1, 2, 0, 0]),
        people=np.array(list("abcde")),
        gallery_people=3,
    )
    measure = dir_at(found, 0.5)
    assert (measure.rate.successes, measure.rate.trials) == (1, 3)
    assert measure.at is not None
    assert measure.at.reached == 0.5


def test_bad_input_gets_a_sentence() -> None:
    gallery, people, probes, probe_people = _case(0, ties=False)
    with pytest.raises(ValueError, match="6 dimensions and probes 5"):
        identify(gallery, people, probes[:, :5], probe_people)
    with pytest.raises(ValueError, match="no one of the 50 probes is in the gallery of 8 people"):
        identify(gallery, people, probes, np.full(50, "x"))
    with pytest.raises(ValueError, match="pooling must be one of mean, max"):
        identify(gallery, people, probes, probe_people, pooling="median")  # type: ignore[arg-type] # deliberately wrong
    probes[3] = np.nan
    with pytest.raises(ValueError, match=r"probes: 1 of 50 embeddings are not finite \(number 3\)"):
        identify(gallery, people, probes, probe_people)
    with pytest.raises(ValueError, match="8 embeddings for 7 images"):
        identify(gallery, people[:7], probes, probe_people)


def test_probes_are_searched_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(0, ties=False, per_person=2)
    whole = search(*case, pooling="max")
    monkeypatch.setattr("sphereface2.evaluation.search._SCORES", 1)
    reported: list[tuple[int, int]] = []
    blocks = search(
        *case, pooling="max", progress=lambda done, total: reported.append((done, total))
    )
    assert reported == [(32, 50), (50, 50)]
    for name in ("genuine", "other", "rank", "people"):
        np.testing.assert_array_equal(getattr(blocks, name), getattr(whole, name))
    assert blocks.gallery_people == whole.gallery_people == 8


def test_the_curve_over_ranks_ends_where_it_is_told_to() -> None:
    found = search(*_case(0, ties=False))
    curve = cmc_curve(found)
    assert len(curve) == 8
    ranks = found.rank[found.mated]
    assert curve == pytest.approx([float(np.mean(ranks <= k)) for k in range(1, 9)])
    assert cmc_curve(found, longest=3) == curve[:3]
