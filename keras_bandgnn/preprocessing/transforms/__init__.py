"""Transforms of single graphs: their edges, features, components and splits."""
