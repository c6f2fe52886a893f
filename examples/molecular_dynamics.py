"""Molecular dynamics with a trained PaiNN: copper, labelled by ASE's EMT potential.

    python examples/molecular_dynamics.py           # minutes
    python examples/molecular_dynamics.py --short   # seconds

Trains on energies and forces of disturbed crystals, then runs at constant energy and
prints the drift, and how often neighbours were found and programs compiled. Needs
`pip install "keras-bandgnn[chem]"`. Choose the backend with KERAS_BACKEND=jax,
tensorflow or torch.
"""

import argparse
import importlib.util
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
    """Graphs with the energies and forces of EMT."""
    from ase.calculators.emt import EMT

    graphs = []
    for atoms in structures:
        atoms.calc = EMT()
        atoms.get_forces()
        graphs.append(kb.data.from_ase(atoms, label="energy"))
    return graphs


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
    train = labelled(crystals(options.frames, 1, seed=0))
    valid = labelled(crystals(max(8, options.frames // 10), 1, seed=1))
    task = kb.models.ForceRegressor(
        kb.models.PaiNNBackbone((29,), hidden_dim=32, num_steps=2, cutoff=4.0),
        preprocessor=GraphPreprocessor([RadiusGraph(4.0)], DynamicBatcher(8)),
        normalizer=TargetNormalizer("atom"),
    )
    batches = -(-options.frames // 8) * options.epochs
    task.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, batches))
    )
    history = task.fit(train, validation_data=valid, epochs=options.epochs, verbose=0)
    print(
        f"{keras.backend.backend()}: errors on other crystals "
        f"{1000 * history.history['val_mae'][-1] / 4:.1f} meV per atom, "
        f"{history.history['val_force_mae'][-1]:.3f} eV per angstrom"
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
