"""The `inputs` of a `NodeEncoder`, by the features of graphs."""

from keras_bandgnn.arrays import TIME, id_input


def inputs_of(parts, excluded=()) -> dict[str, dict[str, int | list[int]]]:
    """Return the `inputs` of a `NodeEncoder` for the node features of graphs.

    Args:
        parts: The graphs, each part a `FlatGraphs`.
        excluded: Names of features to leave out.
    """
    inputs = {}
    if parts[0].sets:
        inputs["sets"] = {
            part: _inputs_of([p.sets[part] for p in parts]) for part in parts[0].sets
        }
        excluded = (*excluded, "set", "set_row")
    excluded = (*excluded, TIME)
    return inputs | _inputs_of([part.node for part in parts], excluded)


def _inputs_of(tables, excluded=()) -> dict[str, dict[str, int | list[int]]]:
    inputs = {}
    for name, values in tables[0].items():
        if name in excluded:
            continue
        if values.dtype.kind == "i" and values.ndim <= 2:
            inputs[name] = id_input([table[name] for table in tables])
        elif values.dtype.kind == "f" and values.ndim == 2:
            inputs[name] = {"features": values.shape[1]}
    return inputs
