"""Writes `benchmarks.md` from `benchmarks.json`: scores beside those in print.

python docs/benchmarks.py

`python -m examples.benchmarks accuracy SET MODEL --results docs/benchmarks.json` adds a
record to the file. `tests/benchmarks/test_bench_accuracy.py` checks that the page is
the one written here.
"""

import json
import runpy
from pathlib import Path

FOLDER = Path(__file__).parent
TITLES = {
    "zinc": "ZINC-12k, official split, mean absolute error",
    "cora": "Cora, public split, accuracy in %",
    "citeseer": "CiteSeer, public split, accuracy in %",
    "cora_by_class": "Cora, one random split, accuracy in %",
    "citeseer_by_class": "CiteSeer, one random split, accuracy in %",
    "amazon_computers": "Amazon Computers, draws after Shchur et al., accuracy in %",
    "amazon_photo": "Amazon Photo, draws after Shchur et al., accuracy in %",
    "coauthor_cs": "Coauthor CS, draws after Shchur et al., accuracy in %",
    "roman_empire": "roman-empire, ten splits, accuracy in %",
    "amazon_ratings": "amazon-ratings, ten splits, accuracy in %",
    "minesweeper": "minesweeper, ten splits, ROC AUC in %",
    "tolokers": "tolokers, ten splits, ROC AUC in %",
    "questions": "questions, ten splits, ROC AUC in %",
    "esol": "ESOL, split by scaffold, RMSE",
    "freesolv": "FreeSolv, split by scaffold, RMSE",
    "lipo": "Lipophilicity, split by scaffold, RMSE",
    "bbbp": "BBBP, split by scaffold, ROC AUC in %",
    "bace": "BACE, split by scaffold, ROC AUC in %",
    "hiv": "HIV, split by scaffold, ROC AUC in %",
    "tox21": "Tox21, split by scaffold, ROC AUC in %",
}
HEAD = """# Benchmarks

Scores of the library's models under published protocols, beside those in print. Made by
`python docs/benchmarks.py` from the records of

```bash
python -m examples.benchmarks accuracy SET MODEL --results docs/benchmarks.json
```

Each line is the mean and the standard deviation of the test scores over the seeds or
splits of the protocol, with the weights of the best validation score. Scores in print
are not run again; their sources are named. `docs/benchmarks.json` has the settings,
parameters and minutes of each line. The splits of Luo et al. for Cora and CiteSeer are
random ones with 20 labels per class, not the public split.

Draws after Shchur et al. are of the largest connected component, with words as present
or absent and the weights of the lowest validation loss, with a patience of 50 epochs.
Features divided by their sums cost about five points on Amazon Computers.

GAT on Coauthor CS and SAGE on Amazon Computers are further below print than one
deviation. GAT there has the 64 units and eight heads of print, but a dense layer over
the states, not an attention layer, gives the classes.

Models of ZINC-12k in print know 28 kinds of atoms and three of bonds; the features of
RDKit (`published=False`) also say what is in a ring, on which the target depends.

Molecules are split by scaffold as by DeepChem: the largest groups of molecules with one
scaffold are for training, the rare scaffolds for the test. MoleculeNet, DeepChem and
DGL-LifeSci split like this, GEM also by chirality. Scores of balanced or random splits
are not comparable.
"""


TAIL = """## Wrong variables

What a model of [`bandgnn check`](check.md) finds, on a [corpus](corpus.md) whose
packages for the test it was not trained on, on real fixes, and on GREAT's examples:

```bash
python -m examples.benchmarks bugs --model MODEL --corpus CORPUS --fixes FIXES \\
    --great FILES --json bugs.json
python -m examples.benchmarks bugs --model MODEL --present --corpus CORPUS \\
    --packages attrs flask httpx invoke werkzeug --fixes FIXES --parts planted fixes
```

MODEL is a preset, or a `.keras` file that `examples/bug_localizer.py` leaves on its
way. `--present` adds `ggnn_varmisuse_python`, which judges one usage at a time, with
the same bugs; it was trained on requests, and not on the other packages for the test. A
run prints Markdown tables; the JSON file also has intervals, thresholds and versions.
`--limit` and `--max-fixes` take fewer, `--parts` some of these:

- `planted`: every function of the packages as it is, where each finding is a false
  alarm, and with one wrong variable. A bug counts as found if its place is reported
  with the right repair. Lines are those of functions.
- `fixes`: files before and after fixes of single variables, `cases.jsonl.gz` and
  `files_before.jsonl.gz` in the folder, at thresholds of 0.5, 1 and 5 planted false
  alarms in 1,000 lines. ruff and pyflakes find a bug if they say something of its line,
  or its function, that they do not say after the fix.
- `great`: joint accuracy, place, repair where the place is known, and false alarms.
  Bugs whose repair the library does not offer count as not found. The scores in print
  are of models trained on GREAT's own functions; there a repair counts if its name has
  half of the probability, whatever the place.
- `tokens`: logistic regressions that tell functions with a planted bug from those
  without. Counts of tokens must stay near chance: planting leaves no mark.
- `shuffled`: small models, trained with labels as they are, and with labels drawn at
  random: the second must be right as often as by chance.
- `renamed`: false alarms where one variable is renamed everywhere, to `x1` or to a name
  of another function. What a model reports more is due to names alone.

Code counts as correct, though it may have bugs. Intervals are those of 95 %: Wilson's
for shares, a bootstrap over files for false alarms.
"""


def score(record: dict) -> str:
    """Return the mean and the deviation of a record as text."""
    if record["metric"] in ("accuracy", "auc"):
        return f"{100 * record['mean']:.1f} ± {100 * record['deviation']:.1f}"
    return f"{record['mean']:.3f} ± {record['deviation']:.3f}"


def page() -> str:
    """Return the text of the page."""
    records = json.loads((FOLDER / "benchmarks.json").read_text())
    source = FOLDER.parent / "examples" / "benchmarks" / "published.py"
    published = runpy.run_path(str(source))["PUBLISHED"]
    parts = [HEAD]
    for name, title in TITLES.items():
        ours = [record for record in records if record["set"] == name]
        if not ours:
            continue
        lines = [
            f"## {title}",
            "",
            "| model | test | runs and source |",
            "| --- | --- | --- |",
        ]
        for record in ours:
            lines.append(
                f"| {record['name']}, keras-bandgnn | {score(record)} | "
                f"{len(record['scores'])} runs, {record['date']} |"
            )
        for model, value, where in published.get(name, ()):
            lines.append(f"| {model} | {value} | {where} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, TAIL])


if __name__ == "__main__":
    (FOLDER / "benchmarks.md").write_text(page())
