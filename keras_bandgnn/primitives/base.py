"""`Primitive`: the protocol of implementations of sums over typed edges."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.host_keras import keras, ops
from keras_bandgnn.ops.batched import supergraph_ids
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.registration import PACKAGE, constructor_arguments

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware

# Steps that share one call of `prepare` per batch: T of Balog et al. 2019. The cost of
# a step includes 1 / STEPS of it.
STEPS = 8


@dataclasses.dataclass(frozen=True)
class Load:
    """The work of a step for a primitive.

    Args:
        sizes: Resource -> capacity of a supergraph; "node" is N.
        num_types: P.
        width: H, channels of the states.
        units: U, channels of a message.
    """

    sizes: dict[str, float]
    num_types: int
    width: int
    units: int


class PlanPart:
    """The arrays under one key of `x["plan"]`, and their use on the device.

    `Primitive` documents the protocol. Parts that are not primitives cannot be passed
    to a `Plan`: the tiles of an `AttentionPlan`, which only attention uses, and the
    blocks that a step of a schedule updates.
    """

    name: str | None = None
    block_size: int = 1
    sequence: str | None = None
    follows_edges: bool = True
    transforms: bool = False
    takes_maximum: bool = False

    def get_config(self) -> dict[str, int | str]:
        """Return the constructor arguments in order, integers and words."""
        return constructor_arguments(self)

    @classmethod
    def from_config(cls, config: Mapping) -> PlanPart:
        """Build the part from `get_config()`."""
        return cls(**config)

    def arguments(self) -> tuple[int | str, ...]:
        """Return the arguments in the key; any further ones have their defaults."""
        return tuple(self.get_config().values())

    @classmethod
    def from_arguments(cls, *arguments: int | str) -> PlanPart:
        """Build the part from the arguments in a key."""
        return cls(*arguments)

    @classmethod
    def library_name(cls) -> str | None:
        """Return `name` for a class of the library, None for a custom class."""
        # A subclass does not share the keys of its base.
        in_library = cls.__module__.startswith(f"{PACKAGE}.")
        return vars(cls).get("name") if in_library else None

    @classmethod
    def prefix(cls) -> str:
        """Return the prefix of its keys: `name`, or the name in Keras' registry."""
        return cls.library_name() or keras.saving.get_registered_name(cls)

    def key(self) -> str:
        """Return the key of its arrays in `x["plan"]`, such as `"banded:128"`."""
        return ":".join([self.prefix(), *map(str, self.arguments())])

    @classmethod
    def from_key(cls, key: str) -> PlanPart:
        """Build the part of this class that `key` names."""
        part = primitive_of(key)
        if not isinstance(part, cls):
            raise ValueError(
                f"Expected a key of {cls.__name__}. Received: {key!r}, which names "
                f"{part!r}."
            )
        return part

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Prepare the arrays once per batch on the device, before the steps.

        Args:
            arrays: Result of `pack`, with axis 0 = G.
            num_nodes: N.
            num_types: P.
            dtype: Compute dtype.
        """
        del num_nodes, num_types, dtype
        return arrays

    def typed_sum(self, prepared: dict, x: Tensor, num_types: int) -> Tensor:
        """Sum the senders' states per receiver and type.

        Args:
            prepared: Result of `prepare`.
            x: [G, M, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        raise NotImplementedError

    def apply(self, prepared: dict, x: Tensor, kernel: Tensor) -> Tensor:
        """Return incoming messages, without biases, of every node over covered edges.

        Args:
            prepared: Result of `prepare`.
            x: [G, M, H].
            kernel: [P, H, U].

        Returns:
            [G, N, U].
        """
        raise NotImplementedError

    def maximum(
        self, prepared: dict, x: Tensor, kernel: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Return the maximum message per receiver and unit, [G, N, U]; 0 if none."""
        raise NotImplementedError

    def degree(self, prepared: dict, num_nodes: int, num_types: int) -> Tensor:
        """Sum the weights of each receiver's edges per type, float32 [G, N, P]."""
        values = prepared.get("weight", prepared["mask"])
        return per_receiver(prepared, values, num_nodes, num_types)

    def count(self, prepared: dict, num_nodes: int, num_types: int) -> Tensor:
        """Count each receiver's edges, float32 [G, N]."""
        counts = per_receiver(prepared, prepared["mask"], num_nodes, num_types)
        return ops.sum(counts, axis=-1)

    def type_count(self, arrays: dict, num_nodes: int, num_types: int) -> Tensor:
        """Count each receiver's edges per type, float32 [G, N, P].

        Args:
            arrays: Result of `pack`, with axis 0 = G.
            num_nodes: N.
            num_types: P.
        """
        return per_receiver(arrays, arrays["mask"], num_nodes, num_types)

    def weigh(self, arrays: dict, factor: Tensor) -> dict:
        """Multiply the weights of edges by a factor of their receiver and type.

        Args:
            arrays: Result of `pack`, with axis 0 = G.
            factor: float32 [G, N, P].

        Returns:
            The argument of `prepare`.
        """
        weight = ops.cast(arrays.get("weight", arrays["mask"]), "float32")
        factor = of_pairs(factor, arrays["receiver"], arrays["type"])
        return {**arrays, "weight": weight * factor}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanPart) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key()!r})"


class Primitive(PlanPart):
    """An implementation of the sum over a subset of the edges.

    All primitives compute, over the edges that they cover,

        out[n] = sum over edges (j -> n, type p) of w * (x[j] @ kernel[p] + bias[p]).

    Subclasses override these defaults:

    | attribute          | default | meaning                                           |
    | ------------------ | ------- | ------------------------------------------------- |
    | `name`             | None    | prefix of the keys of the library's classes;      |
    |                    |         | custom classes leave it None and use their        |
    |                    |         | registered name                                   |
    | `covers_all`       | False   | covers every edge, so it can be the rest of a     |
    |                    |         | plan                                              |
    | `transforms`       | False   | implements `apply`, including the product with    |
    |                    |         | the kernel; otherwise `typed_sum`, whose results  |
    |                    |         | are added up and multiplied by the kernel once    |
    | `takes_maximum`    | False   | implements `maximum`                              |
    | `bipartite`        | False   | senders and receivers may be different node sets  |
    | `depends_on_place` | False   | covers different edges at different positions of  |
    |                    |         | a graph in a supergraph                           |
    | `depends_on_edges` | False   | whether it covers an edge depends on other edges  |
    | `block_size`       | 1       | nodes per block; shards of a supergraph consist   |
    |                    |         | of whole blocks                                   |
    | `sequence`         | None    | layout where devices share a supergraph:          |
    |                    |         | `"halo"`, sender ids are relative to the device's |
    |                    |         | nodes with a halo of `block_size` rows on either  |
    |                    |         | side; `"exchange"`, sender ids index rows that    |
    |                    |         | `send` lists; `"whole"`, replicated; None is      |
    |                    |         | rejected there                                    |
    | `follows_edges`    | True    | capacities of its resources scale with that of    |
    |                    |         | the edges; otherwise each is rounded separately   |

    | method           | where  | purpose                                              |
    | ---------------- | ------ | ---------------------------------------------------- |
    | `get_config`     | both   | constructor arguments, integers and words            |
    | `arguments`      | both   | the arguments in the key; by default all             |
    | `from_arguments` | both   | primitive from those; by default `cls(*arguments)`   |
    | `cover`          | host   | mask of the edges it covers; by default all          |
    | `always_covers`  | host   | mask of the edges it covers at any position          |
    | `sizes`          | host   | resources of each graph; by default a row per edge   |
    | `pack`           | host   | arrays of static shape                               |
    | `prepare`        | device | computation shared by all steps                      |
    | `typed_sum`      | device | sums per receiver and type, or                       |
    | `apply`          | device | messages (`transforms`)                              |
    | `maximum`        | device | maximum message (`takes_maximum`)                    |
    | `degree`         | device | edges per receiver and type; by default from         |
    |                  |        | `receiver`, `type` and `mask` of `prepare`'s result  |
    | `count`          | device | edges per receiver, likewise                         |
    | `type_count`     | device | edges per receiver and type; by default from         |
    |                  |        | `receiver`, `type` and `mask` of `pack`'s result     |
    | `weigh`          | device | arrays with other weights; by default from the same  |
    | `cost`           | host   | seconds per step, for `plan="auto"`                  |
    | `candidates`     | host   | instances that `plan="auto"` tries; none by default  |

    The name of a resource is the key, optionally with a suffix: `"dense:32.edge"`.
    """

    covers_all: bool = False
    bipartite: bool = False
    depends_on_place: bool = False
    depends_on_edges: bool = False

    def cover(self, edges: Edges) -> np.ndarray:
        """Return a mask of the edges it covers, bool [E]."""
        return np.ones(len(edges), bool)

    def always_covers(self, edges: Edges) -> np.ndarray:
        """Return a mask of the edges it covers at any position, bool [E]."""
        return self.cover(edges)

    def sizes(
        self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int
    ) -> dict[str, np.ndarray]:
        """Return bounds of each graph's resources, name -> int64 [num_graphs]."""
        return {self.key(): np.bincount(graph_of_edge, minlength=num_graphs)}

    def pack(self, edges: Edges, budget: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Pack the edges into arrays of static shape."""
        raise NotImplementedError

    def cost(self, load: Load, hardware: Hardware) -> float:
        """Estimate the seconds of a step, forward and backward, on a machine.

        Args:
            load: Resources of a supergraph and widths of its rows.
            hardware: The machine's constants, a `Hardware`.
        """
        raise NotImplementedError

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> Iterable[Primitive]:
        """Return instances that `plan="auto"` compares, with `Segment` as the rest.

        Args:
            num_types: P.
            block_size: S for which the graphs were ordered.
        """
        del num_types, block_size
        return ()


def per_receiver(arrays: dict, values, num_nodes: int, num_types: int):
    """Sum values per receiver and type, float32 [G, N, P].

    Masks are summed as integers, since sums of ones in float32 saturate at 2^24.
    """
    receiver = arrays["receiver"]
    indices = (supergraph_ids(receiver), receiver, arrays["type"])
    whole = keras.backend.standardize_dtype(values.dtype) in ("bool", "int32")
    total = graph_ops.scatter_add(
        tuple(ops.reshape(index, (-1,)) for index in indices),
        ops.reshape(ops.cast(values, "int32" if whole else "float32"), (-1,)),
        (ops.shape(receiver)[0], num_nodes, num_types),
    )
    return ops.cast(total, "float32")


def of_pairs(values, receiver, kind):
    """Return the values of pairs of receiver and type, such as those of edges.

    Args:
        values: float32 [G, N, P].
        receiver: int32 [G, E] in [0, N]; N is padding.
        kind: int32 [G, E], types.

    Returns:
        float32 [G, E]; 0 for padding.
    """
    _, num_nodes, num_types = ops.shape(values)
    values = ops.pad(values, ((0, 0), (0, 1), (0, 0)))
    values = ops.reshape(values, (-1, (num_nodes + 1) * num_types))
    return graph_ops.batched_gather(values, receiver * num_types + kind)


def times(weight, factor):
    """Return weights of edges times a factor, float32 [G, E]; weights of None are 1."""
    return factor if weight is None else ops.cast(weight, "float32") * factor


# Lookup of classes by plan keys and resource names. Only this code composes and parses
# them; use these functions and the attributes of the part elsewhere.


def _classes(base: type) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _classes(cls)


def primitive_classes() -> dict[str, type[Primitive]]:
    """Return all primitive classes, by the prefix of their keys."""
    return {
        cls.prefix(): cls
        for cls in _classes(Primitive)
        if cls.pack is not Primitive.pack
    }


def _build(classes: list[type], texts: list[str]) -> PlanPart | None:
    """Build a part of the last of some classes from the arguments in a key, or None."""
    values = [int(text) if re.fullmatch(r"-?\d+", text) else text for text in texts]
    try:
        # The last of classes of one name, as when a notebook cell is run again.
        part = classes[-1].from_arguments(*values)
    except (IndexError, TypeError, ValueError):
        return None
    # Arguments missing from the key must be ones that the class does not write.
    return part if len(part.arguments()) <= len(values) else None


@functools.lru_cache(1024)
def _library_part(key: str) -> PlanPart | None:
    prefix, *texts = key.split(":")
    return _build([c for c in _classes(PlanPart) if c.library_name() == prefix], texts)


def find_part(key: str) -> PlanPart | None:
    """Return the part that a key names, or None."""
    part = _library_part(key)
    if part is not None:
        return part
    prefix, *texts = key.split(":")
    cls = keras.saving.get_registered_object(prefix)
    if isinstance(cls, type) and issubclass(cls, PlanPart):
        return _build([cls], texts)
    return _build([c for c in _classes(PlanPart) if c.prefix() == prefix], texts)


def primitive_of(key: str, name: str = "key") -> PlanPart:
    """Return the primitive that a key such as `"banded:128"` names.

    Custom classes are looked up by their registered name in Keras; their modules are
    not imported.

    Args:
        key: The key.
        name: Name of the key in errors.

    Raises:
        ValueError: If the key is unknown.
    """
    part = find_part(key)
    if part is None:
        kinds = sorted(primitive_classes())
        near = difflib.get_close_matches(str(key), kinds, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        kind = str(key).partition(":")[0]
        if kind in kinds:
            hint = f" Give the size that {kind!r} needs, such as '{kind}:128'."
        raise ValueError(
            f"Expected `{name}` to be the key of a primitive, 'banded:128' or one of "
            f"{kinds}. Received: {key!r}.{hint} Import the module of a custom class "
            "first."
        )
    return part


def part_of(plan: Mapping, kind: type) -> tuple[PlanPart, Mapping] | None:
    """Return the part of `x["plan"]` of a class and its arrays, or None."""
    for key, arrays in plan.items():
        part = find_part(key)
        if isinstance(part, kind):
            return part, arrays
    return None


def owner_of(resource: str) -> PlanPart | None:
    """Return the part that owns a resource such as `"dense:32.edge@3"`, or None."""
    name, _, _ = resource.partition("@")
    return find_part(name) or find_part(name.rpartition(".")[0])


def step_resource(name: str, step: int) -> str:
    """Return the name of a resource in a step of a schedule, such as `"node@3"`."""
    return f"{name}@{step}"


def is_step_resource(name: str) -> bool:
    """Return whether a name is a resource of a schedule's step."""
    return "@" in name


def of_step(table: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return a step's resources of a table, with their names outside schedules."""
    suffix = step_resource("", step)
    return {
        name.removesuffix(suffix): value
        for name, value in table.items()
        if name.endswith(suffix)
    }


def step_key(step: int) -> str:
    """Return the key of a step's arrays in `x["plan"]`, such as `"step:3"`."""
    return f"step:{step}"


def is_resource(name: str) -> bool:
    """Return whether a name is a resource of a primitive or of a schedule's step."""
    return is_step_resource(name) or owner_of(name) is not None
