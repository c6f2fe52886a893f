"""Attention patterns: edges, plans, conditions of full attention."""
