"""One script for one device or many: regression on synthetic graphs.

    python examples/data_parallel.py                                  # one device
    torchrun --nproc-per-node 2 examples/data_parallel.py             # torch
    python examples/data_parallel.py --cpu-devices 2          # JAX and TensorFlow

A step on two devices computes the same as one device with `--supergraphs 2`, so the
printed errors agree. With `--progress FOLDER`, interrupted training resumes.

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import time

import keras
import numpy as np

import keras_bandgnn as kb


def made_graphs(count: int, seed: int) -> list[kb.Graph]:
    """Trees of 2 to 30 nodes, whose label is the share of leaves of kind 1."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.integers(2, 31))
        parent = (rng.random(size - 1) * np.arange(1, size)).astype(int)
        child = np.arange(1, size)
        kind = rng.integers(0, 2, size)
        leaf = ~np.isin(np.arange(size), parent)
        graphs.append(
            kb.Graph(
                size,
                senders=np.concatenate([parent, child]),
                receivers=np.concatenate([child, parent]),
                node={"kind": kind},
                label=float((leaf & (kind == 1)).mean()),
            )
        )
    return graphs


def virtual_devices(count: int) -> None:
    """Make several CPU devices, to try things without GPUs."""
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_num_cpu_devices", count)
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, parts)


def main(arguments=None) -> dict:
    """Trains, evaluates and prints; returns the metrics."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--supergraphs", type=int, help="per step, over all devices")
    parser.add_argument("--cpu-devices", type=int, help="virtual, not on torch")
    parser.add_argument("--progress", help="folder to resume from")
    parser.add_argument("--short", action="store_true", help="2 epochs, fewer graphs")
    options = parser.parse_args(arguments)
    if options.cpu_devices:
        virtual_devices(options.cpu_devices)
    # Seeded, so that every process creates the same graphs.
    train = made_graphs(200 if options.short else 2000, seed=0)
    test = made_graphs(50 if options.short else 500, seed=1)
    callbacks = []
    if options.progress:
        callbacks = [kb.training.SaveProgress(options.progress, save_freq=20)]

    distribution = kb.distribution.data_parallel(supergraphs=options.supergraphs)
    keras.utils.set_random_seed(0)
    start = time.perf_counter()
    with distribution.scope():
        task = kb.models.GraphRegressor(
            kb.models.GCNBackbone({"kind": 2}, hidden_dim=32),
            preprocessor=kb.preprocessing.GraphPreprocessor(
                batcher=kb.preprocessing.DynamicBatcher(32)
            ),
        )
        task.compile(keras.optimizers.Adam(3e-3))
        epochs = 2 if options.short else options.epochs
        task.fit(train, epochs=epochs, callbacks=callbacks, verbose=0)
        metrics = task.evaluate(test, verbose=0, return_dict=True)
    if distribution.is_main:
        size = distribution.size
        print(
            f"{keras.backend.backend()}, {size} device{'s' * (size > 1)}: "
            f"mean absolute error {metrics['mae']:.5f} after "
            f"{time.perf_counter() - start:.0f} s"
        )
    return metrics


if __name__ == "__main__":
    main()
