"""The one scorer of verification sets: by an embedder, or by embeddings that were saved.

The sets are those that words after --on mean, or that the config of a run names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.config.schema import Choice, RunConfig
from sphereface2.data.pairs import (
    is_pair_list,
    is_without_file,
    named_pairs,
    require_lists_for_root,
    sets_of_choice,
    sets_of_word,
)
from sphereface2.data.pairs.drawn import SetAside
from sphereface2.data.pairs.verification_set import (
    Missing,
    NamedPairs,
    VerificationSet,
    notes_on_pairs,
    notes_on_trained,
)
from sphereface2.data.sources.source import Source, images_digest, layer_of
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.embedding_files import (
    SavedEmbeddings,
    named_alike,
    read_embeddings,
    rows_of,
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
            f"{saved.source} has the names of its images, but those of {word} have none; "
            f"if its rows are in the order of {word}, remove the names, or else use the "
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


# -- the sets that the config of a run names -------------------------------------------------------


def build_sets(
    config: RunConfig, *, missing: Missing | None = None, watch: Watch = unwatched
) -> list[VerificationSet]:
    """The sets that the config names, their images ready to be read.

    missing: what becomes of images that cannot be read, where the set does not say it itself
    """
    if not config.evaluation.sets:
        raise ValueError(
            "the config names no verification set; give one with --on SET, or to the config as "
            "'evaluation.sets=[{name: pairs, path: pairs.txt}]'"
        )
    return _prepared("sets", config, missing=missing, watch=watch)


def build_choice_sets(config: RunConfig, source: Source, *, watch: Watch) -> list[VerificationSet]:
    """The sets on which the step to export is chosen; `source` is what is trained on, prepared."""
    sets = _prepared("choose_on", config, watch=watch)
    aside = layer_of(source, SetAside)
    return sets if aside is None else [*sets, aside.verification_set()]


def _prepared(
    part: Literal["sets", "choose_on"],
    config: RunConfig,
    *,
    watch: Watch,
    missing: Missing | None = None,
) -> list[VerificationSet]:
    choices: list[Choice] = getattr(config.evaluation, part)
    sets = [
        each
        for number, choice in enumerate(choices)
        for each in sets_of_choice(
            choice.name, choice.options, key=f"evaluation.{part}.{number}", missing=missing
        )
    ]
    prepare_sets(sets, workers=config.training.workers, watch=watch)
    return sets


def notes_on_sets(
    sets: Sequence[VerificationSet], *, data: Mapping[str, Any] | None = None
) -> list[str]:
    """What is odd about sets, also in view of the `data` of a config that was trained on."""
    notes = [note for each in sets for note in notes_on_pairs(each)]
    path = None if data is None else data.get("path")
    return notes if path is None else [*notes_on_trained(Path(str(path)), sets), *notes]


def refuse_shared_people(config: RunConfig) -> None:
    """A ValueError where `evaluation.choose_on` names what is reported or trained on.

    `config` is resolved.
    """
    for choice in config.evaluation.choose_on:
        path = _shared_path(choice, config.data)
        if path:
            raise ValueError(
                f"evaluation.choose_on shows the people who are trained on ({path}), on whom every "
                "later step looks better; give others, or set some of them aside with "
                "evaluation.set_aside=0.02"
            )
        for other in config.evaluation.sets:
            hint = _shared(choice, other)
            if hint:
                raise ValueError(
                    "evaluation.choose_on shows people of evaluation.sets, so that the step would "
                    f"be chosen on what is reported; {hint}"
                )


def _shared(choice: Choice, other: Choice) -> str:
    """What to do about people whom two choices share; nothing where they share none."""
    ours, theirs = choice.options, other.options
    if choice.name == other.name == "synthetic":
        behind = theirs["first_person"] + 4 * theirs["people"]
        apart = ours["first_person"] >= behind or (
            ours["first_person"] + 4 * ours["people"] <= theirs["first_person"]
        )
        is_shared = ours["seed"] == theirs["seed"] and not apart
        return f"give those after them, as first_person: {behind}" if is_shared else ""
    path = _shared_path(choice, other)
    return f"give others than {path}, or leave it out of one of the two" if path else ""


def _shared_path(choice: Choice, other: Choice) -> str:
    ours, theirs = (each.options.get("path") for each in (choice, other))
    is_shared = ours and theirs and Path(ours).resolve() == Path(theirs).resolve()
    return str(ours) if is_shared else ""
