"""Writes painn_reference.json: what SchNetPack's PaiNN gives for a small molecule.

Run it where torch is installed, after `pip install --no-deps schnetpack==2.1.1`:

    python tests/models/painn_reference.py > tests/models/painn_reference.json

Only PaiNN and what it uses are imported: the rest of SchNetPack needs packages for
training. Weights are sines of their position, so that the file holds none.
"""

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np

WIDTH, STEPS, FUNCTIONS, CUTOFF = 6, 2, 5, 3.0
NUMBERS = [6, 1, 1, 8, 1]
POSITIONS = np.array(
    [[0, 0, 0], [1.1, 0, 0.1], [-0.4, 1.0, 0], [-0.6, -0.7, 1.1], [2.4, 0.9, -0.3]]
)


def weight(index: int, shape) -> np.ndarray:
    """The values of the weight with this index."""
    return 0.5 * np.sin(index + 1.7 * np.arange(np.prod(shape))).reshape(shape)


def edges():
    """Senders, receivers and displacements of all pairs, sorted by receiver."""
    receivers, senders = np.nonzero(~np.eye(len(NUMBERS), dtype=bool))
    return senders, receivers, POSITIONS[senders] - POSITIONS[receivers]


def _load():
    spec = importlib.util.find_spec("schnetpack")
    (root,) = map(Path, spec.submodule_search_locations)
    for name in ("", ".nn", ".representation"):
        module = types.ModuleType("schnetpack" + name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules["schnetpack" + name] = module
    package, nn = sys.modules["schnetpack"], sys.modules["schnetpack.nn"]
    package.properties = importlib.import_module("schnetpack.properties")
    package.nn = nn
    for name in ("base", "cutoff", "scatter", "radial", "utils"):
        part = importlib.import_module(f"schnetpack.nn.{name}")
        for public in part.__all__:
            setattr(nn, public, getattr(part, public))
    return nn, importlib.import_module("schnetpack.representation.painn")


def main() -> None:
    """Prints the reference."""
    import torch

    nn, painn = _load()
    torch.set_default_dtype(torch.float64)
    net = painn.PaiNN(
        WIDTH, STEPS, nn.BesselRBF(FUNCTIONS, CUTOFF), nn.CosineCutoff(CUTOFF)
    ).double()
    order = [net.embedding.weight, net.filter_net.weight, net.filter_net.bias]
    for message, mixing in zip(net.interactions, net.mixing, strict=True):
        for layer in (
            *message.interatomic_context_net,
            mixing.mu_channel_mix,
            *mixing.intraatomic_context_net,
        ):
            order += [p for p in (layer.weight, layer.bias) if p is not None]
    with torch.no_grad():
        for index, parameter in enumerate(order):
            parameter.copy_(torch.tensor(weight(index, tuple(parameter.shape))))
        senders, receivers, displacement = edges()
        out = net(
            {
                "_atomic_numbers": torch.tensor(NUMBERS),
                "_Rij": torch.tensor(displacement),
                "_idx_i": torch.tensor(receivers),
                "_idx_j": torch.tensor(senders),
            }
        )
    names = {"states": "scalar_representation", "vectors": "vector_representation"}
    print(json.dumps({k: out[v].numpy().round(9).tolist() for k, v in names.items()}))


if __name__ == "__main__":
    main()
