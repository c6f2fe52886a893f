"""Encoders of programs, their stores, models that judge them, and reports."""
