"""`Plan`: which primitive carries out the sum over which edges."""

from collections.abc import Mapping

import numpy as np
from keras import ops

from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import Edges, Primitive
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.segment import Segment

_PRIMITIVES = {"banded": Banded, "grouped": Grouped, "segment": Segment}


def _primitive(key: str) -> Primitive:
    try:
        return _PRIMITIVES[key.split(":")[0]].from_key(key)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"Expected the key of a primitive, such as 'banded:128' or one of "
            f"{sorted(_PRIMITIVES)}. Received: {key!r}."
        ) from error


def is_resource(name: str) -> bool:
    """Whether a resource of this name belongs to some primitive."""
    return name.split(":")[0].split(".")[0] in _PRIMITIVES


class Plan:
    """An ordered list of primitives; each takes the edges that those before it left.

    Args:
        *primitives: Instances such as `Banded(128)`, in order.
        rest: What carries the edges that no primitive covers: a primitive
            (`Segment()` by default, so nothing is lost), or `"drop"`, the lossy mode
            of Balog et al. 2019.

    Example:
    >>> Plan(Banded(128))
    Plan('banded:128', rest='segment')
    """

    def __init__(self, *primitives: Primitive, rest: Primitive | str = "segment"):
        for primitive in primitives:
            if not isinstance(primitive, Primitive):
                raise ValueError(
                    f"Expected primitives such as Banded(128). Received: {primitive!r}."
                )
        if isinstance(rest, str):
            rest = None if rest == "drop" else _primitive(rest)
        elif not isinstance(rest, Primitive):
            raise ValueError(
                "Expected `rest` to be 'drop' or a primitive such as Segment(). "
                f"Received: rest={rest!r}."
            )
        if rest is not None and not rest.covers_all:
            raise ValueError(
                "Expected `rest` to cover every edge, as Segment() and Grouped() do. "
                f"Received: rest={rest!r}."
            )
        self.primitives = tuple(primitives)
        if rest is not None and rest not in primitives:
            self.primitives += (rest,)
        self.rest = rest
        if len(set(self.keys)) < len(self.keys):
            raise ValueError(f"Expected each primitive once. Received: {self.keys}.")
        if not self.primitives:
            raise ValueError(
                "Expected at least one primitive when rest='drop'. Received: none."
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the primitives, in order."""
        return tuple(p.key() for p in self.primitives)

    def get_config(self) -> dict:
        """Plain description; `Plan.from_config` reads it."""
        return {"primitives": list(self.keys), "drop_rest": self.rest is None}

    @classmethod
    def from_config(cls, config: Mapping) -> "Plan":
        """Builds a plan from `get_config()`."""
        primitives = [_primitive(key) for key in config["primitives"]]
        if config["drop_rest"]:
            return cls(*primitives, rest="drop")
        return cls(*primitives[:-1], rest=primitives[-1])

    def sizes(self, edges: Edges, graph_of_edge, num_graphs: int) -> dict:
        """Resources that each graph needs at most, wherever it lies.

        Args:
            edges: The edges of all graphs, laid end to end with node offsets.
            graph_of_edge: int [E].
            num_graphs: Number of graphs.

        Returns:
            Name -> int64 [num_graphs].
        """
        sizes = {}
        for primitive in self.primitives:
            sizes.update(primitive.sizes(edges, graph_of_edge, num_graphs))
            left = ~primitive.always_covers(edges)
            edges, graph_of_edge = edges.keep(left), graph_of_edge[left]
        return sizes

    def pack(self, edges: Edges, budget: Mapping[str, int]) -> dict[str, dict]:
        """Assigns every edge to one primitive and lays the arrays out."""
        arrays = {}
        for primitive in self.primitives:
            if primitive.covers_all:
                arrays[primitive.key()] = primitive.pack(edges, budget)
                edges = edges.keep(slice(0, 0))
                continue
            covered = primitive.cover(edges)
            arrays[primitive.key()] = primitive.pack(edges.keep(covered), budget)
            edges = edges.keep(~covered)
        return arrays

    def dropped(self, edges: Edges) -> np.ndarray:
        """Which edges the plan leaves out, bool [E]."""
        left = np.ones(len(edges), bool)
        for primitive in self.primitives:
            left &= ~primitive.cover(edges)
        return left

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((self.keys, self.rest is None))

    def __repr__(self) -> str:
        parts = [repr(p.key()) for p in self.primitives if p != self.rest]
        rest = self.rest.key() if self.rest else "drop"
        return f"Plan({', '.join([*parts, f'rest={rest!r}'])})"


def prepare(plan: Mapping[str, Mapping], num_nodes: int, num_types: int, dtype: str):
    """Device work of a plan that is done once per batch.

    Args:
        plan: `x["plan"]`, key of a primitive -> its arrays.
        num_nodes: N.
        num_types: P.
        dtype: Compute dtype.

    Returns:
        Key of a primitive -> what its sums need; pass it to `propagate`.
    """
    return {
        key: _primitive(key).prepare(arrays, num_nodes, num_types, dtype)
        for key, arrays in plan.items()
    }


def is_prepared(plan: Mapping[str, Mapping]) -> bool:
    """Whether `plan` is what `prepare` returned, rather than `x["plan"]`."""
    return any("degree" in arrays for arrays in plan.values())


def propagate(prepared: Mapping[str, Mapping], x, kernel, bias=None):
    """Incoming messages of every node under a plan.

    out[n] = sum over edges (j -> n, type p) of (x[j] @ kernel[p] + bias[p]).

    Args:
        prepared: What `prepare` returned.
        x: [G, N, H], states of the nodes.
        kernel: [P, H, U].
        bias: [P, U] or None; counts once per message.

    Returns:
        [G, N, U].
    """
    num_types, width, units = kernel.shape
    sums, degree, total = None, None, None
    for key, arrays in prepared.items():
        primitive = _primitive(key)
        if hasattr(primitive, "messages"):
            part = primitive.messages(arrays, x, kernel, bias)
            total = part if total is None else total + part
            continue
        part = primitive.typed_sum(arrays, x, num_types)
        sums = part if sums is None else sums + part
        degree = arrays["degree"] if degree is None else degree + arrays["degree"]
    if sums is not None:
        part = ops.matmul(sums, ops.reshape(kernel, (num_types * width, units)))
        if bias is not None:
            share = ops.matmul(degree, ops.cast(bias, "float32"))
            part = part + ops.cast(share, part.dtype)
        total = part if total is None else total + part
    return total
