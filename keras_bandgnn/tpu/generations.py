"""`TPUGeneration`: published speeds of TPUs."""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class TPUGeneration:
    """Published figures of a generation. A core is a device of the compiler.

    Args:
        name: Name as in topologies, such as "v5e".
        flops: Peak FLOP/s of a core in bfloat16.
        link: Bytes/s of a link to a neighbouring chip, in one direction.
        cores: Cores per chip.
        axes: Number of axes of the torus.
        chips: Chips of the largest slice.

    Example:
    >>> TPUGeneration.of("v2:16x16").topology(32)
    'v2:4x4'
    """

    name: str
    flops: float
    link: float
    cores: int
    axes: int
    chips: int

    @classmethod
    def of(cls, topology: str) -> "TPUGeneration":
        """Return the generation of a topology such as "v5e:4x8", or "v5e".

        Raises:
            ValueError: If the generation is unknown.
        """
        name = topology.split(":")[0]
        if name not in _GENERATIONS:
            raise ValueError(
                f"Expected a topology of {', '.join(_GENERATIONS)}, such as "
                f"'v5e:16x16'. Received: {topology!r}."
            )
        return _GENERATIONS[name]

    @property
    def max_cores(self) -> int:
        """Cores of the largest slice."""
        return self.cores * self.chips

    def forms(self, cores: int) -> bool:
        """Return whether `topology` supports slices with this number of cores."""
        chips = cores // self.cores
        power = chips >= 4 and chips & (chips - 1) == 0
        return cores % self.cores == 0 and power and chips <= self.chips

    def topology(self, cores: int) -> str:
        """Return the slice with `cores` cores whose axes are most nearly equal.

        Raises:
            ValueError: If there is no such slice.
        """
        if not self.forms(cores):
            raise ValueError(
                f"Expected a power of two of {4 * self.cores} to {self.max_cores} "
                f"cores for {self.name}. Received: {cores}."
            )
        power = (cores // self.cores).bit_length() - 1
        parts = [(power + axis) // self.axes for axis in range(self.axes)]
        # Axes of one chip come last: v4:2x2x1.
        parts.sort(key=lambda part: (part == 0, part))
        return f"{self.name}:{'x'.join(str(2**part) for part in parts)}"

    def cores_of(self, topology: str) -> int:
        """Return the number of cores of a topology such as "v5e:4x8".

        Raises:
            ValueError: If the name has no shape.
        """
        shape = re.fullmatch(r"\w+:(\d+(?:x\d+)*)", topology)
        if not shape:
            raise ValueError(
                f"Expected a shape such as '{self.topology(4 * self.cores)}'. "
                f"Received: {topology!r}."
            )
        return self.cores * math.prod(int(n) for n in shape.group(1).split("x"))


# v2 and the peak of v3: Jouppi et al., "A Domain-Specific Supercomputer for Training
# Deep Neural Networks", Communications of the ACM 63(7), 2020: 46 and 123 TFLOP/s per
# chip, links of 496 Gbit/s. v4 and the links of v3: Jouppi et al., "TPU v4", ISCA 2023:
# 275 TFLOP/s per chip, links of 50 and 70 GB/s. v5e, v5p and v6e: the pages of
# docs.cloud.google.com/tpu/docs: 197, 459 and 918 TFLOP/s per chip; 400, 1200 and 800
# GB/s in both directions of 4, 6 and 4 links together.
_GENERATIONS = {
    generation.name: generation
    for generation in (
        TPUGeneration("v2", 46e12 / 2, 62e9, 2, 2, 256),
        TPUGeneration("v3", 123e12 / 2, 70e9, 2, 2, 1024),
        TPUGeneration("v4", 275e12 / 2, 50e9, 2, 3, 4096),
        TPUGeneration("v5e", 197e12, 50e9, 1, 2, 256),
        TPUGeneration("v5p", 459e12, 100e9, 1, 3, 6144),
        TPUGeneration("v6e", 918e12, 100e9, 1, 2, 256),
    )
}
