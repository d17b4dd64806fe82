"""The package is a line: imports point to earlier rooms only, checked on the syntax tree."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Container, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "sphereface2"

# A module may import modules of its own stage and of stages before it; `runs` and the command line
# stand at the end, where everything meets.
LINE = [
    "registry",
    "safe_pickle",
    "files",
    "workers",
    "config",
    "faces",
    "rendering",
    "data",
    "backbones",
    "heads",
    "training",
    "models",
    "evaluation",
    "galleries",
    "recognition",
    "datatools",
    "reporting",
    "runs",
    "experiments",
    "service",
    "cli",
    "__main__",
]
FREE = {"__init__"}  # the public names, wherever they live

# Packages that only these stages may import.
ONLY_IN = {
    "matplotlib": {"reporting"},
    "jinja2": {"reporting"},
    "typer": {"cli"},
    "fastapi": {"service"},
    "starlette": {"service"},
    "uvicorn": {"service"},
    "prometheus_client": {"service"},
    "httpx": {"service"},
    # One lock and one way to write a file whole; one way to start, stop and miss a process, whose
    # pipes those that read batches and the ranks of an experiment know as well.
    "fcntl": {"files"},
    "filelock": {"files"},
    "tempfile": {"files"},
    "sqlite3": {"galleries"},
    "psycopg": {"galleries"},
    "pgvector": {"galleries"},
    "qdrant_client": {"galleries"},
    "qdrant_edge": {"galleries"},
    "multiprocessing": {"workers", "data", "experiments"},
    "subprocess": {"workers"},
}

# Modules that must load without torch, because `--help` and rendering processes need them.
WITHOUT_TORCH = [
    "sphereface2",
    "sphereface2.cli",
    "sphereface2.config.schema",
    "sphereface2.data.loader.batch_reader",  # else a training starts seconds later
    "sphereface2.data.pairs",
    "sphereface2.data.sources",
    "sphereface2.evaluation.protocols",
    "sphereface2.galleries",
    "sphereface2.recognition.recognizer",  # ONNX models run where torch is not installed
    "sphereface2.registry",
    "sphereface2.service.client",
    "sphereface2.service.server",
]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a file, at its top or inside a function."""
    return tuple(_imports_of(tree(path)))


def _imports_of(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    # Through what holds statements alone: an expression, the most of a tree, has no import in it.
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, part, ()):
            if isinstance(each, ast.Import | ast.ImportFrom):
                yield each
            else:
                yield from _imports_of(each)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def module_name(path: Path) -> str:
    parts = ("sphereface2", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def imported_names(path: Path, known: Container[str]) -> set[str]:
    """The modules of ours that a file imports, in any form."""
    found = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif node.module in known:
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found


def imported(path: Path) -> list[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = []
    for node in imports(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from sphereface2 import runs` names the module in the second place
            found += [
                f"sphereface2.{alias.name}" if node.module == "sphereface2" else node.module
                for alias in node.names
            ]
    return found


def test_imports_point_to_earlier_rooms() -> None:
    for path in modules():
        here = room(path)
        if here in FREE:
            continue
        for name in imported(path):
            top, *rest = name.split(".")
            if top == "sphereface2" and rest:
                assert rest[0] in LINE, f"{path} imports {name}, which is in no room"
                assert LINE.index(rest[0]) <= LINE.index(here), f"{path} imports {name}, later"
            assert here in ONLY_IN.get(top, {here}), f"{path} imports {top}, not its business"


def test_processes_fork_in_two_places() -> None:
    forking = {
        str(path.relative_to(PACKAGE)) for path in modules() if "os.fork(" in path.read_text()
    }
    assert forking == {"workers.py", "data/loader/batch_reader.py"}


def test_the_renderer_imports_nothing_of_ours() -> None:
    for path in (PACKAGE / "rendering").glob("*.py"):
        ours = [name for name in imported(path) if name.startswith("sphereface2")]
        assert all(name.startswith("sphereface2.rendering") for name in ours), f"{path}: {ours}"


def test_images_on_their_way_to_a_network_are_resized_in_one_place() -> None:
    rooms = ["data", "backbones", "heads", "training", "models", "evaluation", "runs"]
    rooms += ["recognition", "service", "galleries", "experiments"]
    resizing = {"resize", "interpolate", "grid_sample"}
    for path in [each for name in rooms for each in (PACKAGE / name).rglob("*.py")]:
        if path == PACKAGE / "data" / "transforms.py":
            continue
        for node in ast.walk(tree(path)):
            # cv2.resize and the like: a call of an attribute; ours is imported by its name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in resizing, f"{path}, line {node.lineno}"
            elif isinstance(node, ast.ImportFrom) and node.module != "sphereface2.data.transforms":
                others = resizing & {alias.name for alias in node.names}
                assert not others, f"{path}, line {node.lineno}: {others}"


def test_every_room_of_the_line_exists() -> None:
    assert {room(path) for path in modules()} == {*LINE, *FREE}


def same_room(name: str) -> Callable[[str], bool]:
    return lambda other: other.split(".")[1:2] == name.split(".")[1:2]


def test_no_modules_import_each_other() -> None:
    names = {module_name(path): path for path in modules()}
    graph = {
        name: {each for each in imported_names(path, names) if each != name}
        for name, path in names.items()
    }
    # A package's table names its modules, which may not ask for the table in turn.
    TopologicalSorter(graph).prepare()
    within = {name for name, others in graph.items() if any(map(same_room(name), others))}
    assert len(within) > len(names) / 3  # else the graph does not see imports inside a room
    first = min(within)
    other = next(filter(same_room(first), sorted(graph[first])))
    with pytest.raises(CycleError, match=first):
        TopologicalSorter({**graph, other: {*graph[other], first}}).prepare()


def test_every_module_says_what_it_is_for() -> None:
    for path in modules():
        assert ast.get_docstring(tree(path)), path


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/paper_map.md"])
def test_files_that_the_documentation_names_exist(page: str) -> None:
    root = PACKAGE.parent.parent
    text = (root / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", text)
    missing = [each for each in named if not any((at / each).exists() for at in (root, PACKAGE))]
    assert not missing


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
