"""`Primitive`: one way to carry out a sum over typed edges, and its protocol."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.registration import PACKAGE

# Steps that share what `prepare` makes once per batch: T of Balog et al. 2019. The
# cost of a step is charged with one part in so many of it.
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

    `Primitive` documents the protocol. Other parts cannot be used in plans: the tiles
    of an `AttentionPlan`, which attention reads, and the blocks that one step of a
    schedule updates.
    """

    name: str | None = None
    block_size: int = 1
    sequence: str | None = None
    follows_edges: bool = True
    transforms: bool = False
    takes_maximum: bool = False

    def get_config(self) -> dict[str, int | str]:
        """Arguments of the constructor in its order, integers and words."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping) -> "PlanPart":
        """Build the part from `get_config()`."""
        return cls(**config)

    def arguments(self) -> tuple[int | str, ...]:
        """Arguments that the key holds; those behind them have their defaults."""
        return tuple(self.get_config().values())

    @classmethod
    def from_arguments(cls, *arguments: int | str) -> "PlanPart":
        """Build the part from the arguments in a key."""
        return cls(*arguments)

    @classmethod
    def library_name(cls) -> str | None:
        """`name` of a class of the library, None of another."""
        # A subclass does not share the keys of its base.
        in_library = cls.__module__.startswith(f"{PACKAGE}.")
        return vars(cls).get("name") if in_library else None

    @classmethod
    def prefix(cls) -> str:
        """What its keys begin with: `name`, or the name in Keras' registry."""
        return cls.library_name() or keras.saving.get_registered_name(cls)

    def key(self) -> str:
        """Name of its arrays in `x["plan"]`, such as `"banded:128"`."""
        return ":".join([self.prefix(), *map(str, self.arguments())])

    @classmethod
    def from_key(cls, key: str) -> "PlanPart":
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

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sums of the senders' states per receiver and type.

        Args:
            prepared: Result of `prepare`.
            x: [G, M, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        raise NotImplementedError

    def apply(self, prepared: dict, x, kernel):
        """Incoming messages, without biases, of every node over the covered edges.

        Args:
            prepared: Result of `prepare`.
            x: [G, M, H].
            kernel: [P, H, U].

        Returns:
            [G, N, U].
        """
        raise NotImplementedError

    def maximum(self, prepared: dict, x, kernel, bias=None):
        """Largest message per receiver and unit, [G, N, U]; 0 without messages."""
        raise NotImplementedError

    def degree(self, prepared: dict, num_nodes: int, num_types: int):
        """Sum of the weights of each receiver's edges per type, float32 [G, N, P]."""
        values = prepared.get("weight", prepared["mask"])
        return per_receiver(prepared, values, num_nodes, num_types)

    def count(self, prepared: dict, num_nodes: int, num_types: int):
        """Number of each receiver's edges, float32 [G, N]."""
        counts = per_receiver(prepared, prepared["mask"], num_nodes, num_types)
        return ops.sum(counts, axis=-1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanPart) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key()!r})"


class Primitive(PlanPart):
    """A way to compute the sum over some of the edges.

    All primitives compute, over the edges that they cover,

        out[n] = sum over edges (j -> n, type p) of w * (x[j] @ kernel[p] + bias[p]).

    A subclass overrides what differs from the defaults:

    | attribute          | default | meaning                                           |
    | ------------------ | ------- | ------------------------------------------------- |
    | `name`             | None    | prefix of the keys of the library's classes;      |
    |                    |         | other classes leave it, theirs is their           |
    |                    |         | registered name                                   |
    | `covers_all`       | False   | takes every edge, so it can be the rest of a plan |
    | `transforms`       | False   | has `apply`, and multiplies with the kernel       |
    |                    |         | itself; else `typed_sum`, and sums of several     |
    |                    |         | primitives are multiplied once                    |
    | `takes_maximum`    | False   | has `maximum`                                     |
    | `bipartite`        | False   | messages may lead between two sets of nodes       |
    | `depends_on_place` | False   | covers other edges where the graph lies elsewhere |
    |                    |         | in a supergraph                                   |
    | `depends_on_edges` | False   | what it covers depends on the other edges too     |
    | `block_size`       | 1       | nodes of a block; devices that share a supergraph |
    |                    |         | have whole blocks                                 |
    | `sequence`         | None    | how the arrays lie on devices that share a        |
    |                    |         | supergraph: `"halo"`, senders counted from the    |
    |                    |         | device's first node, `block_size` rows further on |
    |                    |         | either side; `"exchange"`, senders are rows that  |
    |                    |         | `send` lists; `"whole"`, all on every device;     |
    |                    |         | None is refused there                             |
    | `follows_edges`    | True    | padding of its resources is a share of the        |
    |                    |         | edges'; else each is rounded by itself            |

    | method           | where  | duty                                                 |
    | ---------------- | ------ | ---------------------------------------------------- |
    | `get_config`     | both   | arguments of the constructor, integers and words     |
    | `arguments`      | both   | those that the key holds; by default all             |
    | `from_arguments` | both   | the primitive from those; by default `cls(*them)`    |
    | `cover`          | host   | edges that it takes; by default all                  |
    | `always_covers`  | host   | those of them that it takes wherever a graph lies    |
    | `sizes`          | host   | resources of each graph; by default a row per edge   |
    | `pack`           | host   | arrays of static shape                               |
    | `prepare`        | device | what is the same in every step                       |
    | `typed_sum`      | device | sums per receiver and type, or                       |
    | `apply`          | device | messages (`transforms`)                              |
    | `maximum`        | device | the largest message (`takes_maximum`)                |
    | `degree`         | device | edges per receiver and type; from `receiver`, `type` |
    |                  |        | and `mask` of what `prepare` returned by default     |
    | `count`          | device | edges per receiver, likewise                         |
    | `cost`           | host   | seconds of a step, for `plan="auto"`                 |
    | `candidates`     | host   | instances that `plan="auto"` tries; none by default  |

    The name of a resource is the key, perhaps with a suffix: `"dense:32.edge"`.
    """

    covers_all: bool = False
    bipartite: bool = False
    depends_on_place: bool = False
    depends_on_edges: bool = False

    def cover(self, edges: Edges) -> np.ndarray:
        """Return which edges it covers, bool [E]."""
        return np.ones(len(edges), bool)

    def always_covers(self, edges: Edges) -> np.ndarray:
        """Return which edges it covers at any position in a supergraph, bool [E]."""
        return self.cover(edges)

    def sizes(
        self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int
    ) -> dict[str, Any]:
        """Return bounds of each graph's resources, name -> int64 [num_graphs]."""
        return {self.key(): np.bincount(graph_of_edge, minlength=num_graphs)}

    def pack(self, edges: Edges, budget: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Pack the edges into arrays of static shape."""
        raise NotImplementedError

    def cost(self, load: Load, hardware) -> float:
        """Estimate the seconds of a step, forward and backward, on a machine.

        Args:
            load: Resources of a supergraph and widths of its rows.
            hardware: The machine's constants, a `Hardware`.
        """
        raise NotImplementedError

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> Iterable["Primitive"]:
        """Return instances that `plan="auto"` compares, with `Segment` as the rest.

        Args:
            num_types: P.
            block_size: S for which the graphs were ordered.
        """
        del num_types, block_size
        return ()


def supergraph_ids(ids):
    """Return the supergraph index of each id, int32 of the shape of `ids` [G, E]."""
    groups = ops.reshape(ops.arange(ops.shape(ids)[0], dtype="int32"), (-1, 1))
    return ops.broadcast_to(groups, ops.shape(ids))


def per_receiver(arrays: dict, values, num_nodes: int, num_types: int):
    """Sum of a value per receiver and type, float32 [G, N, P].

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


# From the keys of plans and the names of resources to classes. Nothing else takes a
# key apart: what it says is an attribute of the part that it names.


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
    """The part of the last of some classes and the arguments in a key, or None."""
    values = [int(text) if re.fullmatch(r"-?\d+", text) else text for text in texts]
    try:
        # Of classes with one name, as of a notebook's cell run again, the last.
        part = classes[-1].from_arguments(*values)
    except (IndexError, TypeError, ValueError):
        return None
    # An argument that the key leaves out is one that its class does not write.
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

    Custom classes are found by their registered name in Keras. Nothing is imported.

    Args:
        key: The key.
        name: Name of the key in errors.

    Raises:
        ValueError: If the key is unknown.
    """
    part = find_part(key)
    if part is None:
        raise ValueError(
            f"Expected `{name}` to be the key of a primitive, 'banded:128' or one of "
            f"{sorted(primitive_classes())}. Received: {key!r}. Import the module of a "
            "custom class before you load a file that names it."
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


def is_resource(name: str) -> bool:
    """Return whether a name is a resource of a primitive or of a schedule's step."""
    return "@" in name or owner_of(name) is not None
