"""Every option of every command is obeyed or refused: what is given never passes silently."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from benchmarks.generate.megaface import generate_megaface
from sphereface2.backbones import build_backbone
from sphereface2.cli import app
from sphereface2.config.schema import dump_config, load_config
from sphereface2.data.transforms import Preprocessing
from sphereface2.datatools.rendered_benchmarks import render_ijb, write_list
from sphereface2.evaluation.pair_scores import load_scores
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.models.folder import save_model
from sphereface2.runs import train as runs
from tests.evaluation.test_protocols import faces, pair_list
from tests.runs.test_runs import SMALL


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def sentence(done: Result) -> str:
    """What a user reads, of a mistake that ends with code 2."""
    if isinstance(done.exception, SystemExit):
        assert done.exit_code == 2, done.output
        return " ".join(done.stderr.split())
    assert isinstance(done.exception, ValueError | OSError), done.output
    return " ".join(str(done.exception).split())


def made_run(folder: Path, *, flip: bool) -> None:
    """What a training leaves, without the training: a config with a set of pairs, and a model."""
    choice = f"{{name: pairs, path: {folder.parent / 'mine.txt'}, root: {folder.parent / 'crops'}}}"
    data = f"data={{name: folder, path: {folder.parent / 'crops'}}}"
    config = runs.resolve(
        load_config(
            "quickstart",
            [*SMALL[3:], data, f"evaluation.sets=[{choice}]", f"evaluation.flip={flip}".lower()],
        )
    )
    save_model(
        folder / "model",
        build_backbone(config.backbone.name, seed=3, **config.backbone.options),
        name=config.backbone.name,
        options=config.backbone.options,
        preprocessing=Preprocessing(input_size=32),
        flip=flip,
        extra={"head": config.head.model_dump(mode="json")},
    )
    (folder / "config.yaml").write_text(dump_config(config))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("options")
    faces(place / "crops", 12, 4)
    pair_list(place, place / "mine.txt")
    made_run(place / "run", flip=True)
    render_ijb(place / "ijb", people=4)
    for kind in ("gallery", "probe"):
        faces(place / "search" / kind, 4, 2)
    mega = place / "mega"
    faces(mega / "facescrub", 3, 2)
    faces(mega / "megaface", 5, 1, seed=9)
    probes = [f"p{person}/{shot}.png" for person in range(3) for shot in range(2)]
    lists = mega / "templatelists"
    write_list(lists / "facescrub_features_list.json", probes, people=[name[:2] for name in probes])
    write_list(lists / "megaface_features_list.json_5_1", [f"p{n}/0.png" for n in range(5)])
    generate_megaface(place / "features", scale=0.001, dim=8)
    names = [p.relative_to(place / "crops").as_posix() for p in place.glob("crops/*/*.png")]
    np.save(place / "x.npy", np.random.default_rng(0).normal(size=(len(names), 6)).astype("f4"))
    (place / "x.txt").write_text("".join(f"{name}\n" for name in names))
    return place


@pytest.fixture
def place(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What evaluate may be asked, and which options that leaves without a meaning.
MODES = {
    "own sets": ["run"],
    "sets": ["run", "--on", "mine.txt"],
    "ijb": ["run", "--protocol", "ijb-c"],
    "megaface": ["run", "--protocol", "megaface"],
    "identification": ["run", "--protocol", "identification"],
    "saved, sets": ["--embeddings", "x.npy", "--on", "mine.txt"],
    "saved, ijb": ["--embeddings", "x.npy", "--protocol", "ijb-c"],
    "saved, megaface": ["--embeddings", "features", "--protocol", "megaface"],
    "saved, identification": ["--embeddings", "x.npy", "--protocol", "identification"],
}
SAVED = {mode for mode in MODES if mode.startswith("saved")}
IJB = {"ijb", "saved, ijb"}
MEGAFACE = {"megaface", "saved, megaface"}
IDENTIFICATION = {"identification", "saved, identification"}
# Option: a fine value, a value that nothing can be made of (None: every value is fine, or typer
# itself refuses it), and the modes that do not know the option.
EVALUATE: dict[str, tuple[list[str], list[str] | None, set[str]]] = {
    "--on": (["mine.txt"], None, {*IJB, *MEGAFACE, *IDENTIFICATION}),
    "--protocol": (["ijb-c"], ["ijbc"], set()),
    "--embeddings": (["x.npy"], None, set()),  # makes another mode of it
    "--root": (["crops"], ["nope"], {"own sets", "saved, sets", "saved, identification"}),
    "--output": (["out"], ["mine.txt/out"], set()),
    "--checkpoint": (["best"], ["bets"], set(MODES) - {"own sets"}),
    "--part": (["1:1"], ["1:2"], set(MODES) - IJB),
    "--norm": (["unit"], ["l2"], set(MODES) - IJB),
    "--detector-weights": ([], None, set(MODES) - IJB),
    "--mirrored": ([], None, set(MODES) - SAVED),
    "--distractors": (["5"], ["7"], set(MODES) - MEGAFACE),
    "--refined": ([], None, set(MODES) - MEGAFACE),
    "--noisy-probes": (["centre"], None, set(MODES)),  # needs --refined
    "--pooling": (["max"], ["sum"], set(MODES) - IDENTIFICATION),
    "--fmr": (["0.1"], None, set(MODES)),  # of --protocol groups, as the next two
    "--pairs": (["mine.txt"], None, set(MODES)),
    "--groups": (["groups.csv"], None, set(MODES)),
    "--missing": (["skip"], ["leave"], set()),
    "--flip": ([], None, SAVED),
    "--workers": (["2"], None, SAVED),
    "--batch-size": (["9"], None, SAVED),
    "--device": (["cpu"], ["gpu"], SAVED),
}
ROOTS = {"ijb": "ijb", "megaface": "mega", "identification": "search"}


def rooted(mode: str, option: str) -> list[str]:
    """The words of a mode that lacks nothing but the option in question."""
    words = list(MODES[mode])
    kind = mode.removeprefix("saved, ")
    if option != "--root" and kind in ROOTS and mode not in EVALUATE["--root"][2]:
        words += ["--root", "features" if mode == "saved, megaface" else ROOTS[kind]]
    if option != "--root" and mode == "sets":
        words += ["--root", "crops"]
    return words


REFUSED = [(option, mode) for option, (_, _, modes) in EVALUATE.items() for mode in sorted(modes)]
OBEYED = [
    (option, mode)
    for option, (_, nonsense, modes) in EVALUATE.items()
    if nonsense is not None
    for mode in MODES
    if mode not in modes and option not in MODES[mode]
]


@pytest.mark.parametrize(("option", "mode"), REFUSED)
def test_evaluate_refuses_an_option_that_would_change_nothing(
    option: str, mode: str, place: Path
) -> None:
    before = set(place.iterdir())
    said = sentence(run("evaluate", *rooted(mode, option), option, *EVALUATE[option][0]))
    # Sets after --on are named themselves: '--protocol has its own images; leave out mine.txt'.
    assert (option if option != "--on" else "leave out mine.txt") in said
    assert set(place.iterdir()) == before


@pytest.mark.parametrize(("option", "mode"), OBEYED)
def test_evaluate_looks_at_every_other_option(option: str, mode: str, place: Path) -> None:
    nonsense = EVALUATE[option][1]
    assert nonsense is not None
    said = sentence(run("evaluate", *rooted(mode, option), option, *nonsense))
    assert nonsense[0] in said
    assert f"{option} is for" not in said


# The other commands: option, and every way to give it that must be refused, with the sentence.
ALWAYS: list[tuple[list[str], str]] = []
ENROLLING = ["--gallery", "g", "--model", "run"]
COMMANDS: dict[str, dict[str, list[tuple[list[str], str]]]] = {
    "train": {
        "--output": ALWAYS,
        "--overwrite": ALWAYS,
        "--data": [(["quickstart", "--data", "."], "--data: the recipe 'quickstart' names no")],
        "--dry-run": ALWAYS,
    },
    "resume": {},
    "sweep": {
        "--seeds": ALWAYS,
        "--output": ALWAYS,
        "--runs": ALWAYS,
        "--jobs": ALWAYS,
        "--dry-run": ALWAYS,
    },
    "compare": {"--output": ALWAYS},
    "calibrate": {
        "--on": ALWAYS,
        "--root": [
            (["run", "--root", "crops"], "--root is for the images of lists named with --on"),
            (["run", "--on", "crops", "--root", "crops"], "--root is for the images of a list"),
            (["run", "--on", "mine.txt", "--root", "nope"], "--root: there is no folder nope"),
        ],
        "--far": ALWAYS,
        "--prior": ALWAYS,
        "--missing": [(["run", "--missing", "leave"], "unknown --missing 'leave'")],
        "--flip": ALWAYS,
        "--workers": [(["run", "--workers", "-3"], "Invalid value for '--workers'")],
        "--device": [(["run", "--device", "gpu"], "got 'gpu'")],
        "--picture": ALWAYS,
    },
    "extract": {
        "--root": [(["run", "crops", "y.npy", "--root", "crops"], "root is for lists")],
        "--overwrite": ALWAYS,
        "--flip": ALWAYS,
        "--workers": [
            (["run", "crops", "y.npy", "--workers", "-3"], "Invalid value for '--workers'")
        ],
        "--batch-size": [
            (["run", "crops", "y.npy", "--batch-size", "0"], "Invalid value for '--batch-size'")
        ],
        "--device": [(["run", "crops", "y.npy", "--device", "gpu"], "got 'gpu'")],
    },
    "import": {
        "--backbone": ALWAYS,
        "--part": ALWAYS,
        "--colour": ALWAYS,
        "--mean": ALWAYS,
        "--scale": ALWAYS,
        "--size": ALWAYS,
        "--embedding": [(["a.pth", "new", "--embedding", "y"], "--embedding is for an ONNX file")],
        "--flip": ALWAYS,
        "--overwrite": ALWAYS,
    },
    "export": {
        "--to": [(["run", "new", "--to", "onxx"], "unknown form of export 'onxx'")],
        "--int8": [(["run", "new", "--int8"], "--int8 needs --calibration-data DIR")],
        "--calibration-data": [
            (["run", "new", "--calibration-data", "crops"], "--calibration-data is for --int8")
        ],
        "--on": [(["run", "new", "--on", "mine.txt"], "--on is for --int8")],
        "--root": [(["run", "new", "--root", "crops"], "--root is for --int8")],
        "--most-loss": [(["run", "new", "--most-loss", "0.1"], "--most-loss is for --int8")],
        "--workers": [(["run", "new", "--workers", "-3"], "Invalid value for '--workers'")],
    },
    "verify": {
        "--model": ALWAYS,
        "--gallery": [
            (
                ["a.png", "b.png", "--model", "run", "--gallery", "g"],
                "'b.png' has no meaning",
            ),
            (["a.png", "--model", "run", "--gallery", "g"], "--gallery needs --person"),
        ],
        "--person": [
            (["a.png", "b.png", "--model", "run", "--person", "Al"], "--person goes with --gallery")
        ],
        "--collection": [
            (["a.png", "b.png", "--model", "run", "--collection", "x"], "--collection goes with")
        ],
        "--false-accepts": ALWAYS,
        "--prior": ALWAYS,
        "--choose": ALWAYS,
        "--crops": ALWAYS,
        "--flip": ALWAYS,
        "--show": ALWAYS,
        "--json": ALWAYS,
    },
    "enroll": {
        "--gallery": ALWAYS,
        "--model": ALWAYS,
        "--folder": [
            (["Al", "a.png", *ENROLLING, "--folder", "crops"], "'Al' has no meaning beside"),
            ([*ENROLLING, "--folder", "nope"], "there is no folder nope"),
        ],
        "--collection": ALWAYS,
        "--metadata": [
            ([*ENROLLING, "--folder", "crops", "--metadata", "{}"], "--metadata has no meaning"),
            (["Al", "a.png", *ENROLLING, "--metadata", "[1]"], "--metadata"),
        ],
        "--allow": [(["Al", "a.png", *ENROLLING, "--allow", "blured"], "did you mean 'blurred'")],
        "--limit": [
            (["Al", "a.png", *ENROLLING, "--limit", "blurred"], "'blurred' is not a limit"),
            (["Al", "a.png", *ENROLLING, "--limit", "blurred=-1"], "must be above 0"),
            (["Al", "a.png", *ENROLLING, "--limit", "blur=3"], "unknown check 'blur'"),
        ],
        "--keep-crops": ALWAYS,
        "--choose": ALWAYS,
        "--crops": ALWAYS,
        "--flip": ALWAYS,
        "--json": ALWAYS,
    },
    "identify": {
        "--gallery": ALWAYS,
        "--model": ALWAYS,
        "--collection": ALWAYS,
        "--people": [(["a.png", *ENROLLING, "--people", "0"], "Invalid value for '--people'")],
        "--false-alarms": [
            (["a.png", *ENROLLING, "--false-alarms", "seldom"], "'seldom' is not a rate"),
            (
                ["a.png", *ENROLLING, "--false-alarms", "0.1", "--false-accepts", "0.1"],
                "exclude each other",
            ),
        ],
        "--false-accepts": [(["a.png", *ENROLLING, "--false-accepts", "2"], "'2' is not a rate")],
        "--prior": ALWAYS,
        "--choose": ALWAYS,
        "--crops": ALWAYS,
        "--flip": ALWAYS,
        "--show": [
            (["a.png", "b.png", *ENROLLING, "--show", "x.png"], "--show draws one photo"),
            (["a.png", *ENROLLING, "--show", "x.pdf"], "ends in .png"),
        ],
        "--json": ALWAYS,
    },
    "group": {
        "--model": ALWAYS,
        "--false-accepts": [(["crops", "new", "--false-accepts", "2"], "'2' is not a rate")],
        "--threshold": ALWAYS,
        "--crops": [(["mine.txt", "new", "--photos"], "--photos is for photos, not for saved")],
        "--detector": [(["mine.txt", "new", "--detector", "yunet"], "--detector is for photos")],
        "--min-face": [(["mine.txt", "new", "--min-face", "30"], "--min-face is for photos")],
        "--flip": [(["mine.txt", "new", "--no-flip"], "--no-flip is for photos")],
        "--folders": ALWAYS,
        "--afresh": ALWAYS,
        "--workers": [
            (["mine.txt", "new", "--workers", "2"], "--workers is for photos"),
            (["crops", "new", "--workers", "-3"], "Invalid value for '--workers'"),
        ],
        "--json": ALWAYS,
    },
    "regroup name": {"--json": ALWAYS},
    "regroup merge": {"--json": ALWAYS},
    "regroup split": {"--json": ALWAYS},
    "regroup undo": {"--json": ALWAYS},
    "serve": dict.fromkeys(
        [
            "--gallery",
            "--host",
            "--port",
            "--keys",
            "--workers",
            "--false-accepts",
            "--detector",
            "--flip",
            "--origin",
            "--proxy",
            "--rate",
            "--burst",
            "--max-upload",
            "--max-pixels",
            "--max-faces",
            "--max-batch",
            "--max-pending",
            "--deadline",
        ],
        ALWAYS,
    ),
    "gallery list": {"--collection": ALWAYS, "--json": ALWAYS},
    "gallery show": {"--collection": ALWAYS, "--json": ALWAYS},
    "gallery remove": {
        "--photo": [
            (["g", "Al", "--photo", "x"], "only one of the two"),
            (["g"], "only one of the two"),
        ],
        "--collection": ALWAYS,
        "--json": ALWAYS,
    },
    "gallery rename": {"--collection": ALWAYS, "--json": ALWAYS},
    "gallery merge": {"--collection": ALWAYS, "--json": ALWAYS},
    "gallery export": {"--collection": ALWAYS, "--json": ALWAYS},
    "gallery doctor": {
        "--model": ALWAYS,
        "--flip": [(["g", "--no-flip"], "--no-flip is for --model")],
        "--collection": ALWAYS,
        "--allow": [(["g", "--allow", "smal"], "unknown check 'smal'")],
        "--limit": [(["g", "--limit", "too-small=x"], "is not a limit")],
        "--json": ALWAYS,
    },
    "gallery migrate": {
        "--model": [(["g", "g", "--model", "run"], "must not be the old one")],
        "--collection": ALWAYS,
        "--flip": ALWAYS,
        "--json": ALWAYS,
    },
    "gallery reject": {
        "--model": ALWAYS,
        "--person": [(["g", "a.png", "--model", "run"], "--person NAME or --stranger")],
        "--stranger": [
            (
                ["g", "a.png", "--model", "run", "--person", "Al", "--stranger"],
                "only one of the two",
            )
        ],
        "--collection": ALWAYS,
        "--choose": ALWAYS,
        "--crops": ALWAYS,
        "--flip": ALWAYS,
        "--json": ALWAYS,
    },
    "gallery unreject": {"--collection": ALWAYS, "--json": ALWAYS},
    "gallery strangers": {"--collection": ALWAYS, "--json": ALWAYS},
    "generate": {
        "--scale": ALWAYS,
        "--seed": ALWAYS,
    },
    "align": {
        "--detector": ALWAYS,
        "--size": ALWAYS,
        "--choose": ALWAYS,
        "--min-face": ALWAYS,
        "--format": ALWAYS,
        "--workers": [(["crops", "new", "--workers", "-3"], "Invalid value for '--workers'")],
        "--yunet-model": [(["crops", "new", "--yunet-model", "x"], "is for --detector yunet")],
    },
    "inspect": {
        "--root": [(["crops", "--root", "crops"], "root is for lists")],
        "--model": ALWAYS,
        "--embeddings": [
            (["crops", "--model", "run", "--embeddings", "x.npy"], "--embeddings and --model excl")
        ],
        "--output": ALWAYS,
        "--workers": [(["crops", "--workers", "-3"], "Invalid value for '--workers'")],
        "--false-alarms": [
            (["crops", "--false-alarms", "0.2"], "--false-alarms is for --model"),
            (
                ["crops", "--model", "run", "--false-alarms", "0.2", "--threshold", "0"],
                "--false-alarms and --threshold exclude each other",
            ),
        ],
        "--threshold": [(["crops", "--threshold", "0.2"], "--threshold is for --model")],
        "--device": [(["crops", "--device", "cpu"], "--device is for --model")],
        "--json": ALWAYS,
        "--augment": [
            (["crops", "--augment", "storng"], "unknown augmentation 'storng'; did you mean"),
            (["crops", "--augment", "{name: light, rotation: 200}"], "must be at most 180"),
            (["crops", "--augment", "[light]"], "--augment must be a name, such as light"),
            (["crops", "--augment", "light", "--json"], "--json is not for --augment"),
        ],
        "--input-size": [(["crops", "--input-size", "48"], "--input-size is for --augment")],
    },
    "convert": {
        "--root": [(["crops", "new.rec", "--root", "crops"], "root is for lists")],
        "--format": ALWAYS,
        "--on-bad-image": ALWAYS,
        "--overwrite": ALWAYS,
        "--workers": [
            (["crops", "new.rec", "--workers", "-3"], "Invalid value for '--workers'"),
            (["mine.txt", "new.bin", "--root", "crops", "--workers", "2"], "--workers is for"),
        ],
    },
    "reproduce": {
        "--list": [
            (["--list", "principles"], "'principles' has no meaning beside --list"),
            (["--list", "--dry-run"], "--dry-run has no meaning beside --list"),
        ],
        "--scale": [(["--list", "--scale", "paper"], "--scale has no meaning beside --list")],
        "--data": [(["principles", "--data", "."], "--data goes with --scale paper")],
        "--seeds": [(["fig-features-2d", "--seeds", "5"], "--seeds is for runs")],
        "--jobs": [(["fig-features-2d", "--jobs", "5"], "--jobs is for runs")],
        "--output": ALWAYS,
        "--dry-run": ALWAYS,
    },
    "recipes": {},
    "heads": {},
    "backbones": {},
}


def all_commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Those of groups as well: "gallery list"."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{name} ")
        else:
            yield f"{before}{name}", command


def all_options() -> Iterator[tuple[str, str]]:
    for command, parsed in all_commands(typer.main.get_command(app)):
        for each in parsed.get_params(typer.Context(parsed)):
            if each.param_type_name == "option" and each.name != "help":
                yield command, each.opts[0]


def test_the_tables_here_know_every_option_of_every_command() -> None:
    known = {("evaluate", option) for option in EVALUATE}
    known |= {(command, option) for command, options in COMMANDS.items() for option in options}
    assert set(all_options()) == known


@pytest.mark.parametrize(
    ("command", "words", "part"),
    [
        (command, words, part)
        for command, options in COMMANDS.items()
        for refused in options.values()
        for words, part in refused
    ],
)
def test_other_commands_refuse_what_would_change_nothing(
    command: str, words: list[str], part: str, place: Path
) -> None:
    before = set(place.iterdir())
    assert part in sentence(run(*command.split(), *words))
    assert set(place.iterdir()) == before


def scores(folder: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    _, (each,) = load_scores(folder / "scores.npz")
    return each.scores


def test_a_runs_own_sets_are_scored_as_the_options_say(place: Path) -> None:
    made_run(place / "mine", flip=True)
    done = run("evaluate", "mine", "--no-flip", "--output", "plain", "--batch-size", "5")
    assert done.exit_code == 0, done.output
    assert "report: plain/report.html" in done.stdout
    assert not (place / "mine" / "evaluation.json").exists()
    config = EvaluationResult.load(place / "plain" / "evaluation.json").config
    assert config["evaluation"]["flip"] is False
    assert config["evaluation"]["batch_size"] == 5
    more = ["--workers", "3", "--device", "cpu"]
    assert run("evaluate", "mine", "evaluation.flip=false", *more).exit_code == 0
    config = EvaluationResult.load(place / "mine" / "evaluation.json").config
    assert (config["training"]["workers"], config["device"]) == (3, "cpu")
    # Unlike what the model does by itself, which is said wherever the result is.
    note = "scored without mirror images, though this model embeds with them by itself"
    assert note in done.stdout
    assert note in (place / "plain" / "report.html").read_text()
    assert note in EvaluationResult.load(place / "mine" / "evaluation.json").notes
    # The very scores that the same images give after --on; with mirror images they are others.
    words = ["mine", "--on", "mine.txt", "--root", "crops", "--output"]
    assert note in run("evaluate", *words, "on", "--no-flip").stdout
    np.testing.assert_allclose(scores(place / "plain"), scores(place / "mine"), atol=1e-6)
    np.testing.assert_allclose(scores(place / "plain"), scores(place / "on"), atol=1e-6)
    assert "mirror images" not in run("evaluate", *words, "flipped").stdout
    assert np.abs(scores(place / "plain") - scores(place / "flipped")).max() > 1e-3
    flips = [load_scores(place / name / "scores.npz")[1][0].flip for name in ("on", "flipped")]
    assert flips == [False, True]
    # Side by side they are not a comparison of models.
    mixed = run("compare", "flipped", "plain", "on", "--output", "mixed.html")
    warning = "flipped scored with mirror images, plain, on without: part of the difference may"
    assert warning in mixed.stdout
    assert warning in (place / "mixed.html").read_text()
    assert "mirror images" not in run("compare", "plain", "on").stdout


def test_a_dry_run_says_where_the_run_would_go(place: Path) -> None:
    words = ["train", "quickstart", *SMALL, "--dry-run", "--output"]
    assert "would be trained in new" in run(*words, "new").stdout
    assert "run already holds a run" in " ".join(run(*words, "run").stdout.split())
    assert "trained in run, what is there replaced" in run(*words, "run", "--overwrite").stdout
    assert (
        "3 runs, 0 done already, 2 at once"
        in run("sweep", "quickstart", *SMALL, "--dry-run", "--jobs", "2").stdout
    )


# -- images without an embedding -------------------------------------------------------------------


@pytest.fixture
def damaged(place: Path) -> Path:
    """The crops without one image and with one that cannot be read, and a run on pairs of them."""
    (place / "crops").unlink()
    (place / "mine.txt").unlink()
    faces(place / "crops", 12, 4)
    pair_list(place, place / "mine.txt")
    made_run(place / "own", flip=True)
    (place / "crops" / "p3" / "0.png").unlink()
    (place / "crops" / "p5" / "1.png").write_bytes(b"not an image")
    return place


def lost(place: Path, *gone: str) -> int:
    lines = (place / "mine.txt").read_text().splitlines()
    return sum(any(name in line for name in gone) for line in lines)


WAYS = {
    "sets": ["own", "--on", "mine.txt", "--root", "crops", "--output", "out"],
    "own sets": ["own", "--output", "out"],
}


@pytest.mark.parametrize("way", WAYS)
def test_images_that_cannot_be_read_stop_an_evaluation_or_are_left_out(
    way: str, damaged: Path
) -> None:
    said = sentence(run("evaluate", *WAYS[way]))
    assert "p3/0.png" in said
    own = way == "own sets"
    skip, root = (
        ("evaluation.sets.0.missing=skip", "evaluation.sets.0.root=DIR")
        if own
        else ("--missing skip", "--root DIR")
    )
    assert "1 of the 36 images of" in said
    assert "mine.txt is missing, such as" in said
    assert said.endswith(f"with {root}, or leave out what is missing with {skip}")
    faces(damaged / "spare", 12, 4)
    (damaged / "spare" / "p3" / "0.png").rename(damaged / "crops" / "p3" / "0.png")
    said = sentence(run("evaluate", *WAYS[way]))
    assert "p5/1.png" in said
    assert said.endswith("--missing skip leaves such images out")
    # As it says; what the first try has embedded is of use.
    assert run("evaluate", *WAYS[way], "--missing", "skip").exit_code == 0
    result = EvaluationResult.load(damaged / "out" / "evaluation.json")
    assert result.rows[0].missing_images == 1
    assert result.rows[0].skipped_pairs == lost(damaged, "p5/1.png") > 0
    (damaged / "crops" / "p3" / "0.png").unlink()
    done = run("evaluate", *WAYS[way], "--missing", "skip", "--output", "less")
    assert done.exit_code == 0, done.output
    count = lost(damaged, "p3/0.png", "p5/1.png")
    note = f"mine: 2 images without an embedding, {count} of"
    assert note in " ".join(done.stdout.split())
    assert note in (damaged / "less" / "report.html").read_text()
    for row in EvaluationResult.load(damaged / "less" / "evaluation.json").rows:
        assert (row.missing_images, row.skipped_pairs) == (2, count)
        assert row.pairs == len((damaged / "mine.txt").read_text().splitlines()) - count
    # Embeddings that may lack some are not taken for all.
    assert skip in sentence(run("evaluate", *WAYS[way], "--output", "less"))


@pytest.mark.parametrize("way", [["--on", "mine.txt", "--root", "crops"], []])
def test_calibrate_leaves_images_out_where_it_is_asked_to(way: list[str], damaged: Path) -> None:
    said = sentence(run("calibrate", "own", *way))
    assert "p3/0.png" in said
    assert said.endswith("or leave out what is missing with --missing skip")
    done = run("calibrate", "own", *way, "--missing", "skip")
    assert done.exit_code == 0, done.output
    kept = json.loads((damaged / "own" / "model" / "config.json").read_text())["calibration"]
    lines = (damaged / "mine.txt").read_text().splitlines()
    assert kept["pairs"] == len(lines) - lost(damaged, "p3/0.png", "p5/1.png")
    faces(damaged / "spare", 12, 4)
    (damaged / "spare" / "p3" / "0.png").rename(damaged / "crops" / "p3" / "0.png")
    said = sentence(run("calibrate", "own", *way))
    assert "p5/1.png" in said
    assert said.endswith("--missing skip leaves such images out")


def test_a_set_among_the_changes_of_a_run_is_pointed_to_its_option(place: Path) -> None:
    said = sentence(run("evaluate", "run", "crops"))
    assert said.endswith("'crops' is not KEY=VALUE; to judge the model on it, use --on crops")
    assert "give one with --on SET" in sentence(run("evaluate", "run", "evaluation.sets=[]"))


def test_odd_pairs_are_noted_with_saved_embeddings(place: Path) -> None:
    lines = (place / "mine.txt").read_text().splitlines()
    name = lines[0].split()[0]
    (place / "odd.txt").write_text("\n".join([f"{name} {name} 1", *lines]) + "\n")
    words = ["evaluate", "--embeddings", "x.npy", "--on", "odd.txt", "crops", "--output", "out"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    note = "set odd: an image is paired with itself in pair 1, which any"
    assert note in done.stdout
    (kept,) = EvaluationResult.load(place / "out" / "evaluation.json").notes
    assert kept.startswith(note)


def test_saved_embeddings_may_lack_some_images(place: Path) -> None:
    names = (place / "x.txt").read_text().splitlines()
    lines = (place / "mine.txt").read_text().splitlines()
    gone = lines[0].split()[0]
    np.save(place / "y.npy", np.load(place / "x.npy")[[name != gone for name in names]])
    (place / "y.txt").write_text("".join(f"{name}\n" for name in names if name != gone))
    words = ["evaluate", "--embeddings", "y.npy", "--on", "mine.txt", "--output", "out"]
    said = sentence(run(*words))
    assert f"1 of 36 images of the list has no embedding ({gone}); --missing skip leaves" in said
    done = run(*words, "--missing", "skip")
    assert done.exit_code == 0, done.output
    (row,) = EvaluationResult.load(place / "out" / "evaluation.json").rows
    assert "mine: 1 image without an embedding" in " ".join(done.stdout.split())
    count = sum(gone in line for line in lines)
    assert (row.missing_images, row.skipped_pairs, row.pairs) == (1, count, len(lines) - count)


MISTAKES = [
    (["evaluate", "net.onnx"], "net.onnx says nothing about the pixels that it takes"),
    (["evaluate", "net.onnx", "--on", "mine.txt"], "sphereface2 import net.onnx FOLDER"),
    (["evaluate", "--embeddings", "crops", "--on", "mine.txt"], "crops is a folder, where one"),
    (["evaluate", "--embeddings", "bad.pt", "--on", "mine.txt"], "bad.pt cannot be read as a"),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES)
def test_what_evaluate_cannot_judge_is_named(words: list[str], part: str, place: Path) -> None:
    (place / "net.onnx").write_bytes(b"onnx")
    torch.save({"a": Path("x")}, place / "bad.pt")
    said = sentence(run(*words))
    assert part in said
    assert "weights_only" not in said


@pytest.mark.usefixtures("quick_processes")
def test_a_full_disk_is_named_with_its_file(place: Path) -> None:
    """A limit on the size of files stands for a disk without room: the writing fails alike."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); "
        "from sphereface2.cli import main; sys.argv[0] = 'sphereface2'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "extract", "run", "crops", "y.npy", "--device", "cpu"],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "sphereface2: cannot write to y.npy: file too large; nothing is" in done.stderr
    assert not (place / "y.npy.partial").exists()
