"""`Banded`: message passing as three batched matmuls over diagonal blocks."""

import numpy as np
from keras import ops

from keras_bandgnn.checks import positive_int
from keras_bandgnn.ops import densify
from keras_bandgnn.primitives.base import STEPS, Load, Primitive
from keras_bandgnn.primitives.edges import Edges


class Banded(Primitive):
    """Dense blocks on and next to the diagonal (Balog et al. 2019, Algorithm 1).

    Nodes are split into K blocks of S. Block k of the receivers gets messages from the
    blocks k - 1, k and k + 1 of the senders (L, C and U of Eq. 3), each by a matmul
    with a dense [S * P, S] block. Row s * P + p of a block is receiver s, type p.

    Args:
        block_size: S, at least 1. Edges with |i - j| < S are always covered.
        cover: `"blocks"` covers all edges between neighbouring blocks, as in the
            paper; coverage of those with S <= |i - j| < 2 S then depends on the graph's
            position in the supergraph. `"band"` covers exactly |i - j| < S.
    """

    name = "banded"
    sequence = "halo"

    def __init__(self, block_size: int, cover: str = "blocks"):
        if cover not in ("blocks", "band"):
            raise ValueError(
                f"Expected `cover` to be 'blocks' or 'band'. Received: cover={cover!r}."
            )
        self.block_size = positive_int("block_size", block_size)
        self.coverage = cover
        self.depends_on_place = cover == "blocks"

    def get_config(self) -> dict[str, int | str]:
        """Return the arguments of the constructor."""
        return {"block_size": self.block_size, "cover": self.coverage}

    def arguments(self) -> tuple[int | str, ...]:
        """Those of the keys `"banded:S"` and `"banded:S:band"`."""
        if self.coverage == "band":
            return self.block_size, "band"
        return (self.block_size,)

    def always_covers(self, edges: Edges) -> np.ndarray:
        """Edges with |i - j| < S."""
        return np.abs(edges.sender - edges.receiver) < self.block_size

    def cover(self, edges: Edges) -> np.ndarray:
        """Edges between the same or neighbouring blocks, or |i - j| < S."""
        if self.coverage == "band":
            return self.always_covers(edges)
        size = self.block_size
        return np.abs(edges.sender // size - edges.receiver // size) <= 1

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Return the covered edges, from which the device builds the blocks."""
        return edges.padded(budget[self.key()], self.key(), mask=True)

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Build the dense blocks L, C and U, side by side; see `ops.densify`.

        Parallel edges are counted with multiplicity. Counts are summed in float32 and
        then rounded to the compute dtype.
        """
        values = ops.cast(arrays.get("weight", arrays["mask"]), dtype)
        ends = (arrays["sender"], arrays["receiver"], arrays["type"])
        blocks = densify.banded_tiles(
            *ends, values, num_nodes, num_types, self.block_size
        )
        return {**arrays, "blocks": blocks}

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sum of the senders' states per receiver and type (lines 1 to 4).

        Args:
            prepared: What `prepare` returned.
            x: [G, N, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        return densify.banded_matmul(prepared["blocks"], x, self.block_size, num_types)

    def cost(self, load: Load, hardware) -> float:
        """Building the blocks, three matmuls per block, and the kernel product.

        All steps share the blocks, so a step is charged a part of building them.
        """
        nodes, size = load.sizes["node"], self.block_size
        rows = nodes * load.num_types
        entries = 3 * rows * size
        return (
            hardware.matmul_seconds(3 * rows, size, load.width, blocks=True)
            + hardware.write_seconds(entries / STEPS)
            + hardware.scatter_seconds(load.sizes[self.key()] / STEPS, 1)
            + hardware.matmul_seconds(rows, load.width, load.units)
        )
