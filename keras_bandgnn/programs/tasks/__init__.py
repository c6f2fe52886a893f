"""Models that find wrong variables, and reports of what they find."""
