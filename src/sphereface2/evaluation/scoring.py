"""The one scorer of verification sets: by an embedder, or by embeddings that were saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs import (
    is_pair_list,
    is_without_file,
    named_pairs,
    require_lists_for_root,
    sets_of_word,
)
from sphereface2.data.pairs.verification_set import (
    Missing,
    NamedPairs,
    VerificationSet,
    notes_on_pairs,
    without_ending,
)
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.data.sources.source import images_digest
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.embedding_files import (
    SavedEmbeddings,
    in_order,
    read_embeddings,
)
from sphereface2.evaluation.metrics import IntArray
from sphereface2.evaluation.pair_scores import PairScores, score_pairs
from sphereface2.models.embedder import Embedder, Mirror, Vectors, absent_rows, fold_mirror, prepare
from sphereface2.models.extraction import ModelEmbedder, read_names, read_note
from sphereface2.models.folder import stored_calibration
from sphereface2.training.distributed import current_team
from sphereface2.workers import Watch, unwatched


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, or saved embeddings, or both: then the embeddings must be the model's.

    output: the folder that gets what is extracted or gathered, and later the result
    missing: whether images without an embedding are a mistake or left out
    mirrored: whether a row of saved embeddings is [image | mirror image]
    """

    embedder: ModelEmbedder | None
    embeddings: Path | None
    output: Path
    watch: Watch = unwatched
    missing: Missing = "error"
    mirrored: bool | None = None

    def __post_init__(self) -> None:
        if self.embedder is None and self.embeddings is None:
            raise ValueError("there is nothing to judge: give a MODEL or --embeddings FILE")

    @property
    def name(self) -> str:
        """The name of the file, run or model folder that is judged."""
        if self.embeddings is None:
            assert self.embedder is not None
            return self.embedder.name
        path = self.embeddings.resolve()
        return path.parent.name if path.stem == "embeddings" else path.stem

    @property
    def label(self) -> str:
        """How tables call it: by its head where that is known."""
        return self.name if self.embedder is None else self.embedder.label

    def read(self, path: Path) -> SavedEmbeddings:
        """Saved embeddings, which must be the model's where one is given."""
        dim = None if self.embedder is None else self.embedder.model.embedding_dim
        saved = read_embeddings(path, dim=dim, mirrored=self.mirrored)
        note = read_note(path)
        if self.embedder is not None and note is not None and note["model"] != self.embedder.digest:
            raise ValueError(
                f"{path} was extracted with another model than {self.embedder.folder}; extract "
                "again, or leave the model out"
            )
        listed = read_names(path)
        if listed is None:
            return saved
        # Our own file has tabs: a name may hold blanks.
        names, people = listed
        if len(names) != len(saved.vectors):
            raise ValueError(
                f"{path.with_suffix('.txt')} has {len(names):,} names for "
                f"{len(saved.vectors):,} embeddings; extract again"
            )
        return replace(saved, names=names, people=None if people is None else np.array(people))

    def absent(self, vectors: Vectors) -> npt.NDArray[np.bool_]:
        """Which images have no embedding and are to be left out; none where that is a mistake."""
        if self.missing == "error":
            return np.zeros(len(vectors), np.bool_)
        absent = absent_rows(vectors)
        if absent.all():
            raise ValueError("none of the images has an embedding")
        return absent

    def flip_of(self, path: Path | None = None) -> bool | None:
        """Whether the mirror image was added at extraction; None where that is not known."""
        if path is None:
            return self.embedder.flip if self.embedder is not None else None
        note = read_note(path)
        return None if note is None else bool(note["flip"])

    def calibration(self) -> Calibration | None:
        """What the model's folder keeps, if anything; it holds for embeddings of its own `flip`."""
        stored = None if self.embedder is None else stored_calibration(self.embedder.folder)
        return None if stored is None else Calibration.from_mapping(stored)


def named_alike(saved: SavedEmbeddings, names: Sequence[str]) -> SavedEmbeddings:
    """With names like those of a list: LFW's lists name images without their ending."""
    if saved.names is None or any(is_image_file(name) for name in names):
        return saved
    return replace(saved, names=[without_ending(name) for name in saved.names])


def rows_of(
    saved: SavedEmbeddings, names: Sequence[str], *, missing: Missing = "error"
) -> tuple[Vectors, Mirror]:
    """The vectors in the order of `names`; embeddings without names must be in it already.

    With `missing` "skip", names without an embedding get NaN.
    """
    if saved.names is None:
        if len(saved.vectors) != len(names):
            raise ValueError(
                f"{saved.source} has {len(saved.vectors):,} embeddings for the {len(names):,} "
                "images of the list and no names; put one name per line into a .txt beside it"
            )
        return saved.vectors, saved.mirror
    saved = named_alike(saved, names)
    if list(saved.names or ()) == list(names):
        return saved.vectors, saved.mirror
    rows = in_order(saved, names, missing=missing)
    vectors = saved.vectors[rows]
    if (rows < 0).any():
        vectors[rows < 0] = np.nan
    return vectors, saved.mirror


def find_sets(
    words: Sequence[str], *, root: Path | None = None, missing: Missing = "error"
) -> list[VerificationSet]:
    """What each word means: a .bin file, a list of pairs, `synthetic`, or people to draw pairs of.

    root: where the images of lists of pairs lie
    missing: what becomes of images that are not there or cannot be read
    """
    require_lists_for_root(words, root)
    start = None if root is None else str(root)
    found = []
    for word in words:
        found += sets_of_word(word, root=start, missing=missing)
    names = [each.name for each in found]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"two sets are called {twice[0]}; rename one, or evaluate them apart")
    return found


def prepare_sets(
    sets: Sequence[VerificationSet], *, workers: int, watch: Watch = unwatched
) -> None:
    """Make the images of sets ready to be read, and check them."""
    for each in sets:
        with watch(f"preparing set {each.name}") as progress:
            prepare(each.images, each.missing, workers=workers, progress=progress)


def score_sets(
    embedder: Embedder,
    sets: Sequence[VerificationSet],
    *,
    watch: Watch = unwatched,
    digests: bool = True,
) -> list[PairScores]:
    """The pairs of each set scored by an embedder; the images are prepared.

    digests: whether the scores say which images they are of, so that they can be compared later
    """
    scored = []
    for each in sets:
        with watch(f"{embedder.action} {each.name}") as progress:
            embeddings = embedder.embed(each.images, missing=each.missing, progress=progress)
        scored.append(_scored(each, embeddings, digests=digests))
    return scored


def score_extracted(
    embedder: ModelEmbedder, sets: Sequence[VerificationSet], *, folder: Path
) -> list[PairScores] | None:
    """The pairs of each set scored by a model on all ranks; None on all ranks but the first.

    The embeddings are kept in `folder`: the same sets are not embedded twice.
    """
    is_first = current_team().is_first
    scored = []
    for each in sets:
        embeddings = embedder.extract(
            each.images, folder / f"{each.name}.npy", title=f"{embedder.action} {each.name}"
        )
        if is_first:
            scored.append(_scored(each, embeddings))
    return scored if is_first else None


def _scored(each: VerificationSet, embeddings: Vectors, *, digests: bool = True) -> PairScores:
    return score_pairs(
        each.name,
        embeddings,
        each.pairs,
        each.same,
        each.folds,
        people=each.people,
        images=images_digest(each.images) if digests else "",
        attributes=each.attributes,
        missing=each.missing,
    )


def score_saved(subject: Subject, words: Sequence[str]) -> list[PairScores]:
    """The pairs of each set scored by saved embeddings; of lists, the images need not be there."""
    assert subject.embeddings is not None
    saved = subject.read(subject.embeddings)
    return [_score_word(saved, word, subject.missing) for word in words]


def notes_on_saved(words: Sequence[str]) -> list[str]:
    """What is odd about the pairs of sets that saved embeddings are scored on."""
    notes = []
    for word in words:
        path = Path(word)
        lists = [named_pairs(path)] if is_pair_list(path) else find_sets([word], missing="skip")
        notes += [note for each in lists for note in notes_on_pairs(each)]
    return notes


def _score_word(saved: SavedEmbeddings, word: str, missing: Missing) -> PairScores:
    if is_without_file(word):
        raise ValueError(f"the {word} sets are embedded by a model; name one instead of a file")
    found: VerificationSet | NamedPairs
    if is_pair_list(Path(word)):
        found = named_pairs(Path(word))
        if saved.names is None:
            raise ValueError(
                f"{saved.source} has no names, by which the pairs of {word} could be found; put "
                "one per line into a .txt beside it"
            )
        vectors, mirror = rows_of(saved, found.images, missing=missing)
        people = _people(named_alike(saved, found.images), found)
    else:
        (found,) = find_sets([word], missing=missing)
        count, people = len(found.images), found.people
        name = getattr(found.images, "name", None)
        if name is not None:
            vectors, mirror = rows_of(saved, [name(n) for n in range(count)], missing=missing)
        else:
            vectors, mirror = _rows_of_bin(saved, word, count)
    return score_pairs(
        found.name,
        fold_mirror(np.asarray(vectors), mirror),
        found.pairs,
        found.same,
        found.folds,
        people=people,
        missing=missing,
    )


def _rows_of_bin(saved: SavedEmbeddings, word: str, images: int) -> tuple[Vectors, Mirror]:
    """The images of a .bin file have no names: a row each, in its order (2i, 2i+1 are pair i)."""
    if saved.names is not None:
        raise ValueError(
            f"{saved.source} has the names of its images, but those of {word} have none to be "
            f"found by; if its rows are in the order of {word} take the names away, else use the "
            f"embeddings that 'sphereface2 evaluate MODEL --on {word}' keeps"
        )
    if len(saved.vectors) != images:
        raise ValueError(
            f"{saved.source} has {len(saved.vectors):,} embeddings, but {word} has {images:,} "
            "images, which have no names: it takes one row each, in their order"
        )
    return saved.vectors, saved.mirror


def _people(saved: SavedEmbeddings, listed: NamedPairs) -> IntArray | None:
    """Who each image shows, as the names beside the embeddings say and every pair agrees."""
    if saved.people is None or saved.names is None:
        return None
    names, pairs, same = listed.images, listed.pairs, listed.same
    of_name = dict(zip(saved.names, saved.people.tolist(), strict=True))
    people = [of_name.get(name, "") for name in names]
    numbers = np.unique(people, return_inverse=True)[1].astype(np.int64)
    # An image without an embedding has nobody's name here, and its pairs are not scored.
    named = np.array([name in of_name for name in names])[pairs].all(axis=1)
    agree = np.array_equal((numbers[pairs[:, 0]] == numbers[pairs[:, 1]])[named], same[named])
    return numbers if agree else None
