from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.generate.megaface import write_feature
from sphereface2.evaluation.embedding_files import (
    find_ending,
    in_order,
    read_embeddings,
    read_feature,
    strip_noise_column,
)

TABLE = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def test_a_plain_array_is_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TABLE)
    saved = read_embeddings(tmp_path / "x.npy", dim=4, check_values=True)
    assert isinstance(saved.vectors, np.memmap)
    np.testing.assert_array_equal(saved.vectors, TABLE)
    assert (saved.mirror, saved.names, saved.people) == ("given", None, None)


def test_images_beside_their_mirror_images(tmp_path: Path) -> None:
    """OpenSphere holds (n, 2, D), InsightFace's IJB scripts (n, 2D)."""
    both = np.stack([TABLE, -2 * TABLE], axis=1)
    np.save(tmp_path / "a.npy", both)
    np.save(tmp_path / "b.npy", both.reshape(6, 8))
    torch.save(torch.from_numpy(both), tmp_path / "c.pt")
    for name, dim in (("a.npy", None), ("b.npy", 4), ("c.pt", 4)):
        saved = read_embeddings(tmp_path / name, dim=dim)
        assert saved.mirror == "sum"
        np.testing.assert_array_equal(saved.vectors, np.concatenate([TABLE, -2 * TABLE], axis=1))
    assert read_embeddings(tmp_path / "b.npy").mirror == "given"
    assert read_embeddings(tmp_path / "b.npy", mirrored=True).mirror == "sum"
    assert read_embeddings(tmp_path / "b.npy", dim=8, mirrored=False).mirror == "given"


def test_insightfaces_archive(tmp_path: Path) -> None:
    path = tmp_path / "ijb.npz"
    np.savez(path, embs=TABLE, embs_f=TABLE + 1, scores=np.ones(3))
    saved = read_embeddings(path)
    assert saved.mirror == "sum"
    np.testing.assert_array_equal(saved.vectors[:, 4:], TABLE + 1)
    np.savez(path, embs=TABLE, embs_f=np.array([]))
    assert read_embeddings(path).mirror == "given"
    np.savez(path, embs=TABLE, embs_f=TABLE[:3])
    with pytest.raises(ValueError, match=r"embs of the shape .* but embs_f"):
        read_embeddings(path)


def test_our_archive_has_names_and_people(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    names = np.array([f"{i}.jpg" for i in range(6)])
    np.savez(path, embeddings=TABLE, names=names, labels=np.arange(6))
    saved = read_embeddings(path)
    assert saved.people is not None
    assert saved.people.tolist() == [0, 1, 2, 3, 4, 5]
    assert in_order(saved, ["3.jpg", "0.jpg"]).tolist() == [3, 0]
    with pytest.raises(ValueError, match=r"2 of 3 images of the list have no embedding \(x, y\)"):
        in_order(saved, ["x", "0.jpg", "y"])
    np.savez(path, embeddings=TABLE, names=names[:5])
    with pytest.raises(ValueError, match="6 embeddings but 5 names"):
        read_embeddings(path)
    np.savez(path, embeddings=TABLE, names=np.array(["a"] * 6))
    with pytest.raises(ValueError, match=r"5 names occur twice \(a, a"):
        in_order(read_embeddings(path), ["a"])


def test_names_and_people_stand_in_a_text_file_beside(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TABLE)
    (tmp_path / "x.txt").write_text("".join(f"{i}.jpg p{i % 2}\n" for i in range(6)))
    saved = read_embeddings(tmp_path / "x.npy")
    assert saved.names is not None
    assert saved.people is not None
    assert (saved.names[2], saved.people.tolist()) == ("2.jpg", ["p0", "p1"] * 3)
    (tmp_path / "x.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"x.txt has 2 names for 6 embeddings"):
        read_embeddings(tmp_path / "x.npy")


def test_a_megaface_feature_is_one_row(tmp_path: Path) -> None:
    write_feature(tmp_path / "x.bin", TABLE[0])
    np.testing.assert_array_equal(read_embeddings(tmp_path / "x.bin").vectors, TABLE[:1])


def test_faulty_values_are_named_and_counted(tmp_path: Path) -> None:
    bad = TABLE.copy()
    bad[[1, 4], 2] = np.nan
    np.save(tmp_path / "x.npy", bad)
    with pytest.raises(ValueError, match=r"2 of 6 embeddings are not finite \(number 1, 4\)"):
        read_embeddings(tmp_path / "x.npy", check_values=True)
    bad[[1, 4]] = 0
    np.save(tmp_path / "x.npy", bad)
    with pytest.raises(ValueError, match=r"2 of 6 embeddings are zero.*\(number 1, 4\)"):
        read_embeddings(tmp_path / "x.npy", check_values=True)


def test_what_cannot_be_embeddings_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TABLE)
    with pytest.raises(ValueError, match="4 dimensions; 512 are expected"):
        read_embeddings(tmp_path / "x.npy", dim=512)
    np.save(tmp_path / "y.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"cannot be read as .npy"):
        read_embeddings(tmp_path / "y.npy")
    np.save(tmp_path / "z.npy", TABLE.reshape(2, 3, 4))
    with pytest.raises(ValueError, match="three axes mean"):
        read_embeddings(tmp_path / "z.npy")
    np.savez(tmp_path / "x.npz", a=TABLE, b=TABLE)
    with pytest.raises(ValueError, match="no array of embeddings among a, b"):
        read_embeddings(tmp_path / "x.npz")
    for name, message in (("x.pkl", "can run code"), ("x.csv", "known: .npy"), ("x.npz", "read")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ValueError, match=message):
            read_embeddings(tmp_path / name)
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="holds a dict"):
        read_embeddings(tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match="cannot be read as a tensor"):
        read_embeddings(tmp_path / "y.pt")
    with pytest.raises(FileNotFoundError, match="should hold embeddings"):
        read_embeddings(tmp_path / "none.npy")


def test_files_of_other_names_and_endings(tmp_path: Path) -> None:
    torch.save(torch.from_numpy(TABLE).double(), tmp_path / "x.PTH")
    saved = read_embeddings(tmp_path / "x.PTH")
    np.testing.assert_array_equal(saved.vectors, TABLE)
    assert saved.vectors.dtype == np.float32
    np.savez(tmp_path / "one.npz", whatever=TABLE)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "one.npz").vectors, TABLE)
    np.savez(tmp_path / "l.npz", feats=TABLE, label=np.arange(5))
    with pytest.raises(ValueError, match="6 embeddings but 5 labels"):
        read_embeddings(tmp_path / "l.npz")
    with pytest.raises(ValueError, match="is a folder, where one file of embeddings is expected"):
        read_embeddings(tmp_path)
    np.save(tmp_path / "x.npy", TABLE)
    with pytest.raises(ValueError, match="has embeddings of 2 dimensions; 4 are expected"):
        read_embeddings(tmp_path / "x.npy", dim=4, mirrored=True)
    assert read_embeddings(tmp_path / "x.npy", dim=2).mirror == "sum"


def test_rows_of_names_that_are_not_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TABLE)
    (tmp_path / "x.txt").write_text("".join(f"a b {i}.jpg\tp {i}\r\n\n" for i in range(6)))
    saved = read_embeddings(tmp_path / "x.npy")
    assert saved.names is not None
    assert saved.people is not None
    assert (saved.names[5], saved.people[5]) == ("a b 5.jpg", "p 5")
    wanted = ["a b 4.jpg", "nobody.jpg", "a b 0.jpg"]
    assert in_order(saved, wanted, missing="skip").tolist() == [4, -1, 0]
    with pytest.raises(
        ValueError, match=r"1 of 3 images of the list has no embedding \(nobody.jpg"
    ):
        in_order(saved, wanted)
    (tmp_path / "x.txt").write_text("".join(f"{i}.jpg{' p' * (i > 0)}\n" for i in range(6)))
    assert read_embeddings(tmp_path / "x.npy").people is None


def test_a_feature_file_is_read_back_and_nothing_else_is_one(tmp_path: Path) -> None:
    path = tmp_path / "people" / "1" / "x.bin"
    write_feature(path, TABLE[0])
    content = path.read_bytes()
    assert content[:16] == np.array([4, 1, 4, 5], "<i4").tobytes()
    assert content[16:] == TABLE[0].astype("<f4").tobytes()
    np.testing.assert_array_equal(read_feature(path), TABLE[0])
    path.write_bytes(content[:15])
    with pytest.raises(ValueError, match=r"is not a MegaFace feature file: it has 15 bytes"):
        read_feature(path)
    for header in ([4, 2, 4, 5], [4, 1, 8, 5], [4, 1, 4, 6], [0, 1, 4, 5]):
        path.write_bytes(np.array(header, "<i4").tobytes() + content[16:])
        with pytest.raises(ValueError, match=r"its header is \(\d, .*not \(dimensions, 1, 4, 5\)"):
            read_feature(path)
    for wrong in (content[:-1], content + b"x", content[:16]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"32 bytes for 4 dimensions but has {len(wrong)};"):
            read_feature(path)
    write_feature(path, TABLE[0, :1])
    assert read_feature(path).tolist() == TABLE[0, :1].tolist()
    with pytest.raises(FileNotFoundError, match=r"none.bin does not exist; extract its features"):
        read_feature(tmp_path / "none.bin")


def test_the_ending_of_feature_files_is_found_if_it_is_the_only_one(tmp_path: Path) -> None:
    write_feature(tmp_path / "a.jpg_algo.bin", TABLE[0])
    assert find_ending(tmp_path / "a.jpg") == "_algo.bin"
    write_feature(tmp_path / "a.jpg_other.bin", TABLE[0])
    with pytest.raises(ValueError, match=r"has several: a.jpg_algo.bin, a.jpg_other.bin; give the"):
        find_ending(tmp_path / "a.jpg")


def test_a_last_column_of_noughts_and_hundreds_marks_noise() -> None:
    table = np.array([[1, 2, 0], [3, 4, 100], [5, 6, np.nan]], np.float32)
    stripped, marked = strip_noise_column(table)
    assert (stripped.shape, marked.tolist()) == ((3, 2), [False, True, False])
    table[2, 2] = 7  # one that is neither: these are numbers of an embedding
    kept, marked = strip_noise_column(table)
    assert kept is table
    assert not marked.any()
    assert strip_noise_column(np.zeros((2, 1), np.float32))[0].shape == (2, 1)


def test_embeddings_without_names_are_in_no_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TABLE)
    with pytest.raises(ValueError, match=r"x.npy has no names; put one per line into a .txt"):
        in_order(read_embeddings(tmp_path / "x.npy"), ["a.jpg"])
    assert read_embeddings(tmp_path / "x.npy", dim=4).mirror == "given"
    (tmp_path / "x.txt").write_text("a\nb\nc\nd\ne\nf\n")
    assert in_order(read_embeddings(tmp_path / "x.npy"), []).dtype == np.intp
