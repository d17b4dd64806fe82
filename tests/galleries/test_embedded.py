"""The gallery in a folder: what is left after a removal, damaged files, several processes."""

import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sphereface2.galleries import drop_collection, embedded, open_gallery
from sphereface2.galleries.embedded import CROPS, DATABASE, ROWS, EmbeddedGallery
from sphereface2.galleries.gallery import Embeddings, NewPhoto
from sphereface2.galleries.parts_file import HEADER, nearest_people
from tests.galleries.engines import DIM, MODEL, photo, unit


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gallery"


@pytest.fixture
def gallery(folder: Path) -> Iterator[EmbeddedGallery]:
    opened = open_gallery(str(folder), model=MODEL, dim=DIM, create=True)
    assert isinstance(opened, EmbeddedGallery)
    yield opened
    opened.close()


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def traces(folder: Path, *secrets: bytes) -> list[bytes]:
    """Which pieces of 16 bytes, or of shorter secrets all, are still in some file."""
    kept = everything(folder)
    pieces = [
        each[start : start + 16]
        for each in secrets
        for start in range(0, max(1, len(each) - 15), 8)
    ]
    return [each for each in pieces if each in kept]


# -- no byte is left -----------------------------------------------------------------------------


def test_a_removed_person_leaves_no_byte(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    gallery.add("Ann", [photo(rng)])
    new = photo(rng, crop=5_000, source="folder/of/gisela/IMG_0001.jpg")
    ids = gallery.add("Gisela Montgomery", [new], metadata={"note": "a secret of hers"}, key="gis")
    negative = unit(rng)
    gallery.add_negative("Gisela Montgomery", negative, source="not-gisela.jpg")
    secrets = (
        b"Gisela Montgomery", b"secret of hers", b"IMG_0001", b"not-gisela", new.crop,
        new.embedding.tobytes(), negative.tobytes(),
    )  # fmt: skip
    assert all(traces(folder, each) for each in secrets)
    gallery.rename("Gisela Montgomery", "Wilhelmina Fortescue")
    reader = open_gallery(str(folder))  # an open reader keeps the journal from being removed
    assert reader.search(new.embedding[None])[0][0].photo == ids[0]
    gallery.remove("Wilhelmina Fortescue")
    assert traces(folder, *secrets, b"Wilhelmina", b"gis") == []
    reader.close()


def test_removed_photos_and_negatives_leave_no_byte(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    first, second, negative = photo(rng, source="the-first.jpg"), photo(rng), unit(rng)
    ids = gallery.add("Ann", [first, second])
    gallery.remove_photos(ids[:1])
    assert traces(folder, first.crop, first.embedding.tobytes(), b"the-first") == []
    assert traces(folder, second.crop) != []
    kept = gallery.add_negative(None, negative, source="a-stranger.jpg")
    assert traces(folder, negative.tobytes()) != []
    gallery.remove_negative(kept)
    assert traces(folder, negative.tobytes(), b"a-stranger") == []


def test_no_piece_is_left_in_pages_that_were_split_and_merged(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    names = [rng.bytes(int(rng.integers(8, 90))).hex() for _ in range(300)]
    for name in names:
        gallery.add(name, [photo(rng, crop=0, source=name[::-1])], metadata={"of": name})
    for name in names[::2]:
        with gallery._transaction(write=True) as db:  # without what removing does afterwards
            db.execute("DELETE FROM person WHERE name = ?", (name,))
    gallery.remove(names[1])
    gone = [*names[::2], names[1]]
    assert traces(folder, *(name.encode() for name in gone)) == []
    assert traces(folder, *(name[::-1].encode() for name in gone)) == []


def test_a_removal_that_was_killed_is_finished_when_the_gallery_is_opened(
    folder: Path,
    gallery: EmbeddedGallery,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = photo(rng)
    gallery.add("Ann", [new])
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedGallery, "_finish_removals", lambda _: os.kill(0, 0))
        gallery.remove("Ann", key="k")
    assert traces(folder, new.crop) != []
    gallery.add("Bob", [photo(rng)])  # in another place: this one is not yet free
    again = open_gallery(str(folder))
    assert traces(folder, new.crop, new.embedding.tobytes(), b"Ann") == []
    assert again.remove("Ann", key="k") == 1
    assert again.count() == (1, 1)
    again.close()


def test_an_add_that_was_killed_is_invisible_and_its_place_is_used_again(
    folder: Path,
    gallery: EmbeddedGallery,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gallery.add("Ann", [photo(rng)])
    torn = photo(rng)
    with monkeypatch.context() as patch:
        patch.setattr(gallery._rows, "sync", lambda: 1 / 0)  # rows are written, nothing committed
        with pytest.raises(ZeroDivisionError):
            gallery.add("Bob", [torn])
    assert traces(folder, torn.crop) != []
    assert gallery.count() == (1, 1)
    assert [hit.person for hit in gallery.search(torn.embedding[None], 5)[0]] == ["Ann"]
    new = photo(rng)
    gallery.add("Cy", [new])
    assert gallery.search(new.embedding[None])[0][0].person == "Cy"
    assert traces(folder, torn.crop, torn.embedding.tobytes()) == []
    sizes = [(folder / "default" / name).stat().st_size for name in (ROWS, CROPS)]
    assert sizes == [HEADER + 2 * 4 * DIM, HEADER + 600]


def test_free_places_are_used_again(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    ids = [gallery.add("Ann", [photo(rng, crop=size)])[0] for size in (300, 200, 100, 400)]
    gallery.remove_photos([ids[0], ids[2]])
    gallery.remove_photos([ids[1]])  # three neighbours are one place of 600 bytes
    new = [photo(rng, crop=size) for size in (590, 10)]
    (first, second) = gallery.add("Bob", new)
    assert [gallery.crop(first), gallery.crop(second)] == [each.crop for each in new]
    assert (folder / "default" / CROPS).stat().st_size == HEADER + 1_000
    assert (folder / "default" / ROWS).stat().st_size == HEADER + 4 * 4 * DIM


def test_a_dropped_collection_is_gone_for_those_who_have_it_open(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    gallery.add("Ann", [photo(rng)])
    drop_collection(str(folder), "default")
    assert list(folder.iterdir()) == []
    with pytest.raises(ValueError, match=r"default was removed or replaced; open it again"):
        gallery.add("Bob", [photo(rng)])


# -- damaged files -------------------------------------------------------------------------------


def damaged(folder: Path, name: str, content: bytes) -> None:
    (folder / "default" / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        (DATABASE, lambda old: b"", "damaged or not the database"),
        (DATABASE, lambda old: b"not a database at all" * 99, "damaged or not the database"),
        (DATABASE, lambda old: old[:5_000], "cut after 5,000 bytes"),
        (DATABASE, lambda old: old[:60] + b"\0\0\0\x63" + old[64:], "format 99, which this"),
        (DATABASE, lambda old: old[:68] + b"\0\0\0\0" + old[72:], "of another program"),
        (DATABASE, lambda old: old[:100] + b"\xff" * (len(old) - 100), "is damaged"),
        (ROWS, lambda old: b"", "does not begin as"),
        (ROWS, lambda old: b"x" + old[1:], "does not begin as"),
        (ROWS, lambda old: old[:8] + b"\x63" + old[9:], "format 99, which this"),
        (ROWS, lambda old: old[:24] + b"\0" * 8 + old[32:], "belongs to another gallery"),
        (ROWS, lambda old: old[:-1], "cut after"),
        (CROPS, lambda old: old[:-1], "cut after"),
        (CROPS, lambda old: old[: HEADER // 2], "cut after"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(
    name: str,
    damage: Callable[[bytes], bytes],
    sentence: str,
    folder: Path,
    gallery: EmbeddedGallery,
    rng: np.random.Generator,
) -> None:
    gallery.add("Ann", [photo(rng)])
    gallery.close()
    path = folder / "default" / name
    path.write_bytes(damage(path.read_bytes()))
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(ValueError, match=f"{path} .*{sentence}") as raised:
        open_gallery(str(folder))
    assert "\n" not in str(raised.value)
    after = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("name", [ROWS, CROPS])
def test_a_missing_file_is_named(name: str, folder: Path, gallery: EmbeddedGallery) -> None:
    gallery.close()
    (folder / "default" / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing; restore"):
        open_gallery(str(folder))


def test_rows_that_are_cut_while_it_is_open_are_noticed(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    gallery.add("Ann", [photo(rng)])
    os.truncate(folder / "default" / ROWS, HEADER)
    with pytest.raises(ValueError, match="cut after"):
        gallery.search(unit(rng, 1))


def test_other_folders_and_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files, such as diary\.txt"):
        open_gallery(str(tmp_path), model=MODEL, dim=DIM, create=True)
    with pytest.raises(ValueError, match=r"diary\.txt is a file; a gallery is a folder"):
        open_gallery(str(tmp_path / "diary.txt"))
    with pytest.raises((ValueError, OSError), match="is not a folder"):
        open_gallery(str(tmp_path / "diary.txt"), model=MODEL, dim=DIM, create=True)
    with pytest.raises(FileNotFoundError, match="nowhere is not a gallery; enrolling makes one"):
        open_gallery(str(tmp_path / "nowhere"))
    assert [each.name for each in tmp_path.iterdir()] == ["diary.txt"]


def test_the_nearest_gallery_is_named_where_a_folder_is_misspelt(tmp_path: Path) -> None:
    open_gallery(str(tmp_path / "people"), model=MODEL, dim=DIM, create=True).close()
    (tmp_path / "peopl").mkdir()  # no gallery either, so not suggested
    with pytest.raises(
        FileNotFoundError, match=r"peeple is not a gallery; did you mean '.*/people'"
    ):
        open_gallery(str(tmp_path / "peeple"))
    with pytest.raises(
        FileNotFoundError, match=r"peopl is not a gallery; did you mean '.*/people'"
    ):
        open_gallery(str(tmp_path / "peopl"))


def test_a_full_disk_loses_nothing(
    gallery: EmbeddedGallery, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add("Ann", [photo(rng)])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            gallery.add("Bob", [photo(rng)])
    assert gallery.count() == (1, 1)
    gallery.add("Bob", [photo(rng)])


# -- several at once -----------------------------------------------------------------------------


def test_a_search_during_a_removal_is_of_one_state(
    folder: Path,
    gallery: EmbeddedGallery,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = unit(rng)
    gallery.add("Ann", [NewPhoto(query)])
    gallery.add("Bob", [photo(rng)])
    other = open_gallery(str(folder))
    remover = threading.Thread(target=other.remove, args=("Ann",))
    passes = 0

    def amid(rows: Embeddings, *rest: object) -> object:
        nonlocal passes
        passes += 1
        if passes == 1:
            remover.start()
            while rows[0].any():  # until Ann's row is overwritten; then the remover waits for us
                pass
        return nearest_people(rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded, "nearest_people", amid)
    hits = gallery.search(query[None], 5)[0]
    remover.join()
    assert passes == 2
    assert [hit.person for hit in hits] == ["Bob"]
    other.close()


def test_a_search_that_removals_void_again_and_again_lets_writers_wait(
    folder: Path,
    gallery: EmbeddedGallery,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(9):
        gallery.add(f"person {number}", [photo(rng)])
    other = open_gallery(str(folder))
    assert isinstance(other, EmbeddedGallery)
    monkeypatch.setattr(other, "_finish_removals", lambda: None)
    passes = 0

    def amid(*given: object) -> object:
        nonlocal passes
        if passes < embedded._TRIES:
            other.remove(f"person {passes}")
        passes += 1
        return nearest_people(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded, "nearest_people", amid)
    assert len(gallery.search(unit(rng, 1), 99)[0]) == 9 - embedded._TRIES
    assert passes == embedded._TRIES + 1
    other.close()


WRITER = """
import sys
import numpy as np
from sphereface2.galleries.gallery import NewPhoto
from sphereface2.galleries import open_gallery

def row(name):
    value = np.random.default_rng(list(name.encode())).standard_normal(16)
    return (value / np.linalg.norm(value)).astype(np.float32)

gallery = open_gallery(sys.argv[1])
for turn in range(int(sys.argv[3])):
    name = f"{sys.argv[2]} {turn}"
    gallery.add(name, [NewPhoto(row(name), name.encode() * 50)])
    if turn % 3:
        gallery.remove(name)
"""


def row_of(name: str) -> Embeddings:
    value = np.random.default_rng(list(name.encode())).standard_normal(16)
    row: Embeddings = (value / np.linalg.norm(value)).astype(np.float32)
    return row


@pytest.mark.usefixtures("quick_processes")
def test_readers_continue_while_two_processes_write(
    folder: Path, gallery: EmbeddedGallery, rng: np.random.Generator
) -> None:
    gallery.add("always there", [NewPhoto(row_of("always there"))])
    words = [sys.executable, "-c", WRITER, str(folder)]
    writers = [subprocess.Popen([*words, name, "12"]) for name in ("left", "right")]
    searches = 0
    while any(writer.poll() is None for writer in writers) or not searches:
        query = unit(rng)
        hits = gallery.search(query[None], 100)[0]
        assert "always there" in [hit.person for hit in hits]
        for hit in hits:  # nobody by another's embedding, or by one of zeros
            assert hit.score == pytest.approx(float(row_of(hit.person) @ query), abs=1e-5)
        searches += 1
    assert [writer.wait() for writer in writers] == [0, 0]
    kept = {f"{name} {turn}" for name in ("left", "right") for turn in range(0, 12, 3)}
    assert {each.name for each in gallery.people()} == kept | {"always there"}
    for each in gallery.photos():
        np.testing.assert_array_equal(gallery.embeddings([each.id]), [row_of(each.person)])
        assert each.person == "always there" or gallery.crop(each.id) == each.person.encode() * 50


def test_threads_share_a_gallery(gallery: EmbeddedGallery) -> None:
    def work(name: str) -> None:
        for turn in range(5):
            gallery.add(f"{name} {turn}", [NewPhoto(row_of(f"{name} {turn}"))])
            hit = gallery.search(row_of(f"{name} {turn}")[None])[0][0]
            assert hit.person == f"{name} {turn}"

    threads = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gallery.count() == (20, 20)


def test_two_create_a_collection_at_once(folder: Path) -> None:
    opened = []

    def work() -> None:
        opened.append(open_gallery(str(folder), model=MODEL, dim=DIM, create=True))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened[0].add("Ann", [NewPhoto(row_of("Ann"))])
    assert [each.count() for each in opened] == [(1, 1)] * 4
    for each in opened:
        each.close()


def test_a_writer_that_waits_too_long_is_reported(
    folder: Path,
    gallery: EmbeddedGallery,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded, "_PATIENCE", 0.05)
    other = sqlite3.connect(folder / "default" / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    gallery._connections.clear()
    with pytest.raises(ValueError, match=r"another process has been writing to .* try again"):
        gallery.add("Ann", [photo(rng)])
    other.close()


# -- exact search --------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "people"), [(5_000, 1), (70_000, 7), (3_000, 5_000)])
def test_the_search_by_blocks_is_the_naive_one(rows: int, people: int) -> None:
    rng = np.random.default_rng(rows)
    values, queries = unit(rng, rows), unit(rng, 70)
    owners = rng.integers(-1, rows // 3, rows)
    found = nearest_people(values, owners, queries, people)
    scores = (values @ queries.T).T
    for row, hits in zip(scores[::13], found[::13], strict=True):
        best: dict[int, float] = {}
        for owner, score in zip(owners.tolist(), row.tolist(), strict=True):
            if owner >= 0:
                best[owner] = max(score, best.get(owner, -2.0))
        expected = sorted(best, key=lambda owner: -best[owner])[:people]
        assert [owner for owner, _, _ in hits[:50]] == expected[:50]
        assert len(hits) == len(expected)
        for owner, number, score in hits:
            assert owners[number] == owner
            assert score == pytest.approx(best[owner], abs=1e-6)


def test_of_equals_the_first_row_wins() -> None:
    row = np.eye(4, dtype=np.float32)[:1]
    found = nearest_people(np.repeat(row, 6, axis=0), np.array([-1, 3, 3, 1, 2, 1]), row, 2)
    assert found == [[(3, 1, 1.0), (1, 3, 1.0)]]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may become larger than a few pages: as on a full disk, a write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_gallery_that_cannot_be_made_is_said_in_a_sentence(folder: Path) -> None:
    with pytest.raises(OSError, match=r"people\.sqlite cannot be written"):
        open_gallery(str(folder), model=MODEL, dim=DIM, create=True)
    assert not [path for path in folder.rglob("*") if path.is_file()]
