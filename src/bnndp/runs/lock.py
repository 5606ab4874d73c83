"""One process at a time in a run folder.

The lock is the kernel's (``flock``): it ends with the process that holds it, however that ends, so that no stale lock
is left behind by a kill or a power cut. What the file says is only for the message to others. It is never removed: a
process that waits at a removed file and one that makes a new one would both have a lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from bnndp.errors import RunStateError

LOCK = "lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; a :class:`RunStateError` if another process has it."""
    try:
        import fcntl
    except ImportError as error:
        raise RunStateError(f"{folder}: run folders need the file locks of POSIX, which this system lacks.") from error
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunStateError(f"{folder}: cannot be written: {error.strerror}; choose another folder.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
            raise RunStateError(f"{folder}: is in use by {holder}; wait for it, or choose another folder.") from error
        except OSError as error:
            raise RunStateError(f"{folder}: cannot be locked: {error.strerror}; choose another folder.") from error
        with contextlib.suppress(OSError):  # on a full disk: what cannot be done without shows itself later
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
