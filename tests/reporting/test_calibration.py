"""A calibration to read: tables, words and the picture."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.evaluation.calibration import Calibration, calibrate
from sphereface2.reporting.figures.calibration import (
    bias_sentence,
    calibration_figure,
    collapse_sentence,
    thresholds_content,
    write_calibration_picture,
)
from tests.evaluation.test_comparison import scored
from tests.reporting.test_tables import printed


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(scored(0, noise=0.3), model="m", replicates=60, bias=(3.1, 30.0, 3.0))


def test_the_table_has_a_row_a_target_and_marks_what_is_not_resolved(
    calibration: Calibration,
) -> None:
    content = thresholds_content(calibration)
    names = [row[0].text for row in content.rows]
    assert names[:4] == [f"FAR at most {share}%" for share in ("10", "1", "0.1", "0.01")]
    assert names[4].startswith("P(same) = 50%")
    assert names[5].startswith("learned bias")
    assert content.rows[0][1].text == f"{calibration.thresholds[0].threshold:.3f}"
    assert [row[1].text == "not resolved" for row in content.rows[:4]] == [False, False, True, True]
    assert content.rows[2][1].detail == "300 impostors"
    assert "300 genuine and 300 impostor pairs of 60 people" in content.note
    assert "…" not in printed(content)


def test_how_far_off_the_bias_is_stands_in_words(calibration: Calibration) -> None:
    bias = calibration.bias
    assert bias is not None
    assert bias.threshold is not None
    said = bias_sentence(calibration)
    assert said is not None
    assert f"would cut at {bias.threshold:.3f}" in said
    gap = f"{abs(bias.threshold - calibration.thresholds[1].threshold):.3f}"
    assert f"{gap} from the threshold for FAR 0.01" in said
    assert f"accept {100 * bias.tar.value:.1f}% of the genuine" in said
    without = calibrate(scored(0, noise=0.3), replicates=20)
    assert bias_sentence(without) is None
    assert not any("bias" in row[0].text for row in thresholds_content(without).rows)
    beyond = calibrate(scored(0, noise=0.3), replicates=20, bias=(40.0, 30.0, 3.0))
    assert "accepts every pair" in (bias_sentence(beyond) or "")
    assert thresholds_content(beyond).rows[-1][1].text == "beyond all scores"


def test_a_network_whose_scores_are_all_alike_is_named(calibration: Calibration) -> None:
    assert collapse_sentence(calibration) is None
    pairs = scored(0, noise=0.3)
    alike = replace(pairs, scores=1 - (1 - pairs.scores) / 1000)
    said = collapse_sentence(calibrate(alike, replicates=20)) or ""
    assert "nearly the same embedding" in said
    assert f"within {np.ptp(alike.scores):.1g} of each other" in said


def test_the_picture_shows_thresholds_and_reliability(
    calibration: Calibration, tmp_path: Path
) -> None:
    left, right = calibration_figure(calibration).axes
    texts = [text.get_text() for text in left.texts]
    marks = [float(np.asarray(line.get_xdata())[0]) for line in left.lines]
    bias = calibration.bias
    assert bias is not None
    shown = dict(zip(texts, marks, strict=True))
    assert shown == {
        "FAR 0.1": calibration.thresholds[0].threshold,
        "FAR 0.01": calibration.thresholds[1].threshold,
        "learned bias": bias.threshold,
    }
    assert marks == sorted(marks)
    assert right.get_xlabel() == "probability by the map (%)"
    shares = np.asarray(right.lines[1].get_ydata())
    assert shares.tolist() == pytest.approx([100 * each.share for each in calibration.reliability])
    write_calibration_picture(tmp_path / "calibration.png", calibration)
    image = cv2.imread(str(tmp_path / "calibration.png"))
    assert image is not None
    assert image.shape[1] > 1000
