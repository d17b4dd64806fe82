"""A model at work on photos: the face in a photo, its embedding, and whether two are one person."""
