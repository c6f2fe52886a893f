"""Collections whose sets share a layout: Open Graph Benchmark, TU Dortmund."""

from keras_bandgnn.data.datasets.download import Remote
from keras_bandgnn.data.datasets.sources import Dataset, Form

_OGB = "http://snap.stanford.edu/ogb/data/"
# Name of the archive, and whether the benchmark adds the reverse of each edge.
_OGB_NODES = {"arxiv": False, "products": True, "proteins": True}
_OGB_GRAPHS = {
    **{name: f"csv_mol_download/{name}" for name in ("bace", "bbbp", "clintox", "muv")},
    **{name: f"csv_mol_download/{name}" for name in ("pcba", "sider", "tox21")},
    **{name: f"csv_mol_download/{name}" for name in ("toxcast", "hiv", "esol")},
    **{name: f"csv_mol_download/{name}" for name in ("freesolv", "chembl")},
    "lipo": "csv_mol_download/lipophilicity",
}
OGB_REFUSED = {
    "ogbn-mag": "it has several types of nodes, which one graph here does not have",
    "ogbn-papers100M": "it is published as binary files alone",
    "ogbg-code2": "its labels are words",
}
"""Why some of its sets are not read."""

OGB_NAMES = (
    *(f"ogb:ogbn-{name}" for name in _OGB_NODES),
    *(f"ogb:ogbg-mol{name}" for name in _OGB_GRAPHS),
    "ogb:ogbg-ppa",
)
"""The sets of the Open Graph Benchmark that are read."""


def ogb(name: str) -> Dataset:
    """What is known about a set of the Open Graph Benchmark, one of `OGB_NAMES`."""
    kind, _, short = name.removeprefix("ogb:").partition("-")
    if kind == "ogbn":
        address, inverse = f"nodeproppred/{short}.zip", _OGB_NODES[short]
    elif short == "ppa":
        address, inverse = "graphproppred/ogbg_ppi_medium.zip", True
    else:
        archive = _OGB_GRAPHS[short.removeprefix("mol")]
        address, inverse = f"graphproppred/{archive}.zip", True
    files = {
        "edges": "edge.csv.gz",
        "nodes": "num-node-list.csv.gz",
        "counts": "num-edge-list.csv.gz",
    }
    return Dataset(
        name,
        "a set of the Open Graph Benchmark",
        "see ogb.stanford.edu",
        "node labels" if kind == "ogbn" else "graph labels",
        "see ogb.stanford.edu",
        forms=(Form("ogb:read", files, {"inverse_edges": inverse}),),
        downloads=(Remote(address.rpartition("/")[2], _OGB + address),),
    )


def tu(name: str) -> Dataset:
    """What is known about a set of TU Dortmund, such as `"tu:MUTAG"`."""
    short = name.removeprefix("tu:")
    files = {"edges": f"{short}_A.txt", "indicator": f"{short}_graph_indicator.txt"}
    address = f"https://www.chrsmrrs.com/graphkerneldatasets/{short}.zip"
    return Dataset(
        name,
        "a set of the TU Dortmund collection",
        "see chrsmrrs.github.io/datasets",
        "graph labels",
        "as in its README.txt",
        forms=(Form("tu:read", files),),
        downloads=(Remote(f"{short}.zip", address),),
    )
