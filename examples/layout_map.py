"""Sharded weights: a `LayoutMap` of Keras over two groups of devices (JAX).

    python examples/layout_map.py --cpu-devices 8 --batch 2
    python examples/layout_map.py --cpu-devices 1

Each group of devices trains on separate supergraphs, and each device of a group has a
part of the columns of the backbone's kernels. `--cpu-devices` splits the CPU into
several devices, to run without accelerators; with the same `--batch` the printed losses
do not depend on their number. Other backends train on one device.
"""

import argparse
import contextlib
import os
import sys

if "--cpu-devices" in sys.argv:
    count = sys.argv[sys.argv.index("--cpu-devices") + 1]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"

import keras
import numpy as np

import keras_bandgnn as kb


def rings(count: int, seed: int) -> list[kb.Graph]:
    """Rings of 3 to 30 nodes, whose label is the share of nodes of kind 1."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.integers(3, 31))
        node, kind = np.arange(size), rng.integers(0, 2, size)
        graphs.append(
            kb.Graph(
                size,
                senders=node,
                receivers=np.roll(node, 1),
                node={"kind": kind},
                label=float(kind.mean()),
            )
        )
    return graphs


def distribution(groups: int):
    """Return a distribution that shards the kernels of the backbone, or None."""
    if keras.backend.backend() != "jax":
        print("a LayoutMap needs KERAS_BACKEND=jax: training on one device")
        return None
    devices = keras.distribution.list_devices()
    shape = groups, len(devices) // groups
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["ggnn_backbone.*/kernel"] = (None, "model")
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )


def main(arguments=None) -> dict:
    """Train and print; return the last metrics."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1, help="groups of devices")
    parser.add_argument("--cpu-devices", type=int, help="virtual")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args(arguments)
    if options.short:
        options.width, options.epochs = 16, 2
    graphs = rings(100 if options.short else 1000, seed=0)
    keras.utils.set_random_seed(0)
    group = distribution(options.batch)
    with group.scope() if group else contextlib.nullcontext():
        backbone = kb.models.GGNNBackbone(
            {"kind": 2}, options.width, num_steps=2, num_edge_types=1
        )
        task = kb.models.GraphRegressor(backbone)
        task.compile(keras.optimizers.Adam(1e-3))
        history = task.fit(graphs, epochs=options.epochs, verbose=0).history
    result = {name: values[-1] for name, values in history.items()}
    if group:
        arrays = [v.value for v in task.trainable_variables]
        first = sum(array.addressable_shards[0].data.nbytes for array in arrays)
        whole = sum(array.nbytes for array in arrays)
        print(
            f"{group.device_mesh.shape} devices: {first / 1e3:.0f} of "
            f"{whole / 1e3:.0f} kB of weights on each"
        )
    print(f"loss {result['loss']:.5f}, mean absolute error {result['mae']:.4f}")
    return result


if __name__ == "__main__":
    main()
