"""keras-tuner, or an error that names the extra."""

try:
    import keras_tuner
except ImportError as error:
    raise ImportError(
        "Expected keras-tuner to be installed for searches. Received: it is not. "
        "Install it with pip install 'keras-bandgnn[tuner]'."
    ) from error

__all__ = ["keras_tuner"]
