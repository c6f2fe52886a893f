"""Ahead-of-time compilation for TPU topologies, and forecasts of scaling."""
