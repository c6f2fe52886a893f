"""`bandgnn demo`: planted bugs are counted at bounds of the model of `check`."""

import re

from keras_bandgnn.programs.commands.demo import check_planted
from keras_bandgnn.programs.linting.checker import DEFAULT_MODEL, Checker

MODULE = """
def copy(source, target):
    with open(source) as reader, open(target, "w") as writer:
        for line in reader:
            writer.write(line)


def scale(rows, factor):
    scaled = []
    for row in rows:
        scaled.append([factor * value for value in row])
    return scaled
"""


def test_planted_bugs_are_counted_from_half_of_the_bound_of_the_model_on(
    tmp_path, capfd
):
    names = [f"m{number}.py" for number in range(4)]
    for name in names:
        (tmp_path / name).write_text(MODULE)
    check_planted(tmp_path, names, seed=0, top=2)
    shown = capfd.readouterr().out
    rows = re.findall(r"^ +(\d+\.\d) % +(\d+) +(\d+) ", shown, re.M)
    bound = Checker(DEFAULT_MODEL).min_confidence
    expected = [100 * factor * bound for factor in (0.5, 1, 2, 5)]
    assert [float(row[0]) for row in rows] == [round(value, 1) for value in expected]
    findings = [int(row[1]) for row in rows]
    assert findings == sorted(findings, reverse=True) and findings[0] > 0
    assert 0 < int(rows[0][2]) <= 4
