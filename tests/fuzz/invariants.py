"""What must hold of whatever a reader returns without an error, in plain NumPy."""

from collections.abc import Iterable, Mapping

import numpy as np

# NaN stands for a label, or a target among the features, that is not known.
LOOSE = ("label/graph", "label/node", "label/edge", "node/force", "context/stress")
RESERVED = {
    "node": ("graph_id", "mask"),
    "edge": ("sender", "receiver", "type", "mask", "message_weight"),
    "context": ("mask", "n_node", "n_edge", "id"),
}


def flat_graphs(graphs) -> str | None:
    """What is wrong with a `FlatGraphs`, or None."""
    columns = graphs.columns()
    for name, values in columns.items():
        timed = name in ("node/time", "edge/time")
        if values.dtype not in ((np.int64,) if timed else (np.int32, np.float32)):
            return f"{name} is {values.dtype}"
    count = len(columns["num_nodes"])
    rows = {"graph": count}
    sets = sorted(n.partition("/")[2] for n in columns if n.startswith("set_rows/"))
    for level, name in (
        ("node", "num_nodes"),
        ("edge", "num_edges"),
        ("candidate", "num_candidates"),
        *((f"sets/{name}", f"set_rows/{name}") for name in sets),
    ):
        numbers = columns.get(name, np.zeros(count, np.int32)).astype(np.int64)
        if len(numbers) != count:
            return f"{len(numbers)} values of {name} for {count} graphs"
        if numbers.size and numbers.min() < (1 if level == "node" else 0):
            return f"{name} has {numbers.min()}"
        rows[level] = int(numbers.sum())
    nodes = columns["num_nodes"].astype(np.int64)
    for name, values in columns.items():
        level = _level(name)
        if len(values) != rows[level]:
            return f"{name} has {len(values)} rows, not {rows[level]}"
        if values.dtype.kind == "f" and name not in LOOSE:
            if not np.isfinite(values).all():
                return f"{name} is not finite"
        elif values.dtype.kind == "f" and np.isinf(values).any():
            return f"{name} is infinite"
        kind, _, key = name.partition("/")
        if key in RESERVED.get(kind, ()) or (kind in RESERVED and not key):
            return f"the name {name}"
    for name in ("senders", "receivers", "candidates", "slot"):
        if name in columns:
            values = columns[name].astype(np.int64)
            if values.ndim != 1:
                return f"{name} has the shape {values.shape}"
            level = _level(name)
            per = {"edge": "num_edges", "candidate": "num_candidates"}.get(level)
            upper = nodes if per is None else np.repeat(nodes, columns[per])
            low = -1 if name == "slot" else 0
            if ((values < low) | (values >= upper)).any():
                return f"ids of {name} out of range"
    if sets:
        kinds, at = (columns[f"node/{name}"] for name in ("set", "set_row"))
        sizes = np.stack([columns[f"set_rows/{name}"] for name in sets], axis=1)
        if ((kinds < 0) | (kinds >= len(sets)) | (at < 0)).any():
            return "a node set or a row out of range"
        if (at >= sizes[np.arange(count).repeat(nodes), kinds]).any():
            return "a row above those of its node set"
    kinds = columns["edge_type"]
    if kinds.ndim != 1 or (kinds.size and kinds.min() < 0):
        return "edge_type is negative or has another shape"
    if (
        "context/split" in columns
        and not np.isin(columns["context/split"], (-1, 0, 1, 2)).all()
    ):
        return "context/split is no split"
    owner = np.repeat(np.arange(count), columns["num_edges"])
    key = owner * (int(nodes.max(initial=0)) + 1) + columns["receivers"]
    if (key[1:] < key[:-1]).any():
        return "edges are not sorted by receiver"
    if len(graphs.info) != count:
        return f"{len(graphs.info)} facts for {count} graphs"
    if not all(isinstance(info, Mapping) for info in graphs.info):
        return "info is no dictionary"
    return None


def _level(name: str) -> str:
    if name in ("senders", "receivers", "edge_type", "label/edge"):
        return "edge"
    if name.startswith("edge/"):
        return "edge"
    if name in ("origin", "label/node") or name.startswith("node/"):
        return "node"
    if name.startswith("sets/"):
        return name.rpartition("/")[0]
    return "candidate" if name == "candidates" else "graph"


def programs(found: Iterable) -> str | None:
    """What is wrong with program graphs, or None."""
    for program in found:
        count = len(program.labels)
        if len(program.kinds) != count:
            return "kinds and labels differ in number"
        for name, pairs in program.edges.items():
            pairs = np.asarray(pairs)
            if pairs.size and not 0 <= pairs.min() <= pairs.max() < count:
                return f"edges {name} out of range"
        nodes = [*program.candidates, *program.node_types]
        nodes += [] if program.slot is None else [program.slot]
        if any(not 0 <= node < count for node in nodes):
            return "a slot, candidate or type out of range"
        correct = program.correct
        if correct is not None and not 0 <= correct < len(program.candidates):
            return "the right candidate is out of range"
    return None


def finite(arrays: Iterable) -> str | None:
    """Whether arrays are finite."""
    for number, values in enumerate(arrays):
        values = np.asarray(values)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"array {number} is not finite"
    return None
