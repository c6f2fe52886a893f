"""Graphs in time: predict who writes to whom next, without a look at the future.

    python examples/graphs_in_time.py --short
    python examples/graphs_in_time.py
    python examples/graphs_in_time.py --data collegemsg
    python examples/graphs_in_time.py --data collegemsg --path CollegeMsg.txt.gz

Messages have times. For each message to predict the model sees those that are strictly
earlier, and their age. It is compared with memories of earlier messages, and with the
same model that sees messages of all times, which flatters it. Without data messages are
made up: people answer, stay with their partners for a while, and write to those who are
popular in their group. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import time

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import data, models, preprocessing, training


def messages(rng: np.random.Generator, people: int, count: int) -> kb.Graph:
    """Messages of people who answer, keep their partners, and belong to groups."""
    group = rng.integers(0, 4, people)
    members = [np.flatnonzero(group == number) for number in range(4)]
    popular = rng.pareto(2.0, people) + 0.2
    partners: list[list[int]] = [[] for _ in range(people)]
    ends = []
    for _ in range(count):
        sender, chance = int(rng.integers(people)), rng.random()
        if ends and chance < 0.2:
            receiver, sender = ends[-1 - int(rng.integers(min(len(ends), 20)))]
        elif partners[sender] and chance < 0.6:
            receiver = int(rng.choice(partners[sender][-2:]))
        else:
            near = members[group[sender]]
            receiver = int(rng.choice(near, p=popular[near] / popular[near].sum()))
        ends.append((sender, receiver))
        partners[sender].append(receiver)
    when = 1_700_000_000 + np.cumsum(rng.integers(0, 600, count))  # int64, seconds
    return kb.Graph(
        people,
        [sender for sender, _ in ends],
        [receiver for _, receiver in ends],
        node={"id": np.arange(people)},
        edge={"time": when},
    )


def seen_by_models(graph: kb.Graph, width: int) -> kb.Graph:
    """The messages and, as edges of type 1, their reverses of the same time.

    Nodes have fixed random vectors, which tell apart those that are new, too.
    """
    count = graph.num_edges
    vectors = np.random.default_rng(0).normal(size=(graph.num_nodes, width))
    return graph.replace(
        senders=np.concatenate([graph.senders, graph.receivers]),
        receivers=np.concatenate([graph.receivers, graph.senders]),
        edge_type=np.repeat([0, 1], count),
        node={"vector": vectors},
        edge={"time": np.tile(graph.edge["time"], 2)},
    )


def predictor(width: int, num_layers: int, ages: bool) -> models.LinkPredictor:
    """A GINE that reads the type of edges and, in batches by time, their age."""
    edge_inputs = {"type": 2, **({"age": {"harmonic": 32}} if ages else {})}
    backbone = models.GINEBackbone(
        {"vector": {"features": width}},
        width,
        num_layers,
        edge_inputs=edge_inputs,
        norm="layer",
    )
    task = models.LinkPredictor(backbone, "bilinear", objective="softmax")
    task.compile(keras.optimizers.Adam(5e-3))
    return task


def show(name: str, ranks: np.ndarray, start: float) -> None:
    """Print the measures of a row."""
    mrr, hits = training.mean_reciprocal_rank(ranks), training.hits_at(ranks, 10)
    seconds = time.perf_counter() - start
    print(f"{name:34} {mrr:6.3f} {hits:8.3f} {seconds:8.1f} s", flush=True)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=["made", "collegemsg"], default="made")
    parser.add_argument("--path", help="file or folder of the data")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--negatives", type=int, default=100)
    parser.add_argument("--fan-outs", type=int, nargs="+", default=[10])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    people, count = (60, 800) if options.short else (1000, 30_000)
    if options.short:
        options.epochs, options.negatives, options.width = 1, 20, 16
    keras.utils.set_random_seed(options.seed)
    if options.data == "collegemsg":
        (graph,) = data.load("collegemsg", path=options.path)
    else:
        graph = messages(np.random.default_rng(options.seed), people, count)

    # A split by time; edges have the cut of the test before all of its pairs.
    split = data.split_links(graph, 0.15, 0.15, undirected=False, time=True)
    data.check_leaks(data.edges_before(graph, split.cutoffs[1]), split.test_pairs)
    test, width = split.test_pairs, options.negatives
    print(f"{graph.num_nodes} nodes, {graph.num_edges} messages; test {len(test)}")
    print(f"among {width} other receivers       MRR  Hits@10")
    negatives = preprocessing.NegativeSampler(width, "source", exclude_known=False)
    drawn = negatives.sample(test, graph.num_nodes, seed=0)
    history = data.NodePairs.of_edges(graph)
    window = int(graph.edge["time"].max()) - split.cutoffs[1]
    for baseline in (
        training.Popularity(),
        training.Popularity(window=7 * 86_400),
        training.EdgeBank(),
        training.EdgeBank(window),
        training.LastPartner(),
    ):
        start = time.perf_counter()
        candidates = drawn.receivers.reshape(len(test), width)
        show(repr(baseline), baseline.rank(history, test, candidates), start)

    edges = seen_by_models(graph, options.width)
    few = preprocessing.NegativeSampler(10, "source", exclude_known=False)
    for order in ("recent", "uniform", None):
        start = time.perf_counter()
        sampler = preprocessing.NeighborSampler(
            options.fan_outs, batch_size=512, time=order
        )
        train, asked = split.train_pairs, test
        if order is None:
            # The messages that are to be predicted are among those that it sees.
            train, asked = train.without_time(), asked.without_time()
        task = predictor(options.width, len(options.fan_outs), order is not None)
        task.fit(edges, train, few, sampler=sampler, epochs=options.epochs, verbose=0)
        ranks = task.rank(edges, asked, negatives=negatives, sampler=sampler)
        name = f"GINE, {order}" if order else "GINE that sees the future"
        show(name, ranks, start)
        if order == "recent":
            along_time(task, edges, test)


def along_time(task, edges: kb.Graph, test: data.NodePairs) -> None:
    """Rank all nodes, from a graph that is renewed five times."""
    start, ranks = time.perf_counter(), []
    for before, window in data.walk_time(edges, test, steps=5, age=True):
        ranks.append(task.rank(before, window))
    show("  all nodes, renewed five times", np.concatenate(ranks), start)


if __name__ == "__main__":
    main()
