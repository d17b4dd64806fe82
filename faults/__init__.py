"""Faults on purpose: every system call that fails, every kill, every hostile input."""
