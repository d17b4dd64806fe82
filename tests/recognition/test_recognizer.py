"""A recognizer and 'sphereface2 verify': one answer, from Python and from the command line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from sphereface2 import Recognizer, build_backbone, load_model
from sphereface2.cli import app
from sphereface2.data.sources.image_file import read_image
from sphereface2.data.transforms import Preprocessing
from sphereface2.evaluation.calibration import calibrate
from sphereface2.models.export import export_graph
from sphereface2.models.folder import save_model, store_calibration, weights_digest
from tests.evaluation.test_decision import scored_pairs
from tests.recognition.test_photos import large_png, photo

OPTIONS: dict[str, Any] = {"width": 4, "input_size": 32, "embedding_dim": 16}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, rendered: list[NDArray[np.uint8]]) -> Path:
    """A calibrated model, one that is not, and photos."""
    place = tmp_path_factory.mktemp("photos")
    network = build_backbone("sfnet4", seed=0, **OPTIONS)
    for name in ("model", "plain"):
        save_model(
            place / name,
            network,
            name="sfnet4",
            options=OPTIONS,
            preprocessing=Preprocessing(input_size=32),
        )
    digest = weights_digest(place / "model")
    calibration = calibrate(scored_pairs(), model=digest, replicates=0)
    store_calibration(place / "model", calibration.to_mapping())
    export_graph(place / "model", place / "onnx")
    for name, faces in (("a", [0]), ("b", [1]), ("c", [2]), ("two", [0, 1])):
        picture = photo(*(rendered[number] for number in faces))
        cv2.imwrite(str(place / f"{name}.png"), picture[..., ::-1])
    return place


def test_embeddings_are_those_of_the_model_on_the_crops(place: Path) -> None:
    recognizer = Recognizer(place / "model")
    photos: list[Path | str] = [place / "a.png", str(place / "b.png")]
    found = recognizer.embed(photos)
    crops = [face.crop for face in recognizer.find(photos)]
    assert np.array_equal(found, load_model(place / "model").embed(crops))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    arrays = [read_image(path) for path in photos]
    assert np.array_equal(recognizer.embed(arrays), found)
    with pytest.raises(ValueError, match=r"photos must be a list; give a single one as \['a"):
        recognizer.embed("a.png")


def test_python_command_line_and_onnx_agree(place: Path) -> None:
    photos = [place / name for name in ("a.png", "b.png", "c.png")]
    one, other = (Recognizer(place / name).embed(photos) for name in ("model", "onnx"))
    assert np.sum(one * other, axis=1).min() > 0.99999
    printed = [
        json.loads(run("verify", *photos[:2], "--model", place / name, "--json").stdout)
        for name in ("model", "onnx")
    ]
    for answer in printed:
        assert answer["score"] == pytest.approx(float(one[0] @ one[1]), abs=1e-5)
    assert printed[0]["threshold"] == printed[1]["threshold"]


def test_a_person_of_several_photos_has_the_mean_score(place: Path) -> None:
    recognizer = Recognizer(place / "model")
    photos = [place / name for name in ("a.png", "b.png", "c.png")]
    embeddings = recognizer.embed(photos)
    done = recognizer.verify(photos[0], photos[1:])
    assert done.scores == pytest.approx((embeddings[1:] @ embeddings[0]).tolist(), abs=1e-6)
    assert done.answer.score == pytest.approx(np.mean(done.scores))
    assert "the score is the mean over the person's photos" in done.sentences()[3]
    assert recognizer.verify(photos[0], photos[0]).answer.accepted
    with pytest.raises(ValueError, match="no photo of the person"):
        recognizer.verify(photos[0], [])


@pytest.mark.usefixtures("drawn_figures")
def test_the_answer_is_printed_drawn_and_given_as_json(place: Path, tmp_path: Path) -> None:
    words = ["verify", place / "a.png", place / "a.png", "--model", place / "model"]
    picture = tmp_path / "answer.png"
    shown = run(*words, "--false-accepts", "1 in 100", "--prior", "0.1", "--show", picture)
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("SAME PERSON: the score 1.000 reaches")
    assert "at most 1 in 100 false accepts" in lines[0]
    assert "10% of the pairs that you compare" in lines[1]
    assert read_image(picture).shape[1] == 1080
    answer = json.loads(run(*words, "--json").stdout)
    assert (answer["accepted"], answer["target"], answer["prior"]) == (True, 0.001, 0.5)
    assert answer["false_accepts"]["trials"] == 4000
    assert answer["photos"][0]["faces"] == 1
    assert len(answer["photos"][1]["landmarks"]) == 5
    assert answer["model"] == weights_digest(place / "model")


def test_without_a_calibration_it_says_how_to_make_one(place: Path, tmp_path: Path) -> None:
    words = ["verify", place / "a.png", place / "b.png", "--model", place / "plain"]
    done = run(*words, "--show", tmp_path / "x.png")
    assert "no decision, because this model is not calibrated" in done.stdout
    assert "sphereface2 calibrate MODEL --on SET" in done.stdout
    assert (tmp_path / "x.png").is_file()
    assert "need a calibrated model" in refused(*words, "--false-accepts", "0.1")


def test_the_model_may_come_from_the_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPHEREFACE2_MODEL", str(place / "model"))
    assert "SAME PERSON" in run("verify", place / "a.png", place / "a.png").stdout


def test_a_calibration_for_other_embeddings_is_refused(place: Path) -> None:
    words = ["verify", place / "a.png", place / "b.png", "--model", place / "model", "--no-flip"]
    assert "holds for embeddings with their mirror images' added" in refused(*words)


def test_several_faces_are_noted_or_refused(place: Path) -> None:
    words = ["verify", place / "a.png", place / "two.png", "--model", place / "model"]
    assert "shows 2 faces; the most suitable by --choose was taken" in run(*words).stdout
    assert "shows 2 faces; cut out" in refused(*words, "--choose", "only")


def _cut_jpeg(path: Path) -> None:
    whole = cv2.imencode(".jpg", np.full((200, 200, 3), 90, np.uint8))[1].tobytes()
    path.write_bytes(whole[: len(whole) // 2])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.jpg": (lambda path: None, "there is no image"),
    "drawing.svg": (lambda path: path.write_text("<svg/>"), "is not a JPEG, PNG"),
    "wall.gif": (
        lambda path: cv2.imwrite(str(path), np.full((80, 80, 3), 90, np.uint8)),
        "there is no face in",
    ),
    "large.png": (
        lambda path: path.write_bytes(large_png()),
        "20000 × 20000 pixels, more than 100 million",
    ),
    "cut.jpg": (_cut_jpeg, "it is cut short"),
    "empty.jpg": (lambda path: path.touch(), "it is empty"),
    "pipe.jpg": (lambda path: os.mkfifo(path), "it is a FIFO or a device"),
    "folder.jpg": (lambda path: path.mkdir(), "cannot open the image"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_photos_are_one_sentence(place: Path, tmp_path: Path, name: str) -> None:
    make, why = BAD[name]
    make(tmp_path / name)
    said = refused("verify", place / "a.png", tmp_path / name, "--model", place / "model")
    assert why in said
    assert name in said


def test_a_gif_with_a_face_is_a_photo(place: Path, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.gif"), read_image(place / "a.png")[..., ::-1])
    words = ["verify", place / "a.png", tmp_path / "a.gif", "--model", place / "model"]
    assert "score" in run(*words).stdout


def test_what_is_not_a_model_is_one_sentence(place: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"PK")
    words = ["verify", place / "a.png", place / "b.png", "--model"]
    assert "there is no run or model folder" in refused(*words, tmp_path / "weights.pth")
    assert "holds no model" in refused(*words, tmp_path)
    assert "is not a rate" in refused(*words, place / "model", "--false-accepts", "often")
    assert "ends in .png" in refused(*words, place / "model", "--show", tmp_path / "a.pdf")


def run(*words: object) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def refused(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, ValueError | OSError), done.output
    said = str(done.exception)
    assert "\n" not in said
    return said
