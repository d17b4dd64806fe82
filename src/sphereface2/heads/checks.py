"""What a head's options must satisfy: each failure is one sentence."""

import math


def require(condition: bool, sentence: str) -> None:
    """Raise a ValueError with `sentence` unless the condition holds."""
    if not condition:
        raise ValueError(sentence)


def require_positive(**values: float) -> None:
    """Every value must be a finite number above zero."""
    for name, value in values.items():
        require(math.isfinite(value) and value > 0, f"{name} must be above 0, got {value}")


def require_share(**values: float) -> None:
    """Every value must lie in [0, 1]."""
    for name, value in values.items():
        require(0.0 <= value <= 1.0, f"{name} must lie in [0, 1], got {value}")
