"""Molecules of MoleculeNet and ZINC, as tables of SMILES."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.arrays import narrowed
from keras_bandgnn.checks import one_of
from keras_bandgnn.data.datasets.parts import SPLITS, pick_targets
from keras_bandgnn.data.datasets.tables import read_table
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import refuse_file
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


def read_csv(
    files: Mapping[str, Path],
    *,
    progress: bool,
    target: str | Sequence[str] | None = None,
    on_error: str = "skip",
    split_by: str | None = None,
) -> FlatGraphs:
    """Read SMILES and targets from a table, with RDKit.

    Args:
        files: `{"csv": path}`; compressed (`.gz`) or not. SMILES are in the column
            `smiles` or `mol`; a column `split` with train, valid or val, test is read.
        progress: Whether to show a progress bar.
        target: A column, several, or None for the official targets; if the table has
            none of these, all numeric columns.
        on_error: `"skip"` skips molecules that RDKit cannot read, with one warning that
            counts them; `"raise"` raises an error.
        split_by: `"scaffold"` splits the molecules by `scaffold_split`, 80, 10 and
            10 %, instead of by a column of the table.

    Returns:
        Node feature `atom` int32 [N, 8], edge feature `bond` int32 [E, 3] (see
        `keras_bandgnn.data.converters.smiles`), `edge_type` the type of the bond,
        each bond both ways; label float32 [n] or [n, T], NaN where unknown;
        `info["smiles"]`, and context `split` where there is one.

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
    smiles = _smiles(path, table, column)
    graphs, rows = _graphs(path, smiles, on_error, progress)
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


def _smiles(path: Path, table: Any, column: str) -> list[str]:
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
    return smiles


def _graphs(
    path: Path, smiles: list[str], on_error: str, progress: bool
) -> tuple[list[Graph], list[int]]:
    """Return the molecules that RDKit reads, and the row of each."""
    from keras_bandgnn.data.converters.smiles import from_smiles

    graphs, rows, problems = [], [], []
    with progress_bar(f"Reading {path.name}", len(smiles), progress) as advance:
        for row, text in enumerate(smiles):
            try:
                graphs.append(from_smiles(text))
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
            stacklevel=3,
        )
    if not graphs:
        refuse_file(
            path, "to have SMILES that RDKit reads", f"none in {len(smiles)} rows"
        )
    return graphs, rows


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
