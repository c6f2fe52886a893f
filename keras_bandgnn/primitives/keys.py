"""From the key of a primitive to the primitive."""

import re

from keras_bandgnn.primitives.active_blocks import ActiveBlocks
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import Primitive
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.segment import Segment
from keras_bandgnn.primitives.supernode import Supernode

_PRIMITIVES = {
    "active": ActiveBlocks,
    "banded": Banded,
    "block_sparse": BlockSparse,
    "dense": Dense,
    "grouped": Grouped,
    "segment": Segment,
    "supernode": Supernode,
}


def primitive_of(key: str, name: str = "key") -> Primitive:
    """The primitive that a key such as `"banded:128"` names."""
    try:
        return _PRIMITIVES[key.split(":")[0]].from_key(key)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"Expected `{name}` to be the key of a primitive, 'banded:128' or one of "
            f"{sorted(_PRIMITIVES)}. Received: {key!r}."
        ) from error


def is_resource(name: str) -> bool:
    """Whether a resource of this name belongs to some primitive."""
    return "@" in name or re.split("[:.]", name)[0] in (*_PRIMITIVES, "tiles")
