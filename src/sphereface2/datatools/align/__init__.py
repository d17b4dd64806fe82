"""Photos to aligned crops, a folder at a time: sphereface2 align."""
