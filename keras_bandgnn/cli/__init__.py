"""The `bandgnn` command."""
