"""Molecules: MoleculeNet and ZINC, as arrays (npz) or as SMILES (csv)."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import one_of
from keras_bandgnn.data.datasets.parts import SPLITS, both_ways, pick_targets
from keras_bandgnn.data.datasets.progress import progress_bar
from keras_bandgnn.data.datasets.tables import read_table
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph

_SMILES_COLUMNS = ("smiles", "mol")
# What is predicted, as the official tables call it; other tables have nothing but
# SMILES and targets, and perhaps a split.
_OFFICIAL_TARGETS = (
    "measured log solubility in mols per litre",
    "expt",
    "exp",
    "p_np",
    "Class",
    "HIV_active",
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD"),
    *("NR-PPAR-gamma", "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)


def read_npz(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = None,
    split_by: str = "scaffold",
) -> FlatGraphs:
    """Reads ready graphs: atoms, bonds, targets and splits as arrays.

    Args:
        files: `{"npz": path}`.
        split: Not used; the splits are in the file.
        progress: Not used.
        target: A task by name, several, or None for all.
        split_by: `"scaffold"` or `"random"`, where the file has both.

    Returns:
        Node feature `atom` int32 [N, 8], edge feature `bond` int32 [E, 3] (see
        `keras_bandgnn.data.converters.smiles`), `edge_type` the type of the bond,
        each bond both ways; label float32 [n] or [n, T], NaN where unknown; context
        `split`.
    """
    one_of("split_by", split_by, ("scaffold", "random"))
    with np.load(files["npz"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    table = _npz_targets(arrays)
    senders, receivers, bond = both_ways(
        *arrays["edge_index"].astype(np.int64), arrays["bond"]
    )
    return FlatGraphs(
        num_nodes=np.diff(arrays["node_ptr"]),
        num_edges=2 * np.diff(arrays["edge_ptr"]),
        senders=senders,
        receivers=receivers,
        edge_type=bond[:, 0],
        node={"atom": arrays["atom"]},
        edge={"bond": bond},
        context={"split": arrays.get("split", arrays.get(f"split_{split_by}"))},
        label=pick_targets(table, target or _default(table)),
    )


def _npz_targets(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if "task" in arrays:
        tasks = [str(name) for name in arrays["task"]]
        return dict(zip(tasks, arrays["y"].T, strict=True))
    return {"y": arrays["y"], "penalized_logp": arrays["penalized_logp"]}


def read_zinc_npz(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = "y",
) -> FlatGraphs:
    """Reads ZINC as `read_npz` does.

    Args:
        files: `{"npz": path}`.
        split: Not used; the split is in the file.
        progress: Not used.
        target: `"y"`, the sum of three normalised terms that benchmarks use, or
            `"penalized_logp"`, or both.
    """
    return read_npz(files, split=split, progress=progress, target=target)


def read_csv(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = None,
    on_error: str = "skip",
) -> FlatGraphs:
    """Reads SMILES and targets from a table, with RDKit.

    Args:
        files: `{"csv": path}`; compressed (`.gz`) or not. SMILES are in the column
            `smiles` or `mol`.
        split: Not used; a column `split` with train, valid or val, test is kept.
        progress: Whether to draw a bar.
        target: A column, several, or None for those that are the official targets;
            where the table has none of these, all columns of numbers.
        on_error: `"skip"` leaves out what RDKit cannot read, with one warning that
            counts them; `"raise"`.

    Returns:
        As `read_npz`, with `info["smiles"]`.

    Raises:
        ValueError: If there is no column of SMILES, or RDKit cannot read one.
        ImportError: If RDKit is not installed.
    """
    one_of("on_error", on_error, ("skip", "raise"))
    path = files["csv"]
    table = read_table(path)
    column = next((c for c in _SMILES_COLUMNS if c in table.column_names), None)
    if column is None:
        raise ValueError(
            f"Expected {path} to have a column of SMILES, {_SMILES_COLUMNS}. "
            f"Received: columns {table.column_names}. Rename the column."
        )
    numbers = _numbers(table)
    official = {k: v for k, v in numbers.items() if k in _OFFICIAL_TARGETS}
    label = pick_targets(numbers, target or _default(official or numbers))
    graphs, rows, problems = [], [], []
    smiles = table[column].to_pylist()
    with progress_bar(f"Reading {path.name}", len(smiles), progress) as advance:
        for row, text in enumerate(smiles):
            try:
                graphs.append(_graph(text))
                rows.append(row)
            except ValueError as error:
                if on_error == "raise":
                    raise ValueError(f"{path}, row {row + 1}: {error}") from error
                problems.append(f"row {row + 1} ({text})")
            advance(1)
    if problems:
        warnings.warn(
            f"Left out {len(problems)} of {len(smiles)} molecules of {path.name} that "
            f"RDKit cannot read: {', '.join(problems[:5])}"
            f"{', ...' if len(problems) > 5 else ''}.",
            stacklevel=2,
        )
    flat = FlatGraphs.from_graphs(graphs)
    extra = {"label/graph": label[rows].astype(np.float32)}
    if "split" in table.column_names:
        extra["context/split"] = _csv_split(path, table)[rows]
    return FlatGraphs.from_columns({**flat.columns(), **extra}, flat.info)


def _graph(text: str) -> Graph:
    from keras_bandgnn.data.converters.smiles import from_smiles

    return from_smiles(text)


def _default(names: Mapping[str, Any]) -> str | list[str]:
    """All targets; a single one by its name, so that labels are [n]."""
    return next(iter(names)) if len(names) == 1 else list(names)


def _numbers(table: Any) -> dict[str, np.ndarray]:
    import pyarrow as pa

    def is_number(name: str) -> bool:
        kind = table[name].type
        # A column without any value has the type null.
        return any(
            check(kind)
            for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
        )

    return {
        name: table[name].cast(pa.float64()).to_numpy()
        for name in table.column_names
        if is_number(name)
    }


def _csv_split(path: Path, table: Any) -> np.ndarray:
    codes = {name: code for code, name in enumerate(SPLITS)} | {"val": 1}
    names = table["split"].to_pylist()
    unknown = {name for name in names if name not in codes}
    if unknown:
        raise ValueError(
            f"Expected the column 'split' of {path} to hold train, valid (or val), "
            f"test. Received: {sorted(map(str, unknown))[:5]}. Rename them."
        )
    return np.array([codes[name] for name in names], np.int32)
