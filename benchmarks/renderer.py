"""How many pictures of synthetic people one core renders in a second.

    OMP_NUM_THREADS=1 taskset -c 1 python -m benchmarks.renderer

One pass over people that this process has not seen, so that what a new person costs is in the mean;
nothing is repeated and no best is picked. The machine should be idle otherwise.
"""

import argparse
import time

import cv2
import numpy as np

from sphereface2.data.sources.synthetic import render_sample


def measure(people: int, samples: int, first_person: int) -> np.ndarray:
    """(people, samples, 2): seconds an image took by the wall clock, and on the processor."""
    seconds = np.empty((people, samples, 2))
    for person in range(people):
        for sample in range(samples):
            wall, busy = time.perf_counter(), time.process_time()
            render_sample(first_person + person, sample)
            seconds[person, sample] = time.perf_counter() - wall, time.process_time() - busy
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--people", type=int, default=30)
    parser.add_argument("--samples", type=int, default=20, help="images per person")
    parser.add_argument("--first-person", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.people < 1 or arguments.samples < 2:
        parser.error("at least one person and two images per person are needed")
    cv2.setNumThreads(1)
    # Imports, tables and the noise that everybody shares are built once a process.
    render_sample(arguments.first_person + arguments.people, 0)
    seconds = measure(arguments.people, arguments.samples, arguments.first_person)
    print(f"{arguments.people} new people, {arguments.samples} images of 112x112 each, one core")
    for name, taken in zip(("wall clock", "processor"), np.moveaxis(seconds, 2, 0), strict=True):
        extra = np.median(taken[:, 0]) - np.median(taken[:, 1:])
        print(
            f"{name:12}{1 / taken.mean():6.0f} images/s sustained, "
            f"{1 / np.median(taken):.0f} at the median; "
            f"a person's first image takes {extra * 1e3:.1f} ms longer"
        )


if __name__ == "__main__":
    main()
