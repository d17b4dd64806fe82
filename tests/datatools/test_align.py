"""Photos to crops: what is written where, what is reported, and that a stopped run resumes."""

import csv
import errno
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import read_image
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.datatools.align import Aligned, align_folder
from sphereface2.faces import DETECTORS
from sphereface2.faces.detectors import MTCNN
from sphereface2.faces.face import TEMPLATE, Face

NO_UTF8 = os.fsdecode(b"caf\xe9")


class Stub:
    """Finds a face wherever the picture is not black, for tests of what happens around it."""

    calls = 0

    def __init__(self, *, min_face: int | None = None) -> None:
        pass

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        Stub.calls += 1
        if not image.any():
            return []
        return [Face((0, 0, 112, 112), TEMPLATE + 1.0, 0.9), Face((55, 55, 65, 65), TEMPLATE, 0.8)]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    monkeypatch.setitem(DETECTORS, "stub", Stub)
    Stub.calls = 0
    return Stub


def write(path: Path, image: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(path.suffix, image[..., ::-1] if image.ndim == 3 else image)[1]
    path.write_bytes(encoded.tobytes())


def grey(value: int, size: int = 120) -> NDArray[np.uint8]:
    return np.full((size, size, 3), value, np.uint8)


def photos(folder: Path, count: int = 6) -> Path:
    for index in range(count):
        write(folder / f"person{index % 3}" / f"{index}.png", grey(20 + 30 * index % 230))
    return folder


def crops(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix in (".jpg", ".png")
    )


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "faces.csv").open(
        encoding="utf-8", errors="surrogateescape", newline=""
    ) as file:
        return list(csv.DictReader(file))


def taken(folder: Path) -> list[dict[str, str]]:
    return [row for row in rows(folder) if row["taken"] == "1"]


def counts(done: Aligned) -> tuple[int, int, int, int, int]:
    return done.photos, done.aligned, done.without_face, done.unreadable, done.new


@pytest.fixture(scope="module")
def heads() -> list[NDArray[np.uint8]]:
    faces = SyntheticFaces(people=3, images_per_person=1)
    return [faces[index][0] for index in range(3)]


@pytest.fixture(scope="module")
def rendered(heads: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    pictures = []
    for head in heads:
        canvas = np.full((260, 340, 3), 110, np.uint8)
        canvas[60:172, 150:262] = head
        pictures.append(canvas)
    return pictures


def test_real_detection_brings_faces_into_place_at_the_same_place_in_the_tree(
    tmp_path: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for index, picture in enumerate(rendered):
        write(tmp_path / "in" / "anna" / "album" / f"{index}.png", picture)
    write(tmp_path / "in" / "otto" / f"{NO_UTF8}.JPEG".lower(), rendered[0])
    write(tmp_path / "in" / "otto" / "nobody.png", grey(90))
    (tmp_path / "in" / "otto" / "notes.txt").write_text("not a photo")
    write(tmp_path / "in" / ".trash" / "old.png", rendered[0])
    done = align_folder(tmp_path / "in", tmp_path / "out", workers=2)
    assert counts(done) == (5, 4, 1, 0, 5)
    expected = [f"anna/album/{index}.jpg" for index in range(3)] + [f"otto/{NO_UTF8}.jpg"]
    assert crops(tmp_path / "out") == expected
    table = rows(tmp_path / "out")
    assert [row["crop"] for row in table] == expected
    assert table[3]["photo"] == f"otto/{NO_UTF8}.jpeg"
    assert (tmp_path / "out" / "no_face.txt").read_text() == "otto/nobody.png\n"
    assert (tmp_path / "out" / "unreadable.txt").read_text() == ""
    row = table[1]
    assert row["faces"] == "1"
    assert float(row["score"]) > 0.9
    assert 150 < float(row["left_eye_x"]) < float(row["nose_x"]) < float(row["right_eye_x"]) < 262
    assert 60 < float(row["top"]) + 30 < float(row["bottom"]) < 190
    for name in expected:
        crop = read_image(tmp_path / "out" / name)
        assert crop.shape == (112, 112, 3)
        (face,) = MTCNN().detect(crop)
        assert np.abs(face.landmarks - TEMPLATE).mean() < 4
    # One process writes the same crops as two.
    align_folder(tmp_path / "in", tmp_path / "alone")
    for name in expected:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert rows(tmp_path / "alone") == table


def huge_png(side: int) -> bytes:
    """The header of an image that would take gigabytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + checksum

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_bad_photos_are_listed_with_the_reason_and_the_others_aligned(
    tmp_path: Path, stub: type[Stub]
) -> None:
    folder = tmp_path / "in" / "a"
    write(folder / "good.png", grey(200))
    write(folder / "grey.png", np.full((120, 120), 130, np.uint8))
    write(folder / "deep.png", np.full((120, 120, 3), 40_000, np.uint16))
    write(folder / "dot.png", grey(200, size=1))
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no image")
    (folder / "huge.png").write_bytes(huge_png(30_000))
    write(folder / "cut.jpg", grey(77))
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:300])
    done = align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    assert counts(done) == (8, 3, 0, 5, 8)
    assert crops(tmp_path / "out") == ["a/deep.jpg", "a/good.jpg", "a/grey.jpg"]
    lines = (tmp_path / "out" / "unreadable.txt").read_text().splitlines()
    reasons = dict(line.split("\t") for line in lines)
    assert list(reasons) == ["a/cut.jpg", "a/dot.png", "a/empty.jpg", "a/huge.png", "a/text.jpg"]
    assert "cut short" in reasons["a/cut.jpg"]
    assert "empty" in reasons["a/empty.jpg"]
    assert "30000" in reasons["a/huge.png"]
    # Once put right they are taken up, and only they are.
    write(folder / "empty.jpg", grey(150))
    again = align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    assert counts(again) == (8, 4, 0, 4, 5)


def test_photos_of_every_kind_are_aligned_or_listed(tmp_path: Path, stub: type[Stub]) -> None:
    folder = tmp_path / "in" / "a"
    for index, (name, ending) in enumerate(
        [
            ("1.jfif", ".jpg"),
            ("2.tiff", ".tiff"),
            ("3.gif", ".gif"),
            ("4", ".png"),
            ("b.c/5", ".jpg"),
        ]
    ):
        path = folder / name
        write(path.with_name("x" + ending), grey(40 + 40 * index))
        path.with_name("x" + ending).rename(path)
    (folder / "6.heic").write_bytes(b"\0\0\0\x18ftypheic")
    os.mkfifo(folder / "7.jpg")
    write(tmp_path / "elsewhere" / "8.png", grey(200))
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    done = align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    assert counts(done) == (8, 6, 0, 2, 8)
    names = ["a/1.jpg", "a/2.jpg", "a/3.jpg", "a/4.jpg", "a/b.c/5.jpg", "linked/8.jpg"]
    assert crops(tmp_path / "out") == names
    for index, name in enumerate(names[:5]):
        # OpenCV writes GIFs with few colours.
        assert abs(int(read_image(tmp_path / "out" / name)[50, 50, 0]) - 40 - 40 * index) < 20
    lines = (tmp_path / "out" / "unreadable.txt").read_text().splitlines()
    reasons = dict(line.split("\t") for line in lines)
    assert "it is of the kind HEIC, which is not read; convert it" in reasons["a/6.heic"]
    assert "it is a FIFO or a device" in reasons["a/7.jpg"]
    again = align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    assert counts(again) == (8, 6, 0, 2, 2)


def test_a_photo_that_breaks_the_detector_does_not_end_the_work(
    tmp_path: Path, stub: type[Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Stub, image: NDArray[np.uint8]) -> list[Face]:
        if image[0, 0, 0] == 20:
            raise cv2.error("assertion failed")
        return [Face((0, 0, 9, 9), np.zeros((5, 2)) if image[0, 0, 0] == 50 else TEMPLATE, 0.9)]

    monkeypatch.setattr(Stub, "detect", broken)
    done = align_folder(photos(tmp_path / "in", 3), tmp_path / "out", detector="stub")
    assert counts(done) == (3, 1, 0, 2, 3)
    text = (tmp_path / "out" / "unreadable.txt").read_text()
    assert "person0/0.png\tassertion failed" in text
    assert "person1/1.png\tthe landmarks of a face are all one point" in text


def test_options_reach_the_crops(tmp_path: Path, stub: type[Stub]) -> None:
    source = photos(tmp_path / "in", 2)
    align_folder(source, tmp_path / "out", detector="stub", size=64, image_format="png")
    assert crops(tmp_path / "out") == ["person0/0.png", "person1/1.png"]
    crop = read_image(tmp_path / "out" / "person1" / "1.png")
    assert crop.shape == (64, 64, 3)
    assert crop[30, 30].tolist() == [50, 50, 50]


def test_colours_keep_their_order(tmp_path: Path, stub: type[Stub]) -> None:
    write(tmp_path / "in" / "red.png", np.full((120, 120, 3), (250, 10, 20), np.uint8))
    align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    red, green, blue = read_image(tmp_path / "out" / "red.jpg")[50, 50].tolist()
    assert red > 240
    assert max(green, blue) < 35


def test_the_chosen_face_is_taken_and_several_are_counted(tmp_path: Path, stub: type[Stub]) -> None:
    source = photos(tmp_path / "in", 1)
    largest = align_folder(source, tmp_path / "largest", detector="stub", choose="largest")
    align_folder(source, tmp_path / "central", detector="stub", choose="central")
    assert largest.several_faces == 1
    # All faces are written down, and the one that the crop shows is marked.
    for choice, marks in (("largest", ["1", "0"]), ("central", ["0", "1"])):
        table = rows(tmp_path / choice)
        assert [row["right"] for row in table] == ["112.00", "65.00"]
        assert [row["taken"] for row in table] == marks
        assert [row["crop"] for row in table] == ["person0/0.jpg" * int(each) for each in marks]
        assert {row["faces"] for row in table} == {"2"}


def test_of_a_group_the_person_in_the_middle_is_taken_by_default(
    tmp_path: Path, heads: list[NDArray[np.uint8]]
) -> None:
    for index, wanted in enumerate(heads):
        canvas = np.full((300, 480, 3), 110, np.uint8)
        canvas[94:206, 184:296] = wanted
        neighbour = cv2.resize(heads[index - 1], (224, 224), interpolation=cv2.INTER_CUBIC)
        canvas[40:264, 320:] = neighbour[:, :160]  # larger, and cut by the border
        write(tmp_path / "in" / f"group{index}.png", canvas)
    alone = np.full((300, 480, 3), 110, np.uint8)
    alone[10:122, 360:472] = heads[0]
    write(tmp_path / "in" / "alone.png", alone)
    done = align_folder(tmp_path / "in", tmp_path / "out")
    assert (done.aligned, done.several_faces) == (4, 3)
    align_folder(tmp_path / "in", tmp_path / "largest", choose="largest")

    def middles(folder: Path) -> list[float]:
        return [(float(row["left"]) + float(row["right"])) / 2 for row in taken(folder)]

    alone_at, *groups = middles(tmp_path / "out")
    assert 380 < alone_at < 450
    assert all(200 < middle < 280 for middle in groups)
    assert all(middle > 400 for middle in middles(tmp_path / "largest")[1:])
    assert len(rows(tmp_path / "out")) == 7


def test_a_face_found_at_a_second_look_is_marked_and_counted(
    tmp_path: Path, heads: list[NDArray[np.uint8]]
) -> None:
    for index, image in enumerate(heads):
        canvas = np.full((90, 90, 3), 120, np.uint8)
        canvas[39:51, 39:51] = cv2.resize(image, (12, 12), interpolation=cv2.INTER_AREA)
        write(tmp_path / "in" / f"{index}.png", canvas)
    done = align_folder(tmp_path / "in", tmp_path / "out")
    looks = [row["look"] for row in rows(tmp_path / "out")]
    assert looks.count("enlarged") == done.second_look > 0
    # The next run knows it still.
    assert align_folder(tmp_path / "in", tmp_path / "out").second_look == done.second_look


def test_a_folder_of_another_version_is_not_continued(tmp_path: Path, stub: type[Stub]) -> None:
    source, out = photos(tmp_path / "in", 2), tmp_path / "out"
    align_folder(source, out, detector="stub")
    journal = out / ".align" / "journal.jsonl"
    settings, *_ = journal.read_text().replace('"version": 2, ', "").splitlines()
    old = '{"photo": "person0/0.png", "crop": null, "faces": 0, "reason": null, "face": null}'
    journal.write_text(f"{settings}\n{old}\n")
    with pytest.raises(ValueError, match=r"begun by another version of align, .* a new folder"):
        align_folder(source, out, detector="stub")


def test_photos_that_differ_in_their_ending_only_stay_apart(
    tmp_path: Path, stub: type[Stub]
) -> None:
    for index, name in enumerate(["a.png", "a.bmp", "a.jpg", "a.jpg.png", "b.jpg/1.png", "b.png"]):
        write(tmp_path / "in" / name, grey(40 * index + 10))
    align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    named = {row["photo"]: row["crop"] for row in taken(tmp_path / "out")}
    assert len(named) == len(set(named.values())) == 6
    assert crops(tmp_path / "out") == sorted({*named.values(), "b.jpg"})
    for photo, crop in named.items():
        value = read_image(tmp_path / "in" / photo)[60, 60, 0]
        assert abs(int(read_image(tmp_path / "out" / crop)[56, 56, 0]) - int(value)) <= 2
    # A photo that comes later takes no name that is in use.
    write(tmp_path / "in" / "a.JPEG", grey(5))
    align_folder(tmp_path / "in", tmp_path / "out", detector="stub")
    later = {row["photo"]: row["crop"] for row in taken(tmp_path / "out")}
    assert len(set(later.values())) == 7
    assert named.items() <= later.items()


def test_an_interrupted_run_resumes_and_ends_as_an_uninterrupted_one(
    tmp_path: Path, stub: type[Stub]
) -> None:
    source = photos(tmp_path / "in", 9)
    write(source / "black.png", grey(0))

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        align_folder(source, tmp_path / "out", detector="stub", progress=stop)
    assert stub.calls == 4 + 3  # three more looks at the one without a face
    assert not (tmp_path / "out" / "faces.csv").exists()
    reported: list[tuple[int, int]] = []
    done = align_folder(
        source, tmp_path / "out", detector="stub", progress=lambda *now: reported.append(now)
    )
    assert stub.calls == 10 + 3
    assert counts(done) == (10, 9, 1, 0, 6)
    assert reported[0] == (4, 10)
    assert reported[-1] == (10, 10)
    align_folder(source, tmp_path / "whole", detector="stub")
    for name in ("faces.csv", "no_face.txt", "unreadable.txt", *crops(tmp_path / "whole")):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # And once more: nothing is left to do.
    assert align_folder(source, tmp_path / "out", detector="stub").new == 0
    assert stub.calls == 2 * (10 + 3)


def test_a_torn_line_costs_one_photo_and_a_lost_crop_is_made_again(
    tmp_path: Path, stub: type[Stub]
) -> None:
    source, out = photos(tmp_path / "in"), tmp_path / "out"
    align_folder(source, out, detector="stub")
    journal = out / ".align" / "journal.jsonl"
    before = (out / "faces.csv").read_bytes()
    journal.write_bytes(journal.read_bytes()[:-20])
    (out / ".align" / "123.part").write_bytes(b"half a crop")
    assert align_folder(source, out, detector="stub").new == 1
    assert not list((out / ".align").glob("*.part"))
    (out / "person1" / "1.jpg").unlink()
    (out / "person2" / "2.jpg").write_bytes(b"")
    assert align_folder(source, out, detector="stub").new == 2
    assert (out / "faces.csv").read_bytes() == before
    assert all(read_image(out / name).shape == (112, 112, 3) for name in crops(out))


@pytest.mark.parametrize("where", ["crop", "journal"])
def test_a_full_disk_is_one_sentence_and_the_next_run_resumes(
    tmp_path: Path, stub: type[Stub], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    source, out = photos(tmp_path / "in"), tmp_path / "out"
    room = [3]

    def take_room() -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "crop":
            really = Path.write_bytes

            def limited(path: Path, content: bytes) -> int:
                really(path, content[: len(content) // 2])
                take_room()
                return really(path, content)

            patch.setattr(Path, "write_bytes", limited)
        else:
            from sphereface2.datatools.align import AlignJournal

            add = AlignJournal.add

            def limited_add(self: AlignJournal, outcome: Any) -> None:
                take_room()
                add(self, outcome)

            patch.setattr(AlignJournal, "add", limited_add)
        with pytest.raises(OSError, match=r"out: no space left .* run the same command again"):
            align_folder(source, out, detector="stub")
    assert not list(out.rglob("*.part"))
    assert all(read_image(out / name).shape == (112, 112, 3) for name in crops(out))
    assert counts(align_folder(source, out, detector="stub")) == (6, 6, 0, 0, 3)


def test_a_killed_run_leaves_whole_crops_and_no_process(
    tmp_path: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for index in range(24):
        write(tmp_path / "in" / f"{index}.png", rendered[index % 3])
    script = (
        "import sys; from pathlib import Path; from sphereface2.datatools.align import *\n"
        "if __name__ == '__main__': align_folder(Path('in'), Path('out'), workers=2)"
    )
    (tmp_path / "run.py").write_text(script)
    run = subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path)
    journal = tmp_path / "out" / ".align" / "journal.jsonl"
    try:
        deadline = time.monotonic() + 300
        while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.02)
        workers = _children(run.pid)
        assert len(workers) >= 2
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    finished = journal.read_bytes().count(b"\n") - 1
    assert finished < 24
    assert all(
        read_image(tmp_path / "out" / n).shape == (112, 112, 3) for n in crops(tmp_path / "out")
    )
    done = align_folder(tmp_path / "in", tmp_path / "out")
    assert counts(done) == (24, 24, 0, 0, 24 - finished)
    assert len(rows(tmp_path / "out")) == 24


def _children(parent: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # a process that has just ended
        if int(fields[1]) == parent:
            children.append(int(stat.parent.name))
    return children


def test_another_setting_or_source_is_refused(tmp_path: Path, stub: type[Stub]) -> None:
    source, out = photos(tmp_path / "in", 2), tmp_path / "out"
    align_folder(source, out, detector="stub")
    with pytest.raises(ValueError, match="was begun with size 112, not 128; give the same, or"):
        align_folder(source, out, detector="stub", size=128)
    with pytest.raises(ValueError, match="was begun with options"):
        align_folder(source, out, detector="stub", options={"min_face": 30})
    with pytest.raises(ValueError, match=r"was begun with source .*in, not .*other"):
        align_folder(photos(tmp_path / "other", 2), out, detector="stub")


def test_a_damaged_journal_is_named(tmp_path: Path, stub: type[Stub]) -> None:
    source, out = photos(tmp_path / "in", 2), tmp_path / "out"
    align_folder(source, out, detector="stub")
    journal = out / ".align" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"photo"', b'"foto"'))
    with pytest.raises(ValueError, match=r"journal\.jsonl is damaged: .*; remove it to align"):
        align_folder(source, out, detector="stub")


def test_two_runs_into_one_folder_are_refused(tmp_path: Path, stub: type[Stub]) -> None:
    source, out = photos(tmp_path / "in", 3), tmp_path / "out"

    def meanwhile(done: int, total: int) -> None:
        if done == 1:
            with pytest.raises(ValueError, match="another process is writing to"):
                align_folder(source, out, detector="stub")

    assert align_folder(source, out, detector="stub", progress=meanwhile).aligned == 3


def test_mistakes_are_one_sentence_and_write_nothing(tmp_path: Path, stub: type[Stub]) -> None:
    source, out = photos(tmp_path / "in", 2), tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()

    def refused(sentence: str, source: Path = source, target: Path = out, **options: Any) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=sentence):
            align_folder(source, target, **{"detector": "stub", **options})

    refused("nowhere does not exist; give the folder with the photos", tmp_path / "nowhere")
    refused("no photos in .*empty", tmp_path / "empty")
    refused("not empty and was not written by align", target=tmp_path / "full")
    refused("lies in the folder of the photos", target=source)
    refused("lies in the folder of the photos", target=source / "crops")
    refused("unknown detector 'stubb'; did you mean 'stub'", detector="stubb")
    refused("unknown choice 'largst'", choose="largst")
    refused("unknown format 'gif'", image_format="gif")
    refused("size must be from 16 to 1024 pixels, got 0", size=0)
    refused("workers must be at least 1, got 0", workers=0)
    refused("detector 'stub' has no option 'min_fac'; did you mean", options={"min_fac": 3})
    refused("is not a folder", target=tmp_path / "full" / "thesis.txt")
    assert not out.exists()


def test_a_worker_that_dies_is_reported_and_the_next_run_resumes(
    tmp_path: Path, rendered: list[NDArray[np.uint8]]
) -> None:
    for index in range(8):
        write(tmp_path / "in" / f"{index}.png", rendered[index % 3])

    def kill_the_workers(done: int, total: int) -> None:
        for process in multiprocessing.active_children() if done == 2 else []:
            process.kill()

    with pytest.raises(OSError, match=r"a worker process died at the photo \d\.png, perhaps for"):
        align_folder(tmp_path / "in", tmp_path / "out", workers=2, progress=kill_the_workers)
    assert multiprocessing.active_children() == []
    assert align_folder(tmp_path / "in", tmp_path / "out").aligned == 8
