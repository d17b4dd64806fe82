"""The reading of training images against a bare decoding loop and against torch's DataLoader.

    python -m benchmarks.loader                     # 4,000 rendered faces as 112x112 JPEGs
    python -m benchmarks.loader --crops FOLDER      # your own aligned crops, a folder a person

Every contender reads the same images, one pass of each in turn; a ratio is taken within each turn,
and the median of the turns is shown. `bare` is cv2.imdecode over bytes in memory in as many
threads, with nothing kept: what no loader can beat. All images are in the page cache, so disks are
not measured. OpenCV is held to one thread a call (`cv2.setNumThreads(1)`) for all contenders; it
would not divide images of this size anyway, and the library leaves that setting to the user. The
machine should be idle otherwise; `cpu` compares processor time, which says more on a busy one.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from sphereface2.data.batch_plan import BatchPlan
from sphereface2.data.folder import ImageFolder
from sphereface2.data.loader import Loader
from sphereface2.data.record_writer import RecordWriter
from sphereface2.data.recordio import RecordIO
from sphereface2.data.source import Source
from sphereface2.data.synthetic import SyntheticFaces

SIZE, BATCH = 112, 125
PEOPLE, RENDERED, COPIES = 100, 5, 8  # images a person, and versions of each in another light
TARGETS = {".rec": 0.85, "folder": 0.70}


@dataclass(frozen=True)
class Pass:
    """One pass over the images: wall-clock and processor seconds an image."""

    wall: float
    cpu: float


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
        folder = options.crops or _write_crops(Path(temporary) / "crops")
        crops = ImageFolder(path=str(folder))
        _write_rec(crops, Path(temporary) / "crops.rec")
        records = RecordIO(path=str(Path(temporary) / "crops.rec"))
        for source in (crops, records):
            source.prepare(workers=2)
        size = sum(len(crops.encoded(index)) for index in range(len(crops))) / len(crops)
        print(f"{len(crops)} images of {crops.num_classes} people, {size / 1000:.1f} kB each")
        for workers in options.workers:
            _compare(crops, records, workers=workers, repeats=options.repeats)


def _compare(crops: ImageFolder, records: RecordIO, *, workers: int, repeats: int) -> None:
    contenders: dict[str, Callable[[], int]] = {
        "bare": _bare(crops, workers),
        ".rec": _loader(records, workers),
        "folder": _loader(crops, workers),
        "DataLoader": _torch_loader(crops, workers),
    }
    passes: dict[str, list[Pass]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, contender in contenders.items():
            measured = _measure(contender)
            if repeat:  # the first pass warms up
                passes[name].append(measured)
    print(f"\nworkers={workers}  {'images/s':>12} {'of bare':>9} {'cpu':>7}  target")
    for name, taken in passes.items():
        rate = 1 / statistics.median(each.wall for each in taken)
        wall, cpu = (
            statistics.median(
                getattr(bare, kind) / getattr(each, kind)
                for bare, each in zip(passes["bare"], taken, strict=True)
            )
            for kind in ("wall", "cpu")
        )
        # The processor time of worker processes is not this process's.
        shown_cpu = "" if name == "DataLoader" else f"{cpu:.1%}"
        target = f">= {TARGETS[name]:.0%}" if name in TARGETS else ""
        print(f"{name:<10} {rate:>12.0f} {wall:>9.1%} {shown_cpu:>7}  {target}")


def _measure(contender: Callable[[], int]) -> Pass:
    wall, cpu = time.perf_counter(), time.process_time()
    images = contender()
    return Pass((time.perf_counter() - wall) / images, (time.process_time() - cpu) / images)


# -- contenders: each call reads all images once and says how many they were ---------------------


def _bare(crops: ImageFolder, workers: int) -> Callable[[], int]:
    encoded = [np.frombuffer(crops.encoded(index), np.uint8) for index in range(len(crops))]

    def decode(part: int) -> None:
        for each in encoded[part::workers]:
            cv2.imdecode(each, cv2.IMREAD_COLOR_RGB)

    def run() -> int:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(decode, range(workers)))
        return len(encoded)

    return run


def _loader(source: Source, workers: int) -> Callable[[], int]:
    plan = BatchPlan(source.labels, batch_size=BATCH)
    loader = Loader(source, plan, size=SIZE, workers=workers)
    epochs = iter(range(1_000_000))

    def run() -> int:
        first = next(epochs) * plan.steps_per_epoch
        batches = loader.batches(first, first + plan.steps_per_epoch)
        return sum(len(batch.labels) for batch in batches)

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


def _torch_loader(crops: ImageFolder, workers: int) -> Callable[[], int]:
    loader = DataLoader(
        _Crops(crops),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=_one_thread,
    )
    return lambda: sum(len(labels) for _, labels in loader)


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


def _write_rec(crops: ImageFolder, path: Path) -> None:
    with RecordWriter(path) as writer:
        for index in range(len(crops)):
            writer.write(crops.encoded(index), int(crops.labels[index]))


if __name__ == "__main__":
    main()
