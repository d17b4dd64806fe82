"""The config of a run: what is read, merged, overridden, refused, and written."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from sphereface2.config import loading as recipes_module
from sphereface2.config.loading import dump_yaml, parse_yaml, recipes
from sphereface2.config.schema import (
    AverageConfig,
    Choice,
    RunConfig,
    config_from_mapping,
    dump_config,
    load_config,
)

MINIMAL = """\
data: synthetic
backbone: {name: sfnet4, width: 8}
head: {name: sphereface2-c, radius: 30, sharpness: 3}
training: {epochs: 4}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    return path


# Ten aliases of ten aliases of ...: 10^40 values in two kilobytes; and one alias inside another.
BOMB = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 40)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 900))


def sentence(source: Path | str, *overrides: str) -> str:
    """What the user reads, checked to be one line."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_config(source, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert text
    return text


# Recipes


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_every_recipe_loads_and_has_a_summary(recipe: recipes_module.Recipe) -> None:
    assert 20 < len(recipe.summary) < 100
    wanted = ("data.path", "training.start_from")
    config = load_config(recipe.name, [f"{key}=x" for key in wanted if key in recipe.summary])
    assert config_from_mapping(parse_yaml(dump_config(config), origin="dump")) == config


def test_the_papers_settings() -> None:
    config = load_config("vggface2-sfnet64", ["data.path=crops"])
    assert config.backbone == Choice(name="sfnet64")
    assert config.head.options == {
        "radius": 40,
        "margin": 0.4,
        "balance": 0.7,
        "sharpness": 3,
    }
    assert (config.training.batch_size, config.training.steps) == (512, 80000)
    assert config.schedule.milestones == (40000, 60000)
    assert config.optimizer.weight_decay == 5e-4


def test_a_value_that_only_the_user_knows_is_asked_for() -> None:
    assert sentence("own-faces") == "data.path has no value yet; give it as data.path=VALUE"
    # A misspelt key is the reason, where there is one.
    misspelt = sentence("fine-tune", "training.start_form=runs/first", "data.path=crops")
    assert "unknown key 'training.start_form'; did you mean 'training.start_from'" in misspelt


def test_an_unknown_recipe_suggests_and_lists() -> None:
    text = sentence("quikstart")
    assert text.startswith("unknown recipe 'quikstart'; did you mean 'quickstart'? (recipes: ")
    assert "vggface2-sfnet20" in text


def test_a_recipes_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quickstart").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart").head.name == "sphereface2-c"
    assert "quickstart is not a run folder: it holds no config.yaml" in sentence("./quickstart")


# Bases


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_base_is_merged_section_by_section(file: Path) -> None:
    path = write(file.parent, "mine.yaml", "base: run.yaml\nhead: {radius: 40}\nseed: 3\n")
    config = load_config(path)
    assert config.head == Choice.model_validate(
        {"name": "sphereface2-c", "radius": 40, "sharpness": 3}
    )
    assert (config.seed, config.training.epochs, config.data.name) == (3, 4, "synthetic")


@pytest.mark.parametrize("head", ["cosface", "{name: cosface}"])
def test_a_new_name_drops_the_bases_options(file: Path, head: str) -> None:
    path = write(file.parent, "mine.yaml", f"base: run.yaml\nhead: {head}\n")
    assert load_config(path).head == Choice(name="cosface")


def test_the_same_name_keeps_the_bases_options(file: Path) -> None:
    path = write(file.parent, "mine.yaml", "base: run.yaml\nhead: {name: sphereface2-c, t: 1}\n")
    assert load_config(path).head.options == {"radius": 30, "t": 1}


def test_a_base_may_be_a_recipe_and_lists_are_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "base: quickstart\nevaluation: {sets: [pairs]}\n")
    config = load_config(path)
    assert config.evaluation.sets == (Choice(name="pairs"),)
    assert config.training == load_config("quickstart").training


def test_steps_replace_the_bases_epochs(file: Path) -> None:
    path = write(file.parent, "mine.yaml", "base: run.yaml\ntraining: {steps: 50}\n")
    training = load_config(path).training
    assert (training.epochs, training.steps) == (None, 50)


def test_bases_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "base: b.yaml\n")
    write(tmp_path, "b.yaml", f"base: ../{tmp_path.name}/a.yaml\n")
    assert "recipes form a cycle" in sentence(tmp_path / "a.yaml")


def test_a_base_that_is_not_a_name_is_refused(tmp_path: Path) -> None:
    assert "base must be the name of a recipe" in sentence(write(tmp_path, "a.yaml", "base: [1]"))


def test_a_base_that_is_unknown_is_refused(tmp_path: Path) -> None:
    assert "did you mean 'quickstart'" in sentence(write(tmp_path, "a.yaml", "base: quickstat"))


# Overrides


def test_overrides_are_read_as_yaml(file: Path) -> None:
    config = load_config(
        file,
        [
            "optimizer.learning_rate=1e-1",
            "training.steps=1e5",
            "training.flip=no",
            "schedule.name=step",
            "schedule.milestones=[1e3, 2000]",
            "schedule.unit=steps",
            "device=cuda:1",
            "training.clip_norm=null",
        ],
    )
    assert config.optimizer.learning_rate == 0.1
    assert config.training.steps == 100_000
    assert isinstance(config.training.steps, int)
    assert config.training.epochs is None
    assert config.training.flip is False
    assert config.schedule.milestones == (1000, 2000)
    assert config.device == "cuda:1"


def test_a_new_head_drops_the_files_options_and_keeps_other_overrides() -> None:
    assert load_config("quickstart", ["head.name=cosface"]).head == Choice(name="cosface")
    for overrides in (["head.name=cosface", "head.scale=30"], ["head.scale=30", "head=cosface"]):
        head = load_config("quickstart", overrides).head
        assert (head.name, head.options) == ("cosface", {"scale": 30})


def test_the_same_head_keeps_the_files_options(file: Path) -> None:
    head = load_config(file, ["head.name=sphereface2-c", "head.radius=40"]).head
    assert head.options == {"radius": 40, "sharpness": 3}


def test_an_average_over_more_epochs_than_there_are_is_refused() -> None:
    few = ["training.epochs=3", "schedule.warmup=0"]
    load_config("quickstart", [*few, "training.average.last_epochs=3"])
    with pytest.raises(ValueError, match=r"last_epochs=4 is more than training\.epochs=3; give"):
        load_config("quickstart", [*few, "training.average.last_epochs=4"])


def test_an_option_can_be_set_where_the_file_gives_the_name_only(file: Path) -> None:
    assert load_config(file, ["data.people=7"]).data.options == {"people": 7}


def test_the_later_override_wins(file: Path) -> None:
    assert load_config(file, ["seed=1", "seed=2"]).seed == 2


def test_entries_of_lists_are_set_by_index(file: Path) -> None:
    sets = "evaluation.sets=[synthetic, {name: pairs, path: p}]"
    config = load_config(
        file, ["evaluation.sets.0.people=50", "evaluation.sets.1.name=synthetic", sets]
    )
    first, second = config.evaluation.sets
    assert first.options == {"people": 50}
    assert (second.name, second.options) == ("synthetic", {})
    text = sentence(file, sets, "evaluation.sets.2.people=1")
    assert text == "evaluation.sets has no entry '2' (entries: 0 to 1)"
    assert "no entry 'first'" in sentence(file, sets, "evaluation.sets.first.people=1")


def test_a_value_may_hold_an_equals_sign(file: Path) -> None:
    assert load_config(file, ["data.path=a=b"]).data.options == {"path": "a=b"}


@pytest.mark.parametrize("override", ["epochs", "", "=3", "training..epochs=3", ".seed=1"])
def test_an_override_of_the_wrong_form_is_shown_the_right_one(file: Path, override: str) -> None:
    text = sentence(file, override)
    assert text.startswith("an override looks like section.key=value")
    assert text.endswith(f"got '{override}'")


def test_an_override_that_is_not_yaml_is_refused(file: Path) -> None:
    assert sentence(file, "head=[1,").startswith("override 'head=[1,', line 1, column ")


# Mistakes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.batchsize=3",
            "unknown key 'training.batchsize'; did you mean 'training.batch_size'?",
        ),
        ("optimzer.momentum=0", "unknown key 'optimzer'; did you mean 'optimizer'?"),
        (
            "training.learning_rate=1",
            "unknown key 'training.learning_rate'; did you mean 'optimizer.learning_rate'?",
        ),
        ("optimizer.lr=1", "unknown key 'optimizer.lr'; did you mean 'optimizer.learning_rate'?"),
        ("training.bs=1", "unknown key 'training.bs'; did you mean 'training.batch_size'?"),
        (
            "bs=1",
            "unknown key 'bs'; did you mean 'training.batch_size' or 'evaluation.batch_size'?",
        ),
        ("epoch=1", "unknown key 'epoch'; did you mean 'training.epochs'?"),
        ("optimizer.warmup=1", "unknown key 'optimizer.warmup'; did you mean 'schedule.warmup'?"),
        (
            "optimizer.gamma=1",
            "unknown key 'optimizer.gamma' (known: name, learning_rate, momentum, weight_decay, "
            "nesterov, betas, eps, decay_norms_and_biases, head_learning_rate, ",
        ),
        (
            "optimizer.name=adam",
            "optimizer.name must be 'sgd', 'adamw' or 'muon', got 'adam'; did ",
        ),
        ("optimizer={name: muon, matrix_step: 1}", "optimizer.matrix_step must be below 1.0, got"),
        ("optimizer={name: muon, nesterov: yes}", "optimizer.nesterov is for optimizer.name=sgd; "),
        ("optimizer.betas=[0.9]", "optimizer.betas must be a longer list, got [0.9]"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas.1 must be below 1.0, got 1.0"),
        ("optimizer.head_learning_rate=0", "optimizer.head_learning_rate must be above 0.0, got"),
        ("optimizer={name: adamw, fused_head: yes}", "optimizer.fused_head is for optimizer.name="),
        ("optimizer={name: adamw, nesterov: yes}", "optimizer.nesterov is for optimizer.name=sgd"),
        ("augmentation=storng", "unknown augmentation 'storng'; did you mean 'strong'?"),
        ("augmentation.rotation=200", "augmentation.rotation: must be at most 180.0, got 200"),
        ("augmentation=3", "augmentation must be a section of 'key: value' lines, got 3"),
        ("augment=light", "unknown key 'augment'; did you mean 'augmentation'?"),
        ("training.average.decay=1", "training.average.decay must be below 1.0, got 1"),
        (
            "training.average.last_epochs=0",
            "training.average.last_epochs must be at least 1, got 0",
        ),
        ("training.average.statistics=9", "give one of training.average.decay and training.avera"),
        ("training.average={decay: 0.9, last_epochs: 2}", "give one of training.average.decay and"),
        ("training.average.dekay=0.9", "unknown key 'training.average.dekay'; did you mean 'train"),
        ("training.average=0.999", "training.average must be a section of 'key: value' lines, go"),
        ("schedule.kind=step", "unknown key 'schedule.kind' (known: name, unit, "),
        ("label_noise={rate: 0.2, share: 1}", "unknown key 'label_noise.share' (known: rate, "),
        ("lr=1", "unknown key 'lr'; did you mean 'optimizer.learning_rate'?"),
        ("zzz=1", "unknown key 'zzz' (known: seed, device, precision, data, "),
        ("seed=x", "seed must be a whole number, got 'x'"),
        ("seed=true", "seed must be a whole number, got true"),
        ("seed=1.5", "seed must be a whole number, got 1.5"),
        ("seed=-1", "seed must be at least 0, got -1"),
        ("seed.x=3", "seed must be a whole number, got {'x': 3}"),
        ("training.batch_size=0", "training.batch_size must be at least 1, got 0"),
        ("training.flip=1", "training.flip must be true or false, got 1"),
        ("training=4", "training must be a section of 'key: value' lines, got 4"),
        ("head=null", "head must be a section of 'key: value' lines, got nothing"),
        (
            "training.start_from= ",
            "training.start_from has an empty value in 'training.start_from= '",
        ),
        ("head.name=4", "head.name must be a text, got 4"),
        ("optimizer.learning_rate=.inf", "optimizer.learning_rate must be a finite number"),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate must be"),
        (
            "optimizer.learning_rate=fast",
            "optimizer.learning_rate must be a valid number, got 'fast'",
        ),
        ("optimizer.momentum=1", "optimizer.momentum must be below 1.0, got 1"),
        ("schedule.milestones.0=3", "schedule.milestones must be a list"),
        ("schedule.milestones=[a]", "schedule.milestones.0 must be a valid number, got 'a'"),
        ("schedule.name=cosin", "schedule.name must be 'step', 'cosine', 'polynomial' or"),
        (
            "device=gpu",
            "device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'; did you mean 'cuda'?",
        ),
        ("evaluation.sets=synthetic", "evaluation.sets must be a list, got 'synthetic'"),
        ("training.epochs=null", "give one of training.epochs and training.steps; neither"),
        ("training={epochs: 1, steps: 1}", "give one of training.epochs and training.steps; both"),
        ("training.accumulate=3", "training.batch_size (128) must be a multiple of training."),
        ("schedule.milestones=[3, 2]", "schedule.milestones must ascend, got [3.0, 2.0]"),
        ("schedule.name=step", "schedule 'step' needs schedule.milestones"),
        (
            "schedule.warmup=4",
            "schedule.warmup (4 epochs) must be shorter than the training (4 epochs); "
            "schedule.warmup=0 leaves it out",
        ),
        ("schedule={name: step, milestones: [4]}", "schedule.milestones: 4 is not before the end"),
        ("optimizer={nesterov: yes, momentum: 0}", "optimizer.nesterov needs optimizer.momentum"),
        ("optimizer={nesterov: yes, fused_head: yes}", "optimizer.fused_head has no Nesterov"),
        ("training.sample_rate=0", "training.sample_rate"),
        ("label_noise.rate=0", "label_noise.rate must be above 0.0, got 0"),
        ("label_noise.rate=1.5", "label_noise.rate must be at most 1.0, got 1.5"),
        ("label_noise.rat=0.2", "unknown key 'label_noise.rat'; did you mean 'label_noise.rate'?"),
        ("label_noise={rate: 0.2, kind: flp}", "label_noise.kind must be 'flip' or 'resample', "),
        ("label_noise.kind=flip", "the key 'label_noise.rate' is missing"),
        ("label_noise={rate: 0.2, seed: -1}", "label_noise.seed must be at least 0, got -1"),
        ("label_noise=0.2", "label_noise must be a section of 'key: value' lines, got 0.2"),
        ("open_set.share=0.2", "the key 'open_set.data' is missing"),
        ("open_set={share: 1, data: folder}", "open_set.share must be below 1.0, got 1"),
        ("open_set={shar: 1, data: folder}", "unknown key 'open_set.shar'; did you mean 'open_set"),
    ],
)
def test_a_mistake_is_one_sentence_with_key_and_value(
    file: Path, override: str, message: str
) -> None:
    assert sentence(file, override).startswith(message)


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    text = sentence(write(tmp_path, "a.yaml", MINIMAL.replace("data: synthetic\n", "")))
    assert text == "the key 'data' is missing"


def test_an_unknown_key_comes_before_the_missing_one_it_may_be(tmp_path: Path) -> None:
    text = sentence(write(tmp_path, "a.yaml", MINIMAL.replace("data:", "dta:")))
    assert text == "unknown key 'dta'; did you mean 'data'?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is empty"),
        ("# only this\n", " is empty"),
        ("- a\n", " holds no 'key: value' lines but a list"),
        ("word\n", " holds no 'key: value' lines but a text"),
        ("seed: 0\nhead: [1,\n", ", line 3, column 1: not valid YAML: "),
        ("seed: 0\n\thead: x\n", ", line 2, column 1: not valid YAML: "),
        (
            "seed: 0\nhead: x\nseed: 1\n",
            ", line 3, column 1: not valid YAML: the key 'seed' appears",
        ),
        ("training:\n  epochs: 1\n  epochs: 2\n", ", line 3, column 3: not valid YAML: the key"),
        ("1: 2\n", ", line 1, column 1: not valid YAML: the key 1 is not a word"),
        ("[a]: 2\n", ", line 1, column 1: not valid YAML: the key"),
        ("seed: !!python/object:os.system {}\n", ", line 1, column 7: not valid YAML: could not"),
        ("seed: 0\n---\nseed: 1\n", ", line 2, column 1: not valid YAML: "),
        ("seed: \x01\n", ": not valid YAML: "),
        ("a: " + "[" * 500, ", line 1, column 53: nested deeper than 50 levels"),
        (
            "".join(" " * depth + "a:\n" for depth in range(60)),
            ", line 50, column 50: nested deeper",
        ),
        (
            BOMB,
            ", line 5, column 18: more than 10,000 values (an alias counts as all it stands for)",
        ),
        ("a: &a [*a]\n", ", line 1, column 8: this alias stands for a value that contains it"),
        ("&a {b: [{c: *a}]}\n", ", line 1, column 13: this alias stands for a value"),
        (CHAIN, ", line 49, column 12: nested deeper than 50 levels"),
        ("".join(f"k{n}: 1\n" for n in range(6000)), ", line 5001, column 1: more than 10,000"),
        ("k" * 1_000_001, " is too large for a config: above 1,000,000 bytes"),
        ("seed: " + "9" * 5000, ", line 1, column 7: not valid YAML: '9999999"),
        (
            "seed: !!bool perhaps\n",
            ", line 1, column 7: not valid YAML: 'perhaps' cannot be read",
        ),
        ("seed: !!int ''\n", ", line 1, column 7: not valid YAML: '' cannot be read as int"),
        ("seed: !!map [1]\n", ", line 1, column 7: not valid YAML: expected a mapping node"),
        ("seed: !!timestamp x\n", ", line 1, column 7: not valid YAML: could not determine"),
    ],
)
def test_a_file_that_is_not_a_config_is_refused_with_the_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, "a.yaml", text)
    assert sentence(path).startswith(f"{path}{message}")


def test_other_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("head: gesichtsgröße".encode("latin-1"))
    assert sentence(path) == f"{path} is not a text file in UTF-8 (byte 16); save it as UTF-8"
    assert sentence(tmp_path / "none.yaml") == f"there is no file {tmp_path / 'none.yaml'}"
    assert sentence(tmp_path) == f"{tmp_path} is not a run folder: it holds no config.yaml"


def test_a_byte_order_mark_is_not_a_mistake(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_config(file).training.epochs == 4


# YAML


@pytest.mark.parametrize("text", ["123", "2024_01", "1e5", "007", "true", "0.50", ".inf", "no"])
def test_a_path_may_look_like_a_number(file: Path, text: str) -> None:
    for override in (f"data.path={text}", f"data={{name: folder, path: {text}}}"):
        assert load_config(file, [override]).data.options == {"path": text}
    sets = f"evaluation.sets=[{{name: pairs, path: {text}, root: {text}, title: {text}}}]"
    options = {"path": text, "root": text, "title": text}
    assert load_config(file, [sets]).evaluation.sets[0].options == options
    write(file.parent, text, MINIMAL)
    assert load_config(write(file.parent, "mine.yaml", f"base: {text}\n")) == load_config(file)


def test_a_path_may_be_quoted_or_left_out(file: Path) -> None:
    assert load_config(file, ["data.path='12'"]).data.options == {"path": "12"}
    assert load_config(file, ["data.root=null"]).data.options == {"root": None}


def test_anchors_and_aliases_work(file: Path) -> None:
    with file.open("a") as lines:
        lines.write("evaluation: {sets: [&own {name: pairs, path: p}, *own, *own]}\n")
    assert load_config(file).evaluation.sets == (load_config(file).evaluation.sets[0],) * 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-1", 0.1),
        ("1e5", 1e5),
        ("1E-3", 1e-3),
        ("-1.5e+3", -1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("10", 10),
        ("-3", -3),
        ("10_000", 10000),
        ("007", "007"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("'1e5'", "1e5"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("-", "-"),
    ],
)
def test_plain_words_and_numbers(text: str, value: object) -> None:
    read = parse_yaml(f"x: {text}" if text != "-" else "x: '-'", origin="test")["x"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        *("1e5", "no", "on", "true", "null", "", "007", "1:30", "2024-01-01", "a: b", "# x", "ü"),
        *(1 / 3, 1e-7, 5e-4, 1e300, -0.1, 123456789.123456789, 2**53 + 1, True, None, [1, [2]], {}),
    ],
)
def test_what_is_dumped_is_read_back_exactly(value: object) -> None:
    read = parse_yaml(dump_yaml({"x": value}), origin="test")["x"]
    assert read == value
    assert type(read) is type(value)


# Writing


def test_a_dumped_config_starts_the_same_run_again(tmp_path: Path) -> None:
    overrides = [
        "optimizer.learning_rate=0.1234567890123456",
        "data.tag='1e5'",
        "head.scale=3e-7",
        "evaluation.sets=[{name: pairs, path: 'no'}]",
        "schedule={name: step, milestones: [0.1, 2]}",
    ]
    config = load_config("quickstart", overrides)
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    again = load_config(tmp_path)
    assert again == config
    assert again.data.options["tag"] == "1e5"
    assert again.optimizer.learning_rate == 0.1234567890123456
    assert dump_config(again) == dump_config(config)


def test_a_config_cannot_be_changed(file: Path) -> None:
    config = load_config(file)
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1
    config.head.options["radius"] = 1
    assert config.head.options["radius"] == 30


# Sections that may be left out


def test_noise_and_strangers_are_off_unless_asked_for(file: Path) -> None:
    config = load_config(file)
    assert config.label_noise is None
    assert config.open_set is None
    path = write(
        file.parent,
        "study.yaml",
        "base: run.yaml\n"
        "label_noise: {rate: 0.4, kind: resample, seed: 7}\n"
        "open_set: {share: 0.2, data: {name: folder, path: strangers}}\n",
    )
    config = load_config(path)
    noise, open_set = config.label_noise, config.open_set
    assert noise is not None
    assert (noise.rate, noise.kind, noise.seed) == (0.4, "resample", 7)
    assert open_set is not None
    assert (open_set.share, open_set.data.name) == (0.2, "folder")
    assert open_set.data.options == {"path": "strangers"}
    assert config_from_mapping(parse_yaml(dump_config(config), origin="dump")) == config
    without = load_config(path, ["label_noise=null", "open_set=null"])
    assert without == load_config(file)
    assert load_config(path, ["label_noise.rate=0.8"]).label_noise == noise.model_copy(
        update={"rate": 0.8}
    )


def test_a_new_name_for_the_strangers_drops_the_old_options(file: Path) -> None:
    overrides = ["open_set={share: 0.2, data: {name: folder, path: strangers, image_size: 56}}"]
    for name in ("open_set.data.name=list", "open_set.data=list"):
        open_set = load_config(file, [*overrides, name, "open_set.data.path=list.txt"]).open_set
        assert open_set is not None
        assert (open_set.data.name, open_set.data.options) == ("list", {"path": "list.txt"})


def test_another_form_of_the_own_faces_is_an_override() -> None:
    overrides = ["data.name=recordio", "data.path=train.rec", "data.on_bad_image=skip"]
    data = load_config("own-faces", overrides).data
    assert (data.name, data.options) == (
        "recordio",
        {"path": "train.rec", "on_bad_image": "skip"},
    )


# The schema


def fields(model: type[Any]) -> list[tuple[str, Any]]:
    own = list(model.model_fields.items())
    kinds = [kind for _, field in own for kind in get_args(field.annotation) or (field.annotation,)]
    inner = [kind for kind in kinds if hasattr(kind, "model_fields")]
    return own + [pair for section in inner for pair in fields(section)]


def test_every_key_has_a_description_of_one_line() -> None:
    for name, field in fields(RunConfig):
        assert field.description, name
        assert "\n" not in field.description


def test_the_reader_knows_where_the_choices_are() -> None:
    choices = [
        (name,) for name, field in RunConfig.model_fields.items() if field.annotation is Choice
    ]
    lists = {("evaluation", name, "0") for name in ("sets", "choose_on")}
    inner = {("open_set", "data"), ("backbone", "network"), ("optimizer",), *lists}
    assert set(recipes_module._CHOICES) == {*choices, *inner}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "head.margin_schedule={epochs: [2, 6], too: 1}",
            "head.margin_schedule: has no key 'too'; did you mean 'to'?",
        ),
        ("head.radiu=30", "head 'sphereface2-c' has no option 'radiu'; did you mean 'radius'?"),
        ("head.radius=wide", "head.radius: must be a valid number, got 'wide'"),
        ("head.name=arcfac", "unknown head 'arcfac'; did you mean 'arcface'?"),
        ("backbone.widht=8", "backbone 'sfnet10' has no option 'widht'; did you mean 'width'?"),
        (
            "backbone={name: views, network: {name: sfnet4, widht: 8}}",
            "backbone.network: network 'sfnet4' has no option 'widht'; did you mean 'width'?",
        ),
        ("backbone.name=iresnet5", "unknown backbone 'iresnet5'; did you mean"),
    ],
)
def test_wrong_options_of_head_and_backbone_are_refused(override: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_config("quickstart", [override])


def test_another_optimiser_drops_the_options_of_the_one_before(file: Path) -> None:
    recipe = load_config("quickstart", ["optimizer.name=adamw"]).optimizer
    assert (recipe.learning_rate, recipe.weight_decay) == (1e-3, 0.05)
    given = load_config("quickstart", ["optimizer.learning_rate=0.01", "optimizer.name=adamw"])
    assert given.optimizer.learning_rate == 0.01
    same = load_config("quickstart", ["optimizer.learning_rate=0.3", "optimizer.name=sgd"])
    assert same.optimizer.learning_rate == 0.3
    assert load_config("quickstart", ["optimizer=adamw"]).optimizer == recipe


def test_one_kind_of_average_replaces_the_other(tmp_path: Path) -> None:
    recipe = tmp_path / "averaged.yaml"
    recipe.write_text("base: quickstart\ntraining: {average: {decay: 0.9, statistics: 64}}\n")
    average = load_config(recipe, ["training.average.last_epochs=3"]).training.average
    assert average == AverageConfig(last_epochs=3, statistics=64)
    assert load_config(recipe, ["training.average=null"]).training.average is None
