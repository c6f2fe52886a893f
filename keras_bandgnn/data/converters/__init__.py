"""Conversion between `Graph` and graphs of other libraries, a module per library."""
