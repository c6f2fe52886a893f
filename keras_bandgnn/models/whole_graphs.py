"""Models that share a task's backbone and look at all nodes of its graphs."""

from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor

# Models that a task keeps: each holds compiled programs.
_KEPT = 8


def helper_of(task, kind: type, *arguments):
    """A model over a task's backbone, kept so that it is compiled once.

    Its preprocessor is the task's, without a schedule: all nodes are computed.

    Args:
        task: The task.
        kind: Class of the model, made with the task and the arguments.
        *arguments: Arguments that tell it from others of its class.
    """
    # Past Keras, which would count the weights twice.
    known = task.__dict__.setdefault("_helpers", {})
    key = (kind.__name__, *arguments)
    if key in known:
        model = known.pop(key)
    else:
        model = kind(task, *arguments)
        while len(known) >= _KEPT:
            del known[next(iter(known))]
    # The one that was used last comes last.
    known[key] = model
    given = task.preprocessor
    if given is not None and getattr(given.plan, "schedule", None) is not None:
        given = GraphPreprocessor(
            given.graph_layers,
            given.batcher,
            given.plan.replace(schedule=None),
            given.edge_weight,
        )
    model.preprocessor = given
    return model
