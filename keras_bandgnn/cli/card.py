"""The card of a model that a command has trained."""

import argparse


def make_facts(options: argparse.Namespace, facts: dict) -> dict:
    """A model's card for `save_to_preset`."""
    import keras

    if options.title:
        facts["title"] = options.title
    return {
        **facts,
        "seed": f"{options.seed}, backend {keras.backend.backend()}",
        "command": f"    {options.line}",
    }
