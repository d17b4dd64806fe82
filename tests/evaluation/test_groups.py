"""Error rates by group against naive loops, from RFW's layout and from any list with a csv."""

import os
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.evaluation.pair_scores import score_pairs
from sphereface2.evaluation.protocols.groups import (
    Groups,
    GroupsResult,
    _groups_of_csv,
    measure_groups,
)
from sphereface2.evaluation.protocols.protocol import measure_protocol
from sphereface2.evaluation.scoring import Subject, score_saved
from sphereface2.models.embedder import MissingImageError
from sphereface2.models.extraction import open_embedder
from sphereface2.reporting.pages.protocols import protocol_page
from tests.evaluation.test_protocols import save

GROUPS = ("Asian", "Indian")
PEOPLE = 10


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RFW with two groups of ten people: five folds of two genuine and two impostor pairs."""
    root = tmp_path_factory.mktemp("rfw")
    source = SyntheticFaces(people=2 * PEOPLE, images_per_person=3, image_size=32)
    for number in range(len(source)):
        image, person = source[number]
        name = f"m.0{person}"
        path = root / "data" / GROUPS[person // PEOPLE] / name / f"{name}_{number % 3 + 1:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image[:, :, ::-1])
    for group, first in zip(GROUPS, (0, PEOPLE), strict=True):
        lines = ["5\t2"]
        for fold in range(5):
            one, two = (f"m.0{first + 2 * fold + place}" for place in (0, 1))
            lines += [f"{one}\t1\t2", f"{two}\t2\t3", f"{one}\t1\t{two}\t1", f"{one}\t3\t{two}\t2"]
        path = root / "txts" / group / f"{group}_pairs.txt"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(open_embedder(save(tmp_path / "model"), device="cpu"), None, tmp_path / "out")


def naive(
    scores: npt.NDArray[np.float64], same: npt.NDArray[np.bool_], fmr: float
) -> tuple[float, npt.NDArray[np.bool_]]:
    """The threshold: the lowest genuine score that keeps to the FMR; and who is accepted."""
    impostors = scores[~same]
    fine = [s for s in scores[same] if np.mean(impostors >= s) <= fmr]
    threshold = min(fine) if fine else np.inf
    return float(threshold), scores >= threshold


@pytest.mark.usefixtures("drawn_figures")
def test_rates_by_group_are_those_of_a_naive_loop(
    root: Path, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    result = measure_protocol(Groups(fmr=0.2), subject, Path(root.name))  # a relative path
    assert result is not None
    names = (subject.output / "embeddings.txt").read_text().splitlines()
    vectors = np.load(subject.output / "embeddings.npy").astype(np.float64)
    vector_of = dict(
        zip(names, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True)
    )
    scores, same, group_of = [], [], []
    for group in GROUPS:
        for line in (root / "txts" / group / f"{group}_pairs.txt").read_text().splitlines()[1:]:
            fields = line.split("\t")
            left, right = (
                (fields[0], fields[1]),
                (fields[-2] if len(fields) > 3 else fields[0], fields[-1]),
            )
            one, two = (vector_of[f"{group}/{who}/{who}_{int(n):04d}"] for who, n in (left, right))
            scores.append(float(one @ two))
            same.append(len(fields) == 3)
            group_of.append(group)
    values, kinds, where = np.array(scores), np.array(same), np.array(group_of)
    threshold, accepted = naive(values, kinds, 0.2)
    at = result.overall.at
    assert at is not None
    assert at.threshold == pytest.approx(threshold, abs=1e-6)
    assert at.reached == np.mean(accepted[~kinds]) <= 0.2
    assert result.overall.name == "FNMR@FMR=0.2"
    assert result.overall.rate.value == pytest.approx(np.mean(~accepted[kinds]))
    assert [each.group for each in result.groups] == list(GROUPS)
    errors = {}
    for each in result.groups:
        here = where == each.group
        assert (each.genuine, each.impostors) == (10, 10)
        assert each.fnmr is not None
        assert each.fmr is not None
        assert each.fnmr.value == pytest.approx(np.mean(~accepted[here & kinds]))
        assert each.fmr.rate.value == pytest.approx(np.mean(accepted[here & ~kinds]))
        assert "people" in each.fnmr.interval.method
        assert each.fnmr.interval.low <= each.fnmr.value <= each.fnmr.interval.high
        assert each.accuracy is not None
        assert each.accuracy[0] == pytest.approx(naive_accuracy(values[here], kinds[here]))
        errors[each.group] = each.fnmr.value
    spread = result.spreads[0]
    assert (spread.rate, spread.highest) == ("FNMR", max(errors, key=lambda name: errors[name]))
    low, high = sorted(errors.values())
    assert low > 0
    assert spread.ratio == pytest.approx(high / low)
    assert spread.to_geometric_mean == pytest.approx(high / np.sqrt(low * high))
    assert spread.difference == pytest.approx(high - low)
    assert GroupsResult.from_json(result.to_json()) == result
    page = protocol_page(result, title="x", label="y").render()
    assert page.count("<svg") == 4
    assert "spread between groups" in page


def naive_accuracy(scores: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> float:
    """Five folds of four pairs: the best threshold of the others, the lowest of equal ones."""
    found = []
    for fold in range(5):
        own = np.arange(scores.size) // 4 == fold
        others, kinds = scores[~own], same[~own]
        falling = np.sort(others)
        candidates = [falling[0], *((falling[1:] + falling[:-1]) / 2), np.inf]
        best = max(candidates, key=lambda t: (np.mean((others >= t) == kinds), -t))
        found.append(np.mean((scores[own] >= best) == same[own]))
    return float(np.mean(found))


def test_saved_embeddings_find_images_with_and_without_endings(
    root: Path, subject: Subject, tmp_path: Path
) -> None:
    first = measure_protocol(Groups(fmr=0.2), subject, root)
    assert first is not None
    names = (subject.output / "embeddings.txt").read_text().splitlines()
    assert names[0] == "Asian/m.00/m.00_0001"
    order = np.random.default_rng(0).permutation(len(names))
    np.save(tmp_path / "x.npy", np.load(subject.output / "embeddings.npy")[order])
    (tmp_path / "x.txt").write_text("".join(f"{names[number]}.jpg\n" for number in order))
    saved = measure_protocol(Groups(fmr=0.2), Subject(None, tmp_path / "x.npy", tmp_path), root)
    assert saved is not None
    assert (saved.groups, saved.overall) == (first.groups, first.overall)
    # One group's list by itself: a dot in a name is not an ending.
    (tmp_path / "x.txt").write_text((tmp_path / "x.txt").read_text().replace("Asian/", ""))
    one = Subject(None, tmp_path / "x.npy", tmp_path)
    (scored,) = score_saved(one, [str(root / "txts" / "Asian" / "Asian_pairs.txt")])
    assert len(scored.scores) == 20


def test_any_list_with_a_csv_and_pairs_across_groups(
    root: Path, subject: Subject, tmp_path: Path
) -> None:
    lines: list[str] = []
    groups: dict[str, str] = {}
    for group, first in zip(GROUPS, (0, PEOPLE), strict=True):
        for person in range(first, first + PEOPLE):
            name = f"{group}/m.0{person}/m.0{person}"
            other = f"{group}/m.0{first + (person + 1) % PEOPLE}/m.0{first + (person + 1) % PEOPLE}"
            lines += [f"{name}_0001.jpg {name}_0002.jpg 1", f"{name}_0001.jpg {other}_0003.jpg 0"]
            groups |= {f"{name}_000{shot}.jpg": group for shot in (1, 2, 3)}
    lines += [f"Asian/m.0{n}/m.0{n}_0002.jpg Indian/m.01{n}/m.01{n}_0002.jpg 0" for n in range(6)]
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    table = tmp_path / "groups.csv"
    table.write_text("".join(f"{name},{group}\n" for name, group in groups.items()))
    asked = Groups(fmr=0.1, pairs=tmp_path / "mine.txt", groups=table)
    result = measure_protocol(asked, subject, root / "data")
    assert result is not None
    assert [each.group for each in result.groups] == [*GROUPS, "across groups"]
    across = result.groups[-1]
    assert (across.genuine, across.impostors, across.fnmr, across.accuracy) == (0, 6, None, None)
    assert across.fmr is not None
    assert not across.fmr.resolved  # one of six is more than the target
    assert result.impostors == 2 * PEOPLE + 6
    # An image that is not there costs its pairs only.
    (root / "data" / "Asian" / "m.00" / "m.00_0001.jpg").rename(tmp_path / "kept.jpg")
    try:
        with pytest.raises(
            MissingImageError, match=r"1 of the 60 images .* Asian/m\.00/m\.00_0001"
        ):
            measure_protocol(
                asked, Subject(subject.embedder, None, tmp_path / "new"), root / "data"
            )
    finally:
        (tmp_path / "kept.jpg").rename(root / "data" / "Asian" / "m.00" / "m.00_0001.jpg")
    gone = np.load(subject.output / "embeddings.npy")
    gone[0] = np.nan
    np.save(tmp_path / "x.npy", gone)
    (tmp_path / "x.txt").write_text((subject.output / "embeddings.txt").read_text())
    less = measure_protocol(
        asked, Subject(None, tmp_path / "x.npy", tmp_path, missing="skip"), root / "data"
    )
    assert less is not None
    assert (less.missing_images, less.genuine, less.impostors) == (1, 19, 25)
    # A group too many, one too few.
    name = "Asian/m.00/m.00_0002.jpg"
    table.write_text(table.read_text().replace(f"{name},Asian", f"{name},Indian"))
    with pytest.raises(ValueError, match=r"1 genuine pairs have images of two groups \(pair 1\)"):
        measure_protocol(asked, subject, root / "data")
    table.write_text(table.read_text().replace(f"{name},Indian\n", ""))
    with pytest.raises(ValueError, match=r"1 of 60 images of the list have no group \(Asian/m.00"):
        measure_protocol(asked, subject, root / "data")
    table.write_text("a,b,c\n")
    with pytest.raises(ValueError, match="expected image,group in each line, not so in 1"):
        measure_protocol(asked, subject, root / "data")


def test_targets_below_one_pair_are_not_resolved_and_no_errors_give_no_ratio() -> None:
    generator = np.random.default_rng(0)
    people = np.repeat(np.arange(20), 2)
    vectors = np.eye(20)[people] + 0.05 * generator.normal(size=(40, 20))
    pairs = np.array(
        [(2 * n, 2 * n + 1) for n in range(20)] + [(2 * n, (2 * n + 2) % 40) for n in range(20)]
    )
    same = np.arange(40) < 20
    group = np.where(np.arange(40) % 20 < 10, "a", "b")
    scored = score_pairs(
        "x", vectors, pairs, same, np.arange(40) % 20 // 10, people=people,
        attributes={"group": group},
    )  # fmt: skip
    strict = measure_groups(scored, fmr=1e-3)
    assert not strict.overall.resolved
    assert strict.spreads == ()
    page = protocol_page(strict, title="x", label="y").render()
    assert page.count("not resolved") >= 5
    assert "Groups</h2>" not in page
    fine = measure_groups(scored, fmr=0.1)
    assert [(each.ratio, each.difference) for each in fine.spreads] == [(None, 0.0)] * 2
    assert "people drawn with replacement" in fine.conventions[-1]


def test_a_report_says_what_its_intervals_are_over_where_people_are_not_known() -> None:
    vectors = np.random.default_rng(0).normal(size=(8, 4))
    pairs = np.array([(n, (n + 1) % 8) for n in range(8)])
    scored = score_pairs(
        "x", vectors, pairs, np.arange(8) < 4, np.arange(8) % 2,
        attributes={"group": np.array(["a", "b"] * 4)},
    )  # fmt: skip
    result = measure_groups(scored, fmr=0.5)
    assert {each.fnmr.interval.method for each in result.groups if each.fnmr} == {"wilson"}
    assert result.conventions[-1].startswith("intervals of groups: Wilson's, over pairs")
    assert "over people" not in protocol_page(result, title="x", label="y").render()


def test_what_cannot_be_meant_is_refused(root: Path, subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--fmr must lie between 0 and 1, got 1"):
        Groups(fmr=1)
    with pytest.raises(ValueError, match="--pairs LIST and --groups CSV go together"):
        Groups(pairs=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no txts/GROUP/GROUP_pairs\.txt; give RFW's"):
        measure_protocol(Groups(), subject, root / "data")
    with pytest.raises(ValueError, match=r"--pairs: .* is not a list of pairs"):
        measure_protocol(Groups(pairs=tmp_path, groups=tmp_path / "x.csv"), subject, root)


def test_groups_of_images_by_name_with_and_without_its_ending(tmp_path: Path) -> None:
    table = tmp_path / "groups.csv"
    table.write_text("\ufeffa/1.jpg, old\n\nb/2.png,young\n", encoding="utf-8")
    assert _groups_of_csv(table, ["b/2.png", "a/1.jpg"]).tolist() == ["young", "old"]
    assert _groups_of_csv(table, ["a/1", "b/2", "b/2"]).tolist() == ["old", "young", "young"]
    with pytest.raises(ValueError, match=r"2 of 3 images of the list have no group \(c, d\)"):
        _groups_of_csv(table, ["a/1", "c", "d"])
    table.write_text("a,b\na,b,c\na,\nx,y\n")
    with pytest.raises(ValueError, match=r"expected image,group in each line, not so in 2, 3$"):
        _groups_of_csv(table, [])
    with pytest.raises(FileNotFoundError, match="--groups: there is no file"):
        _groups_of_csv(tmp_path / "none.csv", [])


def test_a_group_table_with_an_open_quotation_mark_is_refused_by_its_name(tmp_path: Path) -> None:
    table = tmp_path / "groups.csv"
    table.write_text('a.jpg,old\nb.jpg,"young\n' + "c.jpg,old\n" * 20_000)
    with pytest.raises(ValueError, match=r"groups\.csv: field larger .*; is a quotation mark not"):
        _groups_of_csv(table, ["a.jpg"])


def test_a_group_table_may_name_images_in_other_bytes_than_utf_8(tmp_path: Path) -> None:
    table = tmp_path / "groups.csv"
    table.write_bytes(b"Zo\xeb.jpg,\xe4lter\n")
    assert _groups_of_csv(table, [os.fsdecode(b"Zo\xeb.jpg")]).tolist() == ["\\xe4lter"]
