"""Data sets of several node sets, of users and items, and of edges with times."""

from keras_bandgnn.data.datasets import dblp, gowalla
from keras_bandgnn.data.datasets.download import Remote
from keras_bandgnn.data.datasets.files import Dataset, Form

_SNAP = "https://snap.stanford.edu/data/"
_LIGHT_GCN = (
    "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/"
    "947ca2b3b1d2d3545b114145710cb06c4e57b3d2/data/gowalla/"
)
_GOWALLA_BLOBS = {
    "train.txt": "a27782bd7a1d4d0744148dc0460ea94da74763f2",
    "test.txt": "9ed5af4b5d21511f33740b4e22e3852f45671800",
}
_DBLP = (
    "https://raw.githubusercontent.com/cynricfu/MAGNN/"
    "b8557f58ae04a7fe3e7a9fde64ea87c81b331efe/data/raw/DBLP/"
)
_DBLP_BLOBS = {
    "author_label.txt": "0d3fd4432d3ffecd7313f46f027a07d5bcf6372a",
    "paper_author.txt": "74c0dd7b1a9f4501f0a80cc397bdb5b27a5549de",
    "paper_conf.txt": "ac2d56d4be2b73ea984e4e21a1cc4139f4dfb744",
    "paper_term.txt": "e6ed6510dc0fb1f9ec736952857ec008837490be",
}


def _dblp() -> Dataset:
    return Dataset(
        "dblp",
        "authors, papers, conferences and terms: four node sets",
        "1, with 27,303 nodes",
        "node classification",
        "CC0",
        forms=(Form("dblp:read", dblp.FILES),),
        downloads=tuple(
            Remote(file, _DBLP + file, f"git:{blob}")
            for file, blob in _DBLP_BLOBS.items()
        ),
    )


def _collegemsg() -> Dataset:
    file = "CollegeMsg.txt"
    return Dataset(
        "collegemsg",
        "messages between students, with times",
        "1, with 1,899 nodes and 59,835 edges",
        "links in time",
        "see snap.stanford.edu",
        forms=tuple(
            Form("collegemsg:read", {"messages": name}) for name in (file + ".gz", file)
        ),
        downloads=(Remote(file + ".gz", _SNAP + file + ".gz"),),
    )


def _gowalla() -> Dataset:
    return Dataset(
        "gowalla",
        "check-ins: users and the places they visited, split of LightGCN",
        "1, with 70,839 nodes and 2,054,740 edges",
        "recommendation",
        "see snap.stanford.edu",
        forms=(Form("gowalla:read", gowalla.FILES),),
        downloads=tuple(
            Remote(file, _LIGHT_GCN + file, f"git:{blob}")
            for file, blob in _GOWALLA_BLOBS.items()
        ),
    )


LINK_SETS = (_dblp(), _collegemsg(), _gowalla())
