"""Data: images of people, how they reach a training, and the pairs that are compared."""
