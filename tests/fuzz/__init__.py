"""Mutated files for every reader of the library; run with `python -m tests.fuzz`."""
