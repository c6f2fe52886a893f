import numpy as np
import pytest

from keras_bandgnn.plotting import batching

pytest.importorskip("matplotlib")


def cell(edges, size, backend="jax", names=("dynamic", "constant", "64")):
    return {
        "backend": backend,
        "edges": edges,
        "hidden": 64,
        "batch_size": size,
        "algorithms": {
            name: {
                "shapes": {"1000": place + 1, "100000": 3 * place + 1},
                "graphs_in_batch": [0, 1, 5, 2],
                "batching_ms": {"mean": 0.1},
                "update_ms": {"mean": 2.0 + place},
                "combined_ms": {"mean": 2.1 + place},
                "total_ms": {"1000": 9.0, "100000": 2.0 * (place + 1)},
            }
            for place, name in enumerate(names)
        },
    }


CELLS = [
    cell(edges, size, backend)
    for edges in ("full", "bonds")
    for size in (32, 16)
    for backend in ("jax", "torch")
]


@pytest.mark.parametrize("name", ["plot_shapes", "plot_step_times", "plot_speedups"])
@pytest.mark.parametrize("cells", [CELLS, [cell("full", 8, names=("64",))]])
def test_figures_are_written_whole(name, cells, tmp_path):
    getattr(batching, name)(cells, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[1:4] == b"PNG"
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="at least one measurement"):
        getattr(batching, name)([], tmp_path / "figure.png")


def test_what_the_speedups_show(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        batching, "save_figure", lambda figure, path: drawn.append(figure)
    )
    batching.plot_speedups(CELLS, tmp_path / "figure.png")
    (figure,) = drawn
    assert len(figure.axes) == 4
    heights = sorted({round(bar.get_height(), 6) for bar in figure.axes[0].patches})
    assert heights == [1.0, 1.5, 3.0]
    assert "100,000 steps" in figure.axes[0].get_ylabel()


def test_lines_are_drawn_over_the_batch_sizes(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        batching, "save_figure", lambda figure, path: drawn.append(figure)
    )
    batching.plot_shapes(CELLS, tmp_path / "figure.png")
    left, right = drawn[0].axes[:2]
    line = {item.get_label(): item for item in left.lines}["64"]
    assert np.array_equal(line.get_xydata(), [[16, 7], [32, 7]])
    assert "batch size 32" in right.get_title()
