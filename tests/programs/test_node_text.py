import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn.programs.node_text import (
    CSHARP_KEYWORDS,
    PYTHON_KEYWORDS,
    encode_characters,
    hash_id,
    split_subtokens,
)


@pytest.mark.parametrize(
    "text, parts",
    [
        ("camelCase", ["camel", "case"]),
        ("snake_case_2", ["snake", "case", "2"]),
        ("parseHTTPResponse", ["parse", "http", "response"]),
        ("HTTP", ["http"]),
        ("x1y22", ["x", "1", "y", "22"]),
        ("_private", ["private"]),
        ("ÜberGröße", ["über", "größe"]),
        ("==", []),
        ("", []),
        ('"Hello, world"', ["hello", "world"]),
    ],
)
def test_split_subtokens(text, parts):
    assert split_subtokens(text) == parts


@settings(deadline=None)
@given(st.text())
def test_split_subtokens_of_any_text(text):
    for part in split_subtokens(text):
        assert part == part.lower()
        assert any(character.isalnum() for character in part) or not part.isascii()


def test_hash_id_is_fixed_and_in_range():
    # CRC-32 values are part of every saved model: they must never change.
    assert hash_id("parse", 16384) == 1 + 0xD2D58468 % 16383
    assert {hash_id(str(i), 5) for i in range(100)} == {1, 2, 3, 4}
    assert hash_id("\ud800", 100) >= 1
    with pytest.raises(ValueError, match="at least 2 buckets.*Received: buckets=1"):
        hash_id("a", 1)


def test_encode_characters():
    assert list(encode_characters("aB9,}", 7)) == [2, 3, 37, 38, 69, 0, 0]
    assert list(encode_characters("é a", 3)) == [1, 1, 2]
    assert len(encode_characters("x" * 50)) == 19
    assert np.frombuffer(encode_characters("ab"), np.uint8).shape == (19,)


def test_keywords():
    assert len(CSHARP_KEYWORDS) == 77 and "foreach" in CSHARP_KEYWORDS
    assert len(PYTHON_KEYWORDS) == 35 and "elif" in PYTHON_KEYWORDS
