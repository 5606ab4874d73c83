"""A scan of the operations of a pickle, without running them, that refuses most bad files at once.

It decodes the operations of the pickle as a disassembler does and runs none of them. Only those that a file of named
tensors needs are let through, to :mod:`bnndp.importers.pickles`, which trusts the file no more for that.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

from bnndp.errors import ModelFileError
from bnndp.importers.pyro_constraints import CONSTRAINTS

_MOST = 300_000  # operations: some 10,000 tensors
_LARGEST = 2**24  # bytes of the pickle in an archive; the numbers are beside it
_OLD = (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", 5)  # how torch < 1.6 began a file, and its number of pickles
_OPERATIONS = frozenset(
    [
        *("PROTO", "STOP", "MARK", "POP", "GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "BINPERSID"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
        *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_SET", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("SETITEM", "SETITEMS", "APPEND", "APPENDS"),
    ]
)
_STORAGES = ("Byte", "Char", "Short", "Int", "Long", "Half", "BFloat16", "Float", "Double", "Bool", "Untyped", "Typed")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
_NAMES = frozenset(
    [
        *("collections OrderedDict", "collections defaultdict", "torch Size", "torch device", "_codecs encode"),
        *(f"torch._utils _rebuild_{part}" for part in ("tensor", "tensor_v2", "tensor_v3", "parameter")),
        *(f"{module} {kind}Storage" for module in ("torch", "torch.storage") for kind in _STORAGES),
        *(f"torch {dtype}" for dtype in _DTYPES),
        *(" ".join(name.rpartition(".")[::2]) for name in CONSTRAINTS),
    ]
)


def expect_plain(content: bytes) -> None:
    """Refuse a file that ``torch.save`` has not written, or that names anything but tensors."""
    start, count = _OLD
    if content.startswith(b"PK"):
        _scan(io.BytesIO(_pickle_of(content)), 1)
    elif content.startswith(start):
        _scan(io.BytesIO(content), count)
    else:
        raise ModelFileError("it is not a file written by torch.save")


def _pickle_of(content: bytes) -> bytes:
    """The pickle in the archive; refused if anything in it is compressed, which torch never does."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            pressed = next((entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED), None)
            if pressed is not None:
                raise ModelFileError(f"it holds {pressed.filename!r:.80}, compressed, which torch.save never writes")
            found = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if len(found) != 1 or found[0].file_size > _LARGEST:
                raise ModelFileError(f"it holds {len(found)} pickles of tensors, not one of at most {_LARGEST} bytes")
            return archive.read(found[0])
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(f"it is a broken archive: {error}") from error


def _scan(stream: BinaryIO, pickles: int) -> None:
    """Decode consecutive pickles."""
    for count, (operation, argument) in enumerate(_operations(stream, pickles)):
        if operation not in _OPERATIONS:
            raise ModelFileError(f"its pickle has the operation {operation}, which no file of tensors needs")
        if operation == "GLOBAL" and argument not in _NAMES:
            name = str(argument).replace(" ", ".")
            raise ModelFileError(f"it names {name!r:.80}, which is not part of a tensor; save the state_dict() alone")
        if count > _MOST:
            raise ModelFileError(f"its pickle has more than {_MOST} operations; save the state_dict alone")


def _operations(stream: BinaryIO, pickles: int) -> Iterator[tuple[str, object]]:
    try:
        for _ in range(pickles):
            for operation, argument, _ in pickletools.genops(stream):
                yield operation.name, argument
    except (ValueError, MemoryError, OverflowError, EOFError) as error:
        raise ModelFileError(f"it is a broken pickle: {error}") from error
