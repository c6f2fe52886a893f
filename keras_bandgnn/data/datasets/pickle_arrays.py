"""Reads arrays, sparse matrices and lists from pickles without running their code.

A pickle is a program. This module interprets only the instructions that build numbers,
lists, dictionaries, NumPy arrays, SciPy CSR matrices and a `defaultdict(list)`, and
rejects all others by name. The format is that of Python 2 (protocol 2), in which the
Planetoid files are published.
"""

import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.data.reading import read_bytes, refuse_file

_GLOBALS = {
    "numpy ndarray",
    "numpy dtype",
    "numpy.core.multiarray _reconstruct",
    "scipy.sparse.csr csr_matrix",
    "collections defaultdict",
    "__builtin__ list",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING"),
}
_NEW = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_DTYPE = re.compile(r"[biuf][1248]")


class _Global(str):
    """A global name in the pickle, which is never imported."""


class _Object:
    """An object of the pickle: the name of its class, its arguments and state."""

    def __init__(self, name: str, args: tuple):
        self.name, self.args, self.state = name, args, None


def read_pickle(path: Path) -> Any:
    r"""Read a file that holds an array, a CSR matrix or a dictionary of lists.

    Args:
        path: A pickle of protocol 2.

    Returns:
        A NumPy array, a `scipy.sparse.csr_matrix`, or a dictionary.

    Raises:
        ValueError: If the file contains anything else, or is damaged.

    Example:
    >>> _ = Path("list.pkl").write_bytes(b"\x80\x02]q\x00(K\x01K\x02e.")
    >>> read_pickle(Path("list.pkl"))
    [1, 2]
    >>> _ = Path("bad.pkl").write_bytes(b"\x80\x02cos\nsystem\n.")
    >>> read_pickle(Path("bad.pkl"))
    Traceback (most recent call last):
    ...
    ValueError: Expected bad.pkl to contain only arrays and lists. Received: the ...
    """
    machine = _Machine(str(path))
    try:
        for operation, argument, _ in pickletools.genops(read_bytes(path)):
            machine.step(operation.name, argument)
        return _to_arrays(machine.stack.pop())
    except _Refused as error:
        raise ValueError(str(error)) from None
    except OSError:
        raise
    except Exception as error:  # pickletools raises many types of errors
        what = "to be a complete pickle of arrays or lists"
        refuse_file(path, what, f"{type(error).__name__}: {error}", cause=error)


class _Refused(Exception):
    """An instruction or a name that this module does not support."""


class _Machine:
    """The stack and the memo of the pickle machine."""

    def __init__(self, name: str):
        self.name = name
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memory: dict[int, Any] = {}

    def step(self, operation: str, argument: Any) -> None:
        stack = self.stack
        if operation in _VALUES:
            stack.append(argument)
        elif operation in ("BINPUT", "LONG_BINPUT"):
            self.memory[argument] = stack[-1]
        elif operation in ("BINGET", "LONG_BINGET"):
            stack.append(self.memory[argument])
        elif operation in _CONSTANTS:
            stack.append(_CONSTANTS[operation])
        elif operation in _NEW:
            stack.append(_NEW[operation]())
        elif operation in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(_popped(stack, int(operation[-1]))))
        elif operation in ("PROTO", "STOP"):
            pass
        elif method := getattr(self, f"_do_{operation.lower()}", None):
            method(argument)
        else:
            self._refuse(f"the instruction {operation}")

    def _refuse(self, what: str) -> None:
        raise _Refused(
            f"Expected {self.name} to contain only arrays and lists. Received: {what}. "
            "It was not run. Download the file from its official address."
        )

    def _marked(self) -> list[Any]:
        return _popped(self.stack, len(self.stack) - self.marks.pop())

    def _do_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def _do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _do_append(self, _: Any) -> None:
        value = self.stack.pop()
        _checked_type(list, self.stack[-1]).append(value)

    def _do_appends(self, _: Any) -> None:
        values = self._marked()
        _checked_type(list, self.stack[-1]).extend(values)

    def _do_setitems(self, _: Any) -> None:
        values = self._marked()
        _checked_type(dict, self.stack[-1]).update(
            zip(values[::2], values[1::2], strict=True)
        )

    def _do_global(self, name: str) -> None:
        if name not in _GLOBALS:
            self._refuse(f"the global {name.replace(' ', '.')!r}")
        self.stack.append(_Global(name))

    def _do_reduce(self, _: Any) -> None:
        name, args = _popped(self.stack, 2)
        if _checked_type(_Global, name) == "collections defaultdict":
            self.stack.append({})
        else:
            self.stack.append(_Object(name, _checked_type(tuple, args)))

    _do_newobj = _do_reduce

    def _do_build(self, _: Any) -> None:
        state = self.stack.pop()
        _checked_type(_Object, self.stack[-1]).state = state


def _popped(stack: list[Any], count: int) -> list[Any]:
    if not 0 <= count <= len(stack):
        raise IndexError("an instruction without its operands")
    values = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return values


def _checked_type(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _to_arrays(value: Any) -> Any:
    """Convert the objects of the pickle to arrays and matrices."""
    if not isinstance(value, _Object):
        return value
    if value.name == "numpy.core.multiarray _reconstruct":
        _, shape, dtype, fortran, content = value.state
        array = np.frombuffer(content.encode("latin-1"), _dtype(dtype))
        return array.reshape(shape, order="F" if fortran else "C")
    if value.name == "scipy.sparse.csr csr_matrix":
        from scipy.sparse import csr_matrix

        fields = [_to_arrays(value.state[key]) for key in ("data", "indices", "indptr")]
        _check_csr(*fields, value.state["_shape"])
        return csr_matrix(tuple(fields), shape=value.state["_shape"])
    raise ValueError(f"an unexpected {value.name}")


def _check_csr(data: Any, indices: Any, indptr: Any, shape: Any) -> None:
    """Raise a ValueError unless the parts of a matrix are consistent.

    SciPy would read beyond the end of inconsistent arrays.
    """
    for array, kinds in ((data, "iuf"), (indices, "iu"), (indptr, "iu")):
        if _checked_type(np.ndarray, array).ndim != 1 or array.dtype.kind not in kinds:
            raise ValueError("a matrix of arrays of another type or rank")
    rows, columns = (
        int(_checked_type(int, size)) for size in _checked_type(tuple, shape)
    )
    if (
        min(rows, columns) < 0
        or len(indptr) != rows + 1
        or indptr[0] != 0
        or (indptr[1:] < indptr[:-1]).any()
        or not indptr[-1] == len(indices) == len(data)
    ):
        raise ValueError(f"a matrix whose rows do not fit its shape {shape}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < columns:
        raise ValueError(f"a matrix with columns beyond its shape {shape}")


def _dtype(value: _Object) -> np.dtype:
    code, order = value.args[0], value.state[1]
    if not _DTYPE.fullmatch(code) or order not in ("<", ">", "|"):
        raise ValueError(f"an array of type {order}{code}")
    return np.dtype(order + code)
