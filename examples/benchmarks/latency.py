"""How long predictions of one graph take, and the first one of a new process.

For each preset `task.predict([graph])` is timed for one graph again and again, and for
graphs of many sizes in turn, both after a warm-up; then many graphs at once, by Keras
and by the model that `task.export` writes. A cold start is a process of its own: it
imports Keras and the library, loads the preset and predicts one graph. It runs without
a cache of compiled programs, with an empty one, and with the one that this left.

Molecules are alkanes with positions; programs are functions of Python's `textwrap` and
`argparse`, whose sizes differ between versions of Python.
"""

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.benchmarks import allocator
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

PRESETS = (
    "schnet_qm9_u0",
    "painn_qm9_u0",
    "ggnn_varmisuse_python",
    "ggnn_bugs_python",
)
# JAX writes formats of TensorFlow and ONNX, by converters of their own.
FORMATS = {"torch": "torch", "tensorflow": "tf_saved_model"}
STARTS = ("without a cache", "empty cache", "filled cache")
STAGES = ("import", "load", "first", "second")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "presets", nargs="*", metavar="PRESET", help="names or folders of presets"
    )
    parser.add_argument("--calls", type=shared.positive, default=300)
    parser.add_argument(
        "--warmup",
        type=shared.positive,
        default=70,
        help="calls before measuring; torch records a shape after 32",
    )
    parser.add_argument(
        "--sizes", type=shared.positive, default=20, help="graphs of different sizes"
    )
    parser.add_argument(
        "--many", type=shared.positive, default=256, help="graphs predicted at once"
    )
    parser.add_argument("--starts", type=shared.natural, default=3, help="cold starts")
    parser.add_argument("--no-export", action="store_true", help="skip exported models")
    parser.add_argument("--cold", metavar="PRESET", help=argparse.SUPPRESS)
    parser.add_argument("--cache", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument(
        "--json",
        type=shared.written_file,
        help="file for the figures, which `compare` does not take: they have no peer",
    )
    allocator.add_option(parser)


def alkane(carbons: int):
    """Return an alkane with rough positions, as a graph without edges."""
    import numpy as np

    from keras_bandgnn import Graph

    numbers, positions = [], []
    for index in range(carbons):
        side = 1 if index % 2 else -1
        place = np.array([1.26 * index, 0.43 * side, 0.0])
        numbers += [6, 1, 1]
        positions += [place, place + [0, 0.63 * side, 0.89]]
        positions.append(place + [0, 0.63 * side, -0.89])
    for place, step in ((positions[0], -1.09), (positions[-3], 1.09)):
        numbers.append(1)
        positions.append(place + [step, 0, 0])
    node = {"atomic_number": np.array(numbers), "position": np.array(positions)}
    return Graph(len(numbers), [], [], node=node)


def sources() -> list[str]:
    """Return the sources of functions of the standard library, smallest first."""
    found = {}
    for module in (textwrap, argparse):
        for _, value in inspect.getmembers(module):
            members = vars(value).values() if inspect.isclass(value) else [value]
            for function in filter(inspect.isfunction, members):
                if function.__module__ == module.__name__:
                    text = textwrap.dedent(inspect.getsource(function))
                    found[function.__qualname__] = text
    return sorted(found.values(), key=len)


def graphs_for(task, count: int) -> list:
    """Return graphs of growing sizes that a preset's task takes."""
    from keras_bandgnn.models import BugLocalizer, NodeSelector
    from keras_bandgnn.programs import function_graph, program_graphs

    if isinstance(task, BugLocalizer):
        graphs = filter(None, map(function_graph, sources()))
    elif isinstance(task, NodeSelector):
        graphs = (next(iter(program_graphs(text)), None) for text in sources())
        graphs = filter(None, graphs)
    else:
        graphs = map(alkane, range(1, 10))
    graphs = list(graphs)
    return [graphs[i * len(graphs) // count] for i in range(count)]


def percentiles(call: Callable, items: Sequence, warmup: int, calls: int) -> dict:
    """Return p50 and p99 in milliseconds of a call with each item in turn."""
    import numpy as np

    times = []
    for number in range(warmup + calls):
        begin = time.perf_counter()
        call(items[number % len(items)])
        if number >= warmup:
            times.append(1e3 * (time.perf_counter() - begin))
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50": float(p50), "p99": float(p99)}


def throughput(predict: Callable, graphs: list, runs: int = 3) -> float:
    """Return graphs per second, the best of some runs after one to warm up."""
    predict(graphs)
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        predict(graphs)
        seconds.append(time.perf_counter() - begin)
    return len(graphs) / min(seconds)


def exported(task, graphs: list, folder: str) -> float | str:
    """Return graphs per second of the exported model, or why there is none."""
    import keras

    from keras_bandgnn.serving import ExportedModel

    backend = keras.backend.backend()
    if backend not in FORMATS:
        return f"not measured on {backend}"
    try:
        task.export(folder, FORMATS[backend], graphs, verify=False)
        return throughput(ExportedModel(folder, trusted=True).predict, graphs)
    except (ImportError, ValueError) as error:
        return str(error).splitlines()[0]


def measure(name: str, options: argparse.Namespace) -> dict:
    """Return the figures of a preset in this process."""
    from keras_bandgnn.models import Task

    task = Task.from_preset(name)
    several = graphs_for(task, options.sizes)
    one = several[len(several) // 2]
    found = {
        "one": percentiles(task.predict, [[one]], options.warmup, options.calls),
        "sizes": percentiles(
            task.predict,
            [[graph] for graph in several],
            # Every size is to be met as often as one graph is.
            options.warmup * len(several),
            options.calls,
        ),
    }
    many = [several[i % len(several)] for i in range(options.many)]
    found["keras"] = throughput(task.predict, many)
    if not options.no_export:
        with tempfile.TemporaryDirectory() as folder:
            found["exported"] = exported(task, many, str(Path(folder) / "model"))
    return found


def cold(name: str, cache: str | None, began: float) -> dict:
    """Return the seconds of the stages of this process, which began at a time.

    Importing the library imports Keras, before the arguments are read.
    """
    seconds, begin = {}, time.perf_counter() - (time.time() - began)

    def end(stage: str) -> None:
        nonlocal begin
        seconds[stage] = time.perf_counter() - begin
        begin = time.perf_counter()

    import keras

    import keras_bandgnn as kb

    # Imported on use, and measured here.
    task_class = kb.models.Task
    if cache is not None and keras.backend.backend() != "tensorflow":
        kb.training.enable_compilation_cache(cache, least_seconds=0.0)
    end("import")
    task = task_class.from_preset(name)
    end("load")
    graph = graphs_for(task, 3)[1]
    # Parsing programs is no part of a prediction.
    begin = time.perf_counter()
    task.predict([graph])
    end("first")
    task.predict([graph])
    end("second")
    return seconds


def cold_starts(name: str, options: argparse.Namespace) -> dict:
    """Return the figures of new processes: the best of some for each kind of start."""
    import keras

    command = [sys.executable, "-m", "examples.benchmarks", "latency", "--cold", name]
    command += ["--backend", keras.backend.backend(), "--allocator", "default"]

    def start(cache: str | None) -> dict:
        line = command if cache is None else [*command, "--cache", cache]
        line = [*line, "--began", str(time.time())]
        done = subprocess.run(line, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    found: dict = {kind: [] for kind in STARTS}
    for _ in range(options.starts):
        found[STARTS[0]].append(start(None))
        if keras.backend.backend() == "jax":
            with tempfile.TemporaryDirectory() as cache:
                found[STARTS[1]].append(start(cache))
                found[STARTS[2]].append(start(cache))
    return {
        kind: min(each, key=lambda times: sum(times.values()))
        for kind, each in found.items()
        if each
    }


def run(options: argparse.Namespace) -> None:
    """Run the benchmark."""
    if options.cold:
        print(json.dumps(cold(options.cold, options.cache, options.began)))
        return
    setting = allocator.apply(options.allocator)
    import keras

    found = {}
    for name in options.presets or PRESETS:
        found[name] = measure(name, options)
        if options.starts:
            found[name]["starts"] = cold_starts(name, options)
    report.say(f"{keras.backend.backend()}; {setting}")
    report.table(
        "one call of predict, ms",
        ["preset", "one graph\np50", "p99", "many sizes\np50", "p99"],
        [
            [name, *(each[k][p] for k in ("one", "sizes") for p in ("p50", "p99"))]
            for name, each in found.items()
        ],
    )
    report.table(
        f"graphs per second, {options.many} at once",
        ["preset", "Keras", "exported"],
        [[k, each["keras"], each.get("exported", "")] for k, each in found.items()],
    )
    rows = [
        [name, kind, *(times[stage] for stage in STAGES), sum(times.values())]
        for name, each in found.items()
        for kind, times in each.get("starts", {}).items()
    ]
    if rows:
        columns = ["import", "load", "first\ncall", "second"]
        report.table("cold start, s", ["preset", "start", *columns, "all"], rows)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
