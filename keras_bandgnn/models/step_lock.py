"""`one_thread`: methods that compute with the weights of a task, one at a time.

Keras keeps the state of a step in attributes of the model, and on JAX gives the buffers
of the weights to the step and takes others back: two steps at a time would read each
other's, or buffers that are gone.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import keras

_WAIT = 0.05
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class StepLock:
    """The lock of a backbone, which its thread may acquire again.

    Threads wait for each other's steps and predictions, but not for the end of a `fit`.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._fits = 0

    def __reduce__(self):
        return StepLock, ()

    @contextlib.contextmanager
    def acquire(self, name: str) -> Iterator[None]:
        """Acquire the lock in a context.

        Args:
            name: The method that computes.

        Raises:
            RuntimeError: If another thread is in `fit`.
        """
        while not self._lock.acquire(timeout=_WAIT):
            if self._fits:
                raise RuntimeError(
                    f"Expected {name} in the thread of fit, or after it. Received: a "
                    "task that another thread is training, whose weights change. Use "
                    "another task, loaded from what task.save(path) or "
                    "task.save_to_preset(path) wrote."
                )
        fits = name == "fit"
        try:
            self._fits += fits
            yield
        finally:
            self._fits -= fits
            self._lock.release()


@contextlib.contextmanager
def exclusive(model: keras.Model, name: str) -> Iterator[None]:
    """Let one thread at a time compute with the weights of a model.

    Args:
        model: A task, or a program of tasks.
        name: The method that computes.
    """
    tasks = getattr(model, "tasks", [model])
    backbones = {id(task.backbone): task.backbone for task in tasks}
    with contextlib.ExitStack() as stack:
        # In one order, so that no two threads wait for each other.
        for number in sorted(backbones):
            # Keras would track an attribute.
            lock = vars(backbones[number]).setdefault("_step_lock", StepLock())
            stack.enter_context(lock.acquire(name))
        yield


def one_thread(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a method of a task: one thread at a time runs it."""

    @functools.wraps(method)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with exclusive(args[0], method.__name__):
            return method(*args, **kwargs)

    return call
