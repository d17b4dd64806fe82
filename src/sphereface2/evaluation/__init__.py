"""Evaluation: embeddings of unseen people in, results out.

`embed` needs torch and is imported from `sphereface2.evaluation.embed`, so that saved results and
saved embeddings can be read without it.
"""

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
from sphereface2.evaluation.results import (
    COMBINED,
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    RocPoints,
    ScoredPair,
    ScoreHistogram,
    VerificationResult,
    installed_versions,
    write_atomically,
)
from sphereface2.evaluation.verification import (
    PairScores,
    combine,
    measure,
    measure_all,
    score_pairs,
    verify,
)

__all__ = [
    "COMBINED",
    "RAW_PIXELS",
    "UNTRAINED",
    "EvaluationResult",
    "FoldAccuracy",
    "OperatingPoint",
    "PairScores",
    "RocCurve",
    "RocPoints",
    "ScoreHistogram",
    "ScoredPair",
    "ThresholdAccuracy",
    "VerificationResult",
    "area_under_curve",
    "best_threshold_accuracy",
    "combine",
    "equal_error_rate",
    "fold_accuracy",
    "installed_versions",
    "measure",
    "measure_all",
    "roc_curve",
    "score_pairs",
    "tar_at_far",
    "tar_at_fars",
    "verify",
    "write_atomically",
]
