"""Numeric encoding of node text: subtokens, hashed ids, character codes."""

import functools
import re
import zlib

from keras_bandgnn.checks import INT32_MAX, instance, positive_int, refuse

_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789,;.!?:'\"/\\|_@#$%^&*~`+-=<>()[]{}"
_CODES = {character: code for code, character in enumerate(_ALPHABET, start=2)}
_CACHED = 2**17

LABEL_LENGTH = 19
"""Characters of a label that are encoded."""

CSHARP_KEYWORDS = frozenset(
    "abstract as base bool break byte case catch char checked class const continue "
    "decimal default delegate do double else enum event explicit extern false finally "
    "fixed float for foreach goto if implicit in int interface internal is lock long "
    "namespace new null object operator out override params private protected public "
    "readonly ref return sbyte sealed short sizeof stackalloc static string struct "
    "switch this throw true try typeof uint ulong unchecked unsafe ushort using "
    "virtual void volatile while".split()
)
"""The reserved words of C#."""

PYTHON_KEYWORDS = frozenset(
    "False None True and as assert async await break class continue def del elif else "
    "except finally for from global if import in is lambda nonlocal not or pass raise "
    "return try while with yield".split()
)
"""The reserved words of Python 3."""

KEYWORDS = {"csharp": CSHARP_KEYWORDS, "python": PYTHON_KEYWORDS}
"""Reserved words by language."""


def _shape(character: str) -> str:
    if character.isupper():
        return "A"
    if character.isalpha():
        return "a"
    return "0" if character.isalnum() else "_"


@functools.lru_cache(_CACHED)
def subtokens(text: str) -> tuple[str, ...]:
    """Cached `split_subtokens` that returns a tuple."""
    shape = text if text.isascii() else "".join(map(_shape, text))
    return tuple(text[m.start() : m.end()].lower() for m in _PART.finditer(shape))


def split_subtokens(text: str) -> list[str]:
    """Split an identifier or other text into lower-cased parts.

    Splits at changes of case (camelCase), at underscores and other symbols, and between
    letters and digits. Text without letters and digits has no parts.

    Example:
    >>> split_subtokens("parseHTTPResponse_v2")
    ['parse', 'http', 'response', 'v', '2']
    """
    return list(subtokens(instance("text", text, str, "a string")))


def hash_id(text: str, buckets: int) -> int:
    """Return an id in [1, buckets) that is the same on every machine; 0 is padding.

    Args:
        text: The text to hash (CRC-32 of its UTF-8 bytes).
        buckets: Number of ids including padding, at least 2.

    Raises:
        ValueError: If `buckets` is below 2.
    """
    if type(buckets) is not int or not 2 <= buckets <= INT32_MAX:
        expected = "at least 2 buckets: one for padding, one to hash into"
        refuse("buckets", expected, buckets)
    if not isinstance(text, str):
        refuse("text", "a string", text)
    return 1 + zlib.crc32(text.encode("utf-8", "surrogatepass")) % (buckets - 1)


def encode_characters(label: str, length: int = LABEL_LENGTH) -> bytes:
    """Return a code per character of the lower-cased label, truncated and padded.

    Codes: 0 for padding, 1 for other characters, 2 to 69 for the alphabet of 68
    letters, digits and symbols of the variable-misuse data set.

    Args:
        label: Text of a node.
        length: Number of codes.

    Returns:
        `length` codes as bytes; `np.frombuffer(codes, np.uint8)` is an array.

    Example:
    >>> list(encode_characters("Ab?", 4))
    [2, 3, 42, 0]
    """
    instance("label", label, str, "a string")
    return _character_codes(label, positive_int("length", length))


@functools.lru_cache(_CACHED)
def _character_codes(label: str, length: int) -> bytes:
    codes = bytes(_CODES.get(character, 1) for character in label.lower()[:length])
    return codes.ljust(length, b"\0")
