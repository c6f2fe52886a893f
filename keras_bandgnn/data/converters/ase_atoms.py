"""Atoms from and to ASE."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bandgnn.checks import having, instance
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

_EXTRA = "keras-bandgnn[chem]"
# Our names of what ASE's calculators find; `ForceRegressor` reads "force".
_RESULTS = {"energy": "energy", "force": "forces"}


def from_ase(
    atoms: Any, cutoff: float | Mapping | None = None, label: str | None = None
) -> Graph:
    """Makes a graph of `ase.Atoms`.

    Features:
        `node["atomic_number"]`: int32 [N].
        `node["position"]`: float32 [N, 3], Angstrom.
        `context["cell"]`: float32 [3, 3], Angstrom, one vector per row; 0 without.
        `context["pbc"]`: int32 [3], 1 along periodic directions.
        `context["energy"]`, `node["force"]`: float32 scalar (eV) and [N, 3] (eV per
            Angstrom), if a calculator has them ready; nothing is computed.
        `edge["shift"]`: int32 [E, 3], with a cutoff. An edge leads from the neighbour
            to the atom that it is near to, from
            `position[sender] + shift @ cell` to `position[receiver]`.

    What JSON can hold of `atoms.info` goes to `info`.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        atoms: The structure.
        cutoff: Distance in Angstrom up to which atoms and their periodic images are
            neighbours, or a dictionary of distances by pairs of elements as in
            `ase.neighborlist`. Without, there are no edges.
        label: What becomes the label instead: `"energy"`, `"force"` (a label of the
            nodes) or a key of `atoms.info`.

    Raises:
        ValueError: If the cutoff is not positive or the label is not there.
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
        known = {**atoms.info, **results}
        if label not in known:
            raise ValueError(
                "Expected `label` to be a result of the calculator or a key of "
                f"atoms.info, one of {sorted(known)}. Received: label={label!r}."
            )
        fields["label"] = known[label]
        fields["label_level"] = "node" if label == "force" else "graph"
        results.pop(label, None)
    node |= {k: v for k, v in results.items() if k == "force"}
    context |= {k: v for k, v in results.items() if k == "energy"}
    receivers = senders = np.zeros(0, np.int32)
    edge = {}
    if cutoff is not None:
        if not isinstance(cutoff, Mapping) and not cutoff > 0:
            raise ValueError(
                f"Expected `cutoff` to be positive. Received: cutoff={cutoff!r}."
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
    """Makes `ase.Atoms` of a graph with the features that `from_ase` makes.

    Energy and forces come as a `SinglePointCalculator`; `info` as `atoms.info`. Edges
    are left out: ASE finds neighbours itself.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        graph: Has `node["atomic_number"]` and `node["position"]`, and may have
            `context["cell"]`, `context["pbc"]`, `context["energy"]` and
            `node["force"]`.

    Raises:
        ValueError: If the numbers or positions of the atoms are missing.
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
