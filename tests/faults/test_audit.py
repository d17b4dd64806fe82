"""The supply chain: what is installed, its licences, the lock, the SBOM."""

import json
import re
from importlib import metadata

import pytest

from faults import audit


def test_the_lock_has_all_that_a_user_needs_and_nothing_else() -> None:
    needed = audit.closure(audit.requirements())
    assert not audit.wrong_lock(needed)
    assert set(audit.read_lock()) == set(needed)
    text = audit.LOCK.read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text


def test_a_lock_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = audit.read_lock()
    changed = {**locked, "numpy": ("1.0", locked["numpy"][1]), "rich": (locked["rich"][0], ["ab"])}
    del changed["scipy"]
    monkeypatch.setattr(audit, "read_lock", lambda: changed)
    said = "\n".join(audit.wrong_lock(audit.closure(audit.requirements())))
    for words in ("scipy is not in", "has numpy 1.0, not", "no sound hashes for rich"):
        assert words in said


def test_every_licence_is_permissive_or_explained() -> None:
    found = audit.closure(audit.requirements(["dev", *_for_users()]))
    assert len(found) > 60
    assert not audit.wrong_licences(found)
    assert set(audit.EXPLAINED) - set(found) <= {"atheris"}  # which is installed for fuzzing only


def _for_users() -> list[str]:
    return ["serve", "onnx", "postgresql", "qdrant"]


@pytest.mark.parametrize(
    ("words", "permissive"),
    [
        ("MIT", True), ("MIT License", True), ("BSD-3-Clause", True), ("3-Clause BSD", True),
        ("Apache Software License", True), ("Apache 2.0", True), ("ISC License (ISCL)", True),
        ("Python Software Foundation License", True), ("GPL-3.0-only OR MIT", True),
        ("Apache-2.0 WITH LLVM-exception AND BSL-1.0", True), ("MIT AND PSF-2.0", True),
        ("GPL-3.0-only", False), ("MIT AND LGPL-3.0-only", False), ("not stated", False),
        ("Mozilla Public License 2.0 (MPL 2.0)", False), ("AGPL", False), ("Proprietary", False),
    ],
)  # fmt: skip
def test_which_licences_are_permissive(words: str, permissive: bool) -> None:
    assert audit.is_permissive(words) == permissive


def test_a_licence_that_nobody_agreed_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "licence", lambda each: "GPL-3.0-only")
    (said,) = audit.wrong_licences({"rich": metadata.distribution("rich")})
    assert "rich is under 'GPL-3.0-only'" in said


def test_the_bill_of_materials_is_whole_and_repeatable() -> None:
    found = audit.closure(audit.requirements())
    bill = audit.sbom(found)
    assert bill == audit.sbom(found)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    references = {each["bom-ref"] for each in bill["components"]} | {"sphereface2"}
    assert len(references) == len(found) + 1
    for each in bill["dependencies"]:
        assert each["ref"] in references
        assert set(each["dependsOn"]) <= references
    assert any(each.startswith("pkg:pypi/torch@") for each in bill["dependencies"][0]["dependsOn"])


def test_what_pip_audit_could_not_look_up_is_not_called_sound() -> None:
    skipped = {"name": "a", "skip_reason": "Dependency not found"}
    sound = {"name": "b", "version": "1", "vulns": []}
    flaw = {"id": "PYSEC-1", "fix_versions": ["2"]}
    bad = {"name": "c", "version": "1", "vulns": [flaw]}

    def said(*found: object) -> tuple[bool, str]:
        return audit.judged(json.dumps({"dependencies": found}), "")

    assert "cannot be reached" in said(skipped)[1]
    assert said(sound, skipped) == (
        True, "no vulnerability is known in 1 packages of the lock file; 1 could not be looked up"
    )  # fmt: skip
    assert said(bad, skipped) == (False, "c 1: PYSEC-1, repaired in 2")
    assert "pip-audit failed (no network)" in audit.judged("", "x\nno network\n")[1]
