"""Training: from a backbone, a head and images to checkpoints."""
