"""Enrolments with kill -9 in between: is every acknowledged one there, and none twice?

python -m faults.enrolments URL [--enrolments 1000] [--kills 20]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import Embeddings, NewPhoto

DIM = 64
MODEL = "f" * 64
_PER_PERSON = 4


@dataclass(frozen=True)
class Outcome:
    """lost: acknowledged and not there; twice: there more than once; wrong: another embedding"""

    enrolments: int
    kills: int
    unacknowledged_but_there: int
    lost: int
    twice: int
    wrong: int

    def __str__(self) -> str:
        return (
            f"{self.enrolments:,} enrolments, {self.kills} kills: {self.lost} lost, {self.twice} "
            f"twice, {self.wrong} wrong; {self.unacknowledged_but_there} had been committed when "
            "the kill came before the answer, and were not added again"
        )


def embedding(number: int) -> Embeddings:
    row = np.random.default_rng(number).standard_normal(DIM).astype(np.float32)
    row /= np.linalg.norm(row)
    return row


def enrol(url: str, start: int, stop: int) -> None:
    """Enrol one photo after the other and say so of each; to be killed."""
    gallery = open_gallery(url, model=MODEL, dim=DIM, create=True)
    for number in range(start, stop):
        photo = NewPhoto(embedding(number), f"crop {number};".encode() * 99, f"{number}.jpg")
        gallery.add(f"person {number // _PER_PERSON}", [photo], key=f"request {number}")
        print(number, flush=True)
        sys.stdin.readline()  # else it could be done before anybody comes to kill it
    gallery.close()


def run(url: str, *, enrolments: int, kills: int, seed: int = 0) -> Outcome:
    """Kill the process at random moments; the next one starts with the first unacknowledged."""
    moments = sorted(random.Random(seed).sample(range(1, enrolments), kills))
    done, killed, ghosts = 0, 0, 0
    while done < enrolments:
        words = [
            sys.executable,
            "-m",
            "faults.enrolments",
            url,
            "--enrol",
            str(done),
            str(enrolments),
        ]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdin is not None
            for line in worker.stdout:
                done = int(line) + 1
                is_last = killed < kills and done >= moments[killed]
                if not is_last or killed % 2:  # amid the next one, not between two
                    worker.stdin.write("\n")
                    worker.stdin.flush()
                if is_last:
                    time.sleep(random.Random(seed + killed).random() * 0.02)
                    worker.kill()
                    killed += 1
                    for last in worker.stdout:  # an answer that was on its way
                        done = int(last) + 1
                    break
            code = worker.wait()
        if code not in (0, -9):
            raise RuntimeError(f"the process that enrols ended with {code}")
        if code == -9:
            gallery = open_gallery(url, model=MODEL)
            ghosts += gallery.count()[1] - done
            gallery.close()
    return _checked(url, enrolments, killed, ghosts)


def _checked(url: str, enrolments: int, kills: int, ghosts: int) -> Outcome:
    gallery = open_gallery(url, model=MODEL)
    photos = gallery.photos()
    found: dict[int, list[str]] = {}
    wrong = 0
    for photo in photos:
        number = int(photo.source.removesuffix(".jpg"))
        found.setdefault(number, []).append(photo.id)
        wrong += photo.person != f"person {number // _PER_PERSON}"
        wrong += gallery.crop(photo.id) != f"crop {number};".encode() * 99
    rows = gallery.embeddings([photo.id for photo in photos])
    expected = np.stack([embedding(int(photo.source.removesuffix(".jpg"))) for photo in photos])
    wrong += int((np.abs(rows - expected) > 1e-6).any(axis=1).sum())
    gallery.close()
    lost = sum(number not in found for number in range(enrolments))
    twice = sum(len(ids) > 1 for ids in found.values())
    return Outcome(enrolments, kills, ghosts, lost, twice, wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url", help="where the gallery is to be made")
    parser.add_argument("--enrolments", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--enrol", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.enrol:
        enrol(arguments.url, *arguments.enrol)
    else:
        print(run(arguments.url, enrolments=arguments.enrolments, kills=arguments.kills))


if __name__ == "__main__":
    main()
