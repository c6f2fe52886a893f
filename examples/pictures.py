"""Creates figures of the first page, "How it works" and pages of kinds of graphs.

Draws the steps from graphs to batches, then a program graph in three orders, graphs
packed into a supergraph, and the edges processed by each part of a plan. The graphs are
built from Python's standard library. Then the schemas of two graphs with node sets, a
pair in a graph in time, and a graph that is pooled.

    python examples/pictures.py --out docs/figures
    python examples/pictures.py --short

Needs matplotlib: pip install "keras-bandgnn[plot]". Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow; it does none of the work.
"""

import argparse
import sysconfig
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import keras_bandgnn as kb
from keras_bandgnn import plans, preprocessing

PALE = "#e8eaf6"


def program(name: str, context: str, number: int = -1) -> kb.Graph:
    """A graph of one usage of a variable in a file of the standard library."""
    path = Path(sysconfig.get_path("stdlib")) / name
    programs = kb.programs.program_graphs(path.read_bytes(), name, context=context)
    return kb.programs.encode_program(
        programs[number], labels="none", language="python"
    )


def dots(axes: Axes, senders, receivers, size: int, color: str, label=None) -> None:
    """One dot per edge: column sender, row receiver."""
    area = min(3.0, 1500 / size)
    axes.scatter(senders, receivers, s=area, c=color, linewidths=0, label=label)
    axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal")
    axes.set(xlabel="sender (node)", ylabel="receiver (node)")


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def reordering(graph: kb.Graph, block_size: int, path: Path) -> None:
    """The adjacency matrix in three orders of the nodes."""
    titles = {
        "natural": "as in the source",
        "rcmk": "Reverse Cuthill-McKee",
        "bisection": "bisection",
    }
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    panels = figure.subplots(1, len(titles))
    for axes, (ordering, title) in zip(panels, titles.items(), strict=True):
        shown = preprocessing.RCMKCompile(block_size, ordering)(graph)
        size = shown.num_nodes
        near = np.abs(shown.senders - shown.receivers) < block_size
        corners = [(0, 0), (block_size, 0), (size, size - block_size), (size, size)]
        corners += [(size - block_size, size), (0, block_size)]
        axes.fill(*zip(*corners, strict=True), color=PALE)
        first = axes is panels[0]
        label = f"edge with |i - j| < {block_size}" if first else None
        dots(axes, shown.senders[near], shown.receivers[near], size, "C0", label)
        label = "longer edge" if first else None
        dots(axes, shown.senders[~near], shown.receivers[~near], size, "C3", label)
        axes.set_title(
            f"{title}\nbandwidth {shown.bandwidth}, "
            f"{100 * near.mean():.0f} % with |i - j| < {block_size}",
            fontsize="medium",
        )
    figure.legend(loc="outside lower center", ncols=2, markerscale=4, frameon=False)
    save(figure, path)


def packing(x: dict, path: Path) -> None:
    """A supergraph: its graphs side by side, then padding."""
    sizes = x["graph"]["n_node"][0][x["graph"]["mask"][0]]
    real = x["edge"]["mask"][0]
    edges = {name: values[0][real] for name, values in x["edge"].items()}
    total = x["node"]["mask"].shape[1]
    owner = x["node"]["graph_id"][0][edges["receiver"]]
    figure = Figure(figsize=(5.4, 5.2), layout="constrained")
    axes = figure.subplots()
    for number, start in enumerate(np.cumsum(sizes) - sizes):
        corner, side = (start - 0.5, start - 0.5), sizes[number]
        axes.add_patch(Rectangle(corner, side, side, color=PALE))
        inside = owner == number
        color = f"C{number % 10}"
        dots(axes, edges["sender"][inside], edges["receiver"][inside], total, color)
    padded = total - sizes.sum()
    for corner, width, height in (
        ((sizes.sum(), -0.5), padded, total),
        ((-0.5, sizes.sum()), total, padded),
    ):
        axes.add_patch(Rectangle(corner, width, height, color="0.92", zorder=0))
    axes.set_title(
        f"{len(sizes)} graphs in one supergraph of {total} nodes\n"
        f"dots: edges, a colour for each graph; grey: {padded} nodes of padding",
        fontsize="medium",
    )
    save(figure, path)


def blocks(x: dict, block_size: int, path: Path) -> None:
    """The blocks of a banded plan, their edges and the rest."""
    total = x["node"]["mask"].shape[1]
    figure = Figure(figsize=(5.4, 5.6), layout="constrained")
    axes = figure.subplots()
    for k in range(-(-total // block_size)):
        for i, j, name in ((k, k, "C"), (k, k + 1, "U"), (k + 1, k, "L")):
            corner = (j * block_size - 0.5, i * block_size - 0.5)
            color = PALE if name == "C" else "#fff3e0"
            axes.add_patch(
                Rectangle(
                    corner,
                    block_size,
                    block_size,
                    facecolor=color,
                    edgecolor="0.7",
                    linewidth=0.6,
                )
            )
            at = (corner[0] + 0.06 * block_size, corner[1] + 0.4 * block_size)
            if k % 5 == 0 and max(i, j) * block_size < total:
                paper = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.4}
                axes.annotate(f"{name}[{k}]", at, fontsize=7, zorder=3, bbox=paper)
    colors = {f"banded:{block_size}": "C0", "segment": "C3"}
    for name, color in colors.items():
        part = {key: values[0] for key, values in x["plan"][name].items()}
        # Padded edges have a mask, or lead beyond the last node.
        real = part.get("mask", part["receiver"] < total)
        count = int(real.sum())
        label = f"{name}, {count} edges"
        dots(axes, part["sender"][real], part["receiver"][real], total, color, label)
    axes.legend(loc="upper right", fontsize="small", markerscale=3)
    title = f"Plan(Banded({block_size})), the rest by segment sums"
    axes.set_title(title, fontsize="medium")
    save(figure, path)


def first_steps(graphs: list[kb.Graph], block_size: int, folder: Path) -> None:
    """The figures of the first page: reorder, pack, batch."""
    graph = max(graphs, key=lambda graph: graph.num_nodes)
    figure = Figure(figsize=(3.4, 4.6), layout="constrained")
    layer = preprocessing.RCMKCompile(block_size)
    panels = zip(figure.subplots(2, 1), ("before", "after"), strict=True)
    for axes, title in panels:
        shown = graph if title == "before" else layer(graph)
        dots(axes, shown.senders, shown.receivers, shown.num_nodes, "C0")
        axes.set_title(f"{title}: bandwidth {shown.bandwidth} nodes", fontsize="medium")
    figure.legend(["an edge"], loc="outside lower center", markerscale=4, frameon=False)
    save(figure, folder / "first_reorder.png")

    budget = {"node": 2 * graph.num_nodes, "graph": 16}
    batcher = preprocessing.DynamicBatcher(budget=budget)
    loader = preprocessing.GraphLoader(
        [layer(graph) for graph in graphs], batcher, plans.Plan(), shuffle=False
    )
    batches = [loader[i][0] for i in range(2)]
    figure = Figure(figsize=(3.4, 4.6), layout="constrained")
    panels = figure.subplots(2, 1)
    for number, (axes, x) in enumerate(zip(panels, batches, strict=True)):
        total = x["node"]["mask"].shape[1]
        real = x["edge"]["mask"][0]
        sender, receiver = (x["edge"][end][0][real] for end in ("sender", "receiver"))
        owner = x["node"]["graph_id"][0][receiver]
        for graph_id in np.unique(owner):
            inside = owner == graph_id
            color = f"C{graph_id % 10}"
            dots(axes, sender[inside], receiver[inside], total, color)
        axes.set_title(f"supergraph {number + 1}: {total} nodes", fontsize="medium")
    figure.legend(
        ["an edge, in the colour of its graph"],
        loc="outside lower center",
        markerscale=4,
        frameon=False,
    )
    save(figure, folder / "first_pack.png")

    figure = Figure(figsize=(3.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    rows = []
    for number, x in enumerate(batches):
        for name in ("node", "edge", "graph"):
            mask = x[name]["mask"][0]
            rows.append((f"batch {number + 1}\n{name}s", mask.sum(), mask.size))
    for place, (_, filled, size) in enumerate(rows):
        axes.barh(place, 1, color="#cfd8dc", label="padding" if not place else None)
        label = "of graphs" if not place else None
        axes.barh(place, filled / size, color="C0", label=label)
        axes.text(1.02, place, f"[1, {size}]", va="center", fontsize=9)
    axes.set(yticks=range(len(rows)), yticklabels=[row[0] for row in rows])
    axes.set(xlim=(0, 1.45), xlabel="entries in use, and the shape")
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save(figure, folder / "first_batch.png")


def schemas(folder: Path) -> None:
    """The node sets and edge sets of the graphs of the pages."""
    nodes = {
        "customer": {"town": [1, 2, 0], "age": [31.0, 45.0, 64.0]},
        "product": {"price": [2.5, 9.0], "rating": [0.3, 0.8]},
        "shop": {"online": [1]},
    }
    edges = {
        ("customer", "buys", "product"): [[0, 1, 2, 2], [0, 1, 0, 1]],
        ("product", "sold_by", "shop"): [[0, 1], [0, 0]],
    }
    market = kb.data.from_sets(nodes, edges, reverse=True)
    nodes = {"author": {"x": np.ones((30, 8))}, "paper": {"word": np.zeros(40, int)}}
    edges = {
        ("author", "writes", "paper"): np.stack(
            [np.arange(80) % 30, np.arange(80) % 40]
        ),
        ("paper", "cites", "paper"): np.stack([np.arange(60) % 40, np.arange(60) % 37]),
    }
    library = kb.data.from_sets(nodes, edges, reverse=True)
    for name, graph in (("market", market), ("library", library)):
        save(kb.plotting.plot_schema(graph), folder / f"schema_{name}.png")


def events(path: Path) -> None:
    """The edges that a pair may see, by their times, and those that it may not."""
    people = ["Ada", "Ben", "Cem", "Dana", "Eve"]
    pairs = [(3, 4), (0, 2), (1, 3), (4, 1), (2, 1), (1, 2), (3, 1), (0, 1), (2, 4)]
    time = np.array([1, 2, 3.2, 4.1, 5, 7.6, 8.3, 9.2, 9.9])
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.add_subplot()
    axes.hlines(range(len(people)), 0, 10.5, color="#d5d8e0", linewidth=1)
    asked = 6.3
    axes.axvspan(asked, 10.5, color="#fbe9e7", linewidth=0)
    for number, (sender, receiver) in enumerate(pairs):
        color = "#2e7d32" if time[number] < asked else "#c62828"
        style = "-" if time[number] < asked else (0, (2, 2))
        arrow = {"arrowstyle": "-|>", "color": color, "linestyle": style}
        place = (time[number], receiver), (time[number], sender)
        axes.annotate("", *place, arrowprops=arrow)
    arrow = {"arrowstyle": "-|>", "color": "#283593", "linewidth": 2.5}
    axes.annotate("", (asked, 2), (asked, 1), arrowprops=arrow)
    axes.text(asked + 0.1, 1.5, "Ben to Cem?", va="center", color="#283593")
    axes.text(0.1, -0.75, "strictly earlier: may be drawn", color="#2e7d32")
    axes.text(asked + 0.1, -0.75, "the same time or later: hidden", color="#c62828")
    axes.set(yticks=range(len(people)), yticklabels=people, xticks=[], xlabel="time")
    axes.set(xlim=(0, 10.5), ylim=(4.4, -1.1))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    save(figure, path)


def pooling(path: Path) -> None:
    """A graph before and after two layers that halve it, and as three clusters."""
    angle = 2 * np.pi * np.arange(5) / 5
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    # Three hubs with neighbours, joined to one another.
    hubs = 3.2 * np.array([[0.0, 0.9], [-1.0, -0.7], [1.0, -0.7]])
    place = np.concatenate([hubs, *(hub + ring for hub in hubs)])
    edges = [(0, 1), (1, 2), (2, 0)]
    edges += [(h, 3 + 5 * h + i) for h in range(3) for i in range(5)]
    edges += [(3 + 5 * h + i, 4 + 5 * h + i) for h in range(3) for i in range(2)]
    ends = np.array(edges)
    degree = np.bincount(ends.ravel())
    figure = Figure(figsize=(10, 2.9), layout="constrained")
    panels = figure.subplots(1, 4)
    rank = np.argsort(np.argsort(-degree, kind="stable"), kind="stable")
    titles = ("a graph", "pooling=TopKPooling(0.5)", "and again after the next layer")
    for axes, count, title in zip(panels, (18, 9, 5), titles, strict=False):
        stays = rank < count
        for a, b in ends:
            real = stays[a] and stays[b]
            axes.plot(*place[[a, b]].T, color="C0" if real else "0.9", zorder=1)
        colors = ["#283593" if node else "0.9" for node in stays]
        axes.scatter(*place.T, s=60, c=colors, zorder=2)
        axes.set_title(title, fontsize="medium")
    axes = panels[-1]
    cluster = np.concatenate([np.arange(3), np.arange(3).repeat(5)])
    for a, b in ends:
        axes.plot(*place[[a, b]].T, color="0.9", zorder=1)
    axes.scatter(*place.T, s=60, c=[f"C{k}" for k in cluster], alpha=0.3, zorder=2)
    for a, b in edges[:3]:
        axes.plot(*hubs[[a, b]].T, color="0.3", linewidth=3, zorder=3)
    axes.scatter(*hubs.T, s=320, c=["C0", "C1", "C2"], zorder=4)
    axes.set_title("readout=MinCutPooling(64, 3)", fontsize="medium")
    for axes in panels:
        axes.set(aspect="equal", xlim=(-4.6, 4.6), ylim=(-3.6, 4.2))
        axes.set_axis_off()
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    context = "function" if options.short else "file"
    large = program("json/decoder.py", context)
    reordering(large, 128, options.out / "reordering.png")

    many = ("abc", "bisect", "calendar", "glob", "reprlib", "sched", "stat", "textwrap")
    several = [
        program(f"{name}.py", "function", number)
        for name in many
        for number in (range(0, 2) if options.short else range(0, 30, 3))
    ]
    first_steps([graph for graph in several if graph.num_nodes < 400], 64, options.out)

    names = ("abc.py", "textwrap.py", "glob.py", "bisect.py", "reprlib.py", "stat.py")
    small = [program(name, "function") for name in names]
    compiled = [preprocessing.RCMKCompile(64)(graph) for graph in small]
    nodes = sum(graph.num_nodes for graph in compiled)
    batcher = preprocessing.DynamicBatcher(budget={"node": 64 * (nodes // 64 + 2)})
    plan = plans.Plan(plans.Banded(64))
    loader = preprocessing.GraphLoader(compiled, batcher, plan, shuffle=False)
    x = loader[0][0]
    packing(x, options.out / "supergraph.png")
    blocks(x, 64, options.out / "plan.png")
    schemas(options.out)
    events(options.out / "graph_in_time.png")
    pooling(options.out / "pooling.png")


if __name__ == "__main__":
    main()
