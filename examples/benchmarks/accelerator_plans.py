"""The device itself, sums of messages under every plan, tiles, and attention."""

from collections.abc import Iterator

import keras
import numpy as np

from examples.benchmarks import accelerator_device as device
from examples.benchmarks.accelerator_part import Part, Setting, alternated

# Propagation steps of a call, which share the work on the batch.
_STEPS = 4
# A dense part of a plan that holds fewer edges is of no use.
_LEAST = 0.01
# Share of the host's memory that all pairs of nodes may take where that is the device.
_HOST_SHARE = 0.25


# === The device ===


def measure_device(part: Part, setting: Setting) -> None:
    """Rates of products, the overhead of an operation, and copies from the host."""
    from keras import ops

    from keras_bandgnn import ops as graph_ops

    rng = np.random.default_rng(0)
    size = setting.sizes.product
    operations = 3 * 2 * size**3

    def product(dtype):
        pair = [
            ops.convert_to_tensor(rng.normal(size=(size, size)).astype("float32"))
            for _ in range(2)
        ]
        pair = [ops.cast(each, dtype) for each in pair]
        return graph_ops.compiled_timer_step(ops.matmul, pair, ())

    def exact():
        with device.full_precision():
            step = product("float32")

        def run():
            with device.full_precision():
                step()

        return run

    makers = {
        "float32": lambda: product("float32"),
        "float32, full precision": exact,
        "bfloat16": lambda: product("bfloat16"),
    }
    for name, timing in alternated(part, makers, setting.rounds, "product").items():
        rate = operations / timing.ms / 1e9
        part.add("device", what=f"product, {name}", value=rate, unit="TFLOP/s")

    def chain(x, weight):
        for _ in range(16):
            x = ops.matmul(x, weight)
        return x

    def small():
        pair = [ops.ones((8, 8)), ops.ones((8, 8)) / 8]
        return graph_ops.compiled_timer_step(chain, pair, ())

    block = rng.normal(size=size * size // 4).astype("float32")

    def copies():
        return lambda: float(ops.convert_to_tensor(block)[-1])

    makers = {"operations": small, "copies": copies}
    found = alternated(part, makers, setting.rounds, "overhead")
    if "operations" in found:
        each = 1e3 * found["operations"].ms / 48
        part.add("device", what="operation of 8 x 8", value=each, unit="us")
    if "copies" in found:
        rate = block.nbytes / found["copies"].ms / 1e6
        part.add("device", what="copy from the host", value=rate, unit="GB/s")


def calibrate(part: Part, setting: Setting) -> None:
    """The constants of the cost model, which the parts after it use."""
    from keras_bandgnn import planning

    if not setting.sizes.calibration:
        part.skip("calibration", "left out by --small")
        return
    with part.attempt("calibration"):
        setting.hardware = planning.calibrate()
        for name, rates in setting.hardware.rates.items():
            shown = " ".join(f"{rate:.3g}" for rate in rates)
            part.add("constants", name=name, measured=shown)


# === Plans ===


def graphs_of(family: str, degree: int, nodes: int):
    """Return graphs of a family, and the number of types of their edges.

    "small graphs" have as many edges into each node, from any node of the graph, and
    four types. "a band" is one graph of one type with edges of limited length, as
    `RCMKCompile` makes them.
    """
    from keras_bandgnn import Graph
    from keras_bandgnn.data import FlatGraphs

    rng = np.random.default_rng(degree)
    if family == "a band":
        length = max(48, degree + degree // 2)
        receiver = np.arange(nodes).repeat(degree)
        sender = receiver + rng.integers(-length, length + 1, len(receiver))
        sender = np.clip(sender, 0, nodes - 1)
        return FlatGraphs.from_graphs([Graph(nodes, sender, receiver)]), 1
    size = max(32, 2 * degree)
    graphs = []
    for _ in range(max(nodes // size, 1)):
        receiver = np.arange(size).repeat(degree)
        sender = rng.integers(0, size, len(receiver))
        kind = rng.integers(0, 4, len(receiver))
        graphs.append(Graph(size, sender, receiver, edge_type=kind))
    return FlatGraphs.from_graphs(graphs), 4


def plans_of(num_types: int) -> Iterator:
    """Return exact plans of every registered primitive, the usual ones first."""
    from keras_bandgnn import primitives
    from keras_bandgnn.plans import Plan
    from keras_bandgnn.primitives.base import primitive_classes

    typed = num_types > 1
    rest = primitives.Grouped(64) if typed else primitives.Segment()
    yield Plan()
    if typed:
        yield Plan(rest=rest)
    for size in (128, 64, 256, 32):
        yield Plan(primitives.Banded(size), rest=rest)
    yield Plan(primitives.Dense(64), rest=rest)
    yield Plan(rest=primitives.BlockSparse(32))
    if typed:
        for size in (16, 256):
            yield Plan(rest=primitives.Grouped(size))
        yield Plan(rest=primitives.Grouped(64, "aggregate"))
    for size in (32, 128, 16):
        yield Plan(primitives.Dense(size), rest=rest)
    for size in (16, 64):
        yield Plan(rest=primitives.BlockSparse(size))
    yield Plan(primitives.Supernode(64), rest=rest)
    for kind in primitive_classes().values():
        for primitive in kind.candidates(num_types, 128):
            if primitive.covers_all:
                yield Plan(rest=primitive)
            else:
                yield Plan(primitive, rest=rest)


def budget_of(plan, edges) -> dict[str, int]:
    """Return the capacities that edges need where they are."""
    from keras_bandgnn.plans import BlockSparse

    if isinstance(plan.rest, BlockSparse) and len(plan.primitives) == 1:
        # `sizes` measures each of b ways to lie on the grid.
        key, size = plan.rest.key(), plan.rest.block_size
        blocks = -(-edges.num_nodes // size)
        pair = edges.type.astype(np.int64) * blocks + edges.receiver // size
        tiles = np.unique(pair * blocks + edges.sender // size)
        return {
            key: len(tiles),
            f"{key}.row": len(np.unique(pair)),
            f"{key}.edge": len(edges),
        }
    sizes = plan.sizes(edges, np.zeros(len(edges), np.int64), 1)
    return {name: int(count[0]) for name, count in sizes.items()}


def edges_of(graphs, num_types: int):
    """Return the edges of graphs, sorted by receiver."""
    from keras_bandgnn.primitives import Edges

    edges, _ = Edges.of_graphs(graphs, num_types)
    return edges.sorted_by(edges.receiver)


def measure_plans(part: Part, setting: Setting) -> None:
    """All plans that apply, compared with each other and with torch_geometric."""
    families = ("small graphs", "a band")
    cases = [(degree, name) for degree in setting.sizes.degrees for name in families]
    for number, (degree, family) in enumerate(cases):
        what = f"{family}, degree {degree}"
        with part.share(len(cases) - number):
            if part.has_time_for(what, 1.0):
                with part.attempt(what):
                    _compare_plans(part, setting, family, degree)


def _compare_plans(part: Part, setting: Setting, family: str, degree: int) -> None:
    from examples.benchmarks.propagate import BandGNNCase, PyGCase
    from keras_bandgnn.planning import choose_plan

    sizes, where = setting.sizes, f"{family}, degree {degree}"
    nodes = max(min(sizes.nodes, sizes.most_edges // degree), 1)
    graphs, types = graphs_of(family, degree, nodes)
    edges = edges_of(graphs, types)
    choice = choose_plan(
        [graphs],
        types,
        sizes.width,
        nodes=edges.num_nodes,
        hardware=setting.hardware,
    )
    estimates = {str(row["plan"]): row["ms"] for row in choice.table}
    chosen, makers = str(choice.plan), {}
    on_torch = keras.backend.backend() == "torch"
    plans = list(dict.fromkeys([choice.plan, *plans_of(types)]))
    for number, plan in enumerate(plans[: sizes.most_plans]):
        if number == 1 and on_torch:
            # Early, so that there is time for them.
            for kind in ("matmul per type", "RGCNConv"):
                makers[f"torch_geometric, {kind}"] = lambda kind=kind: (
                    PyGCase(
                        kind, edges, sizes.width, _STEPS, device.torch_device()
                    ).step
                )
        held = [p.cover(edges).mean() for p in plan.primitives if p != plan.rest]
        if held and max(held) < _LEAST:
            part.skip(f"{where}: {plan}", f"blocks hold {100 * max(held):.1f} %")
            continue
        makers[str(plan)] = lambda plan=plan: (
            BandGNNCase(plan, edges, sizes.width, _STEPS, budget_of(plan, edges)).call
        )
    if not on_torch:
        part.skip(f"{where}: torch_geometric", "compared on torch only")
    found = alternated(part, makers, setting.rounds, where)
    ours = {k: t for k, t in found.items() if not k.startswith("torch_geometric")}
    theirs = [t.ms for name, t in found.items() if name not in ours]
    peer = min(theirs, default=None)
    best = min((timing.ms for timing in ours.values()), default=None)
    for name, timing in sorted(found.items(), key=lambda item: item[1].ms):
        estimate = estimates.get(name)
        part.add(
            where,
            plan=name + (" (auto)" if name == chosen else ""),
            nodes=edges.num_nodes,
            edges=len(edges),
            ms_per_step=timing.ms / _STEPS,
            to_fastest_plan=timing.ms / best if best else None,
            times_faster_than_peer=peer / timing.ms if peer else None,
            estimated_ms=estimate,
            gib=timing.gib,
            first_s=timing.first,
        )
    if ours and peer:
        part.ratio(f"{where}, fastest plan", best / _STEPS, peer / _STEPS)
    if chosen in ours:
        part.ratio(
            f"{where}, auto and fastest", ours[chosen].ms / _STEPS, best / _STEPS
        )


# === Tiles ===


def tiles_of(nodes: int, count: int, size: int, fill: float):
    """Return tiles with a share of their entries filled, and their edges.

    Returns:
        The arrays of `tile_attention`, and sender and receiver of the edges, sorted by
        receiver; int32, with the axis G of 1.
    """
    rng = np.random.default_rng(0)
    blocks = max(nodes // size, 1)
    row = np.sort(rng.integers(0, blocks, count))
    column = rng.integers(0, blocks, count)
    each = max(round(fill * size * size), 1)
    places = rng.random((count, size * size)).argpartition(each - 1, axis=1)[:, :each]
    tile = np.arange(count).repeat(each)
    inside, across = np.divmod(places.ravel(), size)
    receiver, sender = row[tile] * size + inside, column[tile] * size + across
    order = np.argsort(receiver, kind="stable")
    edge = np.full((count, size, size), len(order), np.int32)
    edge[tile[order], inside[order], across[order]] = np.arange(len(order))
    tiles = {"row": row, "column": column, "edge": edge}
    tiles = {name: each[None].astype(np.int32) for name, each in tiles.items()}
    ends = (sender[order], receiver[order])
    return tiles, *(each[None].astype(np.int32) for each in ends)


def measure_tiles(part: Part, setting: Setting) -> None:
    """Attention in tiles and along the same edges, by the share of a tile filled."""
    sizes = setting.sizes
    cases = [(size, fill) for size in (16, 32) for fill in sizes.fills[::-1]]
    for number, (size, fill) in enumerate(cases):
        where = f"tiles of {size}, {100 * fill:g} % filled"
        with part.share(len(cases) - number):
            if part.has_time_for(where):
                with part.attempt(where):
                    _compare_tiles(part, setting, size, fill, where)


def _compare_tiles(part: Part, setting: Setting, size: int, fill: float, where: str):
    from keras import ops

    from keras_bandgnn.ops import compiled_timer_step
    from keras_bandgnn.ops.attention import edge_attention, tile_attention

    sizes = setting.sizes
    heads, width = sizes.heads, sizes.heads * sizes.key_dim
    nodes = max(sizes.nodes, size) // size * size
    count = max(round(sizes.tile_edges / (fill * size * size)), 1)
    tiles, *ends = tiles_of(nodes, count, size, fill)
    tiles = keras.tree.map_structure(ops.convert_to_tensor, tiles)
    ends = [ops.convert_to_tensor(each) for each in ends]
    rng = np.random.default_rng(0)
    states = [rng.normal(size=(1, nodes, width)).astype("float32") for _ in range(3)]
    states = [ops.convert_to_tensor(each) for each in states]
    edges = ops.shape(ends[0])[1]
    bias = ops.zeros((1, edges, heads), "float32")

    def in_tiles(q, k, v, bias, tiles):
        return tile_attention(q, k, v, bias, None, tiles, heads)[0]

    def along_edges(q, k, v, bias, sender, receiver):
        return edge_attention(q, k, v, bias, None, sender, receiver, heads)[0]

    makers = {
        "tiles": lambda: compiled_timer_step(in_tiles, states, (bias, tiles)),
        "edges": lambda: compiled_timer_step(along_edges, states, (bias, *ends)),
    }
    found = alternated(part, makers, setting.rounds, where)
    if len(found) < 2:
        return
    both = found["tiles"].ms, found["edges"].ms
    part.add(
        "attention in tiles",
        tile=size,
        filled=fill,
        edges=edges,
        tiles_ms=both[0],
        edges_ms=both[1],
        times_faster=both[1] / both[0],
        gib_tiles=found["tiles"].gib,
        gib_edges=found["edges"].gib,
    )
    part.ratio(where, *both)


# === Attention ===

_FULL = ("full", "full, fused", "fused alone", "fused alone, bfloat16")
# What says most comes first: time may end.
KINDS = (
    "edges",
    "TransformerConv",
    "fused alone, bfloat16",
    "full",
    "tiles of cliques",
    "edges of cliques",
    "edges, path and token",
    "full, fused",
    "fused alone",
)


def measure_attention(part: Part, setting: Setting) -> None:
    """Attention along edges, in tiles and between all nodes, as lengths grow."""
    sizes = setting.sizes
    if keras.backend.backend() != "torch":
        part.skip("TransformerConv", "compared on torch only")
    last: dict[tuple, float] = {}
    stopped: set[tuple] = set()
    for number, length in enumerate(sizes.lengths):
        with part.share(len(sizes.lengths) - number):
            for degree in sizes.attention_degrees:
                where = f"{length} nodes, degree {degree}"
                if length * degree > sizes.longest:
                    part.skip(where, f"more than {sizes.longest} edges")
                elif part.has_time_for(where):
                    _attention_of(part, setting, length, degree, last, stopped)


def _attention_of(part, setting, length: int, degree: int, last, stopped) -> None:
    """Measure all kinds of attention at a length, but those that are too slow."""
    sizes, where, makers = setting.sizes, f"{length} nodes, degree {degree}", {}
    for kind in KINDS:
        is_full = kind in _FULL
        key = (kind, 0 if is_full else degree)
        if key in stopped or (is_full and degree != sizes.attention_degrees[0]):
            continue
        if kind == "TransformerConv" and keras.backend.backend() != "torch":
            continue
        growth = 16 if is_full else 4
        expected = growth * last.get(key, 0.0) * (setting.rounds + 2) / 1e3
        reason = None
        if expected > max(part.left(), 0.0):
            reason = f"it would take about {expected:.0f} s"
        elif kind in _FULL[1:]:
            reason = _too_large(length, sizes.heads)
        if reason:
            part.skip(f"{where}: {kind}", reason)
            stopped.add(key)
            continue
        makers[kind] = lambda kind=kind: attention_step(kind, length, degree, sizes)
    found = alternated(part, makers, setting.rounds, where)
    for kind, timing in found.items():
        is_full = kind in _FULL
        last[kind, 0 if is_full else degree] = timing.ms
        part.add(
            "attention",
            nodes=length,
            degree=None if is_full else degree,
            kind=kind,
            ms=timing.ms,
            gib=timing.gib,
            first_s=timing.first,
        )
    # Longer graphs need more memory; of time there may be more for them.
    broken = {what for what, _ in part.failed}
    broken |= {what for what, why in part.skipped if not why.startswith("no time")}
    for kind in makers:
        if f"{where}: {kind}" in broken:
            stopped.add((kind, 0 if kind in _FULL else degree))
    for peer in ("TransformerConv", *_FULL):
        if "edges" in found and peer in found:
            name = f"{where}, edges against {peer}"
            part.ratio(name, found["edges"].ms, found[peer].ms)


def _too_large(length: int, heads: int) -> str | None:
    """Return why all pairs of nodes do not fit where the device is the host."""
    import os

    if device.kind() != "cpu" or not hasattr(os, "sysconf"):
        return None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = 3 * 4 * heads * length**2
    if needed < _HOST_SHARE * memory:
        return None
    return f"all pairs take about {needed / 2**30:.0f} GiB of the host's memory"


def attention_step(kind: str, length: int, degree: int, sizes):
    """Return a step of a kind of attention: forward, and the gradients."""
    import argparse

    from examples.benchmarks import attention

    options = argparse.Namespace(heads=sizes.heads, key_dim=sizes.key_dim)
    if kind == "TransformerConv":
        ends = attention._graph(length, degree)
        return attention.peer_step(length, ends, options, device.torch_device())
    if kind.startswith("fused alone"):
        return _fused_step(length, sizes, kind.partition(", ")[2] or "float32")
    return _layer_step(kind, length, degree, sizes)


def _layer_step(kind: str, length: int, degree: int, sizes):
    from keras import ops

    from examples.benchmarks.attention import _graph
    from keras_bandgnn import layers
    from keras_bandgnn import ops as graph_ops
    from keras_bandgnn.primitives.tiles import Tiles

    keras.utils.set_random_seed(0)
    width, plan = sizes.heads * sizes.key_dim, {}
    with_path = kind == "edges, path and token"
    sender, receiver = _graph(length, degree)
    if with_path:
        nodes = np.arange(length - 1, dtype=np.int32)
        sender = np.concatenate([sender, nodes, nodes + 1])
        receiver = np.concatenate([receiver, nodes + 1, nodes])
        order = np.argsort(receiver, kind="stable")
        sender, receiver = sender[order], receiver[order]
    if kind.endswith("of cliques"):
        # Each block of nodes is a clique.
        receiver = np.arange(length, dtype=np.int32).repeat(degree)
        first = receiver // degree * degree
        sender = first + np.tile(np.arange(degree, dtype=np.int32), length)
        blocks = np.arange(length // degree, dtype=np.int32)
        if kind.startswith("tiles"):
            edge = np.arange(length * degree, dtype=np.int32)
            plan[Tiles(degree).key()] = {
                "row": blocks[None],
                "column": blocks[None],
                "edge": edge.reshape(1, -1, degree, degree),
                "rest": np.full((1, 1), length * degree, np.int32),
            }
    layer = layers.DualInterleavedAttention(
        sizes.heads,
        sizes.key_dim,
        "full" if kind.startswith("full") else "sparse",
        self_loops=with_path,
        fused=kind == "full, fused",
    )
    layer.build((1, length, width))
    weights = [v.value for v in layer.trainable_variables]
    seeds = [v.value for v in layer.non_trainable_variables]
    batch = {
        "edge": {"sender": sender[None], "receiver": receiver[None]},
        "node": {
            "graph_id": np.zeros((1, length), np.int32),
            "mask": np.ones((1, length), bool),
        },
        "graph": {
            "n_node": np.array([[length]], np.int32),
            "mask": np.ones((1, 1), bool),
        },
        "plan": plan,
    }
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(1, length, width)).astype("float32")
    leaves = [ops.convert_to_tensor(states), *weights]

    def function(states, *given):
        *weights, batch = given
        tokens = {}
        if with_path:
            tokens["tokens"] = ops.mean(states, axis=1, keepdims=True)
        found = layer.stateless_call(weights, seeds, states, batch, **tokens)[0]
        if not with_path:
            return found
        return found[0] + found[1]

    return graph_ops.compiled_timer_step(function, leaves, [batch])


def _fused_step(length: int, sizes, dtype: str):
    """Return a step of Keras' fused attention and its maps, without masks."""
    from keras import ops

    from keras_bandgnn import ops as graph_ops

    width = sizes.heads * sizes.key_dim
    rng = np.random.default_rng(0)
    shapes = [(1, length, width), *[(width, width)] * 4]
    leaves = [
        ops.cast(rng.normal(size=s).astype("float32") / width**0.5, dtype)
        for s in shapes
    ]

    def function(states, query, key, value, output):
        rows = (1, length, sizes.heads, sizes.key_dim)
        q, k, v = (
            ops.reshape(ops.matmul(states, kernel), rows)
            for kernel in (query, key, value)
        )
        out = ops.dot_product_attention(q, k, v)
        return ops.matmul(ops.reshape(out, (1, length, width)), output)

    return graph_ops.compiled_timer_step(function, leaves, ())
