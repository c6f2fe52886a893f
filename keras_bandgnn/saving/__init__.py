"""The files of presets: reading and writing them, and fetching them from a hub."""
