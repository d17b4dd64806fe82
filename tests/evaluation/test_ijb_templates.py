import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.evaluation.protocols.ijb_templates import (
    ImageNorm,
    Templates,
    _codes,
    pair_scores,
    pool_templates,
)
from sphereface2.models.embedder import Mirror


def _case(
    seed: int,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    templates = rng.integers(3, 9, 60) * 7
    media = rng.integers(0, 4, 60)  # one media id may occur in several templates
    return rng.normal(size=(60, 6)).astype(np.float32), templates, media


def _naive(
    embeddings: npt.NDArray[np.float64],
    templates: npt.NDArray[np.int64],
    media: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    *,
    mirror: Mirror,
    image_norm: ImageNorm,
) -> dict[int, npt.NDArray[np.float64]]:
    half = embeddings.shape[1] // 2
    pooled = {}
    for template in sorted(set(templates.tolist())):
        total = np.zeros(half if mirror != "given" else embeddings.shape[1])
        for medium in sorted(set(media[templates == template].tolist())):
            vectors = []
            for i in np.flatnonzero((templates == template) & (media == medium)):
                vector = embeddings[i]
                if mirror == "sum":
                    vector = vector[:half] + vector[half:]
                elif mirror == "first":
                    vector = vector[:half]
                if image_norm == "unit":
                    vector = vector / np.linalg.norm(vector)
                vectors.append(vector * weights[i])
            total = total + np.mean(vectors, axis=0)
        pooled[template] = total / np.linalg.norm(total)
    return pooled


@pytest.mark.parametrize("mirror", ["given", "sum", "first"])
@pytest.mark.parametrize("image_norm", ["kept", "unit"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooling_equals_the_definition(
    mirror: Mirror, image_norm: ImageNorm, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sphereface2.evaluation.protocols.ijb_templates._BLOCK", 7
    )  # several blocks
    embeddings, templates, media = _case(1)
    weights = np.random.default_rng(2).uniform(0.2, 1.0, 60) if weighted else np.ones(60)
    pooled = pool_templates(
        embeddings,
        templates,
        media,
        weights=weights if weighted else None,
        mirror=mirror,
        image_norm=image_norm,
    )
    naive = _naive(
        embeddings.astype(np.float64), templates, media, weights, mirror=mirror,
        image_norm=image_norm,
    )  # fmt: skip
    assert pooled.ids.tolist() == list(naive)
    np.testing.assert_allclose(pooled.vectors, list(naive.values()), atol=2e-6)


def test_half_precision_does_not_overflow() -> None:
    embeddings, templates, media = _case(1)
    small = (embeddings * 400).astype(np.float16)  # squares beyond float16
    expected = pool_templates(small.astype(np.float32), templates, media, image_norm="unit")
    pooled = pool_templates(small, templates, media, image_norm="unit")
    np.testing.assert_allclose(pooled.vectors, expected.vectors, atol=1e-6)


@pytest.mark.parametrize("ids", [[3, 7, 9], [-4, 7, 9], [3, 7, 1 << 40]])
def test_where_finds_rows_and_names_the_missing(ids: list[int]) -> None:
    templates = Templates(np.array(ids), np.eye(3, dtype=np.float32))
    assert templates.where(np.array([7, ids[2], ids[0]]), source="x").tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match=r"pairs: 2 templates have no image \(template 5, 11\)"):
        templates.where(np.array([11, 5, 7, 5]), source="pairs")


def test_faulty_embeddings_are_named_and_counted() -> None:
    embeddings, templates, media = _case(0)
    embeddings[[4, 9]] = np.nan
    with pytest.raises(ValueError, match=r"2 of 60 embeddings are not finite \(number 4, 9\)"):
        pool_templates(embeddings, templates, media)
    embeddings, templates, media = _case(0)
    embeddings[5] = 0
    norms: tuple[ImageNorm, ...] = ("kept", "unit")
    for norm in norms:
        with pytest.raises(ValueError, match=r"1 of 60 embeddings are zero.*number 5"):
            pool_templates(embeddings, templates, media, image_norm=norm)
    embeddings[5] = [1, 2, 3, -1, -2, -3]  # the mirror image cancels it
    with pytest.raises(ValueError, match=r"1 of 60 embeddings are zero.*number 5"):
        pool_templates(embeddings, templates, media, mirror="sum")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": np.ones((59, 6), np.float32)}, "59 embeddings for 60 images"),
        ({"embeddings": np.ones((60, 6), np.int64)}, "must be floats"),
        ({"embeddings": np.ones((60, 5), np.float32), "mirror": "sum"}, "5 dimensions cannot"),
        ({"weights": np.full(60, -1.0)}, r"60 of 60 detector scores are negative"),
        ({"weights": np.zeros(60)}, "sum to zero"),
        ({"weights": np.ones(3)}, "3 detector scores for 60 images"),
        ({"media": np.ones(59, int)}, "59 media ids"),
        ({"image_norm": "unity"}, "image_norm must be one of kept, unit"),
        ({"mirror": "both"}, "mirror must be one of"),
    ],
)
def test_bad_input_gets_a_sentence(change: dict[str, object], message: str) -> None:
    embeddings, templates, media = _case(0)
    arguments: dict[str, object] = {
        "embeddings": embeddings, "templates": templates, "media": media, **change
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        pool_templates(**arguments)  # type: ignore[arg-type] # deliberately wrong


@pytest.mark.parametrize("count", [20, 400], ids=["products", "pair by pair"])
def test_the_score_of_a_template_with_itself_is_never_beyond_one(count: int) -> None:
    """Float32 vectors of length 1: rounding takes many of their squares a little above 1."""
    vectors = np.random.default_rng(0).normal(size=(count, 40))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    both = np.concatenate([vectors, -vectors]).astype(np.float32)
    templates = Templates(np.arange(2 * count), both)
    left = np.arange(count, dtype=np.int32)
    for right, end in ((left, 1.0), (left + count, -1.0)):
        found = pair_scores(templates, left, right.astype(np.int32))
        assert np.abs(found).max() == 1.0
        np.testing.assert_allclose(found, end, atol=1e-6)


def test_scores_are_the_same_however_few_of_them_fit_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(12, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    templates = Templates(np.arange(12), vectors.astype(np.float32))
    left, right = (generator.integers(0, 12, 60).astype(np.int32) for _ in range(2))
    whole = pair_scores(templates, left, right)
    monkeypatch.setattr(
        "sphereface2.evaluation.protocols.ijb_templates._SCORES", 5
    )  # less than a row
    reported: list[tuple[int, int]] = []
    found = pair_scores(templates, left, right, progress=lambda *now: reported.append(now))
    np.testing.assert_allclose(found, whole, rtol=1e-6)
    assert len(reported) == len(np.unique(left))
    assert reported[-1] == (60, 60)


@pytest.mark.parametrize("count", [3, 1 << 16, (1 << 16) + 1])
def test_codes_hold_as_many_templates_as_there_are(count: int) -> None:
    rows = np.arange(count, dtype=np.int32)[::-1]
    distinct, codes = _codes(rows, count)
    np.testing.assert_array_equal(distinct[codes], rows)
