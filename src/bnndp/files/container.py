"""The container of model files, safetensors, read strictly: plain data, no code, nothing taken on trust.

A file is eight bytes (the length of the header, little-endian), the header (JSON) and the bytes of the tensors. All of
it is read once, so that what is checked is what is used. Refused are: what is not a regular file (a pipe would block),
a header beyond a limit, names that occur twice, shapes and offsets that do not cover the bytes exactly, unknown dtypes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

from bnndp.errors import ModelFileError, one_line
from bnndp.files.regular import cause_of, expect_memory, open_regular

_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
HEADER_LIMIT = 6 * 2**20  # bytes: about 40,000 tensors; what Python makes of them may take 30 times as much
_OBJECTS = 100_000  # in one text
_RANK, _SIDE = 16, 2**48  # the most axes, and the longest: products of them stay small numbers
_PICKLES = (b"PK\x03\x04", b"PK\x05\x06", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


Container = tuple[dict[str, str], dict[str, Tensor]]
"""Metadata and tensors."""


def read_container(path: str | os.PathLike[str]) -> Container:
    """Metadata and tensors of a safetensors file; every fault is a :class:`ModelFileError` of one line."""
    with _faults_of(path), open_regular(path) as file:
        return _parsed(file, os.fstat(file.fileno()).st_size)


def parse_container(content: bytes, name: object) -> Container:
    """The same of the content of a file, which was read before; ``name`` is for messages."""
    with _faults_of(name):
        return _parsed(io.BytesIO(content), len(content))


@contextlib.contextmanager
def _faults_of(name: object) -> Iterator[None]:
    try:
        yield
    except (ModelFileError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise ModelFileError(one_line(f"{name}: cannot be read as a safetensors file: {cause_of(error)}")) from error


def _parsed(file: BinaryIO, size: int) -> Container:
    header = _header(file, size)
    metadata = _metadata(header.pop(_METADATA, {}))
    data = _data(file, size, _layout(header))
    return metadata, {name: _tensor(entry, data) for name, entry in header.items()}


def content_digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the metadata and of all names, dtypes, shapes and values; not of where they lie in the file.

    It is taken of the JSON text of ``[metadata, [[name, dtype, shape], ...]]``, in ASCII, without spaces, all names
    sorted, followed by the little-endian bytes of the tensors in this order.
    """
    names = sorted(tensors)
    table = [[name, _NAMES[tensors[name].dtype], list(tensors[name].shape)] for name in names]
    structure = json.dumps([dict(metadata), table], sort_keys=True, separators=(",", ":"))
    hasher = hashlib.sha256(structure.encode("ascii"))
    for name in names:
        flat = tensors[name].detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
        hasher.update(flat.view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def parse_json(text: str | bytes | bytearray) -> Any:
    """JSON of not too many objects, none of which names a key twice; faults are a :class:`ModelFileError`."""
    try:
        if not isinstance(text, str):
            text = bytes(text).decode("utf-8")
        if text.count("{") > _OBJECTS:
            raise ModelFileError(f"JSON of more than {_OBJECTS} objects")
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"not JSON: {error}") from error


def expect_known(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse settings that nothing would read."""
    surplus = sorted(set(given) - set(known))
    if surplus:
        raise ModelFileError(f"{what} unknown settings: {', '.join(map(repr, surplus[:4]))}.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object names {twice!r:.60} twice")
    return found


def _header(file: BinaryIO, size: int) -> dict[str, Any]:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, HEADER_LIMIT):
        raise ModelFileError(_no_header(start, length, size))
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ModelFileError("its header does not begin with '{'")
    try:
        return parse_json(text)
    except ModelFileError as error:
        raise ModelFileError(f"its header is {error}") from error


def _no_header(start: bytes, length: int, size: int) -> str:
    """What is wrong with a file whose first bytes are not the length of a header."""
    if start.startswith(_PICKLES):
        return (
            "it is a pickle or a zip archive, as PyTorch writes them, and may run code when it is opened; "
            "make a safe file of it with bnndp convert"
        )
    if len(start) < 8:
        return f"it has {size} bytes, fewer than the 8 that every such file begins with"
    return (
        f"it claims a header of {length} bytes, but has {size} in all (at most {HEADER_LIMIT} are read); "
        "if it is a file of PyTorch, make a safe one of it with bnndp convert"
    )


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ModelFileError("its metadata is not an object of texts")
    return value


def _layout(header: Mapping[str, Any]) -> int:
    """The number of bytes that the tensors take; refused unless they cover them without gap or overlap."""
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _span(*item)):
        start, stop = _span(name, entry)
        if start != end:
            raise ModelFileError(f"tensor {name!r} begins at byte {start}, not at {end} where the one before it ends")
        wanted = math.prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize
        if stop - start != wanted:
            raise ModelFileError(f"tensor {name!r} has {stop - start} bytes, its shape and dtype need {wanted}")
        end = stop
    return end


def _span(name: str, entry: object) -> tuple[int, int]:
    """First and last byte of a tensor, of an entry that is complete and of the right types."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"tensor {name!r:.80} needs dtype, shape and data_offsets, and nothing else")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in _DTYPES:
        raise ModelFileError(f"tensor {name!r:.80} has dtype {entry['dtype']!r:.80}; known: {', '.join(_DTYPES)}")
    for field, most in (("shape", _RANK), ("data_offsets", 2)):
        numbers = entry[field]
        if not isinstance(numbers, list) or len(numbers) > most:
            raise ModelFileError(f"tensor {name!r:.80} has {field} that are not a list of at most {most} numbers")
        if not all(type(n) is int and 0 <= n <= _SIDE for n in numbers):
            raise ModelFileError(f"tensor {name!r:.80} has {field} {numbers!r:.80}, not whole numbers within limits")
    if len(entry["data_offsets"]) != 2:
        raise ModelFileError(f"tensor {name!r:.80} needs two data_offsets")
    start, stop = entry["data_offsets"]
    return start, stop


def _data(file: BinaryIO, size: int, wanted: int) -> bytearray:
    """What is left of the file, which must be as much as the tensors take."""
    left = size - file.tell()
    if left != wanted:
        raise ModelFileError(f"its tensors take {wanted} bytes, but there are {left} after the header")
    expect_memory(wanted)
    data = bytearray(wanted)
    if file.readinto(data) != wanted or file.read(1):  # type: ignore[attr-defined]
        raise ModelFileError("it was changed while it was read")
    return data


def _tensor(entry: Mapping[str, Any], data: bytearray) -> Tensor:
    """A tensor on its part of ``data``; a copy where that part is not aligned."""
    dtype, (start, stop) = _DTYPES[entry["dtype"]], entry["data_offsets"]
    if start == stop:
        return torch.empty(entry["shape"], dtype=dtype)
    aligned = start % dtype.itemsize == 0
    part = torch.frombuffer(data if aligned else data[start:stop], dtype=torch.uint8, offset=start if aligned else 0)
    return part[: stop - start].view(dtype).reshape(entry["shape"])
