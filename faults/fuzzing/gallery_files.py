"""Galleries and groups under test: the database, its rows, embeddings, crops, journals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np

from faults.fuzzing.data_files import picture
from faults.fuzzing.parser import Parser, part, write_parts
from sphereface2.datatools.group.people import Journal
from sphereface2.datatools.group.store import FaceStore
from sphereface2.files import scratch_folder
from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import NewPhoto
from sphereface2.recognition.doctor import examine
from sphereface2.recognition.moving import export
from sphereface2.service.keys import read_keys

_FILES = ("people.sqlite", "embeddings.f32", "crops.bin")
_DIM = 4
_TABLES = ("state", "person", "photo", "negative", "request", "wipe", "free")


@cache
def _sound() -> tuple[bytes, ...]:
    """A gallery of two people, of one of whom a photo was removed."""
    with scratch_folder("gallery") as folder:
        rows = np.eye(5, _DIM, dtype=np.float32) + 0.1
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        gallery = open_gallery(str(folder / "g"), model="m" * 64, dim=_DIM, create=True)
        photos = [NewPhoto(row, picture(), "a.jpg", {"sharpness": 1}) for row in rows[:3]]
        first = gallery.add("Ada", photos, metadata={"room": 4}, key="once")
        gallery.add("Ben", [NewPhoto(rows[3])])
        gallery.add_negative("Ada", rows[4], source="b.jpg")
        gallery.remove_photos(first[:1])
        gallery.close()
        place = folder / "g" / "default"
        with closing(sqlite3.connect(place / _FILES[0])) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode=DELETE")
        return tuple((place / name).read_bytes() for name in _FILES)


def _galleries(folder: Path) -> list[list[bytes]]:
    return [list(_sound())]


def _read_gallery(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder / "g" / "default", _FILES, parts)
    _use(folder)


def _use(folder: Path) -> None:
    gallery = open_gallery(str(folder / "g"))
    try:
        people, photos = gallery.people(), gallery.photos()
        gallery.count()
        query = np.full((1, gallery.dim), gallery.dim**-0.5, np.float32)
        gallery.search(query, people=3)
        ids = [each.id for each in photos[:4]]
        gallery.embeddings(ids)
        for each in ids:
            gallery.crop(each)
        gallery.negatives()
        examine(gallery, None, url="g")
        export(gallery, folder / "out")
        gallery.add("Zoe", [NewPhoto(query[0], b"crop")], key="again")
        for person in people[:2]:
            gallery.remove(person.name)
    finally:
        gallery.close()


def _rows(folder: Path) -> list[list[bytes]]:
    changes = [
        ["state", "dim", 4],
        ["person", "metadata", "{}"],
        ["photo", "row", 1],
        ["photo", "crop_stop", 100],
        ["negative", "embedding", "0000"],
        ["wipe", "stop", 1],
    ]
    found = [[json.dumps([each]).encode()] for each in changes]
    return [*found, [json.dumps(changes[1:4]).encode()]]


def _read_rows(folder: Path, parts: Sequence[bytes]) -> None:
    """A sound database in which values are whatever the input says, of whatever type."""
    place = folder / "g" / "default"
    write_parts(place, _FILES, _sound())
    with closing(sqlite3.connect(place / _FILES[0], isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        try:
            changes = json.loads(part(parts, 0))
        except (ValueError, RecursionError):
            return
        for change in changes if isinstance(changes, list) else []:
            try:
                table, column, value = change
                if table in _TABLES and isinstance(column, str) and column.isidentifier():
                    kept = json.dumps(value) if isinstance(value, list | dict) else value
                    db.execute(f"UPDATE {table} SET {column} = ?", (kept,))
            except (sqlite3.Error, ValueError, TypeError, OverflowError):
                continue
    _use(folder)


def _stores(folder: Path) -> list[list[bytes]]:
    lines = [
        {"version": 1, "model": "m", "dim": 2, "flip": True},
        {"photo": "a.jpg", "stamp": [1, 2], "faces": [[1, [0, 0, 9, 9], 0.9, [0, 3]]],
         "reason": None},
        {"photo": "b.jpg", "stamp": [1, 2], "faces": [[2, None, None, [3, 3]]], "reason": None},
    ]  # fmt: skip
    journal = [
        {"what": "group", "moves": [[0, 1, [1]], [0, 2, [2]]], "names": {}, "time": "x"},
        {"what": "name", "moves": [], "names": {"1": ["", "Ada"]}, "time": "x"},
        {"what": "merge", "moves": [[2, 1, [2]]], "names": {}, "others": [1], "time": "x"},
    ]
    people = {"journal": 2, "people": [{"person": "person-1", "name": "Ada L"}]}

    def text(values: Sequence[object]) -> bytes:
        return "".join(f"{json.dumps(each)}\n" for each in values).encode()

    return [[text(lines), bytes(16), b"abcdef", text(journal), json.dumps(people).encode()]]


def _read_store(folder: Path, parts: Sequence[bytes]) -> None:
    names = [".group/photos.jsonl", ".group/embeddings.f32", ".group/crops.bin", "journal.jsonl",
             "people.json"]  # fmt: skip
    write_parts(folder, names, parts)
    with FaceStore(folder) as store:
        store.unit([face for photo in store.photos.values() for face in photo.faces])
        journal = Journal(folder)
        try:
            journal.last_group()
            journal.take_edited_names()
        finally:
            journal.close()


def _keys(folder: Path) -> list[list[bytes]]:
    digest = b"door read sha256:" + b"0a" * 32
    return [[b"# keys\n" + digest + b"\nfront write " + b"s" * 40 + b"\n"]]


def _read_keys(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["keys.txt"], parts, optional=False)
    read_keys(folder / "keys.txt")


PARSERS = {
    "gallery": Parser(_galleries, _read_gallery),
    "gallery-rows": Parser(_rows, _read_rows),
    "group": Parser(_stores, _read_store),
    "keys": Parser(_keys, _read_keys),
}
