"""Memory of training steps on torch, with Python's cyclic collector switched off."""

import gc
import weakref

import keras
import pytest
from registered import backbone_and_loader, registered

import keras_bandgnn as kb

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="reference counts free torch's memory"
)
BACKBONES = sorted(registered(kb.models.Backbone))


@pytest.fixture
def trees_without_cycles(monkeypatch):
    """Keras' own closure that holds a tensor until a collection, put right.

    In its place every tensor that goes into a layer is held by a function that refers
    to itself, whatever the layer. What grows without it is ours.
    """
    from keras.src.tree import torchtree_impl
    from torch.utils import _pytree

    def ordered(tree):
        if type(tree) is dict:
            return {key: tree[key] for key in sorted(tree)}
        node = _pytree.SUPPORTED_NODES.get(_pytree._get_node_type(tree))
        if node is None:
            return tree
        children, context = node.flatten_fn(tree)
        return node.unflatten_fn([ordered(child) for child in children], context)

    monkeypatch.setattr(torchtree_impl, "_dict_to_ordered_dict", ordered)


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def tensors() -> int:
    import torch

    return sum(type(value) is torch.Tensor for value in gc.get_objects())


@pytest.mark.parametrize("place", ["cpu", "accelerator"])
@pytest.mark.parametrize("name", BACKBONES)
def test_steps_free_their_memory_without_the_collector(
    name, place, monkeypatch, trees_without_cycles, no_collections
):
    if place == "accelerator":
        # The operations of GPUs, on this CPU.
        from keras_bandgnn.ops.backend import torch as backend

        monkeypatch.setattr(backend, "_is_eager", lambda x: False)
    backbone, loader = backbone_and_loader(name)
    task = kb.models.NodeClassifier(backbone, 3)
    batch = loader[0]
    for _ in range(2):
        task.train_on_batch(*batch)
    before = tensors()
    for _ in range(10):
        task.train_on_batch(*batch)
    assert tensors() == before


def test_outputs_and_what_gradients_keep_are_freed_together(no_collections):
    import torch

    from keras_bandgnn.ops.loops import with_gradient

    def forward(x):
        out = x.exp()
        return (out,), (out,)

    x = torch.ones(3, requires_grad=True)
    (out,) = with_gradient(forward, lambda kept, slope: (kept[0] * slope,), x)
    (slope,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    torch.testing.assert_close(slope, x.exp())
    reference = weakref.ref(out)
    del out
    assert reference() is None
