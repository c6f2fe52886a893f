"""Findings in source code: what `bandgnn check` and the language server report."""
