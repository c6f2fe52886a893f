"""Reads arrays, sparse matrices and lists from pickles without running anything.

A pickle is a program. Here its instructions are only read: those that build numbers,
lists, dictionaries, NumPy arrays, SciPy CSR matrices and a `defaultdict(list)` are
carried out by this module, in its own terms; any other is refused by name. The form
is that of Python 2 (protocol 2), in which the Planetoid files are published.
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
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINSTRING", "SHORT_BINSTRING"),
}
_NEW = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_DTYPE = re.compile(r"[biuf][1248]")


class _Global(str):
    """A name that the pickle asks for; never looked up."""


class _Object:
    """What the pickle builds of a global: its name, arguments and state."""

    def __init__(self, name: str, args: tuple):
        self.name, self.args, self.state = name, args, None


def read_pickle(path: Path) -> Any:
    r"""Reads a file that holds an array, a CSR matrix or a dictionary of lists.

    Args:
        path: A pickle of protocol 2.

    Returns:
        A NumPy array, a `scipy.sparse.csr_matrix`, or a dictionary.

    Raises:
        ValueError: If the file asks for anything else, or is damaged.

    Example:
    >>> _ = Path("list.pkl").write_bytes(b"\x80\x02]q\x00(K\x01K\x02e.")
    >>> read_pickle(Path("list.pkl"))
    [1, 2]
    >>> _ = Path("bad.pkl").write_bytes(b"\x80\x02cos\nsystem\n.")
    >>> read_pickle(Path("bad.pkl"))
    Traceback (most recent call last):
    ...
    ValueError: Expected bad.pkl to ask for arrays and lists alone. Received: the ...
    """
    machine = _Machine(str(path))
    try:
        for operation, argument, _ in pickletools.genops(read_bytes(path)):
            machine.step(operation.name, argument)
        return _plain(machine.stack.pop())
    except _Refused as error:
        raise ValueError(str(error)) from None
    except OSError:
        raise
    except Exception as error:  # pickletools has errors of many kinds
        what = "to be a whole pickle of arrays or lists"
        refuse_file(path, what, f"{type(error).__name__}: {error}", cause=error)


class _Refused(Exception):
    """An instruction or a name that this module does not carry out."""


class _Machine:
    """The stack and the memory that the instructions work on."""

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
            f"Expected {self.name} to ask for arrays and lists alone. Received: {what}."
            " It was not carried out. Get the file from its official address."
        )

    def _marked(self) -> list[Any]:
        return _popped(self.stack, len(self.stack) - self.marks.pop())

    def _do_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def _do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _do_append(self, _: Any) -> None:
        value = self.stack.pop()
        _of(list, self.stack[-1]).append(value)

    def _do_appends(self, _: Any) -> None:
        values = self._marked()
        _of(list, self.stack[-1]).extend(values)

    def _do_setitem(self, _: Any) -> None:
        key, value = _popped(self.stack, 2)
        _of(dict, self.stack[-1])[key] = value

    def _do_setitems(self, _: Any) -> None:
        values = self._marked()
        _of(dict, self.stack[-1]).update(zip(values[::2], values[1::2], strict=True))

    def _do_global(self, name: str) -> None:
        if name not in _GLOBALS:
            self._refuse(f"the global {name.replace(' ', '.')!r}")
        self.stack.append(_Global(name))

    def _do_reduce(self, _: Any) -> None:
        name, args = _popped(self.stack, 2)
        if _of(_Global, name) == "collections defaultdict":
            self.stack.append({})
        else:
            self.stack.append(_Object(name, _of(tuple, args)))

    _do_newobj = _do_reduce

    def _do_build(self, _: Any) -> None:
        state = self.stack.pop()
        _of(_Object, self.stack[-1]).state = state


def _popped(stack: list[Any], count: int) -> list[Any]:
    if not 0 <= count <= len(stack):
        raise IndexError("an instruction without its operands")
    values = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return values


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _plain(value: Any) -> Any:
    """Turns the objects that were described into arrays and matrices."""
    if not isinstance(value, _Object):
        return value
    if value.name == "numpy.core.multiarray _reconstruct":
        _, shape, dtype, fortran, content = value.state
        array = np.frombuffer(content.encode("latin-1"), _dtype(dtype))
        return array.reshape(shape, order="F" if fortran else "C")
    if value.name == "scipy.sparse.csr csr_matrix":
        from scipy.sparse import csr_matrix

        fields = [_plain(value.state[key]) for key in ("data", "indices", "indptr")]
        _check_csr(*fields, value.state["_shape"])
        return csr_matrix(tuple(fields), shape=value.state["_shape"])
    raise ValueError(f"a {value.name} by itself")


def _check_csr(data: Any, indices: Any, indptr: Any, shape: Any) -> None:
    """Raises a ValueError unless the parts of a matrix fit together.

    SciPy reads beyond the end of the arrays where they do not.
    """
    for array, kinds in ((data, "iuf"), (indices, "iu"), (indptr, "iu")):
        if _of(np.ndarray, array).ndim != 1 or array.dtype.kind not in kinds:
            raise ValueError("a matrix of arrays of another type or rank")
    rows, columns = (int(_of(int, size)) for size in _of(tuple, shape))
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
