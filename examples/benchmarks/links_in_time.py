"""Ranks of the next messages of CollegeMsg, against a model of plain torch.

PATH is that of `kb.data.load("collegemsg", path=PATH)`. Pairs of the last 15 % of the
messages are ranked among drawn receivers by memories of earlier pairs, by a GINE of
this library that draws the latest earlier messages, and by the same model of the same
sizes in plain torch, which looks up messages with NumPy. Both see each pair's strictly
earlier messages alone; `--future SECONDS` adds ours with pairs that much later, which
see themselves and what follows. One process trains all of them, seed by seed, with
Adam, one rate and one number of epochs; the negatives of the test are the same for all.
"""

import argparse
import dataclasses
import time

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

_WEEK = 7 * 86_400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("path", type=shared.path, metavar="PATH")
    parser.add_argument("--seeds", type=shared.positive, default=3)
    parser.add_argument("--epochs", type=shared.positive, default=10)
    parser.add_argument("--width", type=shared.positive, default=64)
    parser.add_argument("--messages", type=shared.positive, default=10)
    parser.add_argument("--negatives", type=shared.positive, default=100)
    parser.add_argument("--rate", type=shared.above_zero, default=2e-3)
    parser.add_argument("--batch", type=shared.positive, default=512)
    parser.add_argument(
        "--every", type=shared.positive, default=1, help="test each n-th pair"
    )
    parser.add_argument(
        "--future", type=int, metavar="SECONDS", help="ours with later messages, too"
    )
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    figures.add_option(parser)
    allocator.add_option(parser, "default")


# === Ours ===


def rank_ours(edges, split, test, negatives, options, order: str, late: int = 0):
    """Train a GINE and return the ranks of the test, and the seconds of an epoch."""
    import keras

    from examples.graphs_in_time import predictor
    from keras_bandgnn import preprocessing

    sampler = preprocessing.NeighborSampler(
        [options.messages], batch_size=options.batch, time=order
    )
    few = preprocessing.NegativeSampler(10, "source", exclude_known=False)
    pairs, test = (
        dataclasses.replace(part, time=part.time + late)
        for part in (split.train_pairs, test)
    )
    task = predictor(options.width, 1, ages=True)
    task.compile(keras.optimizers.Adam(options.rate))
    start = time.perf_counter()
    task.fit(edges, pairs, few, sampler=sampler, epochs=options.epochs, verbose=0)
    seconds = (time.perf_counter() - start) / options.epochs
    return task.rank(edges, test, negatives=negatives, sampler=sampler), seconds


# === Plain torch ===


class EarlierMessages:
    """The latest messages of a node before a time.

    Args:
        edges: The graph, whose receivers are asked about.
        count: K, number of messages.
    """

    def __init__(self, edges, count: int):
        import numpy as np

        times = edges.edge["time"]
        order = np.lexsort([times, edges.receivers])
        self.senders, self.types, self.times = (
            column[order] for column in (edges.senders, edges.edge_type, times)
        )
        self.start = np.searchsorted(edges.receivers[order], range(edges.num_nodes + 1))
        # One sorted number for node and time.
        self.ranks = np.unique(times)
        places = np.searchsorted(self.ranks, self.times)
        self.keys = edges.receivers[order] * np.int64(len(self.ranks) + 1) + places
        self.count = count

    def before(self, nodes, times):
        """Return rows of messages, int64 [n, K], and which of them there are."""
        import numpy as np

        keys = nodes * np.int64(len(self.ranks) + 1)
        keys += np.searchsorted(self.ranks, times)
        last = np.searchsorted(self.keys, keys)
        rows = last[:, None] - 1 - np.arange(self.count)
        return np.maximum(rows, 0), rows >= self.start[nodes][:, None]


def plain_model(edges, options):
    """Return a torch module from nodes and times to states, and from those to scores.

    h_v = x_v + relu(norm(MLP((1 + eps) x_v + sum relu(x_u + e_uv)))), of the types and
    the age of messages, and h_u W h_v.
    """
    import numpy as np
    import torch
    from torch import nn

    vectors = torch.tensor(edges.node["vector"], dtype=torch.float32)
    width, messages = options.width, EarlierMessages(edges, options.messages)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(vectors.shape[1], width)
            self.kind = nn.Embedding(2, width)
            self.waves = nn.Parameter(torch.logspace(0, -9, 32))
            self.phases = nn.Parameter(torch.zeros(32))
            self.age = nn.Linear(32, width)
            self.eps = nn.Parameter(torch.zeros(()))
            self.mlp = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
            )
            self.norm = nn.LayerNorm(width)
            self.bilinear = nn.Linear(width, width, bias=False)

        def states(self, nodes, times):
            rows, there = messages.before(nodes, times)
            ages = torch.tensor((times[:, None] - messages.times[rows]), dtype=float)
            ages = ages.clamp(min=0).float()[..., None]
            x = self.embed(vectors)
            edge = self.kind(torch.tensor(messages.types[rows]).long())
            edge = edge + self.age(torch.cos(ages * self.waves + self.phases))
            sent = torch.relu(x[torch.tensor(messages.senders[rows]).long()] + edge)
            total = (sent * torch.tensor(there)[..., None]).sum(1)
            own = x[torch.tensor(nodes).long()]
            rows = self.mlp((1 + self.eps) * own + total)
            return own + torch.relu(self.norm(rows))

        def forward(self, senders, receivers, times):
            """Return the scores of candidates [n, C] of senders [n]."""
            count = receivers.shape[1]
            sender = self.bilinear(self.states(senders, times))
            states = self.states(receivers.reshape(-1), np.repeat(times, count))
            return (states.reshape(len(senders), count, -1) @ sender[..., None])[..., 0]

    return Plain()


def rank_plain(edges, split, test, candidates, options, seed: int):
    """Train the model of plain torch and return ranks, and the seconds of an epoch."""
    import numpy as np
    import torch

    model = plain_model(edges, options)
    optimizer = torch.optim.Adam(model.parameters(), options.rate)
    rng, pairs = np.random.default_rng(seed), split.train_pairs
    start = time.perf_counter()
    for _ in range(options.epochs):
        order = rng.permutation(len(pairs))
        for first in range(0, len(order), options.batch):
            part = pairs.take(order[first : first + options.batch])
            drawn = rng.integers(0, edges.num_nodes - 1, (len(part), 10))
            # Any node but the sender.
            drawn += drawn >= part.senders[:, None]
            receivers = np.concatenate([part.receivers[:, None], drawn], axis=1)
            optimizer.zero_grad()
            scores = model(part.senders.astype(np.int64), receivers, part.time)
            target = torch.zeros(len(part), dtype=torch.long)
            torch.nn.functional.cross_entropy(scores, target).backward()
            optimizer.step()
    seconds = (time.perf_counter() - start) / options.epochs
    ranks = np.empty(len(test))
    receivers = np.concatenate([test.receivers[:, None], candidates], axis=1)
    with torch.no_grad():
        for first in range(0, len(test), 256):
            part = slice(first, first + 256)
            senders = test.senders[part].astype(np.int64)
            scores = model(senders, receivers[part].astype(np.int64), test.time[part])
            true, others = scores[:, :1], scores[:, 1:]
            same = torch.tensor(candidates[part] == test.receivers[part][:, None])
            above = ((others > true) & ~same).sum(1)
            ties = ((others == true) & ~same).sum(1)
            ranks[part] = (1 + above + 0.5 * ties).numpy()
    return ranks, seconds


# === The command ===


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    allocator.apply(options.allocator)
    import keras
    import numpy as np

    import keras_bandgnn as kb
    from examples.graphs_in_time import seen_by_models
    from keras_bandgnn import data, preprocessing, training

    (graph,) = kb.data.load("collegemsg", path=options.path)
    split = data.split_links(graph, 0.15, 0.15, undirected=False, time=True)
    test = split.test_pairs.take(slice(None, None, options.every))
    width = options.negatives
    negatives = preprocessing.NegativeSampler(width, "source", exclude_known=False)
    candidates = negatives.sample(test, graph.num_nodes, seed=0)
    candidates = candidates.receivers.reshape(len(test), width)
    history = data.NodePairs.of_edges(graph)
    window = int(graph.edge["time"].max()) - split.cutoffs[1]
    results: dict[str, list] = {}
    for baseline in (
        training.Popularity(),
        training.Popularity(_WEEK),
        training.EdgeBank(),
        training.EdgeBank(window),
        training.LastPartner(),
    ):
        results[repr(baseline)] = [(baseline.rank(history, test, candidates), 0.0)]
    edges = seen_by_models(graph, options.width)
    for seed in range(options.seeds):
        orders = {"GINE, recent": ("recent", 0), "GINE, uniform": ("uniform", 0)}
        if options.future is not None:
            orders["GINE with the future"] = ("recent", options.future)
        for name, order in orders.items():
            keras.utils.set_random_seed(seed)
            row = rank_ours(edges, split, test, negatives, options, *order)
            results.setdefault(name, []).append(row)
        if not options.no_peer:
            keras.utils.set_random_seed(seed)
            row = rank_plain(edges, split, test, candidates, options, seed)
            results.setdefault("plain torch, recent", []).append(row)
        for name, rows in results.items():
            mrr = training.mean_reciprocal_rank(rows[-1][0])
            report.say(f"seed {seed}, {name}: {mrr:.3f}, {rows[-1][1]:.1f} s an epoch")
    table, seconds = [], {}
    for name, rows in results.items():
        mrr = np.array([training.mean_reciprocal_rank(ranks) for ranks, _ in rows])
        hits = np.array([training.hits_at(ranks, 10) for ranks, _ in rows])
        seconds[name] = float(np.median([wall for _, wall in rows]))
        scores = (f"{v.mean():.3f} ± {v.std():.3f}" for v in (mrr, hits))
        table.append([name, *scores, f"{seconds[name]:.1f} s"])
    title = f"CollegeMsg, {len(test)} pairs, {keras.backend.backend()}"
    report.table(title, ["", "MRR", "Hits@10", "epoch"], table)
    peer = seconds.get("plain torch, recent")
    entry = figures.row("epoch of links in time", seconds["GINE, recent"], peer, "s")
    figures.write(options, [entry], {row[0]: row[1:] for row in table})
