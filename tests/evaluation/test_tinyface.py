"""TinyFace against a naive loop, from a folder and from saved embeddings."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.evaluation.protocols.protocol import measure_protocol
from sphereface2.evaluation.protocols.tinyface import LISTS, TinyFace, TinyFaceResult
from sphereface2.evaluation.scoring import Subject
from sphereface2.evaluation.uncertainty import mean_rate, rate_of
from sphereface2.models.extraction import open_embedder
from sphereface2.reporting.pages.protocols import protocol_page
from tests.evaluation.test_protocols import save

Vectors = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six people with two gallery images and two probes each; eight strangers."""
    people = SyntheticFaces(people=14, images_per_person=4, image_size=32)
    root = tmp_path_factory.mktemp("tinyface")
    for number in range(len(people)):
        image, person = people[number]
        if person < 6:
            folder = "Gallery_Match" if number % 4 < 2 else "Probe"
            path = root / "Testing_Set" / folder / f"{person + 1}_{number % 4}.png"
        else:
            path = root / "Testing_Set" / "Gallery_Distractor" / f"{person}x" / f"a_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image[:, :, ::-1])
    return root


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(open_embedder(save(tmp_path / "model"), device="cpu"), None, tmp_path / "out")


def naive(folder: Path) -> tuple[list[int], list[float]]:
    """Rank and average precision of each probe, by walking down its sorted gallery."""
    table: dict[str, tuple[list[str], Vectors]] = {}
    for name in LISTS:
        names = (folder / f"{name}.txt").read_text().splitlines()
        vectors = np.load(folder / f"{name}.npy").astype(np.float64)
        table[name] = names, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gallery = [
        (name.split("_")[0] if kind == "Gallery_Match" else "nobody", vector)
        for kind in ("Gallery_Match", "Gallery_Distractor")
        for name, vector in zip(*table[kind], strict=True)
    ]
    ranks, precisions = [], []
    for name, probe in zip(*table["Probe"], strict=True):
        person = name.split("_")[0]
        # The right person's image comes last among equal scores.
        order = sorted(gallery, key=lambda each: (-float(each[1] @ probe), each[0] == person))
        good = sum(who == person for who, _ in order)
        found, area, recall, precision, first = 0, 0.0, 0.0, 1.0, 0
        for place, (who, _) in enumerate(order, start=1):
            if who == person:
                found += 1
                first = first or place
            area += (found / good - recall) * (precision + found / place) / 2
            recall, precision = found / good, found / place
        ranks.append(first)
        precisions.append(area)
    return ranks, precisions


def test_ranks_and_precision_are_those_of_a_naive_loop(root: Path, subject: Subject) -> None:
    result = measure_protocol(TinyFace(), subject, root)
    assert result is not None
    ranks, precisions = naive(subject.output)
    assert (result.probes, result.people, result.gallery, result.distractors) == (12, 6, 12, 32)
    assert len(set(ranks)) > 2
    for measure, k in zip(result.ranks, (1, 5, 10, 20, 50), strict=True):
        assert measure.name == f"rank {k}"
        assert measure.rate.successes == sum(rank <= k for rank in ranks)
        assert "people" in measure.rate.interval.method
    assert result.mean_precision.rate.value == pytest.approx(np.mean(precisions))
    ends = result.mean_precision.rate.interval
    assert ends.low < result.mean_precision.rate.value < ends.high
    expected = [np.mean([rank <= k for rank in ranks]) for k in range(1, 45)]
    assert result.cmc == pytest.approx(expected)
    assert TinyFaceResult.from_json(result.to_json()) == result


def test_a_mean_precision_of_one_is_not_certain() -> None:
    everything = np.ones(4)
    people = np.array(["a", "b", "c", "d"])
    perfect, hits = mean_rate([(everything, people)]), rate_of(everything > 0, people)
    assert perfect == hits
    assert perfect.interval.low < 0.6


def test_ties_stand_before_and_precision_counts_every_image(tmp_path: Path) -> None:
    """By falling score: a stranger and an own image tied, another person, the second own image."""
    scores = {"Gallery_Match": [0.8, 0.6, 0.7], "Gallery_Distractor": [0.8]}
    names = {"Gallery_Match": ["1_0", "1_1", "2_0"], "Gallery_Distractor": ["x"], "Probe": ["1_9"]}
    for name in LISTS:
        cosines = np.array(scores.get(name, [1.0]))
        np.save(tmp_path / name, np.stack([cosines, np.sqrt(1 - cosines**2)], 1).astype("f4"))
        (tmp_path / f"{name}.txt").write_text("".join(f"{each}.jpg\n" for each in names[name]))
    result = measure_protocol(TinyFace(), Subject(None, tmp_path, tmp_path), None)
    assert result is not None
    assert result.cmc == (0.0, 1.0, 1.0, 1.0)
    # Own images at ranks 2 and 4: (0 + 1/2) / 2 and (1/3 + 2/4) / 2, each for half of the recall.
    assert result.mean_precision.rate.value == pytest.approx((1 / 4 + 5 / 12) / 2)


@pytest.mark.usefixtures("drawn_figures")
def test_saved_embeddings_and_the_page(root: Path, subject: Subject, tmp_path: Path) -> None:
    first = measure_protocol(TinyFace(), subject, root)
    assert first is not None
    folder = measure_protocol(TinyFace(), Subject(None, subject.output, tmp_path), None)
    whole = tmp_path / "whole.npy"
    np.save(whole, np.concatenate([np.load(subject.output / f"{name}.npy") for name in LISTS]))
    lines = [
        f"{name}/{line}\n"
        for name in LISTS
        for line in (subject.output / f"{name}.txt").read_text().splitlines()
    ]
    whole.with_suffix(".txt").write_text("".join(lines))
    one_file = measure_protocol(TinyFace(), Subject(None, whole, tmp_path), None)
    for saved in (folder, one_file):
        assert saved is not None
        assert replace(saved, conventions=first.conventions) == first
    page = protocol_page(first, title="x", label="y").render()
    assert page.count("<svg") == 1
    assert "12 probes of 6 people, 12 images of them in the gallery, 32 distractors" in page
    whole.with_suffix(".txt").write_text("".join(lines[:-1]) + "elsewhere/1.png\n")
    np.save(subject.output / "Probe.npy", np.load(subject.output / "Probe.npy")[:, :5])
    (subject.output / "Probe.json").unlink()
    with pytest.raises(ValueError, match="6 dimensions and probes 5; both must come from one"):
        measure_protocol(TinyFace(), Subject(None, subject.output, tmp_path), None)


def test_probes_of_nobody_are_not_found(root: Path, subject: Subject) -> None:
    measure_protocol(TinyFace(), subject, root)
    saved = Subject(None, subject.output, subject.output)
    path = subject.output / "Probe.txt"
    names = path.read_text()
    path.write_text(names.replace("1_2.png", "77_2.png", 1))
    result = measure_protocol(TinyFace(), saved, None)
    assert result is not None
    assert result.cmc[-1] == pytest.approx(11 / 12)
    assert "1 probes of nobody in the gallery count as not found" in result.conventions
    path.write_text("".join(f"9{line}\n" for line in names.splitlines()))
    with pytest.raises(ValueError, match="none of the 12 probes shows a person of Gallery_Match"):
        measure_protocol(TinyFace(), saved, None)
    path.write_text("".join(f"p{line}\n" for line in names.splitlines()))
    with pytest.raises(ValueError, match=r"12 of 12 names are not ID_n\.jpg \(p1_2\.png"):
        measure_protocol(TinyFace(), saved, None)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, subject: Subject) -> None:
    (tmp_path / "Probe").mkdir()
    with pytest.raises(
        FileNotFoundError, match="has no folder Gallery_Match and no Gallery_Distractor; give"
    ):
        measure_protocol(TinyFace(), subject, tmp_path)
    for name in LISTS:
        (tmp_path / name).mkdir(exist_ok=True)
    with pytest.raises(ValueError, match="Gallery_Match holds no images"):
        measure_protocol(TinyFace(), subject, tmp_path)
