"""Reader of DBLP's four areas: authors, papers, conferences and terms."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.data.converters.node_sets import from_sets
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import read_text, refuse_file

FILES = {
    "author_label": "author_label.txt",
    "paper_author": "paper_author.txt",
    "paper_conf": "paper_conf.txt",
    "paper_term": "paper_term.txt",
}


def read(files: Mapping[str, Path]):
    """Read the tables of four areas of DBLP as one graph with four node sets.

    Each line of a table has two numbers, separated by a tab: an author and its area, or
    a paper and its author, conference or term. What follows them, such as a name, is
    not read. Authors with an area are nodes, and their papers, with the conferences and
    terms of these.

    Args:
        files: Paths by the names of `FILES`.

    Returns:
        `FlatGraphs` of one graph. Its node sets are `author` (with the area as label),
        `paper`, `conf` and `term`, each in the order of the numbers in the files;
        conferences and terms have the feature `id`, others the one kind. Its edge sets
        are author `writes` paper, paper `at` conf and paper `has` term, each also in
        the other direction.

    Raises:
        ValueError: If a line has no two numbers, an author has two areas, or a paper no
            conference.
    """
    labels = _pairs(files["author_label"])
    authors, first = np.unique(labels[:, 0], return_index=True)
    if len(authors) < len(labels):
        refuse_file(files["author_label"], "to have one area of each author", "two")
    links = {name: _pairs(files[name]) for name in FILES if name != "author_label"}
    writes = links["paper_author"]
    writes = writes[np.isin(writes[:, 1], authors)]
    papers = np.unique(writes[:, 0])
    if not len(papers):
        refuse_file(files["paper_author"], "to have papers of these authors", "none")
    ends, counts = {}, {"author": len(authors), "paper": len(papers)}
    ends["author", "writes", "paper"] = [
        np.searchsorted(authors, writes[:, 1]),
        np.searchsorted(papers, writes[:, 0]),
    ]
    for name, relation in (("conf", "at"), ("term", "has")):
        pairs = links[f"paper_{name}"]
        pairs = pairs[np.isin(pairs[:, 0], papers)]
        numbers, targets = np.unique(pairs[:, 1], return_inverse=True)
        sources = np.searchsorted(papers, pairs[:, 0])
        ends["paper", relation, name] = [sources, targets.reshape(-1)]
        counts[name] = len(numbers)
    places = ends["paper", "at", "conf"][0]
    if len(np.unique(places)) < len(papers):
        refuse_file(files["paper_conf"], "to have a conference of each paper", "fewer")
    nodes = {name: {"id": np.arange(counts[name])} for name in ("conf", "term")}
    nodes |= {name: counts[name] for name in ("author", "paper")}
    area = {"author": labels[first, 1]}
    graph = from_sets(nodes, ends, label=area, reverse=True)
    return FlatGraphs.from_graphs([graph])


def _pairs(path: Path) -> np.ndarray:
    """Return the first two numbers of each line, int64 [n, 2]."""
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        cells = line.split("\t")
        try:
            rows.append((int(cells[0]), int(cells[1])))
        except (ValueError, IndexError) as error:
            expected = "to have two numbers in each line, separated by a tab"
            refuse_file(path, expected, f"line {number}: {line[:80]!r}", cause=error)
        if min(rows[-1]) < 0:
            refuse_file(path, "to have numbers of at least 0", f"line {number}")
    if not rows:
        refuse_file(path, "to have lines", "none")
    return np.array(rows, np.int64)
