"""Files under the name of another set are noticed by their size."""

import logging

import numpy as np
import pytest

from keras_bandgnn.data import load
from keras_bandgnn.data.datasets.catalogue import DATASETS
from keras_bandgnn.data.datasets.load import recorded_size

SIZES = {name: recorded_size(data) for name, data in DATASETS.items()}
SIZES = {name: size for name, size in SIZES.items() if size is not None}
NPZ = [n for n in SIZES if any("npz" in form.files for form in DATASETS[n].forms)]


def test_sets_of_one_graph_record_their_size():
    assert SIZES["cora"] == (2708, 10556) and SIZES["amazon_photo"] == (7650, None)
    one = {name for name, data in DATASETS.items() if data.graphs.startswith("1, ")}
    assert one == set(SIZES)


def write(path, nodes, reader):
    """Write a ring with the arrays that a reader expects."""
    ends = np.arange(nodes)
    if "heterophilous" in reader:
        masks = np.eye(3, dtype=bool)[np.arange(nodes) % 3].T[:, None]
        names = ("train_masks", "val_masks", "test_masks")
        np.savez(
            path,
            node_features=np.ones((nodes, 1), np.float32),
            node_labels=ends % 2,
            edges=np.stack([ends, (ends + 1) % nodes], 1),
            **dict(zip(names, masks, strict=True)),
        )
        return
    pointers = np.arange(nodes + 1)
    one = np.ones(nodes, np.float32)
    np.savez(
        path,
        labels=ends % 2,
        adj_indptr=pointers,
        adj_indices=(ends + 1) % nodes,
        adj_data=one,
        adj_shape=np.array([nodes, nodes]),
        attr_indptr=pointers,
        attr_indices=np.zeros(nodes, int),
        attr_data=one,
        attr_shape=np.array([nodes, 1]),
    )


@pytest.mark.parametrize("name", NPZ)
def test_a_file_of_another_size_is_noticed(name, tmp_path, caplog):
    (form,) = DATASETS[name].forms
    nodes, edges = SIZES[name]
    write(tmp_path / "other.npz", 7, form.reader)
    with caplog.at_level(logging.WARNING):
        assert load(name, path=tmp_path / "other.npz").num_nodes.tolist() == [7]
    assert f"Expected {name!r} to be 1, with {nodes:,} nodes" in caplog.text
    assert "Received: 7 nodes" in caplog.text and "other.npz" in caplog.text
    caplog.clear()
    if edges is None:
        write(tmp_path / "same.npz", nodes, form.reader)
        with caplog.at_level(logging.WARNING):
            load(name, path=tmp_path / "same.npz")
        assert not caplog.text
        others = [n for n in NPZ if SIZES[n][1] is None and n != name]
        with caplog.at_level(logging.WARNING):
            load(others[0], path=tmp_path / "same.npz")
        assert f"the size of {name!r}" in caplog.text


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_arrays_are_no_files_of_planetoid(name, tmp_path):
    write(tmp_path / f"{name}.npz", 7, "gnn_benchmark")
    with pytest.raises(FileNotFoundError, match=f"Expected files of {name!r}"):
        load(name, path=tmp_path / f"{name}.npz")
