"""Experiments: many runs, as a sweep or as a table of the paper."""
