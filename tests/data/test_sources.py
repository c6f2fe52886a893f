import io
import itertools
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from converter_graphs import assert_same, make
from indexed import Items

from keras_bandgnn import Graph, progress
from keras_bandgnn.data import FlatGraphs, open_store, sources, write_store
from keras_bandgnn.data.sources import graphs_of, parts_of


def some(count=5):
    return [make(seed, "graph", nodes=3 + seed) for seed in range(count)]


ENDS = ("senders", "receivers", "edge_type", "label")


def as_fields(graph):
    """The arguments of `Graph`, as data sets of other libraries hold them."""
    return {
        "num_nodes": graph.num_nodes,
        "senders": graph.senders,
        "receivers": graph.receivers,
        "edge_type": graph.edge_type,
        "node": dict(graph.node),
        "edge": dict(graph.edge),
        "context": dict(graph.context),
        "label": graph.label,
    }


def as_lists(graph):
    """The same, as JSON would hold it."""

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return value.tolist() if hasattr(value, "tolist") else value

    return plain(as_fields(graph)) | {"candidates": None, "info": {"a": [1, 2]}}


def check(source, graphs):
    parts = parts_of(source)
    assert all(isinstance(part, FlatGraphs) for part in parts)
    found = [graph for part in parts for graph in part]
    assert len(found) == len(graphs)
    for a, b in zip(found, graphs, strict=True):
        assert_same(a, b)


def generator():
    yield from some()


@pytest.mark.parametrize(
    "source",
    [
        some(),
        tuple(some()),
        FlatGraphs.from_graphs(some()),
        iter(some()),
        generator(),
        generator,
        lambda: some(),
        Items(some()),
        Items([as_fields(graph) for graph in some()]),
        [as_lists(graph) for graph in some()],
        [as_fields(graph) | {"slot": None} for graph in some()],
    ],
    ids=lambda source: type(source).__name__,
)
def test_sources_without_packages(source):
    check(source, some())


def test_flat_graphs_and_stores_are_not_copied(tmp_path):
    flat = FlatGraphs.from_graphs(some())
    assert parts_of(flat)[0] is flat
    with write_store(tmp_path / "s", some(), shard_size=2) as store:
        parts = parts_of(store)
        assert [id(part) for part in parts] == [id(shard) for shard in store.shards]
        check(store, some())
        assert sum(1 for _ in graphs_of(open_store(tmp_path / "s"))) == 5
    assert parts_of([]) == [] and parts_of(flat.take([])) == []
    assert list(graphs_of(iter([]))) == []


def test_chunks_and_parts(monkeypatch):
    monkeypatch.setattr(sources, "CHUNK_BYTES", 1)
    check(generator(), some())
    monkeypatch.undo()
    monkeypatch.setattr(sources, "CHUNK_GRAPHS", 2)
    check(generator(), some())
    assert len(parts_of(generator())) == 1
    monkeypatch.setattr(sources, "_PART_BYTES", 1)
    assert [len(part) for part in parts_of(generator())] == [2, 2, 1]
    check(generator(), some())
    odd = make(9, "graph").replace(node={"other": np.zeros(make(9).num_nodes)})
    for bad in (3, 4):
        graphs = some()
        graphs[bad] = odd
        with pytest.raises(ValueError, match=f"in graph {bad}, as in graph 0"):
            parts_of(graphs)


def test_graphs_are_read_as_they_are_asked_for():
    seen = []

    def endless():
        for number in itertools.count(1):
            seen.append(number)
            yield Graph(number, [], [])

    assert [g.num_nodes for g in itertools.islice(graphs_of(endless()), 3)] == [1, 2, 3]
    assert seen == [1, 2, 3]


def attributes(graph):
    return {
        "edge_index": [graph.senders.tolist(), graph.receivers.tolist()],
        "num_nodes": graph.num_nodes,
        "node_feat": graph.node["node_vec"].tolist(),
        "edge_attr": graph.edge["edge_vec"].tolist(),
        "y": [float(graph.label)],
    }


def as_attributes(graph):
    return graph.replace(
        edge_type=None,
        node={"node_feat": graph.node["node_vec"]},
        edge={"edge_attr": graph.edge["edge_vec"]},
        context={},
    )


def test_dictionaries_with_the_names_of_torch_geometric():
    graphs = [make(seed, "graph", nodes=1 + seed % 3) for seed in range(6)]
    check([attributes(g) for g in graphs], [as_attributes(g) for g in graphs])
    # One node, one label: the other graphs show that it belongs to the graph.
    with pytest.raises(ValueError, match="Element 0 of the source.*`y` to determine"):
        parts_of([attributes(graphs[0])])


@pytest.mark.parametrize(
    "source, message",
    [
        (3, "Received: int.*Convert"),
        (some()[0], "Received: one Graph.*\\[graph\\]"),
        ("graphs.store", "Received: 'graphs.store'.*open_store"),
        ({"train": some(), "test": some()}, r"dict with the keys \['train', 'test'\]"),
        (np.zeros(3), r"Element 0 .*type numpy\.float64"),
        ([*some(3), 7], r"Element 3 of the source.*Received.*type builtins\.int"),
        ([None], "Element 0 .*NoneType"),
        ([(some()[0], 1)], "builtins.tuple"),
        (
            [as_fields(some()[0]) | {"y": 1}],
            "Element 0.*a dictionary of Graph's arguments.*'y'",
        ),
        ([{"num_nodes": 2}], r"the keys \['num_nodes'\]"),
        (
            [as_fields(some()[0]), as_fields(some()[1]) | {"senders": [9]}],
            r"Element 1 of the source: Expected every id in `senders`",
        ),
        (
            [{"num_nodes": [2, 3], "senders": [], "receivers": []}],
            r"`num_nodes` to be one integer.*shape \(2,\).*unbatch",
        ),
        ([attributes(some()[0]), 5], "Element 1 .*builtins.int"),
    ],
    ids=str,
)
def test_errors(source, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        parts_of(source)


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_progress(monkeypatch):
    for stream, quiet, shown, expected in (
        (Screen(), 0.0, True, True),
        (Screen(), 60.0, True, False),
        (Screen(), 0.0, False, False),
        (io.StringIO(), 0.0, True, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "_QUIET_SECONDS", quiet)
        for source in (some(), generator()):
            parts_of(source, progress=shown)
        assert ("Reading graphs" in stream.getvalue()) == expected


def test_plain_sources_import_no_library():
    code = (
        "import sys; sys.argv[0] = 'bandgnn'\n"  # which imports what it uses
        "import keras_bandgnn as kb\n"
        "from keras_bandgnn.data.sources import parts_of\n"
        "parts_of([kb.Graph(1, [], [])])\n"
        "parts_of(lambda: iter([{'num_nodes': 1, 'senders': [], 'receivers': []}]))\n"
        "heavy = {'torch', 'tensorflow', 'jax', 'grain', 'torch_geometric', 'keras'}\n"
        "print(heavy & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_data_sets(torch):
    data = torch.utils.data

    class Mapped(data.Dataset):
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, index):
            return self.items[index % len(self.items)]

    class Streamed(data.IterableDataset):
        def __iter__(self):
            for graph in some():
                # It makes tensors of arrays, and warns of read-only ones.
                yield (
                    as_fields(graph)
                    | {
                        name: {k: np.array(v) for k, v in getattr(graph, name).items()}
                        for name in ("node", "edge", "context")
                    }
                    | {k: np.array(getattr(graph, k)) for k in ENDS}
                )

    check(Mapped(some()), some())
    check(Streamed(), some())
    check(data.Subset(Mapped(some()), [3, 1]), [some()[3], some()[1]])
    check(data.DataLoader(Mapped(some()), batch_size=None), some())
    check(data.DataLoader(Streamed(), batch_size=None), some())
    with pytest.raises(ValueError, match="DataLoader with batches.*batch_size=None"):
        parts_of(data.DataLoader(Mapped(some()), batch_size=2))


def test_torch_tensors(torch):
    fields = as_fields(some()[0])
    for name in ("senders", "receivers", "edge_type"):
        fields[name] = torch.tensor(fields[name])
    fields["node"] = {k: torch.tensor(v) for k, v in fields["node"].items()}
    fields["num_nodes"] = torch.tensor(fields["num_nodes"])
    check([fields], some(1))


def test_torch_geometric(torch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it deprecates parts of torch as it loads
        pyg = pytest.importorskip("torch_geometric.data")
        loaders = pytest.importorskip("torch_geometric.loader")
    from keras_bandgnn.data.converters.pyg import to_pyg

    graphs = [make(seed, "graph", nodes=1 + seed % 4) for seed in range(8)]
    check([to_pyg(graph) for graph in graphs], graphs)

    class Small(pyg.Dataset):
        def len(self):
            return len(graphs)

        def get(self, index):
            return to_pyg(graphs[index])

    check(Small(), graphs)
    check(Small()[2:4], graphs[2:4])
    with pytest.raises(ValueError, match="with batches"):
        parts_of(loaders.DataLoader(Small()))
    with pytest.raises(ValueError, match="Element 1 .*HeteroData"):
        parts_of([to_pyg(graphs[0]), pyg.HeteroData()])
    with pytest.raises(ValueError, match="Element 0 .*batch of 2 graphs"):
        parts_of([pyg.Batch.from_data_list([to_pyg(graphs[1])] * 2)])


# TensorFlow


@pytest.mark.every_backend
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="loads TensorFlow only there"
)
def test_tf_data():
    tf = pytest.importorskip("tensorflow")

    def fields():
        for number, graph in enumerate(some()):
            yield as_fields(graph) | {"info": {"name": f"graph {number}"}}

    def spec(value):
        if isinstance(value, dict):
            return {k: spec(v) for k, v in value.items()}
        array = np.asarray(value)
        shape = (None, *array.shape[1:]) if array.ndim else ()
        kind = tf.string if array.dtype.kind == "U" else array.dtype
        return tf.TensorSpec(shape, kind)

    signature = spec(next(fields()))
    signature["context"]["cell"] = tf.TensorSpec((2, 3), tf.float32)
    data = tf.data.Dataset.from_generator(fields, output_signature=signature)
    check(data, some())
    assert parts_of(data.prefetch(2))[0][1].info == {"name": "graph 1"}
    check(data.repeat(2), some() * 2)
    check(data.repeat().take(3), some(3))
    with pytest.raises(ValueError, match="an infinite.*repeat.*take"):
        parts_of(data.repeat())
    batched = data.take(1).batch(1)
    with pytest.raises(ValueError, match=r"`num_nodes`.*\(1,\).*unbatch"):
        parts_of(batched)
    check(batched.unbatch(), some(1))


# Grain


def test_grain():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(some())
    check(data, some())
    check(data.map(as_fields), some())
    check(data.filter(lambda graph: graph.num_nodes != 4), some()[:1] + some()[2:])
    check(data.to_iter_dataset(), some())
    check(data.repeat(2), some() * 2)
    check(data.repeat()[:3], some(3))
    limited = grain.experimental.LimitIterDataset(data.repeat().to_iter_dataset(), 7)
    check(limited, (some() * 2)[:7])
    for endless in (data.repeat(), data.repeat().map(as_fields).to_iter_dataset()):
        with pytest.raises(ValueError, match="an infinite.*repeat"):
            parts_of(endless)

    def loader(epochs):
        sampler = grain.samplers.IndexSampler(
            5, shard_options=grain.sharding.NoSharding(), num_epochs=epochs
        )
        return grain.DataLoader(data_source=some(), sampler=sampler)

    check(loader(1), some())
    with pytest.raises(ValueError, match="num_epochs=1"):
        parts_of(loader(None))
