"""`plot_schema`: the node sets and edge sets of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_bandgnn.checks import optional, refuse, string
from keras_bandgnn.data.converters.node_sets import has_features
from keras_bandgnn.graph import Graph, edge_sets
from keras_bandgnn.optional import optional_import
from keras_bandgnn.plotting.style import INK, axes_of, colors

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    from keras_bandgnn.aliases import Values
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.data.store import GraphStore

# Inches: of a character, a line of text, a level of arrows, and between boxes.
_CHARACTER = 0.078
_LINE = 0.17
_LEVEL = 0.32
_GAP = 0.45
# Orders of more node sets are not compared.
_COMPARED = 7
_MOST_FEATURES = 8


class _Schema(NamedTuple):
    """Lines of text of each node set, and the caption of each edge set."""

    nodes: dict[str, list[str]]
    edges: dict[tuple[str, str, str], str]


class _Arrow(NamedTuple):
    """An arrow: where it begins and ends, its level, 0 next to the boxes, and side."""

    key: tuple[str, str, str]
    begin: float
    end: float
    level: int
    side: int


def plot_schema(
    source: Graph | FlatGraphs | GraphStore | Values,
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot the node sets of a graph, with their features, and the edge sets.

    Edge sets to the right are arrows above the boxes of node sets, those to the left
    are below. An arrow has the colour of its source.

    Args:
        source: A graph with node sets, whose nodes and edges are counted; or an adapted
            `NodeSetEncoder`.
        ax: Axes to draw into; a new figure if omitted.
        title: Title.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `source` has no node sets.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.data.from_sets(
    ...     {"user": {"age": [[20.0], [30.0]]}, "item": 3},
    ...     {("user", "buys", "item"): [[0, 1, 1], [0, 0, 2]]},
    ... )
    >>> figure = plot_schema(graph)
    >>> [text.get_text().splitlines() for text in figure.axes[0].texts]
    [['user', '2 nodes', 'age'], ['item', '3 nodes'], ['buys, 3 edges']]
    """
    optional(string, "title", title)
    schema = _schema_of(source)
    names = _order(schema)
    widths = _widths(schema, names)
    lefts = np.cumsum([0, *(width + _GAP for width in widths[:-1])])
    boxes = dict(zip(names, zip(lefts.tolist(), widths, strict=True), strict=True))
    arrows = _arrows(schema, boxes)
    depth = 0.2 + _LINE * max(map(len, schema.nodes.values()))
    room = [
        0.1 + _LEVEL * max((1 + a.level for a in arrows if a.side == side), default=0)
        for side in (1, -1)
    ]
    spans = [_span(schema, arrow) for arrow in arrows]
    first = min([0, *(span[0] for span in spans)]) - 0.1
    last = max([lefts[-1] + widths[-1], *(span[1] for span in spans)]) + 0.1
    figure, axes = axes_of(ax, last - first, depth + sum(room) + 0.3 * bool(title))
    axes.set(xlim=(first, last), ylim=(-room[1], depth + room[0]), aspect="equal")
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=10.5, color=INK)
    tints = dict(zip(sorted(names), colors(len(names)), strict=True))
    _draw_boxes(axes, schema, boxes, depth, tints)
    _draw_arrows(axes, schema, arrows, depth, tints)
    return figure


def _schema_of(source: Any) -> _Schema:
    """Return the texts of a graph or an encoder."""
    if isinstance(source, Graph) and source.sets:
        return _schema_of_graph(source)
    if not hasattr(source, "edge_columns") or not hasattr(source, "nodes"):
        refuse("source", "a graph with node sets, or a NodeSetEncoder", source)
    source.require_adapted()
    kinds = ("category", "mask")
    nodes = {
        name: [
            name,
            *_limited(
                f"{key}: {next((k for k in kinds if k in spec), 'number')}"
                for key, spec in table.items()
            ),
        ]
        for name, table in source.nodes.items()
    }
    edges = {}
    for key in source.edge_sets:
        edges[tuple(key)] = key[1]
        if source.reverse:
            edges[key[2], f"rev_{key[1]}", key[0]] = f"rev_{key[1]}"
    return _Schema(nodes, edges)


def _schema_of_graph(graph: Graph) -> _Schema:
    nodes = {}
    for number, (name, table) in enumerate(graph.sets.items()):
        count = np.count_nonzero(graph.node["set"] == number)
        shapes = {key: list(v.shape[1:]) for key, v in table.items()}
        if not has_features(table):
            shapes = {}
        features = (
            f"{key} {shape}" if np.prod(shape) > 1 else key
            for key, shape in shapes.items()
        )
        nodes[name] = [name, _counted(count, "node"), *_limited(features)]
    counts = np.bincount(graph.edge_type, minlength=graph.num_edge_types)
    edges = {
        key: f"{key[1]}, {_counted(count, 'edge')}"
        for key, count in itertools.zip_longest(
            edge_sets(graph), counts[: len(edge_sets(graph))], fillvalue=0
        )
    }
    return _Schema(nodes, edges)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _limited(lines: Any) -> list[str]:
    """Return lines of features, the last ones as a count."""
    lines = list(lines)
    if len(lines) <= _MOST_FEATURES:
        return lines
    others = len(lines) - _MOST_FEATURES + 1
    return [*lines[: _MOST_FEATURES - 1], f"and {others} more"]


def _order(schema: _Schema) -> Sequence[str]:
    """Return the node sets in an order with short arrows, most of them to the right."""
    names = sorted(schema.nodes)
    if len(names) > _COMPARED:
        return names

    def length(order: Sequence[str]) -> float:
        place = {name: k for k, name in enumerate(order)}
        steps = [place[key[2]] - place[key[0]] for key in schema.edges]
        # Reverse edge sets say nothing of the direction.
        forward = [
            step
            for key, step in zip(schema.edges, steps, strict=True)
            if not key[1].startswith("rev_")
        ]
        return sum(map(abs, steps)) + 0.1 * sum(step < 0 for step in forward)

    return min(itertools.permutations(names), key=length)


def _widths(schema: _Schema, names: Sequence[str]) -> list[float]:
    """Return the widths of boxes, with room for their texts and the ends of arrows."""
    ends = [end for key in schema.edges for end in (key[0], key[2])]
    return [
        max(
            0.4 + _CHARACTER * max(map(len, schema.nodes[name])),
            0.2 * (1 + ends.count(name)),
        )
        for name in names
    ]


def _arrows(schema: _Schema, boxes: dict[str, tuple[float, float]]) -> list[_Arrow]:
    """Return the arrows, those with a short way next to the boxes."""
    place = {name: k for k, name in enumerate(boxes)}
    ports: dict[tuple[str, int], list] = {}
    sides = {}
    for number, key in enumerate(schema.edges):
        step = place[key[2]] - place[key[0]]
        sides[key] = 1 if step >= 0 else -1
        for end, name in enumerate((key[0], key[2])):
            way = step if end == 0 else -step
            rank = (0, -way, number) if way < 0 else (2, -way, -number)
            if way == 0:
                rank = (1, 0, number if end == 0 else 2 * len(schema.edges) - number)
            ports.setdefault((name, sides[key]), []).append((rank, key, end))
    at = {}
    for (name, _), ends in ports.items():
        first, width = boxes[name]
        places = first + width * (np.arange(len(ends)) + 1) / (len(ends) + 1)
        for (_, key, end), x in zip(sorted(ends), places.tolist(), strict=True):
            at[key, end] = x
    flat = [_Arrow(key, at[key, 0], at[key, 1], 0, sides[key]) for key in schema.edges]
    arrows: list[_Arrow] = []
    for arrow in sorted(flat, key=lambda a: abs(a.end - a.begin)):
        first, last = _span(schema, arrow)
        levels = [0]
        for other in arrows:
            begin, end = _span(schema, other)
            if other.side == arrow.side and begin < last and first < end:
                levels.append(other.level + 1)
        arrows.append(arrow._replace(level=max(levels)))
    return arrows


def _span(schema: _Schema, arrow: _Arrow) -> tuple[float, float]:
    """Return where an arrow and its caption begin and end."""
    middle = (arrow.begin + arrow.end) / 2
    half = _CHARACTER * (len(schema.edges[arrow.key]) + 1) / 2
    return (
        min(arrow.begin, arrow.end, middle - half),
        max(arrow.begin, arrow.end, middle + half),
    )


def _draw_boxes(axes, schema: _Schema, boxes: dict, depth: float, tints: dict) -> None:
    patches = optional_import("matplotlib.patches", "keras-bandgnn[plot]", "figures")
    for name, (first, width) in boxes.items():
        axes.add_patch(
            patches.Rectangle(
                (first, 0),
                width,
                depth,
                facecolor="white",
                edgecolor=tints[name],
                linewidth=1.6,
            )
        )
        axes.text(
            first + width / 2,
            depth / 2,
            "\n".join(schema.nodes[name]),
            ha="center",
            va="center",
            fontsize=8.5,
            color=INK,
            linespacing=1.3,
        )


def _draw_arrows(
    axes, schema: _Schema, arrows: Sequence[_Arrow], depth: float, tints: dict
) -> None:
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}
    for arrow in arrows:
        base = depth if arrow.side > 0 else 0.0
        height = base + arrow.side * (0.2 + _LEVEL * arrow.level)
        axes.plot(
            [arrow.begin, arrow.begin, arrow.end, arrow.end],
            [base, height, height, base + 0.05 * arrow.side],
            color=tints[arrow.key[0]],
            linewidth=1.2,
            marker="v" if arrow.side > 0 else "^",
            markersize=6,
            markevery=[3],
            zorder=2 - arrow.level / 100,
        )
        axes.text(
            (arrow.begin + arrow.end) / 2,
            height + 0.03 * arrow.side,
            schema.edges[arrow.key],
            ha="center",
            va="bottom" if arrow.side > 0 else "top",
            fontsize=8,
            color=INK,
            bbox=paper,
            zorder=3,
        )
