"""Runs with a trained potential: constant energy, and relaxation of crystals."""

import argparse
import time

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
    # Half of it goes into the potential energy.
    kelvin = 2 * options.temperature * units.kB
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
    found = {
        "atoms": len(atoms),
        "steps": options.md_steps,
        "drift, meV/atom/ps": float(np.polyfit(ps, per_atom, 1)[0]),
        "deviation, meV/atom": float(np.std(per_atom)),
        "momentum": float(np.abs(atoms.get_momenta().sum(axis=0)).max()),
        "temperature, K": float(atoms.get_temperature()),
        "steps/s": (options.md_steps - warm) / seconds,
        **{f"{name}, share": value / seconds for name, value in parts.items()},
        **vars(atoms.calc.stats),
    }
    peer = peer_speed(start_atoms, options)
    if peer is not None:
        found["SchNetPack, steps/s"] = peer
        found["ours / SchNetPack"] = found["steps/s"] / peer
    report.table("constant energy", ("", ""), [list(pair) for pair in found.items()])
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


def peer_speed(atoms, options: argparse.Namespace, steps: int = 300) -> float | None:
    """Return the steps per second of SchNetPack's calculator; None without it."""
    try:
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
