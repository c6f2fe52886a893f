"""Near duplicates among many functions.

Two functions are near duplicates if the multisets of their tokens have a Jaccard
similarity of at least 0.8 and the sets of their identifiers one of at least 0.7, after
Allamanis, 2019 (https://arxiv.org/abs/1812.06469), who compares files. MinHash (Broder,
1997) with locality-sensitive hashing finds pairs to compare, so that the work grows
with the number of functions, not of pairs.
"""

import collections
import hashlib
import keyword
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

TOKENS, IDENTIFIERS = 0.8, 0.7
"""Least similarity of near duplicates, of tokens and of identifiers."""
BANDS, ROWS = 20, 6
"""Bands of a signature, and hashes of a band.

A pair with similarity s is compared with probability 1 - (1 - s^6)^20: 0.998 for 0.8,
0.27 for 0.5, 0.01 for 0.3.
"""
# The estimate from a signature has a standard deviation of 0.037 at 0.8.
_ESTIMATE = 0.65
_CHUNK = 1 << 16

_TOKEN = re.compile(
    r"""[rbfuRBFU]{0,2}(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|\#[^\n]*|\w+|[^\w\s]"""
)


@dataclass(frozen=True)
class Fingerprints:
    """What is compared of functions.

    Attributes:
        exact: uint64 [F], a hash of the tokens in order.
        tokens: uint32, the sorted multisets of tokens, one after another.
        token_ptr: int64 [F + 1], where each begins.
        identifiers: uint32, the sorted sets of identifiers, one after another.
        identifier_ptr: int64 [F + 1], where each begins.
        signatures: uint32 [F, 120], the MinHash signatures of the multisets.
    """

    exact: np.ndarray
    tokens: np.ndarray
    token_ptr: np.ndarray
    identifiers: np.ndarray
    identifier_ptr: np.ndarray
    signatures: np.ndarray

    @classmethod
    def of(cls, sources: Sequence[str]) -> "Fingerprints":
        """Return the fingerprints of functions by their source."""
        exact, tokens, identifiers = [], [], []
        hashes: dict[str, int] = {}
        for source in sources:
            order = [t for t in _TOKEN.findall(source) if not t.startswith("#")]
            joined = "\0".join(order).encode(errors="surrogatepass")
            digest = hashlib.blake2b(joined, digest_size=8).digest()
            exact.append(int.from_bytes(digest, "big"))
            row, names = [], []
            for token, count in collections.Counter(order).items():
                value = hashes.get(token)
                if value is None:
                    value = zlib.crc32(token.encode(errors="surrogatepass"))
                    hashes[token] = value
                # A token that occurs twice is two elements.
                row += [(value + k * 0x9E3779B1) & 0xFFFFFFFF for k in range(count)]
                if token.isidentifier() and not keyword.iskeyword(token):
                    names.append(value)
            tokens.append(np.unique(np.array(row, np.uint32)))
            identifiers.append(np.unique(np.array(names, np.uint32)))
        flat, ptr = _joined(tokens)
        names, name_ptr = _joined(identifiers)
        exact = np.array(exact, np.uint64)
        return cls(exact, flat, ptr, names, name_ptr, signatures(flat, ptr))

    @classmethod
    def joined(cls, parts: Sequence["Fingerprints"]) -> "Fingerprints":
        """Return the fingerprints of all parts."""

        def rows(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        def ptr(name: str) -> np.ndarray:
            counts = [np.diff(getattr(part, name)) for part in parts]
            return _ptr(np.concatenate(counts))

        return cls(
            rows("exact"),
            rows("tokens"),
            ptr("token_ptr"),
            rows("identifiers"),
            ptr("identifier_ptr"),
            rows("signatures"),
        )

    def __len__(self) -> int:
        return len(self.exact)


def _ptr(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _joined(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.concatenate([np.zeros(0, np.uint32), *rows])
    return flat, _ptr(np.array([len(row) for row in rows], np.int64))


def _multipliers() -> tuple[np.ndarray, np.ndarray]:
    """Return the odd factors and the summands of the hash functions."""
    size = 16 * BANDS * ROWS
    values = np.frombuffer(hashlib.shake_256(b"signatures").digest(size), "<u8")
    return values[::2] | np.uint64(1), values[1::2]


def signatures(flat: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """Return uint32 [F, 120] MinHash signatures of sets of uint32.

    Args:
        flat: The sets, one after another.
        ptr: int64 [F + 1], where each begins.
    """
    factors, summands = _multipliers()
    out = np.full((len(ptr) - 1, BANDS * ROWS), 0xFFFFFFFF, np.uint32)
    first = 0
    while first < len(ptr) - 1:
        end = max(first + 1, int(np.searchsorted(ptr, ptr[first] + _CHUNK)) - 1)
        values = flat[ptr[first] : ptr[end]].astype(np.uint64)
        rows = np.flatnonzero(np.diff(ptr[first : end + 1])) + first
        if len(rows):
            starts = ptr[rows] - ptr[first]
            for column, (a, b) in enumerate(zip(factors, summands, strict=True)):
                hashed = (values * a + b) >> np.uint64(32)
                out[rows, column] = np.minimum.reduceat(hashed, starts)
        first = end
    return out


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Return the Jaccard similarity of two sorted sets; 1 for two empty ones."""
    total = len(one) + len(other)
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (total - both) if total else 1.0


def leaders(
    prints: Fingerprints, progress: Callable[[int, int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return which earlier function each function is a duplicate of.

    Functions are taken in order. One that is no duplicate of an earlier leader becomes
    a leader; so no two leaders are near duplicates, but for pairs that hashing misses.

    Args:
        prints: The functions, those that are preferred first.
        progress: Called with (functions done, all functions).

    Returns:
        int64 [F], the leader of each function, itself for a leader; and bool [F],
        whether the tokens are exactly those of an earlier function.
    """
    count = len(prints)
    _, first, inverse = np.unique(prints.exact, return_index=True, return_inverse=True)
    leader = first[inverse.reshape(-1)].astype(np.int64)
    exact = leader != np.arange(count)
    members, group_ptr = _groups(prints.signatures, ~exact)
    groups: dict[int, list[int]] = {}
    lengths = np.diff(prints.token_ptr)
    for index in range(count):
        if progress is not None and (index % 1000 == 0 or index == count - 1):
            progress(index + 1, count)
        if exact[index]:
            continue
        keys = members[group_ptr[index] : group_ptr[index + 1]].tolist()
        candidates = sorted({i for key in keys for i in groups.get(key, ())})
        other = _duplicate(prints, lengths, index, np.array(candidates, np.int64))
        if other is None:
            for key in keys:
                groups.setdefault(key, []).append(index)
        else:
            leader[index] = other
    # A copy of a function that is itself a near duplicate has the leader of that one.
    return leader[leader], exact


def _groups(signatures: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups of functions that share a band: ids, and int64 [F + 1]."""
    rows = np.flatnonzero(which)
    sharing, ids, following = [], [], 0
    weights = _multipliers()[0][:ROWS]
    for band in range(BANDS):
        part = signatures[rows, band * ROWS : (band + 1) * ROWS].astype(np.uint64)
        keys = (part * weights).sum(axis=1, dtype=np.uint64)
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        shared = counts[inverse.reshape(-1)] > 1
        sharing.append(rows[shared])
        ids.append(following + inverse.reshape(-1)[shared])
        following += len(counts)
    rows, ids = np.concatenate(sharing), np.concatenate(ids)
    order = np.lexsort((ids, rows))
    counts = np.bincount(rows, minlength=len(signatures))
    return ids[order], _ptr(counts)


def _duplicate(
    prints: Fingerprints, lengths: np.ndarray, index: int, others: np.ndarray
) -> int | None:
    """Return the first of the other functions that is a near duplicate, or None."""
    if not len(others):
        return None
    shorter = np.minimum(lengths[others], lengths[index])
    longer = np.maximum(lengths[others], lengths[index])
    others = others[shorter >= TOKENS * longer]
    equal = prints.signatures[others] == prints.signatures[index]
    others = others[equal.mean(axis=1) >= _ESTIMATE]

    def row(flat: np.ndarray, ptr: np.ndarray, i: int) -> np.ndarray:
        return flat[ptr[i] : ptr[i + 1]]

    tokens = row(prints.tokens, prints.token_ptr, index)
    names = row(prints.identifiers, prints.identifier_ptr, index)
    for other in others.tolist():
        theirs = row(prints.identifiers, prints.identifier_ptr, other)
        if similarity(names, theirs) < IDENTIFIERS:
            continue
        theirs = row(prints.tokens, prints.token_ptr, other)
        if similarity(tokens, theirs) >= TOKENS:
            return other
    return None
