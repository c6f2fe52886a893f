"""Which graphs go into which supergraph, and how large that is."""
