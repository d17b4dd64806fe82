"""Photos of nobody in particular to people: every face found, embedded and grouped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sphereface2.datatools.group.clusters import cluster
from sphereface2.datatools.group.groups import FOLDER_KINDS, Groups, Threshold, present, publish
from sphereface2.datatools.group.people import GROUP, JOURNAL, Journal
from sphereface2.datatools.group.store import FaceStore
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import (
    DEFAULT_FALSE_ACCEPTS,
    one_in,
    ranked_impostors,
    threshold_for,
)
from sphereface2.evaluation.embedding_files import SUFFIXES, SavedEmbeddings
from sphereface2.files import printable
from sphereface2.models.embedder import folded_width
from sphereface2.models.folder import find_model, weights_digest
from sphereface2.recognition.photos import Kind
from sphereface2.recognition.recognizer import Recognizer, calibration_of
from sphereface2.registry import look_up
from sphereface2.workers import Watch, unwatched


def group_photos(
    source: Path,
    out: Path,
    *,
    model: Path | None = None,
    kind: Kind = "auto",
    detector: str = "mtcnn",
    options: Mapping[str, Any] | None = None,
    flip: bool | None = None,
    false_accepts: float | None = None,
    threshold: float | None = None,
    afresh: bool = False,
    folders: str | None = None,
    workers: int = 1,
    watch: Watch = unwatched,
) -> Groups:
    """Group the faces of a folder of photos, or saved embeddings, into `out`.

    Photos that `out` knows are not looked at again: new faces join the people who are there, or
    become new ones. With `afresh` all but the user's own merges, splits and names is decided again.

    false_accepts: see `default_false_accepts`; threshold: instead, a mean cosine
    folders: "link" or "copy": also write a folder of photos for each person
    """
    if threshold is not None and not -1 <= threshold <= 1:
        raise ValueError(f"a threshold is a cosine, from -1 to 1, got {threshold}")
    if folders is not None:
        look_up("kind of folders", {each: each for each in FOLDER_KINDS}, folders)
    _check_place(source, out)
    if source.is_file():
        saved, settings, calibration = _open_saved(source, model)
        if folders is not None:
            raise ValueError("folders of photos are for photos, not for saved embeddings")
        recognizer = None
    else:
        if model is None:
            raise ValueError("photos need a model that embeds their faces; give --model MODEL")
        recognizer = Recognizer(model, kind=kind, detector=detector, flip=flip)
        calibration = None if threshold is not None else recognizer.calibration
        finder = replace(recognizer.finder, options=dict(options or {}))
        if kind != "crop":
            finder.find_all(np.zeros((32, 32, 3), np.uint8))  # what it lacks is said at once
        settings = {
            "from": "photos",
            "model": recognizer.digest,
            "flip": recognizer.flip,
            "dim": recognizer.model.embedding_dim,
            "kind": kind,
            "detector": None if kind == "crop" else detector,
            "options": finder.options,
        }
    _check_decidable(out, calibration, false_accepts=false_accepts, threshold=threshold)
    with FaceStore(out, settings) as store, closing(Journal(out)) as journal:
        said = journal.take_edited_names()
        if recognizer is None:
            with watch("reading the embeddings") as progress:
                names = store.add_saved(saved, progress=progress)
        else:
            with watch("finding and embedding faces") as progress:
                names = store.add_photos(
                    source, recognizer, finder, workers=workers, progress=progress
                )
        faces = store.faces(names)
        if not faces:
            raise ValueError(_no_face(source, store))
        before = journal.last_group()
        chosen = _choose_threshold(
            before, calibration, len(faces), false_accepts=false_accepts, threshold=threshold
        )
        unit = store.unit(faces)
        people = journal.people
        with watch("grouping") as progress:
            groups = cluster(
                unit,
                chosen.value,
                people.constraints(faces),
                start=people.start(faces, afresh=afresh),
                progress=progress,
            )
        said += _record(journal, [[faces[row].number for row in group] for group in groups],
                        chosen, source, folders or (before or {}).get("folders"),
                        afresh=afresh)  # fmt: skip
        return publish(store, journal, said)


def regroup(out: Path, change: str, *words: Any) -> Groups:
    """Change what was grouped: "name", "merge", "split" or "undo", as `Journal` has them.

    Names that were edited in people.json are taken over first.
    """
    with FaceStore(out) as store, closing(Journal(out)) as journal:
        said = journal.take_edited_names()
        if journal.last_group() is None:
            raise ValueError(f"{printable(out)} was not finished; run `sphereface2 group` again")
        if change == "merge":
            photos = {face.number: face.photo for face in present(store, journal)[1]}
            said.append(journal.merge(list(words), photos))
        else:
            said.append(getattr(journal, change)(*words))
        return publish(store, journal, said)


def default_false_accepts(faces: int, calibration: Calibration) -> float:
    """1 in 1,000, and among more than 10,000 faces so few that ten strangers reach a face.

    To join a person the mean over all their faces must reach the threshold, which fewer do. Not
    rarer than the calibration resolves.
    """
    pairs = ranked_impostors(calibration).pairs
    return max(min(DEFAULT_FALSE_ACCEPTS, 10 / faces), 1 / pairs)


# -- what is asked for -----------------------------------------------------------------------------


def _check_place(source: Path, out: Path) -> None:
    if not source.exists():
        raise FileNotFoundError(
            f"there is no {printable(source)}; give a folder of photos, or saved embeddings "
            f"({', '.join(SUFFIXES)})"
        )
    if source.is_dir() and source.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(
            f"{printable(out)} lies in the folder of the photos, and would be grouped with them; "
            "give a folder outside"
        )


def _open_saved(
    source: Path, model: Path | None
) -> tuple[SavedEmbeddings, dict[str, Any], Calibration | None]:
    from sphereface2.evaluation.scoring import Subject
    from sphereface2.models.extraction import read_note

    saved, note = Subject(None, source, Path()).read(source), read_note(source)
    calibration = None
    if model is not None:
        folder = find_model(model)
        digest = weights_digest(folder)
        if note is not None and note["model"] != digest:
            raise ValueError(
                f"{printable(source)} was extracted with another model than {printable(folder)}; "
                "extract again, or give the model that it is of"
            )
        flip = None if note is None else note["flip"]
        calibration = calibration_of(folder, digest, flip=flip)
    width = folded_width(saved.vectors.shape[1], saved.mirror)
    named = None if note is None else note["model"]
    return saved, {"from": "embeddings", "model": named, "dim": width}, calibration


def _check_decidable(
    out: Path,
    calibration: Calibration | None,
    *,
    false_accepts: float | None,
    threshold: float | None,
) -> None:
    """Before the long work: that there will be a threshold."""
    if threshold is not None:
        if false_accepts is not None:
            raise ValueError("a threshold and a false accept rate exclude each other; give one")
    elif calibration is not None:
        threshold_for(calibration, false_accepts or 0.5)
    elif false_accepts is not None or not (out / JOURNAL).is_file():
        raise ValueError(
            "which faces are one person is decided by a calibrated model: sphereface2 calibrate "
            "MODEL --on SET, once, and --model MODEL; or give --threshold COSINE"
        )


def _choose_threshold(
    before: Mapping[str, Any] | None,
    calibration: Calibration | None,
    faces: int,
    *,
    false_accepts: float | None,
    threshold: float | None,
) -> Threshold:
    if threshold is not None:
        return Threshold(threshold, "as given")
    if false_accepts is None and before is not None:
        return Threshold(before["threshold"], before["words"], before["false_accepts"])
    if calibration is None:
        raise ValueError("the last run was not finished; give --threshold again")
    rate = default_false_accepts(faces, calibration) if false_accepts is None else false_accepts
    words = f"at most {one_in(rate)} false accepts on {calibration.set_name}"
    return Threshold(threshold_for(calibration, rate), words, rate)


def _no_face(source: Path, store: FaceStore) -> str:
    reasons = [photo.reason for photo in store.photos.values() if photo.reason]
    if reasons:
        return (
            f"there is no face in {printable(source)}, and {len(reasons):,} photos cannot be read, "
            f"the first because: {reasons[0]}"
        )
    return (
        f"there is no face in any of the {len(store.photos):,} photos of {printable(source)}; if "
        "they are aligned crops already, give --crops and a new folder"
    )


# -- what comes of it ------------------------------------------------------------------------------


def _record(
    journal: Journal,
    groups: Sequence[Sequence[int]],
    threshold: Threshold,
    source: Path,
    folders: str | None,
    *,
    afresh: bool,
) -> list[str]:
    """Write the people that were found into the journal; what changed, in words."""
    people = journal.people
    known = {who for face, who in people.person.items() if who}
    moves = people.moves_to(groups, afresh=afresh)
    journal.add(
        GROUP,
        moves=moves,
        threshold=threshold.value,
        words=threshold.words,
        false_accepts=threshold.false_accepts,
        source=str(source.resolve()),
        folders=folders,
        afresh=afresh,
    )
    if not known:
        return []
    new = sum(len(faces) for old, _, faces in moves if not old)
    joined = sum(len(faces) for old, to, faces in moves if not old and to in known)
    said = [f"{new:,} new faces, {joined:,} of them of people who were known"] if new else []
    for old, to, faces in moves:
        if old and to in known:
            said.append(f"{len(faces):,} faces of {people.called(old)} went to {people.called(to)}")
    return said
