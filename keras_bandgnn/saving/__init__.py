"""Files of presets: reading, writing, and downloads from the Hugging Face Hub."""
