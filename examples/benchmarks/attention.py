"""Time and memory of attention along edges, compared with peers.

One process runs the same random graphs through our layer, torch_geometric's
`TransformerConv` of the same width and, up to --longest nodes, fused attention between
all nodes, in alternating steps. A step is the forward pass and the gradients of states
and weights. The peer runs in torch on every backend. Memory is the additional memory of
the process (Linux; default allocator, which returns freed memory).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--lengths", type=shared.positive, nargs="+", default=[8192, 32768, 131072]
    )
    parser.add_argument("--degrees", type=shared.positive, nargs="+", default=[8, 64])
    parser.add_argument("--heads", type=shared.positive, default=8)
    parser.add_argument("--key-dim", type=shared.positive, default=8)
    parser.add_argument(
        "--most-edges", type=shared.positive, default=2**21, help="skip larger graphs"
    )
    parser.add_argument(
        "--longest",
        type=shared.natural,
        default=8192,
        help="nodes of full attention",
    )
    parser.add_argument("--rounds", type=shared.positive, default=7)
    figures.add_option(parser)
    parser.add_argument(
        "--allocator",
        choices=("both", "tuned", "default"),
        default="both",
        help="tuned: keep freed memory, in large pages (Linux with glibc)",
    )


def _graph(length: int, degree: int):
    import numpy as np

    rng = np.random.default_rng(0)
    sender = rng.integers(0, length, length * degree)
    receiver = np.sort(rng.integers(0, length, length * degree))
    return sender.astype(np.int32), receiver.astype(np.int32)


def our_step(length: int, ends, pattern: str, options):
    """A step of `DualInterleavedAttention`."""
    import keras
    import numpy as np

    from keras_bandgnn import layers
    from keras_bandgnn import ops as graph_ops

    keras.utils.set_random_seed(0)
    width = options.heads * options.key_dim
    layer = layers.DualInterleavedAttention(
        options.heads,
        options.key_dim,
        pattern,
        self_loops=False,
        # On JAX the fused form holds all pairs of nodes.
        fused=pattern == "full" and keras.backend.backend() != "jax",
    )
    layer.build((1, length, width))
    weights = [v.value for v in layer.trainable_variables]
    seeds = [v.value for v in layer.non_trainable_variables]
    batch = {
        "edge": {"sender": ends[0][None], "receiver": ends[1][None]},
        "node": {
            "graph_id": np.zeros((1, length), np.int32),
            "mask": np.ones((1, length), bool),
        },
        "graph": {"n_node": np.array([[length]], np.int32)},
        "plan": {},
    }
    states = np.random.default_rng(0).normal(size=(1, length, width))
    states = keras.ops.convert_to_tensor(states.astype(np.float32))
    batch = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)

    def function(states, *given):
        *weights, batch = given
        return layer.stateless_call(weights, seeds, states, batch)[0]

    return graph_ops.compiled_timer_step(function, [states, *weights], [batch])


def peer_step(length: int, ends, options, device: str = "cpu"):
    """A step of torch_geometric's layer and a map of its outputs, as ours has.

    Raises:
        ImportError: If torch_geometric is not installed.
    """
    import numpy as np
    import torch
    from torch_geometric.nn import TransformerConv

    torch.manual_seed(0)
    width = options.heads * options.key_dim
    layer = TransformerConv(width, options.key_dim, options.heads, root_weight=False)
    layer, last = layer.to(device), torch.nn.Linear(width, width, device=device)
    edges = torch.from_numpy(np.stack(ends).astype(np.int64)).to(device)
    states = torch.randn(length, width, requires_grad=True, device=device)
    used = [p for p in layer.parameters() if p.requires_grad]
    weights = [states, *used, *last.parameters()]

    def step():
        torch.autograd.grad(
            last(layer(states, edges)).sum(), weights, allow_unused=True
        )
        if device != "cpu":
            torch.accelerator.synchronize()

    return step


def _both(options: argparse.Namespace) -> None:
    """Run the command once with each allocator."""
    rows, measured = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for choice in ("tuned", "default"):
            part = Path(folder) / f"{choice}.json"
            command = [sys.executable, "-m", "examples.benchmarks", *sys.argv[1:]]
            command += ["--json", str(part), "--allocator", choice]
            subprocess.run(command, check=True)
            found = figures.read(part)
            measured[choice] = found["figures"]
            for row in found["rows"]:
                rows.append({**row, "name": f"{row['name']}, {choice} allocator"})
    figures.write(options, rows, measured)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.allocator == "both" and sys.platform.startswith("linux"):
        _both(options)
        return
    settings = allocator.apply(options.allocator)
    import keras
    import numpy as np

    rows, kept, measured = [], [], {}
    with_memory = options.allocator == "default" and sys.platform.startswith("linux")
    sizes = [(n, d) for d in options.degrees for n in options.lengths]
    for length, degree in sizes:
        if length * degree > options.most_edges:
            continue
        ends = _graph(length, degree)
        makers = {"ours": lambda e=ends, n=length: our_step(n, e, "sparse", options)}
        makers["peer"] = lambda e=ends, n=length: peer_step(n, e, options)
        if length <= options.longest:
            makers["full"] = lambda e=ends, n=length: our_step(n, e, "full", options)
        steps, held = {}, {}
        for name, make in makers.items():
            before = allocator.forget() if with_memory else 0.0
            try:
                steps[name] = make()
            except ImportError as error:
                report.say(f"torch_geometric is left out: {error}")
                continue
            steps[name](), steps[name]()
            held[name] = allocator.peak() - before if with_memory else float("nan")
        times = {name: [] for name in steps}
        for number in range(options.rounds):
            for name, step in steps.items():
                if name == "full" and number > 2:
                    continue
                start = time.perf_counter()
                step()
                times[name].append(1e3 * (time.perf_counter() - start))
        ms = {name: float(np.median(t)) for name, t in times.items()}
        measured[f"{length} {degree}"] = {"ms": ms, "GiB": held, "all": times}
        missing = float("nan")
        peer, full = ms.get("peer", missing), ms.get("full", missing)
        ratios = peer / ms["ours"], full / ms["ours"]
        name = f"{length} nodes, degree {degree}"
        kept.append(figures.row(name, ms["ours"], peer, "ms"))
        if "full" in ms:
            name += ", against full attention"
            kept.append(figures.row(name, ms["ours"], full, "ms"))
        rows.append([length, degree, ms["ours"], peer, full, *ratios, held["ours"]])
        report.say(f"{length} nodes, degree {degree}: {ms['ours']:.1f} ms")
    report.say(settings)
    report.say(
        f"{keras.backend.backend()}, {options.heads} heads x {options.key_dim}; "
        f"medians of {options.rounds} alternated rounds"
    )
    columns = ["nodes", "degree", "ours, ms", "TransformerConv, ms", "full, ms"]
    columns += ["times faster", "than full", "GiB"]
    report.table("attention, forward and gradients", columns, rows)
    figures.write(options, kept, measured)
