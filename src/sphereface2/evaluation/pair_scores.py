"""The scored pairs of a verification set: made from embeddings, pooled, kept in a run folder.

A run keeps its pair scores in scores.npz: with them, models are compared on the same pairs without
embedding anything again. The file holds plain arrays only; reading it runs no code.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.evaluation.metrics import BoolArray, FloatArray, IntArray
from sphereface2.evaluation.search import dot_products
from sphereface2.files import write_atomically
from sphereface2.models.embedder import absent_rows, check_table
from sphereface2.safe_pickle import read_arrays
from sphereface2.workers import first_of

COMBINED = "combined"
"""The name of the pooled set."""
Attributes = Mapping[str, npt.NDArray[np.str_]]
"""Of each attribute its value for every pair, as words; an empty word where it is not known."""

SCORES = "scores.npz"
_FORMAT = "sphereface2-scores-1"


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scored pairs of one set: all that `measure` needs, before any of it is thinned.

    pairs: (n, 2) image numbers; same: (n,) one person; folds: (n,); scores: (n,) cosines
        (or what `score_pairs` was asked for)
    sources: (n,) the set that each pair comes from (differs from `name` once sets are pooled)
    positions: (n,) the number of each pair in that set's list
    people: (n, 2) who the two images of each pair show, where that is known
    images: digest of the set's images (`images_digest`), where it was taken
    attributes: values of each pair by which `measure` slices the result
    missing_images, skipped_pairs: images without an embedding, and the pairs left out for them
    flip: whether mirror images were added, where that is known
    """

    name: str
    scores: FloatArray
    pairs: IntArray
    same: BoolArray
    folds: IntArray
    sources: npt.NDArray[np.str_]
    positions: IntArray
    people: IntArray | None = None
    images: str = ""
    attributes: Attributes = field(default_factory=dict)
    missing_images: int = 0
    skipped_pairs: int = 0
    flip: bool | None = None

    @property
    def digest(self) -> str:
        """Stands for the pair list: which images, one person or two, in which fold."""
        listing = np.column_stack([self.pairs, self.same, self.folds]).astype("<i8")
        return hashlib.sha256(listing.tobytes()).hexdigest()[:16]


def score_pairs(
    name: str,
    embeddings: npt.NDArray[np.floating[Any]],
    pairs: npt.ArrayLike,
    same: npt.ArrayLike,
    folds: npt.ArrayLike,
    *,
    people: npt.ArrayLike | None = None,
    images: str = "",
    attributes: Attributes | None = None,
    angular_bias: float | None = None,
    missing: Missing = "error",
) -> PairScores:
    """The cosine of the two embeddings of each pair; (N, D) embeddings need not be unit vectors.

    With an `angular_bias` b it is x·x' - b‖x‖‖x'‖ instead, as SimPLE's authors score pairs.
    `people` (N,) is the person of each image: with it, intervals count people and not pairs.
    With `missing` "skip", pairs with an image whose row is NaN throughout are left out and counted.
    """
    pair_numbers = np.asarray(pairs, dtype=np.int64)
    kinds = np.asarray(same, dtype=np.bool_)
    fold_numbers = np.asarray(folds, dtype=np.int64)
    _check_pairs(name, pair_numbers, kinds, fold_numbers)
    absent = absent_rows(embeddings) if missing == "skip" else np.zeros(0, dtype=np.bool_)
    if absent.any():
        norms = np.ones(len(embeddings))
        norms[~absent] = _checked_norms(name, embeddings[~absent])
    else:
        norms = _checked_norms(name, embeddings)
    unknown = (pair_numbers.min(axis=1) < 0) | (pair_numbers.max(axis=1) >= len(embeddings))
    _refuse(name, "pairs", unknown, f"name an image beyond the {len(embeddings)} there")
    kept = np.ones(len(kinds), dtype=np.bool_)
    if absent.any():
        kept = ~(absent[pair_numbers[:, 0]] | absent[pair_numbers[:, 1]])
        pair_numbers, kinds = pair_numbers[kept], kinds[kept]
        fold_numbers = _merged_folds(fold_numbers[kept], kinds)
        _check_pairs(f"{name} without its missing images", pair_numbers, kinds, fold_numbers)
    persons = _people_of_pairs(name, people, pair_numbers, kinds, images=len(embeddings))
    left, right = pair_numbers.T
    dots = dot_products(embeddings, left, right, dtype=np.float64)
    lengths = norms[left] * norms[right]
    if angular_bias is None:
        scores = np.clip(dots / lengths, -1.0, 1.0)  # rounding may step over
    else:
        scores = dots - angular_bias * lengths
    return PairScores(
        name=name,
        scores=scores,
        pairs=pair_numbers,
        same=kinds,
        folds=fold_numbers,
        sources=np.full(len(kinds), name),
        positions=np.flatnonzero(kept),
        people=persons,
        images=images,
        attributes={key: values[kept] for key, values in (attributes or {}).items()},
        missing_images=int(np.count_nonzero(absent)),
        skipped_pairs=int(np.count_nonzero(~kept)),
    )


def combine(sets: Sequence[PairScores]) -> PairScores:
    """All pairs of the sets pooled; fold i of the pool is fold i of every set.

    People of different sets are taken to be different people, unless the sets have the same
    images. Where only some sets know their people, each pair of the others counts as a person of
    its own.
    """
    if not sets:
        raise ValueError("there is no verification set to combine")
    return PairScores(
        name=COMBINED,
        scores=np.concatenate([part.scores for part in sets]),
        pairs=np.concatenate([part.pairs for part in sets]),
        same=np.concatenate([part.same for part in sets]),
        folds=np.concatenate([part.folds for part in sets]),
        sources=np.concatenate([part.sources for part in sets]),
        positions=np.concatenate([part.positions for part in sets]),
        people=_pooled_people(sets),
        images="+".join(part.images for part in sets) if all(s.images for s in sets) else "",
        missing_images=sum(part.missing_images for part in sets),
        skipped_pairs=sum(part.skipped_pairs for part in sets),
    )


def save_scores(path: Path, sets: Sequence[PairScores], *, model: str) -> None:
    """Write the scored pairs of a model on its sets, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "format": np.array(_FORMAT),
        "model": np.array(model),
        "names": np.array([scored.name for scored in sets]),
        "images": np.array([scored.images for scored in sets]),
    }
    for number, scored in enumerate(sets):
        for part in ("scores", "pairs", "same", "folds"):
            arrays[f"{number}.{part}"] = getattr(scored, part)
        for part in ("people", "flip"):
            if getattr(scored, part) is not None:
                arrays[f"{number}.{part}"] = np.asarray(getattr(scored, part))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def load_scores(path: Path) -> tuple[str, list[PairScores]]:
    """The model's label and its scored pairs, as `save_scores` wrote them."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} holds no {path.name}: evaluate the run first "
            f"(sphereface2 evaluate {path.parent})"
        )
    try:
        arrays = read_arrays(path)
        if str(arrays["format"]) != _FORMAT:
            raise KeyError("format")
        sets = [_read_set(arrays, number) for number in range(len(arrays["names"]))]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged or was written by another version ({error}); evaluate the run again"
        ) from None
    return str(arrays["model"]), sets


def _read_set(arrays: dict[str, npt.NDArray[Any]], number: int) -> PairScores:
    name = str(arrays["names"][number])
    same = arrays[f"{number}.same"].astype(np.bool_)
    people, flip = (arrays.get(f"{number}.{part}") for part in ("people", "flip"))
    scored = PairScores(
        name=name,
        scores=arrays[f"{number}.scores"].astype(np.float64),
        pairs=arrays[f"{number}.pairs"].astype(np.int64),
        same=same,
        folds=arrays[f"{number}.folds"].astype(np.int64),
        sources=np.full(same.size, name),
        positions=np.arange(same.size, dtype=np.int64),
        people=None if people is None else people.astype(np.int64),
        images=str(arrays["images"][number]),
        flip=None if flip is None else bool(flip),
    )
    _check_pairs(name, scored.pairs, same, scored.folds)
    _refuse(name, "scores", ~np.isfinite(scored.scores), "are not finite")
    return scored


def _people_of_pairs(
    name: str, people: npt.ArrayLike | None, pairs: IntArray, same: BoolArray, *, images: int
) -> IntArray | None:
    if people is None:
        return None
    known = np.asarray(people, dtype=np.int64)
    if known.shape != (images,):
        raise ValueError(
            f"set '{name}': {images} embeddings, but people of the shape {known.shape}; "
            "give one for each image"
        )
    persons: IntArray = known[pairs]
    alike = persons[:, 0] == persons[:, 1]
    _refuse(name, "genuine pairs", same & ~alike, "show two people, as their images are labelled")
    _refuse(name, "impostor pairs", ~same & alike, "show one person, as their images are labelled")
    return persons


def _pooled_people(sets: Sequence[PairScores]) -> IntArray | None:
    if all(part.people is None for part in sets):
        return None
    # A person is known by the set and a number in it; sets of the same images show the same people.
    keys = [
        np.repeat(np.arange(len(part.same))[:, None], 2, axis=1)
        if part.people is None
        else part.people
        for part in sets
    ]
    groups = [part.images if part.images and part.people is not None else i
              for i, part in enumerate(sets)]  # fmt: skip
    order = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    owner = np.concatenate([np.full(2 * len(key), order[group])
                            for key, group in zip(keys, groups, strict=True)])  # fmt: skip
    numbers = np.unique(np.concatenate(keys), return_inverse=True)[1].ravel()
    people = np.unique(owner * (numbers.max() + 1) + numbers, return_inverse=True)[1]
    return people.astype(np.int64).reshape(-1, 2)


def _check_pairs(name: str, pairs: IntArray, same: BoolArray, folds: IntArray) -> None:
    count = len(same)
    if pairs.shape != (count, 2) or same.ndim != 1 or folds.shape != (count,):
        raise ValueError(
            f"set '{name}': pairs, same and folds must have the shapes (n, 2), (n,) and (n,), got "
            f"{pairs.shape}, {same.shape} and {folds.shape}"
        )
    genuine = int(np.count_nonzero(same))
    if genuine in (0, count):
        raise ValueError(
            f"set '{name}' has {genuine} genuine and {count - genuine} impostor pairs; "
            "verification needs both kinds"
        )
    names = np.unique(folds)
    if names.size < 2:
        raise ValueError(
            f"set '{name}' has one fold only; the LFW protocol chooses the threshold of a fold on "
            "the others, so give at least two (it uses ten)"
        )
    one_kind = [int(f) for f in names if np.unique(same[folds == f]).size == 1]
    if one_kind:
        raise ValueError(
            f"set '{name}': {len(one_kind)} of {names.size} folds hold genuine or impostor pairs "
            f"only ({first_of(one_kind)}); spread both kinds over the folds"
        )


def _merged_folds(folds: IntArray, same: BoolArray) -> IntArray:
    """A fold that is left with pairs of one kind joins the next one (the last, the one before)."""
    merged = folds.copy()
    left = np.unique(folds).tolist()
    for fold in tuple(left):
        here = merged == fold
        if len(left) > 1 and np.unique(same[here]).size < 2:
            left.remove(fold)
            merged[here] = next((other for other in left if other > fold), left[-1])
    return merged


def _checked_norms(name: str, embeddings: npt.NDArray[np.floating[Any]]) -> FloatArray:
    check_table(embeddings, source=f"set '{name}'")
    _refuse(name, "embeddings", ~np.isfinite(embeddings).all(axis=1), "are not finite")
    squares = np.einsum("nd,nd->n", embeddings, embeddings, dtype=np.float64)
    norms: FloatArray = np.sqrt(squares)
    _refuse(name, "embeddings", norms == 0, "are zero and so have no direction")
    return norms


def _refuse(name: str, things: str, faulty: BoolArray, fault: str) -> None:
    numbers = np.flatnonzero(faulty)
    if numbers.size:
        raise ValueError(
            f"set '{name}': {numbers.size} of {faulty.size} {things} {fault} "
            f"(number {first_of(numbers.tolist())})"
        )
