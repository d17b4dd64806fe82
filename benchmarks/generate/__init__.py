"""Benchmarks of full size made of embeddings whose true rates are known."""
