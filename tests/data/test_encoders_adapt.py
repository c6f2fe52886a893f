"""`adapt` of every encoder refuses what it cannot convert."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import GraphEncoder

ENCODERS = [
    cls
    for cls in keras.saving.get_custom_objects().values()
    if isinstance(cls, type)
    and issubclass(cls, GraphEncoder)
    and cls is not GraphEncoder
    and cls.__module__.startswith("keras_bandgnn")
]
WRONG = {
    "paths": ["a.pt", "b.pt"],
    "numbers": [1, 2],
    "arrays": [np.ones(3), np.ones(3)],
    "objects": [object()],
    "bytes": [b"CCO"],
    "lists": [[1, 2], [3]],
}


def encoder_of(cls):
    if cls.__name__ == "TableEncoder":
        return cls("smiles", kb.preprocessing.SmilesEncoder())
    return cls()


def test_all_encoders_are_here():
    assert {"PyGEncoder", "NetworkXEncoder", "SmilesEncoder", "TableEncoder"} <= {
        cls.__name__ for cls in ENCODERS
    }


CASES = [
    pytest.param(cls, kind, id=f"{cls.__name__}-{kind}")
    for cls in ENCODERS
    for kind, items in WRONG.items()
    if not any(map(cls.accepts, items))
]


@pytest.mark.parametrize(("cls", "kind"), CASES)
def test_adapt_refuses_other_items(cls, kind):
    items, encoder = WRONG[kind], encoder_of(cls)
    with pytest.raises(ValueError, match="Expected .*Received"):
        encoder.adapt(items)
    with pytest.raises(ValueError, match="Expected .*Received"):
        encoder.adapt([None, *items])


# A `TableEncoder` learns the columns from its rows.
WITHOUT_ROWS = [cls for cls in ENCODERS if cls.__name__ != "TableEncoder"]


@pytest.mark.parametrize("cls", WITHOUT_ROWS, ids=lambda cls: cls.__name__)
def test_adapt_takes_graphs_and_nothing(cls):
    """Graphs teach nothing, as no items do."""
    nothing, graph = (
        encoder_of(cls).adapt(items).get_config() | {"name": None}
        for items in ([], [kb.Graph(2, [0], [1])])
    )
    assert nothing == graph
