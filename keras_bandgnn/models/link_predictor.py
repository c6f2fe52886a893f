"""`LinkPredictor`: a score for pairs of nodes, such as links and triples."""

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import (
    boolean,
    one_of,
    optional,
    positive_int,
    refuse,
)
from keras_bandgnn.data.identity import (
    added_reverses,
    both_ways,
    leaks,
    mirrored,
    refuse_leaks,
    without_types,
)
from keras_bandgnn.data.link_splits import (
    NodePairs,
    as_pairs,
    is_undirected,
    split_links,
    with_edges,
)
from keras_bandgnn.graph import Graph
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.layers.link_scorer import SCORES, LinkScorer
from keras_bandgnn.models.graph_arguments import options_for_graphs
from keras_bandgnn.models.labels import ClassLabels, TargetLabels
from keras_bandgnn.models.task import Task, refuse_preprocessor
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.progress import progress_bar
from keras_bandgnn.training.roc_auc import ROCAUC

OBJECTIVES = ("binary", "softmax")
SIDES = ("receiver", "sender", "both")
# Numbers of a table of scores, or of the hidden layer behind it.
_CHUNK = 1 << 24
_PAIRS = 1 << 16
_ADVICE = (
    "Split the edges with split_links, which keeps all edges of two nodes in one part. "
    "If pairs and their reverse are facts of their own, pass undirected=False."
)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class LinkPredictor(Task):
    """Predicts which pairs of nodes of a graph are linked.

    The edges of the graph carry messages, and pairs are scored from the states of their
    nodes by a `LinkScorer`. Pairs are `NodePairs`, numbered as in the graph, or int
    arrays [Q, 2] or [Q, 3] of sender, receiver and type. Split edges with
    `split_links`, whose graph has the edges to train on alone. Pairs to validate or to
    test on that the messages give away are refused, also if it is a layer of the
    preprocessor that adds the reverse of an edge.

    Args:
        backbone: The model from a batch to node states; `EmbeddingBackbone` for the
            tables of knowledge graphs.
        head: Kind of the score: `"dot"`, `"bilinear"`, `"mlp"`, `"distmult"` or
            `"complex"`, see `LinkScorer`.
        num_relations: R, types of pairs; None if all are alike.
        preprocessor: `GraphPreprocessor` of graphs, see `Task`. Its plan has no
            schedule; it may reorder nodes, and pairs stay the caller's.
        objective: What training compares. `"binary"`: each pair by itself is true or
            not. `"softmax"`: each true pair is the most likely one among it and its
            negatives.
        hidden: Width of the hidden layer of `"mlp"`; by default that of the states.
        activation: Activation of that layer.
        symmetric: Whether `"bilinear"` and `"mlp"` score a pair like its reverse.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`) with the part `"pair"`, as of a
        `LinkLoader`. Labels are 1 for links and 0 for other pairs.

    Output shape:
        float32 logits [G, Q]. `predict(graph, pairs)` returns an array [Q].

    Raises:
        ValueError: For arguments that do not fit; for pairs of other nodes or types,
            several graphs, or several devices.

    Reference:
        With `"dot"` over a `GCNBackbone` the graph autoencoder, Kipf and Welling 2016,
        https://arxiv.org/abs/1611.07308.

    Example:
    >>> import keras_bandgnn as kb
    >>> ring = [*range(1, 12), 0]
    >>> graph = kb.Graph(12, [*range(12)], ring, node={"id": [*range(12)]})
    >>> split = kb.data.split_links(graph, valid=0.1, test=0.2)
    >>> task = LinkPredictor(kb.models.GCNBackbone({"id": 12}, hidden_dim=8))
    >>> history = task.fit(split.train, split.train_pairs, epochs=2, verbose=0)
    >>> task.predict(split.train, split.test_pairs).shape
    (2,)
    >>> ranks = task.rank(split.train, split.test_pairs, known=split.known)
    >>> 0 < kb.training.mean_reciprocal_rank(ranks) <= 1
    True
    """

    output_level = "pair"
    splits_sequences = False

    def __init__(
        self,
        backbone,
        head: str = "dot",
        num_relations: int | None = None,
        preprocessor=None,
        *,
        objective: str = "binary",
        hidden: int | None = None,
        activation="relu",
        symmetric: bool = False,
        **kwargs,
    ):
        refuse_preprocessor("head", head)
        super().__init__(backbone, preprocessor, **kwargs)
        one_of("head", head, SCORES)
        self.objective = one_of("objective", objective, OBJECTIVES)
        softmax = self.objective == "softmax"
        self.labels = ClassLabels() if softmax else TargetLabels(1)
        # === Layers ===
        self.head = LinkScorer(
            head,
            num_relations,
            hidden,
            activation,
            symmetric,
            dtype="float32",
            name="head",
        )
        self.build_and_compile()

    def build(self, input_shape=None):
        """Build the weights of the head."""
        self.head.build((None, None, self.backbone.hidden_dim))
        self.built = True

    def call(self, batch, training=False):
        """Return logits [G, Q]."""
        batch_part(batch, "pair", "task.predict(graph, pairs)")
        states = self.backbone(batch, training=training)
        return self.head(ops.cast(states, "float32"), batch)

    def compute_output_shape(self, input_shape):
        """[G, Q]."""
        return tuple(input_shape["pair"]["sender"])

    # === Training ===

    def default_optimizer(self):
        """Return Adam with rate 1e-2, as Kipf and Welling 2016."""
        return keras.optimizers.Adam(1e-2)

    def default_loss(self):
        """Return the cross-entropy of pairs, or of positives among their negatives."""
        if self.objective == "softmax":
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return keras.losses.BinaryCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        """Return accuracy and `roc_auc`; of the objective "softmax" accuracy alone."""
        if self.objective == "softmax":
            return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0), ROCAUC()]

    def entries(self, x, y, y_pred, sample_weight=None):
        """Return labels, outputs and weights of entries; see `Labels.entries`.

        With the objective "softmax" an entry is a positive among its negatives.
        """
        pair = batch_part(x, "pair", "task.compute_loss(x, y, ...)")
        weight = ops.cast(pair["mask"], y_pred.dtype)
        if sample_weight is not None:
            weight = weight * ops.cast(sample_weight, y_pred.dtype)
        if self.objective == "binary":
            return self.labels.entries(y, ops.expand_dims(y_pred, -1), weight)
        groups, count = ops.shape(pair["positive"])
        rows = (groups, count, ops.shape(y_pred)[1] // count)
        # The positive is the first of each row.
        first = ops.zeros((groups, count), "int32")
        weight = ops.reshape(weight, rows)[..., 0]
        return self.labels.entries(first, ops.reshape(y_pred, rows), weight)

    def fit(
        self,
        x=None,
        pairs=None,
        negatives: NegativeSampler | None = None,
        batch_size: int | None = None,
        known=None,
        validation_pairs=None,
        seed: int = 0,
        sampler: Sampler | None = None,
        undirected: bool | None = None,
        **kwargs,
    ):
        """Train on pairs of a graph.

        Each step computes the states of all nodes, or with `sampler` those of a
        subgraph, and the scores of a batch of pairs and of negatives drawn for them.

        Args:
            x: The graph, whose edges carry messages; or a `LinkLoader`, which has the
                pairs, negatives, batch size, known pairs and sampler itself.
            pairs: Pairs that are true; by default the edges of the graph without
                self-loops, of an undirected graph each once.
            negatives: `NegativeSampler`; by default one uniform pair for each.
            batch_size: True pairs of a step; None for all of them, or with `sampler`
                as many as it says.
            known: Pairs that are true besides `pairs` and the edges of the graph, which
                negatives avoid.
            validation_pairs: True pairs to validate on. Their negatives are the same in
                every epoch. With a `LinkLoader` they have its negatives, batch size and
                known pairs; negatives of its own pairs avoid them if they are `known`
                to it.
            seed: Seed of the order, the negatives and, on torch, of dropout.
            sampler: `NeighborSampler` for graphs that do not fit a step: a step has the
                neighbours that it draws around the nodes of the pairs, as many true
                ones as its `batch_size`, unless `fit` has another. None for the whole
                graph.
            undirected: Whether a pair and its reverse are one fact. Then
                `validation_pairs` leak if their reverse, or an edge of another type, is
                among the messages or the pairs, see `check_leaks`; and negatives avoid
                the reverse of true pairs. By default without `num_relations`; triples
                are compared as they are.
            **kwargs: Passed to `Task.fit`, such as `epochs`, `callbacks` and
                `verbose`.

        Returns:
            Keras' `History`.

        Raises:
            ValueError: If messages or pairs to train on give `validation_pairs` away;
                for options besides a `LinkLoader` that it has itself.
        """
        from keras_bandgnn.preprocessing.loading.link_loader import validation_loader

        kwargs = options_for_graphs((), (), kwargs)
        for name in ("validation_split", "y", "sample_weight", "class_weight"):
            if kwargs.pop(name, None) is not None:
                advice = "Pass pairs, and validation_pairs."
                raise ValueError(
                    f"Expected `fit` of LinkPredictor without `{name}`. Received: "
                    f"{name}. {advice}"
                )
        if _has_pairs(x):
            _refuse_options(
                "fit(loader)",
                "LinkLoader(graph, pairs, ...)",
                pairs=pairs,
                negatives=negatives,
                batch_size=batch_size,
                known=known,
                sampler=sampler,
            )
            valid = kwargs.pop("validation_data", None)
            if valid is not None and validation_pairs is not None:
                raise ValueError(
                    "Expected `validation_pairs` or `validation_data`. Received: both. "
                    "Leave one out."
                )
            if valid is None and validation_pairs is None:
                _refuse_options("fit(loader)", "the loader", undirected=undirected)
            undirected = self._undirected(undirected)
            if validation_pairs is not None:
                valid = self._pairs("validation_pairs", validation_pairs, x.graph)
                self._check_validation(x.graph, x.pairs, valid, undirected)
                valid = validation_loader(x, valid, seed)
            elif _has_pairs(valid):
                self._check_validation(valid.graph, x.pairs, valid.pairs, undirected)
            return super().fit(x, None, validation_data=valid, seed=seed, **kwargs)
        undirected = self._undirected(undirected)
        if kwargs.pop("validation_data", None) is not None:
            raise ValueError(
                "Expected `fit` of LinkPredictor without `validation_data`. Received: "
                "validation_data. Pass validation_pairs; their graph is the one of x."
            )
        graph = self._graph(x)
        if pairs is None:
            pairs = split_links(graph, 0.0, 0.0).train_pairs
        pairs = self._pairs("pairs", pairs, graph)
        negatives = NegativeSampler() if negatives is None else negatives
        self._complete(graph, training=True)
        valid = None
        true = self._true(graph, pairs, known)
        if validation_pairs is not None:
            valid = self._pairs("validation_pairs", validation_pairs, graph)
            self._check_validation(graph, pairs, valid, undirected)
            true = self._true(graph, NodePairs.concatenate([valid, pairs]), known)
        shuffle = kwargs.pop("shuffle", True)
        train = self._link_loader(
            graph,
            pairs,
            negatives,
            batch_size,
            true,
            shuffle,
            seed,
            undirected,
            sampler,
        )
        if valid is not None:
            valid = self._link_loader(
                graph,
                valid,
                negatives,
                batch_size,
                true,
                False,
                seed,
                undirected,
                sampler,
            )
        return super().fit(train, None, validation_data=valid, seed=seed, **kwargs)

    def evaluate(
        self,
        x=None,
        pairs=None,
        negatives: NegativeSampler | NodePairs | None = None,
        known=None,
        seed: int = 0,
        by_layer: bool = False,
        undirected: bool | None = None,
        **kwargs,
    ) -> dict[str, float]:
        """Return loss, area under the ROC curve and average precision, all exact.

        Args:
            x: The graph, whose edges carry messages; or what Keras takes.
            pairs: Pairs that are true; by default those of `fit`.
            negatives: `NegativeSampler`, or pairs that are not true; by default one
                uniform pair for each.
            known: Pairs that are true besides `pairs` and the edges of the graph, which
                a sampler avoids.
            seed: Seed of the sampler.
            by_layer: As for `predict`.
            undirected: As for `fit`. Pairs that are edges of the graph themselves are
                those of the training, and may be evaluated.
            **kwargs: Passed to `keras.Model.evaluate` if `x` is a `LinkLoader` or what
                Keras takes; without effect for a graph.

        Returns:
            `"loss"`, `"auc"` and `"average_precision"` by name. With the objective
            "softmax" there must be as many negatives for each pair.

        Raises:
            ValueError: If pairs are no edges, but messages give them away.
        """
        from keras_bandgnn.training.link_metrics import average_precision, link_auc

        undirected = self._undirected(undirected)
        if _has_pairs(x) or not _is_graph(x):
            _refuse_options(
                "evaluate(loader)",
                "LinkLoader(graph, pairs, ...)",
                pairs=pairs,
                negatives=negatives,
                known=known,
            )
            if by_layer:
                refuse("x", "a graph with by_layer=True", x)
            # During `fit` the pairs were checked before the first epoch.
            if _has_pairs(x) and not kwargs.get("_use_cached_eval_dataset"):
                self._check_messages("pairs", x.graph, x.pairs, undirected)
            return super().evaluate(x, **kwargs)
        kwargs = options_for_graphs((), (), kwargs)
        if unknown := set(kwargs) - {"verbose", "return_dict", "callbacks"}:
            raise TypeError(
                f"Expected options of Keras. Received: {sorted(unknown)}. Options of a "
                "graph are pairs, negatives, known, seed, by_layer and undirected."
            )
        graph = self._graph(x)
        if not self.compiled:
            raise ValueError(
                "Expected a compiled task. Received: a task that was created with "
                "compile=False. Call task.compile() before evaluate."
            )
        if pairs is None:
            pairs = split_links(graph, 0.0, 0.0).train_pairs
        pairs = self._pairs("pairs", pairs, graph)
        _refuse_empty("pairs", pairs)
        self._check_messages("pairs", graph, pairs, undirected)
        if negatives is None or isinstance(negatives, NegativeSampler):
            sampler = NegativeSampler() if negatives is None else negatives
            kinds = sampler.types_of(graph)
            true = self._true(graph, pairs, known)
            negatives = sampler.sample(
                pairs, graph.num_nodes, true, kinds, seed, undirected=undirected
            )
        negatives = self._pairs("negatives", negatives, graph)
        _refuse_empty("negatives", negatives)
        both = NodePairs.concatenate([pairs, negatives])
        scores = self.predict(graph, both, by_layer=by_layer)
        positive, negative = np.split(scores, [len(pairs)])
        return {
            "loss": self._mean_loss(positive, negative),
            "auc": link_auc(positive, negative),
            "average_precision": average_precision(positive, negative),
        }

    def _mean_loss(self, positive: np.ndarray, negative: np.ndarray) -> float:
        if self.objective == "softmax":
            if len(negative) % len(positive):
                raise ValueError(
                    "Expected as many `negatives` for each pair with "
                    f"objective='softmax'. Received: {len(negative)} for "
                    f"{len(positive)} pairs."
                )
            rows = negative.reshape(len(positive), -1)
            outputs = np.concatenate([positive[:, None], rows], axis=1)
            y = np.zeros((len(positive), 1), np.int32)
        else:
            outputs = np.concatenate([positive, negative])[:, None]
            y = np.repeat([1.0, 0.0], [len(positive), len(negative)])[:, None]
        weight = np.ones(len(y), np.float32)
        return float(self.loss(y.astype(np.float32), outputs, weight))

    # === Predictions ===

    def predict(
        self,
        x,
        pairs=None,
        batch_size: int | None = None,
        by_layer: bool = False,
        **kwargs,
    ):
        """Return the scores of pairs, logits.

        Args:
            x: The graph, whose edges carry messages; or what Keras takes.
            pairs: The pairs; by default the edges of the graph.
            batch_size: Pairs scored at a time.
            by_layer: Whether the states of nodes are computed one layer at a time, for
                graphs that do not fit a step; see `NodeClassifier.predict_by_layer`.
            **kwargs: Passed to `keras.Model.predict` if `x` is what Keras takes.

        Returns:
            float32 [Q], in the order of the pairs.
        """
        if not _is_graph(x):
            _refuse_options(
                "predict(x) of batches",
                "the batches",
                pairs=pairs,
            )
            if by_layer:
                refuse("x", "a graph with by_layer=True", x)
            return super().predict(x, **kwargs)
        size = _PAIRS if batch_size is None else positive_int("batch_size", batch_size)
        graph = self._graph(x)
        pairs = NodePairs.of_edges(graph) if pairs is None else pairs
        pairs = self._pairs("pairs", pairs, graph)
        if not len(pairs):
            return np.zeros(0, np.float32)
        states = self._states(graph, by_layer)
        size = min(size, len(pairs))
        scores = [
            self._scores(states, pairs.take(slice(start, start + size)), size)
            for start in range(0, len(pairs), size)
        ]
        return np.concatenate(scores)

    def rank(
        self,
        graph: Graph,
        pairs,
        known=None,
        sides: str = "receiver",
        chunk: int | None = None,
        verbose="auto",
        by_layer: bool = False,
        undirected: bool | None = None,
        self_pairs: bool = True,
    ) -> np.ndarray:
        """Return the rank of the true node of each pair among all nodes.

        1 is best. Nodes with the same score share the mean of their ranks, so that a
        model that scores all alike gets the rank of chance.

        Args:
            graph: The graph, whose edges carry messages.
            pairs: Pairs that are true.
            known: All pairs that are true, such as `split.known`: other true answers
                are left out of the ranking (filtered ranks). None for raw ranks.
            sides: Which node of a pair is asked for, given the other and the type:
                `"receiver"`, `"sender"` or `"both"`.
            chunk: Pairs whose scores are in memory at a time; by default as many as
                make 16 million numbers.
            verbose: 0 for no progress bar, which is shown after two seconds.
            by_layer: As for `predict`.
            undirected: As for `evaluate`. The reverse of a known pair is known, too.
            self_pairs: Whether a node is among its own answers. With False it is left
                out, unless it is the true one, as for graphs without self-loops:
                h . h, the score `"dot"` of a node with itself, tends to be its largest.

        Returns:
            float64 [Q], or [2, Q] of receivers and senders with `"both"`.

        Raises:
            ValueError: For pairs of other nodes or types, or that messages give away.
        """
        one_of("sides", sides, SIDES)
        graph = self._graph(graph)
        pairs = self._pairs("pairs", pairs, graph)
        if known is not None:
            known = self._known(graph, known)
        optional(positive_int, "chunk", chunk)
        undirected = self._undirected(undirected)
        self._check_messages("pairs", graph, pairs, undirected)
        if undirected and known is not None:
            known = both_ways(known)
        boolean("self_pairs", self_pairs)
        if chunk is None:
            width = 1
            if self.head.score == "mlp":
                width = self.head.hidden or self.backbone.hidden_dim
            chunk = max(1, _CHUNK // (graph.num_nodes * width))
        chunk = max(1, min(chunk, len(pairs)))
        states = self._states(graph, by_layer)
        ends = ("receiver", "sender") if sides == "both" else (sides,)
        shown = verbose not in (0, False)
        with progress_bar("Ranking", len(ends) * len(pairs), shown) as advance:
            ranks = [
                self._ranks(states, pairs, known, end, chunk, advance, self_pairs)
                for end in ends
            ]
        return np.stack(ranks) if sides == "both" else ranks[0]

    def _ranks(
        self, states, pairs, known, end, chunk, advance, self_pairs
    ) -> np.ndarray:
        """Return the rank of one end of each pair, float64 [Q]."""
        asked = pairs if end == "receiver" else pairs.reversed()
        others = None
        if known is not None:
            others = _Answers(known if end == "receiver" else known.reversed())
        ranks = np.empty(len(pairs))
        for start in range(0, len(pairs), chunk):
            part = slice(start, start + chunk)
            table = np.array(self._scores(states, pairs.take(part), chunk, end))
            rows = np.arange(len(table))
            true = table[rows, asked.receivers[part]]
            if others is not None:
                table[others.of(asked.take(part))] = -np.inf
            if not self_pairs:
                table[rows, asked.senders[part]] = -np.inf
            # The true node may be among the known ones.
            table[rows, asked.receivers[part]] = -np.inf
            above = (table > true[:, None]).sum(axis=1)
            ties = (table == true[:, None]).sum(axis=1)
            ranks[part] = 1 + above + 0.5 * ties
            advance(len(rows))
        return ranks

    def _states(self, graph: Graph, by_layer: bool = False) -> np.ndarray:
        """Return the states of all nodes, float32 [1, N, H], in the caller's order."""
        from keras_bandgnn.models.layerwise import states_by_layer

        boolean("by_layer", by_layer)
        self._one_device()
        self._complete(graph)
        if by_layer:
            (states,) = states_by_layer(self, [graph])
        else:
            (states,) = self.embed([graph])
        if np.isnan(states).any():
            raise ValueError(
                "Expected states of all nodes. Received: NaN, of a model that diverged "
                "or of nodes that the preprocessor drops. Lower the learning rate, or "
                "apply layers that drop nodes before splitting the edges."
            )
        return np.asarray(states, np.float32)[None]

    def _scores(
        self, states: np.ndarray, pairs: NodePairs, size: int, end: str | None = None
    ) -> np.ndarray:
        """Return the scores [q] of pairs; or [q, N], with each node at one end.

        Args:
            states: float32 [1, N, H].
            pairs: At most `size` pairs.
            size: What pairs are padded to, so that steps have one shape.
            end: The end of pairs that all nodes take; None to score the pairs
                themselves.
        """
        missing = (0, size - len(pairs))
        pair = {
            name: np.pad(ids, missing)[None]
            for name, ids in (
                ("sender", pairs.senders),
                ("receiver", pairs.receivers),
                ("type", pairs.types),
            )
        }
        program = compiled(self, _pair_scores, end)
        out = program.predict_on_batch({"states": states, "pair": pair})
        return np.asarray(out)[0, : len(pairs)]

    # === Graphs and loaders ===

    def _graph(self, x) -> Graph:
        """Return the graph, which may be alone in a list."""
        if isinstance(x, list | tuple) and len(x) == 1:
            (x,) = x
        if isinstance(x, list | tuple) and x and isinstance(x[0], Graph):
            raise ValueError(
                "Expected one graph, as pairs number the nodes of one. Received: "
                f"{len(x)} graphs. Join them to one graph without edges between them."
            )
        if _holds_graphs(x):
            if len(x) == 1:
                return x[0]
            refuse("graph", "a store or FlatGraphs of one graph", x, "Pass graphs[i].")
        if not isinstance(x, Graph):
            refuse("graph", "a Graph", x)
        return x

    def _pairs(self, name: str, pairs, graph: Graph) -> NodePairs:
        """Return pairs of nodes of a graph; without types if the head has none."""
        pairs = as_pairs(name, pairs, graph.num_nodes, self.head.num_relations)
        if self.head.num_relations is None:
            return NodePairs(pairs.senders, pairs.receivers)
        return pairs

    def _known(self, graph: Graph, known) -> NodePairs:
        """Return known pairs, which may have the types of messages, such as reverses.

        Args:
            graph: The graph that carries the messages.
            known: The argument.
        """
        relations = self.head.num_relations
        if relations is None:
            return self._pairs("known", known, graph)
        types = max(relations, int(graph.edge_type.max(initial=-1)) + 1)
        return as_pairs("known", known, graph.num_nodes, types)

    def _true(self, graph: Graph, pairs: NodePairs, known) -> NodePairs:
        """Return all pairs that negatives avoid."""
        parts = [pairs, self._edges(graph)]
        if known is not None:
            parts.append(self._known(graph, known))
        true = NodePairs.concatenate(parts)
        if is_undirected(graph):
            true = both_ways(true)
        return true

    # === Leaks ===

    def _undirected(self, undirected: bool | None) -> bool:
        """Return whether links leak, rather than triples alone."""
        if optional(boolean, "undirected", undirected) is None:
            return self.head.num_relations is None
        return undirected

    def _check_validation(self, graph, pairs, valid, undirected: bool) -> None:
        """Raise a ValueError if edges or pairs to train on give others away.

        Args:
            graph: The graph that carries the messages.
            pairs: `NodePairs` to train on.
            valid: `NodePairs` to validate on.
            undirected: See `fit`.
        """
        edges, count = self._edges(graph), graph.num_nodes
        for what, seen in (("edges of the graph", edges), ("pairs to train on", pairs)):
            refuse_leaks(
                f"`validation_pairs` that are no {what}",
                valid,
                leaks(valid, seen, count, undirected),
                undirected,
                _ADVICE,
            )
        self._check_messages("validation_pairs", graph, valid, undirected)

    def _check_messages(self, name: str, graph, pairs, undirected: bool) -> None:
        """Raise a ValueError for pairs that are no edges, but messages as edges are.

        Args:
            name: The argument, for errors.
            graph: The graph that carries the messages.
            pairs: `NodePairs` to evaluate on.
            undirected: See `fit`.
        """
        edges, count = self._edges(graph), graph.num_nodes
        if self.head.num_relations is None:
            # Those of a loader may have types.
            pairs = without_types(pairs)
        if undirected:
            leaked = leaks(pairs, edges, count, undirected=True)
            leaked &= ~leaks(pairs, edges, count, undirected=False)
            expected = f"`{name}` that are no edges in reverse or of another type"
            refuse_leaks(expected, pairs, leaked, False, _ADVICE)
            return
        layers = () if self.preprocessor is None else self.preprocessor.graph_layers
        if not layers or not mirrored(pairs, edges, count).any():
            return
        seen = self._messages(graph)
        added = added_reverses(NodePairs.of_edges(graph), seen, count)
        # Layers that read no edges, such as RadiusGraph, add the same ones without.
        others = with_edges(graph, ~leaks(edges, pairs, count, undirected=True))
        added &= ~leaks(seen, self._messages(others), count, undirected=False)
        seen = seen.take(added)
        if self.head.num_relations is None:
            seen = without_types(seen)
        names = ", ".join(type(layer).__name__ for layer in layers)
        refuse_leaks(
            f"`{name}` that are no messages after the layers of the preprocessor",
            pairs,
            leaks(pairs, seen, count, undirected=False),
            undirected,
            f"Of {names} leave out the layer that adds the reverse of edges, give "
            "reverse edges a type of their own, or split the edges with split_links, "
            "which keeps an edge and its reverse in one part.",
        )

    def _messages(self, graph: Graph) -> NodePairs:
        """Return the edges of a graph after the layers, between the caller's nodes."""
        # A graph that was reordered before has its own numbers.
        flat = self.preprocessor.transform([graph.replace(origin=None)])
        row = np.arange(graph.num_nodes) if flat.origin is None else flat.origin
        return NodePairs(row[flat.senders], row[flat.receivers], flat.edge_type)

    def _edges(self, graph: Graph) -> NodePairs:
        """Return the edges of a graph; without types if the head has none."""
        edges = NodePairs.of_edges(graph)
        return without_types(edges) if self.head.num_relations is None else edges

    def _one_device(self) -> None:
        if self.distribution.several:
            raise ValueError(
                "Expected one device for LinkPredictor. Received: "
                f"{self.distribution.size}. Create the task outside of the scope of a "
                "distribution."
            )

    def loader(self, graphs, shuffle: bool = False, seed: int = 0, **kwargs):
        """Return a loader of the task's batches.

        Args:
            graphs: The graph, whose edges are the pairs, with a uniform negative for
                each; a `LinkLoader` of other pairs is returned after its checks.
            shuffle: Whether each epoch has a new order and new negatives.
            seed: Seed of these.
            **kwargs: Passed to `Task.loader`.
        """
        if _has_pairs(graphs):
            return super().loader(graphs, shuffle, seed, **kwargs)
        graph = self._graph(graphs)
        self._complete(graph)
        pairs = self._pairs("graphs", NodePairs.of_edges(graph), graph)
        return self._link_loader(
            graph,
            pairs,
            NegativeSampler(),
            None,
            pairs,
            shuffle,
            seed,
            self._undirected(None),
        )

    def _link_loader(
        self,
        graph,
        pairs,
        negatives,
        batch_size,
        known,
        shuffle,
        seed,
        undirected,
        sampler=None,
    ):
        from keras_bandgnn.preprocessing.loading.link_loader import LinkLoader
        from keras_bandgnn.preprocessing.sampling.neighbor_sampler import (
            NeighborSampler,
        )

        self._one_device()
        if sampler is not None:
            if not isinstance(sampler, NeighborSampler):
                refuse("sampler", "a NeighborSampler, of the nodes of pairs", sampler)
            batch_size = batch_size or min(sampler.batch_size, len(pairs))
            # Every pair and every negative may have nodes of its own.
            count = 2 * batch_size * (1 + negatives.per_positive)
            nodes = min(count, graph.num_nodes)
            config = {**sampler.get_config(), "batch_size": nodes}
            sampler = NeighborSampler(**config)
        return LinkLoader(
            graph,
            pairs,
            negatives,
            batch_size,
            known,
            shuffle=shuffle,
            seed=seed,
            loader=super().loader([graph], training=False, sampler=sampler),
            undirected=undirected,
        )

    def default_preprocessor(self, graphs) -> GraphPreprocessor:
        """Return the preprocessor of a task that was created without one."""
        preprocessor = super().default_preprocessor(graphs)
        # One graph; a batch size above 1 would be nearly all padding.
        preprocessor.batcher = StaticBatcher(1, padding="64")
        return preprocessor

    def _complete(self, graph: Graph, training: bool = False) -> None:
        """Make a preprocessor for the graph, unless the task was given one."""
        # Training determines the batcher, even after earlier predictions.
        made = self.__dict__.get("_for_predictions")
        again = training and made is not None and self.preprocessor is made
        if self.preprocessor is not None and not again:
            return
        self.preprocessor = self.default_preprocessor([graph])
        # Bypass Keras' attribute tracking.
        self.__dict__["_for_predictions"] = None if training else self.preprocessor

    def _labelled(self, loader: Loader, name: str) -> Loader:
        if self.compiled and loader.pairs is None:
            raise ValueError(
                f"Expected `{name}` to be a graph or a LinkLoader. Received: "
                f"{type(loader).__name__}."
            )
        return super()._labelled(loader, name)

    def export(self, *args, **kwargs):
        """Raise an error: exported models take graphs, and have no pairs.

        Args:
            *args: Of `Task.export`.
            **kwargs: Of `Task.export`.
        """
        raise ValueError(
            "Expected a task that predicts for graphs, nodes or edges. Received: "
            "LinkPredictor, whose pairs exported models do not take. Save the task "
            "with task.save(path), or store task.embed(graph) and score pairs with "
            "task.head."
        )

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        config = self.head.get_config()
        names = ("num_relations", "hidden", "activation", "symmetric")
        return {
            **super().head_config(),
            "head": config["score"],
            "objective": self.objective,
            **{name: config[name] for name in names},
        }


def _refuse_empty(name: str, pairs: NodePairs) -> None:
    """Raise a ValueError for no pairs, over which no measure is defined."""
    if not len(pairs):
        raise ValueError(
            f"Expected `{name}` to have at least one pair. Received: 0. Pass pairs, "
            "such as split_links(graph, test=0.2).test_pairs."
        )


def _refuse_options(call: str, owner: str, **options) -> None:
    """Raise a ValueError that names the options of a graph that are not None."""
    if names := [name for name, value in options.items() if value is not None]:
        names = ", ".join(names)
        raise ValueError(
            f"Expected `{call}` without options that {owner} has itself. Received: "
            f"{names}. Leave {names} out and build the loader with them, or pass the "
            "graph instead of a loader."
        )


def _has_pairs(x) -> bool:
    return isinstance(x, Loader) and x.pairs is not None


def _is_graph(x) -> bool:
    """Return whether an argument is meant as a graph, not as data of Keras."""
    kinds = Graph | list | tuple | str | int | float
    return x is None or isinstance(x, kinds) or _holds_graphs(x)


def _holds_graphs(x) -> bool:
    """Return whether an argument is a `FlatGraphs` or a store."""
    return hasattr(x, "node_ptr") or hasattr(x, "shards")


def _pair_scores(task, inputs, end: str | None):
    """Return scores [1, Q] or [1, Q, N] of pairs from stored states."""
    states, parts = inputs["states"], {"pair": inputs["pair"]}
    if end is None:
        return task.head(states, parts)
    return task.head.score_nodes(states, parts, end)


class _Answers:
    """The known receivers for each sender and type.

    Args:
        known: All pairs that are true.
    """

    def __init__(self, known: NodePairs):
        order = np.lexsort((known.senders, known.types))
        self._receivers = known.receivers[order]
        self._keys = _question(known)[order]

    def of(self, pairs: NodePairs) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the known receivers in a table of scores."""
        wanted = _question(pairs)
        first = np.searchsorted(self._keys, wanted, "left")
        counts = np.searchsorted(self._keys, wanted, "right") - first
        rows = np.repeat(np.arange(len(pairs)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self._receivers[first[rows] + within]


def _question(pairs: NodePairs) -> np.ndarray:
    """Return one number for the sender and the type of each pair."""
    return (pairs.types.astype(np.int64) << 32) + pairs.senders
