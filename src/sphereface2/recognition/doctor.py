"""What is wrong with the people of a gallery, and the command that repairs it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sphereface2.data.sources.image_file import decode
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import (
    false_accepts_for,
    low_genuine,
    ranked_impostors,
    resolvable,
    threshold_for,
)
from sphereface2.evaluation.thresholds import beside, in_figures
from sphereface2.galleries.gallery import Embeddings, Gallery, KeptPhoto
from sphereface2.recognition.gate import Gate, Quality, Reason, outliers, sharpness
from sphereface2.recognition.recognizer import SAME_PHOTO
from sphereface2.workers import Progress, counted, unseen

_ROWS = 1024  # people compared with all others at once


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    kind: a code of `Gate`, or no_photos, duplicate, no_crop
    photos: the ids concerned; other: the second person, where there is one
    repair: the command that does it, which takes something away: look first; empty where the
        repair of another finding goes first
    """

    kind: str
    person: str
    words: str
    photos: tuple[str, ...] = ()
    other: str | None = None
    value: float | None = None
    limit: float | None = None
    repair: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings; notes: what could not be looked at, and how much is chance."""

    gallery: str
    people: int
    photos: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def examine(
    gallery: Gallery,
    calibration: Calibration | None,
    *,
    url: str,
    collection: str = "default",
    gate: Gate | None = None,
    progress: Progress = unseen,
) -> Diagnosis:
    """Look at all people of a gallery, by the limits of an enrolment.

    calibration: of the gallery's model; without one, scores say nothing and are not looked at
    url, collection: of the gallery, for the commands
    """
    gate = gate or Gate()
    where = (url,) if collection == "default" else (url, "--collection", collection)
    notes = gate.unchecked(calibration)
    people = gallery.people()
    findings: list[Finding] = []
    means: list[Embeddings] = []
    named: list[str] = []
    crops = 0
    for number, person in enumerate(people):
        kept = gallery.photos(person.name)
        if not kept:
            repair = _command("remove", where, person.name)
            findings.append(Finding("no_photos", person.name, "has no photo", repair=repair))
        else:
            rows = gallery.embeddings([each.id for each in kept])
            means.append(rows.mean(axis=0))
            named.append(person.name)
            findings += _duplicates(kept, rows, where)
            for photo in kept:
                crop = gallery.crop(photo.id)
                crops += bool(crop)
                findings += _by_itself(photo, crop, gate, where)
            if calibration is not None and gate.unlike_others is not None:
                findings += _unlike(kept, rows, low_genuine(calibration, gate.unlike_others), where)
        progress(number + 1, len(people))
    if calibration is not None and gate.same_as_another is not None and len(named) > 1:
        rate = resolvable(calibration, false_accepts_for(gate.same_as_another, len(named)))
        limit = threshold_for(calibration, rate)
        pairs = len(named) * (len(named) - 1) // 2
        findings += _same_faces(named, np.stack(means), limit, where)
        pairs_known = ranked_impostors(calibration).pairs
        notes.append(
            f"two people who are one: of {counted(pairs, 'pair')} of people, up to about "
            f"{max(1, round(rate * pairs)):,} reach {in_figures(limit)} by chance (false accepts 1 "
            f"in {1 / rate:,.0f}; the calibration has {pairs_known:,} pairs of different people); "
            "look at their faces before you merge them"
        )
    total = sum(person.photos for person in people)
    if crops < total:
        notes.append(
            f"{counted(total - crops, 'photo has', 'photos have')} no crop kept: they cannot be "
            "looked at again, nor migrated to another model"
        )
    return Diagnosis(gallery.name, len(people), total, tuple(findings), tuple(notes))


def _by_itself(
    photo: KeptPhoto, crop: bytes, gate: Gate, where: Sequence[str]
) -> Iterator[Finding]:
    quality = Quality.from_facts(photo.facts)
    if quality is None:
        if not crop:
            return
        quality = Quality(sharpness(decode(crop, photo.id)))
    for reason in gate.look(quality):
        yield _of_photo(photo, reason, where)


def _unlike(
    kept: Sequence[KeptPhoto], rows: Embeddings, limit: float, where: Sequence[str]
) -> Iterator[Finding]:
    for number, score in outliers(rows, rows[:0], limit).items():
        shown, least = beside(score, limit)
        words = (
            f"it is unlike the person's other photos, its mean score with them is {shown} (limit "
            f"{least})"
        )
        yield _of_photo(kept[number], Reason("unlike_others", words, score, limit), where)


def _duplicates(
    kept: Sequence[KeptPhoto], rows: Embeddings, where: Sequence[str]
) -> Iterator[Finding]:
    """Photos of a person that are the same as an earlier one of theirs."""
    cosines = rows @ rows.T
    for number in range(1, len(kept)):
        first = int(np.argmax(cosines[number, :number] > SAME_PHOTO))
        if cosines[number, first] > SAME_PHOTO:
            words, score = f"it is the same photo as {_called(kept[first])}", cosines[number, first]
            reason = Reason("duplicate", words, float(score), SAME_PHOTO)
            found = _of_photo(kept[number], reason, where)
            yield replace(found, photos=(*found.photos, kept[first].id))


def _same_faces(
    people: Sequence[str], means: Embeddings, limit: float, where: Sequence[str]
) -> Iterator[Finding]:
    """Pairs of people whose photos score this high on average: mean · mean is that mean.

    Each person is in one merge at most: it takes a name away and changes the mean of the other, so
    whether a third is the same shows only afterwards.
    """
    found: list[tuple[float, int, int]] = []
    for start in range(0, len(people), _ROWS):
        scores = means[start : start + _ROWS] @ means[start:].T
        # Each pair once: only columns behind the row's own.
        above = np.argwhere(np.triu(scores >= limit, k=1))
        found += [(float(scores[i, j]), start + int(i), start + int(j)) for i, j in above]
    merged: set[int] = set()
    for score, one, other in sorted(found, reverse=True):
        shown, most = beside(score, limit)
        words = (
            f"has the face of {people[other]}: their photos score {shown} with each other on "
            f"average (limit {most})"
        )
        repair = ""
        if first := merged & {one, other}:
            names = " and ".join(people[each] for each in sorted(first))
            words += f"; ask the doctor again after the merge of {names}"
        else:
            merged |= {one, other}
            repair = _command("merge", where, people[other], people[one])
        yield Finding(
            "same_as_another", people[one], words, (), people[other], score, limit, repair
        )


def _of_photo(photo: KeptPhoto, reason: Reason, where: Sequence[str]) -> Finding:
    """What is wrong with one photo, which removing it repairs."""
    words = f"{_called(photo)}: {reason.words}"
    repair = _command("remove", (*where, "--photo", photo.id))
    value, limit = reason.value, reason.limit
    return Finding(reason.code, photo.person, words, (photo.id,), None, value, limit, repair)


def _called(photo: KeptPhoto) -> str:
    return photo.source or photo.id


def _command(verb: str, where: Sequence[str], *names: str) -> str:
    # A name may begin with a hyphen and yet not be an option.
    divider = ["--"] if any(name.startswith("-") for name in names) else []
    return shlex.join(["sphereface2", "gallery", verb, *where, *divider, *names])
