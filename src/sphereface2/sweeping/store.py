"""What a run folder of the store holds: a config that fits its name, and whether it is done."""

from pathlib import Path

from sphereface2.config import RunConfig
from sphereface2.evaluation.json_result import write_atomically
from sphereface2.evaluation.results import EvaluationResult
from sphereface2.run_folder import CONFIG, EVALUATION
from sphereface2.sweeping.plan import PlannedRun
from sphereface2.training.checkpoint import Checkpoint, has_checkpoint, load_checkpoint

LOG = "log.txt"


def require_own_config(folder: Path, run: PlannedRun) -> None:
    """A ValueError if something else than this run stands in its folder."""
    path = folder / CONFIG
    if path.exists() and path.read_text(encoding="utf-8") != run.config_yaml:
        raise ValueError(
            f"{path} is not the config that its folder is named after; remove or rename {folder}"
        )


def write_config(folder: Path, run: PlannedRun) -> None:
    """Make the folder one that a worker can start from; what is in it stays."""
    require_own_config(folder, run)
    if not (folder / CONFIG).exists():
        write_atomically(folder / CONFIG, run.config_yaml)


def finished(folder: Path, config: RunConfig) -> EvaluationResult | None:
    """The evaluation of a run that is done: one with this very config, else None."""
    if not (folder / EVALUATION).is_file():
        return None
    try:
        result = EvaluationResult.load(folder / EVALUATION)
    except ValueError:
        return None
    # `sphereface2 evaluate RUN evaluation.sets=...` may have judged it by something else.
    return result if result.config == config.model_dump(mode="json") else None


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """How far the training has come, and in how long; None if that is not known any more."""
    last = folder / "checkpoints" / "last"
    return load_checkpoint(last) if has_checkpoint(last) else None
