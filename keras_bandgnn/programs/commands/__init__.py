"""The commands of the code-analysis tool, one module each."""
