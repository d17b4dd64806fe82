"""Search in galleries: exact search against the bare matrix product; engines at 100,000 photos.

python -m benchmarks.gallery exact FOLDER [--photos 1000000 --dim 512]
python -m benchmarks.gallery engines URL... [--photos 100000 --dim 512]

The embeddings are generated: people are random directions, their photos lie around them.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from sphereface2.galleries import open_gallery
from sphereface2.galleries.embedded import DATABASE, ROWS, EmbeddedGallery
from sphereface2.galleries.gallery import Embeddings, NewPhoto
from sphereface2.galleries.parts_file import HEADER

MODEL = "f" * 64
PER_PERSON = 4
_SPREAD = 0.9  # of a photo around its person: cosines of about 0.55 between two of one person
_BLOCK = 50_000


def people_rows(photos: int, dim: int, seed: int = 0) -> Iterator[Embeddings]:
    """The embeddings of all photos, in blocks; person n has rows 4n to 4n + 3."""
    rng = np.random.default_rng(seed)
    for start in range(0, photos, _BLOCK):
        count = min(_BLOCK, photos - start)
        centres = rng.standard_normal((-(-count // PER_PERSON), dim), dtype=np.float32)
        rows = np.repeat(centres, PER_PERSON, axis=0)[:count]
        rows += _SPREAD * rng.standard_normal(rows.shape, dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        yield rows


def probes(rows: Embeddings, count: int, seed: int = 1) -> tuple[Embeddings, list[int]]:
    """Further photos of some of the people."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(rows) // PER_PERSON, count, replace=False)
    centres = rows.reshape(-1, PER_PERSON, rows.shape[1])[chosen].sum(axis=1)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    found = centres + rng.standard_normal(centres.shape).astype(np.float32) / rows.shape[1] ** 0.5
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found, chosen.tolist()


def fill(folder: Path, photos: int, dim: int) -> EmbeddedGallery:
    """A gallery in a folder as `add` leaves it, made without a sync for each person."""
    gallery = open_gallery(str(folder), model=MODEL, dim=dim, create=True)
    assert isinstance(gallery, EmbeddedGallery)
    if gallery.count()[1] == photos:
        return gallery
    with (folder / "default" / ROWS).open("r+b") as file:
        file.seek(HEADER)
        for rows in people_rows(photos, dim):
            file.write(rows.tobytes())
    db = sqlite3.connect(folder / "default" / DATABASE)
    with db:
        people = ((n, f"person {n}", "{}", "") for n in range(-(-photos // PER_PERSON)))
        db.executemany("INSERT INTO person VALUES (?, ?, ?, ?)", people)
        db.executemany(
            "INSERT INTO photo VALUES (?, ?, ?, ?, 0, 0, '', '{}', '')",
            ((n + 1, uuid.uuid4().hex, n // PER_PERSON, n) for n in range(photos)),
        )
        db.execute("UPDATE state SET row_end = ?", (photos,))
    db.close()
    return gallery


def in_turn(
    work: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The median seconds of each by the clock and of processor time, one after the other."""
    clocks = {"clock": time.perf_counter, "processor": time.process_time}
    spent: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in work} for clock in clocks
    }
    for turn in range(rounds + 1):
        for name, each in work.items():
            start = {clock: read() for clock, read in clocks.items()}
            each()
            if turn:  # the first sets things up
                for clock, read in clocks.items():
                    spent[clock][name].append(read() - start[clock])
    by_clock, by_processor = (
        {name: median(each) for name, each in spent[clock].items()} for clock in clocks
    )
    return by_clock, by_processor


def exact(folder: Path, photos: int, dim: int, rounds: int) -> None:
    gallery = fill(folder, photos, dim)
    size = photos * dim * 4 / 2**20
    # First the memory: the process maps the file, and what it has touched counts as its own.
    before = _resident()
    query = next(people_rows(4, dim, seed=9))[:1]
    gallery.search(query, 5)
    gallery.search(np.repeat(query, 16, axis=0), 5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{photos:,} × {dim}: matrix {size:,.0f} MB; peak of the process {peak:,.0f} MB, mapped "
        f"file included = {peak / size:.3f} of the matrix ({before:,.0f} MB before the search)"
    )
    held = np.fromfile(folder / "default" / ROWS, np.float32, photos * dim, offset=HEADER)
    matrix = held.reshape(photos, dim)
    rng = np.random.default_rng(3)
    for count in (1, 16):
        queries = rng.standard_normal((count, dim)).astype(np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)

        def search(queries: Embeddings = queries) -> object:
            return gallery.search(queries, 5)

        def product(queries: Embeddings = queries) -> object:
            return matrix @ queries.T

        def transposed(queries: Embeddings = queries) -> object:
            return queries @ matrix.T

        both = in_turn({"search": search, "M·qᵀ": product, "q·Mᵀ": transposed}, rounds)
        for clock, spent in zip(("clock", "processor"), both, strict=True):
            bare = min(spent["M·qᵀ"], spent["q·Mᵀ"])
            each = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in spent.items())
            print(f"{count} queries by {clock}: {each}; ratio {spent['search'] / bare:.2f}")
    gallery.close()


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def engines(urls: list[str], photos: int, dim: int, searches: int) -> None:
    rows = np.concatenate(list(people_rows(photos, dim)))
    queries, wanted = probes(rows, searches)
    scores = queries @ rows.T
    truth = (scores.argmax(axis=1) // PER_PERSON).tolist()
    right = np.mean([a == b for a, b in zip(truth, wanted, strict=True)])
    print(f"{photos:,} × {dim}, {searches} searches; exact search finds {right:.1%} of the people")
    galleries = {}
    for url in urls:
        name = url.partition(":")[0] + (f" {url.partition('?')[2]}" if "?" in url else "")
        gallery = open_gallery(url, model=MODEL, dim=dim, create=True)
        start = time.perf_counter()
        for first in range(gallery.count()[1], photos, PER_PERSON):
            photo = [NewPhoto(row) for row in rows[first : first + PER_PERSON]]
            gallery.add(f"person {first // PER_PERSON}", photo)
        print(f"{name}: filled in {time.perf_counter() - start:.0f} s", flush=True)
        gallery.close()
        galleries[name] = open_gallery(url)  # an index in process is built at opening
    for name, gallery in galleries.items():
        spent, hits = [], []
        for query in queries:
            start = time.perf_counter()
            found = gallery.search(query[None])[0]
            spent.append(time.perf_counter() - start)
            hits.append(int(found[0].person.split()[1]) if found else -1)
        same = np.mean([a == b for a, b in zip(hits, truth, strict=True)])
        print(
            f"{name:40} {1000 * median(spent):8.1f} ms per search, recall@1 {same:.4f}", flush=True
        )
        gallery.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("exact")
    one.add_argument("folder", type=Path)
    one.add_argument("--photos", type=int, default=1_000_000)
    one.add_argument("--rounds", type=int, default=7)
    many = commands.add_parser("engines")
    many.add_argument("urls", nargs="+")
    many.add_argument("--photos", type=int, default=100_000)
    many.add_argument("--searches", type=int, default=500)
    for each in (one, many):
        each.add_argument("--dim", type=int, default=512)
    given = parser.parse_args()
    try:
        if given.command == "exact":
            exact(given.folder, given.photos, given.dim, given.rounds)
        else:
            engines(given.urls, given.photos, given.dim, given.searches)
    except (ValueError, OSError) as error:
        print(f"gallery: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
