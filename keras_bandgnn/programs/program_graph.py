"""`ProgramGraph` and `FunctionGraph`: graphs of source code with text."""

from __future__ import annotations

import dataclasses
import html
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from keras_bandgnn.aliases import MaybeNone, Values

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

OCCURRENCE = "Occurrence"
"""From a variable to each token where it occurs."""

FUNCTION_RELATIONS = (*RELATIONS[:-1], OCCURRENCE)
"""The relations of `FunctionGraph.edges`."""

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
    correct: int | MaybeNone = None
    node_types: Mapping[int, str] = dataclasses.field(default_factory=dict)
    info: Values = dataclasses.field(default_factory=dict)

    def reordered(self, order: Sequence[int]) -> ProgramGraph:
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

    def shuffled(self) -> ProgramGraph:
        """Return the instance with its candidates shuffled, seeded by its content.

        The order does not depend on which candidate is correct, and is the same on
        every run and machine.
        """
        names = sorted(self.labels[c] for c in self.candidates)
        content = [len(self.labels), self.info.get("filename"), *names]
        seed = zlib.crc32(repr(content).encode())
        return self.reordered(np.random.default_rng(seed).permutation(len(names)))

    def to_html(
        self,
        scores: np.ndarray,
        nodes: np.ndarray,
        colours: Callable[[np.ndarray], np.ndarray],
    ) -> str:
        """Return the tokens as HTML, shaded by the scores of their nodes.

        Args:
            scores: float [n], scores of nodes of the encoded graph.
            nodes: int [n], ids of these nodes; nodes of subtokens follow the program's.
            colours: Function from scores [n] to red, green and blue [n, 3], each from
                0 to 1.
        """
        # The encoder orders the candidates in the same way.
        program = self.shuffled()
        score = np.zeros(len(program.labels))
        inside = nodes < len(score)
        score[nodes[inside]] = scores[inside]
        tokens = program._tokens()
        spans = [
            f'<span style="background: rgb({red}, {green}, {blue})" '
            f'title="{score[node]:.4g}">{html.escape(program.labels[node])}</span>'
            for node, (red, green, blue) in zip(
                tokens, np.rint(255 * colours(score[tokens])).astype(int), strict=True
            )
        ]
        style = "color: black; background: white; white-space: pre-wrap"
        return f'<code style="{style}; line-height: 1.6">{" ".join(spans)}</code>'

    def _tokens(self) -> list[int]:
        """Return the nodes of the tokens in the order of the text."""
        pairs = np.asarray(self.edges["NextToken"]).reshape(-1, 2)
        following = dict(pairs.tolist())
        tokens = []
        for node in sorted(set(following) - set(following.values())):
            tokens.append(node)
            while node in following:
                node = following[node]
                tokens.append(node)
        return tokens


@dataclasses.dataclass(frozen=True)
class FunctionGraph:
    """The graph of a function, its usages of variables, and rewrites of them.

    A rewrite puts another variable, which may be bound there, in the place of a usage.

    Args:
        labels: Text of each node: source text of a token, kind of a syntax node, name
            of a formal parameter or of a variable. Node 0 is the function.
        kinds: Kind of each node; `"Variable"` or `"ModuleVariable"` for variables.
        edges: int32 [E, 2] of (source, target) for each of `FUNCTION_RELATIONS`.
        usages: int32 [U], node of each usage, in source order.
        used: int32 [U], node of the variable that each usage reads.
        rewrites: int32 [R, 2] of (position in `usages`, node of the other variable),
            in source order.
        correct: Position of the rewrite that is needed, -1 if none is, None if unknown.
        info: `function`, `places`, a list of [line, column] of each usage, and what
            was given for `function_graph`.
        traits: uint8 [R, 16], what the two variables of each rewrite have in common,
            from `rewrite_traits`; None if unknown.
    """

    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    edges: Mapping[str, np.ndarray]
    usages: np.ndarray
    used: np.ndarray
    rewrites: np.ndarray
    correct: int | MaybeNone = None
    info: Values = dataclasses.field(default_factory=dict)
    traits: np.ndarray | None = None

    def rewrite_to(self, line: int, column: int, name: str) -> int | None:
        """Return the position of a rewrite, None if there is no such one.

        Args:
            line: Line of the usage in the function, from 1.
            column: Its column, from 0.
            name: Name of the variable to put there.
        """
        places = self.info["places"]
        for position, (usage, variable) in enumerate(self.rewrites.tolist()):
            if places[usage] == [line, column] and self.labels[variable] == name:
                return position
        return None

    def repaired_by(self, position: int) -> FunctionGraph:
        """Return the graph with the rewrite that is needed, -1 for none."""
        return dataclasses.replace(self, correct=position)
