"""Reporting: results in, tables, figures and one HTML page out; the only place with matplotlib."""
