"""The command `inspect`, from files to files."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from sphereface2.backbones import build_backbone
from sphereface2.cli import inspect as inspecting
from sphereface2.data.sources.image_file import read_image
from sphereface2.data.sources.image_list import ImageList
from sphereface2.data.sources.source import Faces
from sphereface2.data.transforms import Preprocessing
from sphereface2.datatools.inspect import Inspected, inspection
from sphereface2.models.extraction import Extraction
from sphereface2.models.folder import load_model, save_model
from tests.data.drawn_faces import face, save


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(inspecting.inspect)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "faces"
    for number in range(32):
        save(folder / f"person{number % 4}" / f"{number:02}.jpg", face(number))
    (folder / "person0" / "copy.jpg").write_bytes((folder / "person1" / "01.jpg").read_bytes())
    (folder / "person0" / "bad.jpg").write_text("not an image")
    return folder


def test_augmented_images_are_shown(faces: Path, tmp_path: Path) -> None:
    page = tmp_path / "page" / "augmentation-strong.html"
    done = run(faces, "--augment", "{name: strong, rotation: 15}", "--output", page.parent)
    assert done.exit_code == 0, done.output
    assert [path.name for path in page.parent.iterdir()] == [page.name]
    text = page.read_text()
    # Twelve images as they are and in eight epochs, and not the one that cannot be read.
    assert text.count("data:image/png;base64,") == 12 * 9
    assert "bad.jpg" not in text
    assert "rotation: 15.0" in text
    assert "scale: [0.8, 1.25]" in text
    assert "as other people" not in text


def test_images_in_other_proportions_are_shown_apart(faces: Path, tmp_path: Path) -> None:
    done = run(faces, "--augment", "{name: none, reshape: 0.5}", "--output", tmp_path)
    assert done.exit_code == 0, done.output
    rows = (tmp_path / "augmentation-none.html").read_text().split("as it is")[1:]
    both = [row.partition("as other people") for row in rows]
    own, others = (
        sum(part.count("data:image/png;base64,") for part in parts)
        for parts in zip(*((own, others) for own, _, others in both), strict=True)
    )
    # Twelve images as they are and in eight epochs, in about half of which they are other people.
    assert own + others == 12 * 9
    assert 33 <= others <= 63


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with an untrained model in it."""
    options = {"input_size": 32, "width": 8, "embedding_dim": 16, "batch_norm": True}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = build_backbone("sfnet10", **options)
    run_folder = tmp_path_factory.mktemp("run")
    save_model(
        run_folder / "model",
        backbone,
        name="sfnet10",
        options=options,
        preprocessing=Preprocessing(input_size=32),
    )
    return run_folder


def test_without_a_model(faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(faces, "--output", out, "--workers", 2)
    assert result.exit_code == 0, result.output
    assert "1 image of 34 cannot be read" in " ".join(result.output.split())
    assert {path.name for path in out.iterdir()} == {
        "inspection.html",
        "inspection.json",
        "unreadable.txt",
        "duplicates.csv",
    }
    assert "bad.jpg\tit is not a JPEG" in (out / "unreadable.txt").read_text()
    rows = table(out / "duplicates.csv")
    assert {row["image"] for row in rows} == {"person0/copy.jpg", "person1/01.jpg"}
    assert {row["across_people"] for row in rows} == {"True"}
    assert Inspected.load(out / "inspection.json").labels is None


def test_lists_that_no_longer_apply_are_taken_away(faces: Path, tmp_path: Path) -> None:
    data = tmp_path / "few"
    for number in range(4):
        save(data / f"p{number % 2}" / f"{number}.jpg", face(number))
    out = tmp_path / "out"
    out.mkdir()
    (out / "unreadable.txt").write_text("of an earlier inspection")
    assert run(data, "--output", out).exit_code == 0
    assert not (out / "unreadable.txt").exists()


def test_with_a_model(faces: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (faces, "--model", model, "--output", out, "--threshold", -0.05, "--device", "cpu")
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    inspected = Inspected.from_json(result.stdout)
    assert inspected == Inspected.load(out / "inspection.json")
    assert inspected.labels is not None
    suspects = table(out / "suspects.csv")
    assert [row["image"] for row in suspects] == [s.image for s in inspected.labels.suspects]
    assert suspects
    clean = ImageList(path=str(out / "clean.txt"), root=str(faces))
    kept = {clean.location(index) for index in range(len(clean))}
    assert len(kept) == 33 - len(suspects)
    assert not kept & {str(faces / row["image"]) for row in suspects}
    assert not [location for location in kept if location.endswith("bad.jpg")]
    assert np.load(out / "embeddings.npy").shape == (33, 16)


def test_embeddings_are_kept_for_the_same_model_and_data(
    faces: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (faces, "--model", model / "model", "--output", tmp_path, "--device", "cpu")
    assert run(*arguments).exit_code == 0
    before = (tmp_path / "embeddings.npy").stat().st_mtime_ns
    assert run(*arguments, "--false-alarms", 0.5).exit_code == 0
    assert (tmp_path / "embeddings.npy").stat().st_mtime_ns == before
    # Another key, as for another model or changed images: all is embedded again.
    monkeypatch.setattr(inspection, "embedding_key", lambda model, digests: "other")
    assert run(*arguments).exit_code == 0
    assert (tmp_path / "embeddings.npy").stat().st_mtime_ns != before


def test_an_interrupted_embedding_is_resumed(
    faces: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(KeyboardInterrupt):
        pass

    def stop(*_: object, **__: object) -> None:
        raise Stopped

    arguments = (faces, "--model", model, "--output", tmp_path, "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Extraction, "finish", stop)
        assert run(*arguments).exit_code != 0
    assert not (tmp_path / "embeddings.npy").exists()
    assert not (tmp_path / "inspection.json").exists()

    # What was begun for another model or other images is replaced.
    with monkeypatch.context() as patch:
        patch.setattr(inspection, "embedding_key", lambda model, digests: "other")
        patch.setattr(Extraction, "finish", stop)
        assert run(*arguments).exit_code != 0
    with monkeypatch.context() as patch:
        patch.setattr(Extraction, "finish", stop)
        assert run(*arguments).exit_code != 0

    def never(*_: object, **__: object) -> None:
        raise AssertionError("embedded twice")

    monkeypatch.setattr(Faces, "__getitem__", never)
    result = run(*arguments)
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{faces}", "--model", "{faces}"],
            "holds no model: neither config.json and model.safetensors",
        ),
        (["{faces}", "--model", "{out}/none"], "there is no run or model folder"),
        (["{faces}", "--model", "{faces}", "--false-alarms", "2"], "between 0 and 1"),
        (["{out}"], "no images in"),
        (["{out}/none"], "there is no file or folder"),
        (["{faces}", "--output", "{faces}/person0/00.jpg"], "is not a folder"),
    ],
)
def test_mistakes(faces: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(*(text.format(faces=faces, out=tmp_path) for text in arguments))
    assert isinstance(result.exception, ValueError | OSError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_damaged_model_is_reported_before_the_images_are_read(
    faces: Path, model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"x")
    (broken / "config.json").write_text(json.dumps({}))
    result = run(faces, "--model", broken, "--output", tmp_path / "out")
    assert isinstance(result.exception, ValueError)
    assert "does not describe a sphereface2 model" in str(result.exception)
    assert "looking at the images" not in result.output


def test_one_person_with_a_model_is_a_mistake_of_one_sentence(model: Path, tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / "faces" / "only" / f"{number}.jpg", face(number))
    result = run(tmp_path / "faces", "--model", model, "--output", tmp_path / "out")
    assert isinstance(result.exception, ValueError)
    assert "all images are of one person" in str(result.exception)


def test_files_that_are_not_read_are_counted_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "faces"
    for number in range(4):
        save(folder / f"person{number % 2}" / f"{number}.jpg", face(number))
    (folder / "person0" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    os.mkfifo(folder / "person1" / "x.jpg")
    out = tmp_path / "out"
    done = run(folder, "--output", out, "--workers", 1, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["data"]
    assert (found["images"], found["readable"]) == (5, 4)
    (note,) = found["notes"]
    assert "1 image of other kinds" in note
    assert "is not read: person0/phone.heic; convert it" in note
    listed = (out / "unreadable.txt").read_text().splitlines()
    assert len(listed) == 2
    assert "person1/x.jpg: it is a FIFO or a device, not a regular file" in listed[0]
    assert listed[1].endswith(
        "person0/phone.heic\tit is of the kind HEIC, which is not read; convert it to JPEG or PNG"
    )


def test_saved_embeddings_judge_as_their_model_does(
    faces: Path, model: Path, tmp_path: Path
) -> None:
    words = ["--threshold", "0.05"]
    by_model = run(faces, "--model", model, "--output", tmp_path / "a", *words)
    assert by_model.exit_code == 0, by_model.output
    # In another order, with names: what 'extract' writes of a list, say.
    images = sorted(path for path in faces.glob("*/*.jpg") if path.name != "bad.jpg")
    pictures = [read_image(path) for path in reversed(images)]
    np.save(tmp_path / "x.npy", load_model(model).embed(pictures))
    names = [path.relative_to(faces).as_posix() for path in reversed(images)]
    (tmp_path / "x.txt").write_text("".join(f"{name}\n" for name in names))
    saved = run(faces, "--embeddings", tmp_path / "x.npy", "--output", tmp_path / "b", *words)
    assert saved.exit_code == 0, saved.output
    one, other = (table(tmp_path / name / "suspects.csv") for name in ("a", "b"))
    assert [row["image"] for row in one] == [row["image"] for row in other]
    assert one
    (tmp_path / "x.txt").write_text("".join(f"{name}!\n" for name in names))
    wrong = run(faces, "--embeddings", tmp_path / "x.npy", "--output", tmp_path / "c")
    assert "have no embedding" in str(wrong.exception)
