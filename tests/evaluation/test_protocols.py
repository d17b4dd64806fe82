"""From models and saved embeddings to results: the same numbers by every way."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.generate.megaface import generate_megaface
from sphereface2.backbones import build_backbone
from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.sources.image_list import AlignedFiles
from sphereface2.data.sources.source import Images
from sphereface2.data.transforms import Preprocessing
from sphereface2.datatools.rendered_benchmarks import render_ijb, write_list
from sphereface2.evaluation.calibration import calibrate
from sphereface2.evaluation.embedding_files import rows_of
from sphereface2.evaluation.protocols.identification import (
    Identification,
    IdentificationResult,
    identify,
)
from sphereface2.evaluation.protocols.ijb import IjbC, IjbResult, evaluate_ijb
from sphereface2.evaluation.protocols.ijb_files import IjbSet, image_folder, read_ijb
from sphereface2.evaluation.protocols.ijb_templates import TemplateList
from sphereface2.evaluation.protocols.megaface import MegaFace, MegaFaceResult, megaface
from sphereface2.evaluation.protocols.protocol import is_made, measure_protocol
from sphereface2.evaluation.scoring import Subject, find_sets, score_extracted, score_saved
from sphereface2.models.embedder import MissingImageError
from sphereface2.models.extraction import ModelEmbedder, open_embedder
from sphereface2.models.folder import save_model, store_calibration
from sphereface2.runs.evaluate import evaluate_on, write_protocol
from sphereface2.workers import Progress
from tests.data.bin_files import write_bin

OPTIONS = {"width": 4, "input_size": 16, "embedding_dim": 6}


def ijb_c(subject: Subject, root: Path | None, **options: Any) -> IjbResult | None:
    return measure_protocol(IjbC(**options), subject, root)


def identification(
    subject: Subject, root: Path | None, **options: Any
) -> IdentificationResult | None:
    return measure_protocol(Identification(**options), subject, root)


def megaface_challenge(
    subject: Subject, root: Path | None, **options: Any
) -> MegaFaceResult | None:
    return measure_protocol(MegaFace(**options), subject, root)


def save(folder: Path, *, seed: int = 0) -> Path:
    save_model(
        folder,
        build_backbone("sfnet4", seed=seed, **OPTIONS),
        name="sfnet4",
        options=OPTIONS,
        preprocessing=Preprocessing(input_size=16),
        extra={"head": {"name": "cosface"}},
    )
    return folder


def faces(root: Path, people: int, shots: int, *, seed: int = 0) -> Path:
    """PERSON/SHOT.png below `root`: a person is a colour."""
    generator = np.random.default_rng(seed)
    for person in range(people):
        colour = np.random.default_rng(person).integers(0, 256, 3)
        (root / f"p{person}").mkdir(parents=True)
        for shot in range(shots):
            image = np.clip(colour + generator.normal(0, 9, (16, 16, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(root / f"p{person}" / f"{shot}.png"), image)
    return root


def pixels(path: Path) -> npt.NDArray[np.uint8]:
    return np.asarray(cv2.imread(str(path)), np.uint8)[:, :, ::-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a model, another model, people in folders, and a small IJB."""
    place = tmp_path_factory.mktemp("protocols")
    save(place / "run" / "model")
    save(place / "other", seed=1)
    faces(place / "crops", 12, 4)
    faces(place / "search" / "gallery", 6, 2, seed=1)
    faces(place / "search" / "probe", 9, 3, seed=2)
    render_ijb(place / "ijb", people=4)
    return place


@pytest.fixture
def embedder(place: Path) -> ModelEmbedder:
    return open_embedder(place / "run", device="cpu", batch_size=7)


def straight(embedder: ModelEmbedder, images: Images) -> npt.NDArray[np.float32]:
    return embedder.embed(images)


# -- extraction ------------------------------------------------------------------------------------


class Pictures:
    """Images that may fail, and remember how often they were prepared and read."""

    def __init__(self, count: int, *, fails_at: int | None = None, seed: int = 0) -> None:
        self.images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), np.uint8)
        self.fails_at, self.prepared, self.read = fails_at, 0, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint8]:
        if index == self.fails_at:
            raise KeyboardInterrupt
        self.read += 1
        image: npt.NDArray[np.uint8] = self.images[index]
        return image

    def prepare(self, *, workers: int = 1, progress: object = None) -> None:
        self.prepared += 1


def test_an_extraction_says_what_it_is_of(embedder: ModelEmbedder, tmp_path: Path) -> None:
    images = Pictures(10)
    names = [f"a b/{number}.png" for number in range(10)]
    found = embedder.extract(images, tmp_path / "x.npy", names=names, people=["a b"] * 10)
    np.testing.assert_array_equal(found, straight(embedder, images))
    lines = (tmp_path / "x.txt").read_text().splitlines()
    assert lines[3] == "a b/3.png\ta b"
    note = json.loads((tmp_path / "x.json").read_text())
    assert (note["model"], note["flip"], note["images"]) == (embedder.digest, True, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.npy", "x.txt"]


def test_names_with_blanks_come_back(embedder: ModelEmbedder, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    names, people = ["a b/1 (2).png", "a b/2.png", "c/1.png"], ["a b", "a b", "c"]
    embedder.extract(Pictures(3), output, names=names, people=people)
    saved = Subject(None, output, tmp_path).read(output)
    assert saved.names == names
    assert saved.people is not None
    assert saved.people.tolist() == people
    embedder.extract(Pictures(3), output, names=names)
    assert Subject(None, output, tmp_path).read(output).names == names
    output.with_suffix(".txt").write_text("a\tb\n")
    with pytest.raises(ValueError, match=r"1 names for 3 embeddings"):
        Subject(None, output, tmp_path).read(output)


def test_a_stopped_extraction_resumes_and_a_finished_one_is_kept(
    embedder: ModelEmbedder, tmp_path: Path
) -> None:
    output = tmp_path / "x.npy"
    # Too many to be among the 64 that are looked at first.
    images = Pictures(300, fails_at=250)
    with pytest.raises(KeyboardInterrupt):
        embedder.extract(images, output)
    assert not output.exists()
    assert not output.with_suffix(".json").exists()
    images.fails_at, images.read = None, 0
    found = embedder.extract(images, output)
    np.testing.assert_array_equal(found, straight(embedder, Pictures(300)))
    assert images.prepared == 1  # not checked again
    assert images.read < 200
    images.read = 0
    embedder.extract(images, output)
    assert images.read <= 64  # only looked at
    changed = embedder.extract(Pictures(300, seed=1), output)  # other images: replaced
    np.testing.assert_array_equal(changed, straight(embedder, Pictures(300, seed=1)))


def test_a_file_of_unknown_origin_is_not_touched(embedder: ModelEmbedder, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"x\.npy is in the way: it is not known which model"):
        embedder.extract(Pictures(3), tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"x\.npy exists already; choose another name or"):
        embedder.extract(Pictures(3), tmp_path / "x.npy", overwrite=False)
    embedder.extract(Pictures(3), tmp_path / "x.npy", overwrite=True)
    with pytest.raises(ValueError, match=r"1 names have a tab or a line break in them"):
        embedder.extract(Pictures(1), tmp_path / "y.npy", names=["a\tb"])
    assert not (tmp_path / "y.npy").exists()


def test_a_model_is_found_in_its_run(place: Path) -> None:
    assert open_embedder(place / "run").name == "run"
    assert open_embedder(place / "run" / "model").name == "run"
    assert open_embedder(place / "other").name == "other"
    with pytest.raises(FileNotFoundError, match="crops holds no model"):
        open_embedder(place / "crops")
    with pytest.raises(FileNotFoundError, match="there is no run or model folder"):
        open_embedder(place / "nowhere")


# -- IJB -------------------------------------------------------------------------------------------


def test_ijb_from_images_and_from_saved_embeddings(
    place: Path, embedder: ModelEmbedder, tmp_path: Path
) -> None:
    ijb = read_ijb(place / "ijb", name="ijb-c")
    aligned = AlignedFiles(image_folder(place / "ijb"), ijb.image_names, ijb.landmarks)
    expected = evaluate_ijb(
        ijb, straight(embedder, aligned), image_norm="unit", detector_weights=True
    )
    result = ijb_c(
        Subject(embedder, None, tmp_path), place / "ijb", norm="unit", detector_weights=True
    )
    assert isinstance(result, IjbResult)
    assert replace(result, conventions=expected.conventions) == expected
    assert "made data" in result.conventions[-1]
    assert "embedding of an image: with its mirror image's added" in result.conventions
    # Saved, in another order, the names tell which is which.
    table = np.load(tmp_path / "embeddings.npy")
    order = np.random.default_rng(0).permutation(len(table))
    np.save(tmp_path / "mixed.npy", table[order])
    (tmp_path / "mixed.txt").write_text("".join(f"{ijb.image_names[i]}\n" for i in order))
    for name in ("embeddings", "mixed"):
        saved = ijb_c(
            Subject(None, tmp_path / f"{name}.npy", tmp_path), place / "ijb",
            part=["1:1", "legacy"], norm="unit", detector_weights=True,
        )  # fmt: skip
        assert saved is not None
        assert (saved.verification, saved.legacy) == (expected.verification, expected.legacy)
        assert saved.standard is None
    report = write_protocol(Subject(embedder, None, tmp_path), result)
    assert IjbResult.load(tmp_path / "result.json") == result
    assert "Beside the paper" not in report.read_text()


def test_ijb_says_what_is_wrong(place: Path, embedder: ModelEmbedder, tmp_path: Path) -> None:
    judge = Subject(embedder, None, tmp_path / "out")
    with pytest.raises(ValueError, match="ijb-c needs --root DIR"):
        ijb_c(judge, None)
    with pytest.raises(FileNotFoundError, match=r"has no meta/ijbc_face_tid_mid\.txt"):
        ijb_c(judge, place / "crops")
    with pytest.raises(ValueError, match=r"unknown part 'legasy'; did you mean 'legacy'\?"):
        ijb_c(judge, place / "ijb", part=["legasy"])
    np.save(tmp_path / "short.npy", np.ones((3, 6), np.float32))
    with pytest.raises(ValueError, match=r"has 3 embeddings for the \d+ images of the list"):
        ijb_c(Subject(None, tmp_path / "short.npy", tmp_path), place / "ijb")
    images = len(read_ijb(place / "ijb"))
    np.save(tmp_path / "wide.npy", np.ones((images, 7), np.float32))
    with pytest.raises(ValueError, match="has embeddings of 7 dimensions; 6 are expected"):
        ijb_c(replace(judge, embeddings=tmp_path / "wide.npy"), place / "ijb")
    faulty = np.ones((images, 6), np.float32)
    faulty[5] = np.nan
    np.save(tmp_path / "nan.npy", faulty)
    with pytest.raises(ValueError, match=r"1 of \d+ embeddings are not finite \(number 5\)"):
        ijb_c(Subject(None, tmp_path / "nan.npy", tmp_path), place / "ijb")
    (place / "ijb" / "loose_crop" / "3.jpg").rename(tmp_path / "3.jpg")
    try:
        with pytest.raises(MissingImageError, match=r"1 of the \d+ images .* such as 3\.jpg"):
            ijb_c(judge, place / "ijb")
        # Left out: as if the lists had never named it.
        skipping = replace(embedder, missing="skip")
        found = ijb_c(Subject(skipping, None, tmp_path / "skip", missing="skip"), place / "ijb")
    finally:
        (tmp_path / "3.jpg").rename(place / "ijb" / "loose_crop" / "3.jpg")
    assert not (tmp_path / "out").exists()
    ijb = read_ijb(place / "ijb", name="ijb-c")
    aligned = AlignedFiles(image_folder(place / "ijb"), ijb.image_names, ijb.landmarks)
    absent = np.array([name == "3.jpg" for name in ijb.image_names])
    expected = evaluate_ijb(ijb.without(absent), straight(embedder, aligned)[~absent])
    assert found is not None
    assert found.missing_images == 1
    assert f"1 of {images} images have no embedding and are left out" in found.conventions
    assert replace(found, conventions=expected.conventions, missing_images=0) == expected
    # Saved embeddings that lack the image say the same, by the same words.
    keep = np.flatnonzero(~absent).tolist()
    np.save(tmp_path / "some.npy", straight(embedder, aligned)[keep])
    (tmp_path / "some.txt").write_text("".join(f"{ijb.image_names[i]}\n" for i in keep))
    some = Subject(None, tmp_path / "some.npy", tmp_path)
    with pytest.raises(ValueError, match=r"\(3\.jpg\); --missing skip leaves them out"):
        ijb_c(some, place / "ijb")
    again = ijb_c(replace(some, missing="skip"), place / "ijb")
    assert again is not None
    assert (again.verification, again.missing_images) == (expected.verification, 1)


def test_ijb_without_a_template_loses_its_pairs_and_entries() -> None:
    ids = np.array([1, 1, 2, 3, 4])
    lists = TemplateList("G1", np.array([1, 2]), np.array([10, 20]))
    whole = IjbSet(
        "ijb-c", list("abcde"), np.zeros((5, 5, 2), np.float32), np.ones(5, np.float32),
        ids, np.arange(5), np.array([[1, 2], [1, 3], [3, 4]]), np.array([True, False, True]),
        (lists,), TemplateList("probes", np.array([3, 4]), np.array([10, 20])),
    )  # fmt: skip
    left = whole.without(np.array([True, False, True, False, False]))
    assert (left.image_names, left.templates.tolist()) == (["b", "d", "e"], [1, 3, 4])
    assert (left.pairs.tolist(), left.same.tolist()) == ([[1, 3], [3, 4]], [False, True])
    assert (left.galleries[0].templates.tolist(), left.galleries[0].people.tolist()) == ([1], [10])
    assert left.probes is not None
    assert left.probes.templates.tolist() == [3, 4]


def test_embeddings_of_another_model_are_refused(
    place: Path, embedder: ModelEmbedder, tmp_path: Path
) -> None:
    other = open_embedder(place / "other", device="cpu")
    other.extract(Pictures(4), tmp_path / "x.npy")
    with pytest.raises(ValueError, match="was extracted with another model than"):
        Subject(embedder, tmp_path / "x.npy", tmp_path).read(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="give a MODEL or --embeddings FILE"):
        Subject(None, None, tmp_path)


# -- identification --------------------------------------------------------------------------------


def test_identification_from_folders_and_saved(
    place: Path, embedder: ModelEmbedder, tmp_path: Path
) -> None:
    paths = {
        kind: sorted((place / "search" / kind).glob("*/*.png")) for kind in ("gallery", "probe")
    }
    vectors = {
        kind: straight(embedder, [pixels(p) for p in found]) for kind, found in paths.items()
    }
    people = {kind: np.array([p.parent.name for p in found]) for kind, found in paths.items()}
    expected = identify(
        vectors["gallery"], people["gallery"], vectors["probe"], people["probe"], pooling="max"
    )
    assert (expected.mated, expected.non_mated) == (18, 9)
    subject = Subject(embedder, None, tmp_path)
    result = identification(subject, place / "search", pooling="max")
    again = identification(Subject(None, tmp_path, tmp_path), None, pooling="max")
    whole = tmp_path / "whole.npy"
    np.save(whole, np.concatenate([vectors["gallery"], vectors["probe"]]))
    names = [p.relative_to(place / "search").as_posix() for found in paths.values() for p in found]
    whole.with_suffix(".txt").write_text("\n".join(names) + "\n")
    one_file = identification(Subject(None, whole, tmp_path), None, pooling="max")
    for found in (result, again, one_file):
        assert isinstance(found, IdentificationResult)
        assert replace(found, conventions=expected.conventions) == expected
    with pytest.raises(FileNotFoundError, match="has no folder gallery"):
        identification(subject, place / "crops")
    embedder.extract(Pictures(4), tmp_path / "x.npy")
    form = "names beside it must be gallery/PERSON/IMAGE and probe/PERSON/IMAGE"
    with pytest.raises(ValueError, match=form):
        identification(Subject(None, tmp_path / "x.npy", tmp_path), None)


def test_calibrated_thresholds_are_judged(place: Path, tmp_path: Path) -> None:
    save(tmp_path / "model")
    embedder = open_embedder(tmp_path / "model", device="cpu")
    scored = score_extracted(embedder, find_sets([str(place / "crops")]), folder=tmp_path / "e")
    assert scored is not None
    kept = calibrate(scored[0], model=embedder.digest, flip=True, far_targets=(0.1, 1e-6))
    store_calibration(tmp_path / "model", kept.to_mapping())
    subject = Subject(embedder, None, tmp_path / "out")
    assert kept.resolved_thresholds == (kept.thresholds[0].threshold,)
    plain = Subject(
        replace(embedder, batches=embedder.model.embedder(flip=False)), None, tmp_path / "plain"
    )
    other = identification(plain, place / "search")
    assert other is not None
    assert other.dir == ()
    assert "thresholds left out: they hold with the mirror" in " ".join(other.conventions)
    result = identification(subject, place / "search")
    assert result is not None
    assert "left out" not in " ".join(result.conventions)
    assert [each.name for each in result.dir] == [f"DIR at {kept.thresholds[0].threshold:g}"]


# -- MegaFace --------------------------------------------------------------------------------------


def test_megaface_from_images(place: Path, embedder: ModelEmbedder, tmp_path: Path) -> None:
    root = tmp_path / "mf"
    faces(root / "facescrub", 4, 3)
    faces(root / "megaface", 30, 1, seed=5)
    probes = [f"p{p}/{s}.png" for p in range(4) for s in range(3)]
    strangers = [f"p{p}/0.png" for p in range(29, -1, -1)]
    write_list(
        root / "templatelists" / "facescrub_features_list.json",
        probes,
        people=[name.split("/")[0] for name in probes],
    )
    for size in (10, 30):
        write_list(
            root / "templatelists" / f"megaface_features_list.json_{size}_1", strangers[:size]
        )
    vectors = [
        straight(embedder, [pixels(root / kind / name) for name in names])
        for kind, names in (("facescrub", probes), ("megaface", strangers))
    ]
    people = [name.split("/")[0] for name in probes]
    subject = Subject(embedder, None, tmp_path / "out")
    for limit in (None, 10):
        expected = megaface(vectors[0], people, vectors[1][:limit])
        result = megaface_challenge(subject, root, distractors=limit)
        assert isinstance(result, MegaFaceResult)
        assert result.rank_1 == expected.rank_1
        assert result.tpr == expected.tpr
    with pytest.raises(FileNotFoundError, match=r"facescrub_noises\.txt does not exist"):
        megaface_challenge(subject, root, refined=True)
    (root / "megaface" / "p7" / "0.png").unlink()
    with pytest.raises(MissingImageError, match=r"1 of the 30 images .* p7/0\.png"):
        megaface_challenge(Subject(embedder, None, tmp_path / "new"), root)
    with pytest.raises(FileNotFoundError, match="has no templatelists"):
        megaface_challenge(subject, place / "crops")


def test_megaface_from_generated_features(tmp_path: Path) -> None:
    generate_megaface(tmp_path / "mf", scale=0.0005, dim=16, feature_files=True)
    subject = Subject(None, tmp_path / "mf", tmp_path / "out")
    nothing = Subject(None, tmp_path / "mf" / "templatelists", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"neither facescrub.npy nor a folder"):
        megaface_challenge(nothing, tmp_path / "mf")
    plain = megaface_challenge(subject, None)
    refined = megaface_challenge(subject, None, refined=True)
    centred = megaface_challenge(subject, None, refined=True, noisy_probes="centre")
    assert plain is not None
    assert refined is not None
    assert centred is not None
    assert (plain.noisy_probes, refined.noisy_probes, refined.noisy_distractors) == (0, 2, 2)
    assert refined.probes == plain.probes - 2
    assert centred.probes == plain.probes
    assert any("centre" in line for line in centred.conventions)
    assert "made data" in plain.conventions[-1]
    assert (tmp_path / "out" / "megaface.npy").is_file()


# -- pairs -----------------------------------------------------------------------------------------


def pair_list(place: Path, path: Path) -> Path:
    lines = []
    for person in range(12):
        lines += [
            f"p{person}/0.png p{person}/1.png 1",
            f"p{person}/0.png p{(person + 1) % 12}/2.png 0",
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_sets_are_found_by_their_paths(place: Path, tmp_path: Path) -> None:
    listed = pair_list(place, tmp_path / "mine.txt")
    found = find_sets([str(listed), str(place / "crops")], root=place / "crops")
    assert [each.name for each in found] == ["mine", "crops"]
    assert [type(each) for each in found] == [VerificationSet] * 2
    assert len(found[0].pairs) == 24
    with pytest.raises(ValueError, match="two sets are called mine"):
        find_sets([str(listed), str(listed)], root=place / "crops")
    with pytest.raises(FileNotFoundError, match=r"no verification set 'lfw\.bin'"):
        find_sets(["lfw.bin"])


def test_pairs_by_a_model_and_by_saved_embeddings(
    place: Path, embedder: ModelEmbedder, tmp_path: Path
) -> None:
    listed = pair_list(place, tmp_path / "mine.txt")
    words = [str(listed), str(place / "crops")]
    sets = find_sets(words, root=place / "crops")
    scored = score_extracted(embedder, sets, folder=tmp_path / "e")
    assert scored is not None
    paths = sorted((place / "crops").glob("*/*.png"), key=lambda p: (p.parent.name, p.name))
    table = straight(embedder, [pixels(path) for path in paths])
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    row = {p.relative_to(place / "crops").as_posix(): i for i, p in enumerate(paths)}
    expected = [
        float(unit[row[left]] @ unit[row[right]])
        for left, right, _ in (line.split() for line in listed.read_text().splitlines())
    ]
    np.testing.assert_allclose(scored[0].scores, expected, atol=1e-6)
    # The same from a file whose rows are mixed, without a look at the images.
    order = np.random.default_rng(0).permutation(len(table))
    np.save(tmp_path / "x.npy", table[order])
    names = list(row)
    (tmp_path / "x.txt").write_text(
        "".join(f"{names[i]}\t{names[i].split('/')[0]}\n" for i in order)
    )
    subject = Subject(None, tmp_path / "x.npy", tmp_path / "out")
    saved = score_saved(subject, words)
    for one, other in zip(scored, saved, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
        np.testing.assert_array_equal(one.same, other.same)
        assert one.people is not None
        assert other.people is not None
        np.testing.assert_array_equal(
            one.people[:, 0] == one.people[:, 1], other.people[:, 0] == other.people[:, 1]
        )
    evaluated = evaluate_on(subject, words)
    assert evaluated is not None
    assert evaluated.result.sets == ("mine", "crops", "combined")
    assert evaluated.report.read_text().startswith("<!doctype html>")
    assert {path.name for path in subject.output.iterdir()} == {
        "evaluation.json", "report.html", "scores.npz"
    }  # fmt: skip


def test_pairs_without_an_embedding_are_named(place: Path, tmp_path: Path) -> None:
    listed = pair_list(place, tmp_path / "mine.txt")
    np.save(tmp_path / "x.npy", np.ones((2, 6), np.float32))
    subject = Subject(None, tmp_path / "x.npy", tmp_path / "out")
    with pytest.raises(ValueError, match=r"has no names, by which the pairs of .*mine\.txt"):
        score_saved(subject, [str(listed)])
    (tmp_path / "x.txt").write_text("p0/0.png\np0/1.png\n")
    with pytest.raises(ValueError, match=r"34 of 36 images of the list have no embedding \(p0/2"):
        score_saved(subject, [str(listed)])
    with pytest.raises(ValueError, match="the synthetic sets are embedded by a model"):
        score_saved(subject, ["synthetic"])


def test_a_bin_file_and_an_lfw_list_by_saved_embeddings(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = generator.normal(size=(40, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", table)
    encoded = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    same = [number % 2 == 0 for number in range(20)]
    write_bin(tmp_path / "mine.bin", [encoded] * 40, same)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    subject = Subject(None, tmp_path / "x.npy", tmp_path / "out")
    (scored,) = score_saved(subject, [str(tmp_path / "mine.bin")])
    np.testing.assert_allclose(scored.scores, np.sum(unit[::2] * unit[1::2], axis=1), atol=1e-6)
    # LFW's list names NAME i; the embeddings were of NAME/NAME_0001.jpg.
    names = [f"p{row // 2}/p{row // 2}_{row % 2 + 1:04d}.jpg" for row in range(40)]
    (tmp_path / "x.txt").write_text("\n".join(names) + "\n")
    lines = [f"p{p} 1 2" for p in range(10)] + [f"p{p} 1 p{p + 10} 2" for p in range(10)]
    (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
    (scored,) = score_saved(subject, [str(tmp_path / "pairs.txt")])
    expected = [unit[2 * p] @ unit[2 * p + 1] for p in range(10)]
    expected += [unit[2 * p] @ unit[2 * p + 21] for p in range(10)]
    np.testing.assert_allclose(scored.scores, expected, atol=1e-6)
    np.save(tmp_path / "x.npy", table[:38])
    (tmp_path / "x.txt").unlink()
    with pytest.raises(ValueError, match=r"has 38 embeddings, but .*mine\.bin has 40 images"):
        score_saved(subject, [str(tmp_path / "mine.bin")])
    np.save(tmp_path / "x.npy", table)
    (tmp_path / "x.txt").write_text("\n".join(names) + "\n")
    with pytest.raises(ValueError, match=r"names of its images, but those of .*mine\.bin have"):
        score_saved(subject, [str(tmp_path / "mine.bin")])
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"out is a folder, where one file .*\(gallery\.npy"):
        score_saved(Subject(None, tmp_path / "out", tmp_path), [str(tmp_path / "mine.bin")])
    with pytest.raises(FileNotFoundError, match=r"out has no gallery\.npy and no probe\.npy"):
        identification(Subject(None, tmp_path / "out", tmp_path), None)


# -- what is watched, left out and refused --------------------------------------------------------


class Watched:
    """What was done, in order, and how far each of it got."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.reached: dict[str, tuple[int, int]] = {}

    @contextmanager
    def __call__(self, title: str) -> Iterator[Progress]:
        if title != "checking the images":
            self.titles.append(title)
        yield lambda done, total: self.reached.update({title: (done, total)})


def test_every_part_of_the_work_is_watched(place: Path, tmp_path: Path) -> None:
    watched = Watched()
    embedder = open_embedder(place / "run", device="cpu", batch_size=7, watch=watched)
    identification(Subject(embedder, None, tmp_path / "i", watched), place / "search")
    done = "measuring identification"
    assert watched.titles == [
        "reading the lists of identification", "embedding gallery", "embedding probe", done
    ]  # fmt: skip
    assert watched.reached["embedding probe"] == watched.reached[done] == (27, 27)
    watched.titles.clear()
    generate_megaface(tmp_path / "mf", scale=0.0005, dim=16, feature_files=True)
    megaface_challenge(Subject(None, tmp_path / "mf", tmp_path / "m", watched), None)
    gathering, done = "gathering the features of", "measuring megaface"
    assert watched.titles == [
        "reading the lists of megaface", f"{gathering} facescrub", f"{gathering} megaface", done
    ]  # fmt: skip
    assert watched.reached[f"{gathering} megaface"] == watched.reached[done] == (500, 500)
    watched.titles.clear()
    ijb_c(Subject(embedder, None, tmp_path / "c", watched), place / "ijb", part=["1:1"])
    title = "embedding the images of ijb-c"
    assert [each for each in watched.titles if "aligning" not in each] == [
        "reading the lists of ijb-c", title, "measuring ijb-c"
    ]  # fmt: skip
    assert watched.reached[title][0] == watched.reached[title][1] > 0
    assert watched.reached["measuring ijb-c"][0] == watched.reached["measuring ijb-c"][1]
    watched.titles.clear()
    score_extracted(embedder, find_sets([str(place / "crops")]), folder=tmp_path / "e")
    assert watched.titles == ["embedding set crops"]


def test_people_without_an_embedding_are_left_out_of_a_search(
    place: Path, embedder: ModelEmbedder, tmp_path: Path
) -> None:
    identification(Subject(embedder, None, tmp_path), place / "search")
    tables = {kind: np.load(tmp_path / f"{kind}.npy") for kind in ("gallery", "probe")}
    tables["gallery"][3] = tables["probe"][[0, 5]] = np.nan
    for kind, table in tables.items():
        np.save(tmp_path / f"{kind}.npy", table)
    with pytest.raises(ValueError, match="are not finite"):
        identification(Subject(None, tmp_path, tmp_path), None)
    result = identification(Subject(None, tmp_path, tmp_path, missing="skip"), None)
    assert result is not None
    assert (result.missing_images, result.gallery_images) == (3, 11)
    assert result.mated + result.non_mated == 25
    assert "3 of 39 images have no embedding and are left out" in result.conventions
    np.save(tmp_path / "probe.npy", np.full_like(tables["probe"], np.nan))
    with pytest.raises(ValueError, match="none of the images has an embedding"):
        identification(Subject(None, tmp_path, tmp_path, missing="skip"), None)
    (tmp_path / "probe.txt").unlink()
    with pytest.raises(ValueError, match=r"probe\.npy: it is not known whom it shows"):
        identification(Subject(None, tmp_path, tmp_path), None)


def test_the_folder_of_probes_may_have_either_name(
    place: Path, embedder: ModelEmbedder, tmp_path: Path
) -> None:
    faces(tmp_path / "root" / "gallery", 3, 1)
    faces(tmp_path / "root" / "probes", 4, 2, seed=3)
    result = identification(Subject(embedder, None, tmp_path / "out"), tmp_path / "root")
    assert result is not None
    assert (result.mated, result.non_mated) == (6, 2)


def test_rows_are_brought_into_the_order_of_a_list(tmp_path: Path) -> None:
    table = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", table)
    subject = Subject(None, tmp_path / "x.npy", tmp_path)
    names = ["a", "b", "c", "d"]
    rows, mirror = rows_of(subject.read(tmp_path / "x.npy"), names)
    assert (rows.tolist(), mirror) == (table.tolist(), "given")
    with pytest.raises(ValueError, match="4 embeddings for the 3 images of the list and no names"):
        rows_of(subject.read(tmp_path / "x.npy"), names[:3])
    (tmp_path / "x.txt").write_text("d\nc\nb\na\n")
    saved = subject.read(tmp_path / "x.npy")
    assert rows_of(saved, names)[0].tolist() == table[::-1].tolist()
    assert rows_of(saved, names[::-1])[0] is saved.vectors
    found, _ = rows_of(saved, ["c", "nobody"], missing="skip")
    assert found[0].tolist() == table[1].tolist()
    assert np.isnan(found[1]).all()
    assert subject.absent(found).tolist() == [False, False]
    assert replace(subject, missing="skip").absent(found).tolist() == [False, True]


def test_what_is_judged_has_a_name(place: Path, embedder: ModelEmbedder, tmp_path: Path) -> None:
    assert Subject(None, tmp_path / "mine.npy", tmp_path).name == "mine"
    assert Subject(None, tmp_path / "mine" / "embeddings.npy", tmp_path).name == "mine"
    judged = Subject(embedder, None, tmp_path)
    assert (judged.name, judged.label) == (embedder.name, embedder.label)
    assert Subject(embedder, tmp_path / "mine.npy", tmp_path).label == embedder.label
    assert Subject(None, tmp_path / "mine.npy", tmp_path).label == "mine"
    assert Subject(None, tmp_path / "mine.npy", tmp_path).calibration() is None


def test_folders_and_sets_that_are_not_there_or_twice(place: Path, tmp_path: Path) -> None:
    subject = Subject(None, tmp_path / "x.npy", tmp_path)
    with pytest.raises(ValueError, match="ijb-c needs --root DIR, the folder of its lists and"):
        ijb_c(subject, None)
    with pytest.raises(FileNotFoundError, match=r"--root: there is no folder .*nowhere"):
        ijb_c(subject, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="two sets are called crops; rename one, or evaluate them"):
        find_sets([str(place / "crops")] * 2)
    with pytest.raises(ValueError, match="--noisy-probes is for --protocol megaface --refined"):
        megaface_challenge(subject, place / "crops", noisy_probes="centre")
    assert not is_made(None)
    assert not is_made(tmp_path)
    for name in ("made.json", "truth.json"):
        (tmp_path / name).touch()
        assert is_made(tmp_path)
        (tmp_path / name).unlink()
