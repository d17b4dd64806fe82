import os
from pathlib import Path

import numpy as np
import pytest

from sphereface2.evaluation.protocols.ijb_files import (
    image_folder,
    read_ijb,
    read_pairs,
    read_template_list,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The smallest set in InsightFace's layout, with galleries S1 and S2 as in IJB-B."""
    meta = tmp_path / "IJBB" / "meta"
    meta.mkdir(parents=True)
    (meta.parent / "loose_crop").mkdir()
    (meta / "ijbb_face_tid_mid.txt").write_text("1.jpg 1 69544\n2.jpg 1 69544\n3.jpg 7 11\n")
    points = "1.5 2 3 4 5 6 7 8 9 10"
    (meta / "ijbb_name_5pts_score.txt").write_text(
        f"1.jpg {points} 0.9\n2.jpg {points} 0.8\n3.jpg {points} 0.999\n"
    )
    (meta / "ijbb_template_pair_label.txt").write_text("1 7 0\n1 1 1\n")
    head = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n"
    (meta / "ijbb_1N_gallery_S1.csv").write_text(head + "1,100,a.jpg,5\n1,100,b.jpg,6\n")
    (meta / "ijbb_1N_gallery_S2.csv").write_text(head + "7,101,c.jpg,5\n")
    (meta / "ijbb_1N_probe_mixed.csv").write_text(head + "9,100,d.jpg,5\n8,101,e,f.jpg,5\n")
    return tmp_path


@pytest.mark.parametrize("below", ["", "IJBB", "IJBB/meta"])
def test_the_official_layout_is_read(root: Path, below: str) -> None:
    ijb = read_ijb(root / below, name="ijb-b")
    assert ijb.name == "ijb-b"
    assert list(ijb.image_names) == ["1.jpg", "2.jpg", "3.jpg"]
    assert ijb.templates.tolist() == [1, 1, 7]
    assert ijb.media.tolist() == [69544, 69544, 11]
    assert ijb.landmarks[0].tolist() == [[1.5, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    np.testing.assert_allclose(ijb.detector_scores, [0.9, 0.8, 0.999])
    assert ijb.pairs.tolist() == [[1, 7], [1, 1]]
    assert ijb.same.tolist() == [False, True]
    assert [(g.name, g.templates.tolist(), g.people.tolist()) for g in ijb.galleries] == [
        ("S1", [1], [100]), ("S2", [7], [101])
    ]  # fmt: skip
    assert ijb.probes is not None
    assert ijb.probes.templates.tolist() == [9, 8]
    assert image_folder(root) == root / "IJBB" / "loose_crop"


def test_pairs_are_read_in_chunks_of_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.random.default_rng(0).integers(0, 99_999, (5_000, 3))
    table[:, 2] %= 2
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{a} {b}\t{c}\r\n" for a, b, c in table.tolist()))
    for chunk in (5, 1_000, 1 << 24):
        monkeypatch.setattr("sphereface2.evaluation.protocols.ijb_files._CHUNK", chunk)
        pairs, same = read_pairs(path)
        np.testing.assert_array_equal(pairs, table[:, :2])
        np.testing.assert_array_equal(same, table[:, 2] == 1)
    path.write_text("1 2 0\n3 4 1")  # without a last newline
    assert read_pairs(path)[0].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 0\n3 4\n5 6 1\n", r"1 lines are not 3 whole numbers \(line 2: '3 4'\)"),
        ("1 2 0\n3 x 1\n", r"line 2: '3 x 1'"),
        ("1 2 0\n3 4294967297 1\n", r"line 2: '3 4294967297 1'"),
        ("1 2 0\n3 4 2\n5 6 7\n", r"2 pairs have a label other than 0 and 1 \(line 2, 3\)"),
        ("", "is empty"),
    ],
)
def test_a_bad_pair_list_names_its_lines(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_pairs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A,B\n1,2\n", "header that has TEMPLATE_ID and SUBJECT_ID"),
        ("TEMPLATE_ID,SUBJECT_ID\n1,2\n1,3\n5,1\n", r"1 template ids stand for several people"),
        ("TEMPLATE_ID,SUBJECT_ID\nx,2\n", "line 2: 'x,2' has no whole numbers"),
        (f"TEMPLATE_ID,SUBJECT_ID\n1,1\n2,{1 << 63}\n", "line 3: '2,9223.*' has no whole numbers"),
        ("TEMPLATE_ID,SUBJECT_ID\n", "lists no template"),
        ("", "is empty"),
    ],
)
def test_a_bad_gallery_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gallery.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_template_list(path, name="G1")


def test_the_largest_ids_are_read(tmp_path: Path) -> None:
    path = tmp_path / "gallery.csv"
    most = (1 << 63) - 1
    path.write_text(f"SUBJECT_ID,TEMPLATE_ID\n{-most},{most}\n")
    found = read_template_list(path, name="G1")
    assert (found.name, found.templates.tolist(), found.people.tolist()) == ("G1", [most], [-most])
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(f"{(1 << 31) - 1} 7 1\n")
    assert read_pairs(pairs)[0].tolist() == [[(1 << 31) - 1, 7]]
    pairs.write_text(f"1 2 0\n{1 << 31} 7 1\n")
    with pytest.raises(ValueError, match=r"1 lines are not 3 whole numbers \(line 2: '2147483648"):
        read_pairs(pairs)


def test_lists_of_different_lengths_and_files_that_are_not_there(root: Path) -> None:
    meta = root / "IJBB" / "meta"
    points = meta / "ijbb_name_5pts_score.txt"
    points.write_text("".join(points.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(
        ValueError, match=r"has 3 images and .* 2, and 0 lines .*one list ends earl"
    ):
        read_ijb(root)
    points.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"score\.txt does not exist; the folder has ijbb_1N"
    ):
        read_ijb(root)
    (meta.parent / "loose_crop").rmdir()
    with pytest.raises(
        FileNotFoundError, match=r"loose_crop does not exist; it should hold the ima"
    ):
        image_folder(root)
    with pytest.raises(FileNotFoundError, match="the folder has no files"):
        read_pairs(meta.parent / "loose" / "pairs.txt")


def test_bad_lines_are_numbered_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.evaluation.protocols.ijb_files._CHUNK", 14)
    path = tmp_path / "pairs.txt"
    path.write_text("1 2 0\n" * 6 + "3 4\n5 6 1\n")
    with pytest.raises(ValueError, match=r"1 lines are not 3 whole numbers \(line 7: '3 4'\)"):
        read_pairs(path)


def test_missing_and_disagreeing_files_are_named(root: Path, tmp_path: Path) -> None:
    meta = root / "IJBB" / "meta"
    with pytest.raises(FileNotFoundError, match=r"no meta/ijbc_face_tid_mid.txt"):
        read_ijb(root, name="ijb-c")
    with pytest.raises(ValueError, match=r"unknown set 'ijba' \(known: ijb-b, ijb-c\)"):
        read_ijb(root, name="ijba")
    (meta / "ijbc_face_tid_mid.txt").write_text("1.jpg 1 1\n")
    with pytest.raises(ValueError, match="holds several sets"):
        read_ijb(root)
    points = meta / "ijbb_name_5pts_score.txt"
    points.write_text(points.read_text().replace("2.jpg", "4.jpg"))
    with pytest.raises(ValueError, match=r"1 lines name different ones \(line 2: 2.jpg and 4.jpg"):
        read_ijb(root, name="ijb-b")
    points.write_text("1.jpg 1 2 3\n")
    with pytest.raises(ValueError, match=r"1 lines have not 12 fields \(line 1\)"):
        read_ijb(root, name="ijb-b")
    (meta / "ijbb_face_tid_mid.txt").write_text("1.jpg 1 x\n")
    with pytest.raises(ValueError, match="template and media ids are whole numbers"):
        read_ijb(root, name="ijb-b")


def test_without_galleries_only_verification_is_read(root: Path) -> None:
    for path in (root / "IJBB" / "meta").glob("*1N*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="the 1:N protocol needs the galleries"):
        read_ijb(root)
    assert read_ijb(root, identification=False).galleries == ()


def test_names_in_other_bytes_than_utf_8_are_kept_and_ids_refused_by_file(root: Path) -> None:
    meta = root / "IJBB" / "meta"
    for name in ("face_tid_mid", "name_5pts_score"):
        path = meta / f"ijbb_{name}.txt"
        path.write_bytes(path.read_bytes().replace(b"1.jpg", b"\xeb.jpg"))
    assert os.fsdecode(b"\xeb.jpg") in read_ijb(root).image_names
    gallery = next(meta.glob("*1N_gallery*"))
    gallery.write_bytes(gallery.read_bytes() + b"\xeb,1\n")
    with pytest.raises(ValueError, match=r"gallery.*csv, line .* has no whole numbers"):
        read_template_list(gallery, name="G1")


def test_a_list_of_blanks_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("  \t ")
    with pytest.raises(ValueError, match=r"pairs\.txt is empty"):
        read_pairs(path)
