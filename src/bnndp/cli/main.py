"""The program ``bnndp``: its commands, and what every command does with errors and signals.

The exit statuses are named in ``cli/exit_status.py``. What is wrong is said in one line on stderr. A command that is
interrupted when it has a valid answer for every input writes what it has reached and says so, with the status
INTERRUPTED. Whatever is neither a :class:`CertError` nor refused by the system is a bug and keeps its traceback.

Commands use one thread unless OMP_NUM_THREADS says otherwise: the matrices of most networks are small, and on a machine
with other work a second thread spends its time waiting (measured: 40 times slower with two threads on two busy cores).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from types import FrameType
from typing import Annotated, NoReturn

import typer

from bnndp.cli.certificates import FolderInRun
from bnndp.cli.certify import certify
from bnndp.cli.convert import convert
from bnndp.cli.demo import demo
from bnndp.cli.evaluate import SeveralRadii, evaluate
from bnndp.cli.exit_status import ERROR, INTERRUPTED, SUCCESS, TERMINATED
from bnndp.cli.explore import explore
from bnndp.cli.inspect import inspect
from bnndp.cli.invocation import Ended, Invocation
from bnndp.cli.radius import radius
from bnndp.cli.report import report
from bnndp.cli.train import train
from bnndp.cli.verify import verify
from bnndp.errors import CertError, one_line

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported, which is later

app = typer.Typer(
    name="bnndp",
    help="Certified bounds on the predictions of Bayesian neural networks, over the whole posterior.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(command: Callable[..., None], kind: type[typer.core.TyperCommand] | None = None) -> None:
    """A command with its docstring as help: lines are joined to paragraphs, which the terminal breaks at its width."""
    paragraphs = (command.__doc__ or "").split("\n\n")
    app.command(cls=kind, help="\n\n".join(" ".join(each.split()) for each in paragraphs))(command)


_add(inspect)
_add(certify, FolderInRun)
_add(radius, FolderInRun)
_add(evaluate, SeveralRadii)
_add(verify)
_add(train)
_add(convert)
_add(report)
_add(explore)
_add(demo)


class _Terminated(BaseException):
    """The process was told to stop; raised so that unfinished files are removed on the way out."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bnndp {metadata.version('bnndp')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Certified bounds on the predictions of Bayesian neural networks, over the whole posterior."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program: run it with these arguments, or with those of the process, and exit with its status."""
    if arguments is None:
        signal.signal(signal.SIGTERM, _terminate)
    invocation = Invocation(tuple(sys.argv[1:] if arguments is None else arguments), time.monotonic())
    try:
        status = app(args=arguments, prog_name="bnndp", standalone_mode=False, obj=invocation)
        if status == INTERRUPTED:  # typer has handled Ctrl-C
            raise KeyboardInterrupt
    except (CertError, OSError, typer.TyperException) as error:
        status = _complain(_words(error), ERROR)
    except (MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        status = _complain("there is not enough memory; give fewer inputs at once, or a smaller network", ERROR)
    except Ended as end:
        status = _complain(str(end), end.status)
    except (KeyboardInterrupt, _Terminated) as stop:
        status = _complain(str(invocation), TERMINATED if isinstance(stop, _Terminated) else INTERRUPTED)
    sys.exit(status if isinstance(status, int) else SUCCESS)


def main(arguments: Sequence[str] | None = None) -> int:
    """The same, for other programs: returns the exit status."""
    try:
        run(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:
        return int(end.code or SUCCESS)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise _Terminated


def _words(error: CertError | OSError | typer.TyperException) -> str:
    """What is wrong. Most commands turn an OSError of a file into a CertError that says more; the others come here."""
    if isinstance(error, OSError):
        return _refusal(error)
    return _usage(error) if isinstance(error, typer.TyperException) else str(error)


def _usage(error: typer.TyperException) -> str:
    """What is wrong with the arguments, and whose help says how they should be."""
    context = getattr(error, "ctx", None)
    said = error.format_message().removeprefix("Invalid value: ").replace(": Value error, ", ": ").rstrip(".")
    path = "bnndp" if context is None else context.command_path
    return f"{said} See {path} --help." if said.endswith("?") else f"{said}; see {path} --help."


def _refusal(error: OSError) -> str:
    """What the system refused, and for which path if it says."""
    cause = error.strerror or str(error) or type(error).__name__
    return one_line(cause if error.filename is None else f"{error.filename}: cannot be read or written: {cause}")


def _lacks_memory(error: Exception) -> bool:
    """Whether Python or torch could not allocate; torch says so by errors of its own."""
    own = type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    return isinstance(error, MemoryError) or own


def _complain(message: str, status: int) -> int:
    """Print one line on stderr and return the status."""
    typer.echo(f"bnndp: {' '.join(message.split()).rstrip('.')}.", err=True)
    return status
