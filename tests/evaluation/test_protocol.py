"""What is judged, and the embeddings of a list: found by names, in its order, or left out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sphereface2.evaluation.embedding_files import SavedEmbeddings, named_alike, rows_of
from sphereface2.evaluation.protocols.protocol import (
    Embedded,
    ImageList,
    _present,
    cmc_view,
    is_made,
    require_root,
    strictest,
)
from sphereface2.evaluation.scoring import Subject
from sphereface2.evaluation.thresholds import Measure, OperatingPoint
from sphereface2.evaluation.uncertainty import wilson

TABLE = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
NAMES = ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"]


def saved_as(names: list[str] | None) -> SavedEmbeddings:
    return SavedEmbeddings(TABLE.copy(), "given", names, None, "e.npy")


def subject(path: Path | None, **options: object) -> Subject:
    return Subject(None, path, Path("out"), **options)  # type: ignore[arg-type]  # as they come


def test_a_subject_is_called_by_its_file_or_by_the_folder_of_it() -> None:
    assert subject(Path("runs/mine/embeddings.npy")).name == "mine"
    assert subject(Path("runs/mine/lfw.npy")).name == "lfw"
    assert subject(Path("runs/mine/lfw.npy")).label == "lfw"
    with pytest.raises(ValueError, match="nothing to judge: give a MODEL or --embeddings FILE"):
        subject(None)


def test_saved_embeddings_with_the_names_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "e.npy"
    np.save(path, TABLE)
    judged = subject(path)
    assert judged.read(path).names is None
    assert judged.flip_of(path) is None
    assert judged.flip_of() is None
    assert judged.calibration() is None
    (tmp_path / "e.txt").write_text("".join(f"{name}\tp {name[0]}\n" for name in NAMES))
    found = judged.read(path)
    assert found.names is not None
    assert found.people is not None
    assert (list(found.names), found.people.tolist()) == (NAMES, ["p a", "p a", "p b", "p b"])
    both = subject(path, mirrored=True)
    np.save(path, np.concatenate([TABLE, -TABLE], axis=1))
    assert (both.read(path).mirror, judged.read(path).mirror) == ("sum", "given")


def test_rows_are_found_by_name_or_taken_in_order() -> None:
    plain = saved_as(None)
    vectors, mirror = rows_of(plain, NAMES)
    assert vectors is plain.vectors
    assert mirror == "given"
    with pytest.raises(ValueError, match=r"4 embeddings for the 3 images of the list and no names"):
        rows_of(plain, NAMES[:3])
    named = saved_as(NAMES)
    assert rows_of(named, NAMES)[0] is named.vectors
    found, mirror = rows_of(replace(named, mirror="sum"), [NAMES[2], NAMES[0]])
    np.testing.assert_array_equal(found, TABLE[[2, 0]])
    assert mirror == "sum"
    found, _ = rows_of(named, [NAMES[3], "nobody.jpg"], missing="skip")
    np.testing.assert_array_equal(found[0], TABLE[3])
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(named.vectors, TABLE)
    with pytest.raises(ValueError, match="1 of 2 images of the list has no embedding"):
        rows_of(named, [NAMES[3], "nobody.jpg"])


def test_lists_may_name_images_without_their_endings() -> None:
    named = saved_as(NAMES)
    assert named_alike(named, NAMES) is named
    assert named_alike(named, ["a/1", "b/2"]).names == ["a/1", "a/2", "b/1", "b/2"]
    assert named_alike(named, ["a/1", "b/2.jpg"]) is named
    np.testing.assert_array_equal(rows_of(named, ["b/1", "a/2"])[0], TABLE[[2, 1]])


def test_images_without_an_embedding_are_left_out_where_that_is_asked_for() -> None:
    table = TABLE.copy()
    table[1] = np.nan
    wanted = ImageList("e")
    saved = SavedEmbeddings(table, "given", NAMES, np.array(["a", "a", "b", "b"]), "e.npy")
    every = _present(subject(Path("e.npy")), wanted, saved)
    assert every.vectors is table
    assert every.names == NAMES
    assert every.people is saved.people
    assert every.present.tolist() == [True] * 4
    skipping = subject(Path("e.npy"), missing="skip")
    left = _present(skipping, wanted, saved)
    np.testing.assert_array_equal(left.vectors, TABLE[[0, 2, 3]])
    assert left.names == [NAMES[0], NAMES[2], NAMES[3]]
    assert left.people is not None
    assert left.people.tolist() == ["a", "b", "b"]
    assert left.present.tolist() == [True, False, True, True]
    assert _present(skipping, wanted, replace(saved, people=None)).people is None
    assert _present(skipping, wanted, replace(saved, vectors=TABLE)).present.all()
    with pytest.raises(ValueError, match="none of the images has an embedding"):
        skipping.absent(np.full((2, 3), np.nan, np.float32))


def test_mirror_images_that_stand_beside_are_added() -> None:
    both = np.concatenate([TABLE, 2 * TABLE], axis=1)
    beside = Embedded(both, "sum", NAMES, None, np.ones(4, np.bool_), "e.npy")
    np.testing.assert_allclose(beside.folded, 3 * TABLE, rtol=1e-6)
    assert replace(beside, mirror="given").folded is both


def measure_at(target: float, *, resolved: bool = True) -> Measure:
    point = OperatingPoint(target, target, 0.5, 100, resolved)
    return Measure(f"TAR@FAR={target:g}", wilson(90, 100), point)


def test_the_strictest_number_that_is_resolved_is_quoted_first() -> None:
    measures = [measure_at(t) for t in (0.1, 1e-4, 1e-3)]
    assert strictest(measures, target=1e-4) == [measures[1]]
    assert strictest(measures, target=5e-4) == [measures[2]]
    assert strictest([*measures[:1], measure_at(1e-4, resolved=False)], target=1e-4) == measures[:1]
    assert strictest([Measure("rank 1", wilson(1, 2))], target=1e-4) == []
    assert strictest(measures, target=0.5) == []
    twice = [measure_at(0.1), replace(measure_at(0.1), name="another")]
    assert strictest(twice, target=1e-4) == twice[:1]


def test_a_cmc_marks_the_ranks_that_it_reaches() -> None:
    ranks = [Measure(f"rank {k}", wilson(k, 20)) for k in (1, 3, 5)]
    curve = cmc_view("gallery", (0.05, 0.1, 0.15), ranks)
    assert (curve.title, curve.x_label, curve.y_label) == ("CMC, gallery", "rank", "found (%)")
    assert (list(curve.x), list(curve.y)) == ([1, 2, 3], [0.05, 0.1, 0.15])
    assert list(curve.marks) == [(1, ranks[0]), (3, ranks[1])]


def test_a_root_must_be_there_and_may_say_that_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ijb needs --root DIR"):
        require_root(None, "ijb")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none"):
        require_root(tmp_path / "none", "ijb")
    assert require_root(tmp_path, "ijb") == tmp_path
    assert not is_made(None)
    assert not is_made(tmp_path)
