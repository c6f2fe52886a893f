"""Traits of rewrites: what they say of names, places and uses."""

import dataclasses

import numpy as np
import pytest

from keras_bandgnn.programs import encode_function, function_graph
from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.rewrite_traits import (
    COLUMNS,
    ROLES,
    TRAITS,
    rewrite_traits,
    trait_columns,
)

SOURCE = """
def f(self, value, values, x, _y):
    first = value
    for row in values:
        total = self.sum(row, x)
    total[x] = first
    return total
""".strip()


def traits_of(source):
    """Return a dictionary of traits by (line, name, other name)."""
    read = FunctionSource(source)
    rows = rewrite_traits(read)
    pairs = [
        (read.place(usage.token)[0], usage.variable.name, other.name)
        for usage in read.usages
        for other in usage.others
    ]
    return {
        pair: dict(zip(TRAITS, row.tolist(), strict=True))
        for pair, row in zip(pairs, rows, strict=True)
    }


def test_names_places_and_uses():
    traits = traits_of(SOURCE)
    plural = traits[2, "value", "values"]
    # Bigrams of ^value$ and ^values$: 5 of 6 and of 7.
    assert (plural["plural"], plural["common_text"], plural["common_words"]) == (
        1,
        3,
        0,
    )
    assert traits[3, "values", "x"]["short_names"] == 1
    assert traits[4, "x", "_y"]["short_names"] == 2
    assert traits[4, "x", "_y"]["other_underscore"] == 1
    assert traits[4, "x", "_y"]["other_reads"] == 0
    row = traits[4, "row", "first"]
    assert ROLES[row["role"]] == "argument"
    assert (row["kind"], row["other_kind"], row["reads"]) == (0, 0, 0)
    owner = traits[4, "self", "row"]
    assert ROLES[owner["role"]] == "attribute" and owner["kind"] == 3
    assert owner["in_statement"] == 1 and owner["in_line_before"] == 1
    assert traits[5, "first", "total"]["in_line_after"] == 1
    assert traits[5, "total", "self"]["in_line_before"] == 1
    assert ROLES[traits[5, "x", "row"]["role"]] == "index"
    # `self` and a parameter that nothing reads: by name and kind, not by place.
    assert traits[6, "total", "_y"]["after"] == len((3, 10, 30, 100)) + 1


def test_what_a_statement_assigns():
    traits = traits_of("def f(a, b):\n    c = h()\n    c = g(a)\n    return b, c")
    assert traits[3, "a", "c"]["assigned_here"] == 1
    assert traits[3, "a", "b"]["assigned_here"] == 0


def test_columns_tell_all_combinations_apart():
    sizes = np.array(list(TRAITS.values()))
    last = trait_columns(sizes[None] - 1)
    assert last.tolist() == [[size - 1 for size in COLUMNS]]
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, sizes, (500, len(sizes))), axis=0)
    assert len(np.unique(trait_columns(rows), axis=0)) == len(rows)


def test_the_graph_has_them_for_its_rewrites_alone():
    graph = function_graph(SOURCE)
    assert graph.traits.shape == (len(graph.rewrites), len(TRAITS))
    encoded = encode_function(graph, traits=True)
    ids = encoded.edge["traits"]
    is_rewrite = encoded.edge_type == encoded.edge_type.max()
    assert not ids[~is_rewrite].any() and (ids.max(0) < COLUMNS).all()
    assert np.array_equal(ids[is_rewrite], trait_columns(graph.traits))
    assert "traits" not in encode_function(graph).edge
    with pytest.raises(ValueError, match="traits=False"):
        encode_function(dataclasses.replace(graph, traits=None), traits=True)


def test_layout_and_renaming_change_nothing():
    # Traits are those of tokens, not of columns or comments.
    spread = SOURCE.replace("(row, x)", "( row ,  x )  # row")
    assert np.array_equal(
        rewrite_traits(FunctionSource(SOURCE)), rewrite_traits(FunctionSource(spread))
    )
    indented = "\n".join("    " + line for line in SOURCE.split("\n"))
    assert np.array_equal(
        rewrite_traits(FunctionSource(SOURCE)), rewrite_traits(FunctionSource(indented))
    )
