"""Public data sets: catalogue, download and readers."""
