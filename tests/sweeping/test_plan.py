"""Planning: names of runs, and every mistake found before a run starts."""

import hashlib
import shlex
from pathlib import Path

import pytest

from sphereface2.config import dump_config, load_config
from sphereface2.runs import resolve
from sphereface2.sweeping.checking import check_buildable
from sphereface2.sweeping.engine import look_up_runs, measured, run_sweep
from sphereface2.sweeping.grid import Setting, Sweep
from sphereface2.sweeping.plan import plan_sweep, train_command
from tests.sweeping.tiny import pretend_done, tiny_sweep, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("tiny"))


def test_a_run_is_named_after_its_resolved_config(recipe: Path) -> None:
    run = plan_sweep(tiny_sweep(recipe, "head.margin=0.2", seeds=(7,)))[0]
    config = resolve(load_config(recipe, ["head.margin=0.2", "seed=7"]))
    digest = hashlib.sha256(dump_config(config).encode()).hexdigest()
    assert run.name == f"sphereface2-c-{digest[:10]}"
    assert run.config_yaml == dump_config(config)
    words = shlex.split(train_command(str(recipe), run, runs=Path("my runs")))
    assert words[:2] == ["sphereface2", "train"]
    assert resolve(load_config(words[2], words[3:5])) == config
    assert words[5:] == ["--output", f"my runs/{run.name}"]


def test_spelling_out_a_default_is_the_same_run(recipe: Path) -> None:
    one = plan_sweep(tiny_sweep(recipe, "training.flip=true"))[0]
    other = plan_sweep(tiny_sweep(recipe, "optimizer.momentum=0.9"))[0]
    assert one.name == other.name


@pytest.mark.parametrize(
    ("overrides", "seeds", "part"),
    [
        ((), (0,), "no settings"),
        (("head.margin=0.2",), (), "no seeds"),
        (("head.margin=0.2",), (1, 2, 1), "seed 1 is given twice"),
        (("head.margin=0.2", "head.m=0.2"), (0,), "come to the same config"),
        (("head.margin=0.2", "head.margin=0.2"), (0,), "same config|are called"),
        (("seed=3",), (0,), "--seeds"),
        (("head.margn=0.2",), (0,), "did you mean 'margin'"),
        (("head.name=cosfcae",), (0,), "did you mean 'cosface'"),
        (("training.epoch=2",), (0,), "did you mean 'training.epochs'"),
        (("head.margin=big",), (0,), "head.margin"),
        (("evaluation.sets=[]",), (0,), "nothing to measure"),
    ],
)
def test_mistakes_are_found_in_the_plan(
    recipe: Path, overrides: tuple[str, ...], seeds: tuple[int, ...], part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        plan_sweep(tiny_sweep(recipe, *overrides, seeds=seeds))


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("head.radius=-1", "setting 'head.radius=-1': .*radius must be above 0"),
        ("training.batch_size=64", "batch_size"),
        ("device=cuda:77", "device=cuda:77"),
        ("data.path=nowhere", "nowhere"),
        ("evaluation.sets.0.path=gone.txt", "gone.txt"),
    ],
)
def test_what_only_building_shows_is_found_before_the_first_run(
    recipe: Path, tmp_path: Path, override: str, part: str
) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2", override)
    with pytest.raises((ValueError, FileNotFoundError), match=part):
        run_sweep(sweep, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_good_plan_can_be_built(recipe: Path) -> None:
    check_buildable(plan_sweep(tiny_sweep(recipe, "head.margin=0.2", "head.name=cosface")))


def test_what_is_done_is_collected_without_running(recipe: Path, tmp_path: Path) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2", "head.margin=0.3", seeds=(0, 5))
    nothing = measured(sweep, runs=tmp_path)
    assert (nothing.columns, nothing.judged_by) == (("combined",), "combined")
    assert [row.runs for row in nothing.rows] == [(), ()]
    pretend_done(tiny_sweep(recipe, "head.margin=0.3", seeds=(5,)), tmp_path)
    result = measured(sweep, runs=tmp_path)
    assert result.columns == ("plain", "cross-age", "combined")
    assert [len(row.runs) for row in result.rows] == [0, 1]
    row = result.rows[1]
    assert row.runs[0].seed == 5
    assert 50 < row.runs[0].values["combined"] <= 100
    assert (row.method, row.overrides) == ("sphereface2-c", ("head.margin=0.3",))
    assert "seed: 0" in row.config.splitlines()


def test_a_foreign_evaluation_does_not_count_as_done(recipe: Path, tmp_path: Path) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2")
    other = tiny_sweep(recipe, "head.margin=0.3")
    pretend_done(other, tmp_path)
    own, foreign = (tmp_path / plan_sweep(each)[0].name for each in (sweep, other))
    own.mkdir()
    (own / "evaluation.json").write_bytes((foreign / "evaluation.json").read_bytes())
    assert measured(sweep, runs=tmp_path).rows[0].runs == ()
    (own / "evaluation.json").write_text("{")
    assert measured(sweep, runs=tmp_path).rows[0].runs == ()
    (own / "config.yaml").write_bytes((foreign / "config.yaml").read_bytes())
    with pytest.raises(ValueError, match="not the config that its folder is named after"):
        look_up_runs(sweep, runs=tmp_path)


def test_settings_carry_what_the_paper_says(recipe: Path, tmp_path: Path) -> None:
    setting = Setting("ours", ("head.margin=0.2",), {"combined": 93.4})
    sweep = Sweep(
        "t", "T", str(recipe), (setting,), (0,), "Table 2", "small", "c", {"combined": "All"}
    )
    result = measured(sweep, runs=tmp_path)
    assert result.rows[0].published == {"combined": 93.4}
    assert (result.where, result.command) == ("Table 2", "c")
    assert result.published_columns == {"combined": "All"}
