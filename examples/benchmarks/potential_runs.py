"""Runs with potentials: constant energy, an ensemble, relaxation of crystals."""

import argparse
import time

from examples.benchmarks import geometry
from keras_bandgnn.cli import report


def atoms_of(graph):
    """Return the `ase.Atoms` of a graph."""
    import ase

    cell = graph.context.get("cell")
    return ase.Atoms(
        graph.node["atomic_number"],
        graph.node["position"],
        cell=cell,
        pbc=cell is not None,
    )


def dynamics(task, graph, options: argparse.Namespace) -> dict:
    """Run at constant energy; print and return the figures."""
    import numpy as np
    from ase import units
    from ase.md.verlet import VelocityVerlet

    atoms = atoms_of(graph)
    atoms.calc = task.as_calculator()
    rng = np.random.default_rng(0)
    kelvin = options.temperature * units.kB
    speed = np.sqrt(kelvin / atoms.get_masses())[:, None]
    atoms.set_velocities(speed * rng.normal(size=atoms.positions.shape))
    atoms.set_momenta(atoms.get_momenta() - atoms.get_momenta().mean(axis=0))
    start_atoms = atoms.copy()
    parts = timed_parts()
    energies: list[float] = []
    warm = min(100, options.md_steps // 2)
    md = VelocityVerlet(atoms, options.timestep * units.fs)
    md.attach(lambda: energies.append(atoms.get_total_energy()), interval=10)
    with report.progress("molecular dynamics") as advance:
        md.attach(lambda: advance(md.nsteps, options.md_steps), interval=100)
        md.run(warm)  # Compilation is not part of the time of a step.
        parts.clear()
        start = time.perf_counter()
        md.run(options.md_steps - warm)
        seconds = time.perf_counter() - start
    ps = 10 * options.timestep / 1000 * np.arange(len(energies))
    per_atom = 1000 * np.array(energies) / len(atoms)
    momenta = atoms.get_momenta()
    momentum = np.abs(momenta.sum(axis=0)).max() / np.abs(momenta).mean()
    found = {
        "atoms": len(atoms),
        "steps": options.md_steps,
        "drift, meV/atom/ps": float(np.polyfit(ps, per_atom, 1)[0]),
        "deviation, meV/atom": float(np.std(per_atom)),
        "momentum, of that of an atom": float(momentum),
        "temperature, K": float(atoms.get_temperature()),
        "steps/s": (options.md_steps - warm) / seconds,
        **{f"{name}, share": value / seconds for name, value in parts.items()},
        **vars(atoms.calc.stats),
    }
    peer = peer_speed(start_atoms, options)
    if peer is not None:
        found["SchNetPack, steps/s"] = peer
        found["ours / SchNetPack"] = found["steps/s"] / peer
    rows = [
        [name, f"{value:.1e}" if 0 < abs(value) < 1e-3 else value]
        for name, value in found.items()
    ]
    report.table("constant energy", ("", ""), rows)
    return found


def timed_parts() -> dict:
    """Return a dictionary to which the parts of each evaluation add their seconds."""
    from keras_bandgnn.models.calculator import Potential

    seconds: dict[str, float] = {}

    def timed(plain, name: str):
        def call(*args, **kwargs):
            start = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                passed = time.perf_counter() - start
                seconds[name] = seconds.get(name, 0.0) + passed

        return call

    Potential._pairs = timed(Potential._pairs, "neighbours")
    Potential._run = timed(Potential._run, "packing and model")
    return seconds


def peer_speed(atoms, options: argparse.Namespace, steps: int = 1000) -> float | None:
    """Return the steps per second of SchNetPack's calculator; None without it.

    The best of two rounds with one thread and two with all.
    """
    try:
        geometry.allow_schnetpack()
        import schnetpack as spk
        import torch
        from schnetpack.interfaces import SpkCalculator
        from schnetpack.transform import MatScipyNeighborList, SkinNeighborList
    except ImportError as error:
        report.say(f"SchNetPack is left out: {error}")
        return None
    from ase import units
    from ase.md.verlet import VelocityVerlet

    torch.manual_seed(0)
    basis = spk.nn.BesselRBF(20, options.cutoff)
    cutoff = spk.nn.CosineCutoff(options.cutoff)
    model = spk.model.NeuralNetworkPotential(
        representation=spk.representation.PaiNN(
            options.hidden, options.layers, basis, cutoff
        ),
        input_modules=[spk.atomistic.PairwiseDistances()],
        output_modules=[
            spk.atomistic.Atomwise(n_in=options.hidden, output_key="energy"),
            spk.atomistic.Forces(energy_key="energy", force_key="forces"),
        ],
    )

    class Given(SpkCalculator):
        """The calculator with a model that is not read from a file."""

        def _load_model(self, model_file):
            return model.eval()

    found = MatScipyNeighborList(cutoff=options.cutoff)
    calculator = Given(
        model_file="",
        neighbor_list=SkinNeighborList(found, cutoff_skin=0.5),
        energy_unit="eV",
        position_unit="Ang",
    )
    atoms = atoms.copy()
    atoms.calc = calculator
    md = VelocityVerlet(atoms, options.timestep * units.fs)
    md.run(20)
    best = 0.0
    for threads in (1, torch.get_num_threads()) * 2:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        md.run(steps)
        best = max(best, steps / (time.perf_counter() - start))
    return best


def ensemble(
    members: list, train: list, graphs: list, options: argparse.Namespace
) -> dict:
    """Compare spread and error, the time of all and of one; print and return it.

    Args:
        members: The potentials.
        train: The frames that the first was trained on.
        graphs: Other frames.
        options: The command line.
    """
    import numpy as np

    from keras_bandgnn import models, plotting, training

    whole = models.Ensemble(members)
    atoms = np.array([graph.num_nodes for graph in graphs])
    labels = np.array([graph.label for graph in graphs]) / atoms
    mean, std = (np.ravel(part) / atoms for part in whole.predict_spread(graphs))
    forces = np.concatenate([graph.node["force"] for graph in graphs])
    mean_forces, std_forces = map(np.concatenate, whole.predict_forces_spread(graphs))
    values = {
        "energy, meV/atom": (labels, mean, std),
        "forces, meV/A": (forces, mean_forces, std_forces),
    }
    found: dict = {}
    for name, arrays in values.items():
        entry = training.calibration_report(*arrays)
        found[name] = {
            "MAE of the mean": 1000 * entry["mae"],
            "mean spread": 1000 * entry["mean_std"],
            "rank correlation": entry["rank_correlation"],
            "calibration error": entry["calibration_error"],
            "factor of the spread": entry["scale"],
        }
    # Half of the other frames give the factor, which is measured on the others.
    laplace = models.LastLayerLaplace(members[0]).fit(train).calibrate(graphs[::2])
    alone, alone_std = (np.ravel(part) for part in laplace.predict_spread(graphs[1::2]))
    size = atoms[1::2]
    entry = training.calibration_report(labels[1::2], alone / size, alone_std / size)
    found["energy, meV/atom"] |= {
        "one member, MAE": 1000 * entry["mae"],
        "its LastLayerLaplace, mean std": 1000 * entry["mean_std"],
        "its rank correlation": entry["rank_correlation"],
        "its calibration error": entry["calibration_error"],
        "its factor": float(laplace.factor[0]),
    }
    # The largest error of a frame's atoms, and the largest spread of one of them.
    ends = np.cumsum(atoms)[:-1]
    error = np.linalg.norm(mean_forces - forces, axis=1)
    worst = [
        np.array([part.max() for part in np.split(row, ends)])
        for row in (error, np.linalg.norm(std_forces, axis=1))
    ]
    rank = training.calibration_report(np.zeros(len(graphs)), *worst)
    found["forces, meV/A"]["rank correlation, worst atom of a frame"] = rank[
        "rank_correlation"
    ]
    alone = [member.predict_forces(graphs) for member in members]
    found["forces, meV/A"]["MAE of one member"] = 1000 * float(
        np.mean([np.abs(np.concatenate(rows) - forces).mean() for rows in alone])
    )
    seconds: dict = {}
    for _ in range(5):
        for name, model in (("one member", members[0]), ("all members", whole)):
            start = time.perf_counter()
            model.predict_forces(graphs)
            taken = time.perf_counter() - start
            seconds[name] = min(seconds.get(name, taken), taken)
    rates = {
        name: calculator_speed(model, graphs[0])
        for name, model in (("one member", members[0]), ("all members", whole))
    }
    found["time"] = {
        f"predict_forces, s, {len(graphs)} frames, one member": seconds["one member"],
        f"predict_forces, s, {len(members)} members": seconds["all members"],
        "ratio": seconds["all members"] / seconds["one member"],
        "calculator, steps/s, one member": rates["one member"],
        f"calculator, steps/s, {len(members)} members": rates["all members"],
        "ratio of the calculators": rates["one member"] / rates["all members"],
    }
    for name, rows in found.items():
        report.table(f"ensemble, {name}", ("", ""), [list(row) for row in rows.items()])
    if options.figure:
        figure = plotting.plot_calibration(*values["forces, meV/A"], title="forces")
        figure.savefig(options.figure)
    return found


def calculator_speed(task, graph, steps: int = 500) -> float:
    """Return steps per second at constant energy after a compilation."""
    from ase import units
    from ase.md.verlet import VelocityVerlet

    atoms = atoms_of(graph)
    atoms.calc = task.as_calculator()
    md = VelocityVerlet(atoms, 0.5 * units.fs)
    md.run(20)
    start = time.perf_counter()
    md.run(steps)
    return steps / (time.perf_counter() - start)


def relax(task, graphs: list, options: argparse.Namespace) -> dict:
    """Relax disturbed crystals with their cells; print and return the figures."""
    import numpy as np
    from ase.filters import FrechetCellFilter
    from ase.optimize import FIRE

    rng = np.random.default_rng(0)
    steps, compilations, ended, falls = [], [], 0, []
    with report.progress("relaxation") as advance:
        for number in range(options.crystals):
            atoms = atoms_of(graphs[number % len(graphs)])
            strain = np.eye(3) + rng.normal(scale=0.02, size=(3, 3))
            atoms.set_cell(atoms.cell @ strain, scale_atoms=True)
            atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
            atoms.calc = task.as_calculator()
            before = atoms.get_potential_energy()
            optimizer = FIRE(FrechetCellFilter(atoms), logfile=None)
            ended += bool(optimizer.run(fmax=0.05, steps=options.relax_steps))
            steps.append(optimizer.nsteps)
            compilations.append(atoms.calc.stats.compilations)
            falls.append((before - atoms.get_potential_energy()) / len(atoms))
            advance(number + 1, options.crystals)
    found = {
        "crystals": options.crystals,
        "ended": ended,
        "steps, median": float(np.median(steps)),
        "steps, most": max(steps),
        "compilations, most": max(compilations),
        "compilations, sum": sum(compilations),
        "energy fell by, meV/atom, least": 1000 * min(falls),
    }
    report.table("relaxation", ("", ""), [list(pair) for pair in found.items()])
    return found
