"""Writes the files of this folder; see README.md. Runs on version 0.1.0 alone."""

import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models, preprocessing, primitives
from keras_bandgnn.cli import main as cli

SOURCE = "def area(width, height):\n    half = width / 2\n    return half * height\n"
KINDS, EDGE_TYPES, ELEMENTS = 4, 2, (1, 6, 8)


def networks(count: int = 5, seed: int = 0) -> list:
    """Graphs with ids, features, edge types, candidates and labels of graphs."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.integers(5, 11))
        graphs.append(
            kb.Graph(
                size,
                *rng.integers(0, size, (2, 3 * size)),
                edge_type=rng.integers(0, EDGE_TYPES, 3 * size),
                node={
                    "kind": rng.integers(0, KINDS, size),
                    "value": rng.normal(size=(size, 3)).astype("float32"),
                },
                candidates=rng.permutation(size)[:3],
                slot=int(rng.integers(size)),
                label=int(rng.integers(3)),
            )
        )
    return graphs


def molecules(count: int = 4, seed: int = 1) -> list:
    """Atoms in space with an energy and forces."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.integers(4, 8))
        line = 1.2 * np.arange(size)[:, None] * [0.8, 0.5, 0.3]
        node = {
            "atomic_number": rng.choice(ELEMENTS, size),
            "position": line + 0.2 * rng.normal(size=(size, 3)),
            "force": rng.normal(size=(size, 3)),
        }
        graphs.append(kb.Graph(size, [], [], node=node, label=float(rng.normal())))
    return graphs


def prepared(layers, batcher=None, plan="auto"):
    return preprocessing.GraphPreprocessor(layers, batcher, plan)


def plan_of(*primitives_, **options):
    return primitives.Plan(*primitives_, **options)


def tasks() -> dict:
    """Name -> a task and graphs for it."""
    inputs = {"kind": KINDS, "value": {"features": 3}}
    p, types = primitives, {"num_edge_types": EDGE_TYPES}
    nets, atoms = networks(), molecules()
    transformer = {"num_layers": 1, "num_heads": 2}
    graphormer = models.GraphormerBackbone(
        inputs,
        8,
        max_degree=5,
        max_distance=2,
        global_token=True,
        num_edge_types=EDGE_TYPES + 1,
        **transformer,
    )
    gt = models.GTBackbone(inputs, 8, laplacian=2, **transformer)
    return {
        "selector_ggnn": (
            models.NodeSelector(
                models.GGNNBackbone(inputs, 8, 2, dropout=0.1, **types),
                prepared(
                    [
                        preprocessing.ReachabilityFilter(3),
                        preprocessing.RCMKCompile(4),
                    ],
                    preprocessing.DynamicBatcher(2),
                    plan_of(p.Banded(4), p.Grouped(8)),
                ),
                "slot",
                label_smoothing=0.1,
            ),
            nets,
        ),
        "selector_program": (
            models.NodeSelector(
                models.GGNNBackbone(
                    {"type": {"ids": 32}, "character": {"characters": 8}}, 4, 2
                ),
                prepared(
                    [
                        preprocessing.ProgramEncoder(
                            "character", num_type_buckets=32, num_subtoken_buckets=32
                        ),
                        preprocessing.ReachabilityFilter(2),
                    ],
                    preprocessing.StaticBatcher(2, "power_of_two"),
                    plan_of(p.Grouped(8, "aggregate"), schedule=p.ReceptiveField(2)),
                ),
            ),
            None,
        ),
        "nodes_gcn": (
            models.NodeClassifier(
                models.GCNBackbone(inputs, 8, last_kernel=False, **types),
                3,
                prepared(
                    [preprocessing.RCMKCompile(4, "breadth_first")],
                    preprocessing.StaticBatcher(3, "64"),
                    plan_of(p.Supernode(5), p.BlockSparse(4, 2)),
                ),
            ),
            nets,
        ),
        "classes_gat": (
            models.GraphClassifier(
                models.GATBackbone(inputs, 8, num_heads=2, **types),
                3,
                prepared([], preprocessing.DynamicBatcher(3), plan_of(p.Segment())),
                readout=kb.layers.GRUReadout(8, 2),
            ),
            nets,
        ),
        "classes_graphormer": (
            models.GraphClassifier(
                graphormer,
                2,
                prepared([*graphormer.graph_layers()]),
                readout="attention",
                hidden=4,
                multi_label=True,
            ),
            nets,
        ),
        "nodes_gt": (
            models.NodeClassifier(
                gt,
                3,
                prepared(
                    [
                        preprocessing.ClusterCompile(2, 4, "degree"),
                        *gt.graph_layers(),
                    ],
                    preprocessing.StaticBatcher(2, "64"),
                    preprocessing.AttentionPlan(4, share=0.5),
                ),
            ),
            nets,
        ),
        "numbers_schnet": (
            models.GraphRegressor(
                models.SchNetBackbone(ELEMENTS, 8, 1, num_gaussians=8, cutoff=4.0),
                prepared([preprocessing.RadiusGraph(4.0, 5)]),
                normalizer=preprocessing.TargetNormalizer(
                    "atom",
                    "atomic_number",
                    {1: -0.5, 6: -38.0, 8: -75.0},
                    mean=[0.25],
                    std=[1.5],
                ),
            ),
            atoms,
        ),
        "numbers_mpeu": (
            models.GraphRegressor(
                models.MPEUBackbone(ELEMENTS, 8, 1, num_gaussians=8),
                prepared([preprocessing.KNearestGraph(3)]),
                num_targets=2,
                hidden=4,
                activation=kb.layers.shifted_softplus,
                normalizer={"mean": [0.5, 0.0], "std": [2.0, 1.0]},
            ),
            atoms,
        ),
        "forces_painn": (
            models.ForceRegressor(
                models.PaiNNBackbone(ELEMENTS, 8, 1, 5.0, 6),
                prepared([preprocessing.FullyConnectedGraph()]),
                force_weight=5.0,
                normalizer={"mean": [0.5], "std": [2.0]},
            ),
            atoms,
        ),
    }


def fill(task, seed: int) -> None:
    """Weights that are far from symmetric."""
    rng = np.random.default_rng(seed)
    for weight in task.backbone.weights + task.head.weights:
        if "float" not in str(weight.dtype):
            continue
        shape = tuple(weight.shape)
        scale = 0.3 if len(shape) < 2 else 0.7 / np.sqrt(np.prod(shape[:-1]))
        weight.assign(scale * rng.standard_normal(shape).astype("float32"))


def arrays_of(graphs) -> dict:
    """Arrays of graphs by "number/name"."""
    arrays = {}
    for number, graph in enumerate(graphs):
        values = {
            "num_nodes": graph.num_nodes,
            "senders": graph.senders,
            "receivers": graph.receivers,
            "edge_type": graph.edge_type,
            "candidates": graph.candidates,
            "slot": graph.slot,
            "label": graph.label,
            **{f"node.{name}": value for name, value in graph.node.items()},
        }
        arrays |= {
            f"{number}/{name}": np.asarray(value)
            for name, value in values.items()
            if value is not None
        }
    return arrays


def rows_of(name: str, rows) -> dict:
    return {f"{name}/{number}": np.asarray(row) for number, row in enumerate(rows)}


class Stop(keras.callbacks.Callback):
    """Ends the training after the third batch of the second epoch, as a kill would."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 2):
            raise InterruptedError


def small_task():
    """A task whose training is saved half way."""
    keras.utils.set_random_seed(0)
    backbone = models.GCNBackbone({"kind": KINDS}, 4, 1, EDGE_TYPES)
    # `plan="auto"` depends on the machine.
    preprocessor = prepared([], preprocessing.DynamicBatcher(2), plan_of())
    task = models.NodeSelector(backbone, preprocessor)
    fill(task, 20)
    rate = kb.training.WarmupDecay(0.1, 2, 30)
    # Adam would blow up the rounding of gradients that are zero.
    task.compile(keras.optimizers.SGD(rate, momentum=0.9))
    return task


def weights_of(task) -> dict:
    return {
        str(number): keras.ops.convert_to_numpy(weight)
        for number, weight in enumerate(task.trainable_variables)
    }


def write_presets(folder: Path) -> None:
    predictions = {}
    for number, (name, (task, graphs)) in enumerate(tasks().items()):
        fill(task, number)
        task.save_to_preset(folder / "presets" / name)
        if graphs is None:
            graphs = list(kb.data.program_graphs(SOURCE, max_instances=4))
        predictions |= rows_of(name, task.predict(graphs))
        if name == "forces_painn":
            predictions |= rows_of(f"{name}.forces", task.predict_forces(graphs))
        if name == "selector_ggnn":
            task.save_to_preset(folder / "presets" / f"{name}_float16", "float16")
    np.savez_compressed(folder / "predictions.npz", **predictions)


def write_training(folder: Path) -> None:
    # A whole model with the state of its optimiser.
    task = small_task()
    task.fit(networks(), epochs=1, verbose=0)
    task.save(folder / "task.keras")
    arrays = rows_of("keras", task.predict(networks()))
    arrays["loss"], arrays["accuracy"] = task.evaluate(networks(), verbose=0)
    # A training that was killed.
    task = small_task()
    saving = kb.training.SaveProgress(folder / "progress", save_freq=2)
    try:
        task.fit(networks(8), epochs=3, verbose=0, callbacks=[saving, Stop()])
    except InterruptedError:
        pass
    task = small_task()
    task.fit(networks(8), epochs=3, verbose=0)
    arrays |= rows_of("trained", task.predict(networks()))
    np.savez_compressed(folder / "training.npz", **arrays)


def write_search(folder: Path) -> None:
    class Stub(kb.tuning.GraphHyperModel):
        def space(self, hp):
            return {"x": hp.Choice("x", [0.1, 0.3, 0.7]), "y": hp.Float("y", 0.0, 1.0)}

        def build(self, hp):
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        def fit(self, hp, model, graphs, **options):
            values = self.space(hp)
            return {"val_accuracy": values["x"] * values["y"], "seconds": 1.0}

    tuner = kb.tuning.make_tuner(Stub(networks()), folder / "search", "random", 2)
    tuner.search(networks(), verbose=0)
    rows = json.dumps(kb.tuning.trial_table(tuner), indent=1)
    (folder / "search.json").write_text(rows + "\n")


def write_exports(folder: Path) -> None:
    forms = {"torch": ("torch", "onnx"), "tensorflow": ("tf_saved_model", "litert")}
    for form in forms[keras.backend.backend()]:
        with tempfile.TemporaryDirectory() as work:
            path, graphs = Path(work) / form, networks()
            plan = plan_of(primitives.Banded(8))
            task = small_task()
            task.export(path, form, graphs, plan=plan)
            shutil.make_archive(folder / "exports" / form, "zip", path)
        arrays = rows_of("exported", task.predict(graphs))
        np.savez_compressed(folder / "exports" / f"{form}.npz", **arrays)


def key_paths(tree, path: str = "") -> list[str]:
    """Names of the arrays of a batch, in their order."""
    if not isinstance(tree, dict):
        return [path]
    return [p for k, v in tree.items() for p in key_paths(v, f"{path}/{k}".lstrip("/"))]


def batch_of(graphs: list, plan, edge_weight=None) -> dict:
    batcher = preprocessing.StaticBatcher(8, "64")
    options = {"shuffle": False, "edge_weight": edge_weight}
    return kb.data.GraphLoader(graphs, batcher, plan, **options)[0][0]


def orders_of_arrays() -> dict[str, list[str]]:
    """The order of the arrays of batches, by which functional models bind them."""
    p, field = primitives, primitives.ReceptiveField
    plans = {
        "segment": p.Plan(),
        "banded": p.Plan(p.Banded(4)),
        "grouped": p.Plan(rest=p.Grouped()),
        "dense": p.Plan(p.Dense(8)),
        "block_sparse": p.Plan(p.BlockSparse(4)),
        "supernode": p.Plan(p.Supernode(2)),
        "compact": p.Plan(rest=p.Grouped(), schedule=field(2)),
        "blocks": p.Plan(p.Banded(4), schedule=field(2, merge=False, order="blocks")),
    }
    orders = {}
    for kind in ("candidates", "graph", "node", "none"):
        for name, plan in plans.items():
            for weight in (None, "weight") if plan.schedule is None else (None,):
                if plan.schedule is not None and kind != "candidates":
                    continue
                batch = batch_of(networks_of(kind), plan, weight)
                orders[f"{kind} {name} {weight or ''}".strip()] = key_paths(batch)
    return orders


def write_orders(folder: Path) -> None:
    text = json.dumps(orders_of_arrays(), indent=0)
    (folder / "orders.json").write_text(text + "\n")


def networks_of(kind: str) -> list:
    """Graphs with a context and edge features, labelled in one of four ways."""
    changes = {
        "candidates": lambda g: {},
        "graph": lambda g: {"candidates": None, "slot": None},
        "node": lambda g: {
            "candidates": None,
            "slot": None,
            "label": g.node["kind"],
            "label_level": "node",
        },
        "none": lambda g: {"candidates": None, "slot": None, "label": None},
    }[kind]
    return [
        graph.replace(
            edge={"weight": np.ones(len(graph.senders), "float32")},
            context={"hot": 1.0, "cold": 2.0},
            **changes(graph),
        )
        for graph in networks()
    ]


def write_functional(folder: Path) -> None:
    """A functional model of layers, called as they were in 0.1.0."""
    batch = batch_of(networks(), primitives.Plan())
    x = keras.tree.map_structure(
        lambda a: keras.Input(batch_shape=a.shape, dtype=str(a.dtype)), batch
    )
    layers = kb.layers
    states = layers.NodeEncoder(4, {"kind": KINDS})(x["node"])
    messages = layers.BandedMessagePassing(4, EDGE_TYPES)(states, x["plan"])
    states = layers.GRUUpdate(4)(messages, states)
    states = layers.GraphAttention(4, 2)(states, x["edge"])
    states = layers.GraphConvolution(4)(states, x)
    outputs = [
        layers.ReadoutHead(2, layers.GRUReadout(4))(states, x),
        layers.GraphReadout(2)(states, x=x),
    ]
    model = keras.Model(x, outputs)
    model.save(folder / "functional.keras")
    arrays = {str(i): np.asarray(y.detach()) for i, y in enumerate(model(batch))}
    np.savez_compressed(folder / "functional.npz", **arrays)


def main(folder: Path) -> None:
    # Later versions hold the room `assembly`.
    assert importlib.util.find_spec("keras_bandgnn.assembly") is None, kb.__file__
    if "exports" in sys.argv:
        write_exports(folder)
        return
    if "functional" in sys.argv:
        write_orders(folder)
        write_functional(folder)
        return
    for name in ("presets", "graphs", "programs", "progress", "search", "exports"):
        shutil.rmtree(folder / name, ignore_errors=True)
    np.savez_compressed(folder / "networks.npz", **arrays_of(networks()))
    np.savez_compressed(folder / "more_networks.npz", **arrays_of(networks(8)))
    np.savez_compressed(folder / "molecules.npz", **arrays_of(molecules()))
    compiler = prepared(
        [preprocessing.ReachabilityFilter(3), preprocessing.RCMKCompile(4)]
    )
    kb.data.write_store(folder / "graphs", compiler.compile(networks()))
    with tempfile.TemporaryDirectory() as work:
        Path(work, "area.py").write_text(SOURCE)
        command = ["compile", work, "--out", str(folder / "programs")]
        options = ["--split", "none", "--steps", "2", "--block-size", "8"]
        assert cli.main([*command, *options]) == 0
    write_presets(folder)
    write_training(folder)
    write_search(folder)
    write_exports(folder)
    write_orders(folder)
    write_functional(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
