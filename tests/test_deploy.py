"""What is in deploy/: it must fit the package, for no container is built here."""

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sphereface2.cli import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
EXTRAS = ("align", "onnx", "serve", "heic", "postgresql")


def name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements() -> set[str]:
    text = (DEPLOY / "requirements.txt").read_text(encoding="utf-8")
    return {name(line) for line in text.splitlines() if not line.startswith("#")}


def test_the_requirements_are_the_packages_without_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {name(each) for each in project["dependencies"]}
    for extra in EXTRAS:
        wanted |= {name(each) for each in project["optional-dependencies"][extra]}
    assert requirements() == wanted - {"torch"}


def test_every_requirement_has_its_exact_version() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {name(line) for line in text.splitlines() if "==" in line}
    assert requirements() <= pinned


def test_the_dockerfile_copies_what_is_there_and_does_not_end_as_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [
        source
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in kept, f"{source} is not sent to the build"
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER 10001:10001"]
    assert any("/v1/health" in line for line in lines)


def compose() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("which", ["service", "postgres"])
def test_containers_are_read_only_and_gain_no_rights(which: str) -> None:
    container = compose()["services"][which]
    assert container["read_only"] is True
    assert "/tmp" in container["tmpfs"]
    assert "no-new-privileges:true" in container["security_opt"]


def test_secrets_come_from_files_and_are_all_declared() -> None:
    found = compose()
    for container in found["services"].values():
        assert set(container["secrets"]) <= set(found["secrets"])
        for variable, value in container["environment"].items():
            if "PASS" in variable or "SERVICEFILE" in variable:
                assert value.startswith("/run/secrets/"), variable
    assert all("file" in each for each in found["secrets"].values())


def options(command: list[str]) -> set[str]:
    return {word for word in command if word.startswith("--")}


def test_the_options_that_are_given_exist() -> None:
    offered = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "sphereface2.service", encoding="utf-8")
    started = unit["Service"]["ExecStart"].split()
    assert started[1] == "serve"
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    entry = yaml.safe_load(text.split("ENTRYPOINT ", 1)[1])
    assert entry[:2] == ["sphereface2", "serve"]
    given = options(started) | options(entry) | options(compose()["services"]["service"]["command"])
    assert given == {"--gallery", "--keys", "--host", "--port"}
    for option in given:
        assert re.search(rf"{option}\b", offered), option
