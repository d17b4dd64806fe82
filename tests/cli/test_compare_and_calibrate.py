"""compare and calibrate as a user meets them: what they print, write and refuse."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2 import cli
from sphereface2.backbones import build_backbone
from sphereface2.data.pairs.pair_list import pair_list
from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.transforms import Preprocessing
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.pair_scores import save_scores
from sphereface2.models.folder import load_model, save_model, stored_calibration
from sphereface2.runs.evaluate import calibrate_model
from tests.evaluation.test_comparison import scored
from tests.models.test_embed import Meeting

HEAD = {"name": "sphereface2-c", "radius": 30.0, "sharpness": 3.0}


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: loading torch again for every case would take longer."""

    def run(*words: str) -> Done:
        monkeypatch.chdir(place)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["sphereface2", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def save_net(folder: Path, *, flip: bool = True) -> None:
    options = {"width": 4, "input_size": 16, "embedding_dim": 6}
    save_model(
        folder,
        build_backbone("sfnet4", seed=0, **options),
        name="sfnet4",
        options=options,
        preprocessing=Preprocessing(input_size=16),
        flip=flip,
        extra={"head": HEAD, "head_bias": 3.0},
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluated runs, one on other pairs, a model, and a list of pairs with its images."""
    place = tmp_path_factory.mktemp("judging")
    for name, noise in (("a", 0.3), ("b", 1.2)):
        save_scores(place / name / "scores.npz", [scored(0, noise=noise)], model=name)
    save_scores(place / "c" / "scores.npz", [scored(5, noise=0.3, pairs=400)], model="c")
    (place / "bare").mkdir()
    save_net(place / "net" / "model")
    generator = np.random.default_rng(0)
    lines = []
    for person in range(40):
        colour = generator.integers(0, 256, 3)
        (place / "faces" / f"p{person}").mkdir(parents=True)
        for shot in range(2):
            image = np.clip(colour + generator.normal(0, 6, (16, 16, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(place / "faces" / f"p{person}" / f"{shot}.png"), image)
        lines.append(f"p{person}/0.png p{person}/1.png 1")
        lines.append(f"p{person}/0.png p{(person + 1) % 40}/1.png 0")
    (place / "mine.txt").write_text("\n".join(lines) + "\n")
    return place


def test_compare_prints_differences_and_writes_a_page(place: Path, run: Run) -> None:
    done = run("compare", "a", "b", "--output", "out/comparison.html")
    assert done.returncode == 0, done.stderr
    for part in (
        "plain: difference to a",
        "McNemar",
        "accuracy",
        "TAR@FAR",
        "600 pairs of 60 people",
    ):
        assert part in done.stdout
    assert "plain: b is worse than a by" in done.stdout
    assert "report: out/comparison.html" in done.stdout
    assert (place / "out" / "comparison.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("drawn_figures")
def test_calibrate_prints_thresholds_and_keeps_them(place: Path, run: Run) -> None:
    done = run(
        "calibrate", "net", "--on", "mine.txt", "--root", "faces", "--far", "0.1", "--far", "0.001",
        "--device", "cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for part in ("Thresholds from mine", "FAR at most 10%", "resolved", "learned bias"):
        assert part in done.stdout
    # Signs stand apart from their numbers, whichever they are.
    assert re.search(r"P\(same \| cosine\) = .* · cosine [+−] \d", done.stdout)
    assert "picture: net/calibration.png" in done.stdout
    assert (place / "net" / "calibration.png").stat().st_size > 1000
    kept = stored_calibration(place / "net" / "model")
    assert kept is not None
    calibration = Calibration.from_mapping(kept)
    assert (calibration.set_name, calibration.pairs, calibration.people) == ("mine", 80, 40)
    assert [each.target for each in calibration.thresholds] == [0.1, 0.001]
    assert calibration.bias is not None
    assert calibration.bias.bias == 3.0
    assert "seconds" not in json.dumps(kept)
    shutil.copytree(place / "net" / "model", place / "alone")
    done = run("calibrate", "alone", "--on", "mine.txt", "--root", "faces", "--device", "cpu")
    assert "picture: alone/calibration.png" in done.stdout
    assert (place / "alone" / "calibration.png").is_file()


def small_set(place: Path, *, readers: int) -> VerificationSet:
    """The pairs of mine.txt, whose images `readers` threads must read at once."""
    (found,) = pair_list(path=str(place / "mine.txt"), root=str(place / "faces"))
    pictures = np.stack([found.images[number] for number in range(len(found.images))])
    return replace(found, images=Meeting(pictures, readers=readers))


@pytest.mark.parametrize("flip", [True, False])
def test_calibrate_embeds_as_the_model_does_by_itself(flip: bool, place: Path, run: Run) -> None:
    net = place / f"flip-{flip}"
    save_net(net / "model", flip=flip)
    words = ("calibrate", net.name, "--on", "mine.txt", "--root", "faces", "--far", "0.1")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert f"of embeddings {'with' if flip else 'without'} their mirror" in said(done.stdout)
    assert "not how this model embeds" not in done.stdout
    kept = Calibration.from_mapping(stored_calibration(net / "model") or {})
    # As docs and README say it: load the model, embed, take products of rows.
    (pairs,) = pair_list(path=str(place / "mine.txt"), root=str(place / "faces"))
    model = load_model(net / "model")
    rows = model.embed([pairs.images[number] for number in range(len(pairs.images))])
    scores = np.einsum("nd,nd->n", rows[pairs.pairs[:, 0]], rows[pairs.pairs[:, 1]])
    accepted = scores >= kept.thresholds[0].threshold - 1e-6
    assert kept.flip is flip
    assert accepted[~pairs.same].mean() == kept.thresholds[0].reached
    assert accepted[pairs.same].mean() == kept.thresholds[0].rate
    assert np.abs(scores - kept.thresholds[0].threshold).min() < 1e-6
    other = run(*words, "--no-flip" if flip else "--flip")
    assert f"give --{'no-' if flip else ''}flip wherever they are used" in said(other.stdout)
    assert Calibration.from_mapping(stored_calibration(net / "model") or {}).flip is not flip


def said(text: str) -> str:
    return " ".join(text.split())


def test_workers_read_the_images_of_a_calibration(place: Path) -> None:
    save_net(place / "read" / "model")
    each = small_set(place, readers=3)
    calibrate_model(place / "read" / "model", [each], far_targets=(0.1,), workers=3)
    assert isinstance(each.images, Meeting)
    assert each.images.met


MISTAKES = [
    (["compare", "a"], "at least two run folders"),
    (["compare", "a", "a"], "one is given twice"),
    (["compare", "a", "c"], "a and c were evaluated on different pairs of the set 'plain'"),
    (["compare", "a", "bare"], "bare holds no scores.npz: evaluate the run first"),
    (["compare", "a", "nowhere"], "nowhere holds no scores.npz"),
    (["calibrate", "nowhere"], "there is no run or model folder nowhere"),
    (["calibrate", "bare"], "bare holds no model"),
    (["calibrate", "net"], "name a set with --on SET"),
    (["calibrate", "net", "--on", "lfw.bin"], "there is no verification set 'lfw.bin'"),
    (["calibrate", "net", "--on", "mine.txt"], "mine.txt are missing"),
    (
        ["calibrate", "net", "--on", "mine.txt", "--root", "faces", "--prior", "2"],
        "prior must lie between 0 and 1, got 2",
    ),
    (
        ["calibrate", "net", "--on", "mine.txt", "--root", "faces", "--far", "3"],
        "a target FAR must lie between 0 and 1, got 3",
    ),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_gets_one_sentence_and_exit_code_two(
    words: list[str], part: str, place: Path, run: Run
) -> None:
    done = run(*words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("sphereface2: ")
    assert part in last
    assert not (place / "comparison.html").exists()
