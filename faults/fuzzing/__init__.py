"""Hostile input: every parser of the package under mutated files, watched from within."""
