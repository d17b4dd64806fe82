"""Faults on purpose: every system call that fails, every kill, every hostile input.

A program is a module, `python -m faults.NAME [--work FOLDER] [--quick] [--seed N]`. It keeps what
it has tried in FOLDER/NAME.json (`outcomes.Outcomes`), resumes from there, ends with a table, and
with exit code 1 if anything was lost. `make faults` runs all of them (`faults/__main__.py`).
"""
