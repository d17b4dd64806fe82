"""The gallery in Qdrant: what a removal leaves, interrupted removals, addresses, processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sphereface2.galleries import open_gallery
from sphereface2.galleries.qdrant import QdrantGallery
from sphereface2.galleries.qdrant_points import ClientPoints, EdgePoints, Place
from tests.galleries.engines import DIM, MODEL, photo, unit

KINDS = {"local": "qdrant_client", "edge": "qdrant_edge"}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    pytest.importorskip(KINDS[request.param])
    return f"qdrant+{request.param}:{tmp_path / 'gallery'}"


def opened(address: str) -> QdrantGallery:
    gallery = open_gallery(address, model=MODEL, dim=DIM, create=True)
    assert isinstance(gallery, QdrantGallery)
    return gallery


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_removed_person_leaves_no_byte(
    address: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    gallery = opened(address)
    gallery.add("Ann", [photo(rng)])
    new = photo(rng, source="IMG_4711.jpg")
    name = f"Gisela{rng.bytes(8).hex()}"
    gallery.add(name, [new], metadata={"note": "herown"}, key="request-of-gisela")
    # The client's local mode pickles doubles; the engine keeps float32 and compresses payloads.
    vectors = [new.embedding.tobytes()]
    doubles = np.array(new.embedding.tolist(), dtype=">f8").tobytes()
    before = everything(tmp_path)
    assert vectors[0] in before or doubles[:8] in before
    gallery.remove(name)
    kept = everything(tmp_path)
    for secret in (name.encode(), b"herown", b"IMG_4711", *vectors, doubles[:8], b"of-gisela"):
        assert secret not in kept
    assert gallery.search(new.embedding[None], 5)[0][0].person == "Ann"
    gallery.close()


def test_a_removal_that_was_killed_is_done_by_the_repeated_request(
    address: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = opened(address)
    gallery.add("Ann", [photo(rng), photo(rng)])
    with monkeypatch.context() as patch:
        for kind in (ClientPoints, EdgePoints):
            patch.setattr(kind, "delete_where", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gallery.remove("Ann", key="k")
    assert gallery.count() == (1, 2)
    assert gallery.remove("Ann", key="k") == 2
    assert gallery.count() == (0, 0)
    assert gallery.remove("Ann", key="k") == 2
    gallery.close()


def test_one_key_writes_the_same_points_from_any_process(
    address: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = opened(address)
    monkeypatch.setattr(QdrantGallery, "_done", lambda *_: None)  # as if both asked at once
    new = [photo(rng), photo(rng)]
    assert gallery.add("Ann", new, key="k") == gallery.add("Ann", new, key="k")
    assert gallery.count() == (1, 2)
    gallery.close()


OTHER = """
import sys
from sphereface2.galleries import open_gallery
try:
    open_gallery(sys.argv[1])
except ValueError as error:
    print(error)
"""


@pytest.mark.usefixtures("quick_processes")
def test_a_second_process_is_refused(address: str, rng: np.random.Generator) -> None:
    gallery = opened(address)
    gallery.add("Ann", [photo(rng)])
    words = [sys.executable, "-c", OTHER, address]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "another process has" in said
    assert said.count("\n") == 1
    gallery.close()
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("qdrant://", "must name a server"),
        ("qdrant+edge:", "must name a folder"),
        ("qdrant://:secret@host", "a key must not go over plain HTTP"),
        ("qdrant://localhost:6333?index=hsnw", "must be 'exact' or 'hnsw'"),
        ("qdrant://localhost:6333?efsearch=3", "no option 'efsearch'; did you mean 'ef_search'"),
        ("qdrnt://localhost", "unknown kind of gallery 'qdrnt'; did you mean 'qdrant'"),
        ("postgres://me:secret@host/faces", "'postgres'; did you mean 'postgresql'"),
        ("", "must not be empty"),
    ],
)
def test_wrong_addresses_are_refused_in_a_sentence(address: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        open_gallery(address)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_server_that_does_not_answer_is_named_without_its_key() -> None:
    pytest.importorskip("qdrant_client")
    with pytest.raises(OSError, match=r"qdrants://127\.0\.0\.1:1 does not answer") as raised:
        open_gallery("qdrants://:my-key@127.0.0.1:1")
    assert "my-key" not in str(raised.value)
    assert Place.of("qdrants://:my-key@faces.example:443").shown == "qdrants://faces.example:443"


def test_negatives_are_not_searched(address: str, rng: np.random.Generator) -> None:
    gallery = opened(address)
    gallery.add("Ann", [photo(rng)])
    far = unit(rng)
    gallery.add_negative("Ann", far)
    (hit,) = gallery.search(far[None], 5)[0]
    assert hit.score < 0.99
    gallery.close()
