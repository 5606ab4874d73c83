"""Regular files, opened without waiting: a pipe, a folder or a device given in place of a file is refused at once."""

from __future__ import annotations

import os
import stat
import tokenize
import zipfile
import zlib
from typing import BinaryIO

from bnndp.errors import ModelFileError, one_line

ARCHIVE_FAULTS = (
    ValueError, KeyError, EOFError, TypeError, SyntaxError, NotImplementedError, RuntimeError, OverflowError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
"""What numpy raises for a .npz file that is damaged, encrypted, packed by an unknown method, or no archive."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, open for reading; an OSError if there is none, a :class:`ModelFileError` if it is no regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise ModelFileError("it is not a regular file but a folder, a pipe or a device")


def read_regular(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The whole of a regular file of at most ``most`` bytes; faults are a :class:`ModelFileError` of one line."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise ModelFileError(f"it has {size} bytes, more than the {most} of such a file")
            expect_memory(size)
            return file.read()
    except (OSError, ValueError, MemoryError, ModelFileError) as error:
        raise ModelFileError(one_line(f"{path}: cannot be read: {cause_of(error)}")) from error


def expect_memory(size: int) -> None:
    """Refuse what cannot fit, before the attempt brings the machine down."""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if size > memory:
            raise ModelFileError(f"it has {size} bytes, more than the {memory} of this machine's memory")


def cause_of(error: BaseException) -> str:
    """An error in words, never none."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
