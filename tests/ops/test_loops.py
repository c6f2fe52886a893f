"""Loops over pieces of long arrays."""

import itertools

import keras
import numpy as np
from keras import ops

from keras_bandgnn.ops.loops import numbered_dropout


def test_no_mask_repeats_over_calls_and_pieces():
    # As layers draw them: a seed per call, and numbers of pieces.
    generator = keras.random.SeedGenerator(3)
    ones, masks = ops.ones((64,)), []
    for _ in range(6):
        seed = generator.next()
        for number in range(6):
            out = numbered_dropout(ones, 0.5, seed, ops.convert_to_tensor(number))
            masks.append(np.asarray(ops.convert_to_numpy(out)) > 0)
    for one, other in itertools.combinations(masks, 2):
        # Independent masks agree in half of their places, give or take 4.
        assert 10 < (one == other).sum() < 54


def test_a_piece_has_the_same_mask_whenever_it_is_computed():
    if keras.backend.backend() == "torch":
        return  # Its masks follow from a state that checkpoints restore.
    seed = keras.random.SeedGenerator(3).next()
    one, other = (numbered_dropout(ops.ones((64,)), 0.5, seed, 2) for _ in range(2))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))
