"""Sweeps: many runs over a grid of overrides and seeds, each in a process of its own."""
