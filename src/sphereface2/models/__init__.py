"""Models: a trained network in use, from its folder to embeddings."""
