"""Benchmarks that are made: with known truth, or of rendered people."""
