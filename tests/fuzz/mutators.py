"""Seeded changes of files: as bytes, as text, and inside the forms they have.

A sample is a dictionary of relative names and bytes. `mutate` changes one member, or
the folder. Containers (zip, gzip, tar, npz, HDF5, Arrow) are opened, changed inside
and packed again with right checksums, so that what lies within is reached.
"""

import ast
import bz2
import gzip
import io
import json
import math
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Files = dict[str, "bytes | Link"]


@dataclass(frozen=True)
class Link:
    """A symbolic link in place of a file."""

    target: str


BIG = 2**32
INTEGERS = [
    *(-1, 0, 1, -2, 3, 7, 255, 256, 65_536, 10**9, -(10**9)),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**32 + 1, 2**53, 2**63 - 1, -(2**63)),
    *(2**63, 2**64, 10**30),
]
NUMBERS = [*INTEGERS, math.nan, math.inf, -math.inf, 1e39, -1e39, 1e308, 0.5, -0.0]
VALUES = [
    *NUMBERS,
    *(None, True, False, "", "x", "0", "..", "../../x", "/etc/passwd", "\x00", "é" * 9),
    *([], {}, [[]], [None], {"": None}, [1, "a", None], "1e400", "NaN"),
]
TOKENS = [
    *("", "x", "-1", "0", "1", "2147483648", "4294967296", "4294967297", "1e39"),
    *("9223372036854775808", "-9223372036854775809", "nan", "inf", "-inf", "NaN"),
    *("1e999", "0x10", "1_0", "１", '"', "'", "#", "\x00", "\ufeff", "1.5", "-0.0"),
    *("None", "true", "999999999", "1000000000000", ",", ",,", "\t", "é", "../x"),
]
_TOKEN = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|[^\w\s]")
_TEXT = (
    *("txt", "csv", "json", "jsonl", "xyz", "extxyz", "cif", "sdf", "poscar", "vasp"),
    *("pdb", "edgelist", "index", "md", "poscar", "beginnings", "failure"),
)


def mutate(files: Files, rng: random.Random, depth: int = 0) -> Files:
    """Changes one member of a sample, or the folder that holds them."""
    files = dict(files)
    if rng.random() < 0.06:
        return _folder(files, rng)
    names = sorted(n for n, v in files.items() if isinstance(v, bytes))
    # Large members are no more interesting than small ones, JSON is more so.
    name = rng.choice(names)
    files[name] = mutate_bytes(name, files[name], rng)
    if rng.random() < 0.1:
        files[name] = mutate_bytes(name, files[name], rng)
    return files


def _folder(files: Files, rng: random.Random) -> Files:
    """Missing, empty, exchanged, added, linked members and folders in their place."""
    names = sorted(files)
    name = rng.choice(names)
    kind = rng.randrange(8)
    if kind == 0:
        del files[name]
    elif kind == 1:
        files[name] = b""
    elif kind == 2:
        other = rng.choice(names)
        files[name], files[other] = files[other], files[name]
    elif kind == 3:
        files[name + rng.choice([".tmp", ".bak", "~", " "])] = files[name]
    elif kind == 4:
        files[f"{name}/{rng.choice(['a', 'x.json'])}"] = files.pop(name)
    elif kind == 5:
        files[name] = Link(rng.choice(["/etc/passwd", "../outside", "missing", "."]))
    elif kind == 6:
        files[name.swapcase()] = files.pop(name)
    else:
        files[rng.choice(["x", ".hidden", "a b", "é.json"])] = rng.randbytes(40)
    return files


def mutate_bytes(name: str, data: bytes, rng: random.Random) -> bytes:
    """Changes a file by its form, or as plain bytes."""
    form = form_of(name, data)
    if form is not None and rng.random() < 0.85:
        try:
            return form(name, data, rng)
        except Exception:
            pass  # an earlier change broke the form
    return raw(name, data, rng)


class _Unreadable(Exception):
    """What an earlier change broke is not of its form any more."""


def form_of(name: str, data: bytes) -> Callable | None:
    """The function that changes files of this form, or None."""
    if data[:2] == b"\x1f\x8b":
        return compressed
    if data[:3] == b"BZh":
        return compressed
    if data[:4] == b"PK\x03\x04":
        return zipped
    if data[:6] == b"\x93NUMPY":
        return array
    if data[:8] == b"\x89HDF\r\n\x1a\n":
        return hdf5
    if data[:6] == b"ARROW1":
        return arrow
    if data[:15] == b"SQLite format 3":
        return sqlite
    if data[:2] == b"\x80\x02":
        return pickled
    if data[257:262] == b"ustar":
        return tarred
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if text[:1] in "{[" and not name.endswith(("jsonl", "csv")):
        return json_file
    if name.endswith("jsonl"):
        return json_lines
    return text_file if "\x00" not in text else None


# Bytes ------------------------------------------------------------------------------


def raw(name: str, data: bytes, rng: random.Random) -> bytes:
    """Truncation, flipped bits, replaced, repeated, removed and foreign bytes."""
    if not data:
        return rng.randbytes(rng.randrange(1, 64))
    kind = rng.randrange(8)
    at = rng.randrange(len(data))
    size = rng.choice([1, 1, 2, 4, 8, 16, 100])
    if kind == 0:
        return data[:at]
    if kind in (1, 2):
        out = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)
    if kind == 3:
        return data[:at] + rng.randbytes(size) + data[at + size :]
    if kind == 4:
        return data[:at] + data[at + size :]
    if kind == 5:
        return data[:at] + data[at : at + size] * rng.choice([2, 50]) + data[at:]
    if kind == 6:
        code = rng.choice(["<i", "<I", "<q", "<H", ">I", "<d", "B"])
        value = rng.choice([0, 1, 255]) if code == "B" else None
        if value is None:
            bits = 8 * struct.calcsize(code)
            value = rng.choice([0, 1, 2 ** (bits - 1) - 1])
            if code[1] in "IH":
                value = rng.choice([0, 2**bits - 1, 2 ** (bits - 1)])
            if code[1] in "iq":
                value = rng.choice([-1, value, -(2 ** (bits - 1))])
            if code[1] == "d":
                value = rng.choice([math.nan, math.inf, 1e300])
        packed = struct.pack(code, value)
        return data[:at] + packed + data[at + len(packed) :]
    return rng.choice([b"", b"\x00" * 64, data + data, data[at:], b"\xff" * 256])


# Text -------------------------------------------------------------------------------


def text_file(name: str, data: bytes, rng: random.Random) -> bytes:
    """Other tokens, lines and characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _Unreadable from None
    kind = rng.randrange(10)
    if kind < 5:
        tokens = list(_TOKEN.finditer(text))
        if not tokens:
            return raw(name, data, rng)
        for _ in range(rng.choice([1, 1, 1, 3])):
            token = rng.choice(tokens)
        return _replaced(text, token, _other_token(token.group(), rng)).encode(
            "utf-8", "surrogatepass"
        )
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines)) if lines else 0
    if kind == 5:
        del lines[at : at + rng.choice([1, 1, 5])]
    elif kind == 6 and lines:
        lines[at:at] = [lines[at]] * rng.choice([1, 1, 1000])
    elif kind == 7 and lines:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 8:
        odd = ["\n", "\r", "#\n", "  \n", '"\n', ",,,\n", "é\n", "\x00\n", "9" * 5000]
        lines.insert(at, rng.choice(odd))
    else:
        bad = rng.choice([b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"])
        place = rng.randrange(len(data) + 1)
        return data[:place] + bad + data[place:]
    return "".join(lines).encode()


def _replaced(text: str, token: re.Match, new: str) -> str:
    return text[: token.start()] + new + text[token.end() :]


def _other_token(token: str, rng: random.Random) -> str:
    if rng.random() < 0.3 and re.fullmatch(r"[+-]?\d+", token):
        value = int(token)
        return str(rng.choice([value + 1, value - 1, -value, value + BIG, value * 10]))
    if rng.random() < 0.1:
        return token * rng.choice([2, 300])
    return rng.choice(TOKENS)


# JSON -------------------------------------------------------------------------------


def json_lines(name: str, data: bytes, rng: random.Random) -> bytes:
    """Changes one line as JSON."""
    lines = data.split(b"\n")
    at = rng.randrange(max(len(lines) - 1, 1))
    lines[at] = json_file(name, lines[at], rng)
    if rng.random() < 0.1:
        lines.insert(at, rng.choice([b"", b"null", b"[]", lines[at]]))
    return b"\n".join(lines)


def json_file(name: str, data: bytes, rng: random.Random) -> bytes:
    """Other values, keys, nesting and spellings."""
    if rng.random() < 0.1:
        return text_file(name, data, rng)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise _Unreadable from None
    places = _places(tree) if isinstance(tree, dict | list) else []
    if not places or rng.random() < 0.02:
        return json.dumps(rng.choice(VALUES)).encode()
    parent, key = rng.choice(places)
    kind = rng.randrange(10)
    if kind < 5:
        parent[key] = _other_value(parent[key], rng)
    elif kind == 5:
        del parent[key]
    elif kind == 6:
        if isinstance(parent, dict):
            odd = rng.choice(["", "x", key.upper(), "class_name", "config", "__proto"])
            parent[odd] = parent.pop(key)
        else:
            parent[key:key] = [parent[key]] * rng.choice([1, 1, 200])
    elif kind == 7:
        other, there = rng.choice(places)
        value = other[there]
        # Not into itself: that has no end.
        parent[key] = json.loads(json.dumps(value))
    elif kind == 8:
        deep = rng.choice([50, 3000, 100_000])
        parent[key] = "@DEEP@"
        text = json.dumps(tree)
        brackets = rng.choice([("[", "]"), ('{"a":', "}")])
        nested = brackets[0] * deep + "1" + brackets[1] * deep
        return text.replace('"@DEEP@"', nested, 1).encode()
    else:
        text = json.dumps(tree)
        if isinstance(parent, dict):
            # A key twice.
            mark = json.dumps(key) + ":"
            value = json.dumps(rng.choice(VALUES), default=str)
            text = text.replace(mark, f"{json.dumps(key)}: {value}, {mark}", 1)
        return text.encode()
    return json.dumps(tree).encode()


def _places(tree) -> list:
    out, left = [], [tree]
    while left:
        item = left.pop()
        keys = item if isinstance(item, dict) else range(len(item))
        for key in keys:
            out.append((item, key))
            if isinstance(item[key], dict | list):
                left.append(item[key])
    return out


def _other_value(value, rng: random.Random):
    if isinstance(value, bool):
        return rng.choice([not value, None, 1, "true"])
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice([value + 1, value - 1, -value, value + BIG, value * 1000])
    if isinstance(value, float) and rng.random() < 0.5:
        return rng.choice([math.nan, math.inf, 1e39, -value, value * 2])
    if isinstance(value, str) and rng.random() < 0.4:
        return rng.choice([value + "x", value[:-1], value.upper(), value * 1000, ""])
    if isinstance(value, list) and value and rng.random() < 0.5:
        return rng.choice([value[:-1], value * 2, value[::-1], [value], value[0]])
    return rng.choice(VALUES)


# Arrays -----------------------------------------------------------------------------


def array(name: str, data: bytes, rng: random.Random) -> bytes:
    """A `.npy`: other shapes, dtypes and values."""
    try:
        length = struct.unpack("<H", data[8:10])[0]
        header = ast.literal_eval(data[10 : 10 + length].decode("latin-1"))
        body = data[10 + length :]
        dtype = np.dtype(header["descr"])
        shape = tuple(header["shape"])
        size = math.prod(shape)
        values = np.frombuffer(body, dtype, size).reshape(shape)
    except Exception:
        raise _Unreadable from None
    if dtype.hasobject:
        return raw(name, data, rng)
    kind = rng.randrange(12)
    if kind < 4 and values.size:
        return npy(_other_entries(values, rng))
    if kind == 4:
        code = rng.choice(["i1", "u1", "i8", "u8", "u4", "f2", "f4", "f8", "c8", "b1"])
        with np.errstate(all="ignore"):
            try:
                return npy(values.astype(code))
            except (ValueError, TypeError):
                return npy(np.zeros(shape, code))
    if kind == 5:
        code = rng.choice(["S3", "U3", "M8[s]", "V4", "m8[D]", ">i4", ">f8", "V0"])
        try:
            return npy(np.zeros(shape, code))
        except (ValueError, TypeError):
            return raw(name, data, rng)
    if kind == 6:
        shapes = [(), (0,), (size,), (1, size), (*shape, 1), shape[::-1], (size, 0)]
        new = rng.choice(shapes)
        return npy(np.resize(values, new) if values.size else np.zeros(new, dtype))
    if kind == 7 and values.ndim and len(values):
        rows = rng.choice([values[:-1], values[1:], np.concatenate([values, values])])
        return npy(rows)
    if kind == 8:
        count = rng.choice([10**10, 2**40, 2**62, 2**63, -1, 10**30])
        odd = rng.choice([(count,), (*shape[:-1], count), (count, count), shape * 20])
        return _npy_header({**header, "shape": odd}) + body
    if kind == 9:
        odd = rng.choice(["O", "|O", "<i3", "zz", "", [("a", "<i4")], "<f4,<f4", 5])
        return _npy_header({**header, "descr": odd}) + body
    if kind == 10:
        keys = [
            {**header, "fortran_order": rng.choice([True, 3, None])},
            {k: v for k, v in header.items() if k != rng.choice(list(header))},
            {**header, "x": 1},
            {**header, "shape": rng.choice([5, "a", None, (1.5,), ("a",), [3]])},
            [],
        ]
        return _npy_header(rng.choice(keys)) + body
    version = rng.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00", b"\0\0"])
    return data[:6] + version + data[8:]


def _other_entries(values: np.ndarray, rng: random.Random) -> np.ndarray:
    values = values.copy()
    flat = values.reshape(-1)
    at = rng.randrange(flat.size)
    with np.errstate(all="ignore"):
        if values.dtype.kind in "iu":
            if rng.random() < 0.3:
                wide = values.astype(np.int64)
                old = int(flat[at])
                new = rng.choice([old + BIG, old - BIG, 2**31, -(2**31) - 1, 2**40])
                wide.reshape(-1)[at] = new
                return wide
            info = np.iinfo(values.dtype)
            old = int(flat[at])
            new = rng.choice([old + 1, old - 1, -1, info.max, info.min, 10**6, 0, -old])
            flat[at] = min(max(new, info.min), info.max)
        elif values.dtype.kind == "f":
            flat[at] = rng.choice([math.nan, math.inf, -math.inf, 1e39, 0.5, -1, 1e300])
        elif values.dtype.kind in "US":
            flat[at] = rng.choice(["", "x", "a/b", "y", "\x01"])
        else:
            return np.resize(values, values.size + 1)
        if rng.random() < 0.15 and values.dtype.kind in "iuf":
            flat[:] = flat[at]
    return values


def _npy_header(header) -> bytes:
    text = repr(header).encode("latin-1", "replace")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npy(values: np.ndarray) -> bytes:
    """The bytes of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


# Containers -------------------------------------------------------------------------


def compressed(name: str, data: bytes, rng: random.Random) -> bytes:
    """A gzip or bzip2 file: its content, or its own bytes."""
    packed = gzip if data[:2] == b"\x1f\x8b" else bz2
    if rng.random() < 0.15:
        return raw(name, data, rng)
    try:
        content = packed.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error):
        raise _Unreadable from None
    inner = name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".tgz")
    if rng.random() < 0.03:
        content += b"\x00" * 30_000_000  # a bomb: 30 kB
    else:
        content = mutate_bytes(inner, content, rng)
    if packed is gzip:
        return gzip.compress(content, 1, mtime=0)
    return bz2.compress(content, 1)


Member = tuple[str, bytes]


def zipped(name: str, data: bytes, rng: random.Random) -> bytes:
    """A zip or npz: its members, their names, or what its directory says."""
    if rng.random() < 0.1:
        return raw(name, data, rng)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(n, archive.read(n)) for n in archive.namelist()]
    except Exception:
        raise _Unreadable from None
    if not members:
        raise _Unreadable
    stored = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    kind = rng.randrange(12)
    if kind < 8:
        at = rng.randrange(len(members))
        inner, content = members[at]
        members[at] = inner, mutate_bytes(inner, content, rng)
        if name.endswith(".npz") and kind == 7:
            # Another one agrees, so that what is behind the first check is reached.
            members = _shorter(members, rng)
    elif kind < 11:
        members = _other_members(members, rng, ".npy" if "npz" in name else "")
    out = _zip(members, stored)
    if kind == 11:
        out = _lying_zip(out, rng)
    return out


def _shorter(members: list[Member], rng: random.Random) -> list[Member]:
    out = []
    for inner, content in members:
        if rng.random() < 0.5:
            content = array_or_same(inner, content, rng)
        out.append((inner, content))
    return out


def array_or_same(name: str, data: bytes, rng: random.Random) -> bytes:
    """A changed array, or the same bytes where they are none."""
    try:
        return array(name, data, rng)
    except _Unreadable:
        return data


def _other_members(
    members: list[Member], rng: random.Random, ending: str
) -> list[Member]:
    """Missing, repeated, exchanged, renamed, added members of an archive."""
    members = list(members)
    at = rng.randrange(len(members))
    inner, content = members[at]
    kind = rng.randrange(7)
    if kind == 0:
        del members[at]
    elif kind == 1:
        members.append((inner, mutate_bytes(inner, content, rng)))
    elif kind == 2:
        other = rng.randrange(len(members))
        name, there = members[other]
        members[at], members[other] = (inner, there), (name, content)
    elif kind == 3:
        members[at] = rng.choice(ODD_NAMES), content
    elif kind == 4:
        members.append((rng.choice(ODD_NAMES) + ending, content))
    elif kind == 5:
        members[at] = inner.swapcase(), content
    else:
        members.append((inner.upper(), content))
    return members


ODD_NAMES = [
    *("../x", "/tmp/x", "a/../../x", "C:\\x", "..\\x", "", "/", ".", "./x", "a//b"),
    *("a\x00b", "é", "a" * 300, "con", "x/", " ", "a\nb", "~/x", "//host/x"),
]


def _zip(members: list[Member], stored: int) -> bytes:
    import warnings

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names twice
        with zipfile.ZipFile(file, "w", stored) as archive:
            for name, content in members:
                info = zipfile.ZipInfo(name)
                info.compress_type = stored
                archive.writestr(info, content)
    return file.getvalue()


def _lying_zip(data: bytes, rng: random.Random) -> bytes:
    """The sizes, methods, flags or checksums in the directory of a zip file."""
    at = data.find(b"PK\x01\x02")
    if rng.random() < 0.3:
        at = data.find(b"PK\x03\x04", rng.randrange(max(len(data) // 2, 1))) - 2
    if at < 0:
        return data
    offset, code = rng.choice(
        [(8, "H"), (10, "H"), (16, "I"), (20, "I"), (24, "I"), (28, "H"), (42, "I")]
    )
    new = struct.pack("<" + code, rng.choice([0, 1, 9, 2**15, 2**16 - 1]))
    return data[: at + offset] + new + data[at + offset + len(new) :]


def tarred(name: str, data: bytes, rng: random.Random) -> bytes:
    """A tar archive: its members, their kinds and names."""
    if rng.random() < 0.15:
        return raw(name, data, rng)
    members = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for info in archive:
                file = archive.extractfile(info)
                members.append((info, file.read() if file else b""))
    except Exception:
        raise _Unreadable from None
    if not members:
        raise _Unreadable
    at = rng.randrange(len(members))
    info, content = members[at]
    kind = rng.randrange(7)
    if kind < 3:
        content = mutate_bytes(info.name, content, rng)
        members[at] = info, content
    elif kind == 3:
        info.name = rng.choice(ODD_NAMES).replace("\x00", "") or "x"
    elif kind == 4:
        info.type = rng.choice(
            [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
        )
        info.linkname = rng.choice(["/etc/passwd", "../../x", "missing"])
    elif kind == 5:
        del members[at]
    else:
        members.append((info, mutate_bytes(info.name, content, rng)))
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


# Formats of libraries ----------------------------------------------------------------


def pickled(name: str, data: bytes, rng: random.Random) -> bytes:
    """A pickle: other arguments of its instructions."""
    import pickletools

    try:
        operations = list(pickletools.genops(data))
    except Exception:
        raise _Unreadable from None
    places = [
        (at, op.name)
        for op, _, at in operations
        if op.name in ("BININT", "BININT1", "SHORT_BINSTRING", "BINSTRING", "GLOBAL")
    ]
    if not places:
        return raw(name, data, rng)
    at, operation = rng.choice(places)
    if operation == "BININT":
        new = rng.choice([v for v in INTEGERS if -(2**31) <= v < 2**31])
        return data[: at + 1] + struct.pack("<i", new) + data[at + 5 :]
    if operation == "BININT1":
        return data[: at + 1] + bytes([rng.randrange(256)]) + data[at + 2 :]
    if operation == "SHORT_BINSTRING":
        length = data[at + 1]
        odd = rng.choice([b"i8", b"f8", b"O8", b"S1", b"V9", b"<", b">", b"x", b""])
        return data[: at + 1] + bytes([len(odd)]) + odd + data[at + 2 + length :]
    if operation == "BINSTRING":
        (length,) = struct.unpack("<I", data[at + 1 : at + 5])
        content = raw(name, data[at + 5 : at + 5 + length], rng)
        packed = struct.pack("<I", len(content)) + content
        return data[: at + 1] + packed + data[at + 5 + length :]
    odd = rng.choice([b"os\nsystem", b"numpy\nndarray", b"builtins\neval", b"x\ny"])
    end = data.index(b"\n", data.index(b"\n", at) + 1)
    return data[: at + 1] + odd + data[end:]


def sqlite(name: str, data: bytes, rng: random.Random) -> bytes:
    """A database: other values of its cells."""
    import sqlite3

    if rng.random() < 0.3:
        return raw(name, data, rng)
    base = sqlite3.connect(":memory:")
    try:
        base.deserialize(data)
        columns = [row[1] for row in base.execute("PRAGMA table_info(systems)")]
        column = rng.choice(columns)
        row = rng.choice(base.execute(f"SELECT id, {column} FROM systems").fetchall())
        value = row[1]
        if isinstance(value, bytes) and rng.random() < 0.7:
            value = raw(name, value, rng)
        elif isinstance(value, str) and rng.random() < 0.8:
            value = mutate_bytes("x.json", value.encode(), rng)
            value = value.decode("utf-8", "replace")
        else:
            value = rng.choice([None, 5, 0.5, "x", b"", b"\x01" * 7, b"\0" * 4096])
        if rng.random() < 0.1:
            base.execute(f"ALTER TABLE systems RENAME COLUMN {column} TO other")
        else:
            sql = f"UPDATE systems SET {column} = ? WHERE id = ?"
            base.execute(sql, (value, row[0]))
        base.commit()
        return base.serialize()
    except sqlite3.Error:
        raise _Unreadable from None
    finally:
        base.close()


def hdf5(name: str, data: bytes, rng: random.Random) -> bytes:
    """Weights: other values, shapes, dtypes, names; links, filters and references."""
    import h5py

    if rng.random() < 0.2:
        return raw(name, data, rng)
    try:
        memory = io.BytesIO(data)
        with h5py.File(memory, "r+") as file:
            sets: list[str] = []
            groups: list[str] = [""]

            def note(path, item):
                (sets if isinstance(item, h5py.Dataset) else groups).append(path)

            file.visititems(note)
            if not sets:
                raise _Unreadable
            path = rng.choice(sorted(sets))
            values = file[path][()]
            kind = rng.randrange(12)
            parent = path.rpartition("/")[0] or "/"
            if kind in (0, 1):
                del file[path]
                changed = np.array(values, np.float32, ndmin=1)
                changed.reshape(-1)[rng.randrange(changed.size)] = rng.choice(
                    [math.nan, math.inf, -math.inf]
                )
                file[path] = changed.reshape(values.shape) if values.ndim else changed
            elif kind == 2:
                del file[path]
                odd = [(0,), (1,), (*values.shape, 1), values.shape[::-1], (3, 5, 7)]
                file[path] = np.ones(rng.choice(odd), np.float32)
            elif kind == 3:
                del file[path]
                huge = rng.choice([(10**12,), (2**40, 2**20), (10**9, 64)])
                file.create_dataset(path, huge, "f4", chunks=(1,) * len(huge))
            elif kind == 4:
                del file[path]
                code = rng.choice(["i8", "u1", "f2", "f8", "S5", "c8", "b1"])
                file[path] = np.zeros(values.shape, code)
            elif kind == 5:
                del file[path]
                file[path] = rng.choice(
                    [
                        h5py.ExternalLink("/etc/passwd", "/"),
                        h5py.ExternalLink("other.h5", "/a"),
                        h5py.SoftLink("/nowhere"),
                        h5py.SoftLink("/" + path),
                    ]
                )
            elif kind == 6:
                del file[path]
                if rng.random() < 0.5:
                    layout = h5py.VirtualLayout(values.shape or (1,), "f4")
                    layout[...] = h5py.VirtualSource("x.h5", "x", values.shape or (1,))
                    file.create_virtual_dataset(path, layout)
                else:
                    external = [("/etc/passwd", 0, max(values.nbytes, 4))]
                    file.create_dataset(
                        path, values.shape, values.dtype, external=external
                    )
            elif kind == 7:
                del file[path]
            elif kind == 8:
                file.move(path, f"{parent}/{rng.choice(['x', '9', 'bias', 'é'])}")
            elif kind == 9:
                group = rng.choice(sorted(groups[1:] or [""]))
                if group:
                    del file[group]
            elif kind == 10:
                file[f"{parent}/more"] = np.ones(3, np.float32)
            else:
                del file[path]
                file.create_group(path)
        return memory.getvalue()
    except _Unreadable:
        raise
    except Exception:
        raise _Unreadable from None


def arrow(name: str, data: bytes, rng: random.Random) -> bytes:
    """An Arrow file: other columns, values, offsets, types and headers."""
    import pyarrow as pa

    if rng.random() < 0.2:
        return raw(name, data, rng)
    try:
        base = pa.py_buffer(data)
        with pa.ipc.open_file(base) as reader:
            metadata = dict(reader.schema.metadata or {})
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        names = batches[0].schema.names
        columns = dict(zip(names, batches[0].columns, strict=True))
        key = rng.choice(names)
        kind = rng.randrange(9)
        if kind == 0:
            metadata = {
                k: json_file(name, v, rng) if v[:1] == b"{" else raw(name, v, rng)
                for k, v in metadata.items()
            }
        elif kind == 1:
            del columns[key]
        elif kind == 2:
            columns[rng.choice(["x", "node/x", "", "senders", "a/b/c"])] = columns[key]
        elif kind == 3:
            other = rng.choice(names)
            columns[key], columns[other] = columns[other], columns[key]
        elif kind == 4:
            columns[key] = pa.nulls(len(columns[key]), columns[key].type)
        elif kind < 8:
            return _other_entry(base, columns[key], rng)
        else:
            types = [pa.int64(), pa.float32(), pa.string(), pa.list_(pa.int32())]
            columns[key] = pa.array([None] * len(columns[key]), rng.choice(types))
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        batches = [batch] * rng.choice([1] * 9 + [0, 2])
        schema = batch.schema.with_metadata(metadata)
        file = io.BytesIO()
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(metadata))
        return file.getvalue()
    except Exception:
        raise _Unreadable from None


def _other_entry(base, column, rng: random.Random) -> bytes:
    """The file with another id, length, offset or letter, in its place."""
    data = bytearray(base.to_pybytes())
    buffers = [b for b in column.buffers() if b is not None and b.size]
    if not buffers:
        raise _Unreadable
    buffer = rng.choice(buffers)
    code = rng.choice(["<i", "<q", "<f"])
    size = struct.calcsize(code)
    if buffer.size < size:
        raise _Unreadable
    place = buffer.address - base.address + rng.randrange(buffer.size // size) * size
    if code == "<f":
        new = rng.choice([math.nan, math.inf, 0.5])
    else:
        old = struct.unpack_from(code, data, place)[0]
        top = 2 ** (8 * size - 1)
        new = rng.choice([-1, 0, old + 1, old - 1, top - 1, -top, 10**6, 100])
        new = min(max(new, -top), top - 1)
    struct.pack_into(code, data, place, new)
    return bytes(data)


# Integers that wrap around ------------------------------------------------------------


def add(name: str, data: bytes, rng: random.Random, amount: int) -> bytes | None:
    """The file with `amount` added to one of its integers; None if it has none.

    With the same seed the integer is the same one: a file in which 2**32 more reads as
    the sample, and 1 more does not, was read modulo 2**32.
    """
    try:
        return _added(name, data, rng, amount)
    except (_Unreadable, OverflowError):
        return None


def _added(name: str, data: bytes, rng: random.Random, amount: int) -> bytes:
    form = form_of(name, data)
    if form is compressed:
        inner = name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".tgz")
        if data[:2] == b"\x1f\x8b":
            content = _added(inner, gzip.decompress(data), rng, amount)
            return gzip.compress(content, 1, mtime=0)
        return bz2.compress(_added(inner, bz2.decompress(data), rng, amount), 1)
    if form is zipped:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(n, archive.read(n)) for n in archive.namelist()]
        at = rng.randrange(len(members))
        inner, content = members[at]
        members[at] = inner, _added(inner, content, rng, amount)
        return _zip(members, zipfile.ZIP_STORED)
    if form is array:
        try:
            values = np.load(io.BytesIO(data), allow_pickle=False)
        except ValueError:
            raise _Unreadable from None
        if values.dtype.kind not in "iu" or not values.size:
            raise _Unreadable
        values = values.astype(np.int64)
        values.reshape(-1)[rng.randrange(values.size)] += amount
        return npy(values)
    if form in (json_file, json_lines):
        lines = data.split(b"\n") if form is json_lines else [data]
        at = rng.randrange(len(lines)) if len(lines) == 1 else 0
        tree = json.loads(lines[at])
        places = [(p, k) for p, k in _places(tree) if type(p[k]) is int]
        if not places:
            raise _Unreadable
        parent, key = rng.choice(places)
        parent[key] += amount
        lines[at] = json.dumps(tree).encode()
        return b"\n".join(lines)
    if form is text_file:
        text = data.decode()
        tokens = [t for t in _TOKEN.finditer(text) if re.fullmatch(r"\d+", t.group())]
        if not tokens:
            raise _Unreadable
        token = rng.choice(tokens)
        return _replaced(text, token, str(int(token.group()) + amount)).encode()
    raise _Unreadable
