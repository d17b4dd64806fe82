"""Evaluation: embeddings of unseen people in, results out."""
