"""Which sets words mean, and pairs scored by saved embeddings."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.pairs.verification_set import NamedPairs
from sphereface2.evaluation.embedding_files import SavedEmbeddings
from sphereface2.evaluation.scoring import Subject, _people, _rows_of_bin, find_sets, score_saved

TABLE = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
NAMES = ["a1.jpg", "a2.jpg", "b1.jpg", "b2.jpg"]


def saved_as(names: list[str] | None, people: list[str] | None = None) -> SavedEmbeddings:
    known = None if people is None else np.array(people)
    return SavedEmbeddings(TABLE, "given", names, known, "e.npy")


def pairs(same: list[bool]) -> NamedPairs:
    """a1 with a2, a1 with b1, b1 with b2."""
    return NamedPairs(
        name="mine",
        images=NAMES,
        pairs=np.array([[0, 1], [0, 2], [2, 3]]),
        same=np.array(same),
        folds=np.array([0, 0, 1]),
    )


def test_a_root_is_for_lists_of_pairs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"--root: there is no folder .*none"):
        find_sets(["synthetic"], root=tmp_path / "none")
    with pytest.raises(ValueError, match="--root is for the images of a list of pairs, and synth"):
        find_sets(["synthetic"], root=tmp_path)
    with pytest.raises(
        ValueError, match=r"two sets are called .*; rename one, or evaluate them ap"
    ):
        find_sets(["synthetic", "synthetic"])
    names = [each.name for each in find_sets(["synthetic"])]
    assert len(names) == len(set(names)) > 0


def test_saved_embeddings_have_no_synthetic_people(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", TABLE)
    subject = Subject(None, tmp_path / "e.npy", tmp_path)
    with pytest.raises(ValueError, match="the synthetic sets are embedded by a model"):
        score_saved(subject, ["synthetic"])


def test_rows_of_a_bin_file_are_taken_in_its_order() -> None:
    saved = saved_as(None)
    vectors, mirror = _rows_of_bin(saved, "lfw.bin", 4)
    assert vectors is saved.vectors
    assert mirror == "given"
    with pytest.raises(ValueError, match=r"e.npy has 4 embeddings, but lfw.bin has 6 images"):
        _rows_of_bin(saved, "lfw.bin", 6)
    with pytest.raises(ValueError, match=r"has the names of its images, but those of lfw.bin have"):
        _rows_of_bin(saved_as(NAMES), "lfw.bin", 4)


def test_people_are_those_beside_the_embeddings_where_every_pair_agrees() -> None:
    right, wrong = pairs([True, False, True]), pairs([True, True, True])
    known = saved_as(NAMES, ["a", "a", "b", "b"])
    found = _people(known, right)
    assert found is not None
    assert found.tolist() == [0, 0, 1, 1]
    assert _people(known, wrong) is None
    assert _people(saved_as(NAMES), right) is None
    assert _people(saved_as(None, ["a", "a", "b", "b"]), right) is None
    # Without an embedding an image has nobody's name, and its pairs say nothing.
    some = SavedEmbeddings(TABLE[:3], "given", NAMES[:3], np.array(["a", "a", "b"]), "e.npy")
    found = _people(some, right)
    assert found is not None
    assert found[0] == found[1] != found[2]


def test_pairs_of_images_without_an_embedding_are_skipped_if_asked(tmp_path: Path) -> None:
    people = tmp_path / "people"
    names = []
    for person in range(6):
        (people / f"p{person}").mkdir(parents=True)
        for number in range(4):
            name = f"p{person}/{number}.png"
            cv2.imwrite(str(people / name), np.full((8, 8, 3), 20 * person, np.uint8))
            names.append(name)
    vectors = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    np.save(tmp_path / "e.npy", vectors[1:])
    (tmp_path / "e.txt").write_text("".join(f"{name}\n" for name in names[1:]))
    subject = Subject(None, tmp_path / "e.npy", tmp_path, missing="skip")
    (scored,) = score_saved(subject, [str(people)])
    assert scored.missing_images == 1
    (drawn,) = find_sets([str(people)])
    assert scored.skipped_pairs == np.count_nonzero(drawn.pairs == 0) > 0
    with pytest.raises(ValueError, match="1 of 24 images of the list has no embedding"):
        score_saved(Subject(None, tmp_path / "e.npy", tmp_path), [str(people)])
