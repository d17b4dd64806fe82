"""The paper's numbers: complete, and nothing mistyped as far as their own sense can tell."""

import pytest

from sphereface2.experiments.paper.published import (
    BALANCE,
    BESIDE,
    IJB_B,
    IJB_C,
    LOSSES,
    MEGAFACE,
    PARAMETERS,
    PRINCIPLES,
    SHARPNESS,
)
from sphereface2.reporting.tables import PublishedTable

TABLES = (
    *(LOSSES, PRINCIPLES, BALANCE, SHARPNESS, PARAMETERS),
    *(table for tables in BESIDE.values() for table in tables),
)
ROWS = {
    "combined_margin_type": 10,
    "ablation_principles": 5,
    "ablation_lambda": 8,
    "ablation_t": 6,
    "ablation_param": 16,
    "ijbb_11_1n": 8,
    "ijbc_11_1n": 8,
    "ijbb_sa_sota (left)": 5,
    "ijbb_sa_sota (right)": 5,
    "ijbb_margin_type": 5,
    "ijbc_margin_type": 5,
    "megaface": 5,
}
# The sum of all numbers of a table, to two digits: a slip of the finger changes it.
SUMS = {
    "combined_margin_type": 4673.7,
    "ablation_principles": 2172.15,
    "ablation_lambda": 3744.13,
    "ablation_t": 2829.38,
    "ablation_param": 7494.65,
    "ijbb_11_1n": 3431.5,
    "ijbc_11_1n": 3558.5,
    "ijbb_sa_sota (left)": 2547.29,
    "ijbb_sa_sota (right)": 2649.68,
    "ijbb_margin_type": 2574.51,
    "ijbc_margin_type": 2673.91,
    "megaface": 1677.27,
}


def test_every_table_has_all_its_rows() -> None:
    assert {table.label: len(table.rows) for table in TABLES} == ROWS
    for table in TABLES:
        assert len({name for name, _ in table.rows}) == len(table.rows)
        assert all(len(values) == len(table.columns) for _, values in table.rows)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_every_number_is_a_percentage_of_two_digits(table: PublishedTable) -> None:
    numbers = [value for _, values in table.rows for value in values if value is not None]
    assert all(60 < value < 100 and round(value, 2) == value for value in numbers)
    assert sum(numbers) == pytest.approx(SUMS[table.label], abs=0.001)


def test_rates_rise_with_what_is_allowed() -> None:
    for table in (IJB_B, IJB_C):
        for _, values in table.rows:
            tar = [value for value in values[:3] if value is not None]
            assert tar == sorted(tar)
            if None not in values:
                assert values[4] < values[5] < values[3]  # type: ignore[operator]  # none is None
    for method, _ in MEGAFACE.rows:
        for column in ("rank-1", "TPR@FPR 1e-6"):
            raw, refined = (
                MEGAFACE.value(method, column),
                MEGAFACE.value(method, f"{column}, refined"),
            )
            assert raw is not None
            assert refined is not None
            assert raw < refined


def test_single_numbers() -> None:
    assert LOSSES.value("SphereFace2-C", "Combined") == 94.28
    assert PRINCIPLES.value("none", "CA-LFW") == 68.40
    assert IJB_B.value("MN-vc", "TAR@FAR 1e-5") is None
    assert IJB_C.value("SphereFace2", "TPIR@FPIR 1e-2") == 85.65
    with pytest.raises(KeyError):
        LOSSES.value("AdaFace", "LFW")


def test_every_table_of_a_protocol_stands_beside_it() -> None:
    beside = [table for tables in BESIDE.values() for table in tables]
    assert {table.label for table in beside} == {
        table.label for table in TABLES if table.protocol != LOSSES.protocol
    }
