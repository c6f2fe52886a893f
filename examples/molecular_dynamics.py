"""Molecular dynamics with a trained PaiNN: copper, labelled by ASE's EMT potential.

    python examples/molecular_dynamics.py           # minutes
    python examples/molecular_dynamics.py --short   # seconds
    python examples/molecular_dynamics.py --data mlearn_stress.npz

Trains on energies, forces and stresses of disturbed crystals, or of the supercells of
copper in a file of mlearn, with averages of the weights. Then runs at constant energy
and prints the drift, and how often neighbours were found and programs compiled. Needs
`pip install "keras-bandgnn[chem]"`. Choose the backend with KERAS_BACKEND=jax,
tensorflow or torch.
"""

import argparse
import importlib.util
import itertools
import time

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    RadiusGraph,
    TargetNormalizer,
)


def crystals(count: int, repeat: int, seed: int) -> list:
    """Cells of copper, strained and disturbed."""
    import ase.build

    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        atoms = ase.build.bulk("Cu", cubic=True).repeat((repeat, 1, 1))
        strain = np.eye(3) + rng.normal(scale=0.01, size=(3, 3))
        atoms.set_cell(atoms.cell @ strain, scale_atoms=True)
        shape = atoms.positions.shape
        atoms.positions += rng.normal(scale=rng.uniform(0.02, 0.2), size=shape)
        out.append(atoms)
    return out


def labelled(structures: list) -> list:
    """Graphs with the energies, forces and stresses of EMT."""
    from ase.calculators.emt import EMT

    graphs = []
    for atoms in structures:
        atoms.calc = EMT()
        atoms.get_stress()
        graphs.append(kb.data.from_ase(atoms, label="energy", stress=True))
    return graphs


def supercells(path: str, limit: int) -> tuple[list, list]:
    """Training and test graphs of copper from `mlearn_stress.npz`, in eV and Angstrom.

    Args:
        path: The file.
        limit: Largest number of training graphs.
    """
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    splits: tuple[list, list] = ([], [])
    pointer = arrays["node_ptr"]
    for at, (low, high) in enumerate(itertools.pairwise(pointer)):
        if not (arrays["z"][low:high] == 29).all():
            continue
        cell = arrays["lattice"][at]
        graph = kb.Graph(
            int(high - low),
            [],
            [],
            node={
                "atomic_number": arrays["z"][low:high].astype("int32"),
                "position": arrays["frac"][low:high] @ cell,
                "force": arrays["forces_ev_per_ang"][low:high],
            },
            context={"cell": cell, "stress": arrays["stress_ev_per_ang3"][at]},
            label=float(arrays["energy_ev"][at]),
        )
        splits[int(arrays["split"][at] != 0)].append(graph)
    rng = np.random.default_rng(0)
    picked = rng.permutation(len(splits[0]))[:limit]
    return [splits[0][at] for at in picked], splits[1]


def run(task, steps: int, temperature: float, timestep: float, skin: float) -> dict:
    """Run at constant energy; return the drift and what the calculator counted."""
    from ase import units
    from ase.md.verlet import VelocityVerlet

    rng = np.random.default_rng(2)
    atoms = crystals(1, 2, seed=3)[0]
    atoms.calc = task.as_calculator(skin=skin)
    # Half of it goes into the potential energy.
    speed = np.sqrt(2 * temperature * units.kB / atoms.get_masses())[:, None]
    atoms.set_velocities(speed * rng.normal(size=atoms.positions.shape))
    atoms.set_momenta(atoms.get_momenta() - atoms.get_momenta().mean(axis=0))
    energies, dynamics = [], VelocityVerlet(atoms, timestep * units.fs)
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    start = time.perf_counter()
    dynamics.run(steps)
    seconds = time.perf_counter() - start
    ps = np.arange(len(energies)) * timestep / 1000
    slope = np.polyfit(ps, np.array(energies) / len(atoms), 1)[0]
    return {
        "atoms": len(atoms),
        "drift": slope,
        "deviation": np.std(energies) / len(atoms),
        "momentum": np.abs(atoms.get_momenta().sum(axis=0)).max(),
        "ms": 1000 * seconds / steps,
        "stats": atoms.calc.stats,
    }


def main(arguments=None) -> dict | None:
    """Trains, simulates and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", help="mlearn_stress.npz; EMT potential if omitted")
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--temperature", type=float, default=300.0, help="kelvin")
    parser.add_argument("--timestep", type=float, default=2.0, help="femtoseconds")
    parser.add_argument("--skin", type=float, default=0.5, help="angstrom")
    parser.add_argument("--short", action="store_true", help="few frames and steps")
    options = parser.parse_args(arguments)
    if options.short:
        options.frames, options.epochs, options.steps = 24, 3, 50
    if importlib.util.find_spec("ase") is None:
        print('skipped: needs pip install "keras-bandgnn[chem]"')
        return None

    keras.utils.set_random_seed(0)
    if options.data is not None:
        train, valid = supercells(options.data, options.frames)
    else:
        train = labelled(crystals(options.frames, 1, seed=0))
        valid = labelled(crystals(max(8, options.frames // 10), 1, seed=1))
    task = kb.models.ForceRegressor(
        kb.models.PaiNNBackbone((29,), hidden_dim=32, num_steps=2, cutoff=4.0),
        preprocessor=GraphPreprocessor([RadiusGraph(4.0)], DynamicBatcher(8)),
        normalizer=TargetNormalizer("atom", "atomic_number"),
        stress_weight=1000.0,
        per_atom=True,
    )
    batches = -(-len(train) // 8) * options.epochs
    rate = keras.optimizers.schedules.CosineDecay(3e-3, batches)
    task.compile(
        keras.optimizers.Adam(
            rate, global_clipnorm=10.0, use_ema=True, ema_momentum=0.9
        )
    )
    history = task.fit(
        train,
        validation_data=valid,
        epochs=options.epochs,
        verbose=0,
        callbacks=[keras.callbacks.SwapEMAWeights()],
    ).history
    print(
        f"{keras.backend.backend()}: errors on other crystals "
        f"{1000 * history['val_atom_mae'][-1]:.1f} meV per atom, "
        f"{1000 * history['val_force_mae'][-1]:.0f} meV per angstrom, "
        f"{160.2177 * history['val_stress_mae'][-1]:.2f} GPa"
    )
    found = run(
        task, options.steps, options.temperature, options.timestep, options.skin
    )
    stats = found["stats"]
    print(
        f"{options.steps} steps of {options.timestep:g} fs, {found['atoms']} atoms, "
        f"{found['ms']:.1f} ms per step\n"
        f"  drift      {1000 * found['drift']:+.4f} meV per atom and ps, deviation "
        f"{1000 * found['deviation']:.4f} meV per atom\n"
        f"  momentum   {found['momentum']:.1e}\n"
        f"  neighbours found {stats.neighbour_rebuilds} times in {stats.evaluations} "
        f"evaluations; {stats.compilations} compilation(s), room for "
        f"{stats.edge_capacity} edges"
    )
    return found


if __name__ == "__main__":
    main()
