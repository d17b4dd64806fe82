"""Labels with a meaning of their own; all others count the classes from 0."""

UNKNOWN = -1
"""A sample that belongs to no known class."""

ELSEWHERE = -2
"""Inside the engine only: a known class whose weights are on another rank."""
