"""Static and dynamic batching: measurements compared with `choose_batcher`'s forecast.

The experiment of Speckhard et al. 2025 with a GGNN, SchNet, MPEU or PaiNN (--model):
molecules with all pairs of atoms as edges ("full", without edge types) or bonds
("bonds", typed; GGNN only), and synthetic graphs with the long-tailed sizes of AFLOW
("crystals"); four algorithms, four batch sizes. PATH is a file or folder for
`kb.data.load("qm9", path=PATH)`; without --data, synthetic molecules with QM9's sizes
are used. SchNet, MPEU and PaiNN are the profiled models, with --hidden as their width:
64, and 256 for the paper's PaiNN.

    python examples/batching_study.py --data PATH --out study
    python examples/batching_study.py --data PATH --out study --model painn --repeats 0
    python examples/batching_study.py --short

Results are written to OUT/results.json after each cell; the same command resumes. Run
it again with another KERAS_BACKEND, --model or --hidden and the same --out to show all
of them in the tables and figures.

Method. The number of compilations of a run follows exactly from the sizes. Steps are
timed without compilation: for each algorithm, the shapes at evenly spaced steps of the
run, alternating with the other algorithms; "combined" is a `fit` over a real loader
with these shapes. Milliseconds per step over N steps are the steady ones, plus the
compilations times the seconds per compilation, divided by N.
"""

import argparse
import itertools
import json
import os
import platform
import time
from pathlib import Path

import keras
import numpy as np
from scipy import stats

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import BatchingForecast, fastest

ALGORITHMS = ("dynamic", "constant", "64", "power_of_two")
ENERGY = {1: -0.6, 6: -37.8, 7: -54.6, 8: -75.0, 9: -99.7}
# Single, double, triple and aromatic bonds are 1 to 4.
EDGE_TYPES = 5
EDGES = ("full", "bonds", "crystals")
# What the geometric models read; bonds have no lengths.
LENGTHS = ("full", "crystals")
MODELS = {
    "ggnn": kb.models.GGNNBackbone,
    "schnet": kb.models.SchNetBackbone,
    "mpeu": kb.models.MPEUBackbone,
    "painn": kb.models.PaiNNBackbone,
}
GRAPHS_MADE = 8000


def made_molecules(count: int, seed: int) -> kb.data.FlatGraphs:
    """Random trees with some rings, with as many atoms as QM9's molecules."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        atoms = int(np.clip(round(rng.normal(18.0, 2.95)), 3, 29))
        element = rng.choice([1, 6, 7, 8, 9], atoms, p=[0.51, 0.35, 0.06, 0.078, 0.002])
        first = np.arange(1, atoms)
        second = (first * rng.random(atoms - 1)).astype(int)
        rings = rng.integers(0, atoms, (2, rng.integers(0, 3)))
        first, second = np.append(first, rings[0]), np.append(second, rings[1])
        kind = rng.choice([1, 2, 3, 4], first.size, p=[0.9, 0.06, 0.02, 0.02])
        energy = sum(ENERGY[int(e)] for e in element)
        polar = np.abs(element[first] - element[second])
        graphs.append(
            kb.Graph(
                atoms,
                senders=np.append(first, second),
                receivers=np.append(second, first),
                edge_type=np.append(kind, kind),
                node={
                    "atomic_number": element,
                    # Only lengths and directions are read: any will do.
                    "position": rng.normal(scale=2.0, size=(atoms, 3)),
                },
                label=energy - 0.1 * float((polar * kind).sum()),
            )
        )
    return kb.data.FlatGraphs.from_graphs(graphs)


def made_crystals(count: int, seed: int, lengths: bool) -> kb.data.FlatGraphs:
    """Graphs with a long tail of sizes, as AFLOW has, and 24 neighbours per atom."""
    rng = np.random.default_rng(seed)
    apart = np.random.default_rng(seed + 1)
    graphs = []
    for _ in range(count):
        atoms = int(np.clip(round(rng.lognormal(np.log(7), 0.7)), 1, 200))
        element = rng.choice([1, 6, 7, 8, 9], atoms)
        edge = {}
        if lengths:
            edge["displacement"] = apart.normal(scale=2.0, size=(24 * atoms, 3))
        graphs.append(
            kb.Graph(
                atoms,
                # With periods an atom may neighbour itself, and another one twice.
                senders=rng.integers(0, atoms, 24 * atoms),
                receivers=np.repeat(np.arange(atoms), 24),
                node={"atomic_number": element},
                edge=edge,
                label=float(np.mean([ENERGY[int(e)] for e in element])),
            )
        )
    return kb.data.FlatGraphs.from_graphs(graphs)


def all_pairs(graphs: kb.data.FlatGraphs) -> kb.data.FlatGraphs:
    """The same graphs with an untyped edge from each atom to each other."""
    full = []
    for graph in graphs:
        first, second = np.nonzero(~np.eye(graph.num_nodes, dtype=bool))
        ends = {"senders": first, "receivers": second}
        full.append(graph.replace(**ends, edge_type=None, edge={}))
    return kb.data.FlatGraphs.from_graphs(full)


def read_graphs(options: argparse.Namespace, edges: str) -> kb.data.FlatGraphs:
    lengths = options.model != "ggnn"
    count = 60 if options.short else GRAPHS_MADE
    if edges == "crystals":
        return made_crystals(count, options.seed, lengths)
    if options.data is None:
        graphs = made_molecules(count, options.seed)
    else:
        graphs = kb.data.load("qm9", path=options.data, edges="bonds")
    if edges == "bonds":
        return graphs
    return (
        kb.preprocessing.FullyConnectedGraph()(graphs) if lengths else all_pairs(graphs)
    )


def make_task(options: argparse.Namespace, edges: str, rate: float = 1e-4):
    """The model of a cell; SchNet, MPEU and PaiNN with the readouts of the paper."""
    size = {"hidden_dim": options.hidden, "num_steps": options.layers}
    backbone = MODELS[options.model]
    if options.model == "ggnn":
        types = EDGE_TYPES if edges == "bonds" else 1
        task = kb.models.GraphRegressor(
            backbone({"atomic_number": 10}, num_edge_types=types, **size)
        )
    elif options.model == "painn":
        task = kb.models.GraphRegressor(backbone(ENERGY, **size), hidden=options.hidden)
    else:
        task = kb.models.GraphRegressor(
            backbone(ENERGY, **size),
            activation=kb.layers.shifted_softplus,
            use_bias=False,
        )
    task.compile(keras.optimizers.Adam(rate))
    return task


# === Measuring a cell ===


def spread_out(found, places: int) -> tuple[list, np.ndarray]:
    """Supergraphs at evenly spaced places among the steps, and the weight of each."""
    largest = max(len(example.members) for example in found.examples)
    # Partly filled supergraphs would shift those after them in a loader.
    whole = [i for i, e in enumerate(found.examples) if len(e.members) == largest]
    if len(found.examples) <= 2:
        whole = list(range(len(found.examples)))
    sizes = np.array(
        [
            [found.examples[i].budget["node"], found.examples[i].budget["edge"]]
            for i in whole
        ],
        float,
    )
    order = (sizes / sizes.mean(axis=0)).sum(axis=1).argsort(kind="stable")
    share = found.counts[whole][order].cumsum() / found.counts[whole].sum()
    at = np.searchsorted(share, (np.arange(places) + 0.5) / places)
    chosen, counts = np.unique(at.clip(0, len(order) - 1), return_counts=True)
    examples = [found.examples[whole[order[i]]] for i in chosen]
    return examples, counts / counts.sum()


def real_loader(graphs, forecast, name: str, examples, weights, steps: int, seed: int):
    """A loader whose batches have these shapes, as often as the weights say."""
    batcher = forecast.batchers[name]
    rng = np.random.default_rng(seed)
    if batcher.fixed_shapes:
        ids = rng.integers(0, len(graphs), steps * batcher.graphs)
    else:
        times = np.maximum(1, np.round(steps * weights)).astype(int)
        turns = rng.permutation(np.repeat(np.arange(len(examples)), times))
        ids = np.concatenate([examples[i].members for i in turns])
    types = forecast.timer.model.backbone.num_edge_types
    return kb.preprocessing.GraphLoader(
        graphs.take(ids), batcher, shuffle=False, num_edge_types=types
    )


def middle(values, weights) -> float:
    """Weighted median."""
    order = np.argsort(values)
    share = np.cumsum(np.asarray(weights)[order])
    return float(np.asarray(values)[order][np.searchsorted(share, 0.5 * share[-1])])


def measure(graphs, task, batch_size: int, options: argparse.Namespace) -> dict:
    """One cell: what is measured, and what was forecast."""
    most = max(options.steps)
    began = time.monotonic()
    # The forecast first, with a timer of its own: it knows nothing that follows.
    forecast = BatchingForecast(
        graphs,
        task,
        batch_size=batch_size - 1,
        packing="sequential",
        steps=most,
        seed=options.seed,
        seconds=1.0 if options.short else 45.0,
        verbose=not options.short,
    ).measure()
    seconds = time.monotonic() - began
    forecast_rows = {steps: forecast.rows(steps) for steps in options.steps}
    rows = forecast_rows[most]
    timer = type(forecast.timer)(task)
    places, loaders, shapes = options.places, {}, {}
    whole = kb.preprocessing.GraphLoader(
        graphs,
        forecast.batchers["dynamic"],
        num_edge_types=task.backbone.num_edge_types,
        prefetch=0,
    )
    timer.model.adapt(whole)
    # Epochs of a second or two hide how an epoch begins.
    repeats = int(np.clip(1500 / (places * rows[0].steady_ms), 2, 8))
    for name, found in forecast.counts.items():
        examples, weights = spread_out(found, places)
        keys = []
        for example in examples:
            keys.append(tuple(sorted(example.budget.items())))
            if keys[-1] not in timer.visits:
                batch = whole.build_as([example.members], example.budget)
                timer.add(keys[-1], batch)
        shapes[name] = keys, weights
        loaders[name] = real_loader(
            graphs, forecast, name, examples, weights, repeats * places, options.seed
        )
        timer.fit(loaders[name])
    combined = {name: [] for name in loaders}
    assembly = {name: [] for name in loaders}
    rng = np.random.default_rng(options.seed)
    for _ in range(options.rounds):
        for key in timer.visits:
            timer.visit(key)
        for name in rng.permutation(list(loaders)).tolist():
            loader = loaders[name]
            combined[name].append(timer.fit_ms(loader))
            alone = kb.preprocessing.GraphLoader(
                loader.parts[0],
                loader.batcher,
                shuffle=False,
                num_edge_types=loader.num_edge_types,
                prefetch=0,
            )
            for index in range(len(alone)):
                alone[index]
            assembly[name].append(alone.stats.assembly_ms)
    compile_s = timer.compile_s()
    algorithms = {}
    for row in rows:
        name, found = row.algorithm, forecast.counts[row.algorithm]
        keys, weights = shapes[name]
        times = [timer.ms(key) for key in keys]
        # As for the shapes: other work on the machine only ever adds time.
        steady = float(np.quantile(combined[name], 0.25))
        count = {steps: found.after(steps) for steps in options.steps}
        composed = kb.preprocessing.GraphLoader(
            graphs, forecast.batchers[name], seed=options.seed
        ).composition(0)
        algorithms[name] = {
            "shapes": count,
            "compilations": {n: timer.programs(c) for n, c in count.items()},
            "compile_s": compile_s,
            "node_waste": row.node_waste,
            "edge_waste": row.edge_waste,
            "graphs_per_step": row.graphs_per_step,
            "graphs_in_batch": np.bincount([len(s.members) for s in composed]),
            "batching_ms": {
                "mean": float(np.median([np.mean(a) for a in assembly[name]])),
                "median": float(np.median([np.median(a) for a in assembly[name]])),
            },
            "update_ms": {
                "mean": float(np.average(times, weights=weights)),
                "median": middle(times, weights),
            },
            "combined_ms": {"mean": steady, "rounds": combined[name]},
            "total_ms": {
                n: steady + 1e3 * timer.programs(c) * compile_s / n
                for n, c in count.items()
            },
            "forecast": {
                "update_ms": row.update_ms,
                "steady_ms": row.steady_ms,
                "compile_s": row.compile_s,
                "total_ms": {
                    n: {r.algorithm: r.step_ms for r in found}[name]
                    for n, found in forecast_rows.items()
                },
            },
        }
    return {
        "graphs": len(graphs),
        "algorithms": algorithms,
        "chosen": {n: fastest(f, "step").algorithm for n, f in forecast_rows.items()},
        "forecast_seconds": seconds,
        "residual": forecast.residual,
        "load_average": os.getloadavg()[0],
    }


# === Effect on learning ===


class Steps(keras.utils.PyDataset):
    """The first steps of a loader, over as many epochs as they need."""

    def __init__(self, loader, steps: int):
        super().__init__(workers=1)
        self.loader, self.steps = loader, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int):
        epoch, batch = divmod(index, len(self.loader))
        return self.loader.build(batch, epoch)


def learn(graphs, edges: str, options: argparse.Namespace, results: dict, save) -> None:
    """Train several times under each algorithm; test RMSE goes to `results`."""
    rng = np.random.default_rng(options.seed)
    order = rng.permutation(len(graphs))
    tenth = len(graphs) // 10
    test, train = graphs.take(order[:tenth]), graphs.take(order[2 * tenth :])
    size = options.learn_batch_size
    task = make_task(options, edges, options.rate)
    types = task.backbone.num_edge_types
    task.preprocessor = kb.preprocessing.GraphPreprocessor(
        batcher=kb.preprocessing.DynamicBatcher(size - 1, packing="sequential")
    )
    task.adapt(kb.preprocessing.GraphLoader(train, num_edge_types=types))
    task.optimizer.build(task.trainable_variables)
    fresh = [keras.ops.convert_to_numpy(v) for v in task.optimizer.variables]
    batchers = {
        name: kb.preprocessing.DynamicBatcher(size - 1, packing="sequential")
        if name == "dynamic"
        else kb.preprocessing.StaticBatcher(size - 1, name)
        for name in ALGORITHMS
    }
    scores = results.setdefault("rmse", {name: [] for name in ALGORITHMS})
    for repeat in range(options.repeats):
        for number, (name, batcher) in enumerate(batchers.items()):
            if len(scores[name]) > repeat:
                continue
            # Every run is a draw of its own, as Student's test asks.
            seed = options.seed + 1000 * number + repeat
            keras.utils.set_random_seed(seed)
            begin = make_task(options, edges)
            task.backbone.set_weights(begin.backbone.get_weights())
            task.head.set_weights(begin.head.get_weights())
            for variable, value in zip(task.optimizer.variables, fresh, strict=True):
                variable.assign(value)
            loader = kb.preprocessing.GraphLoader(
                train, batcher, seed=seed, num_edge_types=types, prefetch=0
            )
            data = Steps(loader, options.train_steps)
            if keras.backend.backend() == "tensorflow":
                # It must know beforehand that shapes vary.
                data = loader.to_tf_data().repeat().take(options.train_steps)
            task.fit(data, verbose=0, shuffle=False)
            score = task.evaluate(test, verbose=0, return_dict=True)["rmse"]
            scores[name].append(float(score))
            print(f"  run {repeat + 1}, {name}: RMSE {score:.4f}", flush=True)
            save()


def evidence(p: float) -> str:
    """The words of Speckhard et al."""
    return "strong" if p < 0.05 else "moderate" if p <= 0.1 else "little"


# === Tables ===


def markdown(columns: list[str], rows: list[list]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def titles(cell: dict) -> list:
    names = ("model", "backend", "edges", "hidden", "batch_size")
    return [cell[name] for name in names]


def print_cells(cells: list[dict], steps: list[int]) -> None:
    head = ["model", "backend", "edges", "H", "b"]
    columns = [
        *head,
        "algorithm",
        *(f"shapes, {n:,}" for n in steps),
        "waste nodes",
        "edges",
        "graphs",
        "batching mean",
        "median",
        "update mean",
        "median",
        "combined",
        *(f"all, {n:,}" for n in steps),
        "speed-up",
    ]
    rows = []
    for cell in cells:
        last = str(steps[-1])
        slowest = max(a["total_ms"][last] for a in cell["algorithms"].values())
        for name, item in cell["algorithms"].items():
            rows.append(
                [
                    *titles(cell),
                    name,
                    *(item["shapes"][str(n)] for n in steps),
                    f"{100 * item['node_waste']:.0f} %",
                    f"{100 * item['edge_waste']:.0f} %",
                    f"{item['graphs_per_step']:.1f}",
                    f"{item['batching_ms']['mean']:.2f}",
                    f"{item['batching_ms']['median']:.2f}",
                    f"{item['update_ms']['mean']:.2f}",
                    f"{item['update_ms']['median']:.2f}",
                    f"{item['combined_ms']['mean']:.2f}",
                    *(f"{item['total_ms'][str(n)]:.2f}" for n in steps),
                    f"{slowest / item['total_ms'][last]:.2f}",
                ]
            )
    print("\nMilliseconds per step; `all, N` has the compilations of N steps in it.\n")
    print(markdown(columns, rows))


def print_forecasts(cells: list[dict], steps: list[int]) -> None:
    rows, loss, errors = [], {"forecast": [], "dynamic": []}, []
    for cell, n in itertools.product(cells, map(str, steps)):
        total = {k: v["total_ms"][n] for k, v in cell["algorithms"].items()}
        best, chosen = min(total, key=total.__getitem__), cell["chosen"][n]
        loss["forecast"].append(total[chosen] / total[best])
        loss["dynamic"].append(total["dynamic"] / total[best])
        rows.append(
            [
                *titles(cell),
                f"{int(n):,}",
                best,
                chosen,
                f"{total[chosen] / total[best]:.3f}",
                f"{total['dynamic'] / total[best]:.3f}",
                f"{cell['forecast_seconds']:.0f}",
            ]
        )
        errors += [
            item["forecast"]["total_ms"][n] / item["total_ms"][n] - 1
            for item in cell["algorithms"].values()
        ]
    columns = ["model", "backend", "edges", "H", "b", "steps", "fastest", "forecast"]
    print("\nTime under the forecast's choice and under dynamic, over the fastest.\n")
    print(markdown([*columns, "choice", "dynamic", "forecast took s"], rows))
    summary = []
    for name, values in loss.items():
        values = np.array(values)
        summary.append(
            [
                "choose_batcher" if name == "forecast" else "always dynamic",
                f"{100 * np.mean(values == 1):.0f} %",
                f"{100 * np.mean(values <= 1.02):.0f} %",
                f"{100 * np.mean(values <= 1.1):.0f} %",
                f"{values.mean():.3f}",
                f"{values.max():.3f}",
            ]
        )
    slower = [int(np.sum(np.array(loss["dynamic"]) > x)) for x in (1, 1.02, 1.1)]
    print(
        f"\n{len(rows)} cells. Dynamic is not the fastest in {slower[0]}, more than "
        f"2 % slower in {slower[1]}, more than 10 % in {slower[2]}.\n"
    )
    columns = ["rule", "fastest", "within 2 %", "within 10 %", "mean loss", "worst"]
    print(markdown(columns, summary))
    errors = 100 * np.array(errors)
    print(
        f"\nForecast of a time per step: error {np.median(errors):+.1f} % in the "
        f"median, {np.median(np.abs(errors)):.1f} % in size, at most "
        f"{np.abs(errors).max():.0f} %."
    )


def print_learning(learning: dict) -> None:
    for title, entry in learning.items():
        print(f"\nTest RMSE: {title}\n")
        rows = [
            [k, len(v), f"{np.mean(v):.3f}", f"{np.std(v, ddof=1):.3f}"]
            for k, v in entry["rmse"].items()
        ]
        print(markdown(["algorithm", "runs", "mean", "deviation"], rows))
        rows = []
        for a, b in itertools.combinations(entry["rmse"], 2):
            test = stats.ttest_ind(entry["rmse"][a], entry["rmse"][b])
            t, p = float(test.statistic), float(test.pvalue)
            rows.append([a, b, f"{t:.2f}", f"{p:.3f}", evidence(p)])
        print("\nStudent's t-tests:\n")
        print(markdown(["one", "other", "t", "p", "evidence"], rows))


# === The study ===


def draw(cells: list[dict], folder: Path) -> None:
    from keras_bandgnn import plotting

    plotting.plot_shapes(cells, folder / "shapes.png")
    plotting.plot_step_times(cells, folder / "times.png")
    plotting.plot_speedups(cells, folder / "speedups.png")
    print(f"\nfigures in {folder}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", type=Path, help="file or folder of QM9")
    parser.add_argument("--out", type=Path, default=Path("batching_study"))
    parser.add_argument("--model", default="ggnn", choices=MODELS)
    parser.add_argument("--edges", nargs="+", choices=EDGES, help="default: all")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[16, 32, 64, 128])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument(
        "--steps", nargs="+", type=int, default=[1_000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--places", type=int, default=10, help="shapes per algorithm")
    parser.add_argument("--repeats", type=int, default=5, help="0: no learning")
    parser.add_argument("--train-steps", type=int, default=2000)
    parser.add_argument("--learn-batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--figures", action="store_true", help="needs matplotlib")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    able = EDGES if options.model == "ggnn" else LENGTHS
    options.edges = options.edges or list(able)
    refused = sorted(set(options.edges) - set(able))
    if refused:
        parser.error(
            f"Expected --edges among {able} for --model {options.model}, which reads "
            f"lengths of edges. Received: {refused}."
        )
    if options.short:
        options.edges, options.batch_sizes = able[1:2], [8]
        options.hidden, options.layers, options.steps = 8, 1, [20, 100]
        options.rounds, options.places = 1, 1
        options.repeats, options.train_steps, options.learn_batch_size = 2, 5, 8
    options.steps.sort()
    return options


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    results = {"cells": {}, "learning": {}}
    if file.exists():
        results = json.loads(file.read_text())

    def save():
        file.write_text(
            json.dumps(results, indent=1, default=lambda value: value.tolist())
        )

    backend = keras.backend.backend()
    results["machine"] = {
        "system": platform.platform(),
        "processor": platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "keras": keras.__version__,
    }
    for edges in options.edges:
        graphs = read_graphs(options, edges)
        for size in options.batch_sizes:
            facts = {
                "backend": backend,
                "edges": edges,
                "hidden": options.hidden,
                "layers": options.layers,
                "batch_size": size,
            }
            name = " ".join(f"{k}={v}" for k, v in facts.items())
            if options.model != "ggnn":
                name = f"model={options.model} {name}"
            if name in results["cells"]:
                print(f"done before: {name}")
                continue
            print(f"measuring: {name}", flush=True)
            keras.utils.set_random_seed(options.seed)
            task = make_task(options, edges)
            found = measure(graphs, task, size, options)
            results["cells"][name] = {"model": options.model} | facts | found
            save()
        if options.repeats:
            title = (
                f"{edges}, H = {options.hidden}, batch size "
                f"{options.learn_batch_size}, {options.train_steps} steps, {backend}"
            )
            if options.model != "ggnn":
                title = f"{options.model}, {title}"
            print(f"learning: {title}", flush=True)
            entry = results["learning"].setdefault(title, {})
            learn(graphs, edges, options, entry, save)
    results = json.loads(file.read_text())
    # Files of earlier versions, of the GGNN alone, do not name it.
    cells = [{"model": "ggnn"} | cell for cell in results["cells"].values()]
    print_cells(cells, options.steps)
    print_forecasts(cells, options.steps)
    print_learning(results["learning"])
    if options.figures:
        draw(cells, options.out)


if __name__ == "__main__":
    main()
