"""Files and tables that cannot be evaluated: each is refused with what is wrong and where."""

import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.generate.megaface import write_feature
from benchmarks.generate.truth import SphereCosine
from sphereface2.evaluation import metrics
from sphereface2.evaluation.embedding_files import in_order, read_embeddings, read_feature
from sphereface2.evaluation.experiment_results import LearnedFeatures
from sphereface2.evaluation.protocols.ijb import verify_templates
from sphereface2.evaluation.protocols.ijb_files import read_ijb, read_pairs
from sphereface2.evaluation.protocols.ijb_templates import pool_templates
from sphereface2.evaluation.protocols.megaface import read_megaface
from sphereface2.models.embedder import (
    absent_rows,
    check_rows,
    check_same_width,
    check_table,
    unit_rows,
)

TABLE = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def test_embeddings_whose_names_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "e.npy"
    np.save(path, TABLE)
    with pytest.raises(ValueError, match=r"e\.npy has no names; put one per line into a \.txt"):
        in_order(read_embeddings(path), ["a"])
    (tmp_path / "e.txt").write_text("a\nb\nc\n")
    with pytest.raises(ValueError, match=r"e\.txt has 3 names for 4 embeddings"):
        read_embeddings(path)
    np.savez(tmp_path / "n.npz", embeddings=TABLE, names=np.array(["a", "b", "c"]))
    with pytest.raises(ValueError, match=r"n\.npz has 4 embeddings but 3 names"):
        read_embeddings(tmp_path / "n.npz")
    np.savez(tmp_path / "b.npz", embs=TABLE, embs_f=TABLE[:3])
    with pytest.raises(ValueError, match=r"b\.npz cannot be read: has embs of the shape \(4, 3\)"):
        read_embeddings(tmp_path / "b.npz")


def test_tables_that_do_not_fit_each_other() -> None:
    with pytest.raises(ValueError, match="probes have 3 dimensions and distractors 2"):
        check_same_width(TABLE, TABLE[:, :2], sources=("probes", "distractors"))
    check_same_width(TABLE, TABLE[:1], sources=("probes", "distractors"))
    with pytest.raises(ValueError, match="4 embeddings for 5 images"):
        check_table(TABLE, source="a", rows=5)
    check_table(TABLE, source="a", rows=4)
    ids = np.arange(4)
    with pytest.raises(ValueError, match="4 template ids but 3 media ids"):
        pool_templates(TABLE, ids, ids[:3])


@pytest.mark.parametrize("same", [[True, True], [False, False], [True, False, True]])
def test_pairs_of_templates_that_are_of_one_kind_or_lack_a_label(same: list[bool]) -> None:
    templates = pool_templates(TABLE, np.arange(4), np.arange(4))
    pairs = np.array([[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="verification needs a label each, and both kinds"):
        verify_templates(templates, pairs, np.array(same), name="a")


def test_scores_without_labels_or_of_one_kind() -> None:
    with pytest.raises(ValueError, match="two lists of one length"):
        metrics.roc_curve([0.1, 0.2], [True])
    with pytest.raises(ValueError, match="two lists of one length"):
        metrics.roc_curve([[0.1, 0.2]], [[True, False]])
    for same in ([True, True], [False, False]):
        with pytest.raises(ValueError, match="needs pairs of both kinds"):
            metrics.roc_curve([0.1, 0.2], same)


def ijb(folder: Path, prefix: str = "ijbc") -> Path:
    meta = folder / "meta"
    meta.mkdir(exist_ok=True)
    (meta / f"{prefix}_face_tid_mid.txt").write_text("1.jpg 1 5\n2.jpg 7 6\n")
    line = "1.5 2 3 4 5 6 7 8 9 10 0.9"
    (meta / f"{prefix}_name_5pts_score.txt").write_text(f"1.jpg {line}\n2.jpg {line}\n")
    (meta / f"{prefix}_template_pair_label.txt").write_text("1 7 0\n1 1 1\n")
    for part in ("gallery_G1", "gallery_G2", "probe_mixed"):
        head = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n"
        (meta / f"{prefix}_1N_{part}.csv").write_text(head + "1,100,a.jpg,5\n")
    return meta


def test_lists_of_ijb_that_are_empty_mixed_or_no_numbers(tmp_path: Path) -> None:
    meta = ijb(tmp_path)
    assert len(read_ijb(tmp_path, name="ijb-c").pairs) == 2
    points = meta / "ijbc_name_5pts_score.txt"
    whole = points.read_text()
    points.write_text(whole.replace("0.9", "high", 1))
    with pytest.raises(ValueError, match="only numbers may follow the image name"):
        read_ijb(tmp_path, name="ijb-c")
    points.write_text(whole)
    pairs = meta / "ijbc_template_pair_label.txt"
    pairs.write_text("")
    with pytest.raises(ValueError, match=r"template_pair_label\.txt is empty"):
        read_pairs(pairs)
    ijb(tmp_path)
    (meta / "ijbc_1N_gallery_G1.csv").write_text("\n")
    with pytest.raises(ValueError, match=r"gallery_G1\.csv is empty"):
        read_ijb(tmp_path, name="ijb-c")
    ijb(tmp_path, "ijbb")
    with pytest.raises(ValueError, match="holds several sets; name one of"):
        read_ijb(tmp_path)


def test_lists_and_features_of_megaface_that_are_damaged(tmp_path: Path) -> None:
    probes = tmp_path / "facescrub_features_list.json"
    (tmp_path / "megaface_features_list.json_1000000_1").write_text('{"path": ["a"]}')
    probes.write_text('{"path": ["a", "b"], "id": ["x"]}')
    with pytest.raises(ValueError, match="has 2 paths but 1 ids"):
        read_megaface(tmp_path)
    probes.write_text('{"path":\n ["a"')
    with pytest.raises(ValueError, match=r"is not JSON: .* in line 2"):
        read_megaface(tmp_path)
    probes.write_text('{"path": []}')
    with pytest.raises(ValueError, match="has no list 'path'"):
        read_megaface(tmp_path)
    path = tmp_path / "a.bin"
    write_feature(path, TABLE[0])
    whole = path.read_bytes()
    assert whole[:16] == struct.pack("<4i", 3, 1, 4, 5)
    for length in (0, 15):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"not a MegaFace feature file: it has {length} bytes"):
            read_feature(path)
    for content in (whole[:-1], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="should have 28 bytes for 3 dimensions"):
            read_feature(path)
    path.write_bytes(struct.pack("<4i", 0, 1, 4, 5))
    with pytest.raises(ValueError, match="its header is"):
        read_feature(path)


def test_laws_and_features_without_sense() -> None:
    with pytest.raises(ValueError, match="at least 3 dimensions, got 2"):
        SphereCosine(2)
    # On the sphere in three dimensions a cosine is uniform.
    assert SphereCosine(3).above(0.5) == pytest.approx(0.25, abs=1e-6)
    with pytest.raises(ValueError, match="1 labels for 2 features"):
        LearnedFeatures(((1.0, 0.0), (0.0, 1.0)), (0,), ((1.0, 0.0),), 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="the same dimension"):
        LearnedFeatures(((1.0, 0.0),), (0,), ((1.0, 0.0, 0.0),), 0.0, 1.0, 0.0)


def test_faulty_rows_are_numbered_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphereface2.models.embedder._BLOCK", 2)
    table = np.ones((7, 3), np.float32)
    table[[1, 4]] = 0
    with pytest.raises(ValueError, match=r"^a: 2 of 7 embeddings are zero: .* \(number 1, 4\)$"):
        check_rows(table, source="a")
    table[[3, 6], 1] = np.nan
    with pytest.raises(ValueError, match=r"^a: 2 of 7 embeddings are not finite \(number 3, 6\)$"):
        unit_rows(table, source="a")
    assert not absent_rows(table).any()
    table[[0, 5]] = np.nan
    assert np.flatnonzero(absent_rows(table)).tolist() == [0, 5]
    sound = np.arange(1, 22, dtype=np.float32).reshape(7, 3)
    unit = unit_rows(sound, source="a")
    expected = sound / np.linalg.norm(sound, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected, rtol=1e-6)


def test_thresholds_are_of_double_precision() -> None:
    roc = metrics.roc_curve(np.array([0.1, 0.7], np.float32), [False, True])
    assert roc.thresholds.dtype == np.float64
