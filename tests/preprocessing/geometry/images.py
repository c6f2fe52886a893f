"""Neighbours by brute force: every pair of atoms in every cell that may matter."""

import numpy as np


def brute_force(position, cell, periodic, radius):
    """Sender, receiver, shift of all pairs at most `radius` apart, and distances."""
    position, cell = np.asarray(position, float), np.asarray(cell, float)
    periodic = np.asarray(periodic, bool)
    reach = np.zeros(3, int)
    if periodic.any():
        inverse = np.linalg.pinv(cell[periodic])
        spread = np.ptp(position @ inverse, axis=0)
        # Planes of the lattice are 1 / |column of the inverse| apart.
        cells = spread + radius * np.linalg.norm(inverse, axis=0)
        reach[periodic] = np.floor(cells + 1e-6)
    ranges = [np.arange(-n, n + 1) for n in reach]
    shifts = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    moved = position[:, None] + shifts @ cell
    found = []
    for receiver, place in enumerate(position):
        distance = np.linalg.norm(moved - place, axis=-1)
        near = distance <= radius
        near[receiver, len(shifts) // 2] = False  # the atom itself
        sender, image = np.nonzero(near)
        rows = np.column_stack(
            [np.full(len(sender), receiver), sender, shifts[image]]
        ).astype(int)
        found.append((rows, distance[near]))
    edges, distances = (np.concatenate(a) for a in zip(*found, strict=True))
    order = np.lexsort(edges.T[::-1])
    return edges[order], distances[order]


def nearest_distances(position, cell, periodic, k):
    """float [N, k]: sorted distances of each atom to its k nearest neighbours."""
    radius = 4.0
    while True:
        edges, distances = brute_force(position, cell, periodic, radius)
        counts = np.bincount(edges[:, 0], minlength=len(position))
        if counts.min() >= k:
            groups = np.split(distances, np.cumsum(counts)[:-1])
            return np.array([np.sort(group)[:k] for group in groups])
        radius *= 1.3


def edges_of(graph):
    """Receiver, sender and shift of each edge, int [E, 5]."""
    shift = graph.edge.get("shift", np.zeros((graph.num_edges, 3), int))
    return np.column_stack([graph.receivers, graph.senders, shift]).astype(int)


def distances_of(graph):
    """Sorted distances of the edges that end at each atom, as a list of arrays."""
    counts = np.bincount(graph.receivers, minlength=graph.num_nodes)
    groups = np.split(graph.edge["distance"], np.cumsum(counts)[:-1])
    return [np.sort(group) for group in groups]
