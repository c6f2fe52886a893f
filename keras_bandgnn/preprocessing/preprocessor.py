"""`GraphPreprocessor`: all that happens to graphs before the model sees them."""

from collections.abc import Iterable, Mapping

import keras

from keras_bandgnn.checks import boolean, instance, optional, refuse, sequence, string
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.attention.attention_plan import AttentionPlan
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.registration import (
    check_registered,
    class_entry,
    registered_class,
)


def _plain(layer: keras.layers.Layer) -> dict:
    """Class and arguments of a layer, without what Keras adds."""
    config = layer.get_config()
    for name in ("name", "trainable", "dtype"):
        config.pop(name, None)
    return class_entry(layer, config)


def _from_plain(entry: Mapping, base: type, what: str):
    return registered_class(entry, base, what).from_config(dict(entry["config"]))


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphPreprocessor(keras.layers.Layer):
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
    >>> loader = preprocessor.loader([Graph(2, [0], [1])] * 8, shuffle=False)
    >>> len(loader) >= 2
    True
    """

    def __init__(
        self,
        layers: Iterable[GraphLayer] = (),
        batcher: Batcher | None = None,
        plan: Plan | str = "auto",
        edge_weight: str | None = None,
        **kwargs,
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
        if isinstance(plan, Mapping):
            if not {"primitives", "attention"} & set(plan):
                refuse("plan", "'auto', a Plan, or what its get_config() gives", plan)
            kind = AttentionPlan if "attention" in plan else Plan
            plan = kind.from_config(plan)
        if not isinstance(plan, Plan) and not (
            isinstance(plan, str) and plan == "auto"
        ):
            raise ValueError(
                "Expected `plan` to be 'auto' or a keras_bandgnn.primitives.Plan. "
                f"Received: plan={plan!r}."
            )
        self.plan = plan
        self.edge_weight = optional(string, "edge_weight", edge_weight)
        # What "auto" took: graphs to predict keep it, as another plan would be
        # another program.
        self._known_plans: dict = {}

    def layers_config(self) -> list[dict]:
        """Plain description of the graph layers, as stores keep it."""
        return [_plain(layer) for layer in self.graph_layers]

    def compile(self, graphs):
        """Applies the graph layers.

        Args:
            graphs: Iterable of `Graph`, a `FlatGraphs` or an opened store. Those
                whose metadata says that these layers were applied are returned as
                they are.

        Returns:
            `FlatGraphs`, or the store.
        """
        applied = getattr(graphs, "metadata", {}).get("layers")
        if applied and self.graph_layers and applied != self.layers_config():
            raise ValueError(
                "Expected graphs that were compiled as this preprocessor does, with "
                f"{self.layers_config()}. Received: graphs compiled with {applied}. "
                "Compile them again with the options of the model."
            )
        if applied:
            return graphs
        graphs = [graphs] if isinstance(graphs, Graph) else graphs
        if isinstance(graphs, str | Mapping):
            refuse("graphs", "a list of graphs, a FlatGraphs or a store", graphs)
        if not hasattr(graphs, "shards"):
            instance(
                "graphs", graphs, Iterable, "graphs: a list, a FlatGraphs, a store"
            )
        if not self.graph_layers and not isinstance(graphs, list | tuple):
            return graphs
        for layer in self.graph_layers:
            graphs = layer(graphs)
        compiled = FlatGraphs.from_graphs(graphs)
        compiled.metadata = {"layers": self.layers_config()}
        return compiled

    def loader(self, graphs, adapt: bool = True, **options) -> GraphLoader:
        """Compiles graphs and returns a loader of their batches.

        Args:
            graphs: See `compile`; a `GraphLoader` is returned as is.
            adapt: Whether a batcher without a budget keeps the one that these graphs
                give it, for all graphs to come.
            **options: Passed to `GraphLoader`; `plan` stands in for `"auto"`.
        """
        if isinstance(graphs, GraphLoader):
            return graphs
        boolean("adapt", adapt)
        compiled = self.compile(graphs)
        batcher, plan = self.batcher, self.plan
        if not adapt:
            batcher = self.batcher.copy()
            # What is left out of training is still predicted.
            plan = plan if plan == "auto" else plan.replace(filter=None)
        given = options.pop("plan", None)
        plan = given if plan == "auto" and given is not None else plan
        if adapt:
            self._known_plans.clear()
        return GraphLoader(
            compiled,
            batcher,
            plan,
            edge_weight=self.edge_weight,
            known_plans=self._known_plans,
            **options,
        )

    def call(self, graphs):
        """Applies the graph layers to the graphs."""
        return self.compile(graphs)

    def __call__(self, graphs):
        """Applies the graph layers to the graphs."""
        # Keras' own __call__ converts its arguments to tensors.
        return self.compile(graphs)

    def get_config(self) -> dict:
        """Returns a plain configuration; `from_config` reads it."""
        check_registered(*self.graph_layers, self.batcher)
        plan = self.plan if isinstance(self.plan, str) else self.plan.get_config()
        return {
            "layers": self.layers_config(),
            "batcher": _plain(self.batcher),
            "plan": plan,
            "edge_weight": self.edge_weight,
        }

    @classmethod
    def from_config(cls, config: Mapping) -> "GraphPreprocessor":
        """Builds the preprocessor from `get_config()`, from registered classes."""
        layers = [_from_plain(e, GraphLayer, "a graph layer") for e in config["layers"]]
        batcher = config["batcher"]
        if "class_name" not in batcher:
            # Files of version 0.1.0 name no class.
            batcher = {"class_name": "DynamicBatcher", "config": batcher}
        batcher = _from_plain(batcher, Batcher, "a batcher")
        return cls(layers, batcher, config["plan"], config.get("edge_weight"))
