"""Files that may be compressed by gzip, read whole and within a limit, whatever they claim to hold."""

from __future__ import annotations

import gzip
import io
import os
import zlib

from bnndp.errors import ModelFileError, one_line
from bnndp.files.regular import read_regular

__all__ = ["read_compressed"]

_GZIP = b"\x1f\x8b"


def read_compressed(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file of at most ``most`` bytes, decompressed if it is gzip; faults are one line each."""
    content = read_regular(path, most)
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ModelFileError(one_line(f"{path}: is damaged gzip: {error}")) from error
    if len(found) > most:
        raise ModelFileError(one_line(f"{path}: has more than {most} bytes when decompressed"))
    return found
