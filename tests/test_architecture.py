"""The package is a line: imports point to earlier stages only, checked on the syntax tree."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "sphereface2"

# A module may import modules of its own stage and of stages before it. `recipes` is what `config`
# reads; `runs` and the command line stand at the end, where everything meets.
LINE = [
    "files",
    "machine",
    "durations",
    "model_step",
    "peers",
    "tables",
    "recipes",
    "config",
    "faces",
    "data",
    "public_data",
    "backbones",
    "heads",
    "training",
    "evaluation",
    "reporting",
    "recognition",
    "protocols",
    "run_folder",
    "scoring",
    "runs",
    "estimating",
    "sweeping",
    "reproducing",
    "cli",
    "__main__",
]
FREE = {"__init__"}  # the public names, wherever they live

# Packages that only these stages may import.
ONLY_IN = {"matplotlib": {"reporting"}, "jinja2": {"reporting"}, "typer": {"cli"}}

# Modules that must load without torch, because `--help` and rendering processes need them.
WITHOUT_TORCH = [
    "sphereface2",
    "sphereface2.cli",
    "sphereface2.config",
    "sphereface2.data",
    "sphereface2.tables",
]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def stage(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> list[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from sphereface2 import runs` names the module in the second place
            found += [
                f"sphereface2.{alias.name}" if node.module == "sphereface2" else node.module
                for alias in node.names
            ]
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_earlier_stages(path: Path) -> None:
    here = stage(path)
    if here in FREE:
        return
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "sphereface2" and rest:
            assert rest[0] in LINE, f"{path} imports {name}, which is in no stage"
            assert LINE.index(rest[0]) <= LINE.index(here), f"{path} imports {name}, a later stage"
        assert here in ONLY_IN.get(top, {here}), f"{path} imports {top}, which is not its business"


def test_every_module_belongs_to_a_stage_and_says_what_it_is_for() -> None:
    for path in modules():
        assert stage(path) in {*LINE, *FREE}, path
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_no_drawer_modules() -> None:
    names = {path.stem for path in modules()}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}


def test_collectives_live_in_two_files() -> None:
    allowed = {PACKAGE / "heads" / "sharding.py", PACKAGE / "training" / "distributed.py"}
    for path in set(modules()) - allowed:
        assert not [name for name in imported(path) if name.startswith("torch.distributed")], path


def test_light_modules_do_not_load_torch() -> None:
    script = f"import sys\nfor name in {WITHOUT_TORCH}: __import__(name)\n"
    script += "heavy = {'torch', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy"
    subprocess.run([sys.executable, "-c", script], check=True)
