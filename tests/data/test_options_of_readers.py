"""Options that only some files of a data set have."""

import re
from pathlib import Path

import pytest

from keras_bandgnn.data.datasets.catalogue import DATASETS, OGB_NAMES
from keras_bandgnn.data.datasets.load import _check_options, _options, find_dataset

FORMS = [
    (name, number)
    for name in [*DATASETS, *OGB_NAMES, "tu:SET"]
    for number in range(len(find_dataset(name).forms))
]


@pytest.mark.parametrize(("name", "number"), FORMS)
def test_wrong_options_name_the_files_that_have_them(name, number):
    dataset = find_dataset(name)
    form = dataset.forms[number]
    files = {role: Path(pattern) for role, pattern in form.files.items()}
    file = re.escape(Path(next(iter(form.files.values()))).name)
    _check_options(dataset, form, files, dict.fromkeys(_options(form), None))
    with pytest.raises(ValueError, match=f"{file} has.*Received: wrong=1. Remove it"):
        _check_options(dataset, form, files, {"wrong": 1})
    for other in dataset.forms:
        for option in set(_options(other)) - set(_options(form)):
            there = re.escape(", ".join(other.files.values()))
            with pytest.raises(ValueError, match=f"only other files have it.*{there}"):
                _check_options(dataset, form, files, {option: 1})
