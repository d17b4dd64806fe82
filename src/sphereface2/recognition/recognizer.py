"""A model that answers about photos: their embeddings, and whether they show one person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import encode
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import Answer, decide
from sphereface2.faces.face import TEMPLATE_SIZE
from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import (
    Gallery,
    Negative,
    NewPhoto,
    check_name,
    embeddings_of,
    photos_of,
)
from sphereface2.models.folder import find_model, load_model, stored_calibration, weights_digest
from sphereface2.recognition.answers import (
    Identification,
    Rule,
    Verification,
    candidate,
    faces_of,
    share_out,
)
from sphereface2.recognition.enrolment import Enrolment, Looked, PhotoOutcome, add_once, look_at
from sphereface2.recognition.gate import Gate
from sphereface2.recognition.photos import FaceFinder, FoundFace, Kind, Photo, require_list
from sphereface2.recognition.rejection import object_to
from sphereface2.workers import Progress, unseen

_SCORED = 10  # candidates of a search, at least, that share the probability
_SHOWN = 5  # of a person's faces, in a picture
SAME_PHOTO = 0.9999
"""The cosine from which on two embeddings are of one photo."""


def calibration_of(folder: Path, digest: str, *, flip: bool | None) -> Calibration | None:
    """What is stored in a model's folder; None if nothing, and refused if of another network."""
    stored = stored_calibration(folder)
    if stored is None:
        return None
    calibration = Calibration.from_mapping(stored)
    calibration.require_model(digest, flip=flip)
    return calibration


class Recognizer:
    """The model of a run or model folder, ready for photos; torch is needed only for torch models.

        recognizer = Recognizer("runs/own-faces")
        answer = recognizer.verify("a.jpg", "b.jpg").answer
        print(answer.accepted, answer.probability, answer.false_accepts)

    kind, choose, detector: how the face of a photo is found (`recognition.photos.FaceFinder`)
    flip: whether the mirror image's embedding is added; by default as the folder says
    """

    def __init__(
        self,
        path: Path | str,
        *,
        kind: Kind = "auto",
        choose: str = "prominent",
        detector: str = "mtcnn",
        flip: bool | None = None,
    ) -> None:
        self.folder = find_model(path)
        self.model = load_model(self.folder)
        self.flip = self.model.flip if flip is None else flip
        size = max(TEMPLATE_SIZE, self.model.preprocessing.input_size)
        self.finder = FaceFinder(kind, choose, detector, size)

    @cached_property
    def digest(self) -> str:
        """Stands for the network: embeddings of another digest cannot be compared with these."""
        return weights_digest(self.folder)

    @cached_property
    def calibration(self) -> Calibration | None:
        """What `sphereface2 calibrate` has stored; None if nothing."""
        return calibration_of(self.folder, self.digest, flip=self.flip)

    def find(self, photos: Sequence[Photo]) -> list[FoundFace]:
        """The face of each photo; a ValueError or FileNotFoundError for one that has none."""
        require_list(photos)
        return [self.finder.find(photo, number=n) for n, photo in enumerate(photos, start=1)]

    def embed(self, photos: Sequence[Photo]) -> NDArray[np.float32]:
        """Unit embeddings (N, D) of N photos: paths, uint8 RGB arrays or pictures of Pillow.

        The cosine of two photos is the product of their rows: `embeddings @ embeddings.T`.
        """
        return self.embed_faces(self.find(photos))

    def embed_faces(self, faces: Sequence[FoundFace]) -> NDArray[np.float32]:
        """Unit embeddings (N, D) of faces that were found."""
        return self.model.embed([face.crop for face in faces], flip=self.flip)

    def verify(
        self,
        photo: Photo,
        person: Photo | Sequence[Photo],
        *,
        false_accepts: float | None = None,
        prior: float | None = None,
    ) -> Verification:
        """Whether a photo shows the person of another photo, or of a list of photos.

        false_accepts: the share of pairs of different people that may be accepted; 0.001 if not
            given
        prior: how many of the pairs that you compare are one person; the calibration's own if not
            given

        Of several photos the score is the mean of the cosines. It scatters less than that of one
        pair, so the false accepts that the calibration states for one pair are at least those.
        """
        known = list(person) if isinstance(person, list | tuple) else [person]
        if not known:
            raise ValueError("there is no photo of the person to compare with")
        found = self.find([photo, *known])
        embeddings = self.embed_faces(found)
        answer, scores = self._judge(embeddings[1:] @ embeddings[0], false_accepts, prior)
        return Verification(answer, scores, found[0], tuple(found[1:]), self.digest)

    def _judge(
        self, cosines: NDArray[np.floating], false_accepts: float | None, prior: float | None
    ) -> tuple[Answer, tuple[float, ...]]:
        """The answer for the mean of some cosines, and these."""
        scores = np.clip(cosines, -1.0, 1.0)
        mean = float(scores.mean())
        answer = decide(mean, self.calibration, false_accepts=false_accepts, prior=prior)
        return answer, tuple(float(score) for score in scores)

    # With people who are enrolled.

    @property
    def fingerprint(self) -> str:
        """Stands for how photos become embeddings: the network, and whether mirror images count.

        A gallery keeps it, and is refused where it is another.
        """
        return self.digest + ("" if self.flip else "-no-flip")

    def open_gallery(
        self, url: Path | str, *, collection: str = "default", create: bool = False
    ) -> Gallery:
        """A gallery of this model's embeddings; one of another model's is refused.

        create: make it if it is not there
        """
        return open_gallery(
            str(url),
            collection=collection,
            model=self.fingerprint,
            dim=self.model.embedding_dim,
            create=create,
        )

    def verify_person(
        self,
        photo: Photo,
        gallery: Gallery,
        name: str,
        *,
        false_accepts: float | None = None,
        prior: float | None = None,
    ) -> Verification:
        """Whether a photo shows somebody who is enrolled, by all of their photos; as `verify`."""
        self._require_own(gallery)
        name = gallery.person(name).name
        kept = gallery.photos(name)
        if not kept:
            raise ValueError(f"{name} has no photo in {gallery.name} to compare with; enrol some")
        (found,) = self.find([photo])
        (embedding,) = self.embed_faces([found])
        cosines = gallery.embeddings([each.id for each in kept]) @ embedding
        answer, scores = self._judge(cosines.astype(np.float64), false_accepts, prior)
        return Verification(
            answer,
            scores,
            found,
            tuple(faces_of(gallery, name, most=_SHOWN)),
            self.digest,
            name,
            object_to(gallery, name, embedding, threshold=answer.threshold),
        )

    def identify(
        self,
        photo: Photo,
        gallery: Gallery,
        *,
        false_alarms: float | None = None,
        false_accepts: float | None = None,
        people: int = 3,
        prior: float | None = None,
    ) -> Identification:
        """Who of a gallery a photo shows.

        false_alarms: the share of searches for a stranger that may find somebody; or
        false_accepts: the share of pairs of different people that may be accepted. Without either
            1 in 100 searches, or the fewest that the calibration resolves
        people: how many candidates to name
        prior: the share of those searched for who are enrolled; the calibration's own if not given

        A search finds people by the best of their photos; they are then scored by the mean over all
        of them, as in `verify`.
        """
        if people < 1:
            raise ValueError(f"people must be at least 1, got {people}")
        self._require_own(gallery)
        known, photos = gallery.count()
        if photos == 0:
            raise ValueError(f"there is nobody in {gallery.name} yet; enrol somebody first")
        rule = Rule.of(self.calibration, known, alarms=false_alarms, false_accepts=false_accepts)
        (found,) = self.find([photo])
        embeddings = self.embed_faces([found])
        (hits,) = gallery.search(embeddings, people=max(people, _SCORED))
        (embedding,) = embeddings
        candidates = []
        for hit in hits:
            scores = np.clip(embeddings_of(gallery, hit.person) @ embedding, -1.0, 1.0).tolist()
            candidates.append(candidate(hit.person, scores, rule, self.calibration, prior=prior))
        named = share_out(candidates, known, self.calibration)[:people]
        judged = (
            replace(
                each,
                objection=object_to(
                    gallery, each.person, embedding, threshold=each.answer.threshold
                ),
            )
            for each in named
        )
        return Identification(tuple(judged), rule, found, gallery.name, self.digest)

    def enroll(
        self,
        person: str,
        photos: Sequence[Photo],
        gallery: Gallery,
        *,
        gate: Gate | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        keep_crops: bool = True,
    ) -> Enrolment:
        """Add photos to a person, who is made if new; those that the gate lets through, at once.

        gate: which photos are good enough; `Gate()` if not given
        metadata: of a new person
        key: a request repeated with the same key adds nothing; made of the photos if not given
        keep_crops: keep the aligned faces, from which `migrate` embeds them by another model

        A photo of the person that is there already, by the bytes of its file, is not added again.
        """
        require_list(photos)
        if not photos:
            raise ValueError("there is no photo to enrol")
        self._require_own(gallery)
        person = check_name(person)
        gate = gate or Gate()
        there = {str(each.facts.get("digest")): each.id for each in photos_of(gallery, person)}
        looked = look_at(photos, self.finder, gate, there)
        good = [each for each in looked if each.outcome is None]
        faces = [each.face for each in good if each.face is not None]
        taken: list[Looked] = []
        new: list[NewPhoto] = []
        if faces:
            rows = self.embed_faces(faces)
            judged = gate.compare(person, rows, gallery, self.calibration)
            for each, face, row, reasons in zip(good, faces, rows, judged, strict=True):
                if reasons:
                    each.refuse(*reasons)
                    continue
                assert each.quality is not None
                facts = {**each.quality.to_mapping(), "digest": each.digest}
                crop = encode(face.crop, ".png") if keep_crops else b""
                new.append(NewPhoto(row, crop, face.photo, facts))
                taken.append(each)
        if taken:
            digests = [each.digest for each in taken]
            ids = add_once(gallery, person, new, metadata=metadata, key=key, digests=digests)
            for each, photo_id in zip(taken, ids, strict=True):
                each.outcome = PhotoOutcome(each.photo, photo_id, (), each.quality)
        return Enrolment(
            person,
            tuple(each.outcome for each in looked if each.outcome is not None),
            gallery.name,
            self.digest,
            tuple(gate.unchecked(self.calibration)),
        )

    def enroll_people(
        self,
        people: Mapping[str, Sequence[Photo]],
        gallery: Gallery,
        *,
        gate: Gate | None = None,
        keep_crops: bool = True,
        progress: Progress = unseen,
    ) -> list[Enrolment]:
        """Enrol everybody; photos that an earlier, interrupted run has added are passed over."""
        total = sum(len(photos) for photos in people.values())
        done: list[Enrolment] = []
        for person, photos in people.items():
            done.append(self.enroll(person, photos, gallery, gate=gate, keep_crops=keep_crops))
            progress(sum(len(each.photos) for each in done), total)
        return done

    def reject(
        self, photo: Photo, person: str | None, gallery: Gallery, *, key: str | None = None
    ) -> Negative:
        """Keep a face as not this person, or with None as a stranger to all.

        From `LEAST_NEGATIVES` of them on, decisions about the person learn from it where that does
        better (`recognition.rejection`). `gallery.remove_negative(id)` undoes it.
        """
        self._require_own(gallery)
        (found,) = self.find([photo])
        (embedding,) = self.embed_faces([found])
        if person is not None:
            person = gallery.person(person).name
            for kept, row in zip(
                gallery.photos(person), embeddings_of(gallery, person), strict=True
            ):
                if row @ embedding > SAME_PHOTO:
                    raise ValueError(
                        f"{found.photo} is the photo {kept.id} of {person} itself; if it shows "
                        f"somebody else, remove it (sphereface2 gallery remove GALLERY --photo "
                        f"{kept.id})"
                    )
        for negative in gallery.negatives(person):
            if negative.embedding @ embedding > SAME_PHOTO:
                return negative
        made = gallery.add_negative(person, embedding, source=found.photo, key=key)
        return next(each for each in gallery.negatives(person) if each.id == made)

    def _require_own(self, gallery: Gallery) -> None:
        if gallery.model != self.fingerprint:
            raise ValueError(
                f"the gallery {gallery.name} holds embeddings of the model {gallery.model[:12]}, "
                f"not of {self.folder} ({self.fingerprint[:12]}); use that model, or migrate "
                "(sphereface2 gallery migrate GALLERY NEW --model MODEL)"
            )
