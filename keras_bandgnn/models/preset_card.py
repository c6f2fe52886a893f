"""A preset's `README.md`: what the model is, and where it comes from."""

from collections.abc import Mapping

import keras

# Headings of a card, in order.
FACTS = ("data", "licence", "recipe", "score", "seed", "command", "limits")


def count_parameters(model: keras.Model) -> int:
    """Weights of a backbone and its head, without constants of the data."""
    if not hasattr(model, "backbone"):
        return model.count_params()
    return model.backbone.count_params() + model.head.count_params()


def make_card(name: str, model: keras.Model, weights: str, facts: Mapping) -> str:
    """The text of a card.

    Args:
        name: Name of the preset.
        model: A task or a backbone.
        weights: "float32", "float16" or "none".
        facts: Texts by name, some of `FACTS`; also `title` and `repository_licence`,
            the licence's identifier.

    Raises:
        ValueError: For other names.
    """
    known = ("title", "repository_licence", *FACTS)
    unknown = sorted(set(facts) - set(known))
    if unknown:
        raise ValueError(f"Expected `card` to have {known}. Received: {unknown}.")
    backbone = getattr(model, "backbone", model)
    kind = type(model).__name__
    lines = ["---", "library_name: keras-bandgnn"]
    if "repository_licence" in facts:
        lines.append(f"license: {facts['repository_licence']}")
    lines += ["tags:", "- graph", "- keras", "---", "", f"# {name}", ""]
    lines += [
        str(facts.get("title", f"A {type(backbone).__name__} of keras-bandgnn.")),
        "",
        "| | |",
        "| --- | --- |",
        f"| backbone | `{type(backbone).__name__}` |",
    ]
    if backbone is not model:
        lines.append(f"| task | `{kind}` |")
    stored = {"none": "none: an architecture, to be trained"}.get(weights, weights)
    lines += [
        f"| parameters | {count_parameters(model):,} |",
        f"| weights | {stored} |",
        "",
        "```python",
        "import keras_bandgnn as kb",
        "",
    ]
    option = ", load_weights=False" if weights == "none" else ""
    lines += [f'model = kb.models.{kind}.from_preset("{name}"{option})', "```", ""]
    for fact in FACTS:
        if fact in facts:
            lines += [f"## {fact.capitalize()}", "", str(facts[fact]).strip("\n"), ""]
    return "\n".join(lines)
