"""Parts of large graphs as batches, and pairs that are no edges."""
