"""Readers of data sets, archives, program graphs and structures."""

import bz2
import gzip
import io
import json
import pickle
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from keras_bandgnn.data import read_graph_schema, read_structures
from keras_bandgnn.data.converters.graph_schema import checked_schema
from keras_bandgnn.data.converters.structure_checks import ENDINGS
from keras_bandgnn.data.datasets.archives import ARCHIVES
from keras_bandgnn.data.datasets.catalogue import DATASETS, OGB_NAMES
from keras_bandgnn.data.datasets.files import Form
from keras_bandgnn.data.datasets.load import find_dataset, load
from keras_bandgnn.data.datasets.mlearn import FILES
from keras_bandgnn.data.datasets.pickle_arrays import read_pickle
from keras_bandgnn.programs import read_corpus, read_great, read_varmisuse
from tests.fuzz import invariants
from tests.fuzz.readers import Files, Reader


def form_name(form: Form) -> str:
    """`molecules:read_csv csv.gz`: the function, and what its files are called."""
    kinds = []
    for role, pattern in sorted(form.files.items()):
        kinds.append(role + (".gz" if pattern.endswith(".gz") else ""))
    return f"{form.reader} {'+'.join(kinds)}"


def forms() -> dict[str, tuple[str, Form]]:
    """Name of each different form -> a data set that has it, and the form."""
    found = {}
    names = [*DATASETS, *OGB_NAMES[:1], OGB_NAMES[-2], "tu:SET"]
    for name in names:
        for form in find_dataset(name).forms:
            key = form_name(form)
            if name.startswith("ogb:"):
                key += " of nodes" if "ogbn" in name else " of graphs"
            found.setdefault(key, (name, form))
    return found


def npz(**arrays) -> bytes:
    """The bytes of an npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def gz(text: str | bytes) -> bytes:
    """Gzipped text."""
    return gzip.compress(text.encode() if isinstance(text, str) else text, mtime=0)


def qm9_lines() -> Files:
    def line(number):
        return json.dumps(
            {
                "targets": [[number / 10], *[[0.5]] * 12],
                "graph": [[0, 1, 1], [0, 2, 2]],
                "id": f"qm9:{number:06}",
                "node_features": [[0, 1, 0, 0, 0, 6, 0.5, *[0] * 8]] * 3,
            }
        )

    return {
        "train.jsonl.gz": gz(f"{line(3)}\n{line(4)}\n"),
        "test.jsonl.gz": gz(f"{line(8)}\n"),
    }


def _listed() -> bytes:
    head = ["=" * 20, "3054 molecules", *["text"] * 7]
    return "\n".join([*head, "   7   CC   CC   a   b", "=" * 20, ""]).encode()


def qm9_xyz() -> Files:
    totals = "\t".join(["157.7", *["0.5"] * 9, *["-40.4"] * 4, "6"])
    texts = {
        2: f"2\ngdb 2\t{totals}\t\nN\t0.1\t1.5\t0.2\t-0.7\n"
        "H\t0\t1\t-2.7*^-2\t0.2\n1\nN\n",
        1: f"1\ngdb 1\t{totals}\t\nC\t-0.1\t 1.0\t 0.8\t-0.5\n1341.3\nC\tC\n",
    }
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, text in texts.items():
            member = tarfile.TarInfo(f"dsgdb9nsd_{number:06}.xyz")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return {
        "dsgdb9nsd.xyz.tar.bz2": bz2.compress(file.getvalue()),
        "uncharacterized.txt": _listed(),
    }


def qm9_sdf() -> Files:
    sdf = (
        "gdb_1\n  -OEChem\n\n"
        "  2  1  0     0  0  0  0  0  0999 V2000\n"
        "   -0.0127    1.0858    0.0080 C   0  0  0  0  0  0\n"
        "    0.0022   -0.0060    0.0020 H   0  0  0  0  0  0\n"
        "  1  2  1  0  0  0  0\nM  END\n$$$$\n"
        "gdb_4\n  -OEChem\n\n"
        "  3  2  0     0  0  0  0  0  0999 V2000\n"
        "    0.5995    0.0000    1.0000 O   0  0  0  0  0  0\n"
        "   -0.5995    0.0000    1.0000 H   0  0  0  0  0  0\n"
        "   -1.6616    0.0000    1.0000 H   0  0  0  0  0  0\n"
        "  1  2  1  0  0  0  0\n  1  3  1  0  0  0  0\nM  END\n$$$$\n"
    )
    names = "mol_id,A,B,C,mu,alpha,homo,lumo,gap,r2,zpve,u0,u298,h298,g298,cv"
    rows = ["gdb_1," + ",".join(["0.5"] * 15), "gdb_4," + ",".join(["1.5"] * 15)]
    return {
        "gdb9.sdf": sdf.encode(),
        "gdb9.sdf.csv": "\n".join([names, *rows, ""]).encode(),
        "uncharacterized.txt": _listed(),
    }


SMILES = "smiles,y,split\nCC,1,train\nc1ccccc1,2.5,val\nCCO,3,test\n"


def gnn_benchmark_npz() -> Files:
    return {
        "amazon_electronics_photo.npz": npz(
            adj_data=np.array([1, 2, 1], np.float32),
            adj_indices=np.array([0, 1, 1], np.int32),
            adj_indptr=np.array([0, 2, 2, 3], np.int32),
            adj_shape=np.array([3, 3]),
            attr_data=np.array([3, 1], np.float32),
            attr_indices=np.array([1, 0], np.int32),
            attr_indptr=np.array([0, 1, 2, 2], np.int32),
            attr_shape=np.array([3, 2]),
            labels=np.array([0, 1, 1]),
            node_names=np.array(["a", "b", None], object),
        )
    }


def heterophilous_npz() -> Files:
    masks = {
        "train_masks": np.array([[1, 0, 0], [0, 1, 0]], bool),
        "val_masks": np.array([[0, 1, 0], [0, 0, 1]], bool),
        "test_masks": np.array([[0, 0, 1], [1, 0, 0]], bool),
    }
    return {
        "roman_empire.npz": npz(
            node_features=np.arange(6, dtype=np.float32).reshape(3, 2),
            node_labels=np.array([0, 1, 0]),
            edges=np.array([[0, 1], [1, 2]]),
            **masks,
        )
    }


def wiki_cs() -> Files:
    data = {
        "features": [[0.5, -1.0], [0.25, 2.0], [1.0, 0.0]],
        "labels": [0, 2, 1],
        "links": [[1], [0, 2], []],
        "train_masks": [[True, False, False], [False, True, False]],
        "val_masks": [[False, True, False], [False, False, True]],
        "stopping_masks": [[False, True, False], [False, False, True]],
        "test_mask": [False, False, True],
    }
    return {"data.json": json.dumps(data).encode()}


def dblp() -> Files:
    return {
        "author_label.txt": b"7\t2\tAda\n3\t0\tBea\n",
        "paper_author.txt": b"20\t7\n10\t3\n20\t5\n10\t7\n",
        "paper_conf.txt": b"10\t1\n20\t4\n",
        "paper_term.txt": b"10\t50\n10\t60\n20\t60\n",
    }


def collegemsg() -> Files:
    text = "1 2 1082040961\n3 4 1082155839\n5 2 1082414391\n"
    return {"CollegeMsg.txt.gz": gz(text)}


def collegemsg_text() -> Files:
    return {"CollegeMsg.txt": b"1 2 1082040961\n3 4 1082155839\n"}


def gowalla() -> Files:
    return {"train.txt": b"0 1 2\n1 0 3\n2 2\n", "test.txt": b"0 3 0\n1\n2 1 \n"}


def zinc_text() -> Files:
    return {
        "train.txt": b"CCO\nc1ccccc1\nCCN\n",
        "valid.txt": b"CC(=O)O\nCCC\n",
        "test.txt": b"C1CCCCCCC1\n",
        "train.index": b"2,0\r\n",
        "val.index": b"1\r\n",
        "test.index": b"0\r\n",
    }


def _text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def pickled_array(values) -> bytes:
    """The instructions with which Python 2 wrote a NumPy array."""
    values = np.asarray(values)
    content = values.tobytes()
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n",
            *[b"cnumpy\nndarray\n", b"K\x00\x85", _text(b"b"), b"\x87R"],
            *[b"(K\x01(", *map(_number, values.shape), b"t"],
            *[b"cnumpy\ndtype\n", _text(values.dtype.str[1:].encode())],
            *[b"K\x00K\x01\x87R", b"(K\x03", _text(b"<"), b"NNN"],
            *[_number(-1), _number(-1), b"K\x00tb"],
            *[b"\x89T", struct.pack("<I", len(content)), content, b"tb"],
        ]
    )


def pickled_matrix(values) -> bytes:
    """The instructions with which Python 2 wrote a SciPy matrix."""
    import scipy.sparse as sp

    values = sp.csr_matrix(np.asarray(values, np.float32))
    return b"".join(
        [
            b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(",
            *[_text(b"_shape"), *map(_number, values.shape), b"\x86"],
            *[_text(b"indptr"), pickled_array(values.indptr)],
            *[_text(b"indices"), pickled_array(values.indices)],
            *[_text(b"data"), pickled_array(values.data), b"ub"],
        ]
    )


def planetoid() -> Files:
    graph = [b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R("]
    lists = {0: [1, 1, 0], 1: [0], 2: [6], 6: [2], 3: [5], 5: []}
    for node, ends in lists.items():
        graph += [_number(node), b"](", *map(_number, ends), b"e"]
    parts = {
        "x": pickled_matrix(np.eye(2, 4)),
        "allx": pickled_matrix(np.eye(3, 4)),
        "tx": pickled_matrix(np.arange(12).reshape(3, 4) / 8),
        "y": pickled_array(np.eye(2, dtype=np.int32)),
        "ally": pickled_array(np.array([[1, 0], [0, 1], [1, 0]], np.int32)),
        "ty": pickled_array(np.array([[0, 1], [1, 0], [0, 0]], np.int32)),
        "graph": b"".join([*graph, b"u"]),
    }
    files: Files = {f"ind.cora.{k}": b"\x80\x02" + v + b"." for k, v in parts.items()}
    return files | {"ind.cora.test.index": b"6\n3\n5\n"}


_ENTRIES = [
    {
        "compound": "Ag1Cl1",
        "auid": "aflow:1",
        "enthalpy_formation_atom": -0.6,
        "Egap": 0.9,
        "geometry": [4, 4, 4, 60, 60, 60],
        "positions_fractional": [[0, 0, 0], [0.5, 0.5, 0.5]],
    },
    {
        "compound": "Mg2",
        "auid": "aflow:2",
        "enthalpy_formation_atom": 0.0,
        "Egap": None,
        "geometry": [3.2, 3.2, 5.2, 90, 90, 120],
        "positions_fractional": [[0.3, 0.6, 0.25], [0.6, 0.3, 0.75]],
    },
]


def aflow_json() -> Files:
    return {"aflow.json": json.dumps(_ENTRIES).encode()}


def aflow_csv() -> Files:
    return {
        "aflow.csv": (
            b",auid,compound,enthalpy_formation_atom,geometry,positions_fractional\n"
            b'0,aflow:1,Ag1Cl1,-0.6,"[4, 4, 4, 60, 60, 60]",'
            b'"[[0, 0, 0], [0.5, 0.5, 0.5]]"\n'
            b'1,aflow:2,Mg2,0,"3.2,3.2,5.2,90,90,120","0.3,0.6,0.25;0.6,0.3,0.75"\n'
        )
    }


def mlearn() -> Files:
    """A supercell of two atoms in each file."""
    files = {}
    for file in FILES.values():
        symbol = file.partition("/")[0]
        sites = [
            {"species": [{"element": symbol, "occu": 1}], "xyz": xyz}
            for xyz in ([0.0, 0.0, 0.5], [2.0, 2.0, 0.25])
        ]
        lattice = {"matrix": [[4.0, 0, 0], [0, 4.0, 0], [0, 0.5, 5.0]]}
        entry = {
            "structure": {"lattice": lattice, "sites": sites},
            "outputs": {"energy": -3.5, "forces": [[0.5, 0, 0], [-0.5, 0, 1]]},
            "group": "Vacancy",
        }
        files[file] = json.dumps([entry]).encode()
    return files


def ogb_graphs() -> Files:
    texts = {
        "raw/edge": "0,1\n0,1\n1,2\n",
        "raw/num-node-list": "2\n3\n1\n",
        "raw/num-edge-list": "1\n2\n0\n",
        "raw/node-feat": "6,0\n7,1\n6,0\n8,0\n6,0\n9,0\n",
        "raw/edge-feat": "0,0\n1,0\n2,1\n",
        "raw/graph-label": "0,1\n,1\n1,\n",
        "split/scaffold/train": "2\n0\n",
        "split/scaffold/valid": "1\n",
        "split/scaffold/test": "1\n",
    }
    return {f"hiv/{name}.csv.gz": gz(text) for name, text in texts.items()}


def ogb_nodes() -> Files:
    texts = {
        "raw/edge": "0,1\n2,0\n",
        "raw/num-node-list": "3\n",
        "raw/num-edge-list": "2\n",
        "raw/node-feat": "0.5,1\n1,2\n3,4\n",
        "raw/node-label": "4\n0\n2\n",
        "raw/node_year": "2015\n2016\n2017\n",
        "split/time/train": "0\n",
        "split/time/valid": "2\n",
        "split/time/test": "1\n",
    }
    return {f"arxiv/{name}.csv.gz": gz(text) for name, text in texts.items()}


def tu() -> Files:
    texts = {
        "A": "1, 3\n3, 1\n2, 4\n4, 2\n4, 5\n5, 4\n",
        "graph_indicator": "1\n2\n1\n2\n2\n3\n",
        "graph_labels": "1\n-1\n1\n",
        "node_labels": "4\n3\n4\n5\n3\n3\n",
        "edge_labels": "1\n1\n2\n2\n1\n1\n",
        "node_attributes": "0.5, 1\n1, 2\n2, 3\n3, 4\n4, 5\n5, 6\n",
        "edge_attributes": "1\n1\n2.5\n2.5\n3\n3\n",
        "graph_attributes": "0.1\n0.2\n0.3\n",
    }
    return {f"SET_{name}.txt": text.encode() for name, text in texts.items()}


def malnet() -> Files:
    head = "# Directed graph\n# Nodes: 3 Edges: 2\n# From To\n"
    graphs = {
        "trojan/artemis/AA": f"{head}0 1\n1 2\n",
        "benign/benign/BB": f"{head}0\t3\n",
        "adware/airpush/CC": head,
    }
    files: Files = {
        f"malnet-graphs-tiny/{name}.edgelist": text.encode()
        for name, text in graphs.items()
    }
    for name, file in zip(graphs, ("train", "val", "test"), strict=True):
        files[f"split_info_tiny/type/{file}.txt"] = f"{name}\n".encode()
    return files


SAMPLES: dict[str, Callable[[], Files]] = {
    "qm9:read_bond_graphs part.gz": qm9_lines,
    "qm9_raw:read_xyz tar": qm9_xyz,
    "qm9_raw:read_sdf csv+sdf": qm9_sdf,
    "molecules:read_csv csv": lambda: {"zinc_a.csv": SMILES.encode()},
    "molecules:read_csv csv.gz": lambda: {"zinc_a.csv.gz": gz(SMILES)},
    "node_graphs:read_gnn_benchmark npz": gnn_benchmark_npz,
    "node_graphs:read_heterophilous npz": heterophilous_npz,
    "node_graphs:read_wiki_cs json": wiki_cs,
    "gowalla:read test+train": gowalla,
    "dblp:read author_label+paper_author+paper_conf+paper_term": dblp,
    "collegemsg:read messages.gz": collegemsg,
    "collegemsg:read messages": collegemsg_text,
    "zinc:read test+test_index+train+train_index+valid+valid_index": zinc_text,
    "node_graphs:read_planetoid allx+ally+graph+test+tx+ty+x+y": planetoid,
    "mlearn:read " + "+".join(sorted(FILES)): mlearn,
    "aflow:read json": aflow_json,
    "aflow:read csv": aflow_csv,
    "malnet:read graphs+train": malnet,
    "ogb:read counts.gz+edges.gz+nodes.gz of nodes": ogb_nodes,
    "ogb:read counts.gz+edges.gz+nodes.gz of graphs": ogb_graphs,
    "tu:read edges+indicator": tu,
}
"""The sample of each form of a data set, by `form_name`."""

NEEDS = {
    "molecules:read_csv csv": ("rdkit",),
    "molecules:read_csv csv.gz": ("rdkit",),
    "zinc:read test+test_index+train+train_index+valid+valid_index": (
        "rdkit",
        "networkx",
    ),
}


def _of_data_set(name: str) -> Callable:
    return lambda folder: load(name, path=folder, progress=False)


def archive(ending: str) -> Files:
    """The set of `tu` in an archive."""
    file = io.BytesIO()
    members = {f"SET/{name}": content for name, content in tu().items()}
    if ending == ".zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in members.items():
                packed.writestr(zipfile.ZipInfo(name), content)
    else:
        with tarfile.open(fileobj=file, mode="w") as packed:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
    data = file.getvalue()
    return {f"SET{ending}": gz(data) if ending.endswith("gz") else data}


def _of_archive(name: str) -> Callable:
    def read(folder: Path):
        # Outside the folder of the sample: nothing there may change.
        with tempfile.TemporaryDirectory() as cache:
            path = folder / name
            return load("tu:SET", path=path, cache=cache, progress=False)

    return read


PROGRAM = {
    "filename": "src\\A.cs",
    "slotTokenIdx": 7,
    "ContextGraph": {
        "Edges": {
            "Child": [[3, 0], [3, 4], [3, 5]],
            "NextToken": [[4, 0], [0, 5], [5, 6], [6, 7]],
            "LastUse": [[1, 4], [4, 4]],
            "GuardedBy": [],
        },
        "NodeLabels": {
            **{"0": "<SLOT>", "1": "fooBar", "2": "bär", "3": "ArgumentList"},
            **{"4": "fooBar", "5": ";", "6": "return", "7": "12.5f"},
        },
        "NodeTypes": {"4": "string", "1": "string"},
    },
    "SlotDummyNode": 0,
    "SymbolCandidates": [
        {"SymbolDummyNode": 1, "SymbolName": "fooBar", "IsCorrect": True},
        {"SymbolDummyNode": 2, "SymbolName": "bär", "IsCorrect": False},
    ],
}


def varmisuse(name: str) -> Files:
    """Two program graphs, as an array or one a line."""
    text = "\n".join([json.dumps(PROGRAM)] * 2) + "\n"
    if ".jsonl" not in name:
        text = json.dumps([PROGRAM] * 2, indent=1)
    return {name: gz(text) if name.endswith(".gz") else text.encode()}


def great() -> Files:
    """A correct function, and one with a wrong variable."""
    tokens = ["#NEWLINE#", "def f(", "a", ",", "b", ")", ":", "#NEWLINE#", "#INDENT#"]
    tokens += ["return", "a", "-", "a"]
    example = {"source_tokens": tokens, "has_bug": False, "error_location": 0}
    example |= {"repair_targets": [], "repair_candidates": [2, "a", 4, "b"]}
    wrong = {**example, "has_bug": True, "error_location": 12, "repair_targets": [4]}
    return {"great.jsonl.gz": gz(f"{json.dumps(example)}\n{json.dumps(wrong)}\n")}


def _great(folder: Path) -> list:
    return list(read_great(folder))


def _right_great(found: list) -> str | None:
    for example in found:
        example.graph()
        if not example.has_bug:
            continue
        line, column = example.place
        if not example.source.split("\n")[line - 1][column:].startswith(example.used):
            return "the wrong variable is elsewhere"
    return None


def corpus() -> Files:
    """A corpus of one package."""
    header = {"package": "a", "version": "1", "licence": "MIT"}
    module = {"path": "a.py", "lines": 2, "imports": {"os": "os"}, "variables": ["x"]}
    module |= {"classes": {}, "signatures": {"f": ["a", "b"]}}
    source = "def f(a, b):\n    return a"
    module["functions"] = [{"name": "f", "line": 1, "source": source}]
    package = {"name": "a", "version": "1", "licence": "MIT", "split": "train"}
    package |= {"file": "train/a.jsonl.gz", "kept": 1, "kept_lines": 2}
    return {
        "corpus.json": json.dumps({"packages": [package]}).encode(),
        "train/a.jsonl.gz": gz(f"{json.dumps(header)}\n{json.dumps(module)}\n"),
    }


def _corpus(folder: Path) -> list:
    return list(read_corpus(folder, "train"))


def _right_corpus(found: list) -> str | None:
    right = all(isinstance(f.source, str) and isinstance(f.line, int) for f in found)
    return None if right else "a function of another form"


def _programs(folder: Path) -> list:
    return list(read_varmisuse(folder))


EXTXYZ = """2
Lattice="4.0 0 0 0 4.0 0 0 0 4.5" Properties=species:S:1:pos:R:3:forces:R:3 \
energy=-3 gap=1 pbc="T T F"
Na 0.0 0.0 0.5 0.1 0.2 0.3
Cl 2.0 2.0 0.0 -0.1 -0.2 -0.3
1
Lattice="3.0 0 0 0 3.0 0 0 0 3.0" Properties=species:S:1:pos:R:3:forces:R:3 \
energy=-1.25 gap=2 pbc="T T T"
Cu 0.0 0.0 0.0 0.0 0.0 0.0
"""
POSCAR = """NaCl
1.0
4.0 0.0 0.0
0.5 3.0 0.0
0.0 0.0 5.0
Na Cl
1 1
Direct
0.0 0.0 0.0
0.5 0.5 0.5
"""
CIF = """data_CsCl
_cell_length_a 4.12
_cell_length_b 4.12
_cell_length_c 4.12
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'P 1'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
Cs1 Cs 0 0 0
Cl1 Cl 0.5 0.5 0.5
"""
PDB = """CRYST1    4.000    4.000    5.000  90.00  90.00  90.00 P 1
ATOM      1   Na MOL     1       0.000   0.000   0.500  1.00  0.00          NA
ATOM      2   Cl MOL     1       2.000   2.000   0.000  1.00  0.00          CL
END
"""


VASPRUN = """<?xml version="1.0" encoding="ISO-8859-1"?>
<modeling>
<kpoints><varray name="kpointlist"><v>0 0 0</v></varray>
<varray name="weights"><v>1.0</v></varray></kpoints>
<parameters><i name="PSTRESS">0.0</i></parameters>
<atominfo><array name="atoms"><set>
<rc><c>Na</c><c>1</c></rc><rc><c>Cl</c><c>2</c></rc>
</set></array></atominfo>
<structure name="initialpos"><crystal><varray name="basis">
<v>4.0 0.0 0.0</v><v>0.0 4.0 0.0</v><v>0.0 0.0 5.0</v></varray></crystal>
<varray name="positions"><v>0.0 0.0 0.0</v><v>0.5 0.5 0.5</v></varray></structure>
<calculation><scstep><energy><i name="e_fr_energy">-6.5</i>
<i name="e_0_energy">-6.25</i></energy></scstep>
<structure><crystal><varray name="basis">
<v>4.0 0.0 0.0</v><v>0.0 4.0 0.0</v><v>0.0 0.0 5.0</v></varray></crystal>
<varray name="positions"><v>0.0 0.0 0.0</v><v>0.5 0.5 0.5</v></varray></structure>
<varray name="forces"><v>0.1 0.0 0.0</v><v>-0.1 0.0 0.0</v></varray>
<varray name="stress"><v>9.0 0.0 0.0</v><v>0.0 8.0 0.0</v><v>0.0 0.0 7.0</v></varray>
<energy><i name="e_fr_energy">-6.5</i><i name="e_0_energy">-6.25</i></energy>
</calculation>
</modeling>
"""


def written(ending: str) -> bytes:
    """A trajectory or database as ASE writes it."""
    import ase
    import ase.io

    atoms = ase.Atoms("NaCl", [[0, 0, 0.5], [2, 2, 0]], cell=[4, 4, 5], pbc=True)
    with tempfile.TemporaryDirectory() as folder:
        ase.io.write(Path(folder) / f"a{ending}", [atoms, atoms])
        return (Path(folder) / f"a{ending}").read_bytes()


STRUCTURES: dict[str, Callable[[], bytes]] = {
    ".cif": CIF.encode,
    ".db": partial(written, ".db"),
    ".extxyz": EXTXYZ.encode,
    ".lammpstrj": lambda: DUMP.encode(),
    ".mol": lambda: V3000.encode(),
    ".pdb": PDB.encode,
    ".poscar": POSCAR.encode,
    ".sdf": lambda: qm9_sdf()["gdb9.sdf"],
    ".traj": partial(written, ".traj"),
    ".vasp": POSCAR.encode,
    ".xyz": "3\n\nO 0 0 0.12\nH 0 0.76 -0.48\nH 0 -0.76 -0.48\n".encode,
}
"""A file of each ending of `ENDINGS`."""


V3000 = """water
  x

  0  0  0     0  0            999 V3000
M  V30 BEGIN CTAB
M  V30 COUNTS 2 1 0 0 0
M  V30 BEGIN ATOM
M  V30 1 O 0 0 0.12 0
M  V30 2 H 0 0.76 -0.48 0
M  V30 END ATOM
M  V30 END CTAB
M  END
"""
GRO = """salt
2
    1SAL     Na    1   0.000   0.000   0.050
    1SAL     Cl    2   0.200   0.212   0.000
 0.40000 0.40000 0.50000
"""
G96 = """TITLE
salt
END
POSITION
    1 SAL   Na         1    0.000000000    0.000000000    0.050000000
    1 SAL   Cl         2    0.200000000    0.212000000    0.000000000
END
BOX
    0.400000000    0.400000000    0.500000000
END
"""
DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 4
0 4
0 5
ITEM: ATOMS id type x y z
1 1 0 0 0.5
2 2 2 2.12 0
"""
LAMMPS = """types

2 atoms
2 atom types
0 4 xlo xhi
0 4 ylo yhi
0 5 zlo zhi

Atoms # atomic

1 1 0 0 0.5
2 2 2 2.12 0
"""
FORMATS = {
    "gromacs": GRO,
    "gromos": G96,
    "lammps-data": LAMMPS,
    "lammps-dump-text": DUMP,
    "mol": V3000,
}
"""A file of each format with a reader of its own, read by the name of the format."""


def _format(name: str, folder: Path):
    return read_structures(
        folder / "a", format=name, elements=["Na", "Cl"], progress=False
    )


def _structures(folder: Path):
    return read_structures(folder, elements=["Na", "Cl"], progress=False)


def _json_database(folder: Path):
    return read_structures(folder / "a.json", progress=False)


def _single_pickle() -> Files:
    return {"array.pkl": b"\x80\x02" + pickled_matrix(np.eye(3)) + b"."}


def _right_matrix(value) -> str | None:
    if isinstance(value, pickle.PickleBuffer) or callable(value):
        return f"a {type(value).__name__}"
    if hasattr(value, "indptr"):
        if value.indices.size and not (
            0 <= value.indices.min() <= value.indices.max() < value.shape[1]
        ):
            return "indices out of range"
    return None


def _no_sample(key: str) -> Files:
    raise AssertionError(f"Add a sample of {key!r} to SAMPLES in {__file__}.")


def readers() -> Iterator[Reader]:
    """One reader for each form, ending and kind of archive."""
    for key, (name, _) in forms().items():
        sample = SAMPLES.get(key) or partial(_no_sample, key)
        yield Reader(key, sample, _of_data_set(name), modules=NEEDS.get(key, ()))
    for ending in ARCHIVES:
        name = f"SET{ending}"
        yield Reader(
            f"archive {ending}",
            _sample(archive, ending),
            _of_archive(name),
            names=tuple(tu()),
        )
    for name in ("a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz"):
        sample = _sample(varmisuse, name)
        yield Reader(
            f"varmisuse {name[1:]}",
            *(sample, _programs, invariants.programs),
        )
    yield Reader("corpus", corpus, _corpus, _right_corpus)
    yield Reader("great", great, _great, _right_great)
    for ending in (*ENDINGS, ".xyz.gz", ".cif.bz2"):
        yield Reader(
            f"structures {ending}",
            _sample(_structure, ending),
            _structures,
            modules=("ase",),
        )
    for name, text in FORMATS.items():
        yield Reader(
            f"structures {name}",
            _sample(_unnamed, text),
            partial(_format, name),
            modules=("ase",),
        )
    yield Reader(
        "structures vasprun.xml",
        lambda: {"vasprun.xml": VASPRUN.encode()},
        _structures,
        modules=("ase",),
    )
    yield Reader(
        "structures .json",
        lambda: {"a.json": written(".json")},
        _json_database,
        modules=("ase",),
    )
    yield Reader(
        "graph schema",
        lambda: {"graph_schema.pbtxt": GRAPH_SCHEMA.encode()},
        lambda folder: read_graph_schema(folder / "graph_schema.pbtxt"),
        _right_schema,
    )
    yield Reader(
        "pickle_arrays",
        *(_single_pickle, lambda folder: read_pickle(folder / "array.pkl")),
        _right_matrix,
    )


GRAPH_SCHEMA = """# Users and items.
context { features { key: "year" value { dtype: DT_INT64 } } }
node_sets { key: "user" value { description: 'They buy.' "Some know others."
  features { key: "x" value { dtype: DT_FLOAT shape { dim { size: 3 } } } } } }
node_sets { key: "item" value { context: ["year"] } }
edge_sets { key: "buys" value { source: "user", target: "item" } }
"""


def _right_schema(schema) -> str | None:
    return None if checked_schema(schema) == schema else "another schema"


def _unnamed(text: str) -> Files:
    return {"a": text.encode()}


def _structure(ending: str) -> Files:
    if ending.endswith(".gz"):
        return {f"a{ending}": gz(STRUCTURES[ending[:-3]]())}
    if ending.endswith(".bz2"):
        return {f"a{ending}": bz2.compress(STRUCTURES[ending[:-4]]())}
    return {f"a{ending}": STRUCTURES[ending]()}


def _sample(make: Callable[[str], Files], argument: str) -> Callable[[], Files]:
    return lambda: make(argument)
