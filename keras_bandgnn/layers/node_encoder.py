"""`NodeEncoder`: initial node states from the features of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.batch import AGE, STATE_ROW, explained
from keras_bandgnn.checks import mapping, optional, positive_int, refuse, shown
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.layers.character_encoder import CharacterEncoder
from keras_bandgnn.layers.harmonic_encoding import HarmonicEncoding
from keras_bandgnn.layers.sign_net import SignNet
from keras_bandgnn.ops.batched import batched_gather
from keras_bandgnn.ops.context import is_portable
from keras_bandgnn.ops.lookup import LookedUp, lookup_sum
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Initializer,
        LayerOptions,
        Shape,
        Tensor,
    )

_KINDS = (
    *("ids", "columns", "characters", "features", "eigenvectors", "harmonic"),
    "sets",
)
# Kinds of numbers.
NUMBERS = ("features", "eigenvectors", "harmonic")


def channels(kind: str, size: int) -> int:
    """Return the last axis of a feature of numbers.

    Args:
        kind: One of `NUMBERS`.
        size: Size of the input.
    """
    return 1 if kind == "harmonic" else size


@serializable
class NodeEncoder(keras_bases.Layer):
    """Sum of one embedding per node feature.

    Args:
        units: Width H of a state.
        inputs: Feature name -> its kind: `{"ids": V}`, ids in [0, V) of shape [N] or
            [N, K] (the mean over nonzero ids); `{"columns": [V_1, ..., V_K]}`, ids of
            shape [N, K] whose column k is in [0, V_k) and has a table of its own (the
            sum over columns, zeros included), such as atoms of the Open Graph
            Benchmark; `{"characters": L}`, character codes of L positions;
            `{"features": F}`, numbers; `{"eigenvectors": K}`, K eigenvectors whose
            signs do not matter, for nodes alone (see `SignNet`); `{"harmonic": D}`, a
            number as D waves, such as `age` of edges (see `HarmonicEncoding`). An
            integer V is short
            for `{"ids": V}`, a list of integers for `{"columns": [...]}`. For graphs
            with node sets `{"sets": {set: inputs of that set}}`: each set's features
            have layers of their own.
        embeddings_initializer: Initial values of the tables of ids and columns; those
            of `keras.layers.Embedding` by default, within 0.05 of 0.

    Input shape:
        batch: A batch (see `keras_bandgnn.batch`); it reads the features in
            `batch["node"]`: int32 [G, N], int32 [G, N, K] or float [G, N, F]. Or
            features by name, such as `batch["edge"]`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For an unknown kind, or a batch that lacks a feature.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> NodeEncoder(4, {"kind": 2})(batch).shape[-1]
    4
    """

    splits_sequences = True
    # What the features belong to, in errors; `EdgeReadout` encodes edges.
    level = "node"

    def __init__(
        self,
        units: int,
        inputs: Mapping,
        embeddings_initializer: Initializer = "uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        if not isinstance(embeddings_initializer, str):
            # As a dict, of which each table makes one with draws of its own.
            embeddings_initializer = keras.initializers.serialize(
                keras.initializers.get(embeddings_initializer)
            )
        self.embeddings_initializer = embeddings_initializer
        if not isinstance(inputs, Mapping):
            raise ValueError(
                "Expected `inputs` to be a dict of node features, such as "
                f"{{'type': 512}}. Received: inputs={inputs!r}. For raw data pass "
                "encoder.inputs()."
            )
        mapping("inputs", inputs)
        if _has_sets(inputs.get("sets")):
            inputs = {STATE_ROW: {"sets": inputs["sets"]}, **inputs}
            del inputs["sets"]
        self.inputs = {name: self.spec_of(name, spec) for name, spec in inputs.items()}
        if not self.inputs:
            raise ValueError(
                "Expected `inputs` to name at least one node feature. Received: {}. Of "
                "graphs without any take the degrees: Graph(..., node={'degree': "
                "np.bincount(receivers, minlength=num_nodes)})."
            )
        # === Layers ===
        # Attributes, as their names are those of the weights in a file.
        for name, spec in self.inputs.items():
            ((kind, size),) = spec.items()
            if kind != "sets":
                setattr(self, f"encode_{name}", self._feature_layer(name, kind, size))
                continue
            for number, (part, features) in enumerate(size.items()):
                layer = NodeEncoder(
                    self.units,
                    features,
                    self.embeddings_initializer,
                    dtype=self.dtype_policy,
                    # Unlike sets, parameters of torch have names without dots.
                    name=f"encode_set_{number}",
                )
                layer.level = f"sets[{part!r}]"
                setattr(self, f"encode_{name}_{part}", layer)

    def _feature_layer(
        self, name: str, kind: str, size: int | list[int]
    ) -> keras.layers.Layer:
        """Return the layer that encodes a feature."""
        options = {"dtype": self.dtype_policy, "name": f"encode_{name}"}
        if kind in ("ids", "columns"):
            # The tables of columns are one after the other.
            count = size if kind == "ids" else sum(size)
            return keras.layers.Embedding(
                count, self.units, self.embeddings_initializer, **options
            )
        if kind == "characters":
            return CharacterEncoder(self.units, **options)
        if kind == "eigenvectors":
            return SignNet(self.units, **options)
        if kind == "harmonic":
            return HarmonicEncoding(self.units, size, **options)
        return keras.layers.Dense(self.units, **options)

    @staticmethod
    def spec_of(
        name: str, spec: int | Sequence[int] | Mapping
    ) -> dict[str, int | list[int]]:
        """Return the kind of a feature and its size, or raise a ValueError."""
        if isinstance(spec, int):
            spec = {"ids": spec}
        elif isinstance(spec, list | tuple):
            spec = {"columns": spec}
        is_one = isinstance(spec, Mapping) and len(spec) == 1
        if not is_one or next(iter(spec)) not in _KINDS:
            raise ValueError(
                f"Expected inputs[{name!r}] to be a vocabulary size, an integer, a "
                f"list of one per column, or a dict with one of the keys {_KINDS}. "
                f"Received: {shown(spec)}."
            )
        ((kind, size),) = spec.items()
        label = f"inputs[{name!r}][{kind!r}]"
        if kind == "sets":
            if name != STATE_ROW:
                refuse("inputs", "node sets as {'sets': {set: inputs}}", {name: spec})
            return {
                kind: {part: dict(size[part]) for part in sorted(mapping(label, size))}
            }
        if kind != "columns":
            return {kind: positive_int(label, size)}
        if not isinstance(size, list | tuple) or not size:
            refuse(label, "a list of vocabulary sizes, one for each column", size)
        sizes = [positive_int(f"{label}[{k}]", v) for k, v in enumerate(size)]
        positive_int(f"sum({label})", sum(sizes))
        return {kind: sizes}

    def _encoder(self, name):
        return getattr(self, f"encode_{name}")

    def build(self, batch_shape: BatchShape | None = None) -> None:
        """Build the embeddings; their shapes follow from the configuration."""
        for name, spec in self.inputs.items():
            ((kind, size),) = spec.items()
            if kind == "sets":
                for encoder in self.set_encoders().values():
                    encoder.build()
                continue
            is_embedding = kind in ("ids", "columns")
            shape = (None, None)
            if not is_embedding:
                shape = (*shape, channels(kind, size))
            self._encoder(name).build(shape)
        self.built = True

    def _check_names(self, node):
        for name, spec in self.inputs.items():
            if "eigenvectors" in spec and self.level != "node":
                refuse(
                    f"inputs[{name!r}]",
                    "of another kind, as eigenvectors are features of nodes",
                    spec,
                )
            if name not in node and (self.level, name) == ("edge", AGE):
                raise ValueError(
                    "Expected ages of edges, as `edge_inputs` name 'age'. Received: "
                    f"edge features {sorted(node)}. Draw neighbours by time, sampler="
                    "NeighborSampler(..., time='recent'), or pass the graph before a "
                    "time with its ages, edges_before(graph, time, age=True)."
                )
            if name not in node:
                raise ValueError(
                    f"Expected {self.level} features {sorted(self.inputs)}. "
                    f"Received: {sorted(node)}; {name!r} is missing. Give the "
                    f"{self._owner} and Graph({self.level}={{...}}) the same names. "
                    "For raw data put the encoder of the inputs into the task: "
                    "GraphPreprocessor([encoder]). Prepare graphs of a SequenceLoader "
                    "with backbone.graph_layers()."
                )

    @property
    def _owner(self) -> str:
        """The argument that has the inputs, for errors."""
        return "`edge_inputs`" if self.level == "edge" else "backbone's `inputs`"

    def check(self, node: Mapping, sets: Mapping | None = None) -> None:
        """Raise a ValueError if NumPy features do not fit, before they are used.

        Args:
            node: Feature name -> array [N, ...].
            sets: Features of the node sets, by set and name.
        """
        if sets:
            node = {**node, STATE_ROW: node["set_row"]}
        elif self.set_encoders():
            raise ValueError(
                f"Expected graphs with the node sets {[*self.set_encoders()]}, as in "
                f"the backbone's `inputs`. Received: node features {sorted(node)}, and "
                "no node sets. Make graphs with keras_bandgnn.data.from_sets."
            )
        self._check_names(node)
        for name, spec in self.inputs.items():
            values = node[name]
            ((kind, size),) = spec.items()
            if kind == "sets":
                self._check_sets(size, sets)
            elif kind in NUMBERS:
                width = 1 if values.ndim == 1 else values.shape[-1]
                if width != channels(kind, size):
                    raise ValueError(
                        f"Expected {self.level}[{name!r}] with {channels(kind, size)} "
                        f"channels. Received: shape {values.shape}."
                    )
            elif "columns" in spec:
                self._check_columns(name, values, spec["columns"])
            else:
                upper = spec.get("ids", CharacterEncoder.num_codes)
                self._check_ids(f"{self.level}[{name!r}]", values, upper)

    def _check_sets(self, inputs: Mapping, sets: Mapping) -> None:
        if [*sets] != [*inputs]:
            raise ValueError(
                f"Expected the node sets {[*inputs]}, as in the backbone's `inputs`. "
                f"Received: {[*sets]}. Give every graph all sets; those without nodes "
                "have features of 0 rows."
            )
        for part, encoder in self.set_encoders().items():
            encoder.check(sets[part])

    def _check_columns(self, name, values, sizes):
        if values.shape[1:] != (len(sizes),):
            raise ValueError(
                f"Expected {self.level}[{name!r}] with {len(sizes)} columns of ids. "
                f"Received: shape {values.shape}. List the vocabulary of each column "
                f"in the {self._owner}."
            )
        for column, upper in enumerate(sizes):
            label = f"{self.level}[{name!r}][:, {column}]"
            self._check_ids(label, values[:, column], upper)

    def _check_ids(self, label, values, upper):
        if values.dtype.kind != "i":
            raise ValueError(
                f"Expected ids of {label} in [0, {upper}). Received: {values.dtype}. "
                "Give integers, or {'features': F} for numbers in the "
                f"{self._owner}."
            )
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if low < 0 or high >= upper:
            raise ValueError(
                f"Expected ids of {label} in [0, {upper}). "
                f"Received: {values.dtype} in [{low}, {high}]. Raise the "
                f"vocabulary in the {self._owner}, or map ids that training does "
                "not have to one of their own."
            )

    def known_ids(self) -> dict[str, dict]:
        """Return the valid ids of features; see `Backbone.known_ids`."""
        return {
            name: {"below": size}
            for name, spec in self.inputs.items()
            for kind, size in spec.items()
            if kind in ("ids", "columns")
        }

    def set_encoders(self) -> dict[str, NodeEncoder]:
        """Return the encoder of each node set; empty without node sets."""
        parts = self.inputs.get(STATE_ROW, {}).get("sets", {})
        return {part: self._encoder(f"{STATE_ROW}_{part}") for part in parts}

    def call(self, batch: Batch) -> Tensor:
        """Return the initial states."""
        node = _features(batch)
        self._check_names(node)
        embedded = explained(batch, "node") or {}
        total = 0
        for name in self.inputs:
            if name in embedded:
                total = total + embedded[name]
            else:
                total = total + self.encode(name, node[name], batch)
        return total

    def encode(self, name: str, values: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the embedding of one feature, float [G, N, H].

        Args:
            name: The feature.
            values: Its values, such as int32 [G, N].
            batch: The batch; eigenvectors are read along its edges.
        """
        spec = self.inputs[name]
        if "sets" in spec:
            encoders = self.set_encoders().items()
            states = [encoder(batch["set"][part]) for part, encoder in encoders]
            return batched_gather(ops.concatenate(states, axis=1), values)
        encoder = self._encoder(name)
        if not {*NUMBERS}.isdisjoint(spec) and len(values.shape) == 2:
            values = ops.expand_dims(values, -1)
        if "eigenvectors" in spec:
            return encoder(values, batch)
        if "columns" in spec:
            firsts = ops.convert_to_tensor(_firsts(spec["columns"]))
            return self._sum(encoder, values + firsts)
        if "ids" not in spec or len(values.shape) == 2:
            return encoder(values)
        weight = ops.cast(values > 0, self.compute_dtype)
        count = ops.maximum(ops.sum(weight, axis=-1, keepdims=True), 1.0)
        return self._sum(encoder, values, weight) / count

    def _sum(self, encoder, ids, weight=None):
        """Return the sum over k of the embeddings of ids [G, N, K], times weights."""
        table = self._table(encoder)
        total = None if table is None else lookup_sum(table, ids, weight)
        if total is not None:
            return total
        # Position by position, without a [G, N, K, H] temporary, which XLA on CPUs
        # reduces slowly.
        total = 0
        for k in range(ids.shape[-1]):
            rows = encoder(ids[..., k])
            total = total + (rows if weight is None else rows * weight[..., k : k + 1])
        return total

    def _table(self, encoder) -> Tensor | None:
        """Return the rows of a plain embedding, None for another layer."""
        if type(encoder) is not keras.layers.Embedding or encoder.quantization_mode:
            return None
        return ops.cast(encoder.embeddings, self.compute_dtype)

    def tables(self, values: Mapping) -> list[tuple[Tensor, Tensor]] | None:
        """Return tables and ids in them whose rows add up; None for other features."""
        self._check_names(values)
        if explained(values, "node"):
            return None
        parts = []
        for name, spec in self.inputs.items():
            ids = ops.convert_to_tensor(values[name])
            table = None if "sets" in spec else self._table(self._encoder(name))
            if table is None or ("ids" in spec and len(ids.shape) == 3):
                return None
            if "columns" in spec:
                ids = ids + ops.convert_to_tensor(_firsts(spec["columns"]))
            parts.append((table, ids))
        return parts

    def looked_up(self, batch: Batch) -> LookedUp | None:
        """Return the states as rows of one table, or None.

        The table has the sums that all features can have. None if there may be more of
        them than there are rows in a batch, or if a feature is no id; and in exported
        models, in which an id out of range must not be that of another combination.

        Args:
            batch: As for a call.
        """
        features = _features(batch)
        self._check_names(features)
        if explained(batch, "node") or is_portable():
            return None
        parts, rows = [], 1
        for name, spec in self.inputs.items():
            values = ops.convert_to_tensor(features[name])
            ((kind, size),) = spec.items()
            if kind not in ("ids", "columns"):
                return None
            several = len(values.shape) == 3
            columns = values.shape[-1] if several else 1
            sizes = size if kind == "columns" else [size] * columns
            ids = [values[..., k] for k in range(columns)] if several else [values]
            parts.append((name, kind == "ids" and several, sizes, ids))
            rows *= math.prod(sizes)
        if values.shape[1] is None or rows > values.shape[1]:
            return None
        whole = None
        for name, is_mean, sizes, ids in parts:
            states = self._combinations(name, is_mean, sizes, ids)
            whole = states if whole is None else whole.added(states)
        return whole

    def _combinations(self, name, is_mean, sizes, ids) -> LookedUp:
        """Return the states of one feature as rows of a table of all combinations."""
        total = sizes[0] if is_mean else sum(sizes)
        table = self._encoder(name)(ops.arange(total, dtype="int32"))
        firsts = [0] * len(sizes) if is_mean else _firsts(sizes).tolist()
        if is_mean:
            some = np.arange(total) > 0
            table = table * ops.cast(some[:, None], table.dtype)
        states = None
        for first, size, column in zip(firsts, sizes, ids, strict=True):
            more = LookedUp(table[first : first + size], column)
            states = more if states is None else states.added(more)
        if not is_mean:
            return states
        counts = np.sum(np.indices(sizes) > 0, axis=0).reshape(-1, 1)
        counts = ops.cast(np.maximum(counts, 1), table.dtype)
        return states._replace(table=states.table / counts)

    def compute_output_shape(self, batch_shape: BatchShape) -> Shape:
        """[G, N, H]."""
        shape = _features(batch_shape)[next(iter(self.inputs))]
        return (*shape[:2], self.units)


def _has_sets(spec) -> bool:
    """Return whether an input is one of node sets, and no kind of a feature."""
    return isinstance(spec, Mapping) and all(
        isinstance(v, Mapping) for v in spec.values()
    )


def _firsts(sizes) -> np.ndarray:
    """Return the first row of each column's table, int32 [K]."""
    return np.cumsum([0, *sizes[:-1]], dtype="int32")


def _features(batch) -> Mapping:
    """Return the features of a batch's nodes, or the argument if it is features."""
    if isinstance(batch, Mapping) and not isinstance(batch.get("node"), Mapping):
        return batch
    return batch_part(batch, "node", "layer(batch)")


def edge_encoder(units: int, inputs: Mapping | None, **kwargs) -> NodeEncoder | None:
    """Return a `NodeEncoder` of edge features, or None without any.

    Call it with `batch["edge"]`.

    Args:
        units: Width of a state.
        inputs: The argument `edge_inputs`.
        **kwargs: Options of the layer.
    """
    if not optional(mapping, "edge_inputs", inputs):
        return None
    encoder = NodeEncoder(units, inputs, name="edge_encoder", **kwargs)
    encoder.level = "edge"
    return encoder
