"""No code of the project runs what a file or a caller says: checked on the syntax tree."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = ("src", "benchmarks", "faults", "tests")

# Where a call is right that is forbidden elsewhere, by file and by what is called: the reasons.
EXCEPTIONS = {
    ("src/sphereface2/config/loading.py", "yaml.load"): "with a loader derived from SafeLoader",
    ("src/sphereface2/data/loader/readers.py", "pickle.load in a text"): (
        "a reading process takes over its source from the process that started it, through a pipe"
    ),
    ("benchmarks/mutants.py", "compile"): "makes a mutant of a source file of this repository",
    ("tests/loaded.py", "exec"): "does what a test starts as `python -c`",
}


def faults_of(source: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each call that could run code or read without a limit."""
    tree = ast.parse(source)
    aliases = dict(_imported(tree))
    for node in ast.walk(tree):
        # A script for another process; in prose the name stands without its bracket.
        if isinstance(node, ast.Constant) and re.search(r"pickle\.loads?\(", str(node.value)):
            yield node.lineno, "pickle.load in a text"
        if not isinstance(node, ast.Call):
            continue
        name = _called(node.func, aliases)
        if name is not None and _is_unsafe(name, node):
            yield node.lineno, name
        if _literal(node, "shell") is True:
            yield node.lineno, f"{name}(shell=True)"


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What names of a file stand for: `import numpy as np`, `from pickle import loads`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.asname:
                    yield each.asname, each.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def _called(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """The dotted name of what is called, as far as it is written out."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _called(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else f"?.{node.attr}"
    return None


def _is_unsafe(name: str, call: ast.Call) -> bool:
    if name in ("eval", "exec", "compile", "builtins.eval", "builtins.exec", "os.system"):
        return True
    module, _, function = name.rpartition(".")
    if module in ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "joblib"):
        return function in ("load", "loads", "Unpickler")
    if module == "shelve":
        return function == "open"
    if name == "torch.load":
        return _literal(call, "weights_only") is not True
    if name == "torch.jit.load":
        return True
    if module == "yaml":
        return function in ("load", "load_all", "full_load", "unsafe_load", "unsafe_load_all")
    if name in ("numpy.load", "numpy.lib.format.read_array"):
        return _literal(call, "allow_pickle") not in (False, None)
    if function in ("extractall", "unpack_archive"):
        return not any(word.arg == "filter" for word in call.keywords)
    return False


def _literal(call: ast.Call, argument: str) -> object:
    """The value of a keyword argument; ... if it is not written out, None if it is not given."""
    for word in call.keywords:
        if word.arg == argument:
            return word.value.value if isinstance(word.value, ast.Constant) else ...
    return None


@cache
def found_in_the_project() -> list[tuple[str, int, str]]:
    # Tests read what they have just written, and plant faults on purpose; what they share does not.
    paths = [
        path
        for place in PLACES
        for path in sorted((ROOT / place).rglob("*.py"))
        if not path.name.startswith("test_")
    ]
    return [
        (path.relative_to(ROOT).as_posix(), line, name)
        for path in paths
        for line, name in faults_of(path.read_text(encoding="utf-8"))
    ]


def test_nothing_runs_what_it_reads() -> None:
    wrong = [each for each in found_in_the_project() if (each[0], each[2]) not in EXCEPTIONS]
    assert not wrong


def test_every_exception_is_needed() -> None:
    found = {(path, name) for path, _, name in found_in_the_project()}
    assert set(EXCEPTIONS) <= found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(file)",
        "import pickle as p\np.loads(content)",
        "from pickle import loads as read\nread(content)",
        "import pickle\nclass Own(pickle.Unpickler): pass\npickle.Unpickler(file).load()",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=trusted)",
        "import yaml\nyaml.load(text, Loader)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "import subprocess\nsubprocess.run(words, shell=True)",
        "import os\nos.system(words)",
        "eval(text)",
        "exec(text, {})",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trusted)",
        "import tarfile\ntarfile.open(path).extractall(folder)",
        "import zipfile\nwith zipfile.ZipFile(path) as archive: archive.extractall(folder)",
        "import shutil\nshutil.unpack_archive(path)",
        "SCRIPT = 'import pickle; pickle.load(file)'",
    ],
)
def test_planted_faults_are_found(source: str) -> None:
    assert list(faults_of(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import yaml\nyaml.safe_load(text)",
        "import numpy as np\nnp.load(path)\nnp.load(path, allow_pickle=False)",
        "import tarfile\ntarfile.open(path).extractall(folder, filter='data')",
        "import subprocess\nsubprocess.run(words)",
        "import json\njson.load(file)",
        "model.eval()",
    ],
)
def test_sound_code_is_left_alone(source: str) -> None:
    assert not list(faults_of(source))
