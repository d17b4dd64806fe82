"""Training: from a backbone, a head and images to checkpoints."""

from sphereface2.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sphereface2.training.distributed import LostRankError, Team, current_team, joined
from sphereface2.training.events import (
    EvaluationRecord,
    EventGroup,
    Events,
    Notice,
    TrainingRecord,
)
from sphereface2.training.progress import ProgressDisplay
from sphereface2.training.result import TrainingResult
from sphereface2.training.stopping import DivergedError
from sphereface2.training.trainer import Trainer

__all__ = [
    "Checkpoint",
    "DivergedError",
    "EvaluationRecord",
    "EventGroup",
    "Events",
    "LostRankError",
    "Notice",
    "ProgressDisplay",
    "Team",
    "Trainer",
    "TrainingRecord",
    "TrainingResult",
    "current_team",
    "joined",
    "load_checkpoint",
    "save_checkpoint",
]
