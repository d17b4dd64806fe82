"""The rows of the paper's tables: what each trains, and the paper's number beside it."""

from collections.abc import Mapping

import pytest

from sphereface2.experiments.paper import published, settings
from sphereface2.experiments.paper.catalogue import BOTH, EXPERIMENTS
from sphereface2.experiments.paper.reproduce import Reproduction
from sphereface2.experiments.paper.settings import SMALL, Ground
from sphereface2.experiments.sweep.plan import PlannedRun, Setting, Sweep, plan_sweep
from sphereface2.reporting.tables import PublishedTable

PAPER = settings.paper_ground(settings.SMALLER)
TRAINED = [name for name, each in EXPERIMENTS.items() if each.rows is not None]


def rows_of(name: str, ground: Ground = SMALL) -> tuple[Setting, ...]:
    rows = EXPERIMENTS[name].rows
    assert rows is not None
    return rows(ground)


def planned(name: str) -> dict[str, PlannedRun]:
    sweep = Sweep(name, "", "small", rows_of(name), (0,))
    return {run.setting.label: run for run in plan_sweep(sweep)}


@pytest.mark.parametrize("name", TRAINED)
def test_every_row_is_a_config_that_can_be_trained(name: str) -> None:
    assert len(planned(name)) == len(rows_of(name)) > 1


@pytest.mark.parametrize("name", TRAINED)
def test_both_scales_have_the_same_rows(name: str) -> None:
    labels = [each.label for each in rows_of(name)]
    assert [each.label for each in rows_of(name, PAPER)] == labels


def test_the_papers_scale_has_its_own_settings() -> None:
    assert settings.paper_ground("vggface2-sfnet20").radius == 30
    assert settings.paper_ground("vggface2-sfnet64").radius == 40
    assert PAPER.baseline("arcface")[-1] == "head.margin=0.5"
    assert SMALL.baseline("arcface")[-1] == "head.margin=0.2"
    # The positive weighs λ, all negatives together (1-λ)(K-1): in proportion as at small scale.
    for ours, theirs in (
        (SMALL.balance_pn, PAPER.balance_pn),
        (SMALL.balance_eh, PAPER.balance_eh),
    ):
        assert (1 - theirs) * 8630 == pytest.approx((1 - ours) * 199, rel=1e-2)


@pytest.mark.parametrize(
    ("name", "table", "elsewhere"),
    [
        ("principles", published.PRINCIPLES, {}),
        ("balance", published.BALANCE, {}),
        ("sharpness", published.SHARPNESS, {}),
        (
            "hyperparameters",
            published.PARAMETERS,
            # The centre is in the paper three times, here once.
            {"λ=0.7, r=30, m=0.4, t=3 (rows of r)", "λ=0.7, r=30, m=0.4, t=3 (rows of t)"},
        ),
        ("losses", published.LOSSES, {}),
    ],
)
def test_no_row_of_the_paper_is_left_out(
    name: str, table: PublishedTable, elsewhere: set[str]
) -> None:
    ours = [tuple(each.published.values()) for each in rows_of(name) if each.published]
    theirs = [numbers for label, numbers in table.rows if label not in elsewhere]
    assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize(
    "name", [name for name, each in EXPERIMENTS.items() if each.table is not None]
)
def test_rows_on_protocols_name_rows_of_the_paper(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.table is not None
    labels = {each.label for each in rows_of(name)}
    assert set(experiment.row_names) == labels
    assert set(experiment.row_names.values()) <= set(dict(experiment.table.rows))


def test_the_rungs_are_those_of_the_paper() -> None:
    rungs = {label: run.config.head.options for label, run in planned("principles").items()}

    def chosen(label: str) -> tuple[object, ...]:
        options: Mapping[str, object] = rungs[label]
        names = ("balance", "radius", "margin", "sharpness", "bias")
        return tuple(options[name] for name in names)

    assert chosen("naive, without λ") == (None, 1, 0, 1, "none")  # Eq. 1
    assert chosen("none") == ("class-fraction", 1, 0, 1, "none")  # λ = (K-1)/K
    assert chosen("PN") == (0.993, 1, 0, 1, "none")
    assert chosen("PN, EH") == (0.98, 30, 0, 1, "none")  # Eq. 2
    assert chosen("PN, EH, AM") == (0.8, 30, 0.4, 1, "shared")  # Eq. 4
    assert chosen("PN, EH, AM, SA") == (0.7, 30, 0.4, 3, "shared")  # Eq. 5


def test_wrong_labels_come_in_the_papers_shares() -> None:
    runs = planned("label-noise")
    for method in ("cosface", "arcface", "sphereface2-c"):
        assert runs[f"{method}, 0 %"].config.label_noise is None
        for percent in (20, 40, 60, 80):
            config = runs[f"{method}, {percent} %"].config
            assert config.head.name == method
            assert config.label_noise is not None
            assert config.label_noise.rate == percent / 100


def test_settings_of_several_tables_are_one_run() -> None:
    names = [{run.name for run in planned(name).values()} for name in ("losses", "label-noise")]
    assert len(names[0] & names[1]) == 3
    full = planned("principles")["PN, EH, AM, SA"].name
    for name, label in (
        ("sharpness", "λ=0.7, t=3"),
        ("hyperparameters", "r=30, m=0.4, t=3"),
        ("losses", "sphereface2-c"),
        ("fig-scores", "t=3"),
        ("ijb-b", "sphereface2-c"),
    ):
        assert planned(name)[label].name == full


def test_the_large_network_has_the_papers_radius() -> None:
    large = settings.paper_ground(settings.LARGE)
    (binary,) = [each for each in settings.benchmark_losses(large) if "2" in each.label]
    assert "head.radius=40" in binary.overrides


def test_sphereface2_is_as_strong_as_in_the_authors_code_at_the_papers_scale_only() -> None:
    by_scale = {}
    for scale in BOTH:
        sweep = Reproduction(scale=scale).plan("losses")
        assert sweep is not None
        by_scale[scale] = {
            row.label: "head.loss_weight=10" in row.overrides for row in sweep.settings
        }
    assert not any(by_scale["small"].values())
    assert {label for label, is_set in by_scale["paper"].items() if is_set} == {
        "sphereface2-c", "sphereface2-a", "sphereface2-m",
    }  # fmt: skip


def test_strangers_come_on_top_of_the_same_known_faces() -> None:
    shares = set()
    for run in planned("open-set").values():
        share = run.config.open_set.share if run.config.open_set else 0.0
        shares.add(share)
        assert run.config.training.batch_size * (1 - share) == pytest.approx(64)
    assert 0.0 in shares
    assert len(shares) > 1
