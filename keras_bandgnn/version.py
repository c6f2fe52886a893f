"""Version of the library."""

__version__ = "0.3.0"
