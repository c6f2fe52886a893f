"""Searches hyperparameters of a graph classifier with Optuna.

    pip install optuna
    python examples/optuna_search.py
    python examples/optuna_search.py --short

Poor trials are pruned after a few epochs. Run it again to resume: the trials are stored
in a database. The graphs are synthetic.
"""

import argparse

import keras
import numpy as np

import keras_bandgnn as kb


def graph(rng: np.random.Generator) -> kb.Graph:
    """A ring; its label is whether two neighbours are of the same kind."""
    size = int(rng.integers(5, 12))
    label, ring = int(rng.integers(2)), np.arange(size)
    kind = ring % 2
    kind[-1] = 2  # so that rings of odd length have no such neighbours
    if label:
        kind[1] = kind[0]
    ahead = (ring + 1) % size
    return kb.Graph(
        size,
        np.concatenate([ring, ahead]),
        np.concatenate([ahead, ring]),
        node={"kind": kind},
        label=label,
    )


class Prune(keras.callbacks.Callback):
    """Reports each epoch to Optuna, and ends a poor trial."""

    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        import optuna

        self.trial.report((logs or {})["val_accuracy"], epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def make_task(values: dict) -> kb.models.GraphClassifier:
    """Build and compile a task from the values of a trial."""
    keras.utils.set_random_seed(0)
    backbone = kb.models.GCNBackbone(
        {"kind": 3}, values["hidden_dim"], num_layers=values["num_layers"]
    )
    task = kb.models.GraphClassifier(backbone, 2)
    task.compile(keras.optimizers.Adam(values["learning_rate"]))
    return task


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--storage", default="sqlite:///optuna.db")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--short", action="store_true", help="two short trials")
    options = parser.parse_args()
    if options.short:
        options.trials, options.epochs = 2, 2
    try:
        import optuna
    except ImportError:
        parser.error("Optuna is not installed. Run: pip install optuna")

    rng = np.random.default_rng(0)
    graphs = [graph(rng) for _ in range(60 if options.short else 600)]
    cut = len(graphs) * 4 // 5
    train, valid = graphs[:cut], graphs[cut:]

    def objective(trial) -> float:
        values = {
            "hidden_dim": trial.suggest_categorical("hidden_dim", [8, 16, 32]),
            "num_layers": trial.suggest_int("num_layers", 1, 4),
            "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        }
        history = make_task(values).fit(
            train,
            validation_data=valid,
            epochs=options.epochs,
            callbacks=[Prune(trial)],
            verbose=0,
        )
        return max(history.history["val_accuracy"])

    study = optuna.create_study(
        study_name="rings",
        storage=options.storage,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        load_if_exists=True,
    )
    study.optimize(objective, n_trials=options.trials - len(study.trials))
    print(f"best: {study.best_value:.3f} with {study.best_params}")
    task = make_task(study.best_params)
    task.fit(train, validation_data=valid, epochs=options.epochs, verbose=0)
    task.save_to_preset("optuna-best")


if __name__ == "__main__":
    main()
