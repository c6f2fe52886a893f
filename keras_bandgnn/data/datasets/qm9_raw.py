"""QM9 as published: xyz files in a tar archive, and DeepChem's SDF."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_bandgnn.data.datasets.archives import members
from keras_bandgnn.data.datasets.parts import ATOMIC_NUMBERS, pick_targets
from keras_bandgnn.data.datasets.qm9 import molecules, with_atomisation
from keras_bandgnn.data.datasets.tables import read_matrix, read_table
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import gather_rows, pointers
from keras_bandgnn.data.reading import read_bytes, read_text, reading, refuse_file
from keras_bandgnn.progress import progress_bar

_PUBLISHED = 133_885
_LIST_HEAD = 9
# The second line of an xyz file is "gdb <number>", followed by these.
_PROPERTIES = (
    *("A", "B", "C", "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve"),
    *("u0", "u298", "h298", "g298", "cv"),
)


def read_xyz(
    files: Mapping[str, Path],
    *,
    progress: bool,
    target: str | Sequence[str] | None = "u0_atom",
    edges: str = "full",
    keep_uncharacterized: bool = False,
) -> FlatGraphs:
    """Read `dsgdb9nsd.xyz.tar.bz2` without unpacking it to disk.

    Args:
        files: `{"tar": path}`; `uncharacterized.txt` is in the same folder.
        progress: Whether to show a progress bar.
        target: A name, names, or None for all; see `qm9.UNITS`.
        edges: `"full"`, all pairs of atoms; the files have no bonds.
        keep_uncharacterized: Whether to keep the molecules listed in
            `uncharacterized.txt`, whose geometry failed a consistency check.

    Returns:
        Node features `atomic_number` int32 [N], `position` float32 [N, 3] in Angstrom
        and `charge` float32 [N] (Mulliken); label [n] or [n, T].
    """
    if edges != "full":
        raise ValueError(
            "Expected edges='full': xyz files have no bonds. Received: "
            f"edges={edges!r}. Use the SDF form (gdb9.sdf) for bonds."
        )
    counts, properties, atoms = [], [], []
    with progress_bar("Reading QM9", _PUBLISHED, progress) as advance:
        for name, text in _xyz_files(files["tar"]):
            count, values, lines = _xyz(f"{name} of {files['tar']}", text)
            counts.append(count)
            properties.append(values)
            atoms.append(lines)
            advance(1)
    what = str(files["tar"])
    if not counts:
        refuse_file(what, "to hold files that end in .xyz", "none")
    # 2.1*^-6 is Mathematica's notation of 2.1e-6.
    body = b"".join(atoms).replace(b"*^", b"e")
    symbols, numbers = _columns(body, what)
    table = read_matrix(b"".join(properties).replace(b"*^", b"e"), what, "\t")
    _check_sizes(what, counts, table, symbols)
    order = np.argsort(table[:, 0], kind="stable")
    num_nodes, ids = np.array(counts), table[:, 0].astype(np.int64)
    rows = gather_rows(pointers(num_nodes), order)
    node = {
        "atomic_number": symbols[rows],
        "position": numbers[rows, :3],
        "charge": numbers[rows, 3],
    }
    none = np.zeros(0, np.int64)
    bonds = {"num_edges": np.zeros(len(order), np.int64)}
    bonds |= {k: none for k in ("senders", "receivers", "edge_type")}
    totals = dict(zip(_PROPERTIES, table[order, 1:].T, strict=True))
    graphs = _labelled(num_nodes[order], bonds, edges, node, totals, ids[order], target)
    return _characterised(graphs, ids[order], files["tar"], keep_uncharacterized)


def _check_sizes(
    what: str, counts: list[int], table: np.ndarray, symbols: np.ndarray
) -> None:
    """Refuse tables that do not have the rows of xyz files of these counts."""
    shape = (len(counts), 1 + len(_PROPERTIES))
    if table.shape != shape or len(symbols) != sum(counts):
        received = f"{len(table)} of {table.shape[1]}, and {len(symbols)} atoms"
        expected = f"to have {shape[0]} lines of {shape[1]} properties"
        refuse_file(what, f"{expected}, and {sum(counts)} atoms", received)
    if not np.isfinite(table).all() or (table[:, 0] % 1).any():
        refuse_file(what, "to have a number for each property", "a gap or a fraction")


def _xyz_files(path: Path) -> Iterator[tuple[str, bytes]]:
    with reading(path, what="to be a complete archive"):
        for name, content in members(path):
            if name.suffix == ".xyz":
                yield str(name), content.read()


def _xyz(name: str, text: bytes) -> tuple[int, bytes, bytes]:
    lines = text.splitlines(keepends=True)
    try:
        count = int(lines[0])
        tag, _, values = lines[1].partition(b" ")
    except (IndexError, ValueError) as error:
        raise ValueError(
            f"Expected {name} to be an xyz file of QM9. Received: {error}."
        ) from error
    if tag != b"gdb" or count < 1 or len(lines) < count + 2:
        raise ValueError(
            f"Expected {name} to have a line 'gdb <number> ...' and {count} atoms. "
            f"Received: {lines[1][:40]!r} and {len(lines) - 2} further lines."
        )
    return count, values.rstrip() + b"\n", b"".join(lines[2 : count + 2])


def _columns(body: bytes, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Parse atomic numbers [N], and x, y, z, charge [N, 4]."""
    import pyarrow as pa
    import pyarrow.csv as csv

    names = ["symbol", "x", "y", "z", "charge"]
    types = {name: pa.float64() for name in names[1:]} | {"symbol": pa.string()}
    try:
        table = csv.read_csv(
            io.BytesIO(body),
            read_options=csv.ReadOptions(column_names=names),
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types=types),
        )
        if any(table[name].null_count for name in names):
            raise ValueError("an atom without a symbol or a number")
        symbols = table["symbol"].combine_chunks().dictionary_encode()
        numbers = [ATOMIC_NUMBERS[s] for s in symbols.dictionary.to_pylist()]
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"Expected lines 'symbol x y z charge' in {what}. Received: {error}."
        ) from error
    atoms = np.array(numbers, np.int32)[symbols.indices.to_numpy()]
    return atoms, np.stack([table[name].to_numpy() for name in names[1:]], axis=1)


def read_sdf(
    files: Mapping[str, Path],
    *,
    progress: bool,
    target: str | Sequence[str] | None = "u0_atom",
    edges: str = "bonds",
    keep_uncharacterized: bool = False,
) -> FlatGraphs:
    """Read DeepChem's `gdb9.sdf` (V2000 blocks) and `gdb9.sdf.csv`.

    Args:
        files: `{"sdf": path, "csv": path}`; `uncharacterized.txt` is in the same
            folder.
        progress: Whether to show a progress bar.
        target: A name, names, or None for all; see `qm9.UNITS`.
        edges: As in `qm9.read_bond_graphs`.
        keep_uncharacterized: As in `read_xyz`.

    Returns:
        Node features `atomic_number` int32 [N] and `position` float32 [N, 3] in
        Angstrom; label [n] or [n, T].
    """
    counts, atoms, bonds, titles = [], [], [], []
    with progress_bar("Reading QM9", _PUBLISHED, progress) as advance:
        for block in read_bytes(files["sdf"]).split(b"$$$$"):
            lines = block.lstrip(b"\r\n").splitlines()
            if not lines:
                continue
            n, m = _sdf_counts(files["sdf"], len(titles), lines)
            titles.append(lines[0].strip().decode("latin-1"))
            counts.append((n, m))
            atoms += lines[4 : 4 + n]
            bonds += lines[4 + n : 4 + n + m]
            advance(1)
    totals = _sdf_totals(files, titles)
    num_nodes, num_bonds = np.array(counts).T
    node = {
        "atomic_number": _symbols(_field(atoms, 31, 34)),
        "position": np.stack(
            [_field(atoms, i, i + 10).astype(np.float64) for i in (0, 10, 20)], axis=1
        ),
    }
    ends = [_field(bonds, i, i + 3).astype(np.int64) for i in (0, 3, 6)]
    edge = {
        "num_edges": num_bonds,
        "senders": ends[0] - 1,
        "receivers": ends[1] - 1,
        "edge_type": ends[2],
    }
    ids = np.array([int(t.rpartition("_")[2]) for t in titles], np.int64)
    graphs = _labelled(num_nodes, edge, edges, node, totals, ids, target)
    return _characterised(graphs, ids, files["sdf"], keep_uncharacterized)


def _sdf_totals(files: Mapping[str, Path], titles: list[str]) -> dict[str, np.ndarray]:
    """Return the properties of the molecules with these titles, by name, [n] each."""
    table = read_table(files["csv"])
    lacking = {"mol_id", *_PROPERTIES} - set(table.column_names)
    if lacking:
        received = f"none of {', '.join(sorted(lacking))}"
        refuse_file(files["csv"], "to have a column for each property", received)
    if not titles or table["mol_id"].to_pylist() != titles:
        raise ValueError(
            f"Expected {files['csv']} to list the molecules of {files['sdf'].name} in "
            f"their order. Received: {table.num_rows} rows for {len(titles)} blocks, "
            "or other names. Download both files again."
        )
    totals = {name: table[name].to_numpy() for name in _PROPERTIES}
    for name, values in totals.items():
        if values.dtype.kind not in "if" or not np.isfinite(values).all():
            refuse_file(
                files["csv"], f"to have numbers in the column {name!r}", "others"
            )
    return totals


def _sdf_counts(path: Path, index: int, lines: list[bytes]) -> tuple[int, int]:
    try:
        if not lines[3].rstrip().endswith(b"V2000"):
            raise ValueError(f"no V2000 in its fourth line {lines[3]!r}")
        n, m = int(lines[3][:3]), int(lines[3][3:6])
        if n < 1 or m < 0 or len(lines) < 4 + n + m:
            raise ValueError(f"{len(lines)} lines for {n} atoms and {m} bonds")
    except (IndexError, ValueError) as error:
        raise ValueError(
            f"Expected block {index} of {path} to be a V2000 mol block. "
            f"Received: {error or 'too few lines'}. Download the file again."
        ) from error
    return n, m


def _field(lines: list[bytes], start: int, stop: int) -> np.ndarray:
    """Return the characters [start, stop) of each line as an array of byte strings."""
    if not lines:
        return np.zeros(0, f"S{stop - start}")
    whole = np.array([line[:stop] for line in lines], f"S{stop}")
    letters = whole.view("S1").reshape(len(lines), -1)[:, start:stop]
    return np.ascontiguousarray(letters).view(f"S{stop - start}")[:, 0]


def _symbols(names: np.ndarray) -> np.ndarray:
    kinds, which = np.unique(np.char.strip(names), return_inverse=True)
    try:
        numbers = [ATOMIC_NUMBERS[kind.decode("latin-1")] for kind in kinds]
    except KeyError as error:
        raise ValueError(
            f"Expected symbols of elements. Received: {error}. Download the file again."
        ) from error
    return np.array(numbers, np.int32)[which]


def _labelled(
    num_nodes: np.ndarray,
    bonds: Mapping[str, np.ndarray],
    edges: str,
    node: Mapping[str, np.ndarray],
    totals: Mapping[str, np.ndarray],
    ids: np.ndarray,
    target: str | Sequence[str] | None,
) -> FlatGraphs:
    table = with_atomisation(totals, node["atomic_number"], pointers(num_nodes))
    label = pick_targets(table, target)
    return molecules(num_nodes, bonds, edges, node, label, ids)


def _characterised(
    graphs: FlatGraphs, ids: np.ndarray, beside: Path, keep_uncharacterized: bool
) -> FlatGraphs:
    """Remove the molecules of `uncharacterized.txt`."""
    if keep_uncharacterized:
        return graphs
    path = beside.with_name("uncharacterized.txt")
    if not path.exists():
        raise FileNotFoundError(
            f"Expected {path}, the list of molecules whose geometry is in doubt. "
            "Received: no such file. Get it from "
            "https://ndownloader.figshare.com/files/3195404, or pass "
            "keep_uncharacterized=True to keep them all."
        )
    lines = read_text(path).splitlines()[_LIST_HEAD:-1]
    words = [line.split()[0] for line in lines if line.split()]
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(
            f"Expected {path} to be the published list: {_LIST_HEAD} lines of text, a "
            f"line per molecule that begins with its number, and a last line. "
            f"Received: {words[:3]}. Download the file again."
        )
    listed = [int(word) for word in words]
    return graphs.take(np.flatnonzero(~np.isin(ids, listed)))
