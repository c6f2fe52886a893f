"""Conversion from and to ASE."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bandgnn.checks import having, instance
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

_EXTRA = "keras-bandgnn[chem]"
# Feature names of the calculators' results; `ForceRegressor` reads "force".
_RESULTS = {"energy": "energy", "force": "forces"}


def from_ase(
    atoms: Any, cutoff: float | Mapping | None = None, label: str | None = None
) -> Graph:
    """Convert `ase.Atoms` to a graph.

    Features:
        `node["atomic_number"]`: int32 [N].
        `node["position"]`: float32 [N, 3], Angstrom.
        `context["cell"]`: float32 [3, 3], Angstrom, one vector per row; 0 without.
        `context["pbc"]`: int32 [3], 1 along periodic directions.
        `context["energy"]`, `node["force"]`: float32 scalar (eV) and [N, 3] (eV per
            Angstrom), if a calculator has stored them; nothing is computed.
        `edge["shift"]`: int32 [E, 3], with a cutoff. An edge points from the neighbour
            to the atom, from `position[sender] + shift @ cell` to
            `position[receiver]`.

    Entries of `atoms.info` that JSON can represent are stored in `info`.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        atoms: The structure.
        cutoff: Distance in Angstrom up to which atoms and their periodic images are
            neighbours, or a dictionary of distances by pairs of elements as in
            `ase.neighborlist`. Without a cutoff, the graph has no edges.
        label: The value to use as label: `"energy"`, `"force"` (a node-level label) or
            a key of `atoms.info`.

    Raises:
        ValueError: If the cutoff is not positive or the label is missing.
        ImportError: If ASE is not installed.

    Example:
    >>> import ase.build  # doctest: +SKIP
    >>> from_ase(ase.build.bulk("Cu"), cutoff=3.0).num_edges  # doctest: +SKIP
    12
    """
    having("atoms", atoms, "get_atomic_numbers", "an Atoms of ASE")
    node = {
        "atomic_number": atoms.get_atomic_numbers(),
        "position": atoms.get_positions(),
    }
    context = {
        "cell": np.asarray(atoms.get_cell()),
        "pbc": np.asarray(atoms.get_pbc()),
    }
    results = _results(atoms)
    fields = {}
    if label is not None:
        values = {**atoms.info, **results}
        if label not in values:
            raise ValueError(
                "Expected `label` to be a result of the calculator or a key of "
                f"atoms.info, one of {sorted(values)}. Received: label={label!r}. "
                "Choose one of these."
            )
        fields["label"] = values[label]
        fields["label_level"] = "node" if label == "force" else "graph"
        results.pop(label, None)
    node |= {k: v for k, v in results.items() if k == "force"}
    context |= {k: v for k, v in results.items() if k == "energy"}
    receivers = senders = np.zeros(0, np.int32)
    edge = {}
    if cutoff is not None:
        if not isinstance(cutoff, Mapping) and not cutoff > 0:
            raise ValueError(
                f"Expected `cutoff` to be positive. Received: cutoff={cutoff!r}. Pass "
                "a distance in Angstrom."
            )
        neighbours = optional_import("ase.neighborlist", _EXTRA).neighbor_list
        receivers, senders, edge["shift"] = neighbours("ijS", atoms, cutoff)
    return Graph(
        len(atoms),
        senders,
        receivers,
        node=node,
        edge=edge,
        context=context,
        info={k: v for k, v in atoms.info.items() if k != label and _is_json(k, v)},
        **fields,
    )


def _results(atoms: Any) -> dict[str, Any]:
    if atoms.calc is None:
        return {}
    ready = {
        name: atoms.calc.get_property(property, atoms, allow_calculation=False)
        for name, property in _RESULTS.items()
    }
    return {name: value for name, value in ready.items() if value is not None}


def _is_json(name: str, value: Any) -> bool:
    try:
        return bool(json_text(name, value))
    except ValueError:
        return False


def to_ase(graph: Graph) -> Any:
    """Convert a graph with the features of `from_ase` to `ase.Atoms`.

    Energy and forces are stored in a `SinglePointCalculator`, `info` in `atoms.info`.
    Edges are dropped: ASE computes neighbours itself.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        graph: A graph with `node["atomic_number"]` and `node["position"]`, and
            optionally `context["cell"]`, `context["pbc"]`, `context["energy"]` and
            `node["force"]`.

    Raises:
        ValueError: If atomic numbers or positions are missing.
        ImportError: If ASE is not installed.

    Example:
    >>> pair = {"atomic_number": [8, 1], "position": [[0, 0, 0], [0, 0, 0.97]]}
    >>> to_ase(Graph(2, [], [], node=pair)).get_chemical_formula()  # doctest: +SKIP
    'HO'
    """
    instance("graph", graph, Graph, "a Graph")
    missing = {"atomic_number", "position"} - graph.node.keys()
    if missing:
        raise ValueError(
            "Expected node features 'atomic_number' and 'position'. Received: "
            f"{sorted(graph.node)}. Rename the features with graph.replace(node=...)."
        )
    package = optional_import("ase", _EXTRA)
    calculators = optional_import("ase.calculators.singlepoint", _EXTRA)
    atoms = package.Atoms(
        numbers=graph.node["atomic_number"],
        positions=graph.node["position"],
        cell=graph.context.get("cell"),
        pbc=graph.context.get("pbc"),
        info=dict(graph.info),
    )
    results = {}
    if "energy" in graph.context:
        results["energy"] = float(graph.context["energy"])
    if "force" in graph.node:
        results["forces"] = np.array(graph.node["force"], float)
    if results:
        atoms.calc = calculators.SinglePointCalculator(atoms, **results)
    return atoms
