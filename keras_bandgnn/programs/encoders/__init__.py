"""Keras layers that encode program graphs, and stores of what they encode."""
