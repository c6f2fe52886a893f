"""Backend implementations of `keras_bandgnn.ops`; imported by name only."""
