"""Published files: found in the folders of a store, or downloaded into its cache once their checksum is right.

A file appears in the cache whole or not at all: it is written under another name, checked, and renamed.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bnndp.data.folder import VARIABLE, Store
from bnndp.errors import InputError

FILE, CONTENT, NUMBERS = "the file", "the decompressed content", "the numbers read from it"
_CHUNK = 1 << 16
_OVERHEAD = 1 << 20  # bytes by which a compressed file may exceed its content


class DownloadError(InputError):
    """A download failed or brought the wrong content; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Published:
    """A file of a data set, where it is published and what it must be.

    ``mirrors`` are addresses to be tried in turn; what is published below them are ``parts``, mostly one. The checksum
    is that of the file as it is, or of its decompressed content, or of the numbers in it (``of``).
    """

    path: str  # below a data folder
    mirrors: tuple[str, ...]
    parts: tuple[str, ...]
    sha256: str
    size: int  # bytes of what the checksum is of
    of: str = FILE

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.rpartition("/")[2]

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses below all mirrors."""
        return tuple(mirror + part for mirror in self.mirrors for part in self.parts)


Maker = Callable[[Published, Store], None]
"""Downloads a file into the cache of a store, or raises :class:`DownloadError`."""


def download(file: Published, store: Store) -> None:
    """Download a file of one part as it is, from the first mirror that has it with the right checksum."""
    reasons = []
    for mirror in file.mirrors:
        address = mirror + file.parts[0]
        try:
            with write_new(store.cache / file.path) as scratch:
                with scratch.open("xb") as stream:
                    stream.writelines(receive(address, file.size + (_OVERHEAD if file.of == CONTENT else 0), store))
                _check(file, scratch)
            return
        except DownloadError as error:
            reasons.append(f"{address}: {error}")
    raise DownloadError("; ".join(reasons))


def fetch(files: Sequence[Published], store: Store, *, what: str, make: Maker = download) -> list[Path]:
    """The paths of the files: those at hand, and those absent by ``make``; ``what`` tells users what the files are."""
    absent = [file for file in files if store.find(file.path) is None]
    try:
        for file in absent:
            _permit(file, store)
            make(file, store)
    except DownloadError as error:
        raise InputError(_advice(absent, store, str(error), what)) from error
    return [store.find(file.path) or store.cache / file.path for file in files]


def receive(address: str, most: int, store: Store) -> Iterator[bytes]:
    """Download an address in chunks, at most ``most`` bytes; the store's progress callback is called after each."""
    done = 0
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "bnndp"})  # noqa: S310 (see _permit)
        with urllib.request.urlopen(request, timeout=store.timeout) as answer:  # noqa: S310
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            if total is not None and total > most:
                raise DownloadError(f"it has {total} bytes, more than the {most} that it may have")
            while chunk := answer.read(_CHUNK):
                done += len(chunk)
                if done > most:
                    raise DownloadError(f"it has more than the {most} bytes that it may have")
                if store.progress is not None:
                    store.progress(address.rpartition("/")[2], done, total)
                yield chunk
    except DownloadError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(_reason(error, store.timeout)) from error
    if total is not None and done < total:  # the library takes the end of a connection for the end of a body
        raise DownloadError(f"it ended after {done} of {total} bytes")


@contextmanager
def write_new(target: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``target`` at the end and removed if anything fails."""
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.replace(target)
    except OSError as error:
        raise DownloadError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # mostly it is not there: renamed, or never made
            scratch.unlink()


def _check(file: Published, path: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        for chunk in _unpacked(stream, file.size) if file.of == CONTENT else iter(lambda: stream.read(_CHUNK), b""):
            digest.update(chunk)
            size += len(chunk)
    if digest.hexdigest() != file.sha256:
        raise DownloadError(
            f"the sha256 of {file.of} is {digest.hexdigest()} ({size} bytes), "
            f"expected {file.sha256} ({file.size} bytes)"
        )


def _unpacked(stream: BinaryIO, most: int) -> Iterator[bytes]:
    """The content of a gzip file in chunks, until it exceeds ``most`` bytes: a small file can hide a very large one."""
    reader, done = zlib.decompressobj(wbits=31), 0
    try:
        while done <= most and not reader.eof and (packed := reader.unconsumed_tail or stream.read(_CHUNK)):
            chunk = reader.decompress(packed, _CHUNK)
            done += len(chunk)
            yield chunk
    except zlib.error as error:
        raise DownloadError(f"it is not a gzip file: {error}") from error
    if done <= most and not reader.eof:
        raise DownloadError("it is a gzip file that is cut short")
    if reader.unused_data or stream.read(1):
        raise DownloadError("it is a gzip file with more bytes after its end")


def _permit(file: Published, store: Store) -> None:
    if not file.mirrors:
        raise DownloadError("no public address with a known checksum")
    if not store.download:
        raise DownloadError("downloads are switched off")
    for address in file.addresses:
        if not address.startswith(("https://", "http://")):
            raise DownloadError(f"{address} is not an address of the web")


def _reason(error: Exception, timeout: float) -> str:
    """A few words on why there was no answer."""
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"the server answered {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer for {timeout:g} s"
    text = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).splitlines()[0]
    return f"no connection ({text})" if isinstance(error, OSError) else f"the answer cannot be understood ({text})"


def _advice(absent: Sequence[Published], store: Store, reason: str, what: str) -> str:
    """One line: what is absent where, why it was not downloaded, and what to put where."""
    folder = Path(absent[0].path).parent
    names = " and ".join(file.name for file in absent)
    them = "it" if len(absent) == 1 else "them"
    return (
        f"{store.place / folder}: lacks {names}, not downloaded: {reason}; put {them} there ({what}), "
        f"or set {VARIABLE} to the folder whose subfolder '{folder}' holds {them}."
    )
