"""Molecular dynamics with a trained PaiNN, at constant temperature and energy.

    python examples/molecular_dynamics.py           # minutes
    python examples/molecular_dynamics.py --short   # seconds
    python examples/molecular_dynamics.py --data ethanol_botnet.npz
    python examples/molecular_dynamics.py --data mlearn_stress.npz --element 29

Trains on energies, forces and, for crystals, stresses, with averages of the weights:
of disturbed crystals of copper, labelled by ASE's EMT potential, or of the frames of a
file. Then brings a structure to a temperature with the thermostat of Bussi (NVT), and
goes on at constant energy (NVE): prints the temperatures, the drift, and how often
neighbours were found and programs compiled. Needs
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


def frames_of(path: str, element: int | None, limit: int) -> tuple[list, list]:
    """Training and test graphs of a file, in eV and Angstrom.

    Args:
        path: An `.npz` with `z`, `node_ptr`, energies, forces, and `pos` or `frac`,
            `lattice` and stresses; `split` or `group` 0 marks the training frames.
        element: Only the frames of this element; all if None.
        limit: Largest number of training graphs.
    """
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    kind = arrays["split"] if "split" in arrays else arrays["group"]
    splits: tuple[list, list] = ([], [])
    for at, (low, high) in enumerate(itertools.pairwise(arrays["node_ptr"])):
        numbers = arrays["z"][low:high].astype("int32")
        if element is not None and not (numbers == element).all():
            continue
        context = {}
        if "lattice" in arrays:
            cell = arrays["lattice"][at]
            position = arrays["frac"][low:high] @ cell
            context = {"cell": cell, "stress": arrays["stress_ev_per_ang3"][at]}
        else:
            position = arrays["pos"][low:high]
        graph = kb.Graph(
            int(high - low),
            [],
            [],
            node={
                "atomic_number": numbers,
                "position": position,
                "force": arrays["forces_ev_per_ang"][low:high],
            },
            context=context,
            label=float(arrays["energy_ev"][at]),
        )
        splits[int(kind[at] != 0)].append(graph)
    if not splits[0]:
        raise SystemExit(f"no training frames in {path} for --element {element}")
    order = np.random.default_rng(0).permutation(len(splits[0]))
    train = [splits[0][at] for at in order[:limit]]
    return train, splits[1] or [splits[0][at] for at in order[limit:]]


def structure(graph):
    """The `ase.Atoms` of a graph."""
    import ase

    cell = graph.context.get("cell")
    position, numbers = graph.node["position"], graph.node["atomic_number"]
    return ase.Atoms(numbers, position, cell=cell, pbc=cell is not None)


def run(task, atoms, options: argparse.Namespace) -> dict:
    """Run at constant temperature, then at constant energy; return what was seen."""
    from ase import units
    from ase.md.bussi import Bussi
    from ase.md.verlet import VelocityVerlet

    rng = np.random.default_rng(2)
    atoms.calc = task.as_calculator(skin=options.skin)
    kelvin, step = options.temperature, options.timestep * units.fs
    speed = np.sqrt(kelvin * units.kB / atoms.get_masses())[:, None]
    atoms.set_velocities(speed * rng.normal(size=atoms.positions.shape))
    atoms.set_momenta(atoms.get_momenta() - atoms.get_momenta().mean(axis=0))
    warm = Bussi(atoms, step, temperature_K=kelvin, taut=20 * step, rng=rng)
    temperatures: list[float] = []
    warm.attach(lambda: temperatures.append(atoms.get_temperature()))
    warm.run(options.steps)
    energies, free = [], VelocityVerlet(atoms, step)
    free.attach(lambda: energies.append(atoms.get_total_energy()))
    start = time.perf_counter()
    free.run(options.steps)
    seconds = time.perf_counter() - start
    ps = np.arange(len(energies)) * options.timestep / 1000
    slope = np.polyfit(ps, np.array(energies) / len(atoms), 1)[0]
    return {
        "atoms": len(atoms),
        # The second half, when the structure is warm.
        "temperature": np.mean(temperatures[len(temperatures) // 2 :]),
        "drift": slope,
        "deviation": np.std(energies) / len(atoms),
        "momentum": np.abs(atoms.get_momenta().sum(axis=0)).max(),
        "ms": 1000 * seconds / options.steps,
        "stats": atoms.calc.stats,
    }


class Lines(keras.callbacks.Callback):
    """Prints the errors of the forces, ten times in a run."""

    def on_epoch_end(self, epoch, logs=None):
        """Print a line."""
        epochs = self.params["epochs"]
        if logs and (epoch + 1) % max(1, epochs // 10) == 0:
            error = 1000 * logs["val_force_mae"]
            print(f"epoch {epoch + 1}/{epochs}: {error:.0f} meV per angstrom")


def main(arguments=None) -> dict | None:
    """Trains, simulates and prints."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--data", help=".npz of frames; EMT potential if omitted")
    parser.add_argument("--element", type=int, help="only its frames of --data")
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
        train, valid = frames_of(options.data, options.element, options.frames)
        start = structure(valid[0])
    else:
        train = labelled(crystals(options.frames, 1, seed=0))
        valid = labelled(crystals(max(8, options.frames // 10), 1, seed=1))
        start = crystals(1, 2, seed=3)[0]
    numbers = np.concatenate([graph.node["atomic_number"] for graph in train])
    elements = np.unique(numbers).tolist()
    stresses = "stress" in train[0].context
    task = kb.models.ForceRegressor(
        kb.models.PaiNNBackbone(elements, hidden_dim=32, num_steps=2, cutoff=4.0),
        preprocessor=GraphPreprocessor([RadiusGraph(4.0)], DynamicBatcher(8)),
        normalizer=TargetNormalizer("atom", "atomic_number"),
        stress_weight=1000.0 if stresses else None,
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
        callbacks=[keras.callbacks.SwapEMAWeights(), Lines()],
    ).history
    stress = history.get("val_stress_mae", [float("nan")])[-1]
    print(
        f"{keras.backend.backend()}: errors on {len(valid)} other frames "
        f"{1000 * history['val_atom_mae'][-1]:.1f} meV per atom, "
        f"{1000 * history['val_force_mae'][-1]:.0f} meV per angstrom"
        + (f", {160.2177 * stress:.2f} GPa" if stresses else "")
    )
    found = run(task, start, options)
    stats = found["stats"]
    print(
        f"{options.steps} steps of {options.timestep:g} fs with a thermostat of "
        f"{options.temperature:g} K, then as many without, {found['atoms']} atoms, "
        f"{found['ms']:.1f} ms per step\n"
        f"  thermostat {found['temperature']:.0f} K on average\n"
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
