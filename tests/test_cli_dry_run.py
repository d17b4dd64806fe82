"""`train --dry-run` as a user meets it."""

from pathlib import Path

from tests.test_cli import run
from tests.test_runs import SETS, SMALL

TINY = ["backbone.name=sfnet4", "backbone.width=4", "training.batch_size=8", "device=cpu"]


def test_a_dry_run_says_what_it_needs_and_writes_nothing(tmp_path: Path) -> None:
    done = run("train", "quickstart", *SMALL, *SETS, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for part in (
        "training data synthetic: built in",
        "verification data synthetic: built in",
        "48 of 12 people (counted in the data)",
        "steps 6 of 16 images (2 epochs)",
        "image passes 96",
        "head",
        "memory",
        "activations in float32",
        "checkpoint",
        "time on this machine",
        "timed on cpu with 1 thread",
        "at N images/s: 96 / N seconds",
    ):
        assert part in text, part
    assert not list(tmp_path.iterdir())


def test_missing_data_are_no_mistake(tmp_path: Path) -> None:
    words = ["train", "vggface2-sfnet64", *TINY, "--dry-run", "--data", str(tmp_path)]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "folder: missing, path not given yet" in text
    assert "3,141,890 of 8,631 people (VGGFace2 as published" in text
    assert "80,000 of 8 images" in text
    assert "lacks VGGFace2 (vggface2/, vggface2.rec" in text


def test_other_mistakes_are(tmp_path: Path) -> None:
    done = run("train", "quickstart", "head.radis=3", "--dry-run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'radius'?" in done.stderr
    done = run("train", "vggface2-sfnet20", "--data", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert "--data: nowhere does not exist" in done.stderr
    done = run("train", "own-faces", "--data", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "names no public data set; give data.path=PATH instead" in done.stderr
