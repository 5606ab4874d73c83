"""The child process that opens one pickle and writes the tensors in it as a safetensors file. It is not trusted.

The parent (:mod:`bnndp.importers.pickles`) gives the pickle on standard input and checks all that comes back. Here,
before the pickle is touched: limits on memory, time and files, and an audit hook that refuses whatever a load of
tensors has no need of (processes, sockets, files, imports, code). The load itself is ``torch.load`` with
``weights_only=True``, and there is no other attempt if that one fails. Names of classes that a pickle may hold beside
tensors stand for inert ones of ours (:mod:`bnndp.importers.pyro_constraints`).
"""

from __future__ import annotations

import io
import json
import re
import resource
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bnndp.errors import ModelFileError
from bnndp.importers.flatten import contents, flat
from bnndp.importers.pickles import FAULT
from bnndp.importers.pyro_constraints import CONSTRAINTS

if TYPE_CHECKING:
    from torch import Tensor

_MEGABYTE = 2**20
_COPIES, _SLACK = 4, 200 * _MEGABYTE  # limit of memory: that of the libraries + copies * bytes of the pickle + slack
_LEAST = (2, 10)  # torch; older ones can be made to run code or to corrupt memory (CVE-2025-32434, CVE-2026-24747)
_REFUSED = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "signal.", "mmap.", "code.", "pickle.")
_REFUSED_EXACTLY = ("open", "exec", "compile", "import", "marshal.loads", "sys.addaudithook")


class _Refused(Exception):
    """The pickle cannot be converted; the text says why."""


def expect_torch(version: str) -> None:
    """Refuse a torch whose ``weights_only`` is known to be unsafe, or whose version cannot be read."""
    numbers = re.match(r"(\d+)\.(\d+)\.\d+(.?)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if found < _LEAST or (numbers and found == _LEAST and numbers[3] not in ("", "+")):  # no candidate of that release
        least = ".".join(map(str, _LEAST))
        raise _Refused(f"this is torch {version}, whose weights_only is not safe; install torch {least} or newer")


def main(scratch: str, key: str, seconds: int) -> int:
    """Convert the pickle on standard input into the file ``scratch``; the exit status says whether that was done."""
    try:
        _convert(sys.stdin.buffer.read(), Path(scratch), key, seconds)
    except (_Refused, ModelFileError) as fault:
        return _fail(str(fault))
    except MemoryError:
        return _fail("it needs more memory than a file of its size should")
    except Exception as error:  # noqa: BLE001 (torch raises many kinds for a bad file; all of them mean the same)
        return _fail(f"torch cannot open it as plain tensors: {_cause(error)}")
    return 0


def _cause(error: Exception) -> str:
    """What torch says, without its advice to open the file unsafely."""
    found = re.search(r"(Unsupported |Trying to load |Cannot use )[^\n]*", str(error))
    text = re.split(r" Please use| In PyTorch", found[0] if found else str(error))[0].strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _fail(reason: str) -> int:
    sys.stderr.write(reason.splitlines()[0][:400] if reason else "no reason given")
    return FAULT


def _convert(pickle: bytes, scratch: Path, key: str, seconds: int) -> None:
    import torch

    expect_torch(torch.__version__)
    torch.serialization.add_safe_globals([(stub, name) for name, stub in CONSTRAINTS.items()])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # standard error is for the one line
    _warm_up()
    with scratch.open("wb") as file:
        _limit(len(pickle), seconds)
        _install_audit_hook()
        file.write(to_safetensors(pickle, key))


def to_safetensors(pickle: bytes, key: str) -> bytes:
    """The tensors of the entry ``key`` of the pickle as a safetensors file, with all else as texts in its metadata."""
    import torch
    from safetensors.torch import save

    foreign = flat(_chosen(torch.load(io.BytesIO(pickle), map_location="cpu", weights_only=True, mmap=False), key))
    _expect_size(foreign.tensors, len(pickle))
    dense = {name: tensor.detach().contiguous().clone() for name, tensor in foreign.tensors.items()}
    texts = {"order": list(dense), "values": foreign.values, "lists": foreign.lists, "holders": foreign.holders}
    return save(dense, metadata={name: json.dumps(value) for name, value in texts.items()})


def _warm_up() -> None:
    """Open a pickle of our own, so that all that torch imports late is there before imports are refused."""
    import torch
    from safetensors.torch import save

    for zipped in (True, False):
        buffer = io.BytesIO()
        weight = torch.nn.Parameter(torch.ones(2, 2))
        torch.save({"a": weight, "b": torch.ones(1).half()}, buffer, _use_new_zipfile_serialization=zipped)
        buffer.seek(0)
        save(torch.load(buffer, map_location="cpu", weights_only=True, mmap=False), metadata={"a": "b"})


def _limit(size: int, seconds: int) -> None:
    """Bounds on what this process may take from now on; one that the system does not have is left to the parent."""
    used = _pages() * resource.getpagesize()
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    wanted = {
        resource.RLIMIT_CPU: int(spent) + seconds + 1,
        resource.RLIMIT_FSIZE: _COPIES * size + 64 * _MEGABYTE,
        resource.RLIMIT_CORE: 0,
    }
    if used:
        wanted[resource.RLIMIT_AS] = used + _COPIES * size + _SLACK
    for which, most in wanted.items():
        hard = resource.getrlimit(which)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (least, least))


def _pages() -> int:
    """Pages of address space in use, 0 where the system does not say."""
    table = Path("/proc/self/statm")
    return int(table.read_text().split()[0]) if table.exists() else 0


def _install_audit_hook() -> None:
    """Refuse, from now on, to start programs, open files or sockets, import or compile."""

    def refuse(event: str, _: tuple[object, ...]) -> None:
        if event in _REFUSED_EXACTLY or event.startswith(_REFUSED):
            raise _Refused(f"it asks for {event}, which no file of tensors needs")

    sys.addaudithook(refuse)


def _chosen(found: object, key: str) -> object:
    """The entry of that dotted name, the whole if the name is empty."""
    for part in key.split(".") if key else ():
        if not isinstance(found, Mapping) or part not in found:
            raise _Refused(f"it has no entry {key!r:.80}; {contents(found)}")
        found = found[part]
    return found


def _expect_size(tensors: Mapping[str, Tensor], size: int) -> None:
    """Refuse what claims to be much larger than the file: views that repeat one number, compressed zeros."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > _COPIES * size + _MEGABYTE:
        raise _Refused(f"its tensors would take {total} bytes, the file has {size}; save plain tensors, not views")
