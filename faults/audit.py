"""The supply chain: `python -m faults.audit` (or `make audit`).

What is installed under which licence, whether the lock file fits the pinned versions, an SBOM
(CycloneDX), and known vulnerabilities where the advisory database can be reached. With --write-lock
the lock is made again, from the index that pip uses: every version of `constraints.txt` that a user
needs, with the SHA-256 of each of its files, and no address.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from html.parser import HTMLParser
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urldefrag

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from sphereface2.files import write_atomically

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
CONSTRAINTS = ROOT / "constraints.txt"
FOR_DEVELOPERS = ("dev", "faults", "audit")
"""Extras that nobody needs who uses the package."""

PERMISSIVE = re.compile(
    r"MIT(-CMU)?|(0|[23]-Clause )?BSD([- ][23]-Clause)?|0BSD|Apache([- ]2\.0)?|ISC|ISCL|PSF(-2\.0)?"
    r"|Python Software Foundation|Zlib|CC0-1\.0|BSL-1\.0|Unlicense|HPND",
    re.IGNORECASE,
)
EXPLAINED = {
    "certifi": "MPL-2.0: a list of certificates, used as it is and not changed",
    "hypothesis": "MPL-2.0: used by the tests only and not changed",
    "pathspec": "MPL-2.0: a part of mypy, used by developers only and not changed",
    "psycopg": "LGPL-3.0: the extra postgresql alone; used through its interface, not changed",
    "psycopg-binary": "LGPL-3.0: as psycopg, whose compiled half it is",
    "atheris": "Apache-2.0: its metadata have no licence, its LICENSE file has",
}
"""Licences that are not on the permissive list or not stated, and why they are taken."""


# -- what is needed --------------------------------------------------------------------------------


def requirements(extras: Sequence[str] | None = None) -> list[Requirement]:
    """What the package asks for; extras: by default all but those for developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    chosen = [each for each in optional if each not in FOR_DEVELOPERS] if extras is None else extras
    lines = [*project["dependencies"], *(line for each in chosen for line in optional[each])]
    return [Requirement(line) for line in lines]


def closure(wanted: Sequence[Requirement]) -> dict[str, metadata.Distribution]:
    """All distributions that these need, as they are installed here, by their canonical names."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(each, extra) for each in wanted for extra in ("", *sorted(each.extras))]
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen or name == "sphereface2":
            continue
        seen.add((name, extra))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ValueError(f"{name} is not installed; run `make install` first") from None
        found[name] = distribution
        for line in distribution.requires or ():
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                todo += [(inner, each) for each in ("", *sorted(inner.extras))]
    return dict(sorted(found.items()))


def pinned() -> dict[str, str]:
    """The exact versions of constraints.txt."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


# -- licences --------------------------------------------------------------------------------------


def licence(distribution: metadata.Distribution) -> str:
    """What a distribution says of its licence, in one line: its expression, text or classifiers."""
    said = cast("Message", distribution.metadata)  # which it is, with all its methods
    classifiers = [
        line.rpartition("::")[2].strip()
        for line in said.get_all("Classifier") or []
        if line.startswith("License ::") and line.count("::") > 1
    ]
    text = (said.get("License") or "").strip()
    for words in (said.get("License-Expression"), " AND ".join(classifiers), text.split("\n")[0]):
        if words and words != "UNKNOWN":
            return words.removeprefix("OSI Approved :: ").strip()
    return "not stated"


def is_permissive(words: str) -> bool:
    """Whether every part of a licence that must hold is permissive, or one that may be chosen."""
    plain = re.sub(r"\s+WITH\s+\S+|(Apache )?Software License|License|The |\(.*?\)", r"\1", words)
    alternatives = re.split(r"\s+OR\s+", plain, flags=re.IGNORECASE)
    return any(
        all(PERMISSIVE.fullmatch(" ".join(each.split())) for each in re.split(r"\s+AND\s+", one))
        for one in alternatives
    )


def wrong_licences(found: Mapping[str, metadata.Distribution]) -> list[str]:
    """A sentence for each distribution whose licence nobody has agreed to."""
    return [
        f"{name} is under {licence(each)!r}, which is neither permissive nor explained in "
        "faults/audit.py"
        for name, each in found.items()
        if not is_permissive(licence(each)) and name not in EXPLAINED
    ]


# -- the lock --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    name: str
    sha256: str


class _Links(HTMLParser):
    """The files of a page of an index (PEP 503), without those that were withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[_File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address, fragment = urldefrag(given.get("href") or "")
        if tag == "a" and fragment.startswith("sha256=") and "data-yanked" not in given:
            name = unquote(address.rpartition("/")[2])
            self.files.append(_File(name, fragment.removeprefix("sha256=")))


def _index() -> str:
    """The index that pip is set up with."""
    from pip._internal.models.index import PyPI

    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return said.stdout.strip() or str(PyPI.simple_url)


def _files_of(name: str, version: str, *, index: str) -> list[_File]:
    """All files of a version that the index has."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/", timeout=60) as page:
        links = _Links()
        links.feed(page.read().decode())
    wanted = Version(version)
    return [each for each in links.files if _version(each.name) == wanted]


def _version(file: str) -> Version | None:
    try:
        if file.endswith(".whl"):
            return parse_wheel_filename(file)[1]
        return parse_sdist_filename(file)[1]
    except ValueError:
        return None


def _beside(name: str, version: str) -> Iterator[_File]:
    """Wheels that pip also looks at beside the index, such as torch's for processors alone."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    for folder in map(Path, said.split()):
        for path in folder.glob("*.whl") if folder.is_dir() else ():
            found, its, *_ = parse_wheel_filename(path.name)
            if found == name and its.public == version:
                with path.open("rb") as file:
                    yield _File(path.name, hashlib.file_digest(file, "sha256").hexdigest())


def write_lock() -> int:
    """Make the lock again; how many packages it has."""
    versions, names = pinned(), list(closure(requirements()))
    index = _index()

    def block(name: str) -> str:
        files = _files_of(name, versions[name], index=index)
        files += list(_beside(name, versions[name]))
        hashes = sorted({each.sha256 for each in files})
        if not hashes:
            raise ValueError(f"the index has no file of {name} {versions[name]}")
        lines = [f"{name}=={versions[name]}", *(f"    --hash=sha256:{each}" for each in hashes)]
        return " \\\n".join(lines) + "\n"

    with ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(block, names))
    head = (
        "# Every version that a user of sphereface2 needs, with the hashes of its files:\n"
        f"#   pip install --require-hashes --no-deps -r {LOCK.name} && pip install --no-deps .\n"
        "# Made by `python -m faults.audit --write-lock` from constraints.txt. Libraries of torch\n"
        "# for graphics cards are not among them: `pip install torch` adds those.\n"
    )
    write_atomically(LOCK, head + "".join(blocks))
    return len(blocks)


def read_lock() -> dict[str, tuple[str, list[str]]]:
    """The version and the hashes of each package of the lock."""
    text = LOCK.read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pin, *hashes = line.split()
            name, _, version = pin.partition("==")
            found[name] = (version, [each.removeprefix("--hash=sha256:") for each in hashes])
    return found


def wrong_lock(found: Mapping[str, metadata.Distribution]) -> list[str]:
    """A sentence for each package by which the lock differs from what is needed and pinned."""
    locked, versions = read_lock(), pinned()
    again = "run `python -m faults.audit --write-lock`"
    wrong = [f"{name} is not in {LOCK.name}; {again}" for name in found if name not in locked]
    for name, (version, hashes) in locked.items():
        if versions.get(name) != version:
            wrong.append(f"{LOCK.name} has {name} {version}, not {versions.get(name)}; {again}")
        if not hashes or not all(re.fullmatch(r"[0-9a-f]{64}", each) for each in hashes):
            wrong.append(f"{LOCK.name} has no sound hashes for {name}; {again}")
    return wrong


# -- the SBOM --------------------------------------------------------------------------------------


def sbom(found: Mapping[str, metadata.Distribution]) -> dict[str, Any]:
    """A bill of materials in CycloneDX 1.6; the same packages give the same one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    root = {"type": "application", "bom-ref": "sphereface2", "name": "sphereface2",
            "version": version["version"], "licenses": [{"license": {"id": "MIT"}}]}  # fmt: skip
    reference = {name: f"pkg:pypi/{name}@{each.version}" for name, each in found.items()}
    components = [
        {"type": "library", "bom-ref": reference[name], "name": name, "version": each.version,
         "purl": reference[name], "licenses": [{"license": {"name": licence(each)}}]}
        for name, each in found.items()
    ]  # fmt: skip
    needed = {"sphereface2": sorted(reference[_name(each)] for each in requirements())}
    for name, each in found.items():
        inner = {_name(Requirement(line)) for line in each.requires or ()}
        needed[reference[name]] = sorted(reference[one] for one in inner if one in reference)
    body = {
        "metadata": {"component": root},
        "components": components,
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(set(others))} for ref, others in needed.items()
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}"}
    return {**head, "version": 1, **body}


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


# -- known vulnerabilities -------------------------------------------------------------------------


def vulnerabilities() -> tuple[bool, str]:
    """Whether none is known as far as can be found out, and what was found.

    pip-audit ends well, too, where it could look nothing up: so its answers are counted.
    """
    if find_spec("pip_audit") is None:
        return True, "vulnerabilities were not looked up: pip install 'sphereface2[audit]'"
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--disable-pip"]
    command += ["--no-deps", "--progress-spinner", "off", "--timeout", "20", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return judged(done.stdout, done.stderr)


def judged(answer: str, complaints: str) -> tuple[bool, str]:
    """What pip-audit's JSON says, in words."""
    try:
        found: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (complaints.strip().splitlines() or ["it gave no reason"])[-1][:200]
        return True, f"vulnerabilities were not looked up: pip-audit failed ({reason})"
    known = [each for each in found if "skip_reason" not in each]
    bad = [
        f"{each['name']} {each['version']}: {one['id']}, repaired in "
        f"{', '.join(one['fix_versions']) or 'no version yet'}"
        for each in known
        for one in each["vulns"]
    ]
    if bad:
        return False, "\n".join(bad)
    if not known:
        return True, (
            "vulnerabilities were not looked up: the advisory database cannot be reached from here"
        )
    left = f"; {len(found) - len(known)} could not be looked up" if len(known) < len(found) else ""
    return True, f"no vulnerability is known in {len(known)} packages of the lock file{left}"


def main(words: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m faults.audit", description=__doc__)
    options.add_argument("--write-lock", action="store_true", help=f"make {LOCK.name} again")
    options.add_argument("--sbom", type=Path, default=ROOT / "dist" / "sbom.cdx.json")
    asked = options.parse_args(words)
    try:
        if asked.write_lock:
            print(f"{LOCK.name}: {write_lock()} packages with their hashes")
        users, everyone = closure(requirements()), closure(requirements(_every_extra()))
    except (ValueError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    for name, each in everyone.items():
        note = f"  [{EXPLAINED[name]}]" if name in EXPLAINED else ""
        print(f"{name:28} {each.version:18} {licence(each)[:60]}{note}")
    wrong = [*wrong_licences(everyone), *wrong_lock(users)]
    write_atomically(asked.sbom, json.dumps(sbom(users), indent=1) + "\n")
    print(f"{asked.sbom}: {len(users)} components (CycloneDX 1.6)")
    is_sound, said = vulnerabilities()
    print(said)
    for sentence in wrong:
        print(f"audit: {sentence}", file=sys.stderr)
    return 1 if wrong or not is_sound else 0


def _every_extra() -> list[str]:
    """Those of users, `dev`, and the tools for developers as far as they are installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {"faults": "atheris", "audit": "pip_audit"}
    return [
        each
        for each in project["optional-dependencies"]
        if each not in modules or find_spec(modules[each])
    ]


if __name__ == "__main__":
    sys.exit(main())
