"""Numbers without a result show in the output: no guard of padding hides them."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from tests.layers.test_calls import BATCH, GRAPH, STATES_LAYERS, N, call

# A node among the pairs of `BATCH` that sends and receives.
OTHERS = GRAPH.senders != GRAPH.receivers
ENDS = GRAPH.senders[OTHERS], GRAPH.receivers[OTHERS]
NODE = next(n for n in range(4) if n in ENDS[0] and n in ENDS[1])


def numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def outputs(layer, arguments):
    parts = [each for each in keras.tree.flatten(layer(*arguments)) if each is not None]
    return [numpy(each) for each in parts]


def with_node(states, value):
    states = states.copy()
    states[0, NODE] = value
    return states


def weighted_batch(weight):
    """`BATCH` with these weights of the edges into `NODE`, and 0.5 elsewhere."""
    into = (GRAPH.receivers == NODE) & (GRAPH.senders != NODE)
    edge = {**GRAPH.edge, "w": np.where(into, weight, 0.5)}
    loader = kb.preprocessing.GraphLoader(
        [GRAPH.replace(edge=edge)],
        kb.preprocessing.StaticBatcher(1),
        kb.primitives.Plan(),
        edge_weight="w",
    )
    batch = loader[0][0]
    assert batch["node"]["mask"].shape == (1, N)
    return {**batch, "pair": BATCH["pair"]}


@pytest.mark.parametrize("name", STATES_LAYERS)
def test_nan_in_states_is_nan_in_the_output(name):
    layer, arguments = call(name)
    clean = outputs(layer, arguments)
    assert all(np.isfinite(each[0, :4]).all() for each in clean)
    for place, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            changed = list(arguments)
            # The first edge is real, as is the first node of a pair.
            changed[place] = argument.copy()
            changed[place][0, 0] = np.nan
            out = outputs(layer, changed)
            assert any(np.isnan(each).any() for each in out), place


@pytest.mark.parametrize("weight", [-0.1, -1.0, -2.0, 0.0])
@pytest.mark.parametrize("name", STATES_LAYERS)
def test_no_weight_of_edges_cuts_a_node_off(name, weight):
    layer, arguments = call(name)
    batch = weighted_batch(weight)
    results = []
    for value in (1.0, -2.0):
        changed = [batch if each is BATCH else each for each in arguments]
        changed[0] = with_node(changed[0], value)
        results.append(outputs(layer, changed))
    missing = any(np.isnan(each).any() for each in results[0])
    assert missing or any(
        not np.array_equal(one, other) for one, other in zip(*results, strict=True)
    )


@pytest.mark.parametrize(
    "layer", [kb.layers.CosineCutoff(5.0), kb.layers.SineBasis(3, 5.0)]
)
def test_a_distance_of_nan_has_no_factor(layer):
    out = numpy(layer(np.array([[1.0, np.nan, 9.0]], "float32")))
    assert np.isfinite(out[0, [0, 2]]).all()
    assert np.isnan(out[0, 1]).all()


def test_a_repulsion_at_a_distance_of_nan_is_nan():
    batch = {**BATCH, "edge": {**BATCH["edge"]}}
    displacement = batch["edge"]["displacement"].copy()
    displacement[0, 0] = np.nan
    batch["edge"]["displacement"] = displacement
    assert np.isnan(numpy(kb.layers.ZBLRepulsion()(batch))[0, 0]).all()
