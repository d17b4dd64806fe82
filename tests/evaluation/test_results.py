"""Notes and versions that go with a result."""

import platform
from importlib import metadata

import pytest

from sphereface2.evaluation.results import installed_versions, note_on_flip


@pytest.mark.parametrize(
    ("flip", "of_model", "said"),
    [
        (True, True, []),
        (False, False, []),
        (True, False, ["scored with mirror images, though this model embeds without them by itse"]),
        (False, True, ["scored without mirror images, though this model embeds with them by itse"]),
    ],
)
def test_mirror_images_are_mentioned_where_a_model_does_otherwise(
    flip: bool, of_model: bool, said: list[str]
) -> None:
    assert [note.removesuffix("lf") for note in note_on_flip(flip, of_model)] == said


def test_versions_are_those_installed() -> None:
    found = installed_versions()
    assert found["python"] == platform.python_version()
    assert found["numpy"] == metadata.version("numpy")
    assert list(found) == ["python", "sphereface2", "torch", "numpy", "opencv-python-headless"]


def test_a_package_that_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("sphereface2.evaluation.results.metadata.version", absent)
    assert set(installed_versions().values()) == {platform.python_version(), "unknown"}
