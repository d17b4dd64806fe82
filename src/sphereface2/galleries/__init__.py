"""People and the embeddings of their photos, kept and searched."""
