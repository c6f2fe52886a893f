"""The catalogue of data sets: file formats, official addresses, checksums."""

from keras_bandgnn.data.datasets import mlearn
from keras_bandgnn.data.datasets.catalogue_of_links import LINK_SETS
from keras_bandgnn.data.datasets.download import Remote
from keras_bandgnn.data.datasets.files import Dataset, Form

PLANETOID_BLOBS = {
    "cora": {
        "x": "c4a91d008245403e7f26aa616b437191509793c0",
        "tx": "6e856d777401ee15dc8619db76c97d0a40ba2d60",
        "allx": "44d53b1fece343538e45592caac521d73c6f98d6",
        "y": "58e30ef120d3553cfaac33ff28c6b5436dbef661",
        "ty": "da1734ab670b5c8ecee78a9c30b35566df916f4b",
        "ally": "04fbd0b083d09341fcf16b395c642329637f0542",
        "graph": "4d3bf85dfc8b1c105a2c995597a1b3eed6947925",
        "test.index": "ded8092db4cd767a367eebe09003b954a5316f24",
    },
    "citeseer": {
        "x": "f094104a66f2689ffbd01085fe6a856689e9db9e",
        "tx": "b2aff18aa1fc6f4f5e8c64db7643b59b24e42584",
        "allx": "592091071ac35b78599c722d0e60b1c655711728",
        "y": "e857ac49b611da98e101a068cf4855350274f68a",
        "ty": "3795f79df0cd1123f4478b77c148a5fbacc4cefb",
        "ally": "7503f81a0b6ac1cc21cb5a97073542a6b1dfe99c",
        "graph": "a01dca663d0103c130f525017a4a9c313037e286",
        "test.index": "62d9e3d5ed53c66b069125af98529d76c70d9b3e",
    },
    "pubmed": {
        "x": "16c0eca8d2b3297014ff80327416f9332eda10d7",
        "tx": "eee4f3c988fde0da87a9ec7b01ca5e7863c1b1f1",
        "allx": "3b86bccf08111c37c632a9dd8ab63db25ea76361",
        "y": "e86670576c85340eeb2271b3c918bfa89322b2cf",
        "ty": "225a0bb9bb6430e3925d04688daf6a0da964c07a",
        "ally": "4c8bcdc80882dd225fe4dd4fafd723baa616ac97",
        "graph": "76eb87e628a6b9d43fc31ea42c8c6c8f3e52b404",
        "test.index": "41f6befcb7750cc4858cb852f2b349a9598cb2f4",
    },
}
"""Git blob id of each `ind.<name>.<part>` in the repository kimiyoung/planetoid."""

# Git blob ids of the molecules, and of the rows that the benchmark takes.
_ZINC_SMILES = {
    "train.txt": "6b74ace82b9d7091186c6efc08b1f401a0d86ab9",
    "valid.txt": "b6c51cb245602f46f7a5ccf6003d5d4d3f6a96fc",
    "test.txt": "7dc73bee7f7889c2de7fd5836938a1bcfba66b4f",
}
_ZINC_INDICES = {
    "train.index": "c4b804d9cdf36d42d0c98149a412dfa01d49b9f4",
    "val.index": "78db245ba10348d0f677a8ea72ced7daea3bc35e",
    "test.index": "428bc2610e8c288b5460150ae36117acb403e0e4",
}

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
    "ogbn-mag": "it has several types of nodes, which are not supported",
    "ogbn-papers100M": "it is published as binary files only",
    "ogbg-code2": "its labels are words",
}
"""Why some of its sets are not supported."""

OGB_NAMES = (
    *(f"ogb:ogbn-{name}" for name in _OGB_NODES),
    *(f"ogb:ogbg-mol{name}" for name in _OGB_GRAPHS),
    "ogb:ogbg-ppa",
)
"""The supported sets of the Open Graph Benchmark."""


def ogb(name: str) -> Dataset:
    """Describe a set of the Open Graph Benchmark, one of `OGB_NAMES`."""
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
    """Describe a set of TU Dortmund, such as `"tu:MUTAG"`."""
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


_PICKLE = (
    "It is a pickle, which can run code when it is loaded. Use the SMILES, which "
    "load downloads."
)
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/"
_FIGSHARE = "https://ndownloader.figshare.com/files/"
_PLANETOID = (
    "https://raw.githubusercontent.com/kimiyoung/planetoid/"
    "af6abf468a772cc055bec88c52e4d6f51b7c37e3/data/"
)
_GNN_BENCHMARK = (
    "https://raw.githubusercontent.com/shchur/gnn-benchmark/"
    "1e72912a0810cdf27ae54fd589a3b43358a2b161/data/npz/"
)
_JTNN = (
    "https://raw.githubusercontent.com/wengong-jin/icml18-jtnn/"
    "d4c425a8a28fce7d0e8f5da741d27d3fce4a7ec0/data/zinc/"
)
_BENCHMARKING_GNNS = (
    "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/"
    "b6c407712fa576e9699555e1e035d1e327ccae6c/data/molecules/"
)
_HETEROPHILOUS = (
    "https://raw.githubusercontent.com/yandex-research/heterophilous-graphs/"
    "a431395582e929d88271309716bea4fe24ce6318/data/"
)
_WIKI_CS = (
    "https://raw.githubusercontent.com/pmernyei/wiki-cs-dataset/"
    "f5207315d649377f936edb66d7d93f5342f01d81/dataset/data.json"
)
_MLEARN = (
    "https://raw.githubusercontent.com/materialsvirtuallab/mlearn/"
    "10c427a5480c6281c15c64efaf869b03be04818f/data/"
)
_AFLOW = (
    "http://aflow.org/API/aflux/v1.0/?enthalpy_formation_atom(*),Egap(*),"
    "Egap_type(*),dft_type(*),ldau_type(*),energy_cutoff(*),energy_atom(*),density(*),"
    "geometry,positions_fractional,compound,$paging(0)"
)


def _qm9() -> Dataset:
    return Dataset(
        "qm9",
        "small organic molecules with 3D positions and quantum-chemical targets",
        "133,885 (130,831 without those in doubt), 18 atoms",
        "regression of 12 or more targets",
        "CC0",
        forms=(
            Form("qm9:read_bond_graphs", {"part": "*.jsonl.gz"}),
            Form("qm9_raw:read_xyz", {"tar": "dsgdb9nsd.xyz.tar.bz2"}),
            Form("qm9_raw:read_sdf", {"sdf": "gdb9.sdf", "csv": "gdb9.sdf.csv"}),
        ),
        downloads=(
            Remote(
                "dsgdb9nsd.xyz.tar.bz2",
                _FIGSHARE + "3195389",
                "md5:ad1ebd51ee7f5b3a6e32e974e5d54012",
            ),
            Remote(
                "uncharacterized.txt",
                _FIGSHARE + "3195404",
                "md5:a361887bacb427b8a0ce7903d92a53b4",
            ),
        ),
    )


def _zinc() -> Dataset:
    return Dataset(
        "zinc",
        "drug-like molecules with penalised logP, ZINC-12k",
        "12,000, 23 heavy atoms",
        "regression",
        "free to use (ZINC)",
        forms=(
            Form("molecules:read_csv", {"csv": "zinc*.csv.gz"}),
            Form("molecules:read_csv", {"csv": "zinc*.csv"}),
            Form(
                "zinc:read",
                {
                    **{part: f"{part}.txt" for part in ("train", "valid", "test")},
                    "train_index": "train.index",
                    "valid_index": "val.index",
                    "test_index": "test.index",
                },
            ),
        ),
        downloads=tuple(
            Remote(file, address + file, f"git:{blob}")
            for address, files in (
                (_JTNN, _ZINC_SMILES),
                (_BENCHMARKING_GNNS, _ZINC_INDICES),
            )
            for file, blob in files.items()
        ),
        refused={
            "*.pickle": _PICKLE,
            "*.pkl": _PICKLE,
            "molecules.zip": "It holds pickles. " + _PICKLE,
        },
    )


def _molecule_net(
    name: str, file: str, summary: str, graphs: str, task: str
) -> Dataset:
    return Dataset(
        name,
        summary,
        graphs,
        task,
        "as in DeepChem (MIT)",
        forms=(
            Form("molecules:read_csv", {"csv": file}),
            Form("molecules:read_csv", {"csv": f"{name}*.csv.gz"}),
            Form("molecules:read_csv", {"csv": f"{name}*.csv"}),
        ),
        downloads=(Remote(file, _DEEPCHEM + file),),
    )


def _planetoid(name: str, graphs: str) -> Dataset:
    parts = {part: f"ind.{name}.{part}" for part in PLANETOID_BLOBS[name]}
    roles = {part.removesuffix(".index"): file for part, file in parts.items()}
    return Dataset(
        name,
        "citations between papers, Planetoid split",
        graphs,
        "node classification",
        "MIT (repository)",
        forms=(Form("node_graphs:read_planetoid", roles),),
        downloads=tuple(
            Remote(file, _PLANETOID + file, f"git:{PLANETOID_BLOBS[name][part]}")
            for part, file in parts.items()
        ),
    )


def _gnn_benchmark(
    name: str, file: str, blob: str, summary: str, graphs: str
) -> Dataset:
    return Dataset(
        name,
        summary,
        graphs,
        "node classification",
        "MIT (repository)",
        forms=(Form("node_graphs:read_gnn_benchmark", {"npz": file}),),
        downloads=(Remote(file, _GNN_BENCHMARK + file, f"git:{blob}"),),
    )


def _heterophilous(
    name: str, blob: str, summary: str, graphs: str, task: str
) -> Dataset:
    file = f"{name}.npz"
    return Dataset(
        name,
        f"{summary}; ten splits",
        graphs,
        task,
        "MIT (repository)",
        forms=(Form("node_graphs:read_heterophilous", {"npz": file}),),
        downloads=(Remote(file, _HETEROPHILOUS + file, f"git:{blob}"),),
    )


def _wiki_cs() -> Dataset:
    checksum = "git:f1b743119df1a7a3bca449039c54034ae623a756"
    return Dataset(
        "wiki_cs",
        "articles of Wikipedia about computer science; twenty splits",
        "1, with 11,701 nodes",
        "node classification",
        "MIT (repository)",
        forms=(
            Form("node_graphs:read_wiki_cs", {"json": "data.json"}),
            Form("node_graphs:read_wiki_cs", {"json": "wiki*cs*.json"}),
        ),
        downloads=(Remote("data.json", _WIKI_CS, checksum),),
    )


def _mlearn() -> Dataset:
    return Dataset(
        "mlearn",
        "supercells of six elements, with forces",
        "1,566, 74 atoms",
        "regression of energies",
        "BSD-3-Clause",
        forms=(Form("mlearn:read", mlearn.FILES),),
        downloads=tuple(
            Remote(file, _MLEARN + file, f"git:{mlearn.BLOBS[file]}")
            for file in mlearn.FILES.values()
        ),
    )


def _aflow() -> Dataset:
    return Dataset(
        "aflow",
        "crystals with formation enthalpies and band gaps",
        "all that AFLOW has at the time of download",
        "regression",
        "see aflow.org",
        forms=(
            Form("aflow:read", {"json": "aflow*.json"}),
            Form("aflow:read", {"csv": "aflow*.csv"}),
        ),
        downloads=(Remote("aflow.json", _AFLOW),),
    )


def _malnet() -> Dataset:
    address = "http://malnet.cc.gatech.edu/"
    return Dataset(
        "malnet_tiny",
        "call graphs of Android programs, benign and of four kinds of malware",
        "5,000, up to 5,000 nodes",
        "classification, 5 types",
        "see mal-net.org",
        forms=(
            Form(
                "malnet:read",
                {
                    "graphs": "malnet-graphs-tiny",
                    "train": "split_info_tiny/type/train.txt",
                },
            ),
        ),
        downloads=(
            Remote(
                "malnet-graphs-tiny.tar.gz",
                address + "graph-data/malnet-graphs-tiny.tar.gz",
            ),
            Remote("split_info_tiny.zip", address + "split-info/split_info_tiny.zip"),
        ),
    )


_ALL = (
    _qm9(),
    _zinc(),
    _molecule_net(
        "esol",
        "delaney-processed.csv",
        "solubility in water",
        "1,128, 13 heavy atoms",
        "regression",
    ),
    _molecule_net(
        "freesolv",
        "SAMPL.csv",
        "hydration free energy, kcal/mol",
        "642, 9 heavy atoms",
        "regression",
    ),
    _molecule_net(
        "lipo",
        "Lipophilicity.csv",
        "lipophilicity, logD",
        "4,200, 27 heavy atoms",
        "regression",
    ),
    _molecule_net(
        "bbbp",
        "BBBP.csv",
        "passage of the blood-brain barrier",
        "about 2,040, 24 heavy atoms",
        "binary classification",
    ),
    _molecule_net(
        "bace",
        "bace.csv",
        "inhibitors of beta-secretase 1",
        "1,513, 34 heavy atoms",
        "binary classification",
    ),
    _molecule_net(
        "hiv",
        "HIV.csv",
        "inhibition of HIV replication",
        "about 41,100, 26 heavy atoms",
        "binary classification",
    ),
    _molecule_net(
        "tox21",
        "tox21.csv.gz",
        "toxicity in twelve assays",
        "about 8,000, 19 heavy atoms",
        "12 binary tasks with gaps",
    ),
    _planetoid("cora", "1, with 2,708 nodes and 10,556 edges"),
    _planetoid("citeseer", "1, with 3,327 nodes and 9,104 edges"),
    _planetoid("pubmed", "1, with 19,717 nodes and 88,648 edges"),
    _gnn_benchmark(
        "amazon_photo",
        "amazon_electronics_photo.npz",
        "97323743cb56aca9dd611f5b4b46862c1c9c6bd9",
        "photo articles bought together",
        "1, with 7,650 nodes",
    ),
    _gnn_benchmark(
        "amazon_computers",
        "amazon_electronics_computers.npz",
        "8120e4148a330b3fafe37c4476823302d9d834b9",
        "computer articles bought together",
        "1, with 13,752 nodes",
    ),
    _gnn_benchmark(
        "coauthor_cs",
        "ms_academic_cs.npz",
        "9bdd7da943d86b74297e8d32e99eb64245b52835",
        "authors of papers in computer science",
        "1, with 18,333 nodes",
    ),
    _gnn_benchmark(
        "coauthor_physics",
        "ms_academic_phy.npz",
        "8d8bc12e29aa67f6753a712080eae81079bd7d01",
        "authors of papers in physics",
        "1, with 34,493 nodes",
    ),
    _heterophilous(
        "roman_empire",
        "1f9bae5e95b28e529015269e98acb237b65d8d3b",
        "words of an article, linked by syntax and order",
        "1, with 22,662 nodes and 65,854 edges",
        "node classification",
    ),
    _heterophilous(
        "amazon_ratings",
        "29647a8b0ff0ef856d73d683a8c3595bd5efbd38",
        "articles bought together, with their ratings",
        "1, with 24,492 nodes and 186,100 edges",
        "node classification",
    ),
    _heterophilous(
        "minesweeper",
        "cc2387032c65b92a5c520c473db1527cbb329d32",
        "a grid of cells, some with mines",
        "1, with 10,000 nodes and 78,804 edges",
        "binary node classification",
    ),
    _heterophilous(
        "tolokers",
        "b8375a91a8f3c9e32c84fed7c151bbaf6ea6f0c7",
        "workers of a crowdsourcing platform, some banned",
        "1, with 11,758 nodes and 1,038,000 edges",
        "binary node classification",
    ),
    _heterophilous(
        "questions",
        "4c7cb65057dbc9771af00fdfdee64a41b3875079",
        "users of a question-answering site who stay active or not",
        "1, with 48,921 nodes and 307,080 edges",
        "binary node classification",
    ),
    _wiki_cs(),
    *LINK_SETS,
    _mlearn(),
    _aflow(),
    _malnet(),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}
"""The data sets of fixed names."""
