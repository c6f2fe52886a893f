"""Every public callable refuses wrong arguments, in one form of message.

`VALID` has arguments that work for each public class and function. From the signature
follow the wrong ones: of another type, out of range, not finite, too large, empty. What
a parameter takes is told by its annotation, and by its name where that says more.

`python tests/test_arguments.py` prints a table of the outcomes.
"""

import collections
import functools
import importlib
import inspect
import re
import sys
import types
import typing
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import checks

# `ops` are tensor functions, which see no values.
NO_ROOMS = {"Graph", "__version__", "batch", "ops"}
ROOMS = sorted(set(kb.__all__) - NO_ROOMS)
RAGGED = [[1, 2], [3]]
NAN, INFINITY, HUGE = float("nan"), float("inf"), 2**70

# What is wrong for each kind of parameter.
WRONG = {
    "integer": [None, "x", 2.5, True, [1], NAN, HUGE],
    "from 0": [None, "x", 2.5, True, [1], NAN, HUGE, -1],
    "count": [None, "x", 2.5, True, [1], NAN, HUGE, -1, 0],
    "number": [None, "x", True, [1.0], NAN],
    "not negative": [None, "x", True, [1.0], NAN, -1.0],
    "positive": [None, "x", True, [1.0], NAN, -1.0, 0.0, INFINITY],
    "fraction": [None, "x", True, [0.5], NAN, -0.5, 1.5],
    "boolean": [None, "no", 2, [], 0.5],
    "choice": [None, 3, [], b"x", "no such choice", ""],
    "text": [None, 3, [], b"x"],
    "name": [None, 3, [], b"x", ""],
    "path": [None, 3, 2.5, [3], b"x", ""],
    "paths": [None, 3, 2.5, [3], [None], {}],
    "existing": [None, 3, 2.5, [], b"x", "", "no/such/place"],
    "mapping": [None, 3, "x", [1], {3: 1}, {"": 1}],
    "plain mapping": [None, 3, "x", [1]],
    "names": [None, 3, [3], [None], [""]],
    "function": [None, 3, "x", []],
    "graph": [None, 3, "x", {}, [1]],
    "graphs": [None, 3, "x", {}, [1, 2], [None], ["x"]],
    "ids": [None, "x", {}, RAGGED, [0.5], [-1], [[0]], [HUGE]],
    "array": [None, "x", {}, RAGGED],
    "object": [None, 3, "x", {}, []],
    "source": [None, 3, [], {}],
    "sequence": [None, 3, [None], [3], ["x"]],
    "integers": [None, "x", 2.5, True, [], ["x"], [True], [0], -1, 0],
    "elements": [None, "x", 2.5, True, [], ["x"], [1, 1], [-1], [500], 500, 0, {}],
    "devices": [3, "x", [], [3], ["no such device"]],
    "seeds": [None, "x", 2.5, True, NAN, -1, ["x"], [-1]],
    "callbacks": [3, "x", [3], ["x"], {}],
    "not for graphs": [32, "x"],
    "any path": [None, 3, 2.5, [3], b"x"],
    "label": ["x", {}, RAGGED, ["x"]],
    "labels beside": [3, "x", [0, 1]],
    "pairs": [3, "x", {}, [1], [[0.5, 1]], [[0, -1]], [[0, 1, 2, 3]]],
    "indices": [None, "x", {}, RAGGED, [0.5], [[0]], [HUGE]],
    "fractions": [None, 3, "x", [0.5], [0.5, 0.5, 0.5], [1, "x", 0], [2, -1, 0]],
    "numbers": [None, 3, "x", [], ["x"], [NAN, 1.0], [2.0, 1.0]],
    "positive or choice": ["x", True, [1.0], NAN, -1.0, 0.0],
    "count or choice": [None, "x", True, 2.5, [1], -1, 0],
    "references": [3, "x", [1], {"x": 1.0}, {1: "x"}],
    "radii": [3, "x", [1], {"x": 1.0}, {1: "x"}, {1: -1.0}, {500: 1.0}],
    "boolean or order": ["x", 3, [0.5], RAGGED],
    "graph layer": [None, 3, "x", {}],
    "fan-outs": [None, 3, "x", [], {}, [0], [-2], ["x"], [2.5], [{}], [{0: 0}], [None]],
}
BY_ANNOTATION = {
    int: "count",
    float: "positive",
    bool: "boolean",
    str: "choice",
    collections.abc.Mapping: "mapping",
    dict: "mapping",
    collections.abc.Callable: "function",
    kb.Graph: "graph",
}
# Where the name of a parameter says more than its annotation.
BY_NAME = {
    "graphs": "graphs",
    "source": "graphs",
    "backbone": "object",
    "batcher": "object",
    "preprocessor": "object",
    "model": "object",
    "plan": "object",
    "sampler": "object",
    "hardware": "object",
    "schedule": "object",
    "devices": "devices",
    "directory": "path",
    "path": "path",
    "elements": "elements",
    "element_cutoffs": "radii",
    "seed": "from 0",
    "prefetch": "from 0",
    "senders": "ids",
    "receivers": "ids",
    "edge_type": "ids",
    "candidates": "ids",
    "origin": "ids",
    "dropout": "fraction",
    "input_dropout": "fraction",
    "attention_dropout": "fraction",
    "message_dropout": "fraction",
    "label_smoothing": "fraction",
    "momentum": "fraction",
    "validation_data": "graphs",
    "monitor": "name",
    "edge_weight": "name",
    "seconds": "positive",
    "layers": "sequence",
    "ax": "object",
    "pairs": "pairs",
    "known": "pairs",
    "validation_pairs": "pairs",
    "title": "text",
    "task": "object",
    "explanations": "sequence",
}
# Keras takes these, and says what it takes.
OF_KERAS = {"activation", "dtype", "name", "optimizer", "loss", "reduction", "args"}


@functools.cache
def graph(label=1, **changes):
    return kb.Graph(
        3, [0, 1], [1, 2], node={"kind": [0, 1, 1], "h": [[1.0, 2.0]] * 3}, label=label
    )


@functools.cache
def graphs():
    return [graph(label) for label in (0, 1, 0, 1)]


@functools.cache
def molecules():
    return [
        kb.Graph(
            2,
            [1, 0],
            [0, 1],
            label=float(index),
            node={"atomic_number": [1, 8], "force": [[0.0, 0.0, 1.0]] * 2},
            edge={"displacement": [[0, 0, 1.0], [0, 0, -1.0]]},
        )
        for index in range(4)
    ]


@functools.cache
def choices():
    return [graph().replace(candidates=[1, 2], label=index % 2) for index in range(4)]


def corpus(folder):
    """A corpus without packages."""
    (folder / "corpus.json").write_text('{"packages": []}')
    return folder


def node_graph():
    return graph().replace(label=[0, 1, 1], label_level="node")


@functools.cache
def backbone():
    return kb.models.GCNBackbone({"kind": 2}, hidden_dim=4)


@functools.cache
def classifier():
    return kb.models.GraphClassifier(backbone(), 2)


@functools.cache
def regressor():
    return kb.models.GraphRegressor(
        kb.models.SchNetBackbone([1, 8], hidden_dim=4, num_steps=1, num_gaussians=4)
    )


@functools.cache
def node_classifier():
    return kb.models.NodeClassifier(backbone(), 2)


@functools.cache
def link_predictor():
    return kb.models.LinkPredictor(backbone())


@functools.cache
def flat():
    return kb.data.FlatGraphs.from_graphs(graphs())


@functools.cache
def function():
    return kb.programs.function_graph("def f(a, b): return a - b")


def program():
    code = "def f(a, b):\n    c = a + b\n    return c * a\n"
    return kb.programs.program_graphs(code, max_instances=1)[0]


@functools.cache
def edges():
    return kb.primitives.Edges(
        np.array([0, 1]), np.array([1, 2]), np.zeros(2, np.int32), 3, 1
    )


RESULT = "a result, which functions of the library make"
BASE = "a base class, whose subclasses are listed"
PROTOCOL = "a step of the device program, between layers of the library"
OPTIONAL = "needs packages that are not installed everywhere; has tests of its own"
LAYER_1 = {"units": 4}


def atoms_graph():
    return kb.Graph(2, [], [], node={"position": [[0.0] * 3, [1.0] * 3]})


# Room and name: arguments that work, or a function of the temporary folder that makes
# them; a string says why there is nothing to try.
VALID = {
    "Graph": {"num_nodes": 2, "senders": [0], "receivers": [1]},
    "config.cache_folder": {},
    "config.restore_process": {},
    "config.set_cache_folder": lambda tmp: {"path": tmp},
    "config.tune_process": "changes the process; has tests of its own",
    # === data ===
    "data.LinkSplit": RESULT,
    "data.NodePairs": {"senders": [0], "receivers": [1]},
    "data.check_leaks": lambda tmp: {"graph": graph(), "pairs": [[0, 2]]},
    "data.split_links": lambda tmp: {"graph": graph()},
    "data.FlatGraphs": {
        "num_nodes": [2],
        "num_edges": [1],
        "senders": [0],
        "receivers": [1],
    },
    "preprocessing.GraphLoader": lambda tmp: {"graphs": graphs()},
    "data.GraphStore": lambda tmp: {"path": store(tmp)},
    "data.Limits": {},
    "programs.ProgramGraph": RESULT,
    "data.StoreWriter": lambda tmp: {"path": tmp / "new.store", "fingerprint": {}},
    "programs.FunctionGraph": RESULT,
    "programs.GreatExample": RESULT,
    "programs.RayPool": OPTIONAL,
    "programs.encode_function": lambda tmp: {"function": function()},
    "programs.function_graph": {"source": "def f(a, b): return a - b"},
    "programs.encode_program": lambda tmp: {"program": program()},
    "data.from_ase": OPTIONAL,
    "data.from_jraph": OPTIONAL,
    "data.from_networkx": OPTIONAL,
    "data.from_pandas": OPTIONAL,
    "data.from_pyg": OPTIONAL,
    "data.from_scipy": lambda tmp: {"matrix": matrix()},
    "data.from_rdkit": OPTIONAL,
    "data.from_smiles": OPTIONAL,
    "data.graphs_of": lambda tmp: {"source": graphs()},
    "programs.find_programs": lambda tmp: {"path": tmp},
    "data.list_datasets": {},
    "data.load": lambda tmp: {"name": "cora", "path": tmp, "download": False},
    "programs.load_varmisuse": lambda tmp: {"path": tmp, "split": "train"},
    "data.open_store": lambda tmp: {"path": store(tmp)},
    "programs.corpus_packages": lambda tmp: {"path": corpus(tmp), "split": "train"},
    "programs.bug_samples": {"functions": []},
    "programs.plant_bug": {"source": "def f(a, b):\n    return a\n"},
    "programs.program_graphs": {"source": "def f(a):\n    return a\n"},
    "programs.python_files": lambda tmp: {"paths": tmp},
    "data.read_structures": OPTIONAL,
    "data.scaffold_split": OPTIONAL,
    "programs.read_corpus": lambda tmp: {"path": corpus(tmp), "split": "train"},
    "programs.read_tree": lambda tmp: {"paths": tmp},
    "programs.read_great": lambda tmp: {"path": tmp},
    "programs.read_varmisuse": lambda tmp: {"path": tmp},
    "data.to_ase": OPTIONAL,
    "data.to_jraph": OPTIONAL,
    "data.to_networkx": OPTIONAL,
    "data.to_pandas": OPTIONAL,
    "data.to_pyg": OPTIONAL,
    "data.to_scipy": lambda tmp: {"graph": graph()},
    "programs.variable_usages": {"source": "def f(a, b):\n    return a\n"},
    "data.write_store": lambda tmp: {"path": tmp / "new.store", "graphs": graphs()},
    "programs.write_varmisuse": lambda tmp: {
        "path": tmp / "new.jsonl.gz",
        "programs": [program()],
    },
    # === preprocessing ===
    "preprocessing.AddSelfLoops": {},
    "preprocessing.LargestComponent": {},
    "preprocessing.NormalizeFeatures": {},
    "preprocessing.RandomNodeSplit": {},
    "preprocessing.ToUndirected": {},
    "preprocessing.node_splits": lambda tmp: {
        "graph": graph().replace(node={"train_mask": [1, 0, 1]})
    },
    "preprocessing.shchur_splits": lambda tmp: {
        "graph": node_graph().replace(label=[0, 0, 0]),
        "train": 1,
        "valid": 1,
    },
    "preprocessing.AttentionEdges": {},
    "preprocessing.AttentionPlan": {"block_size": 4},
    "preprocessing.Batcher": BASE,
    "preprocessing.ClusterCompile": {},
    "preprocessing.DynamicBatcher": {},
    "preprocessing.FullyConnectedGraph": {},
    "preprocessing.AtomsEncoder": {},
    "preprocessing.GraphEncoder": BASE,
    "preprocessing.GraphLayer": BASE,
    "preprocessing.NetworkXEncoder": {},
    "preprocessing.PyGEncoder": {},
    "preprocessing.SmilesEncoder": {},
    "preprocessing.TableEncoder": {"column": "smiles"},
    "preprocessing.GraphPreprocessor": {},
    "preprocessing.KNearestGraph": {"k": 2},
    "preprocessing.FunctionEncoder": {},
    "preprocessing.ProgramEncoder": {},
    "preprocessing.RCMKCompile": {},
    "preprocessing.RadiusGraph": {"cutoff": 2.0},
    "preprocessing.ReachabilityFilter": {"steps": 2},
    "preprocessing.ClusterSampler": {"num_clusters": 2},
    "preprocessing.LinkLoader": lambda tmp: {"graph": graph(), "pairs": [[0, 1]]},
    "preprocessing.NegativeSampler": {},
    "preprocessing.NeighborSampler": {"fan_outs": [2]},
    "preprocessing.SampleLoader": lambda tmp: {
        "graph": node_graph(),
        "sampler": kb.preprocessing.NeighborSampler([2]),
    },
    "preprocessing.Sampler": {},
    "preprocessing.SubgraphSampler": {"batch_size": 2},
    "preprocessing.SequenceLoader": lambda tmp: {"graph": node_graph(), "length": 2},
    "preprocessing.StaticBatcher": {},
    "preprocessing.StructuralEncoding": {"max_degree": 4},
    "preprocessing.TargetNormalizer": {},
    "preprocessing.compile_programs": OPTIONAL,
    # === plans ===
    "plans.Banded": {"block_size": 4},
    "plans.BlockSparse": {},
    "plans.Dense": {},
    "plans.Grouped": {},
    "plans.Plan": {},
    "plans.Primitive": BASE,
    "plans.ReceptiveField": {"steps": 2},
    "plans.Segment": "takes no arguments",
    "plans.Supernode": {},
    "plans.prepare": PROTOCOL,
    "plans.propagate": PROTOCOL,
    # === layers ===
    "layers.AttentionBias": {"num_heads": 2},
    "layers.BandedMessagePassing": LAYER_1,
    "layers.CharacterEncoder": LAYER_1,
    "layers.ContinuousFilter": LAYER_1,
    "layers.CosineCutoff": {"cutoff": 2.0},
    "layers.CumulativeLink": {"num_classes": 3},
    "layers.DualInterleavedAttention": {"num_heads": 2, "key_dim": 2},
    "layers.ElementEmbedding": {"units": 4, "elements": [1, 8]},
    "layers.GRUReadout": LAYER_1,
    "layers.GRUUpdate": LAYER_1,
    "layers.GaussianBasis": {"num_functions": 4, "stop": 2.0},
    "layers.GINConvolution": LAYER_1,
    "layers.GatedGraphConvolution": LAYER_1,
    "layers.GraphAttention": LAYER_1,
    "layers.GraphAttentionV2": LAYER_1,
    "layers.GraphConvolution": LAYER_1,
    "layers.GraphNormalization": {},
    "layers.GraphReadout": LAYER_1,
    "layers.GraphTransformerLayer": {"num_heads": 2, "key_dim": 2, "ffn_dim": 4},
    "layers.LinkScorer": {},
    "layers.MPEUInteraction": LAYER_1,
    "layers.LayerNormalization": {},
    "layers.MaskedBatchNormalization": {},
    "layers.NodeEncoder": {"units": 4, "inputs": {"kind": 2}},
    "layers.PNAConvolution": LAYER_1,
    "layers.PaiNNMessage": LAYER_1,
    "layers.PaiNNUpdate": LAYER_1,
    "layers.PairNormalization": {},
    "layers.ReadoutHead": lambda tmp: {
        "units": 4,
        "readout": kb.layers.GRUReadout(4),
    },
    "layers.SAGEConvolution": LAYER_1,
    "layers.SchNetInteraction": LAYER_1,
    "layers.SignNet": LAYER_1,
    "layers.EdgeReadout": {"units": 2},
    "layers.SineBasis": {"num_functions": 4, "cutoff": 2.0},
    "layers.ZBLRepulsion": "takes no arguments",
    "layers.shifted_softplus": PROTOCOL,
    # === models ===
    "models.AttentionWeights": RESULT,
    "models.Backbone": BASE,
    "models.BugLocalizer": lambda tmp: {"backbone": backbone(), "first_type": 0},
    "models.EdgeClassifier": lambda tmp: {"backbone": backbone(), "num_classes": 2},
    "models.EdgeRegressor": lambda tmp: {"backbone": backbone()},
    "models.EmbeddingBackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.LinkPredictor": lambda tmp: {"backbone": backbone()},
    "models.LastLayerLaplace": lambda tmp: {"task": regressor()},
    "models.Ensemble": lambda tmp: {"members": ensemble().members},
    "models.ForceRegressor": lambda tmp: {"backbone": regressor().backbone},
    "models.GATBackbone": {"inputs": {"kind": 2}, "hidden_dim": 8},
    "models.GATv2Backbone": {"inputs": {"kind": 2}, "hidden_dim": 8},
    "models.GCNBackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.GINEBackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.GPSBackbone": {"inputs": {"kind": 2}, "hidden_dim": 8},
    "models.GatedGCNBackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.GGNNBackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.GTBackbone": {"inputs": {"kind": 2}, "hidden_dim": 8},
    "models.GraphClassifier": lambda tmp: {"backbone": backbone(), "num_classes": 2},
    "models.GraphRegressor": lambda tmp: {"backbone": backbone()},
    "models.GraphormerBackbone": {"inputs": {"kind": 2}, "hidden_dim": 8},
    "models.JointSelection": PROTOCOL,
    "models.MPEUBackbone": {"elements": [1, 8], "hidden_dim": 4, "num_steps": 1},
    "models.MessagePassingBackbone": BASE,
    "models.NodeClassifier": lambda tmp: {"backbone": backbone(), "num_classes": 2},
    "models.NodeRegressor": lambda tmp: {"backbone": backbone()},
    "models.NodeSelector": lambda tmp: {"backbone": backbone()},
    "models.PNABackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.PaiNNBackbone": {"elements": [1, 8], "hidden_dim": 4, "num_steps": 1},
    "models.SAGEBackbone": {"inputs": {"kind": 2}, "hidden_dim": 4},
    "models.SchNetBackbone": {"elements": [1, 8], "hidden_dim": 4, "num_steps": 1},
    "models.Task": BASE,
    "models.list_presets": {},
    "models.upload_preset": lambda tmp: {"uri": "hf://owner/name", "preset": tmp},
    # === explain ===
    "explain.Explanation": RESULT,
    "explain.Fidelity": RESULT,
    "explain.attention": lambda tmp: {"task": gat(), "graphs": graphs()},
    "explain.fidelity": lambda tmp: {
        "task": classifier(),
        "explanations": explanations(),
    },
    "explain.gnn_explainer": lambda tmp: {"task": classifier(), "graphs": graphs()},
    "explain.ground_truth_auc": lambda tmp: {
        "explanations": explanations(),
        "truth": [[True, False]] * 4,
    },
    "explain.integrated_gradients": lambda tmp: {
        "task": classifier(),
        "graphs": graphs(),
    },
    "explain.randomization_check": lambda tmp: {
        "task": classifier(),
        "graphs": graphs(),
        "method": kb.explain.saliency,
    },
    "explain.saliency": lambda tmp: {"task": classifier(), "graphs": graphs()},
    "explain.sparsity": lambda tmp: {"explanations": explanations()},
    # === training ===
    "training.ChoiceAccuracy": {},
    "training.ChoiceCrossentropy": {},
    "training.GraphProgressBar": {},
    "training.LinearDecay": {"initial_learning_rate": 0.1},
    "training.LossWeightScheduler": {"schedule": lambda epoch: {"force": 1.0}},
    "training.ROCAUC": {},
    "training.RecompilationError": RESULT,
    "training.RecompileGuard": {},
    "training.SaveProgress": lambda tmp: {"directory": tmp / "progress"},
    "training.SelectionCrossentropy": {},
    "training.ThroughputMonitor": {},
    "training.TimeLimit": {"limit": 1.0},
    "training.TimeToAccuracy": {"target": 0.5},
    "training.WarmupDecay": {},
    "training.average_precision": {"positive": [2.0, 0.5], "negative": [1.0]},
    "training.hits_at": {"ranks": [1, 2.5], "k": 2},
    "training.link_auc": {"positive": [2.0, 0.5], "negative": [1.0]},
    "training.mean_reciprocal_rank": {"ranks": [1, 2.5]},
    "training.accuracy_interval": PROTOCOL,
    "training.suspicious": PROTOCOL,
    "training.trivial_scores": PROTOCOL,
    "training.calibration_report": {
        "labels": [1.0, 2.0, 4.0, 5.0],
        "mean": [1.0, 2.5, 3.5, 5.5],
        "std": [0.1, 0.5, 0.5, 0.5],
    },
    "training.enable_compilation_cache": lambda tmp: {"folder": tmp / "cache"},
    "training.enable_lora": lambda tmp: {"model": fresh_classifier()},
    "training.localization_report": {"functions": [], "probabilities": []},
    "training.make_optimizer": {},
    # === tuning ===
    "tuning.DatasetSpec": RESULT,
    "tuning.GGNNHyperModel": lambda tmp: {"graphs": graphs()},
    "tuning.GraphHyperModel": lambda tmp: {"graphs": graphs()},
    "tuning.GraphRegressorHyperModel": lambda tmp: {"graphs": molecules()},
    "tuning.GraphTransformerHyperModel": lambda tmp: {"graphs": graphs()},
    "tuning.make_tuner": lambda tmp: {
        "hypermodel": kb.tuning.GraphTransformerHyperModel(graphs(), hidden_dim=8),
        "directory": tmp / "search",
    },
    "tuning.trial_table": lambda tmp: {
        "tuner": kb.tuning.make_tuner(
            kb.tuning.GraphTransformerHyperModel(graphs(), hidden_dim=8), tmp / "search"
        )
    },
    # === others ===
    "distribution.data_parallel": {},
    "distribution.sequence_parallel": {"sequence": 1},
    "serving.ExportedModel": lambda tmp: {"path": tmp},
    "serving.GraphPacker": RESULT,
    "serving.PackedGraphs": RESULT,
    "plotting.plot_shapes": OPTIONAL,
    "plotting.plot_speedups": OPTIONAL,
    "plotting.plot_step_times": OPTIONAL,
    "plotting.plot_batch_fill": {"source": {"node": 0.9, "edge": 0.8}},
    "plotting.plot_calibration": {
        "labels": [1.0, 2.0, 4.0, 5.0],
        "mean": [1.0, 2.5, 3.5, 5.5],
        "std": [0.1, 0.5, 0.5, 0.5],
    },
    "plotting.plot_confusion_matrix": {
        "labels": [0, 1, 1],
        "predictions": [0, 1, 0],
    },
    "plotting.plot_embeddings": {
        "embeddings": np.arange(12.0).reshape(4, 3) ** 2,
        "labels": [0, 1, 1, 0],
    },
    "plotting.plot_history": {"history": {"loss": [2.0, 1.0]}},
    "plotting.plot_parity": {
        "labels": [1.0, 2.0, 4.0],
        "predictions": [1.0, 2.5, 3.5],
    },
    "plotting.plot_bandwidths": lambda tmp: {
        "sizes": dict.fromkeys(("nodes", "before", "after"), np.array([4, 5])),
        "path": tmp / "figure.png",
    },
}

# Methods that users call: how to get them, and arguments that work.
METHODS = {
    "Graph.subgraph": lambda tmp: (graph().subgraph, {"nodes": [0, 1]}),
    "data.FlatGraphs.from_graphs": lambda tmp: (
        kb.data.FlatGraphs.from_graphs,
        {"graphs": graphs()},
    ),
    "data.FlatGraphs.concatenate": lambda tmp: (
        kb.data.FlatGraphs.concatenate,
        {"parts": [flat()]},
    ),
    "data.FlatGraphs.take": lambda tmp: (flat().take, {"indices": [0]}),
    "preprocessing.GraphLoader.build": lambda tmp: (
        kb.preprocessing.GraphLoader(graphs()).build,
        {"index": 0, "epoch": 0},
    ),
    "preprocessing.GraphLoader.usage": lambda tmp: (
        kb.preprocessing.GraphLoader(graphs()).usage,
        {},
    ),
    "preprocessing.GraphLoader.to_torch": lambda tmp: (
        kb.preprocessing.GraphLoader(graphs()).to_torch,
        {},
    ),
    "preprocessing.GraphLoader.to_grain": lambda tmp: (
        kb.preprocessing.GraphLoader(graphs()).to_grain,
        {},
    ),
    "data.StoreWriter.add": lambda tmp: (writer(tmp).add, {"graphs": graphs()}),
    "data.GraphStore.take": lambda tmp: (
        kb.data.open_store(store(tmp)).take,
        {"indices": [0]},
    ),
    "preprocessing.GraphPreprocessor.loader": lambda tmp: (
        kb.preprocessing.GraphPreprocessor().loader,
        {"graphs": graphs()},
    ),
    "preprocessing.GraphPreprocessor.transform": lambda tmp: (
        kb.preprocessing.GraphPreprocessor().transform,
        {"graphs": graphs()},
    ),
    "preprocessing.RCMKCompile.call": lambda tmp: (
        kb.preprocessing.RCMKCompile(),
        {"graphs": graph()},
    ),
    "preprocessing.TargetNormalizer.adapt": lambda tmp: (
        kb.preprocessing.TargetNormalizer().adapt,
        {"graphs": graphs()},
    ),
    "models.Task.loader": lambda tmp: (classifier().loader, {"graphs": graphs()}),
    "models.Task.fit": lambda tmp: (
        classifier().fit,
        {"x": graphs(), "epochs": 1, "verbose": 0},
    ),
    "models.Task.evaluate": lambda tmp: (
        classifier().evaluate,
        {"x": graphs(), "verbose": 0},
    ),
    "models.Task.predict": lambda tmp: (classifier().predict, {"x": graphs()}),
    "models.Task.embed": lambda tmp: (classifier().embed, {"graphs": graphs()}),
    "models.Task.attention_weights": lambda tmp: (
        gat().attention_weights,
        {"graphs": graphs()},
    ),
    "models.Task.save_to_preset": lambda tmp: (
        classifier().save_to_preset,
        {"path": tmp / "preset"},
    ),
    "models.Task.from_preset": lambda tmp: (
        kb.models.GraphClassifier.from_preset,
        {"preset": preset(tmp)},
    ),
    "models.Task.export": lambda tmp: (
        classifier().export,
        {"path": tmp / "exported", "format": export_format(), "graphs": graphs()},
    ),
    "models.Backbone.from_preset": lambda tmp: (
        kb.models.Backbone.from_preset,
        {"preset": preset(tmp)},
    ),
    "models.Backbone.save_to_preset": lambda tmp: (
        backbone().save_to_preset,
        {"path": tmp / "preset"},
    ),
    "models.NodeClassifier.fit": lambda tmp: (
        node_classifier().fit,
        {"x": [node_graph()], "epochs": 1, "verbose": 0},
    ),
    "models.NodeClassifier.evaluate": lambda tmp: (
        node_classifier().evaluate,
        {"x": [node_graph()], "verbose": 0},
    ),
    "models.LinkPredictor.fit": lambda tmp: (
        link_predictor().fit,
        {"x": graph(), "verbose": 0},
    ),
    "models.LinkPredictor.evaluate": lambda tmp: (
        link_predictor().evaluate,
        {"x": graph(), "pairs": [[0, 1]]},
    ),
    "models.LinkPredictor.predict": lambda tmp: (
        link_predictor().predict,
        {"x": graph(), "pairs": [[0, 1]]},
    ),
    "models.LinkPredictor.rank": lambda tmp: (
        link_predictor().rank,
        {"graph": graph(), "pairs": [[0, 1]]},
    ),
    "preprocessing.NegativeSampler.sample": lambda tmp: (
        kb.preprocessing.NegativeSampler().sample,
        {"pairs": [[0, 1]], "num_nodes": 3},
    ),
    "models.GraphRegressor.predict_forces": lambda tmp: (
        regressor().predict_forces,
        {"x": molecules()},
    ),
    "models.Ensemble.predict": lambda tmp: (ensemble().predict, {"x": molecules()}),
    "models.Ensemble.predict_spread": lambda tmp: (
        ensemble().predict_spread,
        {"x": molecules()},
    ),
    "models.Ensemble.predict_forces_spread": lambda tmp: (
        ensemble().predict_forces_spread,
        {"x": molecules()},
    ),
    "models.Ensemble.save_to_preset": lambda tmp: (
        ensemble().save_to_preset,
        {"path": tmp / "ensemble"},
    ),
    "models.Ensemble.from_preset": lambda tmp: (
        kb.models.Ensemble.from_preset,
        {"preset": ensemble_preset(tmp)},
    ),
    "models.LastLayerLaplace.fit": lambda tmp: (
        laplace().fit,
        {"graphs": molecules()},
    ),
    "models.LastLayerLaplace.calibrate": lambda tmp: (
        laplace().calibrate,
        {"graphs": molecules()},
    ),
    "models.LastLayerLaplace.predict_spread": lambda tmp: (
        laplace().predict_spread,
        {"x": molecules()},
    ),
    "models.LastLayerLaplace.save_to_preset": lambda tmp: (
        laplace().save_to_preset,
        {"path": tmp / "laplace"},
    ),
    "models.LastLayerLaplace.from_preset": lambda tmp: (
        kb.models.LastLayerLaplace.from_preset,
        {"preset": laplace_preset(tmp)},
    ),
    "serving.GraphPacker.of_task": lambda tmp: (
        kb.serving.GraphPacker.of_task,
        {"task": classifier(), "graphs": graphs()},
    ),
    "serving.GraphPacker.load": lambda tmp: (
        kb.serving.GraphPacker.load,
        {"path": tmp},
    ),
    "serving.GraphPacker.pack": lambda tmp: (
        kb.serving.GraphPacker.of_task(classifier(), graphs()).pack,
        {"graphs": graphs()},
    ),
}


@functools.cache
def explanations():
    return kb.explain.saliency(classifier(), graphs())


@functools.cache
def gat():
    body = kb.models.GATBackbone({"kind": 2}, hidden_dim=4, num_heads=2)
    return kb.models.GraphClassifier(body, 2)


def export_format() -> str:
    """One that needs no converter of its own."""
    torch = keras.backend.backend() == "torch"
    return "torch" if torch else "tf_saved_model"


def fresh_classifier():
    return kb.models.GraphClassifier(
        kb.models.GCNBackbone({"kind": 2}, hidden_dim=4), 2
    )


def matrix():
    import scipy.sparse

    return scipy.sparse.coo_array(([1.0], ([0], [1])), (2, 2))


def store(tmp):
    path = tmp / "old.store"
    if not path.exists():
        kb.data.write_store(path, graphs()).close()
    return path


@functools.cache
def writer(tmp):
    return kb.data.StoreWriter(tmp / "w.store", fingerprint={}, restart=True)


@functools.cache
def ensemble():
    body = [kb.models.SchNetBackbone([1, 8], 4, num_gaussians=4) for _ in range(2)]
    return kb.models.Ensemble([kb.models.GraphRegressor(each) for each in body])


@functools.cache
def laplace():
    return kb.models.LastLayerLaplace(regressor()).fit(molecules())


def laplace_preset(tmp):
    path = tmp / "old_laplace"
    if not path.exists():
        laplace().save_to_preset(path)
    return path


def ensemble_preset(tmp):
    path = tmp / "old_ensemble"
    if not path.exists():
        ensemble().save_to_preset(path)
    return path


def preset(tmp):
    path = tmp / "old_preset"
    if not path.exists():
        classifier().save_to_preset(path)
    return path


# === What a parameter takes ===

# Room, name and parameter, where neither annotation nor name are right; what begins
# with "-" is not tried, and says why.
KINDS: dict[str, str] = {
    "data.NodePairs.types": "ids",
    "data.check_leaks.graph": "graph",
    "data.split_links.graph": "graph",
    "data.split_links.valid": "fraction",
    "data.split_links.test": "fraction",
    "data.split_links.supervised": "fraction",
    "preprocessing.LinkLoader.loader": "object",
    "preprocessing.LinkLoader.negatives": "object",
    "preprocessing.NegativeSampler.node_type": "name",
    "preprocessing.NegativeSampler.sample.node_types": "-goes with node_type",
    "preprocessing.NegativeSampler.sample.epoch": "from 0",
    "preprocessing.NegativeSampler.sample.step": "from 0",
    "models.LinkPredictor.fit.x": "graph",
    "models.LinkPredictor.fit.negatives": "object",
    "models.LinkPredictor.evaluate.x": "graph",
    "models.LinkPredictor.evaluate.negatives": "object",
    "models.LinkPredictor.predict.x": "graph",
    "models.LinkPredictor.rank.verbose": "-Keras'",
    **{
        f"training.{name}.{scores}": "array"
        for name in ("average_precision", "link_auc")
        for scores in ("positive", "negative")
    },
    "training.hits_at.ranks": "array",
    "training.mean_reciprocal_rank.ranks": "array",
    "Graph.label": "label",
    "Graph.slot": "from 0",
    "Graph.subgraph.nodes": "ids",
    "data.FlatGraphs.num_nodes": "ids",
    "data.FlatGraphs.num_edges": "ids",
    "data.FlatGraphs.num_candidates": "-goes with candidates",
    "data.FlatGraphs.label": "label",
    "data.FlatGraphs.slot": "label",
    "data.FlatGraphs.info": "sequence",
    "data.FlatGraphs.concatenate.parts": "sequence",
    "data.FlatGraphs.take.indices": "indices",
    "data.FlatGraphs.from_graphs.graphs": "graphs",
    "preprocessing.GraphLoader.num_edge_types": "from 0",
    "preprocessing.GraphLoader.host": "from 0",
    "preprocessing.GraphLoader.build.index": "integer",
    "preprocessing.GraphLoader.build.epoch": "from 0",
    "preprocessing.GraphLoader.usage.epoch": "from 0",
    "data.GraphStore.path": "existing",
    "data.GraphStore.take.indices": "indices",
    "data.StoreWriter.add.report": "-another object's method",
    "data.StoreWriter.fingerprint": "plain mapping",
    "programs.encode_program.program": "object",
    "programs.encode_function.function": "object",
    "data.from_scipy.matrix": "object",
    "data.from_scipy.label": "label",
    "data.from_scipy.weights": "object",
    "data.load.limits": "object",
    "models.Task.predict.batch_size": "not for graphs",
    "models.Task.predict.callbacks": "callbacks",
    "models.Task.predict.steps": "not for graphs",
    "models.Task.predict.verbose": "-Keras'",
    "programs.encode_program.seed": "seeds",
    "programs.find_programs.exclude": "names",
    "data.load.cache": "path",
    "data.load.path": "existing",
    "data.load.split": "choice",
    "programs.load_varmisuse.path": "existing",
    "programs.load_varmisuse.report": "-another object's method",
    "data.open_store.path": "existing",
    "programs.plant_bug.correct_share": "fraction",
    "programs.plant_bug.epoch": "from 0",
    "programs.plant_bug.key": "name",
    "programs.bug_samples.epoch": "from 0",
    "programs.bug_samples.hard_share": "fraction",
    "programs.plant_bug.module_variables": "names",
    "programs.function_graph.module_variables": "names",
    "programs.function_graph.source": "source",
    "models.BugLocalizer.first_type": "from 0",
    "models.BugLocalizer.min_confidence": "fraction",
    "programs.plant_bug.source": "name",
    "programs.program_graphs.filename": "text",
    "programs.program_graphs.source": "source",
    "programs.program_graphs.max_instances": "from 0",
    "programs.program_graphs.steps": "from 0",
    "programs.read_corpus.path": "existing",
    "programs.read_corpus.packages": "names",
    "programs.corpus_packages.path": "existing",
    "programs.bug_samples.functions": "sequence",
    "training.localization_report.functions": "sequence",
    "training.localization_report.probabilities": "-goes with functions",
    "training.localization_report.rates": "sequence",
    "programs.read_tree.max_instances": "from 0",
    "programs.python_files.exclude": "names",
    "programs.python_files.paths": "paths",
    "programs.read_tree.exclude": "names",
    "programs.read_tree.paths": "paths",
    "programs.read_tree.steps": "from 0",
    "programs.read_great.path": "paths",
    "programs.read_great.report": "-another object's method",
    "programs.read_varmisuse.path": "paths",
    "programs.read_varmisuse.report": "-another object's method",
    "data.to_scipy.weight": "name",
    "programs.variable_usages.module_variables": "names",
    "programs.variable_usages.source": "name",
    "programs.write_varmisuse.programs": "sequence",
    "models.Backbone.from_preset.preset": "existing",
    "models.GTBackbone.laplacian": "from 0",
    "models.EdgeClassifier.class_names": "names",
    "models.EdgeRegressor.normalizer": "choice",
    "models.EdgeRegressor.target_names": "names",
    "models.GraphClassifier.class_names": "names",
    "models.GraphClassifier.readout": "choice",
    "models.GraphRegressor.normalizer": "choice",
    "models.GraphRegressor.predict_forces.x": "graphs",
    "models.ForceRegressor.readout": "choice",
    "models.GraphRegressor.readout": "choice",
    "models.GraphRegressor.target_names": "names",
    "models.NodeClassifier.class_names": "names",
    "models.NodeRegressor.normalizer": "choice",
    "models.NodeRegressor.target_names": "names",
    "models.ForceRegressor.force_key": "name",
    "models.ForceRegressor.stress_key": "name",
    "models.NodeClassifier.evaluate.mask": "name",
    "models.NodeClassifier.evaluate.x": "graphs",
    "models.NodeClassifier.evaluate.y": "labels beside",
    "models.NodeClassifier.fit.mask": "name",
    "models.NodeClassifier.fit.validation_mask": "name",
    "models.NodeClassifier.fit.x": "graphs",
    "models.NodeClassifier.fit.y": "labels beside",
    "models.Task.embed.layer": "integer",
    "models.Task.evaluate.x": "graphs",
    "models.Task.evaluate.y": "labels beside",
    "models.Task.export.budget": "mapping",
    "models.Task.fit.x": "graphs",
    "models.Task.fit.y": "labels beside",
    "models.Task.from_preset.backbone": "mapping",
    "models.Task.from_preset.preset": "existing",
    "models.Task.predict.x": "graphs",
    "models.Ensemble.members": "sequence",
    "models.Ensemble.predict.x": "graphs",
    "models.Ensemble.predict_spread.x": "graphs",
    "models.Ensemble.predict_forces_spread.x": "graphs",
    "models.Ensemble.from_preset.preset": "existing",
    "models.LastLayerLaplace.fit.graphs": "graphs",
    "models.LastLayerLaplace.fit.y": "labels beside",
    "models.LastLayerLaplace.calibrate.graphs": "graphs",
    "models.LastLayerLaplace.calibrate.y": "labels beside",
    "models.LastLayerLaplace.predict_spread.x": "graphs",
    "models.LastLayerLaplace.from_preset.preset": "existing",
    "models.upload_preset.preset": "existing",
    "models.upload_preset.uri": "choice",
    "distribution.sequence_parallel.devices": "-on JAX alone",
    **{
        f"explain.{name}.{parameter}": kind
        for name in ("attention", "gnn_explainer", "integrated_gradients", "saliency")
        for parameter, kind in (("target", "from 0"), ("index", "from 0"))
    },
    **{
        f"explain.gnn_explainer.{part}_{term}": "not negative"
        for part in ("edge", "feature")
        for term in ("size", "entropy")
    },
    "explain.fidelity.share": "fraction",
    "explain.ground_truth_auc.truth": "sequence",
    "explain.sparsity.threshold": "fraction",
    "layers.ElementEmbedding.elements": "elements",
    "layers.GraphAttention.negative_slope": "not negative",
    "layers.GINConvolution.epsilon": "number",
    "layers.GraphAttentionV2.negative_slope": "not negative",
    "layers.PNAConvolution.aggregators": "sequence",
    "layers.PNAConvolution.scalers": "sequence",
    "models.PNABackbone.aggregators": "sequence",
    "models.PNABackbone.scalers": "sequence",
    "layers.ReadoutHead.readout": "object",
    "plotting.plot_bandwidths.path": "path",
    **{
        f"{function}.{name}": "array"
        for function in ("plotting.plot_calibration", "training.calibration_report")
        for name in ("labels", "mean", "std")
    },
    "training.calibration_report.levels": "numbers",
    "plotting.plot_confusion_matrix.class_names": "names",
    "plotting.plot_confusion_matrix.labels": "array",
    "plotting.plot_confusion_matrix.predictions": "array",
    "plotting.plot_embeddings.class_names": "names",
    "plotting.plot_embeddings.embeddings": "array",
    "plotting.plot_embeddings.label": "text",
    "plotting.plot_embeddings.labels": "array",
    "plotting.plot_history.history": "existing",
    "plotting.plot_history.metrics": "names",
    "plotting.plot_parity.labels": "array",
    "plotting.plot_parity.predictions": "array",
    "plotting.plot_parity.targets": "names",
    "plotting.plot_parity.units": "text",
    "preprocessing.AttentionPlan.least_fill": "positive or choice",
    "preprocessing.AttentionPlan.share": "not negative",
    "preprocessing.AttentionPlan.threshold": "not negative",
    "preprocessing.RCMKCompile.call.graphs": "graph layer",
    "preprocessing.AddSelfLoops.edge_type": "from 0",
    "preprocessing.AddSelfLoops.fill_value": "number",
    "preprocessing.NormalizeFeatures.features": "names",
    "preprocessing.RandomNodeSplit.per_class": "names",
    "preprocessing.RandomNodeSplit.test": "from 0",
    "preprocessing.RandomNodeSplit.train": "from 0",
    "preprocessing.RandomNodeSplit.valid": "from 0",
    "preprocessing.AtomsEncoder.label": "name",
    "preprocessing.AtomsEncoder.stress": "name",
    "preprocessing.NetworkXEncoder.edge_type": "name",
    "preprocessing.TableEncoder.column": "name",
    "preprocessing.StructuralEncoding.laplacian": "from 0",
    "preprocessing.StructuralEncoding.max_degree": "from 0",
    "preprocessing.StructuralEncoding.random_walk": "from 0",
    "preprocessing.TargetNormalizer.element_key": "name",
    "preprocessing.TargetNormalizer.mean": "label",
    "preprocessing.TargetNormalizer.references": "references",
    "preprocessing.TargetNormalizer.std": "label",
    "preprocessing.ClusterSampler.feature": "name",
    "preprocessing.NeighborSampler.part": "name",
    "preprocessing.NeighborSampler.fan_outs": "fan-outs",
    "preprocessing.SampleLoader.features": "plain mapping",
    "preprocessing.SampleLoader.graph": "graphs",
    "preprocessing.SampleLoader.host": "from 0",
    "preprocessing.SampleLoader.num_edge_types": "from 0",
    "preprocessing.SampleLoader.sampler": "object",
    "preprocessing.SubgraphSampler.coverage": "from 0",
    "preprocessing.SequenceLoader.mask": "name",
    "plans.ReceptiveField.read": "name",
    "plans.Plan.filter": "mapping",
    "plans.Plan.rest": "choice",
    "preprocessing.GraphPreprocessor.loader.num_edge_types": "from 0",
    "preprocessing.AttentionEdges.edge_features": "names",
    "preprocessing.AttentionEdges.path": "boolean",
    "preprocessing.AttentionEdges.target_type": "from 0",
    "serving.ExportedModel.path": "existing",
    "serving.GraphPacker.load.path": "existing",
    "serving.GraphPacker.of_task.budget": "mapping",
    "serving.GraphPacker.of_task.task": "object",
    "training.GraphProgressBar.loader": "object",
    "training.ThroughputMonitor.loader": "object",
    "training.ThroughputMonitor.seconds": "function",
    "training.TimeToAccuracy.seconds": "function",
    "training.LinearDecay.end_factor": "not negative",
    "training.LinearDecay.initial_learning_rate": "positive",
    "training.RecompileGuard.test_budget": "from 0",
    "training.RecompileGuard.budget": "from 0",
    "training.SaveProgress.save_freq": "count or choice",
    "training.TimeToAccuracy.target": "number",
    "training.WarmupDecay.end": "not negative",
    "training.WarmupDecay.warmup_steps": "from 0",
    "training.enable_compilation_cache.folder": "path",
    "training.enable_compilation_cache.least_seconds": "not negative",
    "training.enable_lora.layers": "name",
    "tuning.GGNNHyperModel.hidden_dim": "integers",
    "tuning.GGNNHyperModel.num_steps": "integers",
    "tuning.GraphHyperModel.batch_size": "integers",
    "tuning.GraphHyperModel.target": "number",
    "tuning.GraphRegressorHyperModel.edges": "sequence",
    "tuning.GraphRegressorHyperModel.hidden_dim": "integers",
    "tuning.GraphRegressorHyperModel.model": "choice",
    "tuning.GraphRegressorHyperModel.num_steps": "integers",
    "tuning.GraphTransformerHyperModel.attention": "names",
    "tuning.GraphTransformerHyperModel.hidden_dim": "integers",
    "tuning.GraphTransformerHyperModel.model": "choice",
    "tuning.GraphTransformerHyperModel.num_heads": "integers",
    "tuning.GraphTransformerHyperModel.num_layers": "integers",
    "tuning.make_tuner.hypermodel": "object",
    "tuning.trial_table.tuner": "object",
}


def kind_of(entry: str, parameter: inspect.Parameter) -> str | None:
    """The kind of a parameter, a key of `WRONG`; None for those of Keras."""
    name = parameter.name
    key = f"{entry}.{name}"
    if key in KINDS:
        return KINDS[key]
    if name in OF_KERAS or parameter.kind in (
        parameter.VAR_KEYWORD,
        parameter.VAR_POSITIONAL,
    ):
        return None
    if name in BY_NAME:
        return BY_NAME[name]
    annotation = parameter.annotation
    options = typing.get_args(annotation) or (annotation,)
    if isinstance(annotation, types.GenericAlias) or typing.get_origin(
        annotation
    ) not in (types.UnionType, typing.Union, None):
        options = (annotation,)
    for option in options:
        option = typing.get_origin(option) or option
        if option in BY_ANNOTATION:
            return BY_ANNOTATION[option]
    raise AssertionError(
        f"Nothing says what `{name}` of {entry} takes: annotate it, or add "
        f"{key!r} to KINDS in {__file__}."
    )


def public_callables() -> dict[str, object]:
    """Every public class and function by room and name."""
    found = {"Graph": kb.Graph}
    for room in ROOMS:
        module = importlib.import_module(f"keras_bandgnn.{room}")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if callable(value):
                found[f"{room}.{name}"] = value
    return found


def entries() -> list[str]:
    public = [name for name in VALID if not isinstance(VALID[name], str)]
    return [*public, *METHODS]


def resolved(entry: str, tmp: Path) -> tuple:
    """The callable and arguments that work."""
    if entry in METHODS:
        return METHODS[entry](tmp)
    valid = VALID[entry]
    return public_callables()[entry], valid(tmp) if callable(valid) else valid


def wrong_calls(entry: str, call, valid: dict):
    """Yields parameter, wrong value, and the kind of the parameter."""
    for parameter in inspect.signature(call).parameters.values():
        kind = kind_of(entry, parameter)
        if kind is None or kind.startswith("-"):
            continue
        optional = parameter.default is None or "None" in str(parameter.annotation)
        for value in WRONG[kind]:
            if value is None and optional:
                continue
            yield parameter.name, value, kind


def outcome(call, arguments: dict, name: str, kind: str) -> tuple[str, str]:
    """How a call ends, and its message.

    "clear": an error that says what was expected of the parameter and what it got.
    """
    try:
        result = call(**arguments)
        if isinstance(result, types.GeneratorType):
            next(result, None)
    except (ValueError, TypeError, OSError, IndexError) as error:
        text = str(error)
        clear = "Expected" in text and "Received" in text
        said = "[Gg]raph" if kind.startswith("graph") else rf"\b{re.escape(name)}"
        clear = clear and re.search(said, text)
        return ("clear" if clear else "low-level"), f"{type(error).__name__}: {text}"
    except Exception as error:
        return "low-level", f"{type(error).__name__}: {error}"
    return "silent", ""


def table(tmp: Path, only: str = ""):
    """Yields entry, parameter, value, outcome and message of every wrong call."""
    for entry in entries():
        if only not in entry:
            continue
        call, valid = resolved(entry, tmp)
        for name, value, kind in wrong_calls(entry, call, valid):
            arguments = {**valid, name: value}
            yield entry, name, value, *outcome(call, arguments, name, kind)


def test_every_public_name_has_an_entry():
    public = set(public_callables())
    missing, stale = public - set(VALID), set(VALID) - public
    message = f"Add arguments that work for {sorted(missing)} to VALID in {__file__}."
    assert not missing, message
    assert not stale, f"Remove {sorted(stale)} from VALID: they are not public."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("arguments")
    yield path
    writer(path).close()


@pytest.mark.parametrize("entry", entries())
def test_wrong_arguments(entry, folder):
    call, valid = resolved(entry, folder)
    bad = []
    for name, value, kind in wrong_calls(entry, call, valid):
        result, text = outcome(call, {**valid, name: value}, name, kind)
        if result != "clear":
            bad.append(f"{name}={value!r:.40}: {result} {text[:200]}")
    assert not bad, "\n".join(bad)


def test_there_are_many(folder):
    """The table has not shrunk: a kind that yields nothing would pass unseen."""
    assert sum(1 for e in entries() for _ in wrong_calls(e, *resolved(e, folder))) > 200


CONVERTERS = [n for n in kb.data.__all__ if n.startswith(("from_", "to_"))]


@pytest.mark.parametrize("name", [*CONVERTERS, "read_structures"])
@pytest.mark.parametrize(
    "value", [None, 3, {}, [3], "(", np.zeros(3)], ids=lambda value: repr(value)
)
def test_converters(name, value):
    with pytest.raises((ValueError, OSError, ImportError), match="Expected.*Received"):
        getattr(kb.data, name)(value)


def pairs():
    return graphs(), np.zeros(4)


def attentive():
    return kb.models.GTBackbone({"kind": 2}, 4, num_layers=1, num_heads=1)


def sequences(**options):
    return kb.preprocessing.SequenceLoader(node_graph(), 2, **options)


# What signatures do not tell: options that go on to Keras, and combinations.
OTHERS = {
    "fit(callbacks)": ("callbacks", lambda: classifier().fit(graphs(), callbacks="x")),
    "fit([callbacks])": (
        "callbacks",
        lambda: classifier().fit(graphs(), callbacks=[3]),
    ),
    "fit(epochs)": ("epochs", lambda: classifier().fit(graphs(), epochs=-1)),
    "fit(epochs='x')": ("epochs", lambda: classifier().fit(graphs(), epochs="x")),
    "fit(initial_epoch)": (
        "initial_epoch",
        lambda: classifier().fit(graphs(), initial_epoch=-1),
    ),
    "fit(shuffle)": ("shuffle", lambda: classifier().fit(graphs(), shuffle="x")),
    "fit(pair)": ("x", lambda: classifier().fit(pairs())),
    "fit(validation_data=pair)": (
        "validation_data",
        lambda: classifier().fit(graphs(), validation_data=[graphs(), [0, 1]]),
    ),
    "fit(mixed)": ("graphs", lambda: classifier().fit([graph(), 3])),
    "evaluate(callbacks)": (
        "callbacks",
        lambda: classifier().evaluate(graphs(), callbacks="x"),
    ),
    "predict(mixed)": ("graphs", lambda: classifier().predict([graph(), None])),
    "DynamicBatcher(10**9)": (
        "graphs",
        lambda: kb.preprocessing.DynamicBatcher(10**9),
    ),
    "StaticBatcher(10**9)": (
        "graphs",
        lambda: kb.preprocessing.StaticBatcher(10**9),
    ),
    "budget of a word": (
        "budget",
        lambda: kb.preprocessing.DynamicBatcher(budget={"node": "x"}),
    ),
    "budget by number": (
        "budget",
        lambda: kb.preprocessing.DynamicBatcher(budget={3: 64}),
    ),
    "Plan of a string": ("primitives", lambda: kb.plans.Plan("banded:128")),
    "inputs with a wrong kind": (
        "inputs",
        lambda: kb.models.GCNBackbone({"kind": {"words": 3}}),
    ),
    "inputs without a size": ("inputs", lambda: kb.models.GCNBackbone({"kind": 0})),
    "no inputs": ("inputs", lambda: kb.models.GCNBackbone({})),
    "too many heads": (
        "num_heads",
        lambda: kb.models.GATBackbone({"kind": 2}, 8, num_heads=3),
    ),
    "inputs={'kind': 4.0}": (
        r"inputs\['kind'\].*Received: 4\.0\.",
        lambda: kb.models.GCNBackbone({"kind": 4.0}),
    ),
    "fit(verbose)": ("verbose", lambda: classifier().fit(graphs(), verbose="loud")),
    "evaluate(verbose)": (
        "verbose",
        lambda: classifier().evaluate(graphs(), verbose=3),
    ),
    "predict(verbose)": (
        "verbose",
        lambda: classifier().predict(graphs(), verbose="loud"),
    ),
    "fit(array)": ("x", lambda: classifier().fit(np.zeros((3, 4)))),
    "evaluate(array)": ("x", lambda: classifier().evaluate(np.zeros((3, 4)))),
    "predict(array)": ("x", lambda: classifier().predict(np.zeros((3, 4)))),
    "predict([array])": ("x", lambda: classifier().predict([np.zeros((3, 4))])),
    "task(graphs)": (r"Received: graphs.*predict", lambda: classifier()(graphs())),
    "backbone(graph)": (r"Received: graphs.*loader", lambda: backbone()(graph())),
    "SequenceLoader.predict(None)": ("task", lambda: sequences().predict(None)),
    "SequenceLoader without graph layers": (
        "graph_layers",
        lambda: kb.models.NodeClassifier(attentive(), 2).fit(
            sequences(plan=attentive().auto_plan()), verbose=0, shuffle=False
        ),
    ),
    "SequenceLoader.predict without graph layers": (
        "graph_layers",
        lambda: sequences(plan=attentive().auto_plan()).predict(
            kb.models.NodeClassifier(attentive(), 2)
        ),
    ),
    "SequenceLoader without clusters": (
        "cluster.*ClusterCompile",
        lambda: sequences(order="clusters"),
    ),
    "SequenceLoader of mixed clusters": (
        "ascending.*ClusterCompile",
        lambda: kb.preprocessing.SequenceLoader(
            node_graph().replace(node={"cluster": [1, 0, 1]}), 2, "clusters"
        ),
    ),
    "compile(loss='foo')": (
        'loss.*Write loss="sparse',
        lambda: classifier().compile("adam", "foo"),
    ),
    "compile(loss=3)": ("loss.*Write", lambda: classifier().compile("adam", 3)),
    "compile(metrics=['foo'])": (
        r'metrics.*Write metrics=\["accuracy"\]',
        lambda: classifier().compile("adam", metrics=["foo"]),
    ),
    "labels that are too large": (
        "squares.*9.8e.30",
        lambda: regressor().evaluate([g.replace(label=9.8e30) for g in molecules()]),
    ),
    "a store that is a file": ("store", lambda: kb.data.open_store(__file__)),
    "target=[]": (
        "target",
        lambda: kb.data.load("qm9", path=Path(__file__).parent, target=[]),
    ),
}


WITH_HEADS = [
    name
    for name in kb.models.__all__
    if isinstance(getattr(kb.models, name), type)
    and {"hidden_dim", "num_heads"}
    <= {*inspect.signature(getattr(kb.models, name)).parameters}
]


@pytest.mark.parametrize("name", WITH_HEADS)
def test_widths_that_heads_do_not_divide(name, folder):
    call, valid = resolved(f"models.{name}", folder)
    message = "Expected `hidden_dim` to be a multiple of `num_heads`"
    with pytest.raises(ValueError, match=message):
        call(**{**valid, "hidden_dim": 10, "num_heads": 3})


@pytest.mark.parametrize("index", ["a", 1.0, np.array([1, 2]), None, (0, 1)], ids=repr)
def test_an_index_is_an_integer(index, folder):
    for graphs in (flat(), kb.data.open_store(store(folder))):
        with pytest.raises(TypeError, match=r"integer index.*Received.*take\("):
            graphs[index]


def test_no_graphs_make_an_empty_store(tmp_path):
    with kb.data.write_store(tmp_path / "empty.store", []) as made:
        assert len(made) == 0 and list(made) == []
    with pytest.raises(ValueError, match="at least one graph"):
        kb.preprocessing.GraphLoader(kb.data.open_store(made.path))


@pytest.mark.parametrize("name", OTHERS)
def test_other_wrong_calls(name):
    word, call = OTHERS[name]
    with pytest.raises((ValueError, TypeError, OSError), match=rf"Expected.*{word}"):
        call()


@pytest.mark.parametrize(
    "check, good, bad",
    [
        (checks.positive_int, [1, np.int32(3)], [0, True, 1.0, "1", 2**31]),
        (checks.positive_ints, [3, [1, 2]], [[], [0], "12", {3: 1}]),
        (checks.boolean, [True, np.bool_(False)], [0, 1, "no", None]),
        (checks.fraction, [0, 0.5], [1, -0.1, NAN, True]),
        (checks.non_negative_number, [0, INFINITY], [-1, NAN, "0"]),
        (checks.as_path, ["a", Path("a")], ["", b"a", None, "a\0b"]),
        (checks.mapping, [{}, {"a": 1}], [[], {"": 1}, {1: 1}]),
        (checks.strings, [[], ["a"]], ["a", [""], [1], None]),
        (checks.array, [[1, 2], 3.0], [RAGGED, "x", None]),
    ],
)
def test_checks(check, good, bad):
    for value in good:
        check("name", value)
    for value in bad:
        with pytest.raises(ValueError, match=r"Expected.*name.*Received: "):
            check("name", value)


def test_values_are_shown_in_one_short_line():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    for value in ("x" * 10_000, "a\nb", list(range(10**5)), Rude(), np.zeros(10**6)):
        text = checks.shown(value)
        assert len(text) < 120 and "\n" not in text


if __name__ == "__main__":
    import tempfile

    only = "".join(sys.argv[1:2])
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for entry, name, value, result, text in table(Path(folder), only):
            counts[result] += 1
            if result != "clear":
                print(f"{result:9} {entry}({name}={value!r:.30}) {text[:150]!r}")
    print(dict(counts))
