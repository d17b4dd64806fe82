"""The gallery in PostgreSQL: its options, what a removal leaves on the server, and its errors."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import NewPhoto
from sphereface2.galleries.postgresql import PostgreSQLGallery
from tests.galleries.engines import (
    DIM,
    MODEL,
    photo,
    postgres,
    postgres_data,
    postgres_server,
    unit,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with postgres(tmp_path) as address:
        yield address


def opened(address: str) -> PostgreSQLGallery:
    gallery = open_gallery(address, model=MODEL, dim=DIM, create=True)
    assert isinstance(gallery, PostgreSQLGallery)
    return gallery


def traces(*secrets: bytes) -> dict[bytes, list[str]]:
    """The files of the server in which some secret is still found."""
    files = [path for path in postgres_data().rglob("*") if path.is_file()]
    contents = {str(path): path.read_bytes() for path in files}
    found = {each: [path for path, kept in contents.items() if each in kept] for each in secrets}
    return {each: paths for each, paths in found.items() if paths}


def settle(address: str) -> None:
    """What an administrator does to have the journal's old segments removed."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as db:
        for _ in range(2):
            db.execute("SELECT pg_switch_wal()")
            db.execute("CHECKPOINT")


@pytest.mark.parametrize("options", ["", "&index=hnsw", "&index=hnsw&type=halfvec"])
def test_a_removed_person_leaves_no_byte_on_the_server(
    options: str, address: str, rng: np.random.Generator
) -> None:
    gallery = opened(address + options)
    gallery.add("Ann", [photo(rng)])
    new = photo(rng, crop=5_000, source="folder/of/gisela/IMG_4711.jpg")
    name = f"Gisela {rng.bytes(8).hex()}"
    gallery.add(name, [new], metadata={"note": "a secret of hers"}, key="request-of-gisela")
    negative = unit(rng)
    gallery.add_negative(name, negative)
    import psycopg

    with psycopg.connect(address, autocommit=True) as db:
        db.execute("ANALYZE")  # as the server does by itself: statistics are copies, too
    halves = new.embedding.astype(np.float16).tobytes()
    embeddings = [new.embedding.tobytes(), negative.tobytes(), halves]
    secrets = [name.encode(), b"a secret of hers", b"IMG_4711", *embeddings]
    # PostgreSQL cuts a crop of this size into pieces of 2 kB.
    secrets += [new.crop[start : start + 32] for start in (0, 1_000, 2_500, 4_900)]
    settle(address)
    assert len(traces(*secrets)) >= len(secrets) - 1  # no half floats without that index
    gallery.rename(name, "somebody else")
    gallery.remove("somebody else")
    settle(address)
    assert traces(*secrets, b"somebody else", b"request-of-gisela") == {}
    assert [hit.person for hit in gallery.search(unit(rng, 1), 5)[0]] == ["Ann"]
    gallery.close()


def test_a_removal_that_was_killed_is_finished_when_the_gallery_is_opened(
    address: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = opened(address)
    new = photo(rng, source="IMG_0815.jpg")
    gallery.add("Ann", [new])
    with monkeypatch.context() as patch:
        patch.setattr(PostgreSQLGallery, "_finish_removals", lambda _: None)
        gallery.remove("Ann")
    gallery.close()
    settle(address)
    assert traces(new.embedding.tobytes()) != {}
    opened(address).close()
    settle(address)
    assert traces(new.embedding.tobytes(), b"IMG_0815") == {}


def test_the_index_finds_what_a_full_search_finds(address: str, rng: np.random.Generator) -> None:
    exact = opened(address)
    rows = unit(rng, 400)
    for start in range(0, 400, 40):
        for number in range(start, start + 40, 4):
            exact.add(f"person {number}", [NewPhoto(row) for row in rows[number : number + 4]])
    queries = unit(rng, 10)
    expected = exact.search(queries, 3)
    for options in ("&index=hnsw&m=8&ef_search=200", "&index=hnsw&type=halfvec&ef_search=200"):
        gallery = opened(address + options)
        found = gallery.search(queries, 3)
        same = [
            [hit.person for hit in left] == [hit.person for hit in right]
            for left, right in zip(expected, found, strict=True)
        ]
        assert sum(same) >= 9  # an approximate index may miss one
        kind = gallery._options.type
        with gallery._transaction() as db:
            indexes = db.execute("SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%hnsw%'")
            assert any(f"{kind}_ip_ops" in text for (text,) in indexes)
        gallery.close()
    exact.close()


def test_one_key_at_once_from_many_threads_counts_once(
    address: str, rng: np.random.Generator
) -> None:
    gallery = opened(address)
    new, results = photo(rng), []

    def work() -> None:
        results.append(gallery.add("Ann", [new], key="once"))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gallery.count() == (1, 1)
    assert results == [results[0]] * 6
    gallery.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("&indx=hnsw", "has no option 'indx'; did you mean 'index'"),
        ("&index=hsnw", "must be 'exact' or 'hnsw', got 'hsnw'; did you mean 'hnsw'"),
        ("&index=hnsw&m=many", "gallery.m: must be a whole number"),
        ("&type=halfvec", "add index=hnsw"),
    ],
)
def test_options_are_checked(options: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        open_gallery(postgres_server() + options, model=MODEL, dim=DIM, create=True)
    assert "\n" not in str(raised.value)


def test_no_message_shows_the_password() -> None:
    address = "postgresql://me:top-secret@127.0.0.1:1/faces?password=hidden&connect_timeout=2"
    with pytest.raises(OSError, match=r"me@127\.0\.0\.1:1/faces does not answer") as raised:
        open_gallery(address)
    for hidden in ("top-secret", "hidden"):
        assert hidden not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert PostgreSQLGallery.shown(address) == "postgresql://me@127.0.0.1:1/faces"


def test_a_service_file_may_hold_the_address_and_its_password(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    from psycopg.conninfo import conninfo_to_dict

    lines = [f"{name}={value}" for name, value in conninfo_to_dict(address).items() if value]
    (tmp_path / "services").write_text("\n".join(["[people]", *lines]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    gallery = opened("postgresql:///?service=people")
    gallery.add("Ann", [photo(rng)])
    gallery.close()
    same = opened(address)
    assert same.count() == (1, 1)
    same.close()
    assert PostgreSQLGallery.shown("postgresql:///faces?service=people") == "postgresql:///faces"


def test_a_dropped_collection_is_said(address: str, rng: np.random.Generator) -> None:
    gallery = opened(address)
    PostgreSQLGallery.drop(address, "default")
    with pytest.raises(ValueError, match="was dropped; open it again"):
        gallery.add("Ann", [photo(rng)])
    gallery.close()
