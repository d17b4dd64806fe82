"""The reading of training images against a bare decoding loop and against torch's DataLoader.

    python -m benchmarks.loader                     # 4,000 rendered faces as 112x112 JPEGs
    python -m benchmarks.loader --crops FOLDER      # your own aligned crops, a folder per person
    python -m benchmarks.loader --busy 2            # beside two busy processes
    python -m benchmarks.loader --augment strong    # augmented images against plain ones, of a .rec

All contenders are started once and then take turns, TURN batches each; a ratio is taken within
each round of turns, and the median of the rounds is shown. `bare` is cv2.imdecode over bytes in
memory in as many threads, with nothing kept: what no loader can beat; `bare, processes` is the same
in as many processes. `DataLoader` is torch's at its best: a batch at a time from the same plan,
decoded by the same code into one tensor of shared memory; `DataLoader, usual` has one file per
item, as most scripts do. All images are in the page cache, so disks are not measured. OpenCV is
held to one thread per call for all contenders. `cpu` is the processor time of an image, in all
processes that have a part in it: on a machine with other work it says more than the clock.

Ours stays because two workers are more than 1.15 times as fast as the DataLoader at its best:
docs/data.md has the figures.
"""

import argparse
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from sphereface2.data.augmentation import AUGMENTATIONS, build_augmentation
from sphereface2.data.loader.batch_reader import BatchReader
from sphereface2.data.loader.loader import BatchPlan, Loader, WorkerKind
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import RecordWriter
from sphereface2.data.sources.source import Source
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.workers import counted

SIZE, BATCH = 112, 125
TURN = 32  # batches of a contender in a row
PEOPLE, RENDERED, COPIES = 100, 5, 8  # images per person, and versions of each in another light
_FOREVER = 1_000_000  # steps: no contender comes to its end
_SETTLED = 0.1  # seconds until workers have read ahead and rest

Read = Callable[[int], None]
"""Reads so many batches."""
Make = Callable[[ExitStack], Read]
"""Starts a contender, to be ended with the stack."""


@dataclass(frozen=True)
class Turn:
    """One turn of a contender: wall-clock and processor seconds an image."""

    wall: float
    cpu: float


def main() -> None:
    """Make the files, let the contenders take turns, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crops", type=Path, help="a folder of aligned crops to read instead")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--busy", type=int, default=0, help="processes that keep a core busy each")
    parser.add_argument("--augment", choices=AUGMENTATIONS, nargs="+", help="compare these instead")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as neighbours:
        try:
            crops = _open(options.crops or _write_crops(Path(temporary) / "crops"))
        except (ValueError, FileNotFoundError) as error:
            parser.exit(2, f"benchmarks.loader: {str(error).replace('data.path', '--crops')}\n")
        _write_rec(crops, Path(temporary) / "crops.rec")
        records = RecordIO(path=str(Path(temporary) / "crops.rec"))
        records.prepare(workers=2)
        memory = SyntheticFaces(people=20, images_per_person=50, image_size=SIZE)
        memory.prepare(workers=2)
        size = sum(len(crops.encoded(index)) for index in range(len(crops))) / len(crops)
        print(f"{len(crops)} images of {crops.num_classes} people, {size / 1000:.1f} kB each")
        for _ in range(options.busy):
            neighbour = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
            neighbour.start()
            neighbours.callback(neighbour.kill)
        for workers in options.workers:
            if options.augment:
                _compare_augmented(records, options.augment, workers=workers, rounds=options.rounds)
                continue
            _compare(crops, records, memory, workers=workers, rounds=options.rounds)


def _spin() -> None:
    for _ in count():
        pass


def _compare(
    crops: ImageFolder, records: RecordIO, memory: Source, *, workers: int, rounds: int
) -> None:
    makers: dict[str, Make] = {
        "bare": lambda alive: _bare(alive, crops, workers),
        "bare, processes": lambda alive: _bare_processes(alive, crops, workers),
        ".rec": lambda alive: _loader(alive, records, workers),
        ".rec, threads": lambda alive: _loader(alive, records, workers, kind="threads"),
        ".rec, DataLoader": lambda alive: _torch_loader(alive, records, workers),
        "folder": lambda alive: _loader(alive, crops, workers),
        "folder, threads": lambda alive: _loader(alive, crops, workers, kind="threads"),
        "folder, DataLoader": lambda alive: _torch_loader(alive, crops, workers),
        "DataLoader, usual": lambda alive: _usual_loader(alive, crops, workers),
        "memory, threads": lambda alive: _loader(alive, memory, workers),
        "memory, DataLoader": lambda alive: _torch_loader(alive, memory, workers),
    }
    turns = _take_turns(makers, workers=workers, rounds=rounds)
    print(
        f"\nworkers={workers}           images/s  of bare  of bare, processes  DataLoader  us cpu"
    )
    for name, taken in turns.items():
        rate = 1 / statistics.median(each.wall for each in taken)
        of_threads, of_processes = (
            _ratio(turns[yard], taken) for yard in ("bare", "bare, processes")
        )
        theirs = turns.get(f"{name.split(',')[0]}, DataLoader")
        times = f"{_ratio(theirs, taken):.2f} x" if theirs else ""
        cpu = 1e6 * statistics.median(each.cpu for each in taken)
        ratios = f"{of_threads:>8.1%} {of_processes:>19.1%} {times:>11}"
        print(f"{name:<18} {rate:>9.0f} {ratios} {cpu:>7.0f}")


def _compare_augmented(
    records: RecordIO, names: Sequence[str], *, workers: int, rounds: int
) -> None:
    makers: dict[str, Make] = {  # mypy has no type for a default that binds the loop's name
        name: lambda alive, name=name: _loader(alive, records, workers, augment=name)  # type: ignore[misc]
        for name in ("none", *names)
    }
    turns = _take_turns(makers, workers=workers, rounds=rounds)
    print(f"\nworkers={workers}  images/s  of none  us cpu")
    for name, taken in turns.items():
        rate = 1 / statistics.median(each.wall for each in taken)
        cpu = 1e6 * statistics.median(each.cpu for each in taken)
        print(f"{name:<9} {rate:>9.0f} {_ratio(turns['none'], taken):>8.1%} {cpu:>7.0f}")


def _take_turns(makers: Mapping[str, Make], *, workers: int, rounds: int) -> dict[str, list[Turn]]:
    """Start all contenders, and let each read in each round."""
    with ExitStack() as alive:
        contenders: dict[str, tuple[Read, set[int]]] = {}
        for name, make in makers.items():
            before = _processes()
            read = make(alive)
            read(2 * workers)  # all of its workers are there
            contenders[name] = read, _processes() - before | {os.getpid()}
        turns: dict[str, list[Turn]] = {name: [] for name in contenders}
        for number in range(rounds + 1):
            for name, (read, processes) in contenders.items():
                turn = _turn(read, processes)
                if number:  # the first round warms up
                    turns[name].append(turn)
    return turns


def _turn(read: Read, processes: set[int]) -> Turn:
    time.sleep(_SETTLED)
    cpu, wall = _cpu_seconds(processes), time.perf_counter()
    read(TURN)
    wall = time.perf_counter() - wall
    time.sleep(_SETTLED)
    images = TURN * BATCH
    return Turn(wall / images, (_cpu_seconds(processes) - cpu) / images)


def _ratio(yard: list[Turn], taken: list[Turn]) -> float:
    return statistics.median(
        other.wall / each.wall for other, each in zip(yard, taken, strict=True)
    )


def _processes() -> set[int]:
    """This process and all that come from it."""
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        found |= new
        files = (file for each in new for file in Path(f"/proc/{each}/task").glob("*/children"))
        new = {int(child) for file in files for child in file.read_text().split()} - found
    return found


def _cpu_seconds(processes: set[int]) -> float:
    if not Path("/proc/self/stat").exists():
        return math.nan
    fields = [
        Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in processes
    ]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


# -- contenders ----------------------------------------------------------------------------------


def _bare(alive: ExitStack, crops: ImageFolder, workers: int) -> Read:
    encoded = _all_bytes(crops)
    pool = alive.enter_context(ThreadPoolExecutor(workers))

    def read(batches: int) -> None:
        some = [encoded[number % len(encoded)] for number in range(batches * BATCH)]
        list(pool.map(_decode, (some[part::workers] for part in range(workers))))

    return read


def _bare_processes(alive: ExitStack, crops: ImageFolder, workers: int) -> Read:
    # Programs of their own: a fork of a process whose threads use OpenCV may wait forever.
    pool = alive.enter_context(
        ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_receive,
            initargs=(_all_bytes(crops),),
        )
    )

    def read(batches: int) -> None:
        parts = (range(part, batches * BATCH, workers) for part in range(workers))
        list(pool.map(_decode_received, parts))

    return read


def _all_bytes(crops: ImageFolder) -> list[NDArray[np.uint8]]:
    return [np.frombuffer(crops.encoded(index), np.uint8) for index in range(len(crops))]


def _decode(encoded: Sequence[NDArray[np.uint8]]) -> None:
    for each in encoded:
        cv2.imdecode(each, cv2.IMREAD_COLOR_RGB)


_received: list[NDArray[np.uint8]] = []


def _receive(encoded: list[NDArray[np.uint8]]) -> None:
    cv2.setNumThreads(1)
    _received.extend(encoded)


def _decode_received(part: range) -> None:
    _decode([_received[index % len(_received)] for index in part])


def _loader(
    alive: ExitStack,
    source: Source,
    workers: int,
    *,
    kind: WorkerKind = "auto",
    augment: str = "none",
) -> Read:
    plan = BatchPlan(source.labels, batch_size=BATCH)
    loader = Loader(
        source,
        plan,
        size=SIZE,
        augmentation=None if augment == "none" else build_augmentation(augment),
        workers=workers,
        worker_kind=kind,
    )
    batches = alive.enter_context(closing(loader.batches(0, _FOREVER)))
    return lambda count: _take(batches, count)


def _take(batches: Iterator[object], count: int) -> None:
    deque(islice(batches, count), maxlen=0)


class _Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Whole batches of a plan as items, each read into one tensor of shared memory."""

    def __init__(self, source: Source) -> None:
        self.plan = BatchPlan(source.labels, batch_size=BATCH)
        self.reader = BatchReader(source, size=SIZE, flip=True, seed=0)
        self.epoch, self.indices = -1, np.empty((0, 0), np.int64)

    def __len__(self) -> int:
        return _FOREVER

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        epoch, place = divmod(step, self.plan.steps_per_epoch)
        if epoch != self.epoch:
            self.epoch, self.indices = epoch, self.plan.epoch(epoch)
        shape = self.reader.shape(BATCH)
        # As torch's own collating does in a worker: no copy into shared memory afterwards;
        # torch leaves it untyped.
        storage = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
        images = torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
        labels = self.reader.read(images.numpy(), self.indices[place], epoch=epoch)
        return images, torch.tensor(labels)


def _torch_loader(alive: ExitStack, source: Source, workers: int) -> Read:
    loader = DataLoader(
        _Batches(source),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=2,
        worker_init_fn=_one_thread,
        multiprocessing_context="spawn",
    )
    return _taking(alive, iter(loader))


def _taking(alive: ExitStack, batches: Iterator[object]) -> Read:
    alive.callback(batches._shutdown_workers)  # type: ignore[attr-defined]  # torch's own way
    return lambda count: _take(batches, count)


class _Crops(Dataset[tuple[torch.Tensor, int]]):
    """What a user of torch writes: read, decode, mirror at random."""

    def __init__(self, crops: ImageFolder) -> None:
        self.paths = [crops.location(index) for index in range(len(crops))]
        self.labels = crops.labels.tolist()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        encoded = np.frombuffer(Path(self.paths[index]).read_bytes(), np.uint8)
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)
        assert image is not None
        if torch.rand(()) < 0.5:
            image = cv2.flip(image, 1)
        return torch.from_numpy(image), self.labels[index]


def _usual_loader(alive: ExitStack, crops: ImageFolder, workers: int) -> Read:
    loader = DataLoader(
        _Crops(crops),
        batch_sampler=_Shuffled(len(crops)),
        num_workers=workers,
        worker_init_fn=_one_thread,
        multiprocessing_context="spawn",
    )
    return _taking(alive, iter(loader))


@dataclass(frozen=True)
class _Shuffled:
    """Random batches without an end."""

    images: int

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng(0)
        while True:
            order = generator.permutation(self.images).tolist()
            for start in range(0, len(order) - BATCH + 1, BATCH):
                yield order[start : start + BATCH]


def _one_thread(worker: int) -> None:
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


# -- files ---------------------------------------------------------------------------------------


def _write_crops(folder: Path) -> Path:
    """Rendered faces as JPEGs, each in several lights, so that no two files are alike."""
    faces = SyntheticFaces(people=PEOPLE, images_per_person=RENDERED, image_size=SIZE)
    faces.prepare(workers=2)
    for index in range(len(faces)):
        image, label = faces[index]
        person = folder / f"{label:04d}"
        person.mkdir(parents=True, exist_ok=True)
        for version, encoded in enumerate(_versions(image)):
            (person / f"{index:05d}-{version}.jpg").write_bytes(encoded)
    return folder


def _versions(image: NDArray[np.uint8]) -> Iterator[bytes]:
    for light in np.linspace(0.6, 1.0, COPIES):
        blue_first = np.rint(image[:, :, ::-1] * light).astype(np.uint8)
        yield cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def _open(folder: Path) -> ImageFolder:
    crops = ImageFolder(path=str(folder))
    crops.prepare(workers=2)
    if len(crops) < BATCH:
        raise ValueError(
            f"{folder} has {counted(len(crops), 'image')}; give {BATCH} or more, which is a batch"
        )
    return crops


def _write_rec(crops: ImageFolder, path: Path) -> None:
    with RecordWriter(path) as writer:
        for index in range(len(crops)):
            writer.write(crops.encoded(index), int(crops.labels[index]))


if __name__ == "__main__":
    main()
