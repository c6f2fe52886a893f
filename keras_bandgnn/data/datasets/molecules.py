"""Molecules: MoleculeNet and ZINC, as arrays (npz) or as SMILES (csv)."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.arrays import narrowed
from keras_bandgnn.checks import one_of
from keras_bandgnn.data.datasets.parts import (
    SPLITS,
    both_ways,
    pick_targets,
    read_split,
)
from keras_bandgnn.data.datasets.tables import read_table
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import Arrays, open_npz, refuse_file
from keras_bandgnn.data.scaffolds import scaffold_split
from keras_bandgnn.graph import Graph
from keras_bandgnn.progress import progress_bar

_SMILES_COLUMNS = ("smiles", "mol")
# Target columns of the official tables, 0 or 1.
_BINARY_TARGETS = (
    "p_np",
    "Class",
    "HIV_active",
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD"),
    *("NR-PPAR-gamma", "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
# All of them. All columns of other tables except SMILES and split are targets.
_OFFICIAL_TARGETS = (
    "measured log solubility in mols per litre",
    "expt",
    "exp",
    *_BINARY_TARGETS,
)


def read_npz(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = None,
    split_by: str = "scaffold",
) -> FlatGraphs:
    """Read preprocessed graphs: atoms, bonds, targets and splits as arrays.

    Args:
        files: `{"npz": path}`.
        split: Not used; the splits are in the file.
        progress: Not used.
        target: A task by name, several, or None for all.
        split_by: `"scaffold"` or `"random"`, if the file has both.

    Returns:
        Node feature `atom` int32 [N, 8], edge feature `bond` int32 [E, 3] (see
        `keras_bandgnn.data.converters.smiles`), `edge_type` the type of the bond,
        each bond both ways; label float32 [n] or [n, T], NaN where unknown; context
        `split`.
    """
    one_of("split_by", split_by, ("scaffold", "random"))
    with open_npz(files["npz"]) as arrays:
        atom = arrays.take("atom", "integers", (None, None))
        num_nodes = arrays.counts("node_ptr", len(atom), "atom")
        ends = arrays.take("edge_index", "integers", (2, None))
        num_edges = arrays.counts("edge_ptr", ends.shape[1], "edge_index")
        bond = arrays.take("bond", "integers", (ends.shape[1], None))
        if not bond.shape[1]:
            arrays.refuse("bond", "with the type of a bond in column 0", "no columns")
        table = _npz_targets(arrays, len(num_nodes))
        context = {}
        for name in (f"split_{split_by}", "split"):
            if name in arrays:
                context["split"] = read_split(arrays, name, len(num_nodes))
    senders, receivers, bond = both_ways(*ends.astype(np.int64), bond)
    return FlatGraphs(
        num_nodes=num_nodes,
        num_edges=2 * num_edges,
        senders=senders,
        receivers=receivers,
        edge_type=bond[:, 0],
        node={"atom": atom},
        edge={"bond": bond},
        context=context,
        label=pick_targets(table, target or _default(table)),
    )


def _npz_targets(arrays: Arrays, count: int) -> dict[str, np.ndarray]:
    if "task" in arrays:
        tasks = [str(name) for name in arrays.take("task", "text", (None,))]
        shape = (count, len(tasks))
        values = arrays.take("y", "numbers", shape, missing=True)
        return dict(zip(tasks, values.T, strict=True))
    names = ("y", "penalized_logp")
    return {k: arrays.take(k, "numbers", (count,), missing=True) for k in names}


def read_zinc_npz(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = "y",
) -> FlatGraphs:
    """Read ZINC as `read_npz` does.

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
    split_by: str | None = None,
) -> FlatGraphs:
    """Read SMILES and targets from a table, with RDKit.

    Args:
        files: `{"csv": path}`; compressed (`.gz`) or not. SMILES are in the column
            `smiles` or `mol`.
        split: Not used; a column `split` with train, valid or val, test is kept.
        progress: Whether to show a progress bar.
        target: A column, several, or None for the official targets; if the table has
            none of these, all numeric columns.
        on_error: `"skip"` skips molecules that RDKit cannot read, with one warning that
            counts them; `"raise"` raises an error.
        split_by: `"scaffold"` splits the molecules by `scaffold_split`, 80, 10 and
            10 %, instead of by a column of the table.

    Returns:
        As `read_npz`, with `info["smiles"]`.

    Raises:
        ValueError: If there is no column of SMILES, or RDKit cannot read one.
        ImportError: If RDKit is not installed.
    """
    one_of("on_error", on_error, ("skip", "raise"))
    one_of("split_by", split_by, (None, "scaffold"))
    path = files["csv"]
    table = read_table(path)
    column = next((c for c in _SMILES_COLUMNS if c in table.column_names), None)
    if column is None:
        raise ValueError(
            f"Expected {path} to have a column of SMILES, {_SMILES_COLUMNS}. "
            f"Received: columns {table.column_names}. Rename the column."
        )
    numbers = _numbers(path, table, column)
    official = {k: v for k, v in numbers.items() if k in _OFFICIAL_TARGETS}
    if not numbers:
        refuse_file(path, "to have a column of targets, of numbers", table.column_names)
    label = pick_targets(numbers, target or _default(official or numbers))
    graphs, rows, problems = [], [], []
    smiles = [text or "" for text in table[column].to_pylist()]
    if not all(isinstance(text, str) for text in smiles):
        refuse_file(path, f"to have SMILES in the column {column!r}", smiles[:3])
    for row, text in enumerate(smiles):
        lines = len(text.splitlines())
        if lines > 1:
            # A quote without an end takes the rows up to the next quote.
            received = f"{lines} lines in row {row + 1}: {text[:40]!r}"
            refuse_file(
                path, "to have SMILES of one line", received, "Close the quote there."
            )
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
            f"Skipped {len(problems)} of {len(smiles)} molecules of {path.name} that "
            f"RDKit cannot read: {', '.join(problems[:5])}"
            f"{', ...' if len(problems) > 5 else ''}.",
            stacklevel=2,
        )
    if not graphs:
        refuse_file(
            path, "to have SMILES that RDKit reads", f"none in {len(smiles)} rows"
        )
    flat = FlatGraphs.from_graphs(graphs)
    label = label[rows].astype(np.float64)
    extra = {"label/graph": narrowed("label", label, missing=True)}
    if split_by is not None:
        codes = np.empty(len(rows), np.int32)
        for code, part in enumerate(scaffold_split([smiles[row] for row in rows])):
            codes[part] = code
        extra["context/split"] = codes
    elif "split" in table.column_names:
        extra["context/split"] = _csv_split(path, table)[rows]
    # Graphs and label have been checked.
    return FlatGraphs.from_columns({**flat.columns(), **extra}, flat.info)


def _graph(text: str) -> Graph:
    from keras_bandgnn.data.converters.smiles import from_smiles

    return from_smiles(text)


def _default(names: Mapping[str, Any]) -> str | list[str]:
    """Return all targets; a single one as a name, so that labels are [n]."""
    return next(iter(names)) if len(names) == 1 else list(names)


def _numbers(path: Path, table: Any, smiles: str) -> dict[str, np.ndarray]:
    """Return the numeric columns; raise a ValueError for an invalid one."""
    import pyarrow as pa

    def is_number(name: str) -> bool:
        kind = table[name].type
        # A column without any value has the type null.
        return any(
            check(kind)
            for check in (
                pa.types.is_integer,
                pa.types.is_floating,
                pa.types.is_null,
                pa.types.is_boolean,
            )
        )

    numbers = {}
    for name in table.column_names:
        if is_number(name):
            column = table[name]
            if pa.types.is_boolean(column.type):
                column = column.cast(pa.int8())
            values = column.cast(pa.float64()).to_numpy()
            other = ~(np.isin(values, (0, 1)) | np.isnan(values))
            if name in _BINARY_TARGETS and other.any():
                row = int(other.argmax())
                expected = f"to have 0, 1 or nothing in the column {name!r}"
                refuse_file(path, expected, f"{values[row]:g} in row {row + 1}")
            numbers[name] = values
        elif name not in (smiles, "split"):
            texts = table[name].to_pylist()
            bad = [row for row, text in enumerate(texts) if not _is_number(text)]
            if bad and (name in _OFFICIAL_TARGETS or 2 * len(bad) < len(texts)):
                expected = f"to have numbers in the column {name!r}"
                refuse_file(path, expected, f"{texts[bad[0]]!r} in row {bad[0] + 1}")
    return numbers


def _is_number(text: Any) -> bool:
    try:
        # Python's numbers may have underscores, those of files have not.
        return "_" not in str(text) and bool(np.isfinite(float(text or 0)))
    except (TypeError, ValueError):
        return False


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
