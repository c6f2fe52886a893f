"""Edges between atoms by distance."""
