"""The HTTP service: a recognizer and its galleries for many callers at once, and a page."""
