"""Files that no reader may trust: malformed model files by mutation of a good one, and malicious ones by hand.

Every case is a recipe that writes one file; malicious ones leave a mark in the file system if any of their code runs.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bnndp.activations import Relu
from bnndp.files.posterior import save
from bnndp.layers import Linear, Residual
from bnndp.network import BayesianNetwork

__all__ = ["Case", "good_network", "malformed", "malicious", "sealed_flips"]

_META = "__metadata__"


@dataclass(frozen=True)
class Case:
    """A name, and how to write the file that it stands for; ``convertible`` ones are for ``bnndp convert`` too."""

    name: str
    write: Callable[[Path], object]
    convertible: bool = False


def good_network(seed: int = 0) -> BayesianNetwork:
    """A small network with a residual block."""
    generator = torch.Generator().manual_seed(seed)

    def layer(n_out: int, n_in: int) -> Linear:
        mean = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64)
        return Linear(mean, mean.abs() / 4, mean[:, 0], mean[:, 0].abs() / 4)

    return BayesianNetwork((layer(4, 3), Relu(), Residual((layer(4, 4), Relu())), layer(2, 4)))


# Malformed files


class _Parts:
    """A good file taken apart, to be put together wrongly."""

    def __init__(self, content: bytes) -> None:
        (length,) = struct.unpack("<Q", content[:8])
        self.container: dict[str, Any] = json.loads(content[8 : 8 + length])
        self.header: dict[str, Any] = json.loads(self.container[_META]["bnndp"])
        self.header.pop("sha256")
        self.data = bytearray(content[8 + length :])
        self.names = sorted(name for name in self.container if name != _META)

    def joined(self) -> bytes:
        self.container[_META] = {"bnndp": json.dumps(self.header)}
        return _file(json.dumps(self.container).encode(), bytes(self.data))


def _file(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _good(folder: Path) -> bytes:
    path = folder / "good"
    save(good_network(), path, source="campaign")
    return path.read_bytes()


def malformed(folder: Path, count: int = 200, seed: int = 0) -> Iterator[Case]:
    """At least ``count`` malformed files: those that are listed below, then random ones of every kind of mutation."""
    good = _good(folder)
    listed = [*_listed(good), *_special_files()]
    yield from listed
    draw = random.Random(seed)
    kinds = (_truncated, _header_lie, _dropped, _wrong_value, _wrong_type, _overwritten)
    for index in range(max(0, count - len(listed))):
        kind = kinds[index % len(kinds)]
        content = kind(good, draw)
        yield Case(f"{kind.__name__[1:]} {index}", lambda path, content=content: path.write_bytes(content))  # type: ignore[misc]


def _listed(good: bytes) -> Iterator[Case]:
    def bytes_of(name: str, content: bytes) -> Case:
        return Case(name, lambda path: path.write_bytes(content))

    def changed(name: str, change: Callable[[_Parts], object]) -> Case:
        parts = _Parts(good)
        change(parts)
        return bytes_of(name, parts.joined())

    text = json.dumps(_Parts(good).header)
    relus = json.dumps({"format": "bnndp-posterior-1", "task": "regression", "input_shape": [3], "layers": []})
    nested = '{"type":"residual","layers":[' * 300 + "]}" * 300
    yield bytes_of("empty", b"")
    yield bytes_of("one byte", b"\x01")
    yield bytes_of("zeros", bytes(4096))
    yield bytes_of("length 2^64 - 1", b"\xff" * 8 + good[8:])
    yield bytes_of("length 2^63", struct.pack("<Q", 2**63) + good[8:])
    yield bytes_of("length 100 MB", struct.pack("<Q", 10**8) + good[8:])
    yield bytes_of("length 0", struct.pack("<Q", 0) + good[8:])
    yield bytes_of("header not UTF-8", _file(b'{"\xff\xfe":1}'))
    yield bytes_of("header UTF-16", _file(json.dumps({}).encode("utf-16")))
    yield bytes_of("header a list", _file(b"[1, 2]"))
    yield bytes_of("header NaN", _file(b"NaN"))
    yield bytes_of("header nested 100000 deep", _file(b'{"a":' * 100_000 + b"1" + b"}" * 100_000))
    yield bytes_of("header of 16 MB of lists", _file(b'{"a":[' + b"[]," * 5_500_000 + b"[]]}"))
    yield bytes_of("header one number of 5000 digits", _file(b'{"a":' + b"9" * 5000 + b"}"))
    yield bytes_of("a name twice", _file(b'{"a":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},"a":{}}'))
    yield bytes_of("metadata twice", _file(b'{"__metadata__":{"bnndp":"{}"},"__metadata__":{"bnndp":"{}"}}'))
    yield bytes_of("metadata a list", _file(b'{"__metadata__":[]}'))
    yield bytes_of("metadata of numbers", _file(b'{"__metadata__":{"bnndp":1}}'))
    yield bytes_of("lone surrogate", _file(b'{"\\ud800":1}'))
    yield bytes_of("escape sequences", _file(b'{"\\u001b[2J\\r\\nbnndp: all is certified":1}'))
    yield bytes_of("our JSON nested", _file(json.dumps({_META: {"bnndp": "[" * 10**6}}).encode()))
    yield bytes_of(
        "our JSON twice", _file(json.dumps({_META: {"bnndp": text[:-1] + ',"task":"regression"}'}}).encode())
    )
    yield bytes_of(
        "our JSON of 5 MB", _file(json.dumps({_META: {"bnndp": relus[:-2] + " " * 5_000_000 + "]}"}}).encode())
    )
    many = relus[:-2] + ",".join(['{"type":"relu"}'] * 200_000) + "]}"
    yield bytes_of("200000 layers", _file(json.dumps({_META: {"bnndp": many}}).encode()))
    many = relus[:-2] + ",".join(['{"type":"linear","name":"a","posterior":"mean_field"}'] * 50_000) + "]}"
    yield bytes_of("50000 layers of one name", _file(json.dumps({_META: {"bnndp": many}}).encode()))
    yield bytes_of("blocks nested 300 deep", _file(json.dumps({_META: {"bnndp": relus[:-2] + nested + "]}"}}).encode()))
    for shape in ([2**63], [2**32, 2**32], [2**40] * 8, [-1], [0.5], [True], "44", [10**400], [1] * 100_000):
        yield changed(f"shape {shape!s:.20}", _field(shape=shape))
    for ends in ([0, 2**63], [-8, 0], [8, 0], [0], [0, 8, 16], [0.0, 8.0], None, [10**400, 10**400]):
        yield changed(f"offsets {ends!s:.20}", _field(data_offsets=ends))
    for dtype in ("F80", "f64", "I4", "F4", "", None, 64, ["F64"], "BOOL", "C64", "F8_E4M3", "U64"):
        yield changed(f"dtype {dtype}", _field(dtype=dtype))
    for size in ([], [0], [-3], [3.0], [True], [10**400], [3, 1, 1], [2**62], "3", None, {"a": 3}):
        yield changed(f"input_shape {size!s:.20}", _header(input_shape=size))
    yield changed("surplus field", lambda p: p.container[p.names[0]].update(strides=[1]))
    yield changed(
        "a tensor more", lambda p: p.container.update(x={"dtype": "F64", "shape": [0], "data_offsets": [0, 0]})
    )
    yield changed("unknown setting", lambda p: p.header.update(hook="os.system('true')"))
    yield changed("name with escapes", lambda p: p.header["layers"][0].update(name="\x1b[31m\n\r\x00"))


def _special_files() -> Iterator[Case]:
    yield Case("folder", lambda path: path.mkdir())
    yield Case("pipe", os.mkfifo)
    yield Case("link to nothing", lambda path: path.symlink_to(path.with_name("nothing")))
    yield Case("link to itself", lambda path: path.symlink_to(path))
    yield Case("link to a device", lambda path: path.symlink_to("/dev/zero"))
    yield Case("link to a folder", lambda path: path.symlink_to(path.parent))
    yield Case("100 GB of holes", lambda path: _sparse(path, 100 * 2**30))


def _sparse(path: Path, size: int) -> None:
    """A file of holes whose header claims all of it for one tensor."""
    entry = {"dtype": "F64", "shape": [size // 8], "data_offsets": [0, size]}
    with path.open("wb") as file:
        header = json.dumps({"a": entry}).encode()
        file.write(_file(header))
        file.truncate(8 + len(header) + size)


def _truncated(good: bytes, draw: random.Random) -> bytes:
    return good[: draw.randrange(len(good))]


def _overwritten(good: bytes, draw: random.Random) -> bytes:
    """Random bytes over a part, in a sealed file."""
    start = draw.randrange(len(good) - 1)
    part = draw.randbytes(draw.randint(1, 64))
    content = good[:start] + part + good[start + len(part) :]
    return content if content != good else good[:-1]


def _header_lie(good: bytes, draw: random.Random) -> bytes:
    parts = _Parts(good)
    entry = parts.container[draw.choice(parts.names)]
    if draw.random() < 0.5:
        entry["shape"] = [side + draw.choice((-1, 1, 7, 10**6)) for side in entry["shape"]]
    else:
        entry["data_offsets"][draw.randrange(2)] += draw.choice((-8, -1, 1, 8, 10**12))
    return parts.joined()


def _dropped(good: bytes, draw: random.Random) -> bytes:
    parts = _Parts(good)
    del parts.header["source"]
    what = draw.choice((parts.container, parts.header, parts.header["layers"], draw.choice(parts.header["layers"])))
    keys = (
        (0, 2, 3) if isinstance(what, list) else [key for key in what if key != _META]
    )  # 1: without it, another network
    del what[draw.choice(list(keys))]
    return parts.joined()


def _wrong_value(good: bytes, draw: random.Random) -> bytes:
    """NaN or an infinity anywhere, a negative standard deviation."""
    parts = _Parts(good)
    name = draw.choice(parts.names)
    start, stop = parts.container[name]["data_offsets"]
    at = draw.randrange(start, stop, 8)
    values = [float("nan"), float("inf"), float("-inf")] + ([-1e-300, -5e-324] if name.endswith("std") else [])
    parts.data[at : at + 8] = struct.pack("<d", draw.choice(values))
    return parts.joined()


def _wrong_type(good: bytes, draw: random.Random) -> bytes:
    """A value of another type somewhere in our own header."""
    parts = _Parts(good)
    what = draw.choice((parts.header, draw.choice(parts.header["layers"])))
    key = draw.choice([key for key in what if key != "source"])
    what[key] = draw.choice([None, 7, -1.5, "x", [], {}, [[]], "relu\n", True])
    return parts.joined()


def sealed_flips(folder: Path) -> tuple[bytes, int]:
    """A sealed file and its number of bits."""
    content = _good(folder)
    return content, 8 * len(content)


# Malicious files


def _field(**change: object) -> Callable[[Any], None]:
    """Changes the entry of the first tensor."""
    return lambda package: package.container[package.names[0]].update(change)


def _header(**change: object) -> Callable[[Any], None]:
    return lambda package: package.header.update(change)


def _pickled(call: object) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(pickle.dumps({"a": call}))


def _saved(call: object) -> Callable[[Path], Any]:
    return lambda path: torch.save({"a": call}, path)


class _Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def malicious(mark: Path) -> Iterator[Case]:
    """Files that run code, or harm, if they are opened carelessly; ``mark`` exists afterwards if code was run."""
    command = f"touch {mark}"
    program = f"open({str(mark)!r}, 'w')"
    calls: dict[str, Any] = {
        "os.system": _Call(os.system, command),
        "eval": _Call(eval, program),
        "exec": _Call(exec, program),
        "popen": _Call(os.popen, command),
        "Path.touch": _Call(Path.touch, mark),
        "getattr chain": _Call(getattr, _Call(__import__, "os"), "system"),
        "pickle in a pickle": _Call(pickle.loads, pickle.dumps(_Call(os.system, command))),
        "load from bytes": _Call(torch.storage._load_from_bytes, pickle.dumps(_Call(os.system, command))),
        "torch.hub": _Call(torch.hub.load, str(mark.parent), "x"),
    }
    for name, call in calls.items():
        yield Case(f"pickle, {name}", _pickled(call), True)
        yield Case(f"torch file, {name}", _saved(call), True)
    yield Case(
        "old torch file",
        lambda path: torch.save({"a": calls["eval"]}, path, _use_new_zipfile_serialization=False),
        True,
    )
    yield Case("protocol 0", lambda path: path.write_bytes(pickle.dumps(calls["exec"], protocol=0)), True)
    yield Case("state of a tensor", lambda path: path.write_bytes(_tampered("storage beyond its end")), True)
    yield Case("huge storage", lambda path: path.write_bytes(_tampered("storage of 2^60 numbers")), True)
    yield Case("zip that climbs", lambda path: _climbing(path, mark), True)
    yield Case("zip bomb", _bomb, True)
    yield Case("tar file", lambda path: _tar(path, mark), True)
    yield Case("script in an archive", _script, True)
    yield Case("zip behind a safetensors file", lambda path: _polyglot(path, calls["eval"]))
    yield Case("pickle in the metadata", lambda path: _in_metadata(path, calls["eval"]))
    yield Case(
        "lists within lists",
        lambda path: path.write_bytes(b"\x80\x04" + b"]" * 10**6 + b"a" * (10**6 - 1) + b"."),
        True,
    )
    yield Case("doubling lists", lambda path: path.write_bytes(b"\x80\x04]" + b"(22l" * 200 + b"."), True)
    yield Case(
        "text of 2^60 bytes", lambda path: path.write_bytes(b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b"a."), True
    )
    yield Case("no end", lambda path: path.write_bytes(b"\x80\x04N" * 100), True)


def _tampered(what: str) -> bytes:
    """A state_dict whose pickle claims another storage than the archive has."""
    buffer = io.BytesIO()
    torch.save(OrderedDict({"0.weight": torch.ones(3, 2)}), buffer)
    found = io.BytesIO()
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(found, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("data.pkl"):  # K\x06: the number of elements, K\x03K\x02: the shape
                content = (
                    content.replace(b"K\x03K\x02", b"K\xffK\xff")
                    if what == "storage beyond its end"
                    else content.replace(b"K\x06", b"\x8a\x08" + struct.pack("<q", 2**60))
                )
            target.writestr(name, content)
    return found.getvalue()


def _climbing(path: Path, mark: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"../../../../../../..{mark}", b"")
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/version", b"3\n")


def _bomb(path: Path) -> None:
    """A thousand times as many zeros as bytes."""
    buffer = io.BytesIO()
    torch.save({"0.weight": torch.zeros(4)}, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name in source.namelist():
            with target.open(name, "w", force_zip64=True) as entry:
                if name.endswith("data/0"):
                    for _ in range(64):
                        entry.write(bytes(2**21))
                else:
                    entry.write(source.read(name).replace(b"K\x04", b"J" + struct.pack("<i", 2**25)))


def _script(path: Path) -> None:
    """What torch takes for a module of TorchScript, which is code."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "constants.pkl"):
            archive.writestr(f"archive/{name}", pickle.dumps((), protocol=2))
        archive.writestr("archive/code/__torch__.py", b"def forward(self):\n  return 1\n")
        archive.writestr("archive/version", b"3\n")


def _tar(path: Path, mark: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors", f"../..{mark}"):
            content = pickle.dumps(_Call(Path.touch, mark))
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _polyglot(path: Path, call: object) -> None:
    save(good_network(), path)
    buffer = io.BytesIO()
    torch.save({"a": call}, buffer)
    path.write_bytes(path.read_bytes() + buffer.getvalue())


def _in_metadata(path: Path, call: object) -> None:
    header = {_META: {"bnndp": pickle.dumps(call, protocol=0).decode("latin-1")}}
    path.write_bytes(_file(json.dumps(header).encode()))
