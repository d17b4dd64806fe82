"""enroll, identify, verify --gallery and gallery on the command line, good input and bad."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import cv2
import pytest
from typer.testing import CliRunner

from sphereface2.cli import app
from sphereface2.data.sources.image_file import read_image
from sphereface2.galleries import open_gallery
from tests.recognition.conftest import Known, Picture
from tests.recognition.conftest import known as known
from tests.recognition.test_photos import photo
from tests.recognition.test_recognizer import BAD, refused, run


@pytest.fixture(scope="module")
def filled(known: Known, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of three people, made on the command line."""
    place = tmp_path_factory.mktemp("galleries") / "people"
    for person in ("Ada", "Ben", "Cem"):
        words = ["--gallery", place, "--model", known.model, "--crops", "--allow", "blurred"]
        done = run("enroll", person, *known.photos(person), *words)
        assert done.stdout == f"{person}: 4 photos enrolled\n"
    return place


@pytest.fixture
def gallery(filled: Path, tmp_path: Path) -> Path:
    """A copy to change, without the journal that a process with `filled` open may keep."""
    copy = Path(shutil.copytree(filled, tmp_path / "people"))
    with closing(sqlite3.connect(copy / "default" / "people.sqlite")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return copy


@pytest.mark.usefixtures("drawn_figures")
def test_who_is_it_in_words_json_and_a_picture(known: Known, filled: Path, tmp_path: Path) -> None:
    probe, stranger = known.photos("Ben", 5)[0], known.photos("Dora", 0)[0]
    words = ["--gallery", filled, "--model", known.model, "--crops"]
    picture = tmp_path / "answer.png"
    said = run("identify", probe, *words, "--show", picture).stdout.splitlines()
    assert said[0].startswith("Ben: the score ")
    assert said[-1] == f"picture: {picture}"
    assert read_image(picture).shape[1] == 1080
    both = run("identify", probe, stranger, *words, "--json", "--people", "2").stdout
    first, second = json.loads(both)
    assert (first["person"], second["person"]) == ("Ben", None)
    assert len(first["candidates"]) == 2
    assert first["candidates"][0]["false_alarms"]["interval"]["high"] < 1
    asked = ["--false-alarms", "1 in 10 searches", "--prior", "0.2"]
    said = run("identify", probe, *words, *asked).stdout.splitlines()
    assert "at most 1 in 10 searches for a stranger among 3 people is a false alarm" in said[0]
    assert "20% of the people you search for" in said[1]
    said = run("identify", probe, *words, "--false-accepts", "1e-3").stdout.splitlines()
    assert "at most 1 in 1,000 false accepts" in said[0]
    assert "cannot tell" in refused("identify", probe, *words, "--false-alarms", "1e-6")


def test_several_photos_are_all_answered_though_one_is_bad(
    known: Known, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no")
    words = ["identify", tmp_path / "bad.jpg", known.photos("Ada", 5)[0], "--gallery", filled]
    words += ["--model", known.model, "--crops", "--json"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 2
    bad, good = json.loads(done.stdout)
    assert "bad.jpg" in bad["error"]
    assert good["person"] == "Ada"


def test_verify_against_an_enrolled_person(known: Known, filled: Path, tmp_path: Path) -> None:
    words = ["--gallery", filled, "--model", known.model, "--crops"]
    probe = known.photos("Ada", 5)[0]
    said = run("verify", probe, *words, "--person", "Ada", "--show", tmp_path / "a.png").stdout
    assert said.startswith("SAME PERSON")
    assert "the mean over the person's photos" in said
    answer = json.loads(run("verify", probe, *words, "--person", "Ben", "--json").stdout)
    assert (answer["accepted"], answer["person"]) == (False, "Ben")
    assert "nobody in this gallery is called 'Bem'" in refused(
        "verify", probe, *words, "--person", "Bem"
    )


def test_people_are_listed_shown_renamed_merged_and_removed(known: Known, gallery: Path) -> None:
    assert run("gallery", "list", gallery).stdout.splitlines()[0] == "Ada  4 photos"
    people = json.loads(run("gallery", "list", gallery, "--json").stdout)
    assert [person["name"] for person in people] == ["Ada", "Ben", "Cem"]
    shown = json.loads(run("gallery", "show", gallery, "Ada", "--json").stdout)
    assert len(shown["photos"]) == 4
    assert "sharpness" in run("gallery", "show", gallery, "Ada").stdout
    run("gallery", "remove", gallery, "--photo", shown["photos"][0]["id"])
    run("gallery", "rename", gallery, "Ada", "Ada Lovelace")
    assert "7 photos" not in run("gallery", "show", gallery, "Ada Lovelace").stdout
    run("gallery", "merge", gallery, "Ada Lovelace", "Ben")
    assert "Ben: 7 photos" in run("gallery", "show", gallery, "Ben").stdout
    assert "removed" in run("gallery", "remove", gallery, "Cem").stdout
    assert run("gallery", "list", gallery).stdout.splitlines()[0] == "Ben  7 photos"
    assert "nobody in this gallery is called 'Cem'" in refused("gallery", "remove", gallery, "Cem")


def test_a_face_is_rejected_and_that_is_undone(known: Known, gallery: Path) -> None:
    words = ["--model", known.model, "--crops"]
    faces = known.photos("Dora", 0, 1)
    done = run("gallery", "reject", gallery, *faces, *words, "--person", "Ada", "--json")
    first, second = json.loads(done.stdout)
    assert first["person"] == "Ada"
    assert f"not this person: {first['id']}" in run("gallery", "show", gallery, "Ada").stdout
    said = run("gallery", "unreject", gallery, first["id"], second["id"]).stdout
    assert "2 faces no longer count" in said
    said = run("gallery", "reject", gallery, faces[0], *words, "--stranger").stdout
    assert "kept as a stranger to all" in said
    assert "1 stranger" in run("gallery", "strangers", gallery).stdout


def test_the_doctor_prints_findings_and_repairs(known: Known, gallery: Path) -> None:
    words = ["--gallery", gallery, "--model", known.model, "--crops", "--allow", "all"]
    run("enroll", "Eva", *known.photos("Ada", 4, 5), *words)
    said = run("gallery", "doctor", gallery, "--model", known.model, "--allow", "blurred").stdout
    assert "same_as_another" in said
    assert f"  sphereface2 gallery merge {gallery} Eva Ada" in said.splitlines()
    found = json.loads(run("gallery", "doctor", gallery, "--json", "--limit", "blurred=1").stdout)
    assert found["findings"] == []
    assert found["notes"][0].startswith("scores were not looked at; give --model")


def test_a_gallery_is_exported_and_migrated(known: Known, gallery: Path, tmp_path: Path) -> None:
    assert "12 photos in" in run("gallery", "export", gallery, tmp_path / "out").stdout
    assert (tmp_path / "out" / "people.csv").read_text().count("\n") == 13
    words = [gallery, tmp_path / "new", "--model", known.plain]
    assert "12 photos of 3 people are in" in run("gallery", "migrate", *words).stdout
    again = json.loads(run("gallery", "migrate", *words, "--json").stdout)
    assert (again["added"], again["photos"]) == (0, 12)


def test_a_folder_of_people_on_the_command_line(known: Known, tmp_path: Path) -> None:
    words = ["--folder", known.crops, "--gallery", tmp_path / "g", "--model", known.model]
    words += ["--crops", "--allow", "blurred"]
    said = run("enroll", *words).stdout.splitlines()
    assert said[0].startswith("4 people: 2")
    assert " enrolled, 0 there already, " in said[0]
    assert ", 0 photos enrolled" in run("enroll", *words).stdout.replace(":", ",")


@pytest.mark.parametrize("name", BAD)
def test_bad_photos_enrol_nobody_and_lose_nothing(
    known: Known, gallery: Path, tmp_path: Path, name: str
) -> None:
    make, why = BAD[name]
    make(tmp_path / name)
    words = ["--gallery", gallery, "--model", known.model]
    assert why in refused("enroll", "Ada", tmp_path / name, *words)
    assert why in refused("identify", tmp_path / name, *words)
    assert open_gallery(str(gallery)).count() == (3, 12)


def test_two_faces_are_refused_or_allowed(
    known: Known, gallery: Path, tmp_path: Path, rendered: list[Picture]
) -> None:
    path = tmp_path / "two.png"
    cv2.imwrite(str(path), photo(rendered[4], rendered[5])[..., ::-1])
    words = ["enroll", "Two", path, "--gallery", gallery, "--model", known.model]
    assert "it shows 2 faces" in refused(*words)
    assert "1 photo enrolled" in run(*words, "--allow", "all").stdout


NAMES = {
    "../../../etc/passwd": None,
    "Robert'); DROP TABLE person;--": None,
    "-rf": None,
    "x" * 10_000: "has 10,000 characters",
    "": "must not be empty",
    "a\nb": "control characters",
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
def test_names_are_names_and_nothing_else(
    known: Known, gallery: Path, tmp_path: Path, name: str
) -> None:
    words = ["--gallery", gallery, "--model", known.model, "--crops", "--allow", "all", "--"]
    words = ["enroll", *words, name, *known.photos("Dora", 0)]
    why = NAMES[name]
    if why is not None:
        assert why in refused(*words)
        assert open_gallery(str(gallery)).count() == (3, 12)
        return
    before = sorted(tmp_path.rglob("*"))
    run(*words)
    people = json.loads(run("gallery", "list", gallery, "--json").stdout)
    assert sorted(person["name"] for person in people) == sorted(["Ada", "Ben", "Cem", name])
    run("gallery", "remove", gallery, "--", name)
    assert open_gallery(str(gallery)).count() == (3, 12)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix == ""] == [
        path for path in before if path.suffix == ""
    ]


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _garble(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "database cut": ("people.sqlite", _cut),
    "database garbled": ("people.sqlite", _garble),
    "embeddings cut": ("embeddings.f32", _cut),
    "embeddings gone": ("embeddings.f32", Path.unlink),
    "crops garbled": ("crops.bin", _garble),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_gallery_is_one_sentence(known: Known, gallery: Path, kind: str) -> None:
    name, damage = DAMAGES[kind]
    damage(gallery / "default" / name)
    words = ["--gallery", gallery, "--model", known.model, "--crops"]
    before = {path: path.read_bytes() for path in gallery.rglob("*") if path.is_file()}
    for command in (
        ["identify", known.photos("Ada", 5)[0], *words],
        ["enroll", "Ada", known.photos("Ada", 5)[0], *words],
        ["gallery", "list", gallery],
    ):
        assert name in refused(*command)
    for path, content in before.items():
        assert path.name.endswith("-shm") or path.read_bytes() == content


def test_a_gallery_of_another_model_or_none_is_one_sentence(
    known: Known, gallery: Path, tmp_path: Path
) -> None:
    probe = known.photos("Ada", 5)[0]
    other = ["--gallery", gallery, "--model", known.plain, "--crops"]
    for command in (["identify", probe], ["enroll", "Ada", probe]):
        assert "holds embeddings of another model" in refused(*command, *other)
    assert "holds embeddings of another model" in refused(
        "gallery", "doctor", gallery, "--model", known.plain
    )
    missing = ["--gallery", tmp_path / "none", "--model", known.model, "--crops"]
    refused("identify", probe, *missing)
    assert not (tmp_path / "none").exists()
