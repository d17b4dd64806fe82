"""Conversions between all forms: nothing changes, nothing is lost, nothing lands elsewhere."""

import fcntl
import hashlib
import json
import os
import pickle
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from sphereface2.data.pairs.bin_set import bin_set
from sphereface2.data.pairs.pair_list import pair_list
from sphereface2.data.sources import open_images
from sphereface2.data.sources.encoded import EncodedImages, people_file
from sphereface2.data.sources.image_file import Encoded
from sphereface2.datatools.convert import convert
from sphereface2.datatools.convert import targets as convert_targets
from sphereface2.datatools.convert.conversion import (
    MARK,
    FileNames,
    Job,
    safe_file,
    safe_part,
    unique_parts,
)
from tests.data.bin_files import write_bin
from tests.datatools import convert_killer
from tests.datatools.convert_killer import tree

FORMS = {
    "folder": "out",
    "list": "out.txt",
    "recordio": "out.rec",
    "parquet": "out.parquet",
}
PEOPLE = ["Ann Lee", "bob", "c#", "zoë"]


def picture(seed: int, *, ending: str = ".jpg", side: int = 12) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    done, encoded = cv2.imencode(ending, pixels)
    assert done
    return encoded.tobytes()


def fill(folder: Path, *, count: int = 40) -> Path:
    """Images of four people, of several formats, some deeper than others."""
    for number in range(count):
        ending = (".jpg", ".png", ".webp", ".bmp")[number % 4]
        deep = "album/deep/" if number % 5 == 0 else ""
        file = folder / PEOPLE[(3 * number + number // 4) % 4] / f"{deep}{number:02d}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number, ending=ending, side=12 + number))
    return folder


@pytest.fixture
def crops(tmp_path: Path) -> Path:
    return fill(tmp_path / "in" / "crops")


def contents(path: Path) -> Counter[tuple[str, str]]:
    """How often each image (its hash) is there, with the name of its person."""
    images = open_images(path)
    names = images.people
    if path.suffix == ".rec":
        names = people_file(path).read_text().splitlines()
        assert images.people == [str(label) for label in range(len(names))]
    return Counter((names[images.labels[i]], sha(images, i)) for i in range(len(images)))


def sha(images: EncodedImages, index: int) -> str:
    return hashlib.sha256(images.encoded(index)).hexdigest()


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in each of the four forms."""
    folder = tmp_path_factory.mktemp("forms")
    found = {"folder": fill(folder / "crops")}
    for form, name in FORMS.items():
        if form != "folder":
            (folder / form).mkdir()
            found[form] = folder / form / name
            convert(found["folder"], found[form])
    return found


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("source", FORMS)
def test_every_form_to_every_form_keeps_bytes_people_and_labels(
    source: str, target: str, forms: dict[str, Path], tmp_path: Path
) -> None:
    done = convert(forms[source], tmp_path / FORMS[target])
    assert contents(tmp_path / FORMS[target]) == contents(forms["folder"])
    assert sum(contents(forms["folder"]).values()) == 40
    original, copy = open_images(forms[source]), open_images(tmp_path / FORMS[target])
    assert copy.num_classes == original.num_classes == 4
    labels = Counter((int(label), sha(original, i)) for i, label in enumerate(original.labels))
    assert Counter((int(label), sha(copy, i)) for i, label in enumerate(copy.labels)) == labels
    assert (done.format, done.images, done.people, done.written) == (target, 40, 4, 40)
    assert (done.pairs, done.skipped) == (None, 0)
    written = [tmp_path / "out" / name for name in tree(tmp_path / "out") if name != MARK]
    files = written or [tmp_path / FORMS[target]]
    assert done.bytes == sum(file.stat().st_size for file in files)
    assert not list(tmp_path.glob("*.partial"))
    copy.prepare(workers=1)


def test_a_list_of_files_names_them_where_they_are(crops: Path, tmp_path: Path) -> None:
    convert(crops, tmp_path / "in" / "list.txt")
    lines = (tmp_path / "in" / "list.txt").read_text().splitlines()
    assert f"crops/{PEOPLE[3]}/01.png\t{PEOPLE[3]}" in lines
    assert sorted(each.name for each in (tmp_path / "in").iterdir()) == ["crops", "list.txt"]
    (tmp_path / "elsewhere").mkdir()
    convert(crops, tmp_path / "elsewhere" / "list.txt")
    assert (tmp_path / "elsewhere/list.txt").read_text().startswith("../in/crops/")
    convert(tmp_path / "elsewhere" / "list.txt", tmp_path / "again")
    # The way to the images is not part of their names.
    own = {name for name in tree(crops) if "album" not in name}
    assert own <= set(tree(tmp_path / "again"))


def test_a_list_cannot_hold_every_name(tmp_path: Path) -> None:
    odd = tmp_path / "crops" / "#anna" / "#1.jpg"
    odd.parent.mkdir(parents=True)
    odd.write_bytes(picture(1))
    convert(tmp_path / "crops", tmp_path / "crops" / "list.txt")
    assert contents(tmp_path / "crops" / "list.txt") == contents(tmp_path / "crops")
    odd.rename(odd.with_name("a\tb.jpg"))
    with pytest.raises(ValueError, match="a list cannot hold a name with a tab"):
        convert(tmp_path / "crops", tmp_path / "other.txt")
    assert not (tmp_path / "other.txt").exists()


def test_numbers_as_names_keep_their_order_in_a_folder(tmp_path: Path) -> None:
    for person in range(12):
        file = tmp_path / "crops" / f"person{person:02d}" / "1.jpg"
        file.parent.mkdir(parents=True)
        file.write_bytes(picture(person))
    convert(tmp_path / "crops", tmp_path / "a.rec")
    people_file(tmp_path / "a.rec").unlink()  # as others' .rec files are
    convert(tmp_path / "a.rec", tmp_path / "out")
    images = open_images(tmp_path / "out")
    assert images.people == [f"{person:02d}" for person in range(12)]
    original = open_images(tmp_path / "crops")
    assert [sha(images, i) for i in range(12)] == [sha(original, i) for i in range(12)]


def test_images_of_nobody_known_keep_their_label(crops: Path, tmp_path: Path) -> None:
    files = sorted(file for file in crops.rglob("*") if file.is_file())
    lines = [f"{file}\t{-1 if i % 3 else i % 2}\n" for i, file in enumerate(files)]
    (tmp_path / "list.txt").write_text("".join(lines))
    for name in ("a.rec", "b.parquet", "c.txt"):
        source = tmp_path / "a.rec" if name == "c.txt" else tmp_path / "list.txt"
        convert(source, tmp_path / name)
        images = open_images(tmp_path / name)
        assert Counter(images.labels.tolist()) == Counter(
            -1 if i % 3 else i % 2 for i in range(len(files))
        )
    done = convert(tmp_path / "list.txt", tmp_path / "folder")
    assert "nobody known" in done.notes[0]
    assert open_images(tmp_path / "folder").people == ["0", "1", "unknown"]


def test_parquet_in_parts_or_joined(
    crops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_targets, "IMAGES_PER_PART", 16)
    convert(crops, tmp_path / "parts", format="parquet")
    assert sorted(tree(tmp_path / "parts")) == [
        ".converted.json",
        *(f"part-0000{part}.parquet" for part in range(3)),
    ]
    convert(crops, tmp_path / "joined.parquet")
    monkeypatch.undo()
    convert(crops, tmp_path / "one.parquet")
    for name in ("parts", "joined.parquet", "one.parquet"):
        images, original = open_images(tmp_path / name), open_images(crops)
        assert contents(tmp_path / name) == contents(crops)
        assert [images.name(i) for i in range(40)] == [original.name(i) for i in range(40)]


# -- interruptions -------------------------------------------------------------------------------

KILLED = [
    ("folder", "out.rec", 37),
    ("recordio", "out", 43),
    ("recordio", "out.txt", 59),
    ("folder", "out.parquet", 27),
    ("pairs", "out.bin", 59),
    ("bin", "out", 31),
    ("folder", "over.rec", 43),
]


@pytest.fixture(scope="module")
def killed(
    forms: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What came of conversions that were killed at many moments and resumed."""
    folder = tmp_path_factory.mktemp("killed")
    paths = {**forms, **{kind: write_pairs(folder / kind, kind) for kind in ("pairs", "bin")}}
    script = Path(convert_killer.__file__)
    old = fill(folder / "old", count=8)
    cases = [
        f"{paths[source]}|{name}|{step}|{old if 'over' in name else ''}"
        for source, name, step in KILLED
    ]
    module, scratch = f"tests.datatools.{script.stem}", str(folder / "scratch")
    words = [sys.executable, "-m", module, scratch, *cases]
    # Without `quick_processes`: a fork of all that is loaded there takes longer than a conversion.
    done = subprocess.run(words, cwd=script.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = [f"{source} {name}" for source, name, _ in KILLED]
    return dict(zip(names, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", [f"{source} {name}" for source, name, _ in KILLED])
def test_killed_at_any_moment_it_resumes_to_the_same_bytes(
    case: str, killed: dict[str, dict[str, Any]]
) -> None:
    reported = killed[case]
    again = [count for count in reported["again"] if count >= 0]
    while "over" in case and again[-1] == reported["images"]:
        again.pop()  # killed after all was done: what is there is replaced once more
    assert again[0] == reported["images"]  # killed at once, all was still to do
    assert again[-1] == 0  # killed in the end, nothing was
    assert again == sorted(again, reverse=True)  # the later, the less
    most = reported["images"] - reported["images"] // 4
    assert any(0 < count < most for count in again), again  # it went on where it was


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk that is full: writing beyond `size` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["out.rec", "out.parquet", "out", "out.txt", "out.bin"])
def test_a_full_disk_is_reported_and_the_rerun_resumes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_targets, "IMAGES_PER_PART", 8)
    (tmp_path / "full").mkdir()
    (tmp_path / "whole").mkdir()
    if name == "out.bin":
        source, limit = write_pairs(tmp_path / "in", "pairs"), 15_000
    else:
        folder = fill(tmp_path / "in" / "crops")
        (folder / "zoë" / "50.bmp").write_bytes(picture(50, ending=".bmp", side=200))
        convert(folder, tmp_path / "in" / "in.rec")
        source, limit = tmp_path / "in" / "in.rec", 100_000
    convert(source, tmp_path / "whole" / name)
    target = tmp_path / "full" / name
    with (
        files_no_larger_than(limit),
        pytest.raises(
            OSError, match=r"full/out.*\.partial: .*; what is converted stays there: make room"
        ) as caught,
    ):
        convert(source, target)
    assert "\n" not in str(caught.value)
    assert not target.exists()
    done = convert(source, target)
    assert 0 < done.written < done.images
    assert tree(tmp_path / "full") == tree(tmp_path / "whole")


def test_an_interrupted_conversion_is_not_mixed_with_another(
    crops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(crops, tmp_path / "out", monkeypatch)
    (crops / "bob" / "new.jpg").write_bytes(picture(77))
    with pytest.raises(ValueError, match=r"out\.partial holds an interrupted conversion of other"):
        convert(crops, tmp_path / "out")
    done = convert(crops, tmp_path / "out", overwrite=True)
    assert done.written == done.images == 41
    assert contents(tmp_path / "out") == contents(crops)


def interrupt(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle."""
    original = Job.encoded
    calls = iter(range(1000))

    def encoded(job: Job, index: int) -> Encoded:
        if next(calls) == 15:
            raise KeyboardInterrupt
        return original(job, index)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "encoded", encoded)
        with pytest.raises(KeyboardInterrupt):
            convert(source, target)


def test_after_ctrl_c_it_resumes_without_a_second_check(
    crops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(crops, tmp_path / "out", monkeypatch)
    assert not (tmp_path / "out").exists()
    monkeypatch.delattr(EncodedImages, "prepare")
    assert convert(crops, tmp_path / "out").written == 40 - 15
    assert contents(tmp_path / "out") == contents(crops)


def test_two_at_once_are_refused(
    crops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(crops, tmp_path / "out", monkeypatch)
    with (tmp_path / "out.partial" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is writing"):
            convert(crops, tmp_path / "out")


# -- bad images, wrong targets, odd names --------------------------------------------------------


def test_unreadable_images_stop_it_before_anything_is_written(crops: Path, tmp_path: Path) -> None:
    (crops / "bob" / "empty.jpg").touch()
    (crops / "zoë" / "text.png").write_text("no image")
    (crops / "nobody").mkdir()
    (crops / "nobody" / "cut.jpg").write_bytes(picture(3)[:-40])
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=r"3 of the 43 .*empty\.jpg \(.*--on-bad-image skip"):
        convert(crops, tmp_path / "out.rec")
    assert tree(tmp_path) == before
    done = convert(crops, tmp_path / "out.rec", on_bad_image="skip")
    assert (done.images, done.people, done.skipped) == (40, 4, 3)
    assert sorted(set(open_images(tmp_path / "out.rec").labels.tolist())) == [0, 1, 2, 3]
    assert people_file(tmp_path / "out.rec").read_text().splitlines() == PEOPLE


def test_what_exists_is_replaced_only_on_demand(crops: Path, tmp_path: Path) -> None:
    for name in ("out.rec", "out", "out.txt", "out.parquet"):
        convert(crops, tmp_path / name)
        with pytest.raises(ValueError, match="already exists; give --overwrite to replace it"):
            convert(crops, tmp_path / name)
    (crops / "zoë" / "new.jpg").write_bytes(picture(88))
    for name in ("out.rec", "out", "out.txt", "out.parquet"):
        convert(crops, tmp_path / name, overwrite=True)
        assert len(open_images(tmp_path / name)) == 41
    assert not list(tmp_path.glob("*.partial"))


def test_a_foreign_folder_is_never_touched(crops: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    convert(crops, photos)  # empty: fine
    other = tmp_path / "other"
    other.mkdir()
    (other / "diary.txt").write_text("mine")
    for place in ("other", "out"):
        for overwrite in (False, True):
            if place == "out":
                (tmp_path / "out.partial").mkdir(exist_ok=True)
                (tmp_path / "out.partial" / "diary.txt").write_text("mine")
            with pytest.raises(ValueError, match=r"not written by convert|is in the way"):
                convert(crops, tmp_path / place, overwrite=overwrite)
    assert (other / "diary.txt").read_text() == "mine"
    assert (tmp_path / "out.partial" / "diary.txt").read_text() == "mine"


def test_the_property_file_of_another_set_stays(crops: Path, tmp_path: Path) -> None:
    (tmp_path / "property").write_text("85742,112,112")
    done = convert(crops, tmp_path / "mine.rec")
    assert (tmp_path / "property").read_text() == "85742,112,112"
    assert "is of another .rec" in done.notes[0]


def test_other_kinds_are_noted_and_a_fifo_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path / "crops", count=4)
    person = next((tmp_path / "crops").iterdir())
    (person / "phone.heic").touch()
    (person / "no-ending").write_bytes(picture(77, ending=".tiff"))
    os.mkfifo(person / "x.jpg")
    with pytest.raises(ValueError, match=r"x\.jpg: it is a FIFO or a device"):
        convert(tmp_path / "crops", tmp_path / "out")
    done = convert(tmp_path / "crops", tmp_path / "out", on_bad_image="skip")
    assert (done.images, done.skipped) == (5, 1)
    assert "phone.heic" in done.notes[0]
    assert (tmp_path / "out" / person.name / "no-ending.tif").read_bytes() == picture(
        77, ending=".tiff"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing", "out.rec"), "there is no .*nothing to convert"),
        (("crops", "crops"), "is what is to be converted"),
        (("crops", "crops/inner"), "lies inside"),
        (("crops", "nowhere/out.rec"), "there is no folder .*nowhere to write to"),
        (("crops", "out.bin"), "holds no pairs, of which a .bin is made"),
        (("crops", "out.rec", "root"), "root is for lists"),
        (("crops", "out.csv"), r"nothing is written with the ending \.csv, did you mean \.tsv\?"),
        (
            ("crops", "out.zip"),
            r"with the ending \.zip; give .* for a folder, or say",
        ),
        (("crops", "out.parqet"), r"with the ending \.parqet, did you mean \.parquet\? give"),
        (("crops", "out", "tar"), "unknown format 'tar'"),
        (("crops", "out", "recordoi"), "did you mean 'recordio'"),
        (("crops", "out", "recordio"), "the name of a RecordIO file ends in .rec"),
    ],
)
def test_a_mistake_gets_one_sentence(
    words: tuple[str, ...], sentence: str, crops: Path, tmp_path: Path
) -> None:
    source, target, *rest = words
    before = tree(tmp_path)
    root = tmp_path if rest == ["root"] else None
    form = rest[0] if rest and root is None else None
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        convert(crops.parent / source, crops.parent / target, root=root, format=form)
    with pytest.raises(ValueError, match="did you mean 'skip'"):
        convert(crops, tmp_path / "out", on_bad_image="skipp")
    assert tree(tmp_path) == before


HOSTILE = [
    ("../up", "../../evil.jpg"),
    ("/etc", "/etc/passwd"),
    (".hidden", ".hidden/.a.jpg"),
    ("a/b", "a/b/1.jpg"),
    ("a_b", "a_b/1.jpg"),
    ("a_b", "a_b/1.jpg"),
    ("a_b", "a_b/1~2.jpg"),
    ("a_b", "a_b/1.jpg/2.jpg"),
    ("..", "../x.jpg"),
    ("", "x"),
    ("new\nline", "new\nline/\n.jpg"),
    ("long" * 100, "long" * 100 + "/" + "n" * 300 + ".jpg"),
    ("c\\d", "c\\d/..\\..\\x.jpg"),
    ("unknown", "unknown/1.jpg"),
]


@pytest.mark.parametrize("name", ["out", "out.txt", "out.rec"])
def test_names_that_lead_elsewhere_do_not(name: str, tmp_path: Path) -> None:
    people = sorted({person for person, _ in HOSTILE})
    encoded = [picture(number) for number in range(len(HOSTILE))]
    table = pyarrow.table(
        {
            "image": [
                {"bytes": each, "path": path}
                for each, (_, path) in zip(encoded, HOSTILE, strict=True)
            ],
            "label": [people.index(person) for person, _ in HOSTILE],
            "person": [person for person, _ in HOSTILE],
        }
    )
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    pyarrow.parquet.write_table(table, tmp_path / "hostile.parquet")
    convert(tmp_path / "hostile.parquet", inner / name)
    stem = inner / "out"
    for file in tmp_path.rglob("*"):
        assert file.is_relative_to(inner) or inner.is_relative_to(file) or file.parent == tmp_path
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "hostile.parquet"]
    if name != "out.rec":
        written = [file.read_bytes() for file in stem.rglob("*.jpg") if file.is_file()]
        assert sorted(written) == sorted(encoded)
    images = open_images(inner / name)
    assert images.num_classes == len(people)
    assert Counter(images.labels.tolist()).most_common(1)[0][1] == 4
    assert sorted(bytes(images.encoded(i)) for i in range(len(images))) == sorted(encoded)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "crops"
    for person in (b"Jos\xe9", b"Jos\xe8", b"Ann"):
        place = folder / os.fsdecode(person)
        place.mkdir(parents=True)
        (place / os.fsdecode(b"\xe9t\xe9.jpg")).write_bytes(picture(person[-1]))
    for name in ("out", "out.txt", "out.rec", "out.parquet"):
        convert(folder, tmp_path / name)
        images = open_images(tmp_path / name)
        assert (len(images), images.num_classes) == (3, 3)
        convert(tmp_path / name, tmp_path / f"{name}-again")
        assert len(open_images(tmp_path / f"{name}-again").people) == 3


def test_safe_names() -> None:
    assert safe_part("anna") == "anna"
    assert safe_part("..") == "_.."
    assert safe_part("") == "_"
    assert safe_part("a/b\\c\0d\ne") == "a_b_c_d_e"
    assert len(os.fsencode(safe_part("é" * 300 + ".jpg"))) <= 255
    assert safe_part("é" * 300 + ".jpg").endswith(".jpg")
    assert unique_parts(["a/b", "a_b", "a\\b", "a_b~2"]) == ["a_b", "a_b~2", "a_b~3", "a_b~2~2"]
    assert safe_file("../x/./y.jpg", lambda: ".png") == "x/y.jpg"
    assert safe_file("/etc/passwd", lambda: ".png") == "etc/passwd.png"
    assert safe_file("", lambda: ".png") == "_.png"
    names = ["p/1.jpg", "p/1.jpg", "p/1~2.jpg", "p/1.jpg", "q/1.jpg"]
    found = FileNames(lambda index: names[index], range(5))
    assert [found[index] for index in range(5)] == [
        "p/1.jpg",
        "p/1~3.jpg",
        "p/1~2.jpg",
        "p/1~4.jpg",
        "q/1.jpg",
    ]


# -- verification sets ---------------------------------------------------------------------------


def write_pairs(folder: Path, kind: str) -> Path:
    """Thirty pairs of twelve people's images as a pair list, in LFW's form or as .bin."""
    root = folder / "faces"
    for person in range(12):
        for number in (1, 2):
            file = root / f"p{person}" / f"p{person}_{number:04d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(10 * person + number))
    genuine = [(f"p{i % 12}", 1, f"p{i % 12}", 2) for i in range(15)]
    impostor = [(f"p{i % 12}", 1, f"p{(i + 5) % 12}", 2) for i in range(15)]
    pairs = genuine + impostor
    same = [True] * 15 + [False] * 15
    names = [[f"{n}/{n}_{i:04d}.jpg" for n, i in (pair[:2], pair[2:])] for pair in pairs]
    if kind == "pairs":
        path = folder / "faces" / "pairs.txt"
        lines = [f"{a} {b} {int(s)}" for (a, b), s in zip(names, same, strict=True)]
        path.write_text("\n".join(lines))
    elif kind == "lfw":
        path = folder / "pairs.txt"
        lines = [f"{a}\t{i}\t{j}" if a == b else f"{a}\t{i}\t{b}\t{j}" for a, i, b, j in pairs]
        path.write_text("15\n" + "\n".join(lines))
    else:
        path = folder / "set.bin"
        write_bin(path, [(root / name).read_bytes() for pair in names for name in pair], same)
    return path


@pytest.mark.parametrize("kind", ["pairs", "lfw", "bin"])
def test_pairs_become_a_bin_and_a_bin_becomes_images_with_a_pair_list(
    kind: str, tmp_path: Path
) -> None:
    source = write_pairs(tmp_path, kind)
    root = tmp_path / "faces" if kind == "lfw" else None
    done = convert(source, tmp_path / "out.bin", root=root)
    assert (done.format, done.pairs, done.images) == ("bin", 30, 60)
    assert done.people == (None if kind == "bin" else 12)
    expected = pickle.loads(write_pairs(tmp_path / "reference", "bin").read_bytes())
    assert pickle.loads((tmp_path / "out.bin").read_bytes()) == expected
    (from_list,) = bin_set(path=str(tmp_path / "out.bin"))
    done = convert(tmp_path / "out.bin", tmp_path / "inside")
    assert (done.format, done.pairs, done.images, done.written) == ("folder", 30, 60, 60)
    (unpacked,) = pair_list(path=str(tmp_path / "inside" / "pairs.txt"))
    assert unpacked.same.tolist() == from_list.same.tolist()
    assert unpacked.folds.tolist() == from_list.folds.tolist()
    stored = unpacked.images.encoded  # type: ignore[attr-defined]  # more than Images
    assert [stored(index) for index in unpacked.pairs.ravel()] == expected[0]
    if kind != "bin":  # the people of a list are known in a folder as well
        convert(source, tmp_path / "sorted", root=root)
        (kept,) = pair_list(path=str(tmp_path / "sorted" / "pairs.txt"))
        assert kept.people is not None
        assert len(kept.images) == 24
        assert len(set(kept.people.tolist())) == 12


def test_pairs_with_unreadable_images(tmp_path: Path) -> None:
    source = write_pairs(tmp_path, "pairs")
    (tmp_path / "faces" / "p3" / "p3_0001.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"1 of the 24 images .*p3_0001\.jpg \(.*--on-bad-image"):
        convert(source, tmp_path / "out.bin")
    assert not list(tmp_path.glob("out*"))
    done = convert(source, tmp_path / "out.bin", on_bad_image="skip")
    assert (done.pairs, done.skipped) == (28, 2)
    images, same = pickle.loads((tmp_path / "out.bin").read_bytes())
    assert len(images) == 2 * len(same) == done.images
    assert b"no image" not in images


def test_pairs_are_told_from_lists_of_images(tmp_path: Path) -> None:
    source = write_pairs(tmp_path, "pairs")
    with pytest.raises(ValueError, match=r"holds pairs, which can be written as a \.bin or"):
        convert(source, tmp_path / "out.rec")
    # InsightFace's list of images also has three fields, of which the last may be 0 or 1.
    lines = [f"1\tp{i % 2}/p{i % 2}_0001.jpg\t{i % 2}" for i in range(6)]
    (tmp_path / "faces" / "train.lst").write_text("\n".join(lines))
    assert convert(tmp_path / "faces" / "train.lst", tmp_path / "out.rec").people == 2
    # And so has a list whose paths have blanks.
    (tmp_path / "faces" / "my photo.jpg").write_bytes(picture(1))
    (tmp_path / "faces" / "list.txt").write_text("my photo.jpg 1\n")
    assert convert(tmp_path / "faces" / "list.txt", tmp_path / "blank").images == 1
    with pytest.raises(ValueError, match=r"--root: .* holds its images itself"):
        convert(write_pairs(tmp_path, "bin"), tmp_path / "x.bin", root=tmp_path)


@pytest.mark.parametrize("people", [("7", "07", "-1"), ("7", "8", "-5")])
def test_people_that_a_list_would_not_keep_apart_get_numbers(
    tmp_path: Path, people: tuple[str, ...]
) -> None:
    for number, person in enumerate(people):
        file = tmp_path / "crops" / person / "1.jpg"
        file.parent.mkdir(parents=True)
        file.write_bytes(picture(number))
    convert(tmp_path / "crops", tmp_path / "out.txt")
    assert sorted(open_images(tmp_path / "out.txt").labels.tolist()) == [0, 1, 2]
