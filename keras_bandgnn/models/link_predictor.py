"""`LinkPredictor`: a score for pairs of nodes, such as links and triples."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import (
    boolean,
    non_negative_number,
    one_of,
    refuse,
)
from keras_bandgnn.data.link_ends import NodePairs, edge_set_name
from keras_bandgnn.graph import EdgeSet
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.layers.link_scorer import SCORES, LinkScorer, shared_ends
from keras_bandgnn.models.fitting import options_for_graphs, refuse_unknown
from keras_bandgnn.models.inputs import BATCHES, LOADER, read_inputs
from keras_bandgnn.models.labels import ClassLabels, TargetLabels
from keras_bandgnn.models.link_pairs import (
    check_edge_set,
    check_sampler,
    make_link_loader,
    one_graph,
    refuse_options,
)
from keras_bandgnn.models.pair_task import (
    OBJECTIVES,
    PairTask,
    embedding_penalty,
    mean_of_positives,
)
from keras_bandgnn.models.task import refuse_preprocessor
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampler import Sampler

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        BatchShape,
        Data,
        EvaluateOptions,
        Optimizer,
        PairFitOptions,
        Pairs,
        Shape,
        TaskOptions,
        Tensor,
    )
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
    from keras_bandgnn.preprocessing.sampling.shared_negatives import SharedNegatives

# Options that do not apply to pairs.
_LABELS = dict.fromkeys(
    ("validation_split", "y", "sample_weight", "class_weight"),
    "Pairs have no labels or weights: pass pairs, and validation_pairs.",
)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class LinkPredictor(PairTask):
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
        objective: Objective of training. `"binary"`: each pair by itself is true or
            not. `"softmax"`: each true pair is the most likely one among it and its
            negatives, drawn for it or `SharedNegatives`. `"bpr"`: it has a larger score
            than each of them, see `BPRLoss`; negatives are other receivers of its
            sender.
        hidden: Width of the hidden layer of `"mlp"`; by default that of the states.
        activation: Activation of that layer.
        symmetric: Whether `"bilinear"` and `"mlp"` score a pair like its reverse.
        edge_set: (source set, relation, target set) of pairs in graphs with node sets.
            They are then rows of these sets, negatives and `rank` compare nodes of the
            sets alone, and `"distmult"` and `"complex"` have num_relations=1.
        embedding_l2: Factor of half the squared lengths of the embedded nodes of a
            positive and its negatives (but for shared ones), before messages, which
            training adds to the loss as their mean over positives; 0 for none. He et
            al. 2020 have 1e-4.
        n3: Factor of the cubed moduli of the embedded nodes and the relation of a
            positive, see `LinkScorer.nuclear_norm`, which training adds to the loss as
            their mean over positives; 0 for none. For `"distmult"` and `"complex"`.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`) with the part `"pair"`, as of a
        `LinkLoader`. Labels are 1 for links and 0 for other pairs.

    Output shape:
        float32 logits [G, Q]. `predict(graph, pairs)` returns an array [Q]. Of batches
        with `SharedNegatives` logits [G, S, Q, 1 + C], see `LinkScorer.compare`.

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
    sizes_batcher = True

    def __init__(
        self,
        backbone: Backbone,
        head: str = "dot",
        num_relations: int | None = None,
        preprocessor: GraphPreprocessor | None = None,
        *,
        objective: str = "binary",
        hidden: int | None = None,
        activation: Activation = "relu",
        symmetric: bool = False,
        edge_set: EdgeSet | None = None,
        embedding_l2: float = 0.0,
        n3: float = 0.0,
        **kwargs: Unpack[TaskOptions],
    ):
        refuse_preprocessor("head", head)
        super().__init__(backbone, preprocessor, **kwargs)
        one_of("head", head, SCORES)
        self.objective = one_of("objective", objective, OBJECTIVES)
        self.edge_set = edge_set_name(edge_set)
        if self.edge_set is not None and num_relations not in (None, 1):
            refuse("num_relations", "None or 1 with `edge_set`", num_relations)
        self.embedding_l2 = non_negative_number("embedding_l2", embedding_l2)
        self.n3 = non_negative_number("n3", n3)
        if self.n3 and head not in ("distmult", "complex"):
            refuse("n3", f"0 with the head {head!r}", n3)
        self.labels = ClassLabels() if self.compares else TargetLabels(1)
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

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build the weights of the head."""
        self.head.build((None, None, self.backbone.hidden_dim))
        self.built = True

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return logits [G, Q], or [G, S, Q, 1 + C] with shared negatives."""
        pair = batch_part(batch, "pair", "task.predict(graph, pairs)")
        if training and (self.embedding_l2 or self.n3):
            # The last of the hidden states are the output.
            for number, states in enumerate(self.backbone.hidden_states(batch, True)):
                if number == 0:
                    self.add_loss(self._penalty(states, batch))
        else:
            states = self.backbone(batch, training=training)
        states = ops.cast(states, "float32")
        if shared_ends(pair):
            return self.head.compare(states, batch)
        return self.head(states, batch)

    def _penalty(self, states, batch):
        """Return the terms that training adds to the loss, of embedded nodes."""
        total = 0.0
        if self.embedding_l2:
            total = self.embedding_l2 * embedding_penalty(states, batch)
        if self.n3:
            norm = self.head.nuclear_norm(ops.cast(states, "float32"), batch)
            total = total + self.n3 * mean_of_positives(norm, batch)
        return total

    def compute_output_shape(self, input_shape: BatchShape) -> Shape:
        """Return [G, Q], or [G, S, Q, 1 + C] with shared negatives."""
        pair = input_shape["pair"]
        groups, count = pair["sender"]
        if ends := shared_ends(pair):
            width = pair[f"shared_{ends[0]}"][1]
            return groups, len(ends), count, None if width is None else 1 + width
        return groups, count

    # === Training ===

    def default_optimizer(self) -> Optimizer:
        """Return Adam with rate 1e-2, as Kipf and Welling 2016; of "bpr" 1e-3.

        As He et al. 2020, with an epsilon below the gradients of embeddings by a mean
        over pairs, which Keras' 1e-7 is not.
        """
        if self.objective == "bpr":
            return keras.optimizers.Adam(1e-3, epsilon=1e-9)
        return keras.optimizers.Adam(1e-2)

    def fit(
        self,
        x: Data | None = None,
        pairs: Pairs | None = None,
        negatives: NegativeSampler | SharedNegatives | None = None,
        batch_size: int | None = None,
        known: Pairs | None = None,
        validation_pairs: Pairs | None = None,
        seed: int = 0,
        sampler: Sampler | None = None,
        undirected: bool | None = None,
        **kwargs: Unpack[PairFitOptions],
    ) -> keras.callbacks.History:
        """Train on pairs of a graph.

        Each step computes the states of all nodes, or with `sampler` those of a
        subgraph, and the scores of a batch of pairs and of negatives drawn for them.

        Args:
            x: The graph, whose edges carry messages; or a `LinkLoader`, which has the
                pairs, negatives, batch size, known pairs and sampler itself.
            pairs: Pairs that are true; by default the edges of the graph without
                self-loops, of an undirected graph each once.
            negatives: `NegativeSampler`, or `SharedNegatives` for the objective
                "softmax" without `sampler`; by default one uniform pair for each, and
                with the objective "bpr" one other receiver.
            batch_size: True pairs of a step; None for all of them, or with `sampler`
                as many as it says.
            known: Pairs that are true besides `pairs` and the edges of the graph, which
                negatives avoid, but for shared ones.
            validation_pairs: True pairs to validate on. Their negatives are the same in
                every epoch. With a `LinkLoader` they have its negatives, batch size and
                known pairs; negatives of its own pairs avoid them if they are `known`
                to it.
            seed: Seed of the order, the negatives and, on torch, of dropout.
            sampler: `NeighborSampler` for graphs that do not fit a step: a step has the
                neighbours that it draws around the nodes of the pairs, as many true
                ones as its `batch_size`, unless `fit` has another. With its option
                `time` those that are earlier than the pair, so that `x` may have edges
                of all times; negatives have the time of their pair. None for the whole
                graph.
            undirected: Whether a pair and its reverse are one fact. Then
                `validation_pairs` leak if their reverse, or an edge of another type, is
                among the messages or the pairs, see `check_leaks`; and negatives avoid
                the reverse of true pairs. By default without `num_relations`; triples
                are compared as they are. With `edge_set` False compares pairs with this
                edge set and its reverse, `rev_<relation>`.
            **kwargs: Passed to `Task.fit`, such as `epochs`, `callbacks` and
                `verbose`.

        Returns:
            Keras' `History`.

        Raises:
            ValueError: If messages or pairs to train on give `validation_pairs` away;
                for options besides a `LinkLoader` that it has itself.
        """
        from keras_bandgnn.preprocessing.loading.link_loader import validation_loader

        check_sampler(sampler)
        kwargs = options_for_graphs((), (), kwargs, _LABELS)
        inputs, valid = read_inputs("x", x), kwargs.pop("validation_data", None)
        if inputs.kind == LOADER and inputs.data.pairs is not None:
            loader = inputs.data
            refuse_options(
                "fit(loader)",
                "LinkLoader(graph, pairs, ...)",
                pairs=pairs,
                negatives=negatives,
                batch_size=batch_size,
                known=known,
                sampler=sampler,
            )
            if valid is not None and validation_pairs is not None:
                refuse("validation_data", "None with `validation_pairs`", valid)
            if valid is None and validation_pairs is None:
                refuse_options("fit(loader)", "the loader", undirected=undirected)
        elif valid is not None:
            advice = "Pass validation_pairs; their graph is the one of x."
            refuse("validation_data", "None in `fit` of a graph", valid, advice)
        else:
            links = self._links(one_graph(self, inputs), undirected)
            self.complete([links.graph], training=True)
            loader = make_link_loader(
                self,
                links,
                links.read_or_edges(pairs, sampler),
                known,
                validation_pairs,
                negatives=negatives,
                batch_size=batch_size,
                shuffle=kwargs.pop("shuffle", True),
                seed=seed,
                sampler=sampler,
            )
        if validation_pairs is not None:
            links = self._links(loader.graph, undirected)
            held_out = links.read("validation_pairs", validation_pairs)
            links.check_validation(loader.pairs, held_out, loader.assembler.sampler)
            valid = validation_loader(loader, held_out, seed)
        elif isinstance(valid, Loader) and valid.pairs is not None:
            links = self._links(valid.graph, undirected)
            links.check_validation(loader.pairs, valid.pairs, valid.assembler.sampler)
        return super().fit(loader, None, validation_data=valid, seed=seed, **kwargs)

    def evaluate(
        self,
        x: Data | None = None,
        pairs: Pairs | None = None,
        negatives: NegativeSampler | NodePairs | None = None,
        known: Pairs | None = None,
        seed: int = 0,
        by_layer: bool = False,
        undirected: bool | None = None,
        sampler: Sampler | None = None,
        **kwargs: Unpack[EvaluateOptions],
    ) -> dict[str, float]:
        """Return loss, area under the ROC curve and average precision, all exact.

        Args:
            x: The graph, whose edges carry messages; or data of Keras.
            pairs: Pairs that are true; by default those of `fit`.
            negatives: `NegativeSampler`, by default as for `fit`; or pairs that are
                not true.
            known: Pairs that are true besides `pairs` and the edges of the graph, which
                a sampler avoids.
            seed: Seed of the sampler.
            by_layer: As for `predict`.
            undirected: As for `fit`. Pairs that are edges of the graph themselves are
                those of the training, and may be evaluated.
            sampler: As for `fit`; also for `negatives`, which then need times if it
                draws by time. `x` may then have edges of all times.
            **kwargs: Passed to `keras.Model.evaluate` if `x` is a `LinkLoader` or data
                of Keras; without effect for a graph.

        Returns:
            `"loss"`, `"auc"` and `"average_precision"` by name. But with the objective
            "binary" there must be as many negatives for each pair.

        Raises:
            ValueError: If pairs are no edges, but messages give them away.
        """
        from keras_bandgnn.models.link_scores import measures

        inputs = read_inputs("x", x)
        if inputs.kind in (LOADER, BATCHES):
            refuse_options(
                "evaluate(loader)",
                "LinkLoader(graph, pairs, ...)",
                pairs=pairs,
                negatives=negatives,
                known=known,
                sampler=sampler,
            )
            if by_layer:
                refuse("x", "a graph with by_layer=True", x)
            # During `fit` the pairs were checked before the first epoch.
            if inputs.kind == LOADER and not kwargs.get("_use_cached_eval_dataset"):
                self._check_loader(inputs.data, undirected)
            return super().evaluate(inputs, **kwargs)
        kwargs = options_for_graphs((), (), kwargs)
        refuse_unknown(
            kwargs,
            ("verbose", "return_dict", "callbacks"),
            "pairs, negatives, known, seed, by_layer, undirected and sampler",
        )
        links = self._links(one_graph(self, inputs), undirected)
        if not self.compiled:
            raise ValueError(
                "Expected a compiled task. Received: a task that was created with "
                "compile=False. Call task.compile() before evaluate."
            )
        check_sampler(sampler, by_layer)
        options = seed, by_layer, sampler
        return measures(self, links, pairs, negatives, known, *options)

    def _check_loader(self, loader, undirected: bool | None) -> None:
        if loader.pairs is not None:
            links = self._links(loader.graph, undirected)
            links.check_messages("pairs", loader.pairs, loader.assembler.sampler)

    # === Graphs and loaders ===

    def loader(
        self,
        graphs: Data,
        shuffle: bool = False,
        seed: int = 0,
        adapt: bool = False,
        training: bool = True,
        sampler: Sampler | None = None,
    ) -> Loader:
        """Return a loader of the task's batches.

        Args:
            graphs: The graph, whose edges are the pairs, with a negative for each; a
                `LinkLoader` of other pairs is returned after its checks.
            shuffle: Whether each epoch has a new order and new negatives.
            seed: Seed of these.
            adapt: As for `Task.loader`; the batch of a graph needs no budget.
            training: As for `Task.loader`.
            sampler: As for `fit`.
        """
        boolean("adapt", adapt)
        boolean("training", training)
        inputs = read_inputs("graphs", graphs)
        if inputs.kind == LOADER and inputs.data.pairs is not None:
            return super().loader(inputs, shuffle, seed, adapt, training, sampler)
        check_sampler(sampler)
        links = self._links(one_graph(self, inputs))
        if sampler is None:
            pairs = links.read_or_all("graphs", None)
        else:
            pairs = links.read_or_edges(None, sampler)
        options = {"shuffle": shuffle, "seed": seed, "sampler": sampler}
        return make_link_loader(self, links, pairs, **options)

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if graphs or pairs of a loader do not fit the task."""
        super().check(loader)
        check_edge_set(loader, self.edge_set)
        if loader.pairs is not None:
            self.check_negatives(loader.assembler.negatives)

    def export(self, *args: object, **kwargs: object) -> NoReturn:
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
        head = {name: config[name] for name in names}
        if self.edge_set is not None:
            head["edge_set"] = self.edge_set
        head |= {"head": config["score"], "objective": self.objective}
        head |= {"embedding_l2": self.embedding_l2, "n3": self.n3}
        return super().head_config() | head
