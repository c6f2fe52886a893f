"""Recommendation: items for users, by LightGCN, matrix factorisation and popularity.

    python examples/recommendation.py --short
    python examples/recommendation.py --figure recommendation.png
    python examples/recommendation.py --data gowalla --epochs 20 --batch-size 2048
    python examples/recommendation.py --data gowalla.npz

Without data users like items of their tastes, some of them more popular than others. A
fifth of what they have is held out. `--data` is a name that `kb.data.load` knows, a
folder with its files, or an .npz file with pairs `train`, `test` and optionally `valid`
[2, Q] of user and item. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn import data, models, training
from keras_bandgnn.preprocessing import NegativeSampler

HAS = ("user", "has", "item")
VISITS = ("user", "visits", "item")


def tastes(rng: np.random.Generator, users: int, items: int) -> np.ndarray:
    """Pairs of users and items, int [2, Q]: each user has about 20 items."""
    taste = rng.normal(size=(users, 4)) @ rng.normal(size=(4, items))
    popular = -np.log(1 + rng.permutation(items))
    # The largest values with this noise are draws without replacement.
    noisy = taste + 0.7 * popular + rng.gumbel(size=taste.shape)
    count = rng.integers(10, 30, users)
    order = np.argsort(-noisy, axis=1)
    return np.stack(
        [np.repeat(np.arange(users), count)]
        + [np.concatenate([row[:n] for row, n in zip(order, count, strict=True)])]
    )


def of_tables(pairs: np.ndarray, users: int, items: int, masks=None, edge_set=HAS):
    """A graph of users and items that have ids alone."""
    edges = {"edge_index": pairs} | ({} if masks is None else masks)
    nodes = {"user": {"id": np.arange(users)}, "item": {"id": np.arange(items)}}
    return data.from_sets(nodes, {edge_set: edges}, reverse=True)


def split_of(options) -> tuple:
    """The split of the pairs, and the edge set."""
    if options.data is None:
        rng = np.random.default_rng(options.seed)
        graph = of_tables(tastes(rng, options.users, options.items), *options.sizes)
        return data.split_links(graph, 0.0, 0.2, options.seed, edge_set=HAS), HAS
    path = Path(options.data)
    if path.suffix == ".npz":
        with np.load(path) as file:
            parts = [file[name] for name in ("train", "valid", "test") if name in file]
        sizes = [part.shape[1] for part in parts]
        tested = np.arange(sum(sizes)) >= sum(sizes[:-1])
        pairs = np.concatenate(parts, axis=1)
        masks = {"train_mask": ~tested, "test_mask": tested}
        users, items = pairs.max(axis=1) + 1
        graph = of_tables(pairs, users, items, masks, VISITS)
    elif path.is_dir():
        (graph,) = data.load("gowalla", path=path)
    else:
        (graph,) = data.load(options.data)
    return data.split_by_masks(graph, edge_set=VISITS), VISITS


def scores(items: np.ndarray, split: data.LinkSplit, num_items: int, k: int) -> list:
    """Recall and NDCG of the held-out items, and the share of items that are shown."""
    return [
        training.recall_at(items, split.test_pairs, k),
        training.ndcg_at(items, split.test_pairs, k),
        training.coverage(items[:, :k], num_items),
    ]


def recommended(kind: str, split: data.LinkSplit, edge_set, options) -> np.ndarray:
    """Train a model and return the items that it recommends to each user."""
    keras.utils.set_random_seed(options.seed)
    sizes = {name: len(table["id"]) for name, table in split.train.sets.items()}
    inputs = {"sets": {name: {"id": size} for name, size in sizes.items()}}
    if kind == "LightGCN":
        backbone = models.LightGCNBackbone(inputs, 64, num_layers=options.layers)
    else:
        backbone = models.EmbeddingBackbone(inputs, 64)
    task = models.LinkPredictor(
        backbone, objective="bpr", edge_set=edge_set, embedding_l2=options.l2
    )
    task.compile(keras.optimizers.Adam(options.rate, epsilon=1e-9))
    task.fit(
        split.train,
        split.train_pairs,
        NegativeSampler(kind="source"),
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2 if options.data else 0,
    )
    best = task.recommend(split.train, k=options.k, exclude=split.train_pairs)
    return best.items


def draw(lists: dict[str, np.ndarray], split: data.LinkSplit, path: Path) -> None:
    """Draw recall by the number of recommended items."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, items in lists.items():
        places = np.arange(1, items.shape[1] + 1)
        recall = [training.recall_at(items, split.test_pairs, int(k)) for k in places]
        axes.plot(places, recall, label=name)
    axes.set(xlabel="items for each user, k", ylabel="recall at k", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", help="gowalla, a folder of its files, or an .npz")
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--k", type=int, default=20, help="items for each user")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="picture of recall by k to write")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.users, options.items, options.epochs = 150, 80, 20
    options.sizes = options.users, options.items
    split, edge_set = split_of(options)
    users, items = (len(split.train.sets[name]["id"]) for name in ("user", "item"))
    train = split.train_pairs
    print(f"{users} users, {items} items, {len(train)} pairs to train on")
    lists = {
        "LightGCN": recommended("LightGCN", split, edge_set, options),
        "matrix factorisation": recommended("embeddings", split, edge_set, options),
        "most popular": training.most_popular(train, users, items, options.k, train),
    }
    for name, best in lists.items():
        recall, gain, shown = scores(best, split, items, options.k)
        print(
            f"{name}: recall {recall:.3f}, NDCG {gain:.3f} at {options.k}, "
            f"{100 * shown:.0f} % of the items"
        )
    if options.figure is not None:
        draw(lists, split, options.figure)


if __name__ == "__main__":
    main()
