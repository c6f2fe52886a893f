"""Orders of nodes, and the layers that apply them."""
