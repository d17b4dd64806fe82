"""Slices: counted as a loop would, and nothing where an attribute is not known."""

from dataclasses import replace

import numpy as np
import pytest

from sphereface2.evaluation.uncertainty import wilson
from sphereface2.evaluation.verification import EvaluationResult, decided_right, measure
from sphereface2.reporting.tables import slices_content
from tests.evaluation.test_comparison import scored


def test_slices_count_their_own_pairs() -> None:
    ages = np.array(["young", "old", ""])[np.arange(600) % 3]
    kind = np.where(np.arange(600) % 2 == 0, "genuine only", "")
    pairs = replace(scored(0, noise=0.5), attributes={"age": ages, "kind": kind})
    result = measure(pairs, model="net", replicates=60)
    assert [(each.attribute, each.value) for each in result.slices] == [
        ("age", "old"),
        ("age", "young"),
        ("kind", "genuine only"),
    ]
    right = decided_right(pairs)
    for each, values in zip(result.slices, (ages, ages, kind), strict=True):
        here = [i for i in range(600) if values[i] == each.value]
        assert (each.right.successes, each.right.trials) == (sum(right[here]), len(here))
        genuine = [i for i in here if pairs.same[i]]
        assert each.true_accepts is not None
        assert each.true_accepts.successes == sum(right[genuine])
        assert each.right.interval.low < each.right.value < each.right.interval.high
        assert each.right.interval.method == "bootstrap over people"
    impostor = [i for i in range(600) if ages[i] == "old" and not pairs.same[i]]
    accepted = result.slices[0].false_accepts
    assert accepted is not None
    assert (accepted.successes, accepted.trials) == (sum(~right[impostor]), len(impostor))
    assert result.slices[2].false_accepts is None

    evaluation = EvaluationResult(title="x", rows=(result,))
    assert EvaluationResult.from_json(evaluation.to_json()) == evaluation
    content = slices_content(evaluation)
    assert content is not None
    assert [row[0].text for row in content.rows] == [
        "plain, age old",
        "plain, age young",
        "plain, kind genuine only",
    ]
    assert content.rows[2][3].text == "–"


def test_without_attributes_there_is_no_slice() -> None:
    result = measure(scored(0, noise=0.5), model="net", replicates=0)
    assert result.slices == ()
    assert slices_content(EvaluationResult(title="x", rows=(result,))) is None
    wrong = replace(scored(0, noise=0.5), attributes={"age": np.array(["a"])})
    with pytest.raises(ValueError, match="attribute 'age': 600 pairs, but values of the shape"):
        measure(wrong, model="net", replicates=0)


def test_without_replicates_a_slice_has_wilsons_interval() -> None:
    ages = np.array(["young", "old"])[np.arange(600) % 2]
    pairs = replace(scored(0, noise=0.5), attributes={"age": ages})
    found = measure(pairs, model="net", replicates=0).slices
    assert [(each.value, each.right.trials) for each in found] == [("old", 300), ("young", 300)]
    for each in found:
        assert each.right == wilson(each.right.successes, each.right.trials)
