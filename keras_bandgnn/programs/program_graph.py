"""`ProgramGraph`: a variable-misuse instance with text, before encoding."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

RELATIONS = (
    "Child",
    "NextToken",
    "LastUse",
    "LastWrite",
    "LastLexicalUse",
    "ComputedFrom",
    "GuardedByNegation",
    "GuardedBy",
    "FormalArgName",
    "ReturnsTo",
    "UsesSubtoken",
)
"""The eleven relations; position = edge type id, reverse = id + 11."""

SLOT_LABEL = "<SLOT>"

GUESSES = ("nearest", "frequent")
"""Baseline guesses in `ProgramGraph.info`, as positions of candidates."""


@dataclasses.dataclass(frozen=True)
class ProgramGraph:
    """A program graph with a slot and its candidate variables.

    Args:
        labels: Text of each node: source text of a token, kind of a syntax node,
            name of a candidate, `"<SLOT>"` for the slot.
        kinds: Kind of each node: `"Slot"`, `"Candidate"`, a token class such as
            `"Identifier"`, or the kind of a syntax node.
        edges: int32 [E, 2] of (source, target) for each relation of `RELATIONS`
            except `UsesSubtoken`, which `encode_program` adds.
        slot: Node id of the slot.
        candidates: Node id of each candidate.
        correct: Position of the correct one in `candidates`; None if unknown.
        node_types: Static type by node id, if known.
        info: Free-form metadata: `filename`, `line`, `column`, `variable`, ...
    """

    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    edges: Mapping[str, np.ndarray]
    slot: int
    candidates: tuple[int, ...]
    correct: int | None = None
    node_types: Mapping[int, str] = dataclasses.field(default_factory=dict)
    info: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def reordered(self, order: Sequence[int]) -> "ProgramGraph":
        """Return the instance with candidate `order[k]` at position k.

        The candidates' node ids ascend in the new order, so that they do not leak the
        answer if a data set lists the correct one first. Guesses in `info`, which are
        positions of candidates, are updated.
        """
        place = {int(old): new for new, old in enumerate(order)}
        ids = sorted(self.candidates)
        moved = [self.candidates[i] for i in order]
        rank = np.arange(len(self.labels), dtype=np.int32)
        rank[moved] = ids
        texts, kinds = list(self.labels), list(self.kinds)
        for old, new in zip(moved, ids, strict=True):
            texts[new], kinds[new] = self.labels[old], self.kinds[old]
        info = dict(self.info)
        for guess in GUESSES:
            if info.get(guess) is not None:
                info[guess] = place[info[guess]]
        return dataclasses.replace(
            self,
            labels=tuple(texts),
            kinds=tuple(kinds),
            edges={name: rank[pairs] for name, pairs in self.edges.items()},
            candidates=tuple(ids),
            node_types={int(rank[n]): t for n, t in self.node_types.items()},
            correct=None if self.correct is None else place[self.correct],
            info=info,
        )

    def shuffled(self) -> "ProgramGraph":
        """Return the instance with its candidates shuffled, seeded by its content.

        The order does not depend on which candidate is correct, and is the same on
        every run and machine.
        """
        names = sorted(self.labels[c] for c in self.candidates)
        content = [len(self.labels), self.info.get("filename"), *names]
        seed = zlib.crc32(repr(content).encode())
        return self.reordered(np.random.default_rng(seed).permutation(len(names)))
