"""Graphs of other libraries to `Graph` and back, one module per library."""
