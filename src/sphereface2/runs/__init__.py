"""Runs: from a config to a folder with a model, its evaluation and a report."""
