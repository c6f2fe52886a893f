"""Licences of packages, by what their metadata says."""

import re
from collections.abc import Sequence

from keras_bandgnn.optional import optional_import

PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "PSF", "Python-2.0", "Unlicense", "0BSD")
"""Families of licences that are permissive."""

# The first pattern that matches a name of a licence tells its family.
_FAMILIES = (
    ("AGPL", r"\bagpl|affero"),
    ("LGPL", r"\blgpl|lesser general public|library general public"),
    ("GPL", r"\bgpl|gnu general public|general public license"),
    ("MPL", r"\bmpl|mozilla public"),
    ("EPL", r"\bepl-|eclipse public"),
    ("other", r"non-?commercial|proprietary|\bcc-by|creative commons|commercial"),
    ("0BSD", r"\b0bsd|zero-clause bsd|bsd zero clause"),
    ("Unlicense", r"unlicense"),
    ("Apache", r"apache"),
    ("BSD", r"\bbsd\b|\bbsd-|new bsd|3-clause|2-clause"),
    ("ISC", r"\bisc\b|\biscl\b"),
    ("PSF", r"\bpsf\b|\bpsf-|python software foundation|\bpsfl\b"),
    ("Python-2.0", r"python-2\.0|python license"),
    ("MIT", r"\bmit\b|\bmit-(0|cmu)\b|expat"),
)
# Sentences by which the text of a licence is known, without commas.
_TEXTS = (
    ("MPL", "mozilla public license"),
    ("AGPL", "gnu affero general public license"),
    ("LGPL", "gnu lesser general public license"),
    ("GPL", "gnu general public license"),
    ("Apache", "apache license version 2.0"),
    ("MIT", "permission is hereby granted free of charge to any person obtaining"),
    ("ISC", "permission to use copy modify and/or distribute this software for any"),
    ("ISC", "permission to use copy modify and distribute this software for any"),
    ("BSD", "redistribution and use in source and binary forms with or without"),
    ("PSF", "python software foundation license version 2"),
    ("Unlicense", "this is free and unencumbered software released into the public"),
)
_LONG = 200  # characters from which a field holds the text of a licence


def _family(name: str) -> str:
    name = name.lower()
    for family, pattern in _FAMILIES:
        if re.search(pattern, name):
            return family
    return "other"


def _of_text(text: str) -> str | None:
    """Return the family of a licence's text; None for an unknown one."""
    text = " ".join(text.lower().replace(",", "").split())
    for family, sentence in _TEXTS:
        if sentence in text:
            return family
    return None


def _of_expression(expression: str) -> list[str]:
    """Return the families that an SPDX expression asks for, all of them.

    Of the operands of OR a permissive one counts, if there is one.
    """
    package = optional_import("license_expression", "license-expression")
    licensing = package.Licensing()

    def families_of(part) -> list[str]:
        if isinstance(part, licensing.OR):
            choices = [families_of(operand) for operand in part.args]
            return min(choices, key=lambda c: sum(f not in PERMISSIVE for f in c))
        if isinstance(part, licensing.AND):
            return [family for operand in part.args for family in families_of(operand)]
        # An exception only permits more.
        return [_family(getattr(part, "license_symbol", part).key)]

    try:
        return families_of(licensing.parse(expression))
    except package.ExpressionError:
        return ["other"]


def licence_of(
    expression: str | None,
    classifiers: Sequence[str],
    licence: str | None,
    texts: Sequence[str] = (),
) -> tuple[str, str]:
    """Return what a package says of its licence, and its family.

    Args:
        expression: `License-Expression` of the metadata.
        classifiers: Its classifiers.
        licence: Its `License`, a name or a text.
        texts: Contents of the licence files, read if nothing else tells.

    Returns:
        The name in the metadata, at most 80 characters, and the family: one of
        `PERMISSIVE`, or `"MPL"`, `"GPL"`, `"LGPL"`, `"AGPL"`, `"EPL"`, `"other"`,
        `"unknown"`. Of several families that all apply it is the least permissive.

    Example:
    >>> licence_of("MIT OR GPL-3.0-only", [], None)
    ('MIT OR GPL-3.0-only', 'MIT')
    """
    if expression and expression.strip():
        name = " ".join(expression.split())
        return name[:80], _strictest(_of_expression(name))
    named = [c for c in classifiers if c.startswith("License ::")]
    ends = [c.rpartition("::")[2].strip() for c in named]
    ends = [end for end in ends if end not in ("OSI Approved", "License")]
    if ends:
        return "; ".join(ends)[:80], _strictest([_family(end) for end in ends])
    if licence and licence.strip() and licence.strip().upper() != "UNKNOWN":
        name = " ".join(licence.split())
        if len(name) < _LONG:
            if re.search(r"\b(AND|OR|WITH)\b", name):
                return name[:80], _strictest(_of_expression(name))
            return name[:80], _family(name)
        family = _of_text(licence)
        if family is not None:
            return f"{family} (text)", family
    families = [family for text in texts if (family := _of_text(text))]
    if families:
        family = _strictest(families)
        return f"{family} (licence file)", family
    return "unknown", "unknown"


def _strictest(families: Sequence[str]) -> str:
    for family in families:
        if family not in PERMISSIVE:
            return family
    return families[0]
