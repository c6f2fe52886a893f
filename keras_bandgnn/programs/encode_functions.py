"""`encode_function`: converts the graph of a function with text to one with ids."""

import functools

import numpy as np

from keras_bandgnn.checks import boolean, instance, positive_int, refuse
from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.encode import (
    SUBTOKEN_TYPE,
    distinct,
    kind_id,
    packed,
    subtoken_edges,
    subtoken_row,
)
from keras_bandgnn.programs.node_text import KEYWORDS
from keras_bandgnn.programs.program_graph import FUNCTION_RELATIONS, FunctionGraph
from keras_bandgnn.programs.rewrite_traits import trait_columns


def num_function_edge_types(subtoken_nodes: bool = True) -> int:
    """Return P of encoded functions, of which the last two are no relations.

    P - 2 is the type of no change and P - 1 that of a rewrite.
    """
    return 2 * (len(FUNCTION_RELATIONS) + subtoken_nodes) + 2


def encode_function(
    function: FunctionGraph,
    *,
    subtoken_nodes: bool = True,
    num_type_buckets: int = 512,
    num_subtoken_buckets: int = 16384,
    max_subtokens: int = 6,
    traits: bool = False,
) -> Graph:
    """Encode a function as a graph of ids, with an edge for each rewrite.

    Edge types are positions in `FUNCTION_RELATIONS`, 0 to 10, then 11 for a node and
    its subtokens, and the reverse of type p is p + 12. They are followed by one edge
    for no change, from the function to itself (type 24), and by the rewrites, each from
    a variable to the usage where it would stand (type 25): P = 26. Without subtoken
    nodes P = 24.

    Node features, all int32:
        type: [N], 3 for subtoken nodes, otherwise the kind hashed into
            [4, num_type_buckets).
        subtoken: [N, max_subtokens], hashed parts of the label in
            [1, num_subtoken_buckets), padded with 0.

    Args:
        function: The function.
        subtoken_nodes: Whether to add a node for each distinct subtoken.
        num_type_buckets: Number of node type ids, at least 5.
        num_subtoken_buckets: Number of subtoken ids including padding, at least 2.
        max_subtokens: Maximum number of parts of a label.
        traits: Whether to add the edge feature "traits", int32 [E, 4]: what the two
            variables of a rewrite have in common, 0 for other edges.

    Returns:
        A graph with the function's info. If it is known which rewrite is needed, it has
        labels of edges: 1 for the right one and 0 for all others.
    """
    instance("function", function, FunctionGraph, "a FunctionGraph")
    boolean("subtoken_nodes", subtoken_nodes)
    positive_int("num_type_buckets", num_type_buckets, SUBTOKEN_TYPE + 2)
    positive_int("num_subtoken_buckets", num_subtoken_buckets, 2)
    positive_int("max_subtokens", max_subtokens)
    boolean("traits", traits)
    count = len(function.labels)
    unique, place = distinct(function.labels)
    senders, receivers = _relations(function)
    parts: list[str] = []
    if subtoken_nodes:
        parts, users, occurring = subtoken_edges(unique, place, KEYWORDS["python"])
        senders.append(users)
        receivers.append(occurring + np.int32(count))
    senders, receivers = senders + receivers, receivers + senders
    usages = function.usages[function.rewrites[:, 0]]
    senders += [np.zeros(1, np.int32), function.rewrites[:, 1]]
    receivers += [np.zeros(1, np.int32), usages]
    kinds = np.arange(len(senders), dtype=np.int32)
    edge_type = np.repeat(kinds, [len(ids) for ids in senders])
    node = {"type": np.full(count + len(parts), SUBTOKEN_TYPE, np.int32)}
    kind_names, kind_place = distinct(function.kinds)
    ids = [kind_id(kind, num_type_buckets) for kind in kind_names]
    node["type"][:count] = np.array(ids, np.int32)[kind_place]
    row = functools.partial(
        subtoken_row, buckets=num_subtoken_buckets, length=max_subtokens
    )
    place = np.append(place, np.arange(len(unique), len(unique) + len(parts)))
    node["subtoken"] = packed(map(row, unique + parts), np.int32)[place]
    return Graph(
        count + len(parts),
        np.concatenate(senders),
        np.concatenate(receivers),
        edge_type=edge_type,
        node=node,
        edge=_traits(function, len(edge_type)) if traits else {},
        label=_labels(function, len(edge_type)),
        label_level="edge",
        info=dict(function.info),
    )


def _relations(function: FunctionGraph) -> tuple[list, list]:
    """Return sources and targets of each relation."""
    if unknown := sorted(set(function.edges) - set(FUNCTION_RELATIONS)):
        refuse("edges", f"edges of the relations {FUNCTION_RELATIONS}", unknown)
    none = np.zeros((0, 2), np.int32)
    pairs = [
        np.asarray(function.edges.get(relation, none), np.int32).reshape(-1, 2)
        for relation in FUNCTION_RELATIONS
    ]
    return [rows[:, 0] for rows in pairs], [rows[:, 1] for rows in pairs]


def _traits(function: FunctionGraph, num_edges: int) -> dict[str, np.ndarray]:
    if function.traits is None:
        raise ValueError(
            "Expected a function with `traits`. Received: traits=None. Make it with "
            "function_graph, or encode it with traits=False."
        )
    columns = trait_columns(function.traits)
    # The rewrites are the last edges.
    ids = np.zeros((num_edges, columns.shape[1]), np.int32)
    ids[num_edges - len(columns) :] = columns
    return {"traits": ids}


def _labels(function: FunctionGraph, num_edges: int) -> np.ndarray | None:
    if function.correct is None:
        return None
    count = len(function.rewrites)
    if not -1 <= function.correct < count:
        raise ValueError(
            "Expected `correct` to be the position of the rewrite that is needed, in "
            f"[0, {count}), or -1 for none. Received: correct={function.correct}."
        )
    label = np.zeros(num_edges, np.int32)
    # The rewrites are the last edges, and no change stands before them.
    label[num_edges - count + function.correct] = 1
    return label
