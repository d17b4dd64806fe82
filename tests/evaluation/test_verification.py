"""From embeddings and pair lists to results, to JSON and back."""

import json
import platform
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.data.sources.source import images_digest
from sphereface2.evaluation import metrics
from sphereface2.evaluation.experiment_results import tar_at
from sphereface2.evaluation.pair_scores import (
    COMBINED,
    PairScores,
    _merged_folds,
    combine,
    score_pairs,
)
from sphereface2.evaluation.thresholds import tar_at_fars
from sphereface2.evaluation.uncertainty import replicate, wilson
from sphereface2.evaluation.verification import (
    EvaluationResult,
    installed_versions,
    measure,
    measure_all,
    note_on_flip,
)
from sphereface2.files import write_atomically

Embeddings = npt.NDArray[np.float32]


def people(seed: int, *, count: int = 60, noise: float = 1.0) -> Embeddings:
    """Two images of each of `count` people: rows 2i and 2i+1."""
    generator = np.random.default_rng(seed)
    centres = np.repeat(generator.normal(size=(count, 16)), 2, axis=0)
    return (centres + noise * generator.normal(size=centres.shape)).astype(np.float32)


def pair_list(count: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first = 2 * np.arange(count)
    genuine = np.stack([first, first + 1], axis=1)
    impostor = np.stack([first, np.roll(first, 1) + 1], axis=1)
    pairs = np.stack([genuine, impostor], axis=1).reshape(-1, 2)
    same = np.tile([True, False], count)
    return pairs, same, np.arange(2 * count) * 10 // (2 * count)


def scored(name: str, seed: int, *, noise: float = 1.0) -> PairScores:
    return score_pairs(name, people(seed, noise=noise), *pair_list())


def test_scores_are_cosines_whatever_the_norms() -> None:
    embeddings = people(0)
    pairs, same, folds = pair_list()
    result = score_pairs("plain", embeddings, pairs, same, folds)
    for (left, right), score in zip(pairs, result.scores, strict=True):
        a, b = embeddings[left].astype(float), embeddings[right].astype(float)
        assert score == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)), abs=1e-12)
    scaled = embeddings * np.random.default_rng(1).uniform(1e-3, 1e3, (len(embeddings), 1))
    again = score_pairs("plain", scaled.astype(np.float32), pairs, same, folds)
    np.testing.assert_allclose(again.scores, result.scores, atol=1e-5)


def test_pairs_are_scored_as_simple_is_published_where_asked() -> None:
    embeddings = people(0) * np.random.default_rng(1).uniform(0.5, 2, (120, 1)).astype(np.float32)
    pairs, same, folds = pair_list()
    result = score_pairs("plain", embeddings, pairs, same, folds, angular_bias=0.3)
    for (left, right), score in zip(pairs, result.scores, strict=True):
        a, b = embeddings[left].astype(float), embeddings[right].astype(float)
        expected = a @ b - 0.3 * np.linalg.norm(a) * np.linalg.norm(b)
        assert score == pytest.approx(expected, abs=1e-9)
    assert 0.0 <= measure(result, model="m").accuracy <= 1.0


def test_huge_and_tiny_float32_embeddings_neither_overflow_nor_vanish() -> None:
    embeddings = people(0)
    expected = score_pairs("plain", embeddings, *pair_list()).scores
    for scale in (1e30, 1e-30):
        scores = score_pairs("plain", (embeddings * scale).astype(np.float32), *pair_list()).scores
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_result_has_the_metrics_of_the_scores() -> None:
    pairs = scored("plain", 0)
    result = measure(score_pairs("plain", people(0), *pair_list()), model="net")
    per_fold = metrics.fold_accuracy(pairs.scores, pairs.same, pairs.folds)
    best = metrics.best_threshold_accuracy(pairs.scores, pairs.same)
    assert (result.set_name, result.model) == ("plain", "net")
    assert (result.pairs, result.genuine, result.impostor) == (120, 60, 60)
    assert (result.accuracy, result.accuracy_std) == (per_fold.mean, per_fold.std)
    assert result.fold_accuracies == per_fold.accuracies
    assert len(result.fold_accuracies) == 10
    assert result.threshold == per_fold.mean_threshold
    assert (result.best_threshold_accuracy, result.best_threshold) == best
    assert result.eer == metrics.equal_error_rate(pairs.scores, pairs.same)
    assert result.auc == metrics.area_under_curve(pairs.scores, pairs.same)
    assert [point.resolved for point in result.tar_at_far] == [True, False, False]


def test_the_histogram_holds_every_pair() -> None:
    for noise in (0.0, 1.0, 50.0):
        result = measure(scored("plain", 2, noise=noise), model="net")
        assert len(result.histogram.edges) == len(result.histogram.genuine) + 1
        assert sum(result.histogram.genuine) == result.genuine
        assert sum(result.histogram.impostor) == result.impostor


def test_hardest_pairs_are_the_worst_scores_with_their_places() -> None:
    pairs = scored("plain", 0)
    result = measure(pairs, model="net")
    genuine = [pair.score for pair in result.hardest_genuine]
    impostor = [pair.score for pair in result.hardest_impostor]
    assert genuine == sorted(pairs.scores[pairs.same])[:8]
    assert impostor == sorted(pairs.scores[~pairs.same], reverse=True)[:8]
    for pair in (*result.hardest_genuine, *result.hardest_impostor):
        assert (pair.left, pair.right) == tuple(pairs.pairs[pair.pair])
        assert pair.score == pairs.scores[pair.pair]
        assert pair.same == pairs.same[pair.pair]


def test_a_long_roc_is_thinned_to_exact_points_with_both_ends() -> None:
    generator = np.random.default_rng(0)
    count = 20_000
    same = np.arange(count) % 2 == 0
    scores = np.tanh(generator.normal(size=count) / 3 + 0.5 * same)
    full = metrics.roc_curve(scores, same)
    fars, tars = full.false_accepts / np.sum(~same), full.true_accepts / np.sum(same)
    whole = PairScores(
        name="long",
        scores=scores,
        pairs=np.zeros((count, 2), dtype=np.int64),
        same=same,
        folds=np.arange(count) * 10 // count,
        sources=np.full(count, "long"),
        positions=np.arange(count),
    )
    roc = measure(whole, model="net", replicates=0).roc
    assert len(roc.far) == len(roc.tar) == len(roc.threshold) <= 400
    points = set(zip(fars.tolist(), tars.tolist(), full.thresholds.tolist(), strict=True))
    assert set(zip(roc.far, roc.tar, roc.threshold, strict=True)) <= points
    assert (roc.far[0], roc.tar[0], roc.far[-1], roc.tar[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert list(roc.far) == sorted(roc.far)
    # In the decade of the rarest errors, every step of the full curve is still there.
    rare = [far for far in fars if far <= 1e-3]
    assert len(set(rare)) > 5
    assert [tar_at(roc, far) for far in rare] == [tars[fars <= far].max() for far in rare]
    # And nowhere does TAR jump by much more than the full curve does.
    assert max(np.diff(roc.tar)) < 0.01


def test_combined_pools_the_pairs_and_keeps_the_folds() -> None:
    easy, hard = scored("easy", 0, noise=0.3), scored("hard", 1, noise=3.0)
    pooled = combine([easy, hard])
    assert pooled.name == COMBINED
    assert len(pooled.scores) == 240
    for fold in range(10):
        expected = [*easy.scores[easy.folds == fold], *hard.scores[hard.folds == fold]]
        assert sorted(pooled.scores[pooled.folds == fold]) == sorted(expected)
    result = measure(pooled, model="net")
    assert {pair.set_name for pair in result.hardest_genuine} == {"hard"}
    for pair in result.hardest_genuine:
        assert hard.scores[pair.pair] == pair.score


def test_measure_all_adds_combined_only_to_several_sets() -> None:
    one, two = scored("plain", 0), scored("cross-age", 1)
    assert [r.set_name for r in measure_all([one], model="net")] == ["plain"]
    names = [r.set_name for r in measure_all([one, two], model="net")]
    assert names == ["plain", "cross-age", COMBINED]
    with pytest.raises(ValueError, match="no verification set"):
        combine([])


def evaluation() -> EvaluationResult:
    rows = measure_all([scored("plain", 0), scored("cross-age", 1)], model="net")
    rows += measure_all([scored("plain", 2), scored("cross-age", 3)], model="raw pixels")
    return EvaluationResult(
        title="quickstart ± θ",
        rows=tuple(rows),
        versions=installed_versions(),
        config={"seed": 0, "head": {"name": "sphereface2-c", "margin": 0.4}},
    )


def test_an_evaluation_round_trips_through_json(tmp_path: Path) -> None:
    result = evaluation()
    assert EvaluationResult.from_json(result.to_json()) == result
    result.save(tmp_path / "new" / "evaluation.json")
    assert EvaluationResult.load(tmp_path / "new" / "evaluation.json") == result
    plain = json.loads((tmp_path / "new" / "evaluation.json").read_text(encoding="utf-8"))
    assert plain["rows"][0]["accuracy"] == result.rows[0].accuracy
    assert {"python", "numpy", "torch"} <= set(plain["versions"])


def test_an_evaluation_knows_its_models_and_sets() -> None:
    result = evaluation()
    assert result.model == "net"
    assert result.models == ("net", "raw pixels")
    assert result.sets == ("plain", "cross-age", COMBINED)
    found = result.find("raw pixels", "cross-age")
    assert found is result.rows[4]
    assert result.find("net", "cross-pose") is None
    with pytest.raises(ValueError, match="at least one verification set"):
        EvaluationResult(title="empty", rows=())


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unreadable_evaluation_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.json does not exist"):
        EvaluationResult.load(tmp_path / "gone.json")
    for text in ("{", '{"title": "x"}', '{"title": "x", "rows": [{"pairs": "many"}]}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match=r"bad\.json is not an evaluation result") as caught:
            EvaluationResult.load(tmp_path / "bad.json")
        assert "\n" not in str(caught.value)


def who(count: int = 60) -> npt.NDArray[np.int64]:
    """The person of each image: rows 2i and 2i+1 show person i."""
    return np.repeat(np.arange(count, dtype=np.int64), 2)


def uneven(strays: npt.NDArray[np.float64]) -> PairScores:
    """40 genuine pairs from 1.5 to 2.5, 360 impostor pairs from 0 to 1 but for the strays."""
    scores = np.concatenate([np.linspace(1.5, 2.5, 40), np.linspace(0, 1, 360 - strays.size)])
    same = np.arange(400) < 40
    return PairScores(
        name="uneven",
        scores=np.concatenate([scores, strays]),
        pairs=np.zeros((400, 2), np.int64),
        same=same,
        folds=np.arange(400) % 10,
        sources=np.full(400, "uneven"),
        positions=np.arange(400),
    )


class TestIntervals:
    def test_every_number_lies_within_its_interval(self) -> None:
        for known in (None, who()):
            result = measure(
                score_pairs("plain", people(0), *pair_list(), people=known), model="net"
            )
            assert result.people == (None if known is None else 60)
            for value, interval in (
                (result.accuracy, result.accuracy_interval),
                (result.best_threshold_accuracy, result.best_threshold_interval),
                (result.eer, result.eer_interval),
                (result.auc, result.auc_interval),
                (result.tar_at_far[0].rate, result.tar_at_far[0].interval),
            ):
                assert interval is not None
                assert 0 <= interval.low <= value <= interval.high <= 1
                assert interval.low < interval.high
                by_people = interval.method == "bootstrap over people"
                assert by_people == (known is not None)
            assert result.accuracy_interval is not None
            right = round(result.accuracy * result.pairs)
            alone = wilson(right, result.pairs).interval
            if known is None:
                assert result.accuracy_interval == alone
            else:
                assert result.accuracy_interval.low <= alone.low
                assert result.accuracy_interval.high >= alone.high

    def test_what_is_not_resolved_has_none(self) -> None:
        result = measure(score_pairs("plain", people(0), *pair_list(), people=who()), model="net")
        assert [point.interval is not None for point in result.tar_at_far] == [True, False, False]
        assert [point.genuine for point in result.tar_at_far] == [60, 60, 60]
        assert result.tar_at_far[0].false_rate.successes <= 6

    def test_perfect_scores_are_no_certainty(self) -> None:
        pairs = score_pairs("plain", people(0, noise=0.001), *pair_list(), people=who())
        result = measure(pairs, model="net")
        assert (result.accuracy, result.eer, result.auc) == (1.0, 0.0, 1.0)
        for interval in (result.accuracy_interval, result.auc_interval):
            assert interval is not None
            assert interval.low < 0.98
        assert result.eer_interval is not None
        assert result.eer_interval.high > 0.02

    def test_perfect_scores_of_unequal_kinds_are_as_sure_as_the_fewer_allow(self) -> None:
        """40 genuine and 360 impostor pairs, all decided right: the 360 prove little."""
        result = measure(uneven(np.zeros(0)), model="net")
        assert (result.genuine, result.impostor) == (40, 360)
        assert (result.accuracy, result.eer, result.auc) == (1.0, 0.0, 1.0)
        assert result.auc_interval is not None
        assert result.auc_interval.low == wilson(40, 40).interval.low
        # FAR and FRR each have half a say in the EER: its variance is e(1 - e) (1/40 + 1/360) / 4,
        # that of 144 trials.
        assert result.eer_interval is not None
        assert result.eer_interval.high == wilson(0, 144).interval.high
        inverted = uneven(np.zeros(0))
        result = measure(replace(inverted, scores=-inverted.scores), model="net")
        assert result.auc == 0.0
        assert result.auc_interval is not None
        assert result.auc_interval.high == wilson(0, 40).interval.high
        assert result.eer_interval is not None
        assert result.eer_interval.low == wilson(144, 144).interval.low

    def test_the_finest_error_of_an_auc_is_one_pair_in_all_comparisons(self) -> None:
        """One impostor above one genuine pair: many replicates have no error, AUC 1."""
        pairs = uneven(np.array([1.51]))
        result = measure(pairs, model="net", replicates=200)
        assert result.auc == pytest.approx(1 - 1 / (40 * 360))
        (drawn,) = replicate(
            [(pairs.scores, pairs.same[:, None])], pairs.same, None, replicates=200
        )
        without = drawn.auc == 1.0
        assert 20 < np.count_nonzero(without) < 180
        errors = np.where(without, 0.5 / (40 * 360), 1 - drawn.auc)
        spread = 1.959964 * np.std(np.log((1 - errors) / errors))
        odds = np.log(result.auc / (1 - result.auc))
        assert result.auc_interval is not None
        assert result.auc_interval.low == pytest.approx(1 / (1 + np.exp(spread - odds)), abs=1e-9)
        assert result.auc_interval.high == pytest.approx(1 / (1 + np.exp(-spread - odds)), abs=1e-9)

    def test_they_repeat_and_can_be_left_out(self) -> None:
        pairs = score_pairs("plain", people(0), *pair_list(), people=who())
        assert measure(pairs, model="net") == measure(pairs, model="net")
        without = measure(pairs, model="net", replicates=0)
        assert without.accuracy_interval is None
        assert without.roc_band is None
        assert without.accuracy == measure(pairs, model="net").accuracy

    def test_the_band_holds_the_curve(self) -> None:
        result = measure(score_pairs("plain", people(0), *pair_list(), people=who()), model="net")
        band = result.roc_band
        assert band is not None
        assert band.far[0] == pytest.approx(4 / 60)
        assert band.far[-1] == 1.0
        scores = scored("plain", 0)
        for far, low, high in zip(band.far, band.low, band.high, strict=True):
            tar = tar_at_fars(scores.scores, scores.same, [far])[0].rate
            assert low <= tar <= high


def test_sets_are_pooled_as_different_people() -> None:
    known, unknown = scored("a", 0), scored("b", 1)
    with_people = score_pairs("a", people(0), *pair_list(), people=who())
    assert combine([known, unknown]).people is None
    both = combine([with_people, with_people])
    assert both.people is not None
    assert np.unique(both.people).size == 120
    # A pair of nobody in particular counts as a person of its own.
    mixed = combine([with_people, unknown])
    assert mixed.people is not None
    assert np.unique(mixed.people).size == 60 + 120


def test_sets_of_the_same_images_show_the_same_people() -> None:
    named = score_pairs("a", people(0), *pair_list(), people=who(), images="0123")
    others = replace(named, images="4567")
    pooled = combine([named, others, replace(named, name="b")]).people
    assert pooled is not None
    once, other, again = np.split(pooled, 3)
    np.testing.assert_array_equal(once, again)
    assert np.unique(once).size == 60
    assert not np.isin(other, once).any()


def test_people_that_contradict_the_pairs_are_refused() -> None:
    wrong = who()
    wrong[[1, 3]] = [70, 71]
    with pytest.raises(ValueError, match=r"2 of 120 genuine pairs show two people"):
        score_pairs("plain", people(0), *pair_list(), people=wrong)
    alike = who()
    alike[2:4] = 0
    with pytest.raises(ValueError, match=r"1 of 120 impostor pairs show one person"):
        score_pairs("plain", people(0), *pair_list(), people=alike)
    with pytest.raises(ValueError, match="120 embeddings, but people of the shape"):
        score_pairs("plain", people(0), *pair_list(), people=who()[:-1])


def test_digests_tell_pairs_and_images_apart() -> None:
    pairs, same, folds = pair_list()
    one = score_pairs("plain", people(0), pairs, same, folds)
    assert one.digest == score_pairs("other", people(1), pairs, same, folds).digest
    assert one.digest != score_pairs("plain", people(0), pairs[:, ::-1], same, folds).digest
    assert one.digest != score_pairs("plain", people(0), pairs, same, folds[::-1]).digest
    images = np.random.default_rng(0).integers(0, 256, (70, 4, 4, 3), dtype=np.uint8)
    changed = images.copy()
    changed[-1] += 1
    digest = images_digest(list(images))
    assert digest == images_digest(list(images.copy()))
    assert digest != images_digest(list(changed))
    assert digest != images_digest(list(images[:69]))


def test_evaluations_of_older_versions_are_read() -> None:
    plain = json.loads(evaluation().to_json())
    names = {"target": "target_far", "reached": "far", "rate": "tar"}
    for row in plain["rows"]:
        row["tar_at_far"] = [
            {names.get(key, key): value for key, value in point.items() if "threshold_" not in key}
            for point in row["tar_at_far"]
        ]
    assert EvaluationResult.from_json(json.dumps(plain)) == evaluation()
    # Before that, there were no intervals.
    for row in plain["rows"]:
        for key in [key for key in row if key.endswith("_interval") or key == "roc_band"]:
            del row[key]
        for point in row["tar_at_far"]:
            del point["interval"], point["genuine"]
    older = EvaluationResult.from_json(json.dumps(plain))
    assert older.rows[0].accuracy_interval is None
    assert older.rows[0].accuracy == evaluation().rows[0].accuracy
    assert older.rows[0].tar_at_far[0].rate == evaluation().rows[0].tar_at_far[0].rate


def test_unusable_embeddings_are_refused_by_number() -> None:
    broken = people(0)
    broken[[3, 7], 2] = [np.nan, np.inf]
    with pytest.raises(ValueError, match=r"'plain': 2 of 120 embeddings are not finite .*3, 7\)"):
        score_pairs("plain", broken, *pair_list())
    zero = people(0)
    zero[10:20] = 0
    with pytest.raises(ValueError, match=r"10 of 120 embeddings are zero.*13, 14, \.{3}"):
        score_pairs("plain", zero, *pair_list())
    for wrong in (people(0)[0], people(0)[None], np.zeros((0, 16), np.float32)):
        with pytest.raises(ValueError, match="images × dimensions"):
            score_pairs("plain", wrong, *pair_list())
    with pytest.raises(ValueError, match="must be floats, got int64"):
        score_pairs("plain", np.ones((120, 4), dtype=np.int64), *pair_list())
    with pytest.raises(ValueError, match="120 pairs name an image beyond the 4"):
        score_pairs("plain", people(0)[:4], *pair_list())


def test_unusable_pair_lists_are_refused() -> None:
    pairs, same, folds = pair_list()
    embeddings = people(0)
    with pytest.raises(ValueError, match="'plain' has 120 genuine and 0 impostor pairs"):
        score_pairs("plain", embeddings, pairs, np.ones(120, bool), folds)
    with pytest.raises(ValueError, match="'plain' has one fold only"):
        score_pairs("plain", embeddings, pairs, same, np.zeros(120, int))
    with pytest.raises(ValueError, match=r"2 of 2 folds hold genuine or .*0, 1"):
        score_pairs("plain", embeddings, pairs, same, same.astype(int))
    with pytest.raises(ValueError, match="must have the shapes"):
        score_pairs("plain", embeddings, pairs, same[:-1], folds)


def test_pairs_of_missing_images_are_left_out_and_counted() -> None:
    pairs, same, folds = pair_list()
    whole = score_pairs("plain", people(0), pairs, same, folds)
    holes = people(0)
    holes[[3, 7]] = np.nan
    found = score_pairs("plain", holes, pairs, same, folds, missing="skip")
    kept = ~np.isin(pairs, [3, 7]).any(axis=1)
    np.testing.assert_array_equal(found.scores, whole.scores[kept])
    np.testing.assert_array_equal(found.positions, np.flatnonzero(kept))
    assert (found.missing_images, found.skipped_pairs) == (2, int((~kept).sum()))
    assert combine([found, whole]).skipped_pairs == found.skipped_pairs
    result = measure(found, model="x", replicates=0)
    assert (result.missing_images, result.pairs) == (2, int(kept.sum()))
    with pytest.raises(ValueError, match="2 of 120 embeddings are not finite"):
        score_pairs("plain", holes, pairs, same, folds)
    holes[:] = np.nan
    with pytest.raises(ValueError, match="plain"):
        score_pairs("plain", holes, pairs, same, folds, missing="skip")


def test_a_fold_that_is_left_with_one_kind_joins_its_neighbour() -> None:
    folds = np.array([0, 0, 1, 1, 2, 2])
    same = np.array([True, False, True, True, False, True])
    assert _merged_folds(folds, same).tolist() == [0, 0, 2, 2, 2, 2]
    last = np.array([True, False, True, False, True, True])
    assert _merged_folds(folds, last).tolist() == [0, 0, 1, 1, 1, 1]
    assert _merged_folds(folds, np.array([True, False] * 3)).tolist() == folds.tolist()
    assert _merged_folds(folds, np.ones(6, bool)).tolist() == [2] * 6, "the last has no neighbour"


def test_pairs_may_be_plain_lists_with_zeros_and_ones() -> None:
    pairs, same, folds = pair_list()
    whole = score_pairs("plain", people(0), pairs, same, folds)
    listed = score_pairs(
        "plain", people(0), pairs.tolist(), same.astype(int).tolist(), folds.astype(float).tolist()
    )
    np.testing.assert_array_equal(listed.scores, whole.scores)
    assert listed.same.dtype == np.bool_
    assert listed.folds.dtype == np.int64
    assert measure(listed, model="m", replicates=0) == measure(whole, model="m", replicates=0)


def test_a_cosine_is_never_beyond_one() -> None:
    """Of an embedding with itself, and with itself turned round: rounding steps over at times."""
    rows = np.random.default_rng(0).normal(size=(500, 48)).astype(np.float32)
    embeddings = np.concatenate([rows, -rows])
    numbers = np.arange(500)
    pairs = np.concatenate(
        [np.stack([numbers, numbers], axis=1), np.stack([numbers, numbers + 500], axis=1)]
    )
    found = score_pairs("plain", embeddings, pairs, np.arange(1000) < 500, np.arange(1000) % 2)
    assert found.scores.max() == 1.0
    assert found.scores.min() == -1.0
    assert (np.abs(found.scores) > 0.9999).all()


def test_long_lists_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scored("plain", 0)
    monkeypatch.setattr("sphereface2.evaluation.search._CHUNK", 7)
    np.testing.assert_array_equal(scored("plain", 0).scores, whole.scores)


def test_attributes_and_digests_of_images_go_with_the_pairs() -> None:
    pairs, same, folds = pair_list()
    holes = people(0)
    holes[3] = np.nan
    kinds = np.array([f"kind {number}" for number in range(120)])
    found = score_pairs(
        "plain", holes, pairs, same, folds,
        attributes={"kind": kinds}, images="abc", missing="skip",
    )  # fmt: skip
    kept = ~(pairs == 3).any(axis=1)
    assert found.attributes["kind"].tolist() == kinds[kept].tolist()
    assert found.images == "abc"
    assert set(found.sources) == {"plain"}
    unknown = scored("other", 1)
    pooled = combine([found, found])
    assert (pooled.images, pooled.missing_images) == ("abc+abc", 2)
    assert combine([found, unknown]).images == ""
    assert set(combine([found, unknown]).sources) == {"plain", "other"}
    with pytest.raises(ValueError, match="no verification set to combine"):
        combine([])


def test_an_image_beyond_those_there_is_named() -> None:
    pairs, same, folds = pair_list()
    for number, wrong in ((4, -1), (9, 120)):
        beyond = pairs.copy()
        beyond[number, 1] = wrong
        with pytest.raises(ValueError, match=rf"1 of 120 pairs name an image .*\(number {number}"):
            score_pairs("plain", people(0), beyond, same, folds)


@pytest.mark.parametrize(
    ("flip", "of_model", "said"),
    [
        (True, True, []),
        (False, False, []),
        (True, False, ["scored with mirror images, though this model embeds without them by itse"]),
        (False, True, ["scored without mirror images, though this model embeds with them by itse"]),
    ],
)
def test_mirror_images_are_mentioned_where_a_model_does_otherwise(
    flip: bool, of_model: bool, said: list[str]
) -> None:
    assert [note.removesuffix("lf") for note in note_on_flip(flip, of_model)] == said


def test_versions_are_those_installed() -> None:
    found = installed_versions()
    assert found["python"] == platform.python_version()
    assert found["numpy"] == metadata.version("numpy")
    assert list(found) == ["python", "sphereface2", "torch", "numpy", "opencv-python-headless"]


def test_a_package_that_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("sphereface2.evaluation.verification.metadata.version", absent)
    assert set(installed_versions().values()) == {platform.python_version(), "unknown"}
