"""`GraphPreprocessor`: all that happens to graphs before the model sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

from keras_bandgnn.assembly.assembler import merge_parts, with_edge_types
from keras_bandgnn.checks import (
    boolean,
    instance,
    optional,
    positive_int,
    refuse,
    sequence,
    string,
)
from keras_bandgnn.data.files import atomic_folder
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import reading
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.default_backend import backend_required
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.batching.batcher import Batcher, supergraph_nodes
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.encoding.graph_encoder import (
    GraphEncoder,
    accepting,
    is_raw,
    refuse_beside_graphs,
)
from keras_bandgnn.preprocessing.encoding.raw_items import (
    first_item,
    raw_items,
)
from keras_bandgnn.preprocessing.graph_layer import (
    GraphLayer,
    HostLayer,
    applied_layers,
    layers_from_config,
    only_graphs,
)
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.registration import class_entry, registered_class
from keras_bandgnn.saving.preset_paths import METADATA, PREPROCESSOR
from keras_bandgnn.version import __version__

if TYPE_CHECKING:
    import numpy as np

    from keras_bandgnn.aliases import Data, FilePath, LayerOptions, LoaderOptions
    from keras_bandgnn.data.store import GraphStore


def _from_plain(entry: Mapping, base: type, what: str):
    return registered_class(entry, base, what).from_config(dict(entry["config"]))


def _checked_plan(plan) -> Plan | str:
    """Return an argument `plan`, or raise a ValueError.

    The constructor calls it, too: on torch a module is set past the property.
    """
    if isinstance(plan, Mapping):
        return _plan_of(plan)
    if not isinstance(plan, Plan) and not (isinstance(plan, str) and plan == "auto"):
        refuse("plan", "'auto' or a keras_bandgnn.plans.Plan", plan)
    return plan


def _plan_of(config: Mapping) -> Plan:
    """The plan that a file describes."""
    from keras_bandgnn.preprocessing.attention.attention_plan import AttentionPlan

    if "class_name" in config:
        return _from_plain(config, Plan, "a plan")
    if not {"primitives", "attention"} & set(config):
        refuse("plan", "'auto', a Plan, or what its get_config() gives", config)
    kind = AttentionPlan if "attention" in config else Plan
    return kind.from_config(config)


class _AutoPlan(NamedTuple):
    """A plan that `"auto"` stood for, and the sizes that it was chosen for."""

    plan: Plan
    nodes: int
    largest: int


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphPreprocessor(HostLayer):
    """Layers from graph to graph, then a batcher and a plan.

    Args:
        layers: Graph layers, applied in order, such as `ReachabilityFilter(8)`.
        batcher: `DynamicBatcher` or `StaticBatcher`; adapted to the first graphs that
            it meets.
        plan: A `Plan` or `"auto"` (see `GraphLoader`).
        edge_weight: Edge feature that is the factor of each message, or None.

    Example:
    >>> from keras_bandgnn.preprocessing import RCMKCompile
    >>> preprocessor = GraphPreprocessor([RCMKCompile()], DynamicBatcher(4))
    >>> loader = preprocessor.loader([Graph(2, [0], [1])] * 40, shuffle=False)
    >>> len(loader) >= 2
    True
    """

    def __init__(
        self,
        layers: Iterable[GraphLayer] = (),
        batcher: Batcher | None = None,
        plan: Plan | str = "auto",
        edge_weight: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.graph_layers = sequence("layers", layers, "a list of graph layers")
        for layer in self.graph_layers:
            if not isinstance(layer, GraphLayer):
                raise ValueError(
                    "Expected `layers` to be graph layers, such as RCMKCompile(128). "
                    f"Received: {layer!r}."
                )
        self.batcher = DynamicBatcher() if batcher is None else batcher
        if not isinstance(self.batcher, Batcher):
            raise ValueError(
                "Expected `batcher` to be a batcher, such as DynamicBatcher(32). "
                f"Received: {batcher!r}."
            )
        self.plan = _checked_plan(plan)
        self.edge_weight = optional(string, "edge_weight", edge_weight)
        # Graphs to predict keep the plan of the training graphs: another plan would
        # be another program to compile.
        self._auto_plans: dict[tuple, _AutoPlan] = {}

    @property
    def plan(self) -> Plan | str:
        """A `Plan`, or `"auto"`."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan | str) -> None:
        self._plan = _checked_plan(plan)

    @property
    def encoder(self) -> GraphEncoder | None:
        """The first layer, if it converts raw items, such as `SmilesEncoder`."""
        first = self.graph_layers[0] if self.graph_layers else None
        return first if isinstance(first, GraphEncoder) else None

    def add_encoder(self, encoder: GraphEncoder) -> None:
        """Put an encoder before the other layers, in place of one that is there."""
        expected = "an encoder, such as SmilesEncoder()"
        instance("encoder", encoder, GraphEncoder, expected)
        layers = self.graph_layers[self.encoder is not None :]
        self.graph_layers = [encoder, *layers]

    def layers_config(self) -> list[dict]:
        """Return a plain description of the graph layers, as stores keep it."""
        return [class_entry(layer, layer.plain_config()) for layer in self.graph_layers]

    def transform(self, graphs: Data) -> FlatGraphs | GraphStore:
        """Apply the graph layers.

        Args:
            graphs: Iterable of `Graph`, a `FlatGraphs` or an opened store. Those
                whose metadata says that these layers were applied are returned as
                they are.

        Returns:
            `FlatGraphs`, or the store.

        Raises:
            ValueError: If other layers were applied, or for what are no graphs.
        """
        applied = applied_layers(graphs)
        if applied and self.graph_layers and applied != self.layers_config():
            raise ValueError(
                "Expected graphs that were compiled as this preprocessor does, with "
                f"{self.layers_config()}. Received: graphs compiled with {applied}. "
                "Compile them again with the options of the model."
            )
        if applied:
            return graphs
        graphs = [graphs] if isinstance(graphs, Graph) else graphs
        if not only_graphs(graphs) and is_raw(graphs):
            encoder = self._encoder_of(graphs)
            return self._transform(encoder(raw_items(graphs)))
        if isinstance(graphs, str | Mapping):
            refuse("graphs", "a list of graphs, a FlatGraphs or a store", graphs)
        if not hasattr(graphs, "shards"):
            instance(
                "graphs", graphs, Iterable, "graphs: a list, a FlatGraphs, a store"
            )
        return self._transform(graphs)

    def _encoder_of(self, items) -> GraphEncoder:
        if self.encoder is None:
            refuse_beside_graphs(items, first_item(items))
            refuse(
                "graphs",
                "graphs, as the preprocessor has no encoder",
                first_item(items),
                "Fit the task on such data, or write GraphPreprocessor([encoder, ...]) "
                f"with an encoder, such as {accepting(first_item(items)).__name__}.",
            )
        return self.encoder

    def _transform(self, graphs):
        if not self.graph_layers and not isinstance(graphs, list | tuple):
            return graphs
        for layer in self.graph_layers:
            graphs = layer(graphs)
        if isinstance(graphs, FlatGraphs):
            # From an encoder alone: the same arrays, which get metadata here.
            compiled = FlatGraphs.from_columns(graphs.columns(), graphs.info)
        else:
            compiled = FlatGraphs.from_graphs(graphs)
        compiled.metadata = {"layers": self.layers_config()}
        return compiled

    def compile(self, graphs: Data) -> FlatGraphs | GraphStore:
        """Alias of `transform`."""
        return self.transform(graphs)

    def __call__(self, graphs: Data) -> FlatGraphs | GraphStore:
        """Apply the graph layers, see `transform`."""
        # Keras' own __call__ converts its arguments to tensors.
        return self.transform(graphs)

    def loader(
        self,
        graphs: Data,
        adapt: bool = True,
        *,
        plan: Plan | str | None = None,
        num_edge_types: int | None = None,
        schedule: ReceptiveField | None = None,
        width: int = 64,
        **options: Unpack[LoaderOptions],
    ) -> Loader:
        """Transform graphs and return a loader of their batches.

        Args:
            graphs: See `transform`; a `GraphLoader` is returned as is.
            adapt: Whether a batcher without a budget keeps the one that these graphs
                give it, for all graphs to come.
            plan: The plan to use if the preprocessor's is `"auto"`; `"auto"` or None
                is the cheapest one.
            num_edge_types: P, see `GraphLoader`.
            schedule: The `ReceptiveField` that `"auto"` may use: only for models that
                read no other nodes. Tasks pass theirs.
            width: Channels of a state, for `"auto"`. Tasks pass that of the backbone.
            **options: Other arguments of `GraphLoader`, except `batcher` and
                `edge_weight`, which are those of the preprocessor.
        """
        if isinstance(graphs, Loader):
            return graphs
        for name in ("batcher", "edge_weight"):
            if name in options:
                raise ValueError(
                    f"Expected loader(...) without {name}, which the preprocessor "
                    f"has. Received: {name}={options[name]!r}. Pass it to "
                    f"GraphPreprocessor(..., {name}=...)."
                )
        boolean("adapt", adapt)
        if isinstance(plan, str) and plan == "auto":
            plan = None
        expected = "'auto' or a keras_bandgnn.plans.Plan"
        optional(instance, "plan", plan, Plan, expected)
        optional(positive_int, "num_edge_types", num_edge_types, 0)
        optional(instance, "schedule", schedule, ReceptiveField, "a ReceptiveField")
        positive_int("width", width)
        if adapt:
            self._auto_plans.clear()
        batcher = self.batcher if adapt else self.batcher.copy()
        graphs = self.transform(graphs)
        if self.plan != "auto":
            # What is left out of training is still predicted.
            plan = self.plan if adapt else self.plan.replace(filter=None)
        elif plan is None:
            block_size = block_size_of(graphs)
            graphs, num_edge_types = with_edge_types(
                merge_parts(parts_of(graphs)), num_edge_types
            )
            takes_schedule = self.edge_weight is None
            takes_schedule &= not any(part.sets for part in graphs)
            plan = self._auto_plan(
                graphs,
                num_edge_types,
                batcher,
                width=width,
                schedule=schedule if takes_schedule else None,
                num_hosts=options.get("num_hosts", 1),
                block_size=block_size,
            )
        return GraphLoader(
            graphs,
            batcher,
            plan,
            num_edge_types=num_edge_types,
            edge_weight=self.edge_weight,
            **options,
        )

    def _auto_plan(
        self,
        parts: Sequence[FlatGraphs],
        num_types: int,
        batcher: Batcher,
        **options,
    ) -> Plan:
        """Return the plan of `"auto"`: that of graphs as large, or the cheapest."""
        with backend_required():
            from keras_bandgnn.planning.plan_choice import choose_plan

        room = supergraph_nodes(parts, batcher)
        if options["num_hosts"] > 1 or not parts:
            return choose_plan(parts, num_types, nodes=room, **options).plan
        schedule = options["schedule"]
        total = sum(int(part.node_ptr[-1]) for part in parts)
        nodes = min(room, total)
        largest = max(int(part.num_nodes.max()) for part in parts)
        key = num_types, schedule is not None, options["block_size"]
        if key in self._auto_plans:
            entry = self._auto_plans[key]
            if nodes <= entry.nodes and largest <= entry.largest:
                return entry.plan.replace(schedule=schedule)
        plan = choose_plan(parts, num_types, nodes=room, **options).plan
        self._auto_plans[key] = _AutoPlan(plan, nodes, largest)
        return plan

    def save_to_preset(self, path: np.ndarray | None) -> None:
        """Write the preprocessor alone to a folder, as `preprocessor.json`.

        Args:
            path: A new folder, or one with a preprocessor alone, which is replaced.
                `Task.save_to_preset` writes the task's preprocessor, too.
        """
        from keras_bandgnn.saving import preset_files

        with atomic_folder(path, (PREPROCESSOR, METADATA), "a preprocessor") as folder:
            entry = preset_files.preset_entry(self, self.get_config())
            preset_files.write(folder / PREPROCESSOR, entry)
            metadata = {
                "keras_version": keras.__version__,
                "keras_bandgnn_version": __version__,
            }
            preset_files.write(folder / METADATA, metadata)

    @classmethod
    def from_preset(cls, preset: FilePath) -> GraphPreprocessor:
        """Load the preprocessor of a preset.

        Args:
            preset: A folder that `save_to_preset` of a task or a preprocessor wrote,
                one of `models.list_presets()`, or `"hf://OWNER/NAME"`.

        Raises:
            ValueError: For a preset that does not exist, or has no preprocessor.

        Example:
        >>> preprocessor = GraphPreprocessor.from_preset("ggnn_varmisuse")
        >>> type(preprocessor.batcher).__name__
        'DynamicBatcher'
        """
        from keras_bandgnn.saving import preset_files
        from keras_bandgnn.saving.preset_hub import preset_folder

        path = preset_folder(preset, PREPROCESSOR) / PREPROCESSOR
        if not path.is_file():
            raise ValueError(
                f"Expected a preset with {PREPROCESSOR}. Received: {preset!r}, a "
                "backbone or a task without a preprocessor. Name another preset."
            )
        entry = preset_files.read(path)
        with reading(path):
            return cls.from_config(entry["config"])

    def get_config(self) -> dict:
        """Return a plain configuration; `from_config` reads it."""
        from keras_bandgnn.preprocessing.attention.attention_plan import AttentionPlan

        for layer in (*self.graph_layers, self.batcher):
            layer.check_registered()
        plan = self.plan
        if isinstance(plan, Plan):
            plan.check_registered()
            config = plan.get_config()
            # Files of the library's plans name no class.
            is_custom = type(plan) not in (Plan, AttentionPlan)
            plan = class_entry(plan, config) if is_custom else config
        return {
            "layers": self.layers_config(),
            "batcher": class_entry(self.batcher, self.batcher.plain_config()),
            "plan": plan,
            "edge_weight": self.edge_weight,
        }

    @classmethod
    def from_config(cls, config: Mapping) -> GraphPreprocessor:
        """Build the preprocessor from `get_config()`, from registered classes."""
        layers = layers_from_config(config["layers"])
        batcher = _from_plain(config["batcher"], Batcher, "a batcher")
        return cls(layers, batcher, config["plan"], config.get("edge_weight"))
