"""Evaluation: embeddings of unseen people in, results out.

`embed` needs torch and is imported from `sphereface2.evaluation.embed`, so that saved results and
saved embeddings can be read without it.
"""

from sphereface2.evaluation.calibration import Calibration, calibrate
from sphereface2.evaluation.comparison import Comparison, Difference, SetComparison, compare
from sphereface2.evaluation.intervals import Interval, Rate, wilson
from sphereface2.evaluation.json_result import write_atomically
from sphereface2.evaluation.metrics import (
    FoldAccuracy,
    OperatingPoint,
    RocCurve,
    ThresholdAccuracy,
    area_under_curve,
    best_threshold_accuracy,
    equal_error_rate,
    fold_accuracy,
    roc_curve,
    tar_at_far,
    tar_at_fars,
)
from sphereface2.evaluation.pair_scores import (
    SCORES,
    PairScores,
    combine,
    images_digest,
    load_scores,
    save_scores,
    score_pairs,
)
from sphereface2.evaluation.probability import ProbabilityMap, ReliabilityBin
from sphereface2.evaluation.results import (
    COMBINED,
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    RocBand,
    RocPoints,
    ScoredPair,
    ScoreHistogram,
    VerificationResult,
    installed_versions,
)
from sphereface2.evaluation.slices import Slice
from sphereface2.evaluation.verification import measure, measure_all, verify

__all__ = [
    "COMBINED",
    "RAW_PIXELS",
    "SCORES",
    "UNTRAINED",
    "Calibration",
    "Comparison",
    "Difference",
    "EvaluationResult",
    "FoldAccuracy",
    "Interval",
    "OperatingPoint",
    "PairScores",
    "ProbabilityMap",
    "Rate",
    "ReliabilityBin",
    "RocBand",
    "RocCurve",
    "RocPoints",
    "ScoreHistogram",
    "ScoredPair",
    "SetComparison",
    "Slice",
    "ThresholdAccuracy",
    "VerificationResult",
    "area_under_curve",
    "best_threshold_accuracy",
    "calibrate",
    "combine",
    "compare",
    "equal_error_rate",
    "fold_accuracy",
    "images_digest",
    "installed_versions",
    "load_scores",
    "measure",
    "measure_all",
    "roc_curve",
    "save_scores",
    "score_pairs",
    "tar_at_far",
    "tar_at_fars",
    "verify",
    "wilson",
    "write_atomically",
]
