"""'sphereface2 group' and 'regroup': people of photos who keep their names, whatever happens."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from sphereface2 import build_backbone
from sphereface2.cli import app
from sphereface2.data.transforms import Preprocessing
from sphereface2.datatools.group import group_photos, regroup
from sphereface2.datatools.group.groups import Groups
from sphereface2.evaluation.calibration import calibrate
from sphereface2.models.export import export_graph
from sphereface2.models.folder import save_model, store_calibration, weights_digest
from tests.evaluation.test_decision import scored_pairs
from tests.recognition.test_photos import photo

OPTIONS: dict[str, Any] = {"width": 4, "input_size": 32, "embedding_dim": 16}
DIM = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model, one that is not, and another one."""
    place = tmp_path_factory.mktemp("models")
    for name, seed in (("model", 0), ("plain", 0), ("other", 1)):
        save_model(
            place / name,
            build_backbone("sfnet4", seed=seed, **OPTIONS),
            name="sfnet4",
            options=OPTIONS,
            preprocessing=Preprocessing(input_size=32),
        )
    calibration = calibrate(scored_pairs(), model=weights_digest(place / "model"), replicates=0)
    store_calibration(place / "model", calibration.to_mapping())
    return place


def saved(
    path: Path, people: str, *, each: int = 4, rows: slice = slice(None), spread: float = 0.3
) -> Path:
    """Embeddings of some people, who are letters: a-1.jpg, a-2.jpg, ..."""
    vectors, names = [], []
    for letter in people:
        generator = np.random.default_rng(ord(letter))
        centre = generator.normal(size=DIM)
        for number in range(each)[rows]:
            own = np.random.default_rng(1000 * ord(letter) + number).normal(size=DIM)
            vectors.append(centre + spread * own)
            names.append(f"{letter}-{number + 1}.jpg")
    np.save(path, np.array(vectors, np.float32))
    path.with_suffix(".txt").write_text("".join(f"{name}\n" for name in names))
    return path


def members(groups: Groups) -> dict[str, str]:
    """The first letters of the faces of each person."""
    return {
        person.called: "".join(sorted(face.photo[0] for face in person.faces))
        for person in groups.people
    }


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, ValueError | OSError), result.output
    return str(result.exception)


def table(out: Path) -> list[dict[str, str]]:
    with (out / "faces.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- people, names, corrections --------------------------------------------------------------------


def test_new_photos_join_and_names_survive(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = group_photos(saved(tmp_path / "x.npy", "abc", rows=slice(2)), out, threshold=0.5)
    assert members(first) == {"person-1": "aa", "person-2": "bb", "person-3": "cc"}
    regroup(out, "name", "person-2", "Berta")
    reported = json.loads((out / "people.json").read_text())
    reported["people"][2]["name"] = "Carl"  # as a user edits it
    (out / "people.json").write_text(json.dumps(reported))
    grown = group_photos(saved(tmp_path / "x.npy", "dcba", each=5), out)
    assert members(grown) == {
        "person-1": "aaaaa",
        "Berta": "bbbbb",
        "Carl": "ccccc",
        "person-4": "ddddd",
    }
    assert "person-3 is called Carl" in grown.said
    assert "14 new faces, 9 of them of people who were known" in grown.said
    again = group_photos(tmp_path / "x.npy", out)
    assert members(again) == members(grown)
    assert again.said == ()
    rows = table(out)
    assert [row["photo"] for row in rows] == sorted(row["photo"] for row in rows)
    assert {row["name"] for row in rows if row["photo"][0] == "b"} == {"Berta"}
    assert len({row["face"] for row in rows}) == 20


def test_merges_and_splits_are_undone_and_survive(tmp_path: Path) -> None:
    out, x = tmp_path / "out", saved(tmp_path / "x.npy", "abc")
    before = members(group_photos(x, out, threshold=0.5))
    merged = regroup(out, "merge", "person-1", "2")
    assert members(merged) == {"person-1": "aaaabbbb", "person-3": "cccc"}
    odd = merged.people[0].faces[0]
    split = regroup(out, "split", "person-1", [odd.number])
    assert split.said == ("1 of person-1's 8 faces became person-4",)
    assert len(split.people[0].faces) == 7
    # What the user said holds in later runs, also in those that decide everything again.
    for afresh in (False, True):
        kept = group_photos(x, out, afresh=afresh)
        assert sorted(map(len, members(kept).values())) == [1, 4, 7]
    assert regroup(out, "undo").said == ("undone: 1 faces of person-1 became person-4",)
    assert members(regroup(out, "undo")) == before
    with pytest.raises(ValueError, match="there is nothing to undo"):
        regroup(out, "undo")
    assert members(group_photos(x, out, afresh=True)) == before
    journal = (out / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in journal][:5] == [
        "group", "merge", "split", "group", "group",
    ]  # fmt: skip


def test_a_merge_after_a_split_is_the_last_word(tmp_path: Path) -> None:
    out, x = tmp_path / "out", saved(tmp_path / "x.npy", "ab")
    first = group_photos(x, out, threshold=0.5)
    regroup(out, "split", "person-1", [first.people[0].faces[0].number])
    regroup(out, "merge", "person-1", "person-3")
    for afresh in (False, True):
        assert members(group_photos(x, out, afresh=afresh)) == {
            "person-1": "aaaa",
            "person-2": "bbbb",
        }


def test_undo_after_more_photos_moves_only_what_was_moved(tmp_path: Path) -> None:
    out = tmp_path / "out"
    group_photos(saved(tmp_path / "x.npy", "ab", rows=slice(2)), out, threshold=0.5)
    regroup(out, "merge", "person-1", "person-2")
    group_photos(saved(tmp_path / "x.npy", "abc"), out)
    undone = regroup(out, "undo")
    assert {name: faces for name, faces in members(undone).items() if "b" in faces}["person-2"] == (
        "bb"
    )


def test_people_with_two_names_stay_two(tmp_path: Path) -> None:
    out, x = tmp_path / "out", saved(tmp_path / "x.npy", "ab")
    group_photos(x, out, threshold=0.9)
    names = ["Anna", "Berta"]
    for person, name in zip(["a-1.jpg", "b-1.jpg"], names, strict=True):
        who = next(row["person"] for row in table(out) if row["photo"] == person)
        regroup(out, "name", who, name)
    joined = group_photos(x, out, threshold=-1.0)
    assert set(members(joined)) == set(names)
    assert sum(map(len, members(joined).values())) == 8


def test_a_stricter_run_afresh_keeps_names_where_most_faces_are(tmp_path: Path) -> None:
    out, x = tmp_path / "out", saved(tmp_path / "x.npy", "ab", spread=0.6)
    group_photos(x, out, threshold=-1.0)
    regroup(out, "name", "person-1", "Everybody")
    grown = group_photos(x, out, threshold=0.99)
    assert len(grown.people) == 1  # without --afresh nobody falls apart
    strict = group_photos(x, out, threshold=0.99, afresh=True)
    assert len(strict.people) == 8
    assert [person.name for person in strict.people].count("Everybody") == 1


def test_wrong_words_are_answered(tmp_path: Path) -> None:
    out, x = tmp_path / "out", saved(tmp_path / "x.npy", "ab")
    group_photos(x, out, threshold=0.5)
    run("regroup", "name", out, "person-1", "Anna")
    for words, answer in (
        (("name", out, "person-9", "X"), "there is no 'person-9' among the people"),
        (("name", out, "person-2", "Anna"), "person-1 is called Anna already"),
        (("name", out, "person-2", "person-5"), "give another name"),
        (("name", out, "person-2", "x" * 10_000), "at most 200"),
        (("merge", out, "Anna", "person-1"), "at least two different people"),
        (("merge", out, "persn-2", "Anna"), "did you mean 'person-2'"),
        (("split", out, "Anna", 99), "face 99 is not one of Anna"),
        (("split", out, "Anna", 1, 2, 3, 4), "not all"),
        (("undo", tmp_path / "nothing"), "holds no groups"),
    ):
        assert answer in refused("regroup", *words)
    run("regroup", "name", out, "person-2", "'; DROP TABLE people; --")
    (out / "people.json").write_text("{")
    assert "people.json is damaged" in refused("regroup", "undo", out)
    (out / "people.json").unlink()
    assert "undone" in run("regroup", "undo", out)


def test_the_same_from_any_order_of_rows(tmp_path: Path) -> None:
    x = saved(tmp_path / "x.npy", "abcdef", each=6, spread=0.9)
    names = x.with_suffix(".txt").read_text().splitlines()
    vectors = np.load(x)
    group_photos(x, tmp_path / "one", threshold=0.35)
    order = np.random.default_rng(0).permutation(len(names))
    y = tmp_path / "y.npy"
    np.save(y, vectors[order])
    y.with_suffix(".txt").write_text("".join(f"{names[number]}\n" for number in order))
    group_photos(y, tmp_path / "other", threshold=0.35)
    assert (tmp_path / "one" / "faces.csv").read_bytes() == (
        tmp_path / "other" / "faces.csv"
    ).read_bytes()


# -- photos ----------------------------------------------------------------------------------------


def write(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image[..., ::-1])


def test_every_face_of_a_photo_is_found_and_is_another_person(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    write(photos / "one.png", photo(rendered[0]))
    write(photos / "both [1].png", photo(rendered[0], rendered[1]))
    write(photos / "twice.png", photo(rendered[0], rendered[0]))
    write(photos / "wall.png", np.full((200, 200, 3), 120, np.uint8))
    write(photos / "crop.png", rendered[1])
    (photos / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    words = ["group", photos, out, "--model", models / "model", "--false-accepts", "1 in 10"]
    reported = json.loads(run(*words, "--folders", "link", "--workers", 1, "--json"))
    assert (reported["photos"], reported["faces"]) == (6, 6)
    assert reported["without_face"] == ["wall.png"]
    assert reported["unreadable"][0][0] == "cut.jpg"
    assert reported["words"] == "at most 1 in 10 false accepts on known"
    rows = table(out)
    by_photo: dict[str, list[str]] = {}
    for row in rows:
        by_photo.setdefault(row["photo"], []).append(row["person"])
    assert len(set(by_photo["both [1].png"])) == len(set(by_photo["twice.png"])) == 2
    assert float(rows[0]["left"]) < float(rows[1]["left"])
    page = (out / "index.html").read_text()
    assert "data:image/jpeg" in page
    assert "both [1].png" in page
    links = [path for path in (out / "people").rglob("*") if path.is_symlink()]
    assert {path.resolve() for path in links} == {(photos / name).resolve() for name in by_photo}
    # A photo that goes leaves the table, and comes back as it was.
    (photos / "one.png").rename(tmp_path / "one.png")
    assert "1 photos are no longer there" in run(*words)
    assert "one.png" not in {row["photo"] for row in table(out)}
    (tmp_path / "one.png").rename(photos / "one.png")
    run(*words)
    assert table(out) == rows
    merge = refused("regroup", "merge", out, *by_photo["twice.png"])
    assert ".png, so they are two people; split off" in merge


def test_several_processes_find_the_faces_of_photos(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for number in range(3):
        write(tmp_path / "photos" / f"{number}.png", photo(rendered[number % 2]))
    for workers in (1, 2):
        words = ["group", tmp_path / "photos", tmp_path / f"out{workers}", "--workers", workers]
        run(*words, "--model", models / "model", "--threshold", 0.5)
    assert table(tmp_path / "out1") == table(tmp_path / "out2")
    assert len(table(tmp_path / "out2")) == 3


def test_an_onnx_model_groups_alike(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for number, face in enumerate(rendered):
        for copy in range(2):
            write(tmp_path / "in" / f"{number}-{copy}.png", np.roll(face, copy, axis=1))
    export_graph(models / "model", tmp_path / "onnx")
    tables = []
    for name, model in (("torch", models / "model"), ("graph", tmp_path / "onnx")):
        words = ["group", tmp_path / "in", tmp_path / name, "--model", model, "--crops"]
        run(*words, "--workers", 1)
        tables.append([(row["photo"], row["person"]) for row in table(tmp_path / name)])
    assert tables[0] == tables[1]


@pytest.mark.usefixtures("quick_processes")
def test_a_killed_run_resumes_to_the_same_result(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for number in range(400):
        shifted = np.roll(rendered[number % 6], number // 6 % 5, axis=1)
        write(tmp_path / "in" / f"{number:03}.png", shifted)
    words = ["group", "in", "out", "--model", str(models / "model"), "--crops", "--workers", "1"]
    script = [sys.executable, "-m", "sphereface2", *words]
    run_ = subprocess.Popen(script, cwd=tmp_path, stderr=subprocess.DEVNULL)
    lines = tmp_path / "out" / ".group" / "photos.jsonl"
    deadline = time.monotonic() + 300
    while not lines.exists() or lines.read_bytes().count(b"\n") < 40:
        assert time.monotonic() < deadline
        assert run_.poll() is None
        time.sleep(0.005)
    run_.send_signal(signal.SIGKILL)
    run_.wait()
    done = lines.read_bytes().count(b"\n") - 1
    assert done < 400
    with (tmp_path / "out" / ".group" / "embeddings.f32").open("ab") as file:
        file.write(b"half a row")  # as a power cut leaves it
    with lines.open("ab") as file:
        file.write(b'{"photo": "00')
    model = models / "model"
    resumed = group_photos(tmp_path / "in", tmp_path / "out", model=model, kind="crop", workers=1)
    whole = group_photos(tmp_path / "in", tmp_path / "whole", model=model, kind="crop", workers=2)
    assert resumed.faces == whole.faces == 400
    for name in ("faces.csv", ".group/embeddings.f32", ".group/crops.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_photo_that_changed_is_looked_at_again(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    place, out, model = tmp_path / "in", tmp_path / "out", models / "model"
    write(place / "a.png", rendered[0])
    write(place / "b.png", rendered[1])
    group_photos(place, out, model=model, kind="crop", threshold=0.999)
    first = {row["photo"]: row["face"] for row in table(out)}
    write(place / "b.png", rendered[2])
    os.utime(place / "b.png", (1, 1))
    group_photos(place, out, model=model, kind="crop", threshold=0.999)
    second = {row["photo"]: row["face"] for row in table(out)}
    assert second["a.png"] == first["a.png"]
    assert second["b.png"] != first["b.png"]


# -- bad input -------------------------------------------------------------------------------------


def test_what_cannot_be_grouped_is_refused(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    photos, out, model = tmp_path / "photos", tmp_path / "out", models / "model"
    photos.mkdir()
    assert "no photos in" in refused("group", photos, out, "--model", model, "--crops")
    (photos / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    answer = refused("group", photos, tmp_path / "o2", "--model", model, "--crops")
    assert "there is no face in" in answer
    assert "1 photos cannot be read" in answer
    write(photos / "wall.png", np.full((64, 64, 3), 9, np.uint8))
    (photos / "a.jpg").unlink()
    assert "give --crops" in refused("group", photos, tmp_path / "o3", "--model", model)
    write(photos / "b.png", rendered[0])
    assert "sphereface2 calibrate MODEL" in refused(
        "group", photos, tmp_path / "o4", "--model", models / "plain"
    )
    assert "cannot tell 1 in 1,000,000 false accepts" in refused(
        "group", photos, tmp_path / "o4", "--model", model, "--false-accepts", "1e-6"
    )
    assert "lies in the folder of the photos" in refused(
        "group", photos, photos / "out", "--model", model
    )
    assert "there is no" in refused("group", tmp_path / "none", out, "--model", model)
    assert "give --model" in refused("group", photos, tmp_path / "o4")
    assert "exclude each other" in refused(
        "group", photos, tmp_path / "o4", "--model", model, "--threshold", 0.5,
        "--false-accepts", "0.1",
    )  # fmt: skip
    assert "unknown kind of folders 'lonk'; did you mean 'link'" in refused(
        "group", photos, tmp_path / "o4", "--model", model, "--folders", "lonk"
    )
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("dear diary")
    assert "was not written by group" in refused("group", photos, mine, "--model", model)
    assert [path.name for path in mine.iterdir()] == ["diary.txt"]
    assert not (tmp_path / "o4").exists()


def test_embeddings_and_photos_of_another_model_are_refused(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    write(tmp_path / "in" / "p" / "a.png", rendered[0])
    x = tmp_path / "x.npy"
    run("extract", models / "model", tmp_path / "in", x)
    out = tmp_path / "out"
    assert "was extracted with another model" in refused(
        "group", x, out, "--model", models / "other"
    )
    assert "sphereface2 calibrate MODEL" in refused("group", x, out)
    assert "for photos, not for saved" in refused("group", x, out, "--crops", "--threshold", 0.5)
    assert "1 face in 1 photo" in run("group", x, out, "--model", models / "model")
    y = saved(tmp_path / "y.npy", "ab")
    assert "was begun with another model" in refused("group", y, out, "--threshold", 0.5)
    photos = tmp_path / "by-photos"
    words = ["group", tmp_path / "in", photos, "--crops", "--threshold", 0.5, "--model"]
    run(*words, models / "model")
    assert "was begun with another model" in refused(*words, models / "other")
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "z.png", rendered[1])
    assert "none of the 1 photos that" in refused(
        "group", tmp_path / "elsewhere", photos, "--crops", "--model", models / "model"
    )


def test_folder_names_lead_nowhere_else(
    tmp_path: Path, models: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for number in range(2):
        write(tmp_path / "in" / f"{number}.png", rendered[0])
    out = tmp_path / "out"
    words = ["group", tmp_path / "in", out, "--crops", "--model", models / "model"]
    run(*words, "--folders", "copy", "--workers", 1)
    assert {path.name for path in (out / "people" / "person-1").iterdir()} == {"0.png", "1.png"}
    run("regroup", "name", out, "person-1", "../../etc/x")
    assert [path.name for path in (out / "people").iterdir()] == ["_.._etc_x"]
