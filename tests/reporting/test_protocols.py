"""The page, the tables and the figures of a protocol's result: all numbers, nothing made up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.generate.ijb import IJBC, generate_ijb
from benchmarks.generate.megaface import generate_megaface
from sphereface2.evaluation.protocols.identification import IdentificationResult, identify
from sphereface2.evaluation.protocols.ijb import IjbResult, evaluate_ijb
from sphereface2.evaluation.protocols.ijb_files import read_ijb
from sphereface2.evaluation.protocols.megaface import MegaFaceResult, megaface, read_megaface
from sphereface2.evaluation.protocols.protocol import Compared
from sphereface2.evaluation.thresholds import Measure
from sphereface2.evaluation.uncertainty import wilson
from sphereface2.experiments.paper.protocols import published_beside
from sphereface2.experiments.paper.published import IJB_C, MEGAFACE
from sphereface2.reporting.pages.protocols import (
    compared_figure,
    measures_content,
    protocol_page,
    rate_figure,
    roc_figures,
    table_content,
)
from sphereface2.reporting.style import to_svg
from tests.evaluation.test_megaface import features


@pytest.fixture(scope="module")
def ijb(tmp_path_factory: pytest.TempPathFactory) -> IjbResult:
    root = tmp_path_factory.mktemp("ijb")
    generate_ijb(root, sizes=IJBC, scale=0.005, dim=32)
    return evaluate_ijb(read_ijb(root), np.load(root / "embeddings.npy"))


@pytest.fixture(scope="module")
def mega(tmp_path_factory: pytest.TempPathFactory) -> MegaFaceResult:
    root = tmp_path_factory.mktemp("mega")
    generate_megaface(root, scale=0.0005, dim=32)
    listed = read_megaface(root, size=500)
    probes, distractors, _ = features(root, listed)
    return megaface(probes, listed.people, distractors, sizes=(10, 100, 500))


@pytest.fixture(scope="module")
def search() -> IdentificationResult:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(14, 8))
    gallery, probes = np.repeat(np.arange(10), 2), np.repeat(np.arange(14), 3)
    return identify(
        centres[gallery] + 0.3 * generator.normal(size=(20, 8)),
        gallery,
        centres[probes] + 0.6 * generator.normal(size=(42, 8)),
        probes,
        thresholds=(0.5,),
    )


def texts(measure: Measure) -> list[str]:
    ends = measure.rate.interval
    return [f"{100 * value:.2f}" for value in (measure.rate.value, ends.low, ends.high)]


def _at_once(ijb: IjbResult) -> Measure:
    """TAR at 1e-3 as if there were impostor pairs enough."""
    assert ijb.verification is not None
    (found,) = (m for m in ijb.verification.tar_at_far if m.name == "TAR@FAR=0.001")
    assert found.at is not None
    return replace(found, at=replace(found.at, resolved=True))


def test_a_table_holds_every_number_and_its_evidence(
    ijb: IjbResult, mega: MegaFaceResult, search: IdentificationResult
) -> None:
    parts = [each.view().parts for each in (ijb, mega, search)]
    assert [part.title for part in parts[0]] == [
        "ijb-c 1:1", "ijb-c 1:N standard", "ijb-c 1:N legacy"
    ]  # fmt: skip
    assert [len(each) for each in parts[1:]] == [1, 1]
    for part in (part for each in parts for part in each):
        content = measures_content(part.title, part.measures)
        assert [row[0].text for row in content.rows] == [m.name for m in part.measures]
        for row, measure in zip(content.rows, part.measures, strict=True):
            shown = row[1].text + row[1].detail
            assert row[2].text == f"{measure.rate.trials:,}"
            if not measure.resolved:
                assert shown == "not resolved"
                continue
            assert all(text in shown for text in texts(measure))
            if measure.at is not None:
                assert row[3].text == f"{measure.at.reached:.3g}"
                assert row[3].detail == f"of {measure.at.impostors:,}"


@pytest.mark.usefixtures("blank_figures")
def test_unresolved_targets_have_no_number_anywhere(ijb: IjbResult) -> None:
    assert ijb.verification is not None
    strict = ijb.verification.tar_at_far[0]
    assert not strict.resolved
    page = protocol_page(ijb, title="x", label="cosface").render()
    assert page.count("not resolved") >= 2
    content = measures_content("1:1", ijb.verification.measures)
    assert content.rows[0][4].text == ""
    assert "the target is below one of so many impostor trials" in content.note


def test_galleries_stand_apart(ijb: IjbResult) -> None:
    assert ijb.standard is not None
    (table,) = ijb.standard.view().parts[0].tables
    content = table_content(table)
    assert [row[0].text for row in content.rows] == ["G1", "G2"]
    for row, gallery in zip(content.rows, ijb.standard.galleries, strict=True):
        assert row[2].text == f"{gallery.mated:,}"
        assert row[4].text == f"{100 * gallery.ranks[0].rate.value:.2f}"


def test_the_paper_stands_beside_ours(ijb: IjbResult, mega: MegaFaceResult) -> None:
    first, *_ = published_beside("ijb-c", ijb)
    assert first.columns == ("method", *IJB_C.columns)
    names = [row[0].text for row in first.rows]
    assert names[:2] == ["ours, 1:N standard", "ours, 1:N legacy"]
    assert names[2:] == [method for method, _ in IJB_C.rows]
    assert first.rows[-1][1].text == "89.04"
    assert ijb.verification is not None
    assert ijb.standard is not None
    assert ijb.legacy is not None
    assert first.rows[0][3].text == "not resolved"  # TAR at 1e-3, of 391 impostor pairs
    enough = replace(ijb, verification=replace(ijb.verification, tar_at_far=(_at_once(ijb),)))
    shown = published_beside("ijb-c", enough)[0].rows[0][3].text
    assert shown == texts(_at_once(ijb))[0]
    assert first.rows[0][4].text == texts(ijb.standard.ranks[0])[0]
    assert first.rows[1][4].text == texts(ijb.legacy.ranks[0])[0]
    assert first.rows[1][6].text == texts(ijb.legacy.tpir[1])[0]
    only = replace(ijb, standard=None, legacy=None)
    assert published_beside("ijb-c", only)[0].rows[0][4].text == "–"
    (table,) = published_beside("megaface", mega)
    assert table.columns == ("method", *MEGAFACE.columns)
    assert table.rows[0][1].text == texts(mega.rank_1[-1])[0]
    assert table.rows[0][2].text == "–"  # these probes are not refined


def test_the_page_shows_all_and_loads_nothing(
    ijb: IjbResult, mega: MegaFaceResult, search: IdentificationResult, tmp_path: Path
) -> None:
    figures = {"ijb-c": 5, "megaface": 4, "identification": 1}
    for result in (ijb, mega, search):
        page = protocol_page(result, title="<b>a run</b>", label="cosface").render()
        assert "&lt;b&gt;a run&lt;/b&gt;" in page
        assert page.count("<svg") == figures[result.protocol]
        for convention in result.conventions:
            assert convention.replace(">", "&gt;") in page.replace("&#39;", "'")
        assert "http" not in page.replace("http-equiv", "")
        assert all(f'id="{name}"' in page for name in ("numbers", "conventions"))
    protocol_page(search, title="x", label="y").write(tmp_path / "deep" / "page.html")
    assert (tmp_path / "deep" / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("blank_figures")
def test_a_page_has_the_paper_beside_it_where_asked_for(ijb: IjbResult) -> None:
    assert "Beside the paper" not in protocol_page(ijb, title="x", label="y").render()
    beside = protocol_page(
        ijb, title="x", label="y", published=published_beside("ijb-c", ijb)
    ).render()
    assert "Beside the paper" in beside
    assert "its 1:N is presumably the legacy one" in beside


def test_curves_carry_the_intervals_of_the_table(ijb: IjbResult) -> None:
    part, found = ijb.verification, ijb.standard
    assert part is not None
    assert found is not None
    resolved = [m for m in part.tar_at_far if m.resolved]
    (_, roc), (_, det) = roc_figures(part.view().parts[0], "#000000")
    axes = roc.axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[0] == pytest.approx(1 / part.impostors)
    (bars,) = (c for c in axes.containers)
    drawn = np.asarray(bars[0].get_ydata(), dtype=np.float64)
    np.testing.assert_allclose(drawn, [100 * m.rate.value for m in resolved])
    ends = np.array([segment[:, 1] for segment in bars[2][0].get_segments()])
    expected = [[100 * m.rate.interval.low, 100 * m.rate.interval.high] for m in resolved]
    np.testing.assert_allclose(ends, expected)
    assert (det.axes[0].get_xscale(), det.axes[0].get_yscale()) == ("log", "log")
    cmc = rate_figure(found.view().parts[0].curves[0], colour="#000000").axes[0]
    drawn = np.asarray(cmc.lines[0].get_ydata(), dtype=np.float64)
    np.testing.assert_allclose(drawn, 100 * np.array(found.cmc))


def test_names_of_groups_do_not_start_mathematics() -> None:
    names = ("$\\frac{ $", "$a$ to $b$")
    compared = Compared("TAR", [(name, wilson(90, 100)) for name in names])
    svg = to_svg(compared_figure(compared, colour="#000000"), name="x", description="")
    assert all(name in svg for name in names)


def test_a_curve_without_a_false_accept_is_drawn(ijb: IjbResult) -> None:
    part = ijb.verification
    assert part is not None
    for tar in ((0.5, 1.0), (0.3, 0.4), ()):
        perfect = replace(part.roc, far=(0.0,) * len(tar), tar=tar, threshold=(0.9,) * len(tar))
        one = replace(ijb, verification=replace(part, roc=perfect), standard=None, legacy=None)
        page = protocol_page(one, title="x", label="y").render()
        assert page.count("<svg") == 3
