"""Figures: results in, matplotlib figures out; they compute nothing."""
