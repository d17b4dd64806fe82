"""People from their first photo to their removal, with a real model and a real gallery."""

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2 import Recognizer
from sphereface2.data.sources.image_file import decode, read_image
from sphereface2.evaluation.embedding_files import read_embeddings
from sphereface2.galleries.gallery import Gallery, NewPhoto
from sphereface2.recognition.doctor import examine
from sphereface2.recognition.enrolment import people_of
from sphereface2.recognition.gate import Gate, sharpness
from sphereface2.recognition.moving import export, merge, migrate
from tests.recognition.conftest import Known
from tests.recognition.test_photos import photo


@pytest.fixture
def recognizer(known: Known) -> Recognizer:
    return known.recognizer()


@pytest.fixture
def gallery(recognizer: Recognizer, tmp_path: Path) -> Iterator[Gallery]:
    made = recognizer.open_gallery(tmp_path / "people", create=True)
    yield made
    made.close()


ANY = Gate.of(allow=["all"])


def test_enrolled_photos_are_there_with_their_crops_and_what_was_measured(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    photos = known.photos("Ada")
    done = recognizer.enroll("Ada", photos, gallery, gate=ANY, metadata={"team": "blue"})
    assert done.added == 4
    assert done.sentences() == ["Ada: 4 photos enrolled"]
    kept = gallery.photos("Ada")
    assert [each.source for each in kept] == [str(path) for path in photos]
    assert [outcome.id for outcome in done.photos] == [each.id for each in kept]
    rows = gallery.embeddings([each.id for each in kept])
    np.testing.assert_allclose(rows, recognizer.embed(photos), atol=1e-6)
    for each, path in zip(kept, photos, strict=True):
        assert np.array_equal(decode(gallery.crop(each.id), ""), read_image(path))
        assert each.facts["sharpness"] == round(sharpness(read_image(path)), 1)
    assert gallery.person("Ada").metadata == {"team": "blue"}
    # The same again adds nothing, and one that is given twice only once.
    again = recognizer.enroll("Ada", [*photos[:2], *known.photos("Ada", 5, 5)], gallery, gate=ANY)
    assert (again.added, gallery.count()) == (1, (1, 5))
    assert [each.again for each in again.photos] == [True, True, False, False]
    assert [each.code for each in again.photos[3].reasons] == ["twice"]
    # Removed and enrolled again they are there again, though the request is the same.
    gallery.remove("Ada")
    assert recognizer.enroll("Ada", photos, gallery, gate=ANY, keep_crops=False).added == 4
    assert gallery.count() == (1, 4)
    assert not gallery.crop(gallery.photos("Ada")[0].id)


def test_a_repeated_key_adds_nothing(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    one, other = known.photos("Ada", 0, 1)
    first = recognizer.enroll("Ada", [one], gallery, gate=ANY, key="k")
    second = recognizer.enroll("Ada", [other], gallery, gate=ANY, key="k")
    assert first.photos[0].id == second.photos[0].id
    assert gallery.count() == (1, 1)


def test_every_photo_that_is_left_out_has_its_reasons(
    known: Known, tmp_path: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    recognizer = Recognizer(known.model, kind="photo")
    gallery = recognizer.open_gallery(tmp_path / "people", create=True)
    small = np.asarray(cv2.resize(photo(rendered[0]), None, fx=0.3, fy=0.3), np.uint8)
    pictures = {
        "good": photo(rendered[0]),
        "two": photo(rendered[0], rendered[1]),
        "wall": np.full((90, 120, 3), 80, np.uint8),
        "blur": np.asarray(cv2.GaussianBlur(photo(rendered[0]), (0, 0), 3), np.uint8),
        "small": small,
    }
    paths = []
    for name, picture in pictures.items():
        paths.append(tmp_path / f"{name}.png")
        cv2.imwrite(str(paths[-1]), picture[..., ::-1])
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    done = recognizer.enroll("Ada", [*paths, tmp_path / "cut.jpg"], gallery)
    codes = {
        Path(each.photo).stem: {reason.code for reason in each.reasons} for each in done.photos
    }
    assert codes.pop("blur") >= {"blurred"}
    assert codes.pop("small") >= {"too_small"}
    assert codes.pop("two") >= {"several_faces"}
    assert codes == {"good": set(), "wall": {"no_face"}, "cut": {"unreadable"}}
    assert gallery.count() == (1, 1)
    assert len(done.sentences()) == 6
    assert json.loads(json.dumps(done.to_mapping()))["added"] == 1
    everything = recognizer.enroll("Ada", paths[1:2], gallery, gate=Gate.of(allow=["all"]))
    assert everything.added == 1
    gallery.close()


def test_wrong_photos_of_a_person_and_known_faces_are_left_out(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    gate = Gate.of(allow=["blurred"])
    recognizer.enroll("Ada", known.photos("Ada"), gallery, gate=gate)
    mixed = [*known.photos("Ben", 0, 1, 2), *known.photos("Cem", 0)]
    done = recognizer.enroll("Ben", mixed, gallery, gate=gate)
    assert [[reason.code for reason in each.reasons] for each in done.photos] == [
        [], [], [], ["unlike_others"],
    ]  # fmt: skip
    same = recognizer.enroll("Eva", known.photos("Ada", 4, 5), gallery, gate=gate)
    assert {reason.code for each in same.photos for reason in each.reasons} == {"same_as_another"}
    assert "Ada, who is enrolled already" in same.photos[0].words()
    assert [person.name for person in gallery.people()] == ["Ada", "Ben"]


def test_a_search_finds_the_person_by_all_of_their_photos(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    for person in ("Ada", "Ben", "Cem"):
        recognizer.enroll(person, known.photos(person), gallery, gate=ANY)
    (probe,) = known.photos("Ben", 5)
    found = recognizer.identify(probe, gallery)
    assert found.match is not None
    assert found.match.person == "Ben"
    assert len(found.candidates) == 3
    (embedding,) = recognizer.embed([probe])
    for each in found.candidates:
        cosines = recognizer.embed(known.photos(each.person)) @ embedding
        assert each.answer.score == pytest.approx(float(cosines.mean()), abs=1e-5)
        assert each.best == pytest.approx(float(cosines.max()), abs=1e-5)
    stranger = recognizer.identify(known.photos("Dora", 0)[0], gallery, people=1)
    assert stranger.match is None
    assert len(stranger.candidates) == 1
    # A face that was found already is taken as it is.
    (face,) = recognizer.find([probe])
    assert recognizer.identify(face, gallery).to_mapping() == found.to_mapping()
    one = recognizer.verify_person(probe, gallery, "Ben")
    assert one.accepted
    assert len(one.scores) == 4
    assert len(one.person) == 4
    assert one.answer.score == pytest.approx(found.candidates[0].answer.score)
    assert not recognizer.verify_person(probe, gallery, "Ada").accepted
    with pytest.raises(ValueError, match="nobody in this gallery is called 'Bne'"):
        recognizer.verify_person(probe, gallery, "Bne")


def test_an_empty_gallery_and_that_of_another_model_are_sentences(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    probe = known.photos("Ada")[0]
    with pytest.raises(ValueError, match="there is nobody in default yet"):
        recognizer.identify(probe, gallery)
    other = Recognizer(known.plain, kind="crop")
    for call in (
        lambda: other.identify(probe, gallery),
        lambda: other.enroll("Ada", [probe], gallery),
        lambda: other.reject(probe, None, gallery),
        lambda: other.verify_person(probe, gallery, "Ada"),
    ):
        with pytest.raises(ValueError, match="holds embeddings of the model"):
            call()
    without_mirror = Recognizer(known.model, kind="crop", flip=False)
    with pytest.raises(ValueError, match="holds embeddings of the model"):
        without_mirror.enroll("Ada", [probe], gallery)
    with pytest.raises(ValueError, match="at least 1"):
        recognizer.identify(probe, gallery, people=0)
    with pytest.raises(ValueError, match="no photo to enrol"):
        recognizer.enroll("Ada", [], gallery)


def test_rejected_faces_are_kept_once_and_never_the_persons_own(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    recognizer.enroll("Ada", known.photos("Ada"), gallery, gate=ANY)
    wrong = known.photos("Ben", 0)[0]
    first = recognizer.reject(wrong, "Ada", gallery)
    assert recognizer.reject(wrong, "Ada", gallery).id == first.id
    assert [each.source for each in gallery.negatives("Ada")] == [str(wrong)]
    with pytest.raises(ValueError, match=r"is the photo .* of Ada itself"):
        recognizer.reject(known.photos("Ada")[0], "Ada", gallery)
    recognizer.reject(wrong, None, gallery)
    assert len(gallery.negatives(None)) == 1
    done = recognizer.verify_person(wrong, gallery, "Ada")
    assert done.objection is not None
    assert "not learned from yet" in " ".join(done.sentences())
    assert done.to_mapping()["objection"]["negatives"] == 2


def test_a_folder_of_people_is_enrolled_and_resumes(
    known: Known, recognizer: Recognizer, gallery: Gallery, tmp_path: Path
) -> None:
    people = people_of(known.crops)
    assert list(people) == ["Ada", "Ben", "Cem", "Dora"]
    stopped: list[int] = []

    def stop(done: int, total: int) -> None:
        stopped.append(total)
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recognizer.enroll_people(people, gallery, gate=ANY, progress=stop)
    assert stopped == [24, 24]
    assert gallery.count() == (2, 12)
    done = recognizer.enroll_people(people, gallery, gate=ANY)
    assert [each.added for each in done] == [0, 0, 6, 6]
    assert gallery.count() == (4, 24)
    (tmp_path / "loose").mkdir()
    with pytest.raises(ValueError, match="a folder for each person"):
        people_of(tmp_path / "loose")


def test_the_doctor_finds_what_was_let_in(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    recognizer.enroll("Ada", known.photos("Ada"), gallery, gate=ANY)
    recognizer.enroll("Ben", [*known.photos("Ben", 0, 1, 2), *known.photos("Cem", 0)], gallery,
                      gate=ANY)  # fmt: skip
    recognizer.enroll("Eva", known.photos("Ada", 4, 5), gallery, gate=ANY)
    (face,) = recognizer.find(known.photos("Cem", 3))
    blurred = np.asarray(cv2.GaussianBlur(face.crop, (0, 0), 4), np.uint8)
    recognizer.enroll("Dora", [blurred, read_image(known.photos("Dora", 0)[0])], gallery, gate=ANY,
                      keep_crops=False)  # fmt: skip
    (left,) = recognizer.enroll("Zoe", known.photos("Dora", 4), gallery, gate=ANY).photos
    assert left.id is not None
    gallery.remove_photos([left.id])
    again = gallery.photos("Ada")[0]
    gallery.add("Ada", [NewPhoto(gallery.embeddings([again.id])[0], source="copy.png")])
    found = examine(gallery, recognizer.calibration, url="people", gate=Gate(blurred=20.0))
    kinds = {(each.kind, each.person, each.other) for each in found.findings}
    assert ("no_photos", "Zoe", None) in kinds
    assert ("duplicate", "Ada", None) in kinds
    assert ("unlike_others", "Ben", None) in kinds
    assert ("same_as_another", "Ada", "Eva") in kinds
    assert ("blurred", "Dora", None) in kinds
    repairs = {each.kind: each.repair for each in found.findings}
    assert repairs["no_photos"] == "sphereface2 gallery remove people Zoe"
    assert repairs["same_as_another"] == "sphereface2 gallery merge people Eva Ada"
    (odd,) = (
        each for each in found.findings if (each.kind, each.person) == ("unlike_others", "Ben")
    )
    assert odd.repair == f"sphereface2 gallery remove people --photo {odd.photos[0]}"
    assert odd.words.startswith(str(known.photos("Cem", 0)[0]))
    assert any("by chance" in note for note in found.notes)
    assert any("3 photos have no crop kept" in note for note in found.notes)
    json.dumps(found.to_mapping())
    # Without a calibration scores say nothing, and that is said.
    blind = examine(gallery, None, url="people", gate=Gate(blurred=20.0))
    assert {each.kind for each in blind.findings} == {"no_photos", "duplicate", "blurred"}
    assert "not calibrated" in blind.notes[0]
    # The repair of two names for one face.
    assert merge(gallery, "Eva", "Ada") == 2
    assert gallery.person("Ada").photos == 7
    assert not any(person.name == "Eva" for person in gallery.people())
    with pytest.raises(ValueError, match="cannot be merged with themselves"):
        merge(gallery, "Ada", "Ada")


def test_the_doctor_names_nobody_in_two_merges(
    known: Known, recognizer: Recognizer, gallery: Gallery
) -> None:
    for number, name in enumerate(("Ada", "Eva", "Ida", "Una")):
        recognizer.enroll(name, known.photos("Ada", number), gallery, gate=ANY)
    recognizer.enroll("Ben", known.photos("Ben"), gallery, gate=ANY)
    gate = Gate.of(allow=["blurred"])
    found = examine(gallery, recognizer.calibration, url="people", gate=gate).findings
    alike = [each for each in found if each.kind == "same_as_another"]
    assert len(alike) == 6  # every two of the four
    merges = [each.repair.split()[-2:] for each in alike if each.repair]
    assert sorted(name for names in merges for name in names) == ["Ada", "Eva", "Ida", "Una"]
    for each in alike:
        later = "ask the doctor again after the merge of " in each.words
        assert later == (each.repair == "")
    # The commands can be run one after the other, until nobody is there twice.
    for person, into in merges:
        merge(gallery, person, into)
    (last,) = examine(gallery, recognizer.calibration, url="people", gate=gate).findings
    merge(gallery, *last.repair.split()[-2:])
    assert not examine(gallery, recognizer.calibration, url="people", gate=gate).findings
    assert [each.photos for each in gallery.people()] == [4, 4]


def test_a_gallery_migrates_to_another_model_from_its_crops(
    known: Known, recognizer: Recognizer, gallery: Gallery, tmp_path: Path
) -> None:
    recognizer.enroll("Ada", known.photos("Ada"), gallery, gate=ANY, metadata={"a": 1})
    recognizer.enroll("Ben", known.photos("Ben"), gallery, gate=ANY)
    recognizer.enroll("Ben", known.photos("Ben", 5), gallery, gate=ANY, keep_crops=False)
    recognizer.enroll("Cem", known.photos("Cem", 0), gallery, gate=ANY, keep_crops=False)
    recognizer.reject(known.photos("Dora", 0)[0], None, gallery)
    other = Recognizer(known.plain, kind="crop")
    new = other.open_gallery(tmp_path / "new", create=True)

    def stop(done: int, total: int) -> None:
        assert total == 10
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate(gallery, new, other, progress=stop)
    assert new.count() == (1, 4)
    done = migrate(gallery, new, other)
    assert (done.people, done.photos, done.added, done.negatives) == (2, 8, 4, 1)
    assert done.without_crops == {"Ben": 1, "Cem": 1}
    assert new.person("Ada").metadata == {"a": 1}
    for person in ("Ada", "Ben"):
        kept = new.photos(person)
        rows = new.embeddings([each.id for each in kept])
        np.testing.assert_allclose(rows, other.embed(known.photos(person)), atol=1e-5)
    assert migrate(gallery, new, other).added == 0
    said = " ".join(done.sentences())
    assert "2 photos stayed behind" in said
    assert "Ben (1), Cem (1)" in said
    assert "1 face kept as 'not this person'" in said
    with pytest.raises(ValueError, match="is not one of the model"):
        migrate(gallery, gallery, other)
    new.close()


def test_an_export_is_read_as_saved_embeddings(
    known: Known, recognizer: Recognizer, gallery: Gallery, tmp_path: Path
) -> None:
    evil = "../../etc/passwd\u2028"
    recognizer.enroll("Ada", known.photos("Ada", 0, 1), gallery, gate=ANY)
    recognizer.enroll(evil, known.photos("Ben", 0), gallery, gate=ANY, keep_crops=False)
    assert export(gallery, tmp_path / "out") == 3
    saved = read_embeddings(tmp_path / "out" / "embeddings.npz", check_values=True)
    kept = gallery.photos()
    assert saved.names == [each.id for each in kept]
    assert saved.people is not None
    assert saved.people.tolist() == [each.person for each in kept]
    np.testing.assert_array_equal(saved.vectors, gallery.embeddings(saved.names))
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert names == {"embeddings.npz", "people.csv", "crops/000000.png", "crops/000001.png"}
    with pytest.raises(ValueError, match="already exists"):
        export(gallery, tmp_path / "out")
