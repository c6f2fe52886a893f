import keras
import numpy as np
import pytest

from keras_bandgnn.training import LinearDecay, make_optimizer

pytestmark = pytest.mark.every_backend


def test_linear_decay():
    decay = LinearDecay(2.0, decay_steps=10, end_factor=0.1)
    rates = [float(decay(step)) for step in (0, 5, 10, 20)]
    np.testing.assert_allclose(rates, [2.0, 1.1, 0.2, 0.2], rtol=1e-6)
    assert LinearDecay.from_config(decay.get_config()).get_config() == (
        decay.get_config()
    )
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        LinearDecay(1.0, end_factor=2)
    with pytest.raises(ValueError, match="decay_steps"):
        LinearDecay(1.0, decay_steps=0)


def test_optimizers():
    sgd = make_optimizer("sgd")
    assert isinstance(sgd, keras.optimizers.SGD)
    assert sgd.nesterov and sgd.momentum == 0.9 and sgd.global_clipnorm == 0.1
    adam = make_optimizer("adam", learning_rate=0.5)
    assert isinstance(adam, keras.optimizers.Adam)
    assert float(adam.learning_rate) == 0.5
    with pytest.raises(ValueError, match="one of 'sgd', 'adam'"):
        make_optimizer("lion")
