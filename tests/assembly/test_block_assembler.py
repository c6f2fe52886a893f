import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.assembly.block_assembler import BlockAssembler, most_blocks
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField, Segment
from keras_bandgnn.testing import random_graph

STEPS = 3
SCHEDULE = ReceptiveField(STEPS, merge=False, order="blocks")
RESTS = {"segment": Segment(), "grouped": Grouped(4), "drop": "drop"}


def graphs_of(rng, count):
    graphs = []
    for _ in range(count):
        nodes = int(rng.integers(2, 30))
        graphs.append(random_graph(rng, nodes, int(rng.integers(0, 2 * nodes))))
    return graphs


def plan_of(rest="segment", size=4):
    return Plan(Banded(size), rest=RESTS[rest], schedule=SCHEDULE)


def assembler_of(graphs, plan, parts=1):
    cuts = np.linspace(0, len(graphs), parts + 1).astype(int)
    pieces = [
        FlatGraphs.from_graphs(graphs[a:b])
        for a, b in zip(cuts[:-1], cuts[1:], strict=True)
    ]
    return BlockAssembler(pieces, plan, 3, True)


def budget_of(sizes, groups):
    """The least capacities that the sizes promise to suffice."""
    budget = {"graph": 1 + max(len(group) for group in groups)}
    for name, values in sizes.items():
        budget[name] = max(int(values[group].sum()) for group in groups)
    budget["node"] += 1
    budget["candidate"] = int(sizes["candidate"].max())
    return budget


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_most_blocks_is_the_largest_number_over_all_places(masks, size):
    lengths = [len(mask) for mask in masks]
    active = np.concatenate(masks).astype(bool)
    pointer = np.concatenate([[0], np.cumsum(lengths)])
    expected = [
        max(
            len(np.unique((np.flatnonzero(mask) + offset) // size))
            for offset in range(size)
        )
        for mask in masks
    ]
    assert most_blocks(active, pointer, size).tolist() == expected


def test_a_prefix_touches_one_block_more_than_its_length_says():
    for count in range(1, 20):
        found = most_blocks(np.arange(30) < count, np.array([0, 30]), 4)
        assert found.tolist() == [-(-(count - 1) // 4) + 1]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(RESTS)),
    st.sampled_from([1, 3, 8]),
)
def test_the_sizes_suffice_in_any_order(seed, rest, size):
    rng = np.random.default_rng(seed)
    graphs = graphs_of(rng, 6)
    assembler = assembler_of(graphs, plan_of(rest, size))
    order = rng.permutation(6)
    groups = [order[:3], order[3:]]
    budget = budget_of(assembler.sizes(), groups)
    assembler.build([Supergraph(group, budget) for group in groups], 2)


@pytest.mark.parametrize("rest", RESTS)
def test_steps_hold_the_blocks_and_edges_that_count(rest):
    rng = np.random.default_rng(3)
    graphs, size = graphs_of(rng, 5), 4
    assembler = assembler_of(graphs, plan_of(rest, size))
    groups = [np.array([4, 1]), np.array([0, 2])]
    budget = budget_of(assembler.sizes(), groups)
    ((x, _, _), _) = assembler.build([Supergraph(g, budget) for g in groups], 2)[0]
    for g, group in enumerate(groups):
        flat = FlatGraphs.from_graphs([graphs[i] for i in group])
        distance = SCHEDULE.distances(flat)
        offset = flat.node_ptr[:-1].repeat(flat.num_edges)
        sender, receiver = flat.senders + offset, flat.receivers + offset
        far = np.abs(sender // size - receiver // size) > 1
        order, place = (x["plan"]["blocks"][name][g] for name in ("order", "place"))
        np.testing.assert_array_equal(order[place], np.arange(len(order)))
        for step in range(STEPS):
            arrays = x["plan"][f"step:{step}"]
            block = arrays["block"][g]
            np.testing.assert_array_equal(block, order[: len(block)])
            counts = distance <= STEPS - 1 - step
            assert set(np.flatnonzero(counts) // size) <= set(block.tolist())
            if rest != "segment":
                assert len(arrays) == 1 + (rest == "grouped")
                continue
            own = arrays["segment"]
            real = own["receiver"][g] < len(block) * size
            ends = [own[name][g][real] for name in ("sender", "receiver")]
            # Back from places to nodes.
            ends = [order[ids // size] * size + ids % size for ids in ends]
            found = sorted(zip(*ends, own["type"][g][real], strict=True))
            kept = far & counts[receiver]
            columns = (sender[kept], receiver[kept], flat.edge_type[kept])
            assert found == sorted(zip(*columns, strict=True))


def test_parts_and_processes_give_the_same_batches():
    graphs = graphs_of(np.random.default_rng(5), 9)
    one = assembler_of(graphs, plan_of())
    three = pickle.loads(pickle.dumps(assembler_of(graphs, plan_of(), parts=3)))
    sizes = one.sizes()
    for name, values in three.sizes().items():
        np.testing.assert_array_equal(values, sizes[name])
    group = np.array([0, 4, 8])
    supergraphs = [Supergraph(group, budget_of(sizes, [group]))]
    batches = [made.build(supergraphs, 1)[0][0][0] for made in (one, three)]
    for own, other in zip(*(leaves(batch) for batch in batches), strict=True):
        np.testing.assert_array_equal(own, other)


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    return [tree]


def test_labels_of_other_nodes_have_no_weight():
    graph = Graph(
        6,
        [0, 1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        node={"read": [0, 0, 1, 0, 1, 0]},
        label=np.arange(6),
        label_level="node",
    )
    field = ReceptiveField(2, merge=False, read="read", order="blocks")
    plan = Plan(Banded(2), schedule=field)
    _, _, weight = GraphLoader([graph], DynamicBatcher(1), plan)[0]
    assert np.flatnonzero(weight[0]).tolist() == [2, 4]


def test_loaders_keep_their_batches_small():
    rng = np.random.default_rng(6)
    graphs = []
    for _ in range(40):
        path = np.arange(400)
        graph = Graph(400, path[1:], path[:-1], candidates=[0, 1], label=0)
        graphs.append(graph)
    rng.shuffle(graphs)
    loader = GraphLoader(graphs, DynamicBatcher(3), plan_of(size=64))
    x = loader[0][0]
    total = x["plan"]["blocks"]["order"].shape[1]
    # Four graphs, each in at most two blocks of their about 25.
    for step in range(STEPS):
        assert x["plan"][f"step:{step}"]["block"].shape[1] <= 8 < total


def test_too_small_a_budget_names_the_resource():
    graphs = graphs_of(np.random.default_rng(7), 3)
    assembler = assembler_of(graphs, plan_of())
    group = np.arange(3)
    budget = budget_of(assembler.sizes(), [group])
    with pytest.raises(ValueError, match="block:4@0"):
        assembler.build([Supergraph(group, {**budget, "block:4@0": 4})], 1)
