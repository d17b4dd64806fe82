"""Verification sets by name, scored by a model or by embeddings that were saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sphereface2.data.named_pairs import named_pairs, without_ending
from sphereface2.data.opening import open_images
from sphereface2.data.set_words import has_people, require_lists_for_root, sets_of_word
from sphereface2.data.verification_sets import VerificationSet
from sphereface2.evaluation.embedding_files import SavedEmbeddings
from sphereface2.evaluation.pair_scores import PairScores, images_digest, score_pairs, score_set
from sphereface2.evaluation.unit_rows import fold_mirror
from sphereface2.protocols.extracting import Embedder
from sphereface2.protocols.subject import Subject, rows_of
from sphereface2.training.distributed import current_team


def find_sets(words: Sequence[str], *, root: Path | None = None) -> list[VerificationSet]:
    """What each word means: a .bin file, a list of pairs, `synthetic`, or people to draw pairs of.

    root: where the images of lists of pairs lie
    """
    require_lists_for_root(words, root)
    start = None if root is None else str(root)
    found = []
    for word in words:
        found += sets_of_word(word, root=start)
    names = [each.name for each in found]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"two sets are called {twice[0]}; rename one, or evaluate them apart")
    return found


def score_sets(
    embedder: Embedder, sets: Sequence[VerificationSet], *, folder: Path
) -> list[PairScores] | None:
    """The pairs of each set scored by a model; None on all ranks but the first.

    The embeddings are kept in `folder`: the same sets are not embedded twice.
    """
    team = current_team()
    scored = []
    for each in sets:
        embeddings = embedder.embed(
            each.images, folder / f"{each.name}.npy", title=f"embedding set {each.name}"
        )
        if team.is_first:
            scored.append(score_set(each, embeddings, images=images_digest(each.images)))
    return scored if team.is_first else None


def score_saved(
    subject: Subject, words: Sequence[str], *, mirrored: bool | None = None
) -> list[PairScores]:
    """The pairs of each set scored by saved embeddings; of lists, the images need not be there."""
    assert subject.embeddings is not None
    saved = subject.read(subject.embeddings, mirrored=mirrored)
    return [_score_word(saved, word) for word in words]


def _score_word(saved: SavedEmbeddings, word: str) -> PairScores:
    if word == "synthetic":
        raise ValueError("the synthetic sets are embedded by a model; name one instead of a file")
    if not has_people(Path(word)) and Path(word).is_file() and Path(word).suffix != ".bin":
        return _score_list(saved, Path(word))
    (found,) = find_sets([word])
    if has_people(Path(word)):
        source = open_images(Path(word))
        names = [source.name(number) for number in range(len(source))]
        vectors, mirror = rows_of(saved, names)
    else:
        # The images of a .bin file have no names: pair i is images 2i and 2i+1.
        vectors, mirror = rows_of(
            replace(saved, names=None), [str(number) for number in range(len(found.images))]
        )
    return score_pairs(
        found.name,
        fold_mirror(np.asarray(vectors), mirror),
        found.pairs,
        found.same,
        found.folds,
        people=found.people,
    )


def _score_list(saved: SavedEmbeddings, path: Path) -> PairScores:
    listed = named_pairs(path)
    names, known = listed.images, saved
    if not any("." in name.rpartition("/")[2] for name in names):
        # LFW's lists name images without their ending.
        short = None if saved.names is None else [without_ending(name) for name in saved.names]
        known = replace(saved, names=short)
    if saved.names is None:
        raise ValueError(
            f"{saved.source} has no names, by which the pairs of {path} could be found; put one a "
            "line into a .txt beside it"
        )
    vectors, mirror = rows_of(known, names)
    return score_pairs(
        listed.name,
        fold_mirror(np.asarray(vectors), mirror),
        listed.pairs,
        listed.same,
        listed.folds,
        people=_people(known, names, listed.pairs, listed.same),
    )


def _people(
    saved: SavedEmbeddings,
    names: Sequence[str],
    pairs: np.ndarray[Any, np.dtype[np.int64]],
    same: np.ndarray[Any, np.dtype[np.bool_]],
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Who each image shows, as the names beside the embeddings say and every pair agrees."""
    if saved.people is None or saved.names is None:
        return None
    of_name = dict(zip(saved.names, saved.people.tolist(), strict=True))
    numbers = np.unique([of_name[name] for name in names], return_inverse=True)[1].astype(np.int64)
    agree = np.array_equal(numbers[pairs[:, 0]] == numbers[pairs[:, 1]], same)
    return numbers if agree else None
