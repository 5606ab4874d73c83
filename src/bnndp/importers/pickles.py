"""Opening a pickle without trusting it: in a child process, by ``torch.load(weights_only=True)``, with no fallback.

Nothing of the pickle is opened in this process, only looked through (:mod:`bnndp.importers.prescan`). The child gets
its bytes and has limits on memory, time and files; what it says is taken for a hint, what it writes is read as any
foreign safetensors file is. Not even torch is imported here before that.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from bnndp.errors import ModelFileError, one_line
from bnndp.files.regular import cause_of
from bnndp.importers.foreign import Foreign
from bnndp.importers.prescan import expect_plain

FAULT = 3  # exit status of the child where the cause is on its standard error
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from bnndp.importers.child import main; "
    "sys.exit(main(sys.argv[2], sys.argv[3], int(sys.argv[4])))"
)
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")  # all that the child gets of it
_WRITTEN = ("order", "values", "lists", "holders")  # what the child says beside the tensors
_PLAIN = (str, int, float)  # values beside tensors; True and False are of the second kind


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """What a foreign file holds, and what it was."""

    foreign: Foreign
    sha256: str  # of the file
    torch: str | None  # the version that opened it; None of a file that needs none
    metadata: Mapping[str, str] = field(default_factory=dict)  # of a safetensors file


def open_pickle(content: bytes, name: object, *, key: str = "", seconds: float = 60.0) -> OpenedFile:
    """The tensors of a pickle, or of the entry ``key`` in it; ``name`` is for messages.

    Every fault, up to the end of the child by a signal or after ``seconds``, is a :class:`ModelFileError` of one line.
    """
    try:
        expect_plain(content)
    except ModelFileError as error:
        raise ModelFileError(one_line(f"{name}: cannot be converted: {error}.")) from error
    return open_in_child(content, name, key=key, seconds=seconds)


def open_in_child(content: bytes, name: object, *, key: str = "", seconds: float = 60.0) -> OpenedFile:
    """The same without the first look: what holds alone, and is tested alone."""
    with _scratch() as scratch:
        try:
            reason = _run(content, scratch, key, seconds)
        except (OSError, MemoryError, ValueError) as error:
            reason = f"no process can be started to open it: {cause_of(error)}"
        if reason is not None:
            raise ModelFileError(one_line(f"{name}: cannot be converted: {reason}."))
        foreign = _read(scratch, name)
    return OpenedFile(foreign, hashlib.sha256(content).hexdigest(), metadata.version("torch"))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bnndp-convert-") as folder:
        yield Path(folder) / "tensors"


def _run(content: bytes, scratch: Path, key: str, seconds: float) -> str | None:
    """Let the child convert; what went wrong, if anything."""
    if os.name != "posix":
        return "the limits on the process that opens it need a POSIX system"
    package = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-I", "-c", _PROGRAM, str(package), str(scratch), key, str(int(seconds) + 1)]
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(  # noqa: S603 (our own interpreter and module; the pickle is data on standard input)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=scratch.parent,
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            _, message = child.communicate(content, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"the process that opens it was not done after {seconds:g} s"
        finally:
            _end(child)
    return _reason(child.returncode, message)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child, if it still runs, and whatever it may have started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def _reason(status: int, message: bytes) -> str | None:
    if status == 0:
        return None
    if status == FAULT and message:
        return message[:1000].decode("utf-8", "replace").strip().rstrip(".")
    if status < 0:
        return f"the process that opens it was ended by signal {-status} (memory, time, or a fault of the file)"
    return f"the process that opens it failed with status {status}"


def _read(scratch: Path, name: object) -> Foreign:
    """What the child wrote, in the order that it says."""
    from bnndp.files.container import parse_json, read_container

    try:
        found, tensors = read_container(scratch)
        order, values, lists, holders = (parse_json(found.get(key, "null")) for key in _WRITTEN)
    except ModelFileError as error:
        reason = str(error).removeprefix(f"{scratch}: ")
        raise ModelFileError(one_line(f"{name}: cannot be converted: its content is not a model: {reason}")) from error
    texts = all(isinstance(some, list) and all(isinstance(each, str) for each in some) for some in (order, holders))
    plain = isinstance(values, dict) and all(each is None or isinstance(each, _PLAIN) for each in values.values())
    counts = isinstance(lists, dict) and all(type(each) is int for each in lists.values())
    if not (texts and plain and counts) or sorted(order) != sorted(tensors):
        raise ModelFileError(one_line(f"{name}: cannot be converted: what was read of it is not complete."))
    return Foreign({each: tensors[each] for each in order}, values, lists, tuple(holders))
