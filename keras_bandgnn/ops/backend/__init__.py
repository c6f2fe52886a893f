"""The functions of the backend in use, one file per backend.

`current` is the module of the backend that Keras runs on. Nothing else selects one.
Each module has the same names. Those that `ops` documents it documents for all
backends (`ops.batched`, `ops.sparse`, `ops.loops`, `ops.remat`, `ops.attention`,
`ops.densify`). The others:

`flat_sparse_matmul(forward, backward, x)`
    A sparse matrix times rows [M, H], giving [N, H]. `forward` is a `CSR` without the
    axis G, so row ids [E] (sorted), column ids [E], pointers [N + 1] and entries [E] or
    None; `backward` is its transpose, for the gradient, where `USES_TRANSPOSE`.
`flat_gather_rows(index, backward, x)`
    Rows `x[index]`; `backward` is the transposed selection.
`flat_grouped_matmul(rows, kinds, kernel)`
    Rows [groups, R, H] times `kernel[kinds]`, kinds [groups] and kernel [P, H, U],
    giving [groups, R, U].
`flat_gathered_grouped_matmul(x, index, backward, kinds, kernel)`
    The same of the rows `x[index]`, which need not be held all at once.
`value_and_gradient(function, x)`
    Values of a function of a tensor, and the gradient of their sum with respect to it,
    which has a gradient itself where gradients are recorded.
`compiled_timer_step(function, leaves, constants)`
    A function without arguments that calls `function(*leaves, *constants)`, which
    returns one tensor, with the gradients of the leaves, and waits for the results.
`watch_step(model, name, report)`
    "train_function", "test_function" or "predict_function" of a compiled model that
    does not run eagerly; it calls `report(batch)` with each batch that makes it
    compile.
`version()`, `device()`, `has_accelerator()`, `seed_global(seed)`
    Version of the backend, kind ("cpu", "gpu", "tpu") and name of the device, whether
    there is a GPU or TPU, and the seed of global generators.

A function that a backend does not have is None: then `ops` composes it of others.
"""

import importlib

import keras

if keras.backend.backend() not in ("jax", "tensorflow", "torch"):
    raise ImportError(
        "Expected KERAS_BACKEND to be 'jax', 'tensorflow' or 'torch'. "
        f"Received: {keras.backend.backend()!r}."
    )

current = importlib.import_module(
    f"keras_bandgnn.ops.backend.{keras.backend.backend()}"
)
