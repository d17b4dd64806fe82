"""Tools for whole folders of images: align, convert, inspect, generate."""
