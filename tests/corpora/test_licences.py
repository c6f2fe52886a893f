"""Families of licences, from what metadata says."""

import pytest

from examples.corpora.licences import licence_of

OSI = "License :: OSI Approved"


@pytest.mark.parametrize(
    ("expression", "classifiers", "licence", "family"),
    [
        ("MIT", [], None, "MIT"),
        ("BSD-3-Clause AND MIT", [], None, "BSD"),
        ("Apache-2.0 WITH LLVM-exception", [], None, "Apache"),
        ("GPL-2.0-only OR Apache-2.0", [], None, "Apache"),
        ("MIT AND (GPL-3.0-only OR BSD-2-Clause)", [], None, "MIT"),
        ("MIT AND MPL-2.0", [], None, "MPL"),
        ("MIT AND (", [], None, "other"),
        ("MIT)", [], None, "other"),
        ("PSF-2.0", [], None, "PSF"),
        ("Python-2.0", [], None, "Python-2.0"),
        ("0BSD", [], None, "0BSD"),
        ("LicenseRef-Proprietary", [], None, "other"),
        (None, [OSI, f"{OSI} :: MIT License"], "anything", "MIT"),
        (
            None,
            [f"{OSI} :: BSD License", f"{OSI} :: Apache License"],
            "",
            "BSD",
        ),
        (
            None,
            [f"{OSI} :: MIT License", "License :: Proprietary"],
            "",
            "other",
        ),
        (None, [f"{OSI} :: GNU Lesser General Public License v3 (LGPLv3)"], "", "LGPL"),
        (None, [f"{OSI} :: Mozilla Public License 2.0 (MPL 2.0)"], "", "MPL"),
        (None, [f"{OSI} :: ISC License (ISCL)"], "", "ISC"),
        (None, [f"{OSI} :: The Unlicense (Unlicense)"], "", "Unlicense"),
        (None, [], "Apache License, Version 2.0", "Apache"),
        (None, [], "3-Clause BSD License", "BSD"),
        (None, [], "GPLv3", "GPL"),
        (None, [], "permitted", "other"),
        (None, [], "UNKNOWN", "unknown"),
        (None, [], None, "unknown"),
    ],
)
def test_families(expression, classifiers, licence, family):
    assert licence_of(expression, classifiers, licence)[1] == family


def test_texts():
    mit = (
        "MIT License\n\nPermission is hereby granted, free of charge, to any person "
        "obtaining a copy of this software" + " and more" * 30
    )
    assert licence_of(None, [], mit) == ("MIT (text)", "MIT")
    assert licence_of(None, [], None, [mit]) == ("MIT (licence file)", "MIT")
    gpl = "GNU GENERAL PUBLIC LICENSE\n Version 3"
    assert licence_of(None, [], None, [mit, gpl])[1] == "GPL"
    assert licence_of(None, [], None, ["no licence"])[1] == "unknown"
