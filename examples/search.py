"""Searches hyperparameters, batching and plans, and saves the best model.

    python examples/search.py                       # by time to accuracy, with plans
    python examples/search.py --space paper         # Appendix E of Balog et al. 2019
    python examples/search.py --short

Run it again to resume. The graphs are synthetic; `bandgnn tune` does the same for
stores, data sets and the demo.
"""

import argparse

import numpy as np

import keras_bandgnn as kb


def graph(rng: np.random.Generator, size: int) -> kb.Graph:
    """A chain with two candidates, one of which has the marked node near it."""
    kind = rng.integers(0, 4, size)
    first, second = 1, size - 2
    label = int(rng.integers(2))
    kind[(first, second)[label] + 1], kind[(second, first)[label] + 1] = 5, 4
    steps = np.arange(size - 1)
    return kb.Graph(
        size,
        senders=np.concatenate([steps, steps + 1]),
        receivers=np.concatenate([steps + 1, steps]),
        edge_type=np.repeat([0, 1], size - 1),
        node={"type": kind},
        candidates=[first, second],
        label=label,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", default="search")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--space", default="adam")
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--short", action="store_true", help="two short trials")
    options = parser.parse_args()
    if options.short:
        options.trials, options.seconds = 2, 0.5

    rng = np.random.default_rng(0)
    sizes = rng.integers(8, 16 if options.short else 60, 40 if options.short else 400)
    graphs = [graph(rng, int(size)) for size in sizes]
    cut = len(graphs) * 4 // 5
    train, valid = graphs[:cut], graphs[cut:]
    hypermodel = kb.tuning.GGNNHyperModel(
        train,
        valid,
        space=options.space,
        hidden_dim=8 if options.short else 32,
        num_steps=2,
        objective="time-to-accuracy",
        target=options.target,
        seconds=options.seconds,
        epochs=2 if options.short else None,
        system=True,
    )
    tuner = kb.tuning.make_tuner(hypermodel, options.out, max_trials=options.trials)
    tuner.search(train, validation_data=valid, verbose=0)
    for row in kb.tuning.trial_table(tuner):
        metrics = row["reason"] or f"{row['score']:.3g} s"
        print(f"trial {row['trial']}: {row['status']}, {metrics}, {row['values']}")
    task = tuner.get_best_models()[0]
    hypermodel.prepare(task, train)
    task.save_to_preset(f"{options.out}-best")
    print("best task:", task.evaluate(valid, verbose=0, return_dict=True))


if __name__ == "__main__":
    main()
