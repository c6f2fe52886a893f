"""Findings in source code, of `bandgnn check` and the language server."""
