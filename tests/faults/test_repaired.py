"""What hostile files once did to the readers, each as small as it can be: now one sentence each."""

import io
import json
import sqlite3
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sphereface2.data.sources.image_file import check_header
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import RecordWriter, to_frames
from sphereface2.datatools.group.people import Journal
from sphereface2.datatools.group.store import FaceStore
from sphereface2.evaluation.embedding_files import read_embeddings
from sphereface2.evaluation.pair_scores import load_scores
from sphereface2.evaluation.protocols.ijb_files import read_ijb
from sphereface2.evaluation.protocols.megaface import read_megaface
from sphereface2.experiments.sweep.plan import seeds_of_text
from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import NewPhoto
from sphereface2.models.folder import faults_of_tensors
from sphereface2.runs.folder import read_history, run_lock
from sphereface2.training.checkpoint import load_checkpoint

DEEP = b"[" * 100_000


@contextmanager
def taking_at_most(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def npy(header: bytes, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def npz(path: Path, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 2L), }((\n"),  # TokenError
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2), }\n", bytes(64)),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 2), }\n", bytes(64)),
        b"PK\x05\x06" + bytes(18),  # an empty zip file: NumPy gives it back as an archive
    ],
)
def test_an_npy_with_a_strange_header(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npy (is not|cannot be read as)"):
        read_embeddings(tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"a\.npz cannot be read"):
        read_embeddings(npz(tmp_path / "a.npz", embeddings=content))


def sound_npz() -> bytes:
    made = io.BytesIO()
    np.savez_compressed(made, embeddings=np.arange(400.0).reshape(20, 20))
    return made.getvalue()


@pytest.mark.parametrize("damage", ["cut", "flipped", "sizes", "offset"])
def test_a_damaged_npz(damage: str, tmp_path: Path) -> None:
    """BadZipFile, zlib's error, and a place before the file: an OSError without a name."""
    content = bytearray(sound_npz())
    central = content.rindex(b"PK\x01\x02")
    if damage == "cut":
        del content[-20:]
    elif damage == "flipped":
        content[80:90] = bytes(10)
    elif damage == "sizes":
        content[central + 20 : central + 28] = b"\xff" * 8
    else:
        content[-6:-2] = struct.pack("<I", len(content))
    for name, read in (("a.npz", read_embeddings), ("scores.npz", load_scores)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} (cannot be read|is damaged)"):
            read(tmp_path / name)


def test_an_npz_that_claims_or_unpacks_to_all_memory(tmp_path: Path) -> None:
    claimed = npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000, 100000), }\n")
    packed = npy(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (12500, 1000), }\n", bytes(50_000_000)
    )
    for content in (claimed, packed):
        path = npz(tmp_path / "a.npz", embeddings=content)
        with taking_at_most(20_000_000), pytest.raises(ValueError, match="cannot be read"):
            read_embeddings(path)


def test_names_in_an_npz_that_are_not_unicode_or_not_a_list(tmp_path: Path) -> None:
    table = npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n", b"\0\0\x80?" * 2)
    header = b"{'descr': '<U1', 'fortran_order': False, 'shape': (1,), }\n"
    for names in (
        npy(header, b"\xff\xff\xff\xff"),
        npy(header.replace(b"(1,)", b"()"), b"a\0\0\0"),
    ):
        with pytest.raises(ValueError, match=r"a\.npz cannot be read"):
            read_embeddings(npz(tmp_path / "a.npz", embeddings=table, names=names))


def test_an_id_of_ijb_that_no_computer_counts_to(tmp_path: Path) -> None:
    (tmp_path / "ijbc_face_tid_mid.txt").write_text("1.jpg 99999999999999999999 1\n")
    with pytest.raises(ValueError, match="ids are whole numbers"):
        read_ijb(tmp_path)


def test_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    """A RecursionError from every reader of JSON but that of a model folder."""
    (tmp_path / "facescrub_features_list.json").write_bytes(DEEP)
    with pytest.raises(ValueError, match="is not JSON: nested too deeply"):
        read_megaface(tmp_path)
    (tmp_path / "checkpoint.json").write_bytes(DEEP)
    with pytest.raises(ValueError, match="is damaged or no checkpoint"):
        load_checkpoint(tmp_path)
    (tmp_path / "journal.jsonl").write_bytes(DEEP + b"\n")
    with pytest.raises(ValueError, match=r"journal\.jsonl is damaged: nested too deeply"):
        Journal(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(DEEP + b"\n")
    with pytest.raises(ValueError, match="nested too deeply"):
        read_history(tmp_path)


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"what": "group", "moves": [1]}', b"3"])
def test_a_journal_of_other_lines(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(line + b"\n")
    with pytest.raises(ValueError, match=r"journal\.jsonl is damaged"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    "lines", [b"", b"3\n", b'{"version": 1}\n', b'{"version": 1, "dim": 2}\n{"photo": 1}\n']
)
def test_a_store_of_faces_with_other_lines(lines: bytes, tmp_path: Path) -> None:
    (tmp_path / ".group").mkdir()
    (tmp_path / ".group" / "photos.jsonl").write_bytes(lines)
    with pytest.raises(ValueError, match=r"photos\.jsonl is damaged|another version"):
        FaceStore(tmp_path)


def test_a_split_record_with_a_number_beyond_63_bits(tmp_path: Path) -> None:
    magic = struct.pack("<I", 0xCED7230A)
    header = struct.pack("<IfQQ", 0, 3.0, 2**64 - 1, 0)
    (tmp_path / "a.rec").write_bytes(to_frames(header + magic + b"rest"))
    assert len(RecordIO(path=str(tmp_path / "a.rec"))) == 1


@pytest.mark.parametrize("text", ["9" * 12, "9" * 30])
def test_more_seeds_than_memory(text: str) -> None:
    with pytest.raises(ValueError, match=r"--seeds: a count is from 1 to 10,000"):
        seeds_of_text(text)


def test_a_tiff_whose_tags_all_claim_the_whole_file() -> None:
    """Some 60,000 tags of 60,000 numbers each were 100 GB of Python's numbers."""
    tags = 5_000
    size = 10 + 12 * tags
    entries = b"".join(struct.pack("<HHII", tag, 3, size // 2, 0) for tag in range(300, 300 + tags))
    picture = struct.pack("<2sHIH", b"II", 42, 8, tags) + entries
    with taking_at_most(10_000_000), pytest.raises(ValueError, match="TIFF header is damaged"):
        check_header(picture)


def test_a_tiff_without_strips() -> None:
    entries = [(256, 3, 1, 20), (257, 3, 1, 20), (273, 4, 1, 8), (279, 4, 0, 0), (325, 4, 0, 0)]
    picture = struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    picture += b"".join(struct.pack("<HHII", *entry) for entry in entries)
    with pytest.raises(ValueError, match="TIFF header is damaged"):
        check_header(picture)


# -- a gallery whose database holds anything -------------------------------------------------------


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    rows = np.eye(2, 4, dtype=np.float32)
    made = open_gallery(str(tmp_path / "g"), model="m" * 64, dim=4, create=True)
    made.add("Ada", [NewPhoto(rows[0], b"crop")])
    made.add_negative("Ada", rows[1])
    made.close()
    return tmp_path / "g"


def use(folder: Path) -> None:
    gallery = open_gallery(str(folder))
    try:
        gallery.people()
        photos = gallery.photos()
        gallery.search(np.eye(1, 4, dtype=np.float32))
        gallery.embeddings([each.id for each in photos])
        gallery.crop(photos[0].id)
        gallery.negatives("Ada")
        list(gallery.blocks())
        gallery.remove("Ada")
    finally:
        gallery.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE state SET dim = 'four'",
        "UPDATE state SET dim = 0",
        "UPDATE state SET row_end = 'x'",
        "UPDATE state SET removals = x'00'",
        "UPDATE photo SET row = -1",
        "UPDATE photo SET row = 7",
        "UPDATE photo SET row = 'x'",
        "UPDATE photo SET crop_start = 10, crop_stop = 0",
        "UPDATE photo SET crop_stop = 'x'",
        "UPDATE photo SET facts = '[]'",
        "UPDATE photo SET source = x'00'",
        f"UPDATE person SET metadata = '{'[' * 50_000}'",
        "UPDATE person SET metadata = x'00'",
        "UPDATE negative SET embedding = x'000102'",
        "UPDATE negative SET embedding = 'text'",
        "INSERT INTO wipe (file, start, stop) VALUES ('other', 0, 1)",
        "INSERT INTO wipe (file, start, stop) VALUES ('row', 0, 1000000000000)",
        "INSERT INTO free (file, start, stop) VALUES ('crop', -5, 'x')",
        # a view whose reader never ends, and a trigger that anyone runs who adds
        "ALTER TABLE negative RENAME TO n; CREATE VIEW negative AS WITH RECURSIVE c(x) AS "
        "(SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id FROM c",
        "CREATE TRIGGER t AFTER DELETE ON photo BEGIN DELETE FROM state; END",
    ],
)
def test_a_gallery_with_a_hostile_database(change: str, gallery: Path) -> None:
    with closing(sqlite3.connect(gallery / "default" / "people.sqlite")) as db:
        db.executescript(change)
    with pytest.raises(ValueError, match=r"damaged|belongs to another gallery"):
        use(gallery)
    sizes = sum(path.stat().st_size for path in (gallery / "default").iterdir())
    assert sizes < 10_000_000  # a place to be wiped that has no end filled the disk with zeros


def test_a_sound_gallery_is_used(gallery: Path) -> None:
    use(gallery)


def test_lists_of_megaface_are_read_as_before(tmp_path: Path) -> None:
    lists = {"facescrub_features_list.json": {"path": ["a"], "id": ["b"]},
             "megaface_features_list.json_1_1": {"path": ["c"]}}  # fmt: skip
    for name, content in lists.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    assert read_megaface(tmp_path, size=1).distractor_names == ["c"]


def test_a_begun_rec_with_a_record_that_is_not_whole_is_cut_there(tmp_path: Path) -> None:
    sound = to_frames(struct.pack("<IfQQff", 2, 0, 0, 0, 0, 0)) + to_frames(
        struct.pack("<IfQQ", 0, 1, 1, 0) + b"image"
    )
    part = tmp_path / "a.rec.part"
    for damaged in (b"short", struct.pack("<IfQQ", 0, float("inf"), 2, 0) + b"image"):
        part.write_bytes(sound + to_frames(damaged))
        writer = RecordWriter(tmp_path / "a.rec", resume=True)
        writer.close()
        assert writer.written == 1
        assert part.read_bytes() == sound


def test_who_opens_a_run_removes_what_a_killed_export_left_aside(tmp_path: Path) -> None:
    for place in ("model", ".model.replaced", "checkpoints/.last.replaced"):
        (tmp_path / place).mkdir(parents=True)
    with run_lock(tmp_path):
        pass
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    # The checkpoint that stands aside is the only one, so that it stays.
    assert left == {"model", "checkpoints", "checkpoints/.last.replaced"}


def test_weights_that_cannot_be_opened_again_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    refused = pytest.raises(OSError, match=r"a.safetensors cannot be read \(unable to open")
    with refused, faults_of_tensors(path):
        torch.UntypedStorage.from_file(str(path), False, 8)


@pytest.mark.usefixtures("quick_processes")
def test_ctrl_c_is_too_late_once_a_command_has_ended() -> None:
    ended = """
import signal, sys
from sphereface2.__main__ import main
sys.argv = ["sphereface2", "--version"]
try:
    main()
finally:
    signal.raise_signal(signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize(
    "moment", ["last()", "Destroyed(); time.sleep(9)"], ids=["at the end", "in a destructor"]
)
def test_ctrl_c_is_quiet_and_not_forgotten(moment: str) -> None:
    command = f"""
import signal, time
import sphereface2.cli
from sphereface2.__main__ import main

def last():
    signal.raise_signal(signal.SIGINT)

class Destroyed:
    def __del__(self):
        last()

def command():
    {moment}

sphereface2.cli.main = command
main()
"""
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "sphereface2: stopped\n")


class CannotMoveItsJournal(sqlite3.Connection):
    """As on a disk that fails when the journal is to be moved into the file of the database."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA wal_checkpoint"):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *values)


def test_a_gallery_that_is_only_in_its_journal_does_not_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "gallery")
    with monkeypatch.context() as patch:
        failing = partial(sqlite3.connect, factory=CannotMoveItsJournal)
        patch.setattr(sqlite3, "connect", failing)
        with pytest.raises(ValueError, match=r"people\.sqlite .*disk I/O error"):
            open_gallery(url, model="a" * 64, dim=4, create=True)
    assert not list(tmp_path.rglob("people.sqlite*"))
    open_gallery(url, model="a" * 64, dim=4, create=True).close()
