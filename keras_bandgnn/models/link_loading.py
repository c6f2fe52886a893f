"""Loaders of pairs and negatives for `LinkPredictor`, from its graph and arguments."""

from keras_bandgnn.checks import refuse
from keras_bandgnn.data.link_splits import NodePairs
from keras_bandgnn.models.input_loader import input_loader
from keras_bandgnn.models.inputs import GRAPHS, Inputs
from keras_bandgnn.models.link_pairs import GraphPairs
from keras_bandgnn.models.link_ranking import check_one_device
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampler import Sampler


def make_link_loader(
    task,
    links: GraphPairs,
    pairs: NodePairs,
    known: NodePairs,
    negatives: NegativeSampler | None = None,
    batch_size: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    sampler: Sampler | None = None,
) -> Loader:
    """Return a `LinkLoader` whose batches suit the backbone of a task.

    Args:
        task: The `LinkPredictor`.
        links: Has the graph.
        pairs: Pairs that are true.
        known: Pairs that negatives avoid.
        negatives: See `LinkPredictor.fit`, also for the others.
        batch_size: True pairs of a step.
        shuffle: Whether each epoch has a new order and new negatives.
        seed: Of these.
        sampler: `NeighborSampler`, or None for the whole graph.
    """
    from keras_bandgnn.preprocessing.loading.link_loader import LinkLoader
    from keras_bandgnn.preprocessing.sampling.neighbor_sampler import NeighborSampler

    check_one_device(task)
    graph = links.graph
    negatives = NegativeSampler() if negatives is None else negatives
    if sampler is not None:
        if not isinstance(sampler, NeighborSampler):
            refuse("sampler", "a NeighborSampler, of the nodes of pairs", sampler)
        batch_size = batch_size or min(sampler.batch_size, len(pairs))
        # Every pair and every negative may have nodes of its own.
        count = 2 * batch_size * (1 + negatives.per_positive)
        nodes = min(count, graph.num_nodes)
        sampler = NeighborSampler(**{**sampler.get_config(), "batch_size": nodes})
    loader = input_loader(
        task, Inputs(GRAPHS, [graph], graph), training=False, sampler=sampler
    )
    return LinkLoader(
        graph,
        pairs,
        negatives,
        batch_size,
        known,
        shuffle=shuffle,
        seed=seed,
        loader=loader,
        undirected=links.undirected,
    )


def training_loader(
    task,
    links: GraphPairs,
    pairs,
    known,
    validation_pairs,
    **options,
) -> Loader:
    """Return the loader of `LinkPredictor.fit` for a graph.

    Args:
        task: The `LinkPredictor`, whose preprocessor is set if it had none.
        links: Has the graph.
        pairs: Pairs to train on; None for the edges.
        known: Other pairs that are true, or None.
        validation_pairs: Held-out pairs, which negatives avoid, or None.
        **options: See `make_link_loader`.
    """
    task.complete([links.graph], training=True)
    pairs = links.read_or_edges(pairs)
    true = links.true(pairs, known)
    if validation_pairs is not None:
        held_out = links.read("validation_pairs", validation_pairs)
        true = NodePairs.concatenate([links.true(held_out), true])
    return make_link_loader(task, links, pairs, true, **options)


def refuse_options(call: str, owner: str, **options) -> None:
    """Raise a ValueError that names the options of a graph that are not None."""
    if names := [name for name, value in options.items() if value is not None]:
        names = ", ".join(names)
        raise ValueError(
            f"Expected `{call}` without options that {owner} has itself. Received: "
            f"{names}. Leave {names} out and build the loader with them, or pass the "
            "graph instead of a loader."
        )


def refuse_labels(options: dict) -> None:
    """Raise a ValueError for labels and weights, which pairs do not have."""
    for name in ("validation_split", "y", "sample_weight", "class_weight"):
        if options.pop(name, None) is not None:
            raise ValueError(
                f"Expected `fit` of LinkPredictor without `{name}`. Received: {name}. "
                "Pass pairs, and validation_pairs."
            )
