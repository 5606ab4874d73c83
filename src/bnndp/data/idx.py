"""The IDX format of MNIST: big-endian header, then unsigned bytes; read from gzip files.

Header: two zero bytes, 0x08 (unsigned byte), the number of dimensions, then each size as a 32-bit integer. Other types
of elements exist and are refused.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib

import torch
from torch import Tensor

from bnndp.errors import InputError

_UNSIGNED_BYTE = 0x08
_MOST = 2**31  # bytes: what a header may claim before it is taken for damaged


def read_idx(path: str | os.PathLike[str], dimensions: int) -> Tensor:
    """The array of a gzip-compressed IDX file of unsigned bytes that has this many dimensions: uint8."""
    try:
        with gzip.open(path, "rb") as file:
            return _read(file, dimensions)
    except (OSError, EOFError, zlib.error) as error:  # a BadGzipFile is an OSError
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read as a gzip file: {reason}; fetch it again.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read(file: gzip.GzipFile, dimensions: int) -> Tensor:
    head = file.read(4)
    expected = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if head != expected:
        raise InputError(
            f"its magic number is {_number(head)}, expected {_number(expected)} "
            f"(unsigned bytes, {dimensions} dimension{'s' * (dimensions > 1)})."
        )
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise InputError(f"it ends in its header, after {4 + len(sizes)} of {4 + 4 * dimensions} bytes.")
    shape = struct.unpack(f">{dimensions}I", sizes)
    count = math.prod(shape)
    if not 0 < count <= _MOST:
        raise InputError(f"its header claims the shape {shape}, which is {'empty' if not count else 'too large'}.")
    payload = bytearray(file.read(count + 1))
    if len(payload) != count:
        found = "more" if len(payload) > count else len(payload)
        raise InputError(f"its header claims {count} bytes of data (shape {shape}), it holds {found}.")
    return torch.frombuffer(payload, dtype=torch.uint8).reshape(shape)


def _number(head: bytes) -> str:
    return str(int.from_bytes(head, "big")) if len(head) == 4 else "cut short"
