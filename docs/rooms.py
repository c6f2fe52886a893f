"""Draws `figures/rooms.svg`: which room of the package imports which.

python docs/rooms.py

Rooms and imports are those of `tests/test_rooms.py`, which also checks that the
committed picture is the one drawn here. An arrow that others imply is left out.
"""

import sys
from pathlib import Path

FIGURE = Path(__file__).parent / "figures" / "rooms.svg"
GROUND = "graph, batch, checks, ..."
WIDTH, HEIGHT, GAP, ROW = 124, 34, 22, 84
OPENING = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" style="font: 15px
sans-serif; text-anchor: middle; dominant-baseline: central">
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8"
markerHeight="8" orient="auto"><path d="M0 0L10 5L0 10z" fill="#808080"/></marker>
"""
LINE = '<polyline points="{}" fill="none" stroke="#808080" marker-end="url(#head)"/>\n'
# White on dark, without a background: readable on light and dark pages.
BOX = """\
<rect x="{}" y="{}" width="{}" height="{}" rx="6" fill="{}"/>
<text x="{}" y="{}" fill="#fff">{}</text>
"""
PLAIN, OTHER = "#00796b", "#3f51b5"


def boxes(tests) -> dict[str, list[str]]:
    """Return each box and those below it to which it has an arrow.

    Args:
        tests: The module `test_rooms`.
    """

    def box(name: str) -> str:
        room = tests.room_of(name).partition(".")[0]
        others = {"__main__": "cli", "visualization": "plotting", "plans": "primitives"}
        room = others.get(room, room)
        return room if tests.FILES[room].name == "__init__.py" else GROUND

    imports: dict[str, set[str]] = {box(name): set() for name in tests.FILES if name}
    for name, others in tests.arrows().items():
        imports[box(name)] |= {box(other) for other in others} - {box(name)}

    def below(room: str) -> set[str]:
        return imports[room].union(*map(below, imports[room]))

    return {
        room: sorted(others.difference(*map(below, others)))
        for room, others in imports.items()
    }


def width(item) -> int:
    """Return the width of a box, or of the room that the bend of an arrow takes."""
    return 16 if isinstance(item, tuple) else max(WIDTH, 9 * len(item))


def placed(arrows: dict[str, list[str]]) -> tuple[dict, list[list]]:
    """Return (x, y) of each box and bend, and the boxes and bends of each arrow."""

    def level(box: str) -> int:
        return 1 + max(map(level, arrows[box]), default=-1)

    height = {box: level(box) for box in arrows}
    rows: list[list] = [[] for _ in range(1 + max(height.values()))]
    for box in arrows:
        rows[height[box]].append(box)
    # An arrow over several rows has a bend in each: nothing else is put there.
    lines, links = [], {}
    for box, others in arrows.items():
        for other in others:
            bends = [(box, other, n) for n in range(height[box] - 1, height[other], -1)]
            for bend in bends:
                rows[bend[2]].append(bend)
            lines.append([box, *bends, other])
            for one, two in zip(lines[-1], lines[-1][1:], strict=False):
                # Between bends lines are straight: these hold each other fast.
                times = 8 if isinstance(one, tuple) and isinstance(two, tuple) else 1
                links.setdefault(one, []).extend([two] * times)
                links.setdefault(two, []).extend([one] * times)
    x = {item: 100.0 * n for row in rows for n, item in enumerate(row)}
    for turn in range(40):
        for row in rows if turn % 2 else rows[::-1]:
            wish = {i: sum(x[o] for o in links[i]) / len(links[i]) for i in row}
            row.sort(key=lambda item: (wish[item], str(item)))
            edge = -1e9
            for item in row:
                x[item] = max(wish[item], edge + width(item) / 2)
                edge = x[item] + width(item) / 2 + GAP
            # Not all to the right: on average where the row wants to be.
            shift = sum(wish[item] - x[item] for item in row) / len(row)
            x |= {item: x[item] + shift for item in row}
    left = min(x[item] - width(item) / 2 for item in x) - GAP
    return {
        item: (round(x[item] - left), (len(rows) - 1 - n) * ROW + HEIGHT)
        for n, row in enumerate(rows)
        for item in row
    }, lines


def picture(tests) -> str:
    """Return the picture of the rooms that the module `test_rooms` knows."""
    places, lines = placed(boxes(tests))
    right = max(x + width(item) // 2 for item, (x, _) in places.items()) + GAP
    bottom = max(y for _, y in places.values()) + HEIGHT
    out = OPENING.format(right, bottom)
    for first, *bends, last in lines:
        (x, y), (u, v), half = places[first], places[last], HEIGHT // 2
        points = [(x, y + half), *map(places.get, bends), (u, v - half)]
        out += LINE.format(" ".join(f"{a} {b}" for a, b in points))
    for item, (x, y) in places.items():
        if isinstance(item, str):
            wide, colour = width(item), PLAIN if item in tests.PLAIN else OTHER
            corner = x - wide // 2, y - HEIGHT // 2
            out += BOX.format(*corner, wide, HEIGHT, colour, x, y, item)
    return out + "</svg>\n"


if __name__ == "__main__":
    sys.path[:0] = [str(FIGURE.parents[2]), str(FIGURE.parents[2] / "tests")]
    import test_rooms

    FIGURE.write_text(picture(test_rooms))
