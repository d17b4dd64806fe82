"""Processes that read batches: what they share, how they end, and what becomes of their errors."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from sphereface2.data.loader.loader import Batch, BatchPlan, Loader, WorkerKind
from sphereface2.data.mixing import NoisyLabels, WithStrangers, plan_batches
from sphereface2.data.sources.folder import ImageFolder, LooseImages
from sphereface2.data.sources.parquet import ParquetImages, ParquetWriter
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import RecordWriter
from sphereface2.data.sources.source import Source, bad_images
from sphereface2.data.sources.synthetic import SyntheticFaces
from tests.data.numbered_images import Endless, Numbers, Unwelcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")

PATIENCE = 30.0


def loader_of(source: Source, *, workers: int = 2, batch: int = 4) -> Loader:
    plan = BatchPlan(source.labels, batch_size=batch)
    return Loader(source, plan, size=4, flip=False, workers=workers, worker_kind="processes")


def readers() -> set[int]:
    """The processes that this one has started and not collected, and those that they have."""
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {child for process in new for child in _children(process)} - found
        found |= new
    return found


def _children(process: int) -> set[int]:
    files = Path(f"/proc/{process}/task").glob("*/children")
    try:
        return {int(child) for file in files for child in file.read_text().split()}
    except OSError:
        return set()  # it has just ended


def workers() -> set[int]:
    """Those of the readers that no other reader is a child of."""
    return {process for process in readers() if not _children(process)}


def eventually(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def open_files() -> int:
    gc.collect()  # of tests before: theirs may close in between
    return len(list(Path("/proc/self/fd").iterdir()))


# -- memory --------------------------------------------------------------------------------------


def test_the_memory_of_a_batch_is_used_again_when_nobody_holds_it() -> None:
    loader = loader_of(Numbers([0] * 200))
    expected = loader.plan.epoch(0)
    places, kept = set(), []
    for step, batch in enumerate(loader.batches(0, 50)):
        assert batch.images[:, 0, 0, 0].tolist() == expected[step].tolist()
        places.add(batch.images.data_ptr())
        if step == 7:
            kept.append(batch.images[1:2])  # a view holds the batch as well
    assert len(places) < 10
    assert kept[0][0, 0, 0, 0] == expected[7][1]


def test_batches_that_are_collected_keep_their_images_in_a_thread_too() -> None:
    loader = loader_of(Numbers([0] * 200))
    batches: list[Batch] = []
    thread = threading.Thread(target=lambda: batches.extend(loader.batches(0, 50)))
    thread.start()
    thread.join(PATIENCE)
    shown = torch.stack([batch.images[:, 0, 0, 0] for batch in batches])
    assert shown.tolist() == loader.plan.epoch(0).tolist()


# -- which workers -------------------------------------------------------------------------------


def write_crops(folder: Path, *, people: int = 2, images: int = 4) -> None:
    for person in range(people):
        for number in range(images):
            path = folder / str(person) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((12, 12, 3), 20 * person + number, np.uint8))


def has_processes(source: Source, *, kind: WorkerKind = "auto", workers: int = 2) -> bool:
    plan = BatchPlan(source.labels, batch_size=2)
    return Loader(source, plan, size=8, workers=workers, worker_kind=kind).has_processes


def test_files_are_read_in_processes_and_what_is_in_memory_in_threads(tmp_path: Path) -> None:
    write_crops(tmp_path / "crops")
    crops = ImageFolder(path=str(tmp_path / "crops"))
    assert has_processes(crops)
    assert not has_processes(crops, kind="threads")
    assert not has_processes(crops, workers=0)
    assert has_processes(NoisyLabels(crops, rate=0.5))
    strangers = LooseImages(path=str(tmp_path / "crops"))
    assert has_processes(WithStrangers(crops, strangers, share=0.5))
    rendered = SyntheticFaces(people=2, images_per_person=2, image_size=16)
    assert not has_processes(rendered)
    assert has_processes(rendered, kind="processes")
    assert not has_processes(WithStrangers(crops, rendered, share=0.5))
    with ParquetWriter(tmp_path / "crops.parquet") as writer:
        for index in range(len(crops)):
            person, name = crops.person(index), crops.name(index)
            writer.write(crops.encoded(index), label=int(person), person=person, name=name)
    assert not has_processes(ParquetImages(path=str(tmp_path / "crops.parquet")))


def rec_file(crops: ImageFolder, path: Path) -> RecordIO:
    with RecordWriter(path) as writer:
        for index in range(len(crops)):
            writer.write(crops.encoded(index), int(crops.labels[index]))
    return RecordIO(path=str(path))


def test_every_source_gives_processes_what_it_gives_here(tmp_path: Path) -> None:
    write_crops(tmp_path / "crops", people=3)
    (tmp_path / "crops" / "1" / "2.png").rename(tmp_path / "crops" / "1" / "\udcff.png")
    crops = ImageFolder(path=str(tmp_path / "crops"))
    noisy = NoisyLabels(rec_file(crops, tmp_path / "crops.rec"), rate=0.5)
    source = WithStrangers(noisy, crops, share=0.5)
    source.prepare(workers=1)
    plan = plan_batches(source, batch_size=4)
    there = list(Loader(source, plan, size=10, worker_kind="processes").batches(0, 7))
    here = list(Loader(source, plan, size=10, workers=0).batches(0, 7))
    for batch, expected in zip(there, here, strict=True):
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.labels, expected.labels)
    labels = torch.cat([batch.labels for batch in here])
    assert set(labels.tolist()) == {-1, 0, 1, 2}, "there are strangers and people"


def test_a_source_that_cannot_be_sent_is_refused_or_read_in_threads() -> None:
    class Local(Numbers):
        suits_processes = True

    source = Local([0] * 8)
    open_before = open_files()
    with pytest.raises(ValueError, match=r"cannot be given to another process .*=threads"):
        next(loader_of(source).batches(0, 2))
    assert open_files() == open_before
    loader = Loader(source, BatchPlan(source.labels, batch_size=4), size=4)
    assert loader.has_processes
    assert len(list(loader.batches(0, 2))) == 2
    assert not loader.has_processes


def run_script(script: str, *arguments: object, cwd: Path) -> None:
    """Run a script that ends with an error if something is not as it should be."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(root)!r})\n{script}"]
    command += [str(argument) for argument in arguments]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


OWN_SOURCE = """
from sphereface2.data.loader.loader import BatchPlan
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.loader.loader import Loader
class Mine(ImageFolder): pass
source = Mine(path=sys.argv[1])
loader = Loader(source, BatchPlan(source.labels, batch_size=4), size=8)
assert len(list(loader.batches(0, 4))) == 4
assert not loader.has_processes
"""


@pytest.mark.usefixtures("quick_processes")
def test_a_source_of_a_script_is_read_in_threads(tmp_path: Path) -> None:
    write_crops(tmp_path / "crops")
    run_script(OWN_SOURCE, tmp_path / "crops", cwd=tmp_path)


NO_STREAMS = """
import os
from tests.data.numbered_images import Numbers
from tests.data.test_readers import loader_of
os.close(0)
os.close(1)
assert len(list(loader_of(Numbers([0] * 40)).batches(0, 10))) == 10
"""


@pytest.mark.usefixtures("quick_processes")
def test_closed_streams_and_files_named_as_modules_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "struct.py").write_text("raise RuntimeError('the wrong module')")
    run_script(NO_STREAMS, cwd=tmp_path)


def test_processes_are_refused_where_they_cannot_share_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphereface2.data.loader.loader.CAN_SHARE", False)
    with pytest.raises(ValueError, match="worker_kind=processes needs Linux"):
        loader_of(Numbers([0] * 8))


# -- errors --------------------------------------------------------------------------------------


def break_file(path: Path) -> None:
    """Damage what `look` does not see, so that only decoding finds it."""
    content = path.read_bytes()
    place = content.index(b"IDAT") + 6
    path.write_bytes(content[:place] + bytes(8) + content[place + 8 :])


def test_images_that_turn_out_bad_in_a_process_are_known_here(tmp_path: Path) -> None:
    write_crops(tmp_path / "known")
    write_crops(tmp_path / "strange", people=1)
    break_file(tmp_path / "known" / "1" / "2.png")
    break_file(tmp_path / "strange" / "0" / "1.png")
    known = ImageFolder(path=str(tmp_path / "known"), on_bad_image="skip")
    strangers = LooseImages(path=str(tmp_path / "strange"), on_bad_image="skip")
    source = WithStrangers(known, strangers, share=0.5)
    source.prepare(workers=1)
    assert bad_images(source) == ()
    plan = plan_batches(source, batch_size=4)
    loader = Loader(source, plan, size=12, workers=2, worker_kind="processes")
    batches = list(loader.batches(0, 8))
    assert [Path(bad.location).parts[-3:] for bad in bad_images(source)] == [
        ("known", "1", "2.png"),
        ("strange", "0", "1.png"),
    ]
    # The same images stand in for them as when they are read here.
    here = Loader(source, plan, size=12, workers=0)
    for batch, expected in zip(batches, here.batches(0, 8), strict=True):
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.labels, expected.labels)


@pytest.mark.parametrize(
    ("number", "name"), [(9, r"SIGKILL \(out of memory\?\)"), (40, "signal 40")]
)
def test_a_killed_process_is_reported_in_a_sentence(number: int, name: str) -> None:
    before = readers()
    batches = loader_of(Numbers([0] * 4000)).batches(0, 1000)
    next(batches)
    assert eventually(lambda: len(readers() - before) == 3)
    os.kill(next(iter(workers() - before)), number)
    with pytest.raises(ChildProcessError, match=rf"was ended by {name}; .*training\.workers"):
        list(batches)
    assert eventually(lambda: readers() == before)


def test_processes_that_do_not_start_are_reported_in_a_sentence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ChildProcessError, match=r"do not start; use threads"):
        next(loader_of(Unwelcome([0] * 8)).batches(0, 2))
    assert "cannot start: RuntimeError('not here')" in capfd.readouterr().err


def test_an_error_is_raised_where_its_batch_would_have_come() -> None:
    source = Numbers([0] * 40)
    loader = loader_of(source, workers=3)
    source.broken = int(loader.plan.epoch(0)[5][2])
    batches = loader.batches(0, 10)
    for _ in range(5):
        next(batches)
    with pytest.raises(RuntimeError, match=f"reading image {source.broken} of the data failed"):
        next(batches)


# -- beginning and end ---------------------------------------------------------------------------


def test_closing_ends_processes_in_the_middle_of_an_image() -> None:
    source = Endless([0] * 40)
    loader = loader_of(source, batch=1)
    source.ready = int(loader.plan.epoch(0)[0][0])
    before = readers()
    batches = loader.batches(0, 40)
    next(batches)
    assert eventually(lambda: len(readers() - before) == 3)  # two, and the server
    batches.close()
    assert eventually(lambda: readers() == before)


def test_closing_leaves_nothing_open() -> None:
    loader = loader_of(Numbers([0] * 40))
    list(loader.batches(0, 10))
    gc.collect()  # what earlier tests left
    before = open_files()
    list(loader.batches(0, 10))
    assert open_files() <= before


def test_a_fork_of_the_training_does_not_close_its_readers() -> None:
    loader = loader_of(Numbers([0] * 400))
    batches = loader.batches(0, 100)
    next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are not used there
        fork = os.fork()
    if fork == 0:
        try:
            batches.close()
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    expected = loader.plan.epoch(0)
    for step, batch in enumerate(batches, start=1):
        assert batch.images[:, 0, 0, 0].tolist() == (expected[step] % 256).tolist()
        assert batch.labels.tolist() == [0] * 4


def test_processes_leave_stopping_to_the_training() -> None:
    before = readers()
    batches = loader_of(Numbers([0] * 4000)).batches(0, 1000)
    next(batches)
    assert eventually(lambda: len(readers() - before) == 3)
    for process in readers() - before:
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    assert sum(1 for _ in batches) == 999


def test_no_process_holds_a_connection_of_this_one_open() -> None:
    ours, theirs = socket.socketpair()
    batches = loader_of(Numbers([0] * 400)).batches(0, 100)
    next(batches)
    ours.close()
    theirs.settimeout(PATIENCE)
    assert theirs.recv(1) == b""
    theirs.close()
    batches.close()


ORPHANS = """
import sys, time
from tests.data.numbered_images import Numbers
from tests.data.test_readers import eventually, loader_of, readers
batches = loader_of(Numbers([0] * 400)).batches(0, 100)
next(batches)
assert eventually(lambda: len(readers()) == 3)
print(*readers(), flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("quick_processes")
def test_processes_end_when_the_training_is_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, cwd=root
    ) as training:
        assert training.stdout is not None
        processes = [int(word) for word in training.stdout.readline().split()]
        assert len(processes) == 3
        training.kill()
    assert eventually(lambda: not any(is_alive(process) for process in processes))


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
