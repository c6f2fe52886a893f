"""Several node sets: customers, products and shops in tables, and a label of customers.

    python examples/heterogeneous_graphs.py
    python examples/heterogeneous_graphs.py --short

Each table is a node set with columns of its own, each foreign key an edge set. Whether
a customer comes back depends on the products that the customer bought, whose quality
stands in the table of products, so columns of customers alone do not tell. The encoder
learns the columns, stays in the task and reads new rows. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import GraphPreprocessor, NodeSetEncoder


def tables(rng: np.random.Generator, customers: int) -> tuple[dict, np.ndarray]:
    """Tables of a market, and whether each customer comes back."""
    products, shops, bought = customers // 4, 10, 6 * customers
    quality = rng.normal(size=products)
    sold_by = rng.integers(0, shops, products)
    buyer, product = (
        rng.integers(0, customers, bought),
        rng.integers(0, products, bought),
    )
    mean = np.bincount(buyer, quality[product], minlength=customers)
    mean = mean / np.maximum(np.bincount(buyer, minlength=customers), 1)
    data = kb.data.link_tables(
        {
            "customer": {
                "id": [f"c{k}" for k in range(customers)],
                "town": rng.choice(["Bonn", "Kyoto", "Lagos"], customers).tolist(),
                "age": rng.integers(18, 90, customers).astype(float),
            },
            "product": {
                "id": [f"p{k}" for k in range(products)],
                "price": rng.lognormal(size=products),
                "rating": quality + rng.normal(0, 0.3, products),
                "shop": [f"s{k}" for k in sold_by],
            },
            "shop": {
                "id": [f"s{k}" for k in range(shops)],
                "online": rng.choice([True, False], shops).tolist(),
            },
        },
        keys={"customer": "id", "product": "id", "shop": "id"},
        edges={
            ("customer", "buys", "product"): (
                {
                    "who": [f"c{k}" for k in buyer],
                    "what": [f"p{k}" for k in product],
                },
                "who",
                "what",
            ),
            ("product", "sold_by", "shop"): "shop",
        },
    )
    return data, (mean > 0).astype(int)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--customers", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.customers, options.epochs = 400, 25
    rng = np.random.default_rng(options.seed)
    data, label = tables(rng, options.customers)
    train = rng.random(options.customers) < 0.5
    data["node"] = {
        "train_mask": {"customer": train},
        "test_mask": {"customer": ~train},
    }

    encoder = NodeSetEncoder(reverse=True).adapt([data])
    print("edge sets:", *encoder(data).info["edge_sets"], sep="\n  ")
    keras.utils.set_random_seed(options.seed)
    backbone = models.RGCNBackbone(
        encoder.inputs(), 32, num_layers=2, num_edge_types=encoder.num_edge_types
    )
    task = models.NodeClassifier(
        backbone, 2, GraphPreprocessor([encoder]), node_set="customer"
    )
    task.compile(keras.optimizers.Adam(0.01), metrics=["accuracy"])
    task.fit([data], [label], mask="train_mask", epochs=options.epochs, verbose=0)
    scores = task.evaluate([data], [label], mask="test_mask", verbose=0)
    larger = max(label[~train].mean(), 1 - label[~train].mean())
    print(f"accuracy {scores[-1]:.3f}, of the larger class {larger:.3f}")

    others, label = tables(np.random.default_rng(options.seed + 1), options.customers)
    found = task.predict_labels([others])[0]
    print(f"accuracy on new tables {np.mean(found == label):.3f}")


if __name__ == "__main__":
    main()
