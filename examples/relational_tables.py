"""A relational database: five tables of 100,000 rows, and which customers leave.

    python examples/relational_tables.py
    python examples/relational_tables.py --short

Customers buy products of shops and open tickets. A customer tends to leave after
fragile products from shops that deliver late: a fact of each purchase, two joins away,
which means of joined columns blur. The script trains on the tables as they are, saves a
preset, and loads it to predict for new tables. With scikit-learn installed it also
trains gradient boosting on joined columns. Choose the backend with KERAS_BACKEND=jax,
torch or tensorflow.
"""

import argparse
import tempfile
import time

import keras
import numpy as np
import pandas as pd

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import GraphPreprocessor, NodeSetEncoder

BUYS = ("customer", "buys", "product")


def database(rng: np.random.Generator, rows: int) -> dict[str, pd.DataFrame]:
    """Five tables, whose keys are strings."""
    customers, products, shops = rows // 5, rows // 20, rows // 200
    purchases = 3 * rows // 5
    tickets = rows - customers - products - shops - purchases
    name = {
        key: np.array([f"{key[0]}{k:06}" for k in range(count)])
        for key, count in {
            "customer": customers,
            "product": products,
            "shop": shops,
        }.items()
    }
    return {
        "customer": pd.DataFrame(
            {
                "id": name["customer"],
                "town": rng.choice(["Bonn", "Kyoto", "Lagos", "Lima"], customers),
                "age": rng.integers(18, 90, customers).astype(float),
            }
        ),
        "product": pd.DataFrame(
            {
                "id": name["product"],
                "price": rng.lognormal(size=products),
                "fragile": rng.normal(size=products),
                "shop": rng.choice(name["shop"], products),
            }
        ),
        "shop": pd.DataFrame(
            {
                "id": name["shop"],
                "country": rng.choice(["DE", "JP", "NG"], shops),
                "late": rng.normal(size=shops),
            }
        ),
        "purchase": pd.DataFrame(
            {
                "customer": rng.choice(name["customer"], purchases),
                "product": rng.choice(name["product"], purchases),
                "amount": rng.lognormal(size=purchases),
            }
        ),
        "ticket": pd.DataFrame(
            {
                "customer": rng.choice(name["customer"], tickets),
                "topic": rng.choice(["invoice", "delivery", "other"], tickets),
                "minutes": rng.exponential(10.0, tickets),
            }
        ),
    }


def leaves(rng: np.random.Generator, tables: dict) -> np.ndarray:
    """Whether each customer leaves."""
    bought = joined(tables)
    bad = (bought["fragile"] > 0) & (bought["late"] > 0)
    score = bad.groupby(bought["customer"]).mean()
    anger = tables["ticket"].query("topic == 'delivery'").groupby("customer")["minutes"]
    ids = tables["customer"]["id"]
    logit = 8.0 * score.reindex(ids).fillna(0.25) - 2.0
    logit = logit + 0.08 * anger.sum().reindex(ids).fillna(0.0)
    return (rng.random(len(ids)) < 1 / (1 + np.exp(-3.0 * logit.to_numpy()))).astype(
        int
    )


def joined(tables: dict) -> pd.DataFrame:
    """Each purchase with the columns of its product and its shop."""
    bought = tables["purchase"].merge(
        tables["product"], left_on="product", right_on="id"
    )
    return bought.merge(
        tables["shop"], left_on="shop", right_on="id", suffixes=("", "_of_shop")
    )


def graph_item(tables: dict) -> dict:
    """The tables as node sets and edge sets."""
    sets = ("customer", "product", "shop", "ticket")
    return kb.data.link_tables(
        {name: tables[name] for name in sets},
        keys={"customer": "id", "product": "id", "shop": "id"},
        edges={
            BUYS: (tables["purchase"], "customer", "product"),
            ("product", "sold_by", "shop"): "shop",
            ("ticket", "of", "customer"): "customer",
        },
    )


def columns_of_customers(tables: dict) -> pd.DataFrame:
    """One row per customer: means, maxima and counts of the joined tables."""
    ids = tables["customer"]["id"]
    numbers = ["price", "fragile", "late", "amount"]
    bought = joined(tables).groupby("customer")[numbers].agg(["mean", "max", "count"])
    bought.columns = ["_".join(name) for name in bought.columns]
    topics = pd.get_dummies(tables["ticket"], columns=["topic"], dtype=float)
    topics = topics.groupby("customer").agg(["sum", "mean"])
    topics.columns = ["_".join(name) for name in topics.columns]
    plain = pd.get_dummies(tables["customer"], columns=["town"], dtype=float)
    return plain.set_index("id").join(bought).join(topics).reindex(ids)


def boosting(tables, others, label, train) -> np.ndarray | None:
    """Predictions of gradient boosting for other tables; None without scikit-learn."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        return None
    model = HistGradientBoostingClassifier(random_state=0)
    model.fit(columns_of_customers(tables)[train], label[train])
    return model.predict_proba(columns_of_customers(others))[:, 1]


def area(label: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve."""
    return kb.training.link_auc(score[label == 1], score[label == 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.rows, options.epochs = 4000, 10
    rng = np.random.default_rng(options.seed)
    tables, others = (database(rng, options.rows) for _ in range(2))
    label, other_label = leaves(rng, tables), leaves(rng, others)
    train = rng.random(len(label)) < 0.8

    start = time.perf_counter()
    item = graph_item(tables)
    item["node"] = {
        "train_mask": {"customer": train},
        "valid_mask": {"customer": ~train},
    }
    encoder = NodeSetEncoder(reverse=True).adapt([item])
    keras.utils.set_random_seed(options.seed)
    backbone = models.RGCNBackbone(
        encoder.inputs(), 32, num_layers=2, num_edge_types=encoder.num_edge_types
    )
    task = models.NodeClassifier(
        backbone, 2, GraphPreprocessor([encoder]), node_set="customer"
    )
    task.compile(keras.optimizers.Adam(0.01))
    task.fit(
        [item],
        [label],
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=options.epochs,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)
        ],
        verbose=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(folder)
        print(f"from tables to a preset: {time.perf_counter() - start:.0f} s")
        loaded = models.NodeClassifier.from_preset(folder)
        start = time.perf_counter()
        (score,) = loaded.predict_proba([graph_item(others)])
        print(f"predictions for new tables: {time.perf_counter() - start:.1f} s")
    print(f"area under the ROC curve, new tables: {area(other_label, score[:, 1]):.3f}")
    other = boosting(tables, others, label, train)
    if other is not None:
        print(f"of boosting on joined columns: {area(other_label, other):.3f}")


if __name__ == "__main__":
    main()
