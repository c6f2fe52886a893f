"""`input_loader`: build the loader of a task's batches from checked inputs."""

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.assembly.assembler import Assembler
from keras_bandgnn.checks import instance, refuse
from keras_bandgnn.models.inputs import LOADER, Inputs
from keras_bandgnn.models.labels import NumberLabels
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.sampling.sampler import Sampler


def input_loader(
    task,
    inputs: Inputs,
    shuffle: bool,
    seed: int,
    adapt: bool,
    training: bool,
    sampler: Sampler | None,
) -> Loader:
    """Return a loader of graphs.

    Args:
        task: The task, whose preprocessor is set if it had none.
        inputs: The graphs, or a loader.
        shuffle: See `GraphModel.loader`, also for the others.
        seed: Seed of the orders.
        adapt: Whether a batcher without a budget stores the one estimated here.
        training: Whether the batches are for training.
        sampler: Neighbour or subgraph sampler for large graphs.
    """
    loader, backbone = inputs.data, task.backbone
    if inputs.kind != LOADER:
        task.complete(inputs.data, adapt)
        if sampler is None:
            # Checked before layers replace the edges and their weights.
            backbone.check_weights([], task.preprocessor.edge_weight)
            loader = task.preprocessor.loader(
                inputs.data,
                adapt,
                shuffle=shuffle,
                seed=seed,
                num_edge_types=backbone.num_edge_types,
                schedule=task.receptive_field(training),
                width=backbone.hidden_dim,
                plan=task.distribution.auto_plan(task, inputs.data),
                **task.distribution.loader_options(),
            )
            if training:
                lay_out_transposes(loader)
    if sampler is not None:
        loader = _sample_loader(task, inputs, sampler, shuffle, seed)
    task.distribution.check(loader)
    _check_schedule(task, loader.plan.schedule, training)
    backbone.check_edge_types(loader.num_edge_types)
    drawn_by = getattr(loader.assembler, "sampler", None)
    by_time = drawn_by is not None and drawn_by.time is not None
    parts = loader.parts
    if by_time:
        from keras_bandgnn.preprocessing.sampling.time_trees import with_ages

        parts = [with_ages(part) for part in parts]
    for part in parts:
        backbone.check(part)
    backbone.check_weights(loader.parts, loader.edge_weight)
    task.check(loader)
    return loader


def lay_out_transposes(loader: Loader) -> None:
    """Let the one batch of a whole graph have the transposes that gradients read.

    Batches of many graphs have none: the host would lay them out anew for each batch.

    Args:
        loader: The loader to train on.
    """
    assembler = loader.assembler
    one = loader.starts[-1] == 1 and loader.replicas == 1
    if one and isinstance(assembler, Assembler) and graph_ops.USES_TRANSPOSE:
        assembler.transpose = True


def _sample_loader(task, inputs: Inputs, sampler, shuffle: bool, seed: int) -> Loader:
    """Return a loader of the subgraphs that a sampler draws."""
    from keras_bandgnn.preprocessing.loading.sample_loader import SampleLoader

    name, backbone = type(task).__name__, task.backbone
    if task.output_level not in ("node", "pair"):
        raise ValueError(
            "Expected a task over nodes, such as NodeClassifier, with `sampler`. "
            f"Received: {name}. Leave the sampler out: graphs are batched whole."
        )
    if inputs.kind == LOADER:
        refuse("x", "a graph, of which the sampler makes batches", inputs.data)
    if task.preprocessor.edge_weight is not None:
        raise ValueError(
            "Expected a preprocessor without `edge_weight` with a sampler, which "
            "weighs edges itself. Received: edge_weight="
            f"{task.preprocessor.edge_weight!r}. Draw edges in proportion to them: "
            "NeighborSampler(..., edge_weight=...)."
        )
    instance("sampler", sampler, Sampler, "a sampler, such as NeighborSampler([15])")
    if sampler.of_neighbours:
        instead = "ClusterSampler or SubgraphSampler"
        if task.output_level == "pair":
            instead = "a MessagePassingBackbone, such as SAGEBackbone"
        backbone.check_hops(sampler.num_hops, instead)
    return SampleLoader(
        task.preprocessor.transform(inputs.data),
        sampler,
        trimmed=sampler.of_neighbours and backbone.trims_hops,
        rescale=sampler.rescales(backbone.sums_messages),
        type_degrees=backbone.means_by_type,
        shuffle=shuffle,
        seed=seed,
        num_edge_types=backbone.num_edge_types,
        features=task.features_read(),
        classes=not isinstance(task.labels, NumberLabels),
        **task.distribution.loader_options(),
    )


def _check_schedule(task, schedule, training: bool) -> None:
    """Raise a ValueError for a schedule under which outputs would not be exact."""
    if schedule is None:
        return
    exact = task.receptive_field(training)
    backbone = type(task.backbone).__name__
    if exact is None:
        raise ValueError(
            f"Expected a plan without a schedule: {type(task).__name__} over "
            f"{backbone} reads all nodes. Received: {schedule}."
        )
    if schedule.steps != exact.steps:
        raise ValueError(
            f"Expected a schedule of {exact.steps} steps, as the backbone has. "
            f"Received: {schedule}."
        )
    if schedule.merge and not exact.merge:
        raise ValueError(
            "Expected ReceptiveField(..., merge=False), as equal nodes of "
            f"{backbone} differ in training. Received: {schedule}."
        )
