"""`active_group`: the devices of new tasks."""

import importlib

import keras

from keras_bandgnn.checks import refuse
from keras_bandgnn.distribution.replica_group import ReplicaGroup, scope_group


def active_group() -> ReplicaGroup:
    """Return the group of the current scope, which new tasks use.

    A distribution of Keras that is in force is such a scope, too: a `DataParallel`,
    and on JAX a `ModelParallel`, whose `LayoutMap` shards the weights.

    Raises:
        ValueError: For a distribution of Keras that tasks cannot use.
    """
    distribution = keras.distribution.distribution()
    group = scope_group() or distribution
    if group is None or isinstance(group, ReplicaGroup):
        return group or ReplicaGroup()
    if distribution.num_processes > 1 and distribution.auto_shard_dataset:
        refuse(
            "auto_shard_dataset",
            "False with several processes, as tasks shard their graphs over them",
            True,
            f"Write {type(distribution).__name__}(..., auto_shard_dataset=False), or "
            "use keras_bandgnn.distribution.data_parallel()",
        )
    backend = keras.backend.backend()
    module = importlib.import_module(
        f"keras_bandgnn.distribution.{backend}_data_parallel"
    )
    return module.group_of(distribution)
