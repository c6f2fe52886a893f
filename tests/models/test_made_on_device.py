"""The operations of GPUs in torch, on this CPU: every new tensor names its device."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from registered import backbone_and_loader, registered

import keras_bandgnn as kb

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="other backends place tensors themselves"
)
PACKAGE = str(Path(kb.__file__).parent)
BACKBONES = sorted(registered(kb.models.Backbone))


def factories():
    import torch

    names = ("arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace")
    names += ("ones", "rand", "randint", "randn", "randperm", "tensor", "zeros")
    return {getattr(torch, name) for name in names}


def made_anywhere(function):
    """Call a function; return where the library makes tensors without a device."""
    from torch.overrides import TorchFunctionMode

    made, found = factories(), set()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, called, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if called in made and kwargs.get("device") is None:
                caller = sys._getframe(1)
                if caller.f_code.co_filename.startswith(PACKAGE):
                    name = Path(caller.f_code.co_filename).name
                    found.add(f"{name}:{caller.f_lineno} {called.__name__}")
            return called(*args, **kwargs)

    with Watch():
        function()
    return found


@pytest.mark.parametrize("name", BACKBONES)
def test_steps_of_gpus_make_tensors_on_their_device(name, monkeypatch):
    from keras_bandgnn.ops.backend import torch as backend

    monkeypatch.setattr(backend, "_is_eager", lambda x: False)
    monkeypatch.setattr(backend, "has_accelerator", lambda: True)
    backbone, loader = backbone_and_loader(name)
    task = kb.models.NodeClassifier(backbone, 3)
    batch = loader[0]
    assert made_anywhere(lambda: task.train_on_batch(*batch)) == set()


def test_tensors_without_a_device_are_found(monkeypatch):
    import torch

    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", str(Path(__file__).parent))

    def function():
        torch.zeros(2, device="cpu")
        torch.arange(3)

    (found,) = made_anywhere(function)
    assert found.endswith("arange")


def test_arrays_of_a_step_are_on_the_device(monkeypatch):
    import torch

    from keras_bandgnn.ops.backend import torch_steps

    data = ({"b": np.ones((2, 3), "float32"), "a": [torch.zeros(2)]}, None, np.ones(2))
    assert torch_steps.step_data(data) is data
    # Another device that every machine has.
    monkeypatch.setattr(torch_steps.compat, "torch_device", lambda: "meta")
    x, y, weight = torch_steps.step_data(data)
    assert list(x) == ["b", "a"] and y is None
    assert all(each.is_meta for each in (x["b"], x["a"][0], weight))
    assert x["b"].shape == (2, 3)


def test_every_step_of_keras_is_on_the_device(monkeypatch):
    from keras_bandgnn.models import fitting

    seen = []

    def step_data(data):
        seen.append(len(data))
        return data

    monkeypatch.setattr(fitting.backend, "step_data", step_data)
    backbone, loader = backbone_and_loader("GCNBackbone")
    task = kb.models.NodeClassifier(backbone, 3)
    batch = loader[0]
    task.train_on_batch(*batch)
    task.test_on_batch(*batch)
    task.predict_on_batch(batch[0])
    task.fit(loader, verbose=0)
    assert len(seen) == 3 + len(loader)
