"""Ray: found, started or joined, quiet, and ended. Whatever is wrong is one line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from bnndp.errors import InputError, one_line

_HERE = "local"  # Ray's word for a cluster of this machine alone
_SECONDS = 5.0  # for a machine to answer at all


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at ``address`` (host:port, or auto: one of this machine).

    Without an address it is the one that RAY_ADDRESS names, else one is started on this machine and ended afterwards.
    """
    ray = _imported()
    address = address or os.environ.get("RAY_ADDRESS") or _HERE
    _expect_answer(address)
    try:
        with _own_signals(), _silent():
            dashboard = False if address == _HERE else None  # None: not asked of a cluster of others
            ray.init(address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds
        where = "on this machine" if address == _HERE else f"at {address}"
        raise InputError(
            f"--engine ray: no cluster can be used {where}: {one_line(str(error)).rstrip('.')}; start one with "
            "`ray start --head`, of the same versions of Python and Ray, and give this command on one of its machines, "
            "with RAY_AUTH_MODE and RAY_AUTH_TOKEN as there."
        ) from error
    try:
        yield ray
    finally:
        with _own_signals(), _silent():
            ray.shutdown()


def _imported() -> Any:
    """Ray, told to send nothing to its makers and to print nothing."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray._private.worker as printer
    except ImportError as error:
        raise InputError("--engine ray needs Ray, which is not installed: pip install 'bnndp[ray]'.") from error
    # Ray tells of every worker that dies on stdout, which is for rows; there is no public way to stop that.
    printer._worker_logs_enabled = False
    return ray


def _expect_answer(address: str) -> None:
    """Refuse host:port where nothing answers: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"--address {address}: nothing answers there ({error}); give host:port of the head of a Ray cluster, or "
            "auto for one that runs on this machine."
        ) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; what this program does at it stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Nothing on stderr, not even from code that is not Python's: Ray warns there every second while it tries."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
