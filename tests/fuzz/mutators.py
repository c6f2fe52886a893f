"""Changes of the files of a sample that any reader must withstand."""

import gzip
import io
import struct
import zipfile

import numpy as np

DEEP = b"[" * 100_000
# As many bytes as may come of a small file, and some more.
BOMB = gzip.compress(b" " * (80 << 20), 9)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(shape, dtype="<f8", order="False"):
    text = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}"
    text = text.ljust(118 - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def zipped(members, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as packed:
        for name, content in members.items():
            packed.writestr(zipfile.ZipInfo(name), content, compression)
    return file.getvalue()


def of_files(name, content):
    """Mutants of any file: the place, and what is there instead."""
    yield "empty", b""
    yield "cut", content[: len(content) // 2]
    yield "one byte less", content[:-1]
    yield "reversed", content[::-1]
    yield "zeros", bytes(1000)
    yield "a picture", b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    yield "not UTF-8", b"\xff\xfe\xfa" + content
    yield "deep", DEEP
    yield "deep objects", b'{"a":' * 100_000
    yield "a number", b"7"
    yield "negative", content.replace(b"1", b"-1")
    yield "huge", content.replace(b"1", b"98765432109876543210")
    yield "wide", content.replace(b"1", b"4294967297")
    yield "not finite", content.replace(b"1", b"nan").replace(b"2", b"inf")
    yield "NaN of JSON", content.replace(b"1", b"NaN")
    for at in sorted({number * len(content) // 8 for number in range(8)}):
        other = bytes(byte ^ 255 for byte in content[at : at + 1])
        yield f"byte {at}", content[:at] + other + content[at + 1 :]
    if name.endswith(".gz"):
        yield "a bomb", BOMB
        plain = gzip.decompress(content)
        for what, changed in of_files(name.removesuffix(".gz"), plain):
            yield f"{what}, packed", gzip.compress(changed, 1)


def of_npz(content):
    """Mutants of each member of an npz file."""
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    for name, body in members.items():
        yield f"no {name}", zipped({k: v for k, v in members.items() if k != name})
        changed = {}
        if b"|O" not in body[:128]:
            changed = dict(of_arrays(np.load(io.BytesIO(body))))
        changed["no npy"] = b"text"
        changed["cut"] = body[:-1]
        changed["longer"] = body + b"\0"
        changed["objects"] = header((1,), "|O") + b"\x80\x02cos\nsystem\n."
        changed["80 GiB"] = header((10_737_418_240,)) + body[128:]
        changed["negative axis"] = header((-1, 4)) + body[128:]
        changed["overflow"] = header((2**62, 2**62)) + body[128:]
        changed["long text"] = header((1,), "<U2000000000") + body[128:]
        for what, new in changed.items():
            yield f"{name} {what}", zipped({**members, name: new})


def of_arrays(array):
    first = (0,) * array.ndim
    yield "another rank", npy(array[None])
    yield "a scalar", npy(array.reshape(-1)[:1].reshape(()))
    yield "text", npy(array.astype(str))
    yield "complex", npy(np.zeros(array.shape, complex))
    if array.ndim:
        yield "fewer rows", npy(array[:-1])
        yield "backwards", npy(array[::-1].copy())
    if array.dtype.kind not in "iufb":
        return
    for value in (-1, 2**31, 2**32, 2**62):
        changed = np.array(np.nan_to_num(array), np.int64)
        changed[first] = value
        yield f"{value}", npy(changed)
    for value in (np.nan, np.inf, 1e300, 0.5):
        changed = np.array(array, float)
        changed[first] = value
        yield f"{value}", npy(changed)


def of_archives(name, content):
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            members = {k: packed.read(k) for k in packed.namelist()}
        yield "a bomb inside", zipped({**members, "SET/more": bytes(80 << 20)})
        yield "a file and a folder", zipped({**members, "SET": b"1"})


def mutants(sample):
    for name, content in sample.items():
        rest = {k: v for k, v in sample.items() if k != name}
        yield f"no {name}", rest
        yield f"{name} a folder", {**rest, f"{name}/{name}": content}
        changed = [*of_files(name, content), *of_archives(name, content)]
        if name.endswith(".npz"):
            changed += of_npz(content)
        for what, new in changed:
            yield f"{name} {what}", {**rest, name: new}
