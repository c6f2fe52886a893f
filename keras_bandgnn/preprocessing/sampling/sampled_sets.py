"""`SampledSets`: the features of node sets in batches of subgraphs."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.assembly.padded_rows import picked_rows, set_resource
from keras_bandgnn.data.flat import FlatGraphs


class SampledSets:
    """Tables of node sets with a row for each node of a subgraph.

    Args:
        flat: The graphs, with node sets.
    """

    def __init__(self, flat: FlatGraphs):
        self.tables = flat.sets
        self.kinds = np.asarray(flat.node["set"])
        first = np.stack([ptr[:-1] for ptr in flat.set_ptr.values()], axis=1)
        graph = np.arange(len(flat)).repeat(flat.num_nodes)
        # Rows of the tables of all graphs.
        self.rows = first[graph, self.kinds] + flat.node["set_row"]

    def sizes(self, nodes: np.ndarray) -> dict[str, int]:
        """Return the rows that nodes need in each table, by resource."""
        counts = np.bincount(self.kinds[nodes], minlength=len(self.tables))
        names = map(set_resource, self.tables)
        return dict(zip(names, counts.tolist(), strict=True))

    def bounds(self, nodes: int, distinct: bool = True) -> dict[str, int]:
        """Return the most rows that so many nodes can need, by resource.

        Args:
            nodes: Number of nodes.
            distinct: Whether each node comes once.
        """
        totals = self.sizes(np.arange(len(self.kinds)))
        return {k: min(nodes, v) if distinct else nodes for k, v in totals.items()}

    def lay_out(
        self, subgraphs: Sequence[np.ndarray], budget: Mapping[str, int]
    ) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
        """Return the nodes' rows among all tables, and the tables, padded.

        Args:
            subgraphs: Nodes of each of G subgraphs.
            budget: Capacities: "node" N, and one for each table.

        Returns:
            int32 [G, N], and set -> feature -> [G, M, ...], with a `mask`.
        """
        state_row = np.zeros((len(subgraphs), budget["node"]), np.int32)
        kinds = [self.kinds[nodes] for nodes in subgraphs]
        tables, first = {}, 0
        for number, (name, features) in enumerate(self.tables.items()):
            here = [np.flatnonzero(kind == number) for kind in kinds]
            for row, places in zip(state_row, here, strict=True):
                row[places] = first + np.arange(len(places))
            picked = [
                self.rows[nodes[at]] for nodes, at in zip(subgraphs, here, strict=True)
            ]
            capacity = budget[set_resource(name)]
            rows = picked_rows(picked, capacity, f"nodes of {name!r}")
            columns = {key: rows.column([v]) for key, v in features.items()}
            columns["mask"] = rows.mask()
            columns["node"] = rows.padded(np.concatenate(here), 0)
            whole = len(subgraphs)
            tables[name] = {k: rows.cut(v, 0, whole) for k, v in columns.items()}
            first += capacity
        return state_row, tables
