"""The public data sets: how large they are published to be, and where they lie in a folder."""
