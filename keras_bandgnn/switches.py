"""Environment variables that switch off what the library does by itself."""

import os


def is_off(variable: str) -> bool:
    """Return whether a variable of the environment says no."""
    return os.environ.get(variable, "").strip().lower() in ("0", "false", "no", "off")
