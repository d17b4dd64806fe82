"""The reading of training images against a bare decoding loop and against torch's DataLoader.

    python -m benchmarks.loader                     # 4,000 rendered faces as 112x112 JPEGs
    python -m benchmarks.loader --crops FOLDER      # your own aligned crops, a folder a person

Every contender reads the same images, one pass of each in turn; a ratio is taken within each turn,
and the median of the turns is shown. `bare` is cv2.imdecode over bytes in memory in as many
threads, with nothing kept: what no loader can beat; `bare, processes` is the same in as many
processes. A pass is several epochs, without a loader's first and last batches, for a training
starts and ends its workers once. All images are in the page cache, so disks are not measured.
OpenCV is held to one thread a call (`cv2.setNumThreads(1)`) for all contenders; it would not divide
images of this size anyway, and the library leaves that setting to the user. The machine should be
idle otherwise; `cpu` compares processor time, which says more on a busy one.
"""

import argparse
import math
import multiprocessing
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from sphereface2.data.loader.batch_plan import BatchPlan
from sphereface2.data.loader.loader import Loader, WorkerKind
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import RecordWriter
from sphereface2.data.sources.source import Source
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.progress import counted

SIZE, BATCH = 112, 125
EPOCHS, UNCOUNTED = 2, 50  # epochs in a pass, and batches before it and behind it
PEOPLE, RENDERED, COPIES = 100, 5, 8  # images a person, and versions of each in another light
TARGETS = {".rec": 0.85, "folder": 0.70}


@dataclass(frozen=True)
class Pass:
    """One pass over the images: wall-clock and processor seconds an image."""

    wall: float
    cpu: float = math.nan
    """Of all processes that had a part in it, as far as that is known."""


def main() -> None:
    """Make the files, let the contenders take turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crops", type=Path, help="a folder of aligned crops to read instead")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            crops = _open(options.crops or _write_crops(Path(temporary) / "crops"))
        except (ValueError, FileNotFoundError) as error:
            parser.exit(2, f"benchmarks.loader: {str(error).replace('data.path', '--crops')}\n")
        _write_rec(crops, Path(temporary) / "crops.rec")
        records = RecordIO(path=str(Path(temporary) / "crops.rec"))
        records.prepare(workers=2)
        size = sum(len(crops.encoded(index)) for index in range(len(crops))) / len(crops)
        print(f"{len(crops)} images of {crops.num_classes} people, {size / 1000:.1f} kB each")
        for workers in options.workers:
            _compare(crops, records, workers=workers, repeats=options.repeats)


def _compare(crops: ImageFolder, records: RecordIO, *, workers: int, repeats: int) -> None:
    contenders: dict[str, Callable[[], Pass]] = {
        "bare": _bare(crops, workers),
        "bare, processes": _bare_processes(crops, workers),
        ".rec": _loader(records, workers),
        ".rec, threads": _loader(records, workers, kind="threads"),
        "folder": _loader(crops, workers),
        "folder, threads": _loader(crops, workers, kind="threads"),
        "DataLoader": _torch_loader(crops, workers),
    }
    passes: dict[str, list[Pass]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, contender in contenders.items():
            measured = contender()
            if repeat:  # the first pass warms up
                passes[name].append(measured)
    print(f"\nworkers={workers}        images/s  of bare  of bare, processes     cpu  target")
    for name, taken in passes.items():
        rate = 1 / statistics.median(each.wall for each in taken)
        threads, processes = (
            statistics.median(
                bare.wall / each.wall for bare, each in zip(passes[yard], taken, strict=True)
            )
            for yard in ("bare", "bare, processes")
        )
        cpu = statistics.median(
            bare.cpu / each.cpu for bare, each in zip(passes["bare"], taken, strict=True)
        )
        shown_cpu = "" if math.isnan(cpu) else f"{cpu:.1%}"
        target = f">= {TARGETS[name]:.0%}" if name in TARGETS else ""
        print(
            f"{name:<15} {rate:>9.0f} {threads:>8.1%} {processes:>19.1%} {shown_cpu:>7}  {target}"
        )


# -- contenders: each call reads all images EPOCHS times -----------------------------------------


def _bare(crops: ImageFolder, workers: int) -> Callable[[], Pass]:
    encoded = _all_bytes(crops)

    def run() -> Pass:
        wall, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(_decode, (encoded[part::workers] for part in range(workers))))
        images = EPOCHS * len(encoded)
        return Pass((time.perf_counter() - wall) / images, (time.process_time() - cpu) / images)

    return run


def _bare_processes(crops: ImageFolder, workers: int) -> Callable[[], Pass]:
    # Programs of their own: a fork of a process whose threads use OpenCV may wait for ever.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_receive,
        initargs=(_all_bytes(crops),),
    )

    def run() -> Pass:
        wall = time.perf_counter()
        parts = (range(part, len(crops), workers) for part in range(workers))
        list(pool.map(_decode_received, parts))
        return Pass((time.perf_counter() - wall) / (EPOCHS * len(crops)))

    return run


def _all_bytes(crops: ImageFolder) -> list[NDArray[np.uint8]]:
    return [np.frombuffer(crops.encoded(index), np.uint8) for index in range(len(crops))]


def _decode(encoded: Sequence[NDArray[np.uint8]]) -> None:
    for _ in range(EPOCHS):
        for each in encoded:
            cv2.imdecode(each, cv2.IMREAD_COLOR_RGB)


_received: list[NDArray[np.uint8]] = []


def _receive(encoded: list[NDArray[np.uint8]]) -> None:
    cv2.setNumThreads(1)
    _received.extend(encoded)


def _decode_received(part: range) -> None:
    _decode([_received[index] for index in part])


def _loader(source: Source, workers: int, *, kind: WorkerKind = "auto") -> Callable[[], Pass]:
    plan = BatchPlan(source.labels, batch_size=BATCH)
    loader = Loader(source, plan, size=SIZE, workers=workers, worker_kind=kind)

    def run() -> Pass:
        steps = EPOCHS * plan.steps_per_epoch
        # More batches than are taken: neither is the end of the workers counted.
        with closing(loader.batches(0, steps + 2 * UNCOUNTED)) as batches:
            deque(islice(batches, UNCOUNTED), maxlen=0)
            images, cpu, wall = 0, 0.0, time.perf_counter()
            for batch in islice(batches, steps):
                images += len(batch.labels)
                cpu += batch.wait_cpu_seconds  # the rest of the time nothing happens
            return Pass((time.perf_counter() - wall) / images, cpu / images)

    return run


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


def _torch_loader(crops: ImageFolder, workers: int) -> Callable[[], Pass]:
    loader = DataLoader(
        _Crops(crops),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=_one_thread,
        multiprocessing_context="spawn",
    )

    def run() -> Pass:
        batches = (labels for _ in range(EPOCHS + 1) for _, labels in loader)
        deque(islice(batches, UNCOUNTED), maxlen=0)
        wall = time.perf_counter()
        images = sum(len(labels) for labels in islice(batches, EPOCHS * len(loader)))
        return Pass((time.perf_counter() - wall) / images)

    return run


def _one_thread(worker: int) -> None:
    cv2.setNumThreads(1)


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
