"""`ProgramCosts`: FLOPs and collectives from the text of a compiled XLA program.

XLA's cost analysis counts the body of a loop once. This one counts every iteration, so
that a model that scans over its steps has the same costs as an unrolled one.
"""

import dataclasses
import json
import math
import re
from collections import defaultdict

import numpy as np

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# Asynchronous operations return their operands before their results.
_RETURNS_OPERANDS = ("all-gather-start", "collective-permute-start")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(
    r"(?:calls|to_apply|condition|body|true_computation|false_computation)=%?([\w.\-]+)"
)
_CALLED_LIST = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\s*(\{[^}]*\})')
_WINDOW = re.compile(r"window=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind.

    Args:
        count: Number of runs per step.
        bytes: Size of the results per step and core.
    """

    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class ProgramCosts:
    """Costs of a program on one core.

    Args:
        flops: Floating-point operations of the matrix products.
        collectives: Maps each kind, such as `"all-reduce"`, to its `Collective`.
        unknown_loops: Number of loops with an unknown trip count, taken as 1.
    """

    flops: float
    collectives: dict[str, Collective]
    unknown_loops: int

    @classmethod
    def from_text(cls, text: str) -> "ProgramCosts":
        """Parse the text of a compiled program.

        Args:
            text: Output of `compiled.as_text()` in JAX.

        Example:
        >>> text = '''
        ... ENTRY %main (x: f32[8,4], y: f32[4,2]) -> f32[8,2] {
        ...   %x = f32[8,4]{1,0} parameter(0)
        ...   %y = f32[4,2]{1,0} parameter(1)
        ...   ROOT %dot = f32[8,2]{1,0} dot(%x, %y), lhs_contracting_dims={1}
        ... }
        ... '''
        >>> ProgramCosts.from_text(text).flops
        128.0
        """
        computations, entry = _parse(text)
        totals: dict[str, float] = defaultdict(float)
        counts: dict[str, float] = defaultdict(float)
        unknown = 0
        for name, times in _run_counts(computations, entry).items():
            for instruction in computations[name].values():
                kind = instruction.opcode.removesuffix("-start")
                if kind in COLLECTIVES:
                    counts[kind] += times
                    totals[kind] += times * instruction.result_bytes()
                unknown += instruction.opcode == "while" and (
                    _trip_count(instruction, computations) is None
                )
                totals["flops"] += times * _flops(instruction, computations[name])
        collectives = {
            kind: Collective(int(counts[kind]), int(totals[kind]))
            for kind in sorted(counts)
        }
        return cls(totals["flops"], collectives, unknown)


@dataclasses.dataclass(frozen=True)
class _Instruction:
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def dims(self) -> tuple[int, ...]:
        """Return the shape of an array."""
        return _arrays(self.shape)[0][1]

    def result_bytes(self) -> int:
        arrays = _arrays(self.shape)
        if self.opcode in _RETURNS_OPERANDS:
            # (operands, results, optional semaphores), as many results as operands.
            count = len(self.operands)
            arrays = arrays[count : 2 * count]
        return sum(math.prod(dims) * _width(dtype) for dtype, dims in arrays)


def _arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return dtypes and shapes of the arrays of an HLO shape, possibly a tuple."""
    arrays = []
    for dtype, dims in _ARRAY.findall(shape):
        sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
        arrays.append((dtype, sizes))
    return arrays


def _width(dtype: str) -> float:
    """Return the bytes of an element."""
    if dtype == "pred":
        return 1
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) / 8 if digits else 0


def _closing_parenthesis(text: str) -> int:
    """Return the index after the parenthesis that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place + 1
    raise ValueError(f"Expected balanced parentheses. Received: {text[:80]!r}.")


def _instruction(text: str) -> _Instruction:
    # The layouts in a tuple can contain parentheses: `(f32[8]{0:T(256)}, s32[])`.
    end = _closing_parenthesis(text) if text.startswith("(") else text.index(" ")
    shape, tail = text[:end], text[end:].lstrip()
    opening = tail.index("(")
    closing = opening + _closing_parenthesis(tail[opening:])
    operands = re.sub(r"/\*.*?\*/", "", tail[opening + 1 : closing - 1])
    names = re.findall(r"%([\w.\-]+)", operands)
    return _Instruction(
        shape,
        tail[:opening],
        tuple(names or [o.strip().split(" ")[-1] for o in operands.split(",")]),
        tail[closing:] if tail[:opening] != "constant" else operands,
    )


def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    """Return computation -> name -> instruction, and the name of the entry."""
    computations: dict[str, dict[str, _Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header and not line.startswith("HloModule"):
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current[match.group(1)] = _instruction(match.group(2))
    if entry is None:
        raise ValueError(
            "Expected the text of an XLA program with an ENTRY computation. "
            f"Received: {text[:80]!r}."
        )
    return computations, entry


def _run_counts(computations: dict, entry: str) -> dict[str, int]:
    """Return how often each computation runs."""
    times: dict[str, int] = defaultdict(int)
    stack = [(entry, 1)]
    while stack:
        name, factor = stack.pop()
        times[name] += factor
        for instruction in computations[name].values():
            rounds = factor
            if instruction.opcode == "while":
                rounds *= _trip_count(instruction, computations) or 1
            called = _CALLED.findall(instruction.attributes)
            for names in _CALLED_LIST.findall(instruction.attributes):
                called += [n.strip().lstrip("%") for n in names.split(",")]
            stack += [(n, rounds) for n in called if n in computations]
    return times


def _trip_count(loop: _Instruction, computations: dict) -> int | None:
    """Return a loop's trip count: XLA's annotation, or the bound of its condition."""
    match = _TRIPS.search(loop.attributes)
    if match:
        return int(json.loads(match.group(1))["n"])
    condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
    body = computations.get(condition.group(1), {}) if condition else {}
    compares = [i for i in body.values() if i.opcode == "compare"]
    if len(compares) != 1 or "direction=LT" not in compares[0].attributes:
        return None
    bound = body.get(compares[0].operands[1])
    if bound is None or bound.opcode != "constant":
        return None
    return int(bound.attributes)


def _flops(instruction: _Instruction, computation: dict) -> float:
    """Return the FLOPs of a matrix product, two per multiply-add."""
    if instruction.opcode == "dot":
        lhs = computation[instruction.operands[0]].dims()
        contracted = re.search(
            r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes
        )
        inner = [lhs[int(d)] for d in contracted.group(1).split(",") if d]
        return 2.0 * math.prod(instruction.dims()) * math.prod(inner)
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, computation)
    return 0.0


def _convolution_flops(instruction: _Instruction, computation: dict) -> float:
    # On TPUs every product is a convolution. Batch dimensions become spatial dimensions
    # with dilation; positions in the holes cost no FLOPs.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    lhs_labels, rhs_labels, out_labels = labels.groups()
    lhs, rhs = (computation[o].dims() for o in instruction.operands[:2])
    out = instruction.dims()
    size = dict(zip(out_labels, out, strict=True))
    total = 2.0 * size["b"] * size["f"] * rhs[rhs_labels.index("i")]
    window = _WINDOW.search(instruction.attributes)
    options = dict(o.split("=") for o in window.group(1).split()) if window else {}
    rank = len(out) - 2
    for axis in range(rank):
        label = str(axis)
        steps = {
            name: int(options[name].split("x")[axis]) if name in options else 1
            for name in ("stride", "lhs_dilate", "rhs_dilate")
        }
        low = 0
        if "pad" in options:
            low = int(options["pad"].split("x")[axis].split("_")[0])
        place = (
            np.arange(size[label])[:, None] * steps["stride"]
            + np.arange(rhs[rhs_labels.index(label)]) * steps["rhs_dilate"]
            - low
        )
        last = (lhs[lhs_labels.index(label)] - 1) * steps["lhs_dilate"]
        real = (place >= 0) & (place <= last) & (place % steps["lhs_dilate"] == 0)
        total *= int(real.sum())
    return total
