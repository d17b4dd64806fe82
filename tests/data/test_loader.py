"""Which images are in which batch, and their reading in threads and processes."""

import os
import sys
import threading
import time
from collections import Counter
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sphereface2.data.loader.loader import BatchPlan, Loader, WorkerKind
from sphereface2.data.loader.readers import Read, ReadingProcesses, ReadingThreads, _Worker
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.transforms import mirrored
from tests.data.numbered_images import Numbers

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
linux_for_processes = pytest.mark.parametrize(
    "kind", ["threads", pytest.param("processes", marks=on_linux)]
)


def test_an_epoch_shows_each_image_once_and_drops_the_rest() -> None:
    plan = BatchPlan(np.zeros(23, np.int64), batch_size=5)
    batches = plan.epoch(0)
    assert plan.steps_per_epoch == 4
    assert batches.shape == (4, 5)
    assert len(set(batches.ravel().tolist())) == 20
    shown = set(np.concatenate([plan.epoch(e).ravel() for e in range(20)]).tolist())
    assert shown == set(range(23))


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    labels = np.arange(40) % 7
    for images in (1, 2):
        plan = BatchPlan(labels, batch_size=8, images_per_person=images, seed=3)
        again = BatchPlan(labels, batch_size=8, images_per_person=images, seed=3)
        other = BatchPlan(labels, batch_size=8, images_per_person=images, seed=4)
        assert (plan.epoch(2) == again.epoch(2)).all()
        assert (plan.epoch(2) != plan.epoch(1)).any()
        assert (plan.epoch(2) != other.epoch(2)).any()


def test_groups_are_of_one_person_with_distinct_images_where_there_are_enough() -> None:
    labels = np.array([0] * 10 + [1] * 7 + [2] * 3 + [3])
    plan = BatchPlan(labels, batch_size=6, images_per_person=3)
    # Groups: 4 of person 0, 3 of person 1, 1 of person 2, 1 of person 3.
    assert plan.steps_per_epoch == 9 // 2
    for epoch in range(5):
        groups = plan.epoch(epoch).reshape(-1, 3)
        for group in groups:
            people = set(labels[group].tolist())
            assert len(people) == 1
            assert len(set(group.tolist())) == (1 if people == {3} else 3)


def test_people_come_up_in_proportion_and_no_image_is_left_out() -> None:
    labels = np.array([0] * 12 + [1] * 4 + [2] * 4)
    plan = BatchPlan(labels, batch_size=4, images_per_person=2)
    shown = Counter(plan.epoch(0).ravel().tolist())
    assert shown == dict.fromkeys(range(20), 1)


def test_images_of_no_known_class_stand_in_groups_of_their_own() -> None:
    labels = np.array([0, 0, 1, 1, -1, -1, -1, -1])
    plan = BatchPlan(labels, batch_size=8, images_per_person=2)
    groups = labels[plan.epoch(0)].reshape(-1, 2)
    assert (groups[:, 0] == groups[:, 1]).all()
    assert sorted(groups[:, 0].tolist()) == [-1, -1, 0, 1]


def test_too_little_data_and_uneven_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size=8 is more than the 7 images .* to 7 or less"):
        BatchPlan(np.zeros(7, np.int64), batch_size=8)
    with pytest.raises(ValueError, match=r"batch_size=9 is not a multiple of .* take 8 or 10"):
        BatchPlan(np.zeros(70, np.int64), batch_size=9, images_per_person=2)


def make_loader(
    source: Numbers,
    *,
    workers: int,
    kind: WorkerKind = "threads",
    flip: bool = True,
    size: int = 4,
) -> Loader:
    plan = BatchPlan(source.labels, batch_size=4, seed=1)
    return Loader(source, plan, size=size, flip=flip, workers=workers, worker_kind=kind)


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(0, "threads"), (1, "threads"), (3, "threads"), pytest.param(3, "processes", marks=on_linux)],
)
def test_batches_hold_the_planned_images_mirrored_by_the_hash(
    workers: int, kind: WorkerKind
) -> None:
    source = Numbers([i % 3 for i in range(14)])
    loader = make_loader(source, workers=workers, kind=kind)
    batches = list(loader.batches(0, 30))  # ten epochs of three steps, all of them kept
    assert len(batches) == 30
    for step, batch in enumerate(batches):
        indices = loader.plan.epoch(step // 3)[step % 3]
        flips = mirrored(indices, seed=1, epoch=step // 3)
        assert batch.images.dtype == torch.uint8
        assert batch.images.shape == (4, 4, 4, 3)
        assert batch.labels.dtype == torch.int64
        assert batch.labels.tolist() == source.labels[indices].tolist()
        shown = torch.where(
            torch.from_numpy(flips), batch.images[:, 0, -1, 0], batch.images[:, 0, 0, 0]
        )
        assert shown.tolist() == indices.tolist()


@linux_for_processes
def test_starts_at_any_step_with_the_same_batches(kind: WorkerKind) -> None:
    source = Numbers([0] * 14)
    all_batches = list(make_loader(source, workers=0).batches(0, 9))
    for start in (1, 3, 5) if kind == "threads" else (5,):
        rest = list(make_loader(source, workers=2, kind=kind).batches(start, 9))
        assert len(rest) == 9 - start
        for batch, expected in zip(rest, all_batches[start:], strict=True):
            assert torch.equal(batch.images, expected.images)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_shares_of_all_ranks_are_the_batch(ranks: int) -> None:
    source = Numbers([i % 3 for i in range(30)])
    plan = BatchPlan(source.labels, batch_size=6)
    whole = list(Loader(source, plan, size=6, workers=0).batches(3, 8))
    parts = [
        list(Loader(source, plan, size=6, workers=1, share=(rank, ranks)).batches(3, 8))
        for rank in range(ranks)
    ]
    for step, batch in enumerate(whole):
        images = torch.cat([part[step].images for part in parts])
        labels = torch.cat([part[step].labels for part in parts])
        assert torch.equal(images, batch.images)
        assert torch.equal(labels, batch.labels)
    with pytest.raises(ValueError, match=r"batch_size=6 cannot be .* 4 ranks; take 4 or 8"):
        Loader(source, plan, size=6, share=(0, 4))


@linux_for_processes
def test_images_are_brought_to_the_input_size(kind: WorkerKind) -> None:
    loader = make_loader(Numbers([0] * 8, size=8), workers=1, kind=kind, flip=False, size=4)
    (batch,) = loader.batches(0, 1)
    assert batch.images[:, 0, 0, 0].tolist() == loader.plan.epoch(0)[0].tolist()
    assert batch.images.shape == (4, 4, 4, 3)


def loader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("loader")]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> NDArray[np.float64]:
    """Seconds of the loader's clocks: of the wall, of this process and of one that reads."""
    now = np.zeros(3)
    clocks = SimpleNamespace(
        perf_counter=lambda: now[0], process_time=lambda: now[1], clock_gettime=lambda _: now[2]
    )
    monkeypatch.setattr("sphereface2.data.loader.loader.time", clocks)
    monkeypatch.setattr("sphereface2.data.loader.readers.time", clocks)
    return now


def test_a_slow_source_is_waited_for_without_work_for_a_processor(now: NDArray[np.float64]) -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
            now[0] += 0.25
            return super().__getitem__(index)

    batches = make_loader(Slow([0] * 40), workers=0).batches(0, 10)
    assert [(each.wait_seconds, each.wait_cpu_seconds) for each in batches] == [(1, 0)] * 10


@linux_for_processes
def test_the_work_of_workers_counts_while_they_are_waited_for(
    kind: WorkerKind, now: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: type[Any] = ReadingProcesses if kind == "processes" else ReadingThreads
    take = readers.take

    def slow_take(self: Any) -> Read:
        now[:] += (1, 0.5, 0.25)
        return take(self)  # type: ignore[no-any-return]

    monkeypatch.setattr(readers, "take", slow_take)
    waited = []
    for batch in make_loader(Numbers([0] * 40), workers=1, kind=kind).batches(0, 10):
        waited.append((batch.wait_seconds, batch.wait_cpu_seconds))
        now[:] += 8  # the training's step
    assert waited == [(1, 0.75 if kind == "processes" else 0.5)] * 10


@on_linux
def test_the_work_of_a_worker_is_read_from_the_clock_of_its_process() -> None:
    before = time.process_time()
    assert before <= _Worker(Pipe()[0], process=os.getpid()).cpu_seconds() <= time.process_time()


def test_closing_early_ends_the_threads_and_the_reading() -> None:
    source = Numbers([0] * 4000)
    batches = make_loader(source, workers=2).batches(0, 1000)
    next(batches)
    assert loader_threads()
    batches.close()
    assert not loader_threads()
    assert source.reads <= 4 * 5


def test_closing_does_not_wait_for_whole_batches() -> None:
    class Held(Numbers):
        def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
            first_done.set()
            may_go_on.wait(timeout=5)
            return super().__getitem__(index)

    first_done, may_go_on = threading.Event(), threading.Event()
    source = Held([0] * 400)
    loader = Loader(source, BatchPlan(source.labels, batch_size=100), size=4, workers=1)
    batches = loader.batches(0, 4)

    def let_go(closing: threading.Event) -> None:
        closing.wait(timeout=5)
        may_go_on.set()

    def interrupt(readers: ReadingThreads) -> None:
        first_done.wait(timeout=5)
        threading.Thread(target=let_go, args=(readers._closed,)).start()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sphereface2.data.loader.readers.ReadingThreads.take", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert not loader_threads()
    assert source.reads == 1


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(0, "threads"), (2, "threads"), pytest.param(2, "processes", marks=on_linux)],
)
def test_an_unreadable_image_reaches_the_consumer_with_its_path(
    tmp_path: Path, workers: int, kind: WorkerKind
) -> None:
    for number in range(8):
        path = tmp_path / "a" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), np.zeros((12, 12, 3), np.uint8))
    (tmp_path / "a" / "5.png").write_bytes(b"broken")
    source = ImageFolder(path=str(tmp_path))
    plan = BatchPlan(source.labels, batch_size=4)
    loader = Loader(source, plan, size=6, workers=workers, worker_kind=kind)
    with pytest.raises(ValueError, match=r"cannot decode the image .*5\.png"):
        list(loader.batches(0, 2))
    assert not loader_threads()


@linux_for_processes
def test_an_unexpected_error_of_a_source_names_the_image(kind: WorkerKind) -> None:
    loader = make_loader(Numbers([0] * 8, broken=6), workers=2, kind=kind)
    with pytest.raises(RuntimeError, match=r"reading image 6 of the data failed: KeyError"):
        list(loader.batches(0, 2))


def test_an_image_of_another_form_is_refused() -> None:
    class Grey(Numbers):
        def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
            return np.zeros((4, 4), np.uint8), 0

    with pytest.raises(ValueError, match=r"is uint8 of shape \(4, 4\), not uint8"):
        list(make_loader(Grey([0] * 8), workers=0).batches(0, 1))


def test_labels_outside_the_classes_are_refused() -> None:
    source = Numbers([0, 1, 2, 3])
    source.num_classes = 3
    with pytest.raises(ValueError, match="image 3 of the data has label 3, outside 0 to 2"):
        make_loader(source, workers=0)


def test_memory_is_used_again_only_when_nobody_holds_the_batch() -> None:
    source = Numbers([0] * 40)
    loader = make_loader(source, workers=0, flip=False)
    kept = [batch.images for batch in loader.batches(0, 10)]
    expected = loader.plan.epoch(0)
    for images, indices in zip(kept, expected, strict=True):
        assert images[:, 0, 0, 0].tolist() == indices.tolist()
    view = kept[3][1:2]  # holds the batch as well
    places = {images.data_ptr() for images in kept}
    del kept, images
    again = [batch.images for batch in loader.batches(0, 10)]
    assert len(places & {images.data_ptr() for images in again}) == 9
    assert view[0, 0, 0, 0] == expected[3][1]
