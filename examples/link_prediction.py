"""Link prediction: links of a graph, and triples of a knowledge graph.

    python examples/link_prediction.py --short
    python examples/link_prediction.py
    python examples/link_prediction.py --data cora.npz
    python examples/link_prediction.py --data fb15k237.npz
    python examples/link_prediction.py --data fb15k237.npz --save complex_fb15k237

Without data the graph is a stochastic block model, and the triples are a ring of nodes.
Links are split into 85 % to train, 5 % to validate and 10 % to test, and scored by a
graph autoencoder. Triples have their own splits; their scores are those of DistMult or
ComplEx, trained against nodes that all triples of a step share. With `--save` the
weights of the epoch with the best MRR of validation become a preset, and an interrupted
training resumes. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import pathlib

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import data, models, preprocessing, training


def block_model(rng: np.random.Generator, count: int, groups: int = 4) -> kb.Graph:
    """A graph whose nodes have most links within their group."""
    group = rng.integers(0, groups, count)
    share = np.where(group[:, None] == group, 10 * groups, 1) / count
    ends = np.argwhere(np.triu(rng.uniform(size=(count, count)) < share, 1))
    ends = np.concatenate([ends, ends[:, ::-1]])
    feature = np.eye(groups)[group] + rng.normal(0, 1, (count, groups))
    return kb.Graph(count, ends[:, 0], ends[:, 1], node={"h": feature})


def planetoid(file) -> kb.Graph:
    """The graph of a Planetoid file, with binary features of words."""
    rows, columns = file["x_shape"]
    words = np.zeros((rows, columns), np.float32)
    words[np.repeat(np.arange(rows), np.diff(file["x_indptr"])), file["x_indices"]] = 1
    senders, receivers = file["edge_index"]
    return kb.Graph(int(rows), senders, receivers, node={"h": words})


def predict_links(graph: kb.Graph, options) -> None:
    """Train a graph autoencoder for each seed, and print its scores."""
    results = []
    for seed in range(options.seeds):
        keras.utils.set_random_seed(seed)
        split = data.split_links(graph, valid=0.05, test=0.10, seed=seed)
        data.check_leaks(split.train, split.test_pairs)
        width = graph.node["h"].shape[1]
        backbone = models.GCNBackbone({"h": {"features": width}}, hidden_dim=16)
        task = models.LinkPredictor(backbone)
        task.fit(
            split.train, split.train_pairs, epochs=options.epochs, seed=seed, verbose=0
        )
        scores = task.evaluate(split.train, split.test_pairs, known=split.known)
        results.append((scores["auc"], scores["average_precision"]))
        print(f"seed {seed}: AUC {results[-1][0]:.3f}, AP {results[-1][1]:.3f}")
    mean, deviation = np.mean(results, axis=0), np.std(results, axis=0)
    print(
        f"AUC {mean[0]:.3f} ({deviation[0]:.3f}), AP {mean[1]:.3f} ({deviation[1]:.3f})"
    )


def ring(rng: np.random.Generator, count: int) -> tuple[int, int, list]:
    """Triples that follow from each other: the next node, the one before, and both."""
    node = np.arange(count)
    parts = [(node, (node + step) % count) for step in (1, -1, 2)]
    senders, receivers = np.concatenate(parts, axis=1)
    order = rng.permutation(3 * count)
    kinds = np.repeat([0, 1, 2], count)
    pairs = data.NodePairs(senders[order], receivers[order], kinds[order])
    cut = len(pairs) // 10
    return count, 3, [pairs.take(slice(cut, None)), pairs.take(slice(cut))]


def triples(file) -> tuple[int, int, list]:
    """Nodes, relations, and the triples to train on, to test on and to validate on."""
    parts = [file[name].astype(np.int64) for name in ("train", "test", "valid")]
    pairs = [data.NodePairs(t[:, 0], t[:, 2], t[:, 1]) for t in parts]
    return len(file["entity"]), len(file["relation"]), pairs


class BestEpoch(keras.callbacks.Callback):
    """Ranks triples of the validation after each epoch, and saves the best weights."""

    def __init__(self, task, graph, valid, known, folder: pathlib.Path, every: int):
        super().__init__()
        self.task, self.graph, self.valid, self.known = task, graph, valid, known
        self.folder, self.every, self.best = folder, every, 0.0

    def reciprocal_rank(self, task) -> float:
        ranks = task.rank(self.graph, self.valid, self.known, "both", verbose=0)
        return training.mean_reciprocal_rank(ranks)

    def on_train_begin(self, logs=None):
        if self.folder.exists():  # Of the epochs before an interruption.
            task = models.LinkPredictor.from_preset(self.folder)
            self.best = self.reciprocal_rank(task)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        rank = self.reciprocal_rank(self.task)
        print(f"epoch {epoch + 1}: MRR {rank:.4f} of validation", flush=True)
        if rank > self.best:
            self.best = rank
            self.task.save_to_preset(self.folder)


def predict_triples(num_nodes: int, num_relations: int, parts: list, options) -> None:
    """Train a table of embeddings, and print filtered ranks of both sides."""
    keras.utils.set_random_seed(0)
    # Embeddings need no messages: a graph without edges.
    graph = kb.Graph(num_nodes, [], [], node={"id": np.arange(num_nodes)})
    backbone = models.EmbeddingBackbone(
        {"id": num_nodes}, options.width, dropout=options.dropout
    )
    task = models.LinkPredictor(
        backbone, options.head, num_relations, objective="softmax", n3=options.n3
    )
    # Gradients of a node are means over a batch: far below Keras' epsilon.
    adagrad = keras.optimizers.Adagrad(options.rate, 0.0, epsilon=1e-16)
    task.compile(adagrad, weighted_metrics=[])
    train, test, *valid = parts
    known = data.NodePairs.concatenate(parts)
    callbacks = []
    if options.save and valid:
        order = np.random.default_rng(0).permutation(len(valid[0]))
        subset = valid[0].take(order[: options.valid])
        folder = pathlib.Path(options.save)
        best = BestEpoch(task, graph, subset, known, folder, options.every)
        progress = training.SaveProgress(folder.with_name(folder.name + "-progress"))
        callbacks = [best, progress]
    task.fit(
        graph,
        train,
        preprocessing.SharedNegatives(options.negatives or None),
        batch_size=options.batch_size,
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=2 if options.data else 0,
    )
    if callbacks:
        task = models.LinkPredictor.from_preset(options.save)
    ranks = task.rank(graph, test, known, sides="both")
    hits = ", ".join(f"Hits@{k} {training.hits_at(ranks, k):.3f}" for k in (1, 3, 10))
    mrr = training.mean_reciprocal_rank(ranks)
    print(f"{options.head}: MRR {mrr:.3f}, {hits} of {ranks.size} ranks, filtered")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", help="a file of the Planetoid graphs or of FB15k-237")
    parser.add_argument("--head", default="complex", choices=("distmult", "complex"))
    parser.add_argument("--epochs", type=int, help="200 for a graph, 30 for triples")
    parser.add_argument("--seeds", type=int, default=1, help="runs of a graph")
    parser.add_argument("--width", type=int, default=400, help="of embeddings")
    parser.add_argument("--rate", type=float, default=0.1, help="of embeddings")
    parser.add_argument("--dropout", type=float, default=0.0, help="of embeddings")
    parser.add_argument("--n3", type=float, default=0.03, help="factor of N3")
    parser.add_argument(
        "--negatives", type=int, default=2000, help="nodes of a step, 0 for all"
    )
    parser.add_argument("--batch-size", type=int, default=1024, help="of triples")
    parser.add_argument("--save", help="folder of a preset of triples")
    parser.add_argument("--valid", type=int, default=2000, help="triples to rank")
    parser.add_argument("--every", type=int, default=2, help="epochs between ranks")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.data:
        with np.load(options.data) as file:
            if "relation" in file:
                options.epochs = options.epochs or 30
                predict_triples(*triples(file), options)
            else:
                options.epochs = options.epochs or 200
                predict_links(planetoid(file), options)
        return
    count = 150 if options.short else 500
    options.epochs = min(options.epochs or 200, 40 if options.short else 200)
    rng = np.random.default_rng(0)
    predict_links(block_model(rng, count), options)
    options.batch_size, options.width = 64, 100
    options.negatives, options.n3 = 0, 0.0
    predict_triples(*ring(rng, count // 2), options)


if __name__ == "__main__":
    main()
