"""Layers and models with nodes on four devices of a CPU, and on one.

`python sequence_cases.py` prints a line of JSON per case: its class, and the largest
differences of outputs and gradients. A class that says `splits_sequences = True` and
has no case here is made, and called, as in the example of its docstring.
"""

import inspect
import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=4",
    )
)
import jax
import jax.numpy as jnp
import keras
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from docstrings import calls_of, sample
from registered import registered, small_backbone

import keras_bandgnn as kb
from keras_bandgnn.distribution.sequence_layout import SequenceLayout
from keras_bandgnn.layers import dense as flat_dense
from keras_bandgnn.layers import dropout, graph_readout
from keras_bandgnn.models.inspection import layer_states
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.ops.backend.jax_mesh import split_over_cores
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    StructuralEncoding,
    TargetNormalizer,
)
from keras_bandgnn.primitives import Banded, Plan, Segment

PARTS, H, HEADS, NODES = 4, 8, 4, 21
INPUTS = {"state": {"features": H}}


def graphs():
    """Graphs that the devices' borders cut; nearly as many as nodes of a device."""
    rng = np.random.default_rng(0)
    made = []
    for size in (NODES, 3, 2, *[1] * 8, 9):
        ends = rng.integers(0, size, (2, 3 * size))
        graph = kb.Graph(
            size,
            *ends,
            edge_type=rng.integers(0, 2, 3 * size),
            node={
                "state": rng.normal(size=(size, H)),
                "atomic_number": rng.integers(1, 9, size),
                "codes": rng.integers(0, 5, (size, 6)),
            },
            edge={
                "distance": rng.uniform(0.5, 3, 3 * size),
                "weight": rng.uniform(0.5, 2, 3 * size),
            },
            candidates=sorted({0, size - 1}),
            label=0,
            slot=size // 2,
        )
        made.append(StructuralEncoding(4, laplacian=2)(graph))
    return made


def batch(plan=None, edge_weight=None):
    plan = Plan(Banded(4), rest=Segment()) if plan is None else plan
    loader = GraphLoader(
        graphs(), DynamicBatcher(11), plan, shuffle=False, edge_weight=edge_weight
    )
    return loader[0][0]


def attention(pattern="sparse", biased=False, **options):
    layer = kb.layers.DualInterleavedAttention(HEADS, 2, pattern, **options)
    bias = kb.layers.AttentionBias(HEADS, num_edge_types=2, use_tokens=True)

    def run(x, states):
        edge = {k: v for k, v in x["edge"].items() if k != "distance"}
        biases = bias({"edge": edge}) if biased else (None, None, None)
        tokens = jnp.ones((*x["graph"]["mask"].shape, H)) if biased else None
        out = layer(states, x, *biases, tokens)
        return out[0] if biased else out

    return [layer, bias] if biased else [layer], run


def of(layer, run=None):
    """A layer of states, with how it is called."""
    return [layer], run or (lambda x, states: layer(states))


def readout(layer):
    return of(layer, lambda x, states: layer(states, x))


def transformer_layer():
    layer = kb.layers.GraphTransformerLayer(HEADS, 2, H)

    def run(x, states):
        tokens = jnp.ones((*x["graph"]["mask"].shape, H))
        (states, tokens) = layer(states, x, None, None, None, tokens)
        return layer(states, x, None, None, None, tokens)[0]

    return [layer], run


def messages(reduce, plan, **options):
    layer = kb.layers.BandedMessagePassing(H, 2, reduce=reduce)

    def run(x, states):
        return layer(states, x)

    return [layer], run, {"plan": plan, **options}


def normalizer():
    layer = TargetNormalizer(
        element_key="atomic_number", references={n: n for n in range(9)}
    )
    layer.build((None, None, 1))
    head = kb.layers.GraphReadout(1, "mean")

    def run(x, states):
        return layer(head(states, x), x)

    return [layer, head], run


def gru_update():
    layer = kb.layers.GRUUpdate(H)
    return of(layer, lambda x, states: layer(jnp.sin(states), states))


def painn_update():
    layer = kb.layers.PaiNNUpdate(H)

    def run(x, states):
        return layer(states, jnp.stack([states, 2 * states, -states], axis=2))[0]

    return of(layer, run)


def edges(layer):
    return of(layer, lambda x, states: layer(jnp.asarray(x["edge"]["distance"])))


def nodes(layer, name):
    return of(layer, lambda x, states: layer(x["node"][name]))


def model(make):
    """A model as it trains: random signs are those of one device."""
    made = make()

    def run(x, states):
        return made({**x, "node": {**x["node"], "state": states}}, training=True)

    return [made], run


def gt(**options):
    return kb.models.GTBackbone(INPUTS, H, 1, num_heads=HEADS, laplacian=2, **options)


class Encoded(kb.models.Backbone):
    """Embedded features alone, for tests of what comes after."""

    hidden_dim, num_edge_types = H, 2
    splits_sequences = True

    def __init__(self):
        super().__init__()
        self.encoder = kb.layers.NodeEncoder(H, INPUTS)
        self.encoder.build()
        self.built = True

    def call(self, x, training=False):
        return keras.ops.tanh(self.encoder(x))


def task(cls, *arguments, **options):
    return lambda: model(lambda: cls(Encoded(), *arguments, **options))


def example(cls):
    """A case of a layer or backbone by the example in its docstring."""
    if issubclass(cls, kb.models.Backbone):
        return model(lambda: small_backbone(cls, inputs=INPUTS)[0])
    layer, count = sample(cls), len(calls_of(cls)[1][0])
    parameters = [*inspect.signature(cls.call).parameters][1 : count + 1]

    def run(x, states):
        values = {"batch": x}
        return layer(*(values.get(name, states) for name in parameters))

    return [layer], run


BANDS = Plan(Banded(4), rest=Segment())
# Class, and how it is used -> the case, and the level of what it gives.
CASES = {
    "AttentionBias": (lambda: attention("sparse", biased=True), "node"),
    "BandedMessagePassing": (
        lambda: messages("mean", BANDS, edge_weight="weight"),
        "node",
    ),
    "BandedMessagePassing max": (lambda: messages("max", Plan()), "node"),
    "CharacterEncoder": (lambda: nodes(kb.layers.CharacterEncoder(H), "codes"), "node"),
    "CumulativeLink": (
        lambda: of(
            link := kb.layers.CumulativeLink(3), lambda x, states: link(states[..., :1])
        ),
        "node",
    ),
    "CosineCutoff": (lambda: edges(kb.layers.CosineCutoff(2.0)), "edge"),
    "DualInterleavedAttention": (attention, "node"),
    "DualInterleavedAttention full": (
        lambda: attention("full", max_length=NODES),
        "node",
    ),
    "ElementEmbedding": (
        lambda: nodes(kb.layers.ElementEmbedding(H, 9), "atomic_number"),
        "node",
    ),
    "Dropout": (lambda: of(dropout.Dropout(0.5)), "node"),
    "FlatDense": (lambda: of(flat_dense.FlatDense(H)), "node"),
    "GRUReadout": (lambda: readout(kb.layers.GRUReadout(H, 1)), "graph"),
    "GRUUpdate": (gru_update, "node"),
    "GaussianBasis": (lambda: edges(kb.layers.GaussianBasis(5, 3.0)), "edge"),
    **{
        f"GraphReadout {reduce}": (
            lambda reduce=reduce: readout(kb.layers.GraphReadout(3, reduce)),
            "graph",
        )
        for reduce in graph_readout.REDUCTIONS
    },
    "GraphTransformerLayer": (transformer_layer, "node"),
    "LayerNormalization": (lambda: of(kb.layers.LayerNormalization()), "node"),
    "NodeEncoder": (
        lambda: of(
            encoder := kb.layers.NodeEncoder(H, {**INPUTS, "atomic_number": 9}),
            lambda x, states: encoder({**x["node"], "state": states}),
        ),
        "node",
    ),
    "PaiNNUpdate": (painn_update, "node"),
    "ReadoutHead": (
        lambda: readout(kb.layers.ReadoutHead(3, kb.layers.GRUReadout(H, 1))),
        "graph",
    ),
    "Set2SetReadout": (
        lambda: readout(kb.layers.Set2SetReadout(2 * H, 1)),
        "graph",
    ),
    "SineBasis": (lambda: edges(kb.layers.SineBasis(5, 3.0)), "edge"),
    "TargetNormalizer": (normalizer, "graph"),
    # Models.
    "EmbeddingBackbone": (
        lambda: model(lambda: kb.models.EmbeddingBackbone(INPUTS, H)),
        "node",
    ),
    "GGNNBackbone": (
        lambda: model(lambda: kb.models.GGNNBackbone(INPUTS, H, 2, num_edge_types=2)),
        "node",
    ),
    "GTBackbone": (lambda: model(gt), "node"),
    "GraphormerBackbone": (
        lambda: model(
            lambda: kb.models.GraphormerBackbone(
                INPUTS, H, 1, num_heads=HEADS, max_degree=4, global_token=True
            )
        ),
        "node",
    ),
    "GraphClassifier": (
        task(kb.models.GraphClassifier, 2, readout="attention"),
        "graph",
    ),
    "GraphRegressor": (
        task(kb.models.GraphRegressor, readout=kb.layers.GRUReadout(H, 1)),
        "graph",
    ),
    "NodeClassifier": (task(kb.models.NodeClassifier, 2), "node"),
    "NodeRegressor": (task(kb.models.NodeRegressor, 2), "node"),
    "NodeSelector": (task(kb.models.NodeSelector, readout="slot"), "candidate"),
    "States": (
        lambda: model(
            lambda: compiled(
                kb.models.NodeClassifier(gt(), 2), layer_states, 0, of_backbone=True
            )
        ),
        "node",
    ),
}


# Of the level of nodes, as most are.
for NAME, CLASS in registered(keras.layers.Layer).items():
    device = not issubclass(CLASS, kb.preprocessing.GraphLayer | kb.models.Task)
    if device and getattr(CLASS, "splits_sequences", False):
        if not any(case.split()[0] == NAME for case in CASES):
            CASES[NAME] = (lambda cls=CLASS: example(cls), "node")


def compare(name):
    """Largest differences, relative to the largest number."""
    kb.compat.set_random_seed(0)
    make, level = CASES[name]
    layers, run, *options = make()
    x = batch(**(options[0] if options else {}))
    if name.startswith("Graphormer") or "GT" in name or name == "States":
        x["edge"].pop("distance")
    with keras.StatelessScope():
        # Builds the weights, and runs nothing.
        jax.eval_shape(run, x, jnp.asarray(x["node"]["state"]))
    rng = np.random.default_rng(1)
    weights = [w for layer in layers for w in layer.trainable_variables]
    for weight in weights:
        # No weight is 0: every gradient matters.
        weight.assign(weight + 0.1 * rng.normal(size=weight.shape))
    others = [w for layer in layers for w in layer.non_trainable_variables]
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()).reshape(1, PARTS), ("batch", "sequence")
    )

    def call(trainable, non_trainable, x):
        given = [*trainable, *non_trainable]
        pairs = list(zip([*weights, *others], given, strict=True))
        with keras.StatelessScope(state_mapping=pairs) as scope:
            out = run(x, x["node"]["state"])
            after = [scope.get_current_value(w) for w in others]
            after = [
                w.value if a is None else a for w, a in zip(others, after, strict=True)
            ]
        return out, after

    def result(call, x, count):
        mask = jnp.asarray(x[level]["mask"] if level != "edge" else x["edge"]["mask"])

        def loss(trainable, states):
            given = {**x, "node": {**x["node"], "state": states}}
            out, _ = call(trainable, [w.value for w in others], given)
            wide = mask.reshape(*mask.shape, *[1] * (out.ndim - mask.ndim))
            out = jnp.where(wide, out, 0.0)
            return jnp.sum(jnp.sin(out)), out

        function = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
        states = jnp.asarray(x["node"]["state"])
        (_, out), slopes = function([w.value for w in weights], states)
        out = out[:, :count] if level == "node" else out
        slopes = [*slopes[0], slopes[1][:, :count]]
        return np.asarray(out), [np.asarray(s) for s in slopes]

    if "mask" not in x["edge"]:
        x["edge"]["mask"] = x["edge"]["receiver"] < x["node"]["mask"].shape[1]
    count = x["node"]["mask"].shape[1]
    out, slopes = result(call, x, count)
    (spread,) = SequenceLayout(PARTS, level == "node")((x,))
    split = split_over_cores(call, mesh, level == "node")
    found, others_found = result(split, spread, count)
    largest = max(1e-3, *(float(np.abs(s).max()) for s in slopes))
    pairs = zip(slopes, others_found, strict=True)
    return {
        "case": name,
        "out": float(np.abs(out - found).max()),
        "slopes": max(float(np.abs(a - b).max()) for a, b in pairs) / largest,
        "size": float(np.abs(out).max()),
    }


def predictions():
    """A task with `GRUReadout`, as users predict with it."""
    group = kb.distribution.sequence_parallel(PARTS)
    one = kb.distribution.data_parallel(devices=["cpu:0"])
    found = []
    for distribution in (one, group):
        with distribution.scope():
            kb.compat.set_random_seed(0)
            made = kb.models.GraphRegressor(
                Encoded(), readout=kb.layers.GRUReadout(H, 1), normalizer=None
            )
            made.preprocessor = kb.preprocessing.GraphPreprocessor(
                [], DynamicBatcher(11), BANDS
            )
            found.append(np.stack(made.predict(graphs())))
    return {
        "case": "predict",
        "out": float(np.abs(found[0] - found[1]).max()),
        "slopes": 0.0,
        "size": float(np.abs(found[0]).max()),
    }


def main(names):
    for name in names or [*CASES, "predict"]:
        found = predictions() if name == "predict" else compare(name)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
