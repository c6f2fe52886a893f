"""Equations of the backbones, and their figures in `figures/models/`.

python docs/backbones.py

`docs/names.py` puts both on the page of each backbone, and `docs/hooks.py` on pages
with the line `<!-- models: GCNBackbone GATBackbone -->`. `tests/test_public_api.py`
checks that the committed figures are the ones drawn here, and that no backbone lacks
one.
"""

import html
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "figures" / "models"
LEARNED, FIXED, DATA = "#c5cae9", "#eceff1", "#fff3c4"
WIDTH, BOX, LEFT, STEP = 420, 205, 186, 62


class Box(NamedTuple):
    """A step of a model: what it is, the arrays that leave it, what it also reads."""

    text: str
    shape: str = ""
    color: str = LEARNED
    side: str = ""


class Figure(NamedTuple):
    """A backbone: boxes before, in and after its loop, and its equation in TeX."""

    first: list[Box]
    loop: list[Box]
    times: str
    last: list[Box]
    equation: str
    residual: str = "old states added"


STATES = "states [G, N, H]"
VECTORS = "states, vectors"
NODES = Box("node features", "[G, N, ...]", DATA)
ATOMS = Box("atomic numbers", "[G, N]", DATA)
ENCODER = Box("NodeEncoder", STATES)
ELEMENTS = Box("ElementEmbedding", "states [G, N, C]")
BETWEEN = Box("from layer 2: activation", "and dropout", FIXED)
NORM = Box("norm, activation, dropout", STATES)
OUT = Box("node states, to the task", "[G, N, H]", DATA)
EDGES = "edge features"
PLAN = "edges, by the plan"
FRAME = r"h'_n = h_n + \sigma(\mathrm{norm}(m_n))"


def messages(layer: str, side: str = EDGES, frame: bool = True) -> dict:
    """Return the boxes of a model in the frame of message passing, or without it."""
    loop = [Box(layer, STATES, side=side)]
    loop = [*loop, NORM] if frame else [BETWEEN, *loop]
    return {
        "first": [NODES, ENCODER],
        "loop": loop,
        "times": "L layers",
        "last": [OUT],
        "residual": "old states added" if frame else "",
    }


def lines(*equations: str) -> str:
    """Return equations below one another."""
    return "$$\n\n$$".join(equations)


def atoms(*loop: Box, shape: str = "") -> dict:
    """Return the boxes of a model of atoms in space."""
    return {
        "first": [ATOMS, ELEMENTS],
        "loop": list(loop),
        "times": "T steps",
        "last": [OUT._replace(shape=shape or OUT.shape)],
    }


def transformer(side: str, encodings: str) -> dict:
    """Return the boxes of a graph transformer of blocks with a norm first."""
    return {
        "first": [NODES, ENCODER, Box(encodings, STATES)],
        "loop": [
            Box("norm, attention, add", STATES, side=side),
            Box("norm, two dense layers, add", STATES),
        ],
        "times": "L blocks",
        "last": [Box("norm", STATES), OUT],
        "residual": "",
    }


FIGURES = {
    "EmbeddingBackbone": Figure(
        [NODES],
        [],
        "",
        [ENCODER, OUT],
        r"h_n = \sum_f \mathrm{embed}_f(x_{n,f})",
    ),
    "GATBackbone": Figure(
        **messages("GraphAttention, K heads", "edges", False),
        equation=lines(
            r"s_{jn} = \mathrm{leakyReLU}(a_s \cdot W h_j + a_r \cdot W h_n)",
            r"h'_n = \sum_{j} \mathrm{softmax}_j(s_{jn})\, W h_j + b",
        ),
    ),
    "GATv2Backbone": Figure(
        **messages("GraphAttentionV2, K heads"),
        equation=lines(
            r"s_{jn} = a \cdot \mathrm{leakyReLU}(W_s h_j + W_r h_n + W_e e_{jn})",
            r"m_n = \sum_{j} \mathrm{softmax}_j(s_{jn})\, W_s h_j + b",
            FRAME,
        ),
    ),
    "GCNBackbone": Figure(
        **messages("GraphConvolution", PLAN, False),
        equation=r"h^{(l)} = D^{-1/2} (A + I)\, D^{-1/2}\, \sigma(h^{(l-1)})"
        r"\, W_l + b_l",
    ),
    "GINEBackbone": Figure(
        **messages("GINConvolution"),
        equation=lines(
            r"s_n = (1 + \epsilon)\, h_n + \sum_{j} \mathrm{ReLU}(h_j + e_{jn})",
            r"m_n = W_2\, \sigma(W_1 s_n + b_1) + b_2",
            FRAME,
        ),
    ),
    "SAGEBackbone": Figure(
        **messages("SAGEConvolution"),
        equation=lines(
            r"m_{jn} = \mathrm{ReLU}(h_j + e_{jn})",
            r"m_n = W_0 h_n + W_1\, \mathrm{reduce}_j\, m_{jn} + b",
            FRAME,
        ),
    ),
    "GatedGCNBackbone": Figure(
        **messages("GatedGraphConvolution", "edge states, updated"),
        equation=lines(
            r"c_{jn} = W_r h_n + W_s h_j + W_e e_{jn} + b_r",
            r"g_{jn} = \mathrm{sigmoid}(c_{jn}) \odot (W_m h_j + b_m)",
            r"m_n = W_0 h_n + b + \sum_{j} g_{jn}",
            FRAME,
        ),
    ),
    "PNABackbone": Figure(
        **messages("PNAConvolution"),
        equation=lines(
            r"m_{jn} = M [h_n, h_j, E e_{jn}]",
            r"a_n = \{\mathrm{mean}, \mathrm{min}, \mathrm{max}, "
            r"\mathrm{std}\}_j\, m_{jn}",
            r"t_n = \{1,\ \log(d_n + 1) / \delta,\ \delta / \log(d_n + 1)\}",
            r"m_n = W U [h_n, t_n \times a_n]",
            FRAME,
        ),
    ),
    "RGCNBackbone": Figure(
        **messages("RGCNConvolution", "typed edges, by plan"),
        equation=lines(
            r"m_n = W_0 h_n + b + "
            r"\sum_{p} \frac{1}{c_{n,p}} \sum_{(j \to n,\, p)} W_p h_j",
            FRAME,
        ),
    ),
    "HGTBackbone": Figure(
        [Box("features of node sets", "[G, M, ...]", DATA), ENCODER],
        [Box("HGTConvolution, K heads", STATES, side="typed edges")],
        "L layers",
        [OUT],
        lines(
            r"s_{jn} = \frac{a_p}{\sqrt d}\, (K_s h_j) A_p \cdot Q_t h_n",
            r"m_n = \sum_{(j \to n,\, p)} \mathrm{softmax}(s_{jn})\, (V_s h_j) M_p",
            r"h'_n = \sigma(c_t)\, O_t\, \mathrm{gelu}(m_n) + (1 - \sigma(c_t))\, h_n",
        ),
        "",
    ),
    "LightGCNBackbone": Figure(
        [Box("ids of users and items", "[G, N]", DATA), ENCODER],
        [Box("sum over neighbours", STATES, FIXED, PLAN)],
        "L times",
        [Box("weighted mean of all L + 1", STATES, FIXED), OUT],
        lines(
            r"e^{(l)} = D^{-1/2} A\, D^{-1/2}\, e^{(l-1)}",
            r"h_n = \sum_{l=0}^{L} \alpha_l\, e^{(l)}_n",
        ),
        "",
    ),
    "GGNNBackbone": Figure(
        [NODES, ENCODER],
        [
            Box("typed messages", STATES, side="typed edges, by plan"),
            Box("GRUUpdate", STATES),
        ],
        "T steps, the same weights",
        [OUT],
        lines(
            r"m_n = \sum_{(j \to n,\, p)} (W_p h_j + b_p)",
            r"h'_n = \mathrm{GRU}(m_n, h_n)",
        ),
        "old states",
    ),
    "GPSBackbone": Figure(
        [NODES, Box("NodeEncoder, with positions", STATES)],
        [
            Box("messages, beside attention", STATES, side="edges; all pairs"),
            Box("add, norm, two dense layers", STATES),
        ],
        "L layers",
        [OUT],
        lines(
            r"a = \mathrm{norm}(h + \mathrm{message}(h, e))",
            r"b = \mathrm{norm}(h + \mathrm{attend}(h))",
            r"h' = \mathrm{norm}\big(a + b + W_2\, \sigma(W_1 (a + b))\big)",
        ),
        "",
    ),
    "GraphormerBackbone": Figure(
        **transformer("biases by distance", "add in- and out-degrees"),
        equation=lines(
            r"s_{ij} = q_i \cdot k_j / \sqrt d + b_{\mathrm{dist}(i, j)} + c(e_{ji})",
            r"h'_i = h_i + \sum_j \mathrm{softmax}_j(s_{ij})\, v_j",
        ),
    ),
    "GTBackbone": Figure(
        **transformer("edges, or all pairs", "add Laplacian eigenvectors"),
        equation=lines(
            r"h^{(0)}_i = x_i + W \lambda_i",
            r"h'_i = h_i + \sum_j \mathrm{softmax}_j(q_i \cdot k_j / \sqrt d)\, v_j",
        ),
    ),
    "SchNetBackbone": Figure(
        **atoms(
            Box("dense, times the filters", "[G, E, C]", side="filters of distances"),
            Box("reduce, two dense layers", "states [G, N, C]"),
        ),
        equation=lines(
            r"m_i = \mathrm{mean}_j\, (W_1 h_j) \odot w(d_{ji})",
            r"h'_i = h_i + W_5\, s(W_4 m_i)",
        ),
    ),
    "MPEUBackbone": Figure(
        **atoms(
            Box("edge update", "states [G, E, C]", side="distances, at first"),
            Box("dense, times the filters", "[G, E, C]"),
            Box("reduce, two dense layers", "states [G, N, C]"),
        ),
        equation=lines(
            r"e'_{ji} = W_b\, s(W_a [h_j, h_i, e_{ji}])",
            r"m_i = \mathrm{reduce}_j\, (W_1 h_j) \odot s(W_3\, s(W_2 e'_{ji}))",
            r"h'_i = h_i + W_5\, s(W_4 m_i)",
        ),
    ),
    "PaiNNBackbone": Figure(
        **atoms(
            Box(
                "PaiNNMessage",
                VECTORS,
                side="distances, directions",
            ),
            Box("PaiNNUpdate", VECTORS),
            shape="[G, N, C]",
        ),
        equation=lines(
            r"s'_i = s_i + \sum_j a_{ji}",
            r"v'_i = v_i + \sum_j (b_{ji}\, r_{ji} + c_{ji}\, v_j)",
            r"s''_i = s'_i + a_{ss} + a_{sv} \langle U v'_i, V v'_i \rangle",
            r"v''_i = v'_i + a_{vv}\, U v'_i",
        ),
    ),
}
# Bases of backbones, and the class that users derive theirs from.
WITHOUT = ("Backbone", "MessagePassingBackbone")


def text(x, y, value: str, size: int = 13, anchor="middle", style="") -> str:
    """Return a line of text."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" {style}>'
        f"{html.escape(value)}</text>"
    )


def box(item: Box, y: int) -> str:
    """Return a box, the shape that leaves it, and what it also reads."""
    middle = LEFT + BOX / 2
    out = f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="30" rx="4" '
    out += f'fill="{item.color}" stroke="#5c6bc0"/>\n'
    out += text(middle, y + 20, item.text) + "\n"
    if item.shape:
        gray = 'fill="#555"'
        out += text(middle + 10, y + 49, item.shape, 11, "start", gray) + "\n"
    if item.side:
        out += text(LEFT - 34, y + 20, item.side, 11, "end") + "\n"
        out += f'<path d="M{LEFT - 30} {y + 15}H{LEFT - 2}" {ARROW}/>\n'
    return out


ARROW = 'fill="none" stroke="#333" stroke-width="1.3" marker-end="url(#end)"'


def drawing(name: str, figure: Figure) -> str:
    """Return the figure of a backbone as SVG."""
    items = [*figure.first, *figure.loop, *figure.last]
    y, tops, out = 8, [], ""
    start, stop = len(figure.first), len(figure.first) + len(figure.loop)
    for number in range(len(items)):
        y += 26 * (number == start and start < stop) + 14 * (number == stop > start)
        tops.append(y)
        y += STEP
    if start < stop:
        top, bottom = tops[start] - 26, tops[stop - 1] + 57
        out += f'<rect x="4" y="{top}" width="{WIDTH - 8}" height="{bottom - top}" '
        out += 'rx="6" fill="#fafafa" stroke="#9e9e9e" stroke-dasharray="5 3"/>\n'
        bold = 'font-weight="bold"'
        out += text(12, top + 17, figure.times, 12, "start", bold) + "\n"
    middle = LEFT + BOX / 2
    for above, below in zip(tops, tops[1:], strict=False):
        out += f'<path d="M{middle} {above + 30}V{below - 2}" {ARROW}/>\n'
    if figure.residual and start < stop:
        x, first, last = LEFT + BOX + 10, tops[start] - 9, tops[stop - 1] + 37
        out += f'<path d="M{middle} {first}H{x}V{last}H{middle + 2}" fill="none" '
        out += 'stroke="#c62828" stroke-width="1.3" stroke-dasharray="3 2"/>\n'
    out += "".join(box(item, top) for item, top in zip(items, tops, strict=True))
    legend = [(LEARNED, "weights"), (FIXED, "no weights"), (DATA, "arrays")]
    x = 8
    for color, label in legend:
        out += f'<rect x="{x}" y="{y + 2}" width="14" height="12" fill="{color}" '
        out += 'stroke="#5c6bc0"/>\n' + text(x + 19, y + 12, label, 11, "start") + "\n"
        x += 92
    if figure.residual and start < stop:
        out += f'<path d="M{x + 4} {y + 8}h20" stroke="#c62828" '
        out += 'stroke-dasharray="3 2"/>\n'
        out += text(x + 29, y + 12, figure.residual, 11, "start") + "\n"
    height = y + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" '
        'font-family="system-ui, Roboto, Helvetica, Arial, sans-serif">\n'
        f"<title>{name}</title>\n"
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#333"/></marker>'
        f'</defs>\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        f"{out}</svg>\n"
    )


def drawings() -> dict[str, str]:
    """Return the text of each figure by its path in `docs/`."""
    return {
        f"figures/models/{name}.svg": drawing(name, figure)
        for name, figure in FIGURES.items()
    }


def section(name: str, up: str = "../../") -> str:
    """Return the figure and the equation of a backbone, for a page below `docs/`."""
    figure = FIGURES[name]
    alt = f"{name}: {', '.join(item.text for item in (*figure.first, *figure.loop))}"
    return (
        f'<figure class="model" markdown>\n![{alt}]({up}figures/models/{name}.svg)\n'
        "<figcaption>Shapes: G supergraphs, N nodes, E edges, H or C channels"
        f"</figcaption>\n</figure>\n\n$${figure.equation}$$\n"
    )


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, svg in drawings().items():
        (FOLDER.parents[1] / path).write_text(svg)
