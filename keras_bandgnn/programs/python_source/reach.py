"""`Reach`: reaching uses and writes of a frame, as bit sets per point."""

from functools import cached_property

from keras_bandgnn.programs.python_source.frame import (
    DELETE,
    READ,
    UNBIND,
    WRITE,
    Frame,
)
from keras_bandgnn.programs.python_source.scopes import Variable

_ENDS_USES = (READ, DELETE)
_ENDS_WRITES = (WRITE, DELETE, UNBIND)


def _bits(value: int) -> list[int]:
    """Return the positions of the set bits, ascending."""
    out = []
    while value:
        low = value & -value
        out.append(low.bit_length() - 1)
        value ^= low
    return out


class Reach:
    """Last uses, last writes and next occurrences at each point of a frame.

    A use is a read or a deletion. Reads kill reads; writes and deletions kill writes.
    The bit set of a point has bits 0..n-1 for last uses, n..2n-1 for last writes, and
    2n for reachability.

    Args:
        frame: Control flow with n occurrences.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._count = len(frame.tokens)
        self._of: dict[Variable, int] = {}
        for i, variable in enumerate(frame.variables):
            self._of[variable] = self._of.get(variable, 0) | 1 << i
        self._before = self._forward()

    def _forward(self) -> list[int]:
        frame, count = self._frame, self._count
        reachable = 1 << 2 * count
        keep, make = [], []
        for op, i, variable in zip(
            frame.ops, frame.occurrence, frame.variable, strict=True
        ):
            every = self._of.get(variable, 0)
            uses, writes = op in _ENDS_USES, op in _ENDS_WRITES
            keep.append(~((every if uses else 0) | (every << count if writes else 0)))
            bit = 1 << i if uses else 0
            make.append(bit | (1 << count + i if op == WRITE else 0))
        before = [0] * len(keep)
        after = [0] * len(keep)
        after[0] = reachable
        changed = True
        while changed:
            changed = False
            for point in range(1, len(keep)):
                value = 0
                for other in frame.predecessors[point]:
                    value |= after[other]
                if value == before[point]:
                    continue
                before[point] = value
                value = value & keep[point] | make[point]
                if value != after[point]:
                    after[point] = value
                    changed = True
        return before

    @cached_property
    def _successors(self) -> list[list[int]]:
        successors: list[list[int]] = [[] for _ in self._frame.ops]
        for point, others in enumerate(self._frame.predecessors):
            for other in others:
                successors[other].append(point)
        return successors

    @cached_property
    def _jumps_back(self) -> list[tuple[int, int]]:
        return [
            (other, point)
            for point, others in enumerate(self._frame.predecessors)
            for other in others
            if other >= point
        ]

    @cached_property
    def _ahead(self) -> list[int]:
        """Return the occurrences after each point, up to the next read."""
        frame = self._frame
        keep, make = [], []
        for point, (op, i) in enumerate(zip(frame.ops, frame.occurrence, strict=True)):
            every = self._of.get(frame.variable[point], 0)
            keep.append(~every if op in _ENDS_USES else -1)
            make.append(1 << i if i >= 0 and frame.points[i] == point else 0)
        before = [0] * len(keep)
        after = [0] * len(keep)
        changed = True
        while changed:
            changed = False
            for point in range(len(keep) - 1, -1, -1):
                value = 0
                for other in self._successors[point]:
                    value |= before[other]
                after[point] = value
                value = value & keep[point] | make[point]
                if value != before[point]:
                    before[point] = value
                    changed = True
        return after

    def _tokens(self, bits: int) -> list[int]:
        return [self._frame.tokens[i] for i in _bits(bits)]

    def reachable(self, point: int) -> bool:
        """Return whether `point` is reachable."""
        return bool(self._before[point] >> 2 * self._count)

    def last_uses(self, point: int, variable: Variable) -> list[int]:
        """Return the tokens of this frame where `variable` may have been used last."""
        return self._tokens(self._before[point] & self._of.get(variable, 0))

    def last_writes(self, point: int, variable: Variable) -> list[int]:
        """Return the tokens where `variable` may have been written last.

        Writes by other frames may happen at any time.
        """
        every = self._of.get(variable, 0)
        tokens = self._tokens(self._before[point] >> self._count & every)
        if self.reachable(point):
            for frame, others in variable.writes.items():
                if frame is not self._frame:
                    tokens.extend(others)
        return tokens

    def only_write(self, point: int, variable: Variable) -> int | None:
        """Return the token of the last write if there is exactly one, else None."""
        bits = self._before[point] >> self._count & self._of.get(variable, 0)
        if bits & bits - 1:
            return None
        if bits and len(variable.writes) == 1:
            return self._frame.tokens[bits.bit_length() - 1]
        writes = self.last_writes(point, variable)
        return writes[0] if len(writes) == 1 else None

    def is_bound(self, point: int, variable: Variable) -> bool:
        """Return whether a write of `variable` reaches `point`."""
        if self._before[point] >> self._count & self._of.get(variable, 0):
            return True
        others = any(frame is not self._frame for frame in variable.writes)
        return others and self.reachable(point)

    def next_occurrences(self, point: int, variable: Variable) -> list[int]:
        """Return the tokens for which a use at `point` would be a last use."""
        return self._tokens(self._ahead[point] & self._of.get(variable, 0))

    def comes_back(self, point: int, variable: Variable) -> bool:
        """Return whether `point` can reach itself without another use in between."""
        if not any(head <= point <= tail for tail, head in self._jumps_back):
            return False
        frame = self._frame
        visited, stack = set(), list(self._successors[point])
        while stack:
            other = stack.pop()
            if other == point:
                return True
            if other in visited:
                continue
            visited.add(other)
            ends = frame.ops[other] in _ENDS_USES
            if not (ends and frame.variable[other] is variable):
                stack.extend(self._successors[other])
        return False
