"""``bnndp reproduce``: a table or figure of the paper, with the paper's numbers and ours side by side."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bnndp.cli.parameters import DataFolder, Quiet, positive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.paper.grid import Column
    from benchmarks.paper.rows import Task, Told
    from bnndp.cli.invocation import Invocation
    from bnndp.cli.messages import Messages
    from bnndp.training.fit import Watcher

__all__ = ["reproduce"]

_Experiment = Literal["table-1a", "table-1b", "table-2", "figure-1", "figure-3"]


def reproduce(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    experiment: Annotated[
        _Experiment, typer.Argument(metavar="NAME", help="table-1a, table-1b, table-2, figure-1 or figure-3.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Layers of 64 only, 10 inputs of each set.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")] = Path("reproduction"),
    only: Annotated[str | None, typer.Option(metavar="DATASET", help="Only the rows on this data set.")] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Inputs of each data set; 100 unless --quick.")] = None,
    inference: Annotated[
        str | None, typer.Option(metavar="METHOD", help="How networks are trained; vogn, bbb for table-2.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(callback=positive, help="Of the training; 1e-6 for table-1b, 1e-5 for table-2, 1 otherwise."),
    ] = None,
    prior: Annotated[str | None, typer.Option(metavar="KIND", help="Prior of the training: unit or fan_in.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the training.")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of trained networks; that of --out with /networks by default."),
    ] = None,
    baselines: Annotated[
        str | None, typer.Option(metavar="MODULE", help="A Python module with more columns, as benchmarks.baselines.")
    ] = None,
    data_dir: DataFolder = None,
    restart: Annotated[bool, typer.Option("--restart", help="Measure again what was measured before.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a table or a figure of the paper anew, with the paper's numbers, ours, and what an attack finds.

    The networks are trained as by bnndp train, and kept. The results go to the folder of --out as Markdown, as .csv and
    as a picture. An interrupted run continues: every number that was measured is in the folder's journal.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from benchmarks.paper.networks import Shelf
    from benchmarks.paper.reproduce import Setting
    from benchmarks.paper.reproduce import reproduce as make
    from bnndp.cli.inputs import data_store
    from bnndp.cli.invocation import Invocation
    from bnndp.cli.messages import Messages

    given = {"inference": inference, "temperature": temperature, "prior": prior, "steps": steps}
    invocation, messages = context.find_object(Invocation), Messages(quiet=quiet)
    with data_store(data_dir, messages) as store:
        setting = Setting(
            out=out,
            shelf=Shelf(cache or out / "networks", store),
            plan={name: value for name, value in given.items() if value is not None},
            quick=quick,
            points=points,
            only=only,
            baselines=None if baselines is None else _columns(baselines),
            restart=restart,
            command=_command(),
        )
        with _resumable(invocation), _shown(messages) as told:
            outcome = make(experiment, setting, told)
    console = Console()
    if console.is_terminal:
        console.print(Markdown(outcome.brief))
    else:
        typer.echo(outcome.text)
    if not quiet:
        typer.echo("written: " + ", ".join(map(str, outcome.files)), err=True)


def _columns(module: str) -> Mapping[str, Sequence[Column]]:
    """The ``COLUMNS`` of a module that lies in the current folder or is installed."""
    import importlib

    from bnndp.errors import InputError

    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
        columns = found.COLUMNS
    except (ImportError, AttributeError, SyntaxError, TypeError) as error:
        raise InputError(
            f"--baselines {module}: {error}; name a module with COLUMNS, as in benchmarks.baselines."
        ) from error
    finally:
        sys.path.remove(here)
    _check_columns(module, columns)
    version = _version(Path(found.__file__ or ""))
    return {table: tuple(replace(column, version=version) for column in given) for table, given in columns.items()}


def _check_columns(module: str, columns: object) -> None:
    from benchmarks.paper.grid import Column
    from bnndp.errors import InputError

    known = ("table-1a", "table-1b", "table-2")
    if not isinstance(columns, dict) or not all(
        table in known and isinstance(given, tuple | list) and all(isinstance(column, Column) for column in given)
        for table, given in columns.items()
    ):
        raise InputError(
            f"--baselines {module}: COLUMNS must be a dictionary from {', '.join(known)} to tuples of "
            "benchmarks.paper.grid.Column; see docs/reproduction.md."
        )


def _version(file: Path) -> str:
    """A digest of a module, or of all of its package: what an earlier one measured is not taken for its own."""
    import hashlib

    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


@contextlib.contextmanager
def _resumable(invocation: Invocation | None) -> Iterator[None]:
    """Of a run that is told to stop, say how to go on."""
    try:
        yield
    except BaseException:
        if invocation is not None:
            invocation.remarks.append("the same command goes on from what is measured")
        raise


@contextlib.contextmanager
def _shown(messages: Messages) -> Iterator[Told]:
    """One line on stderr for each network and column; a bar below it while a network is trained, on a terminal."""
    with contextlib.ExitStack() as stack:

        def told(task: Task) -> Watcher | None:
            stack.close()
            if not messages.quiet:
                typer.echo(f"{task.row}: {task.column or 'training'}", err=True)
            if task.column is not None:
                return None
            advance = stack.enter_context(messages.progress("train", task.steps))
            done = {"noise": 0, "train": 0}

            def watch(stage: Literal["noise", "train"], step: int) -> None:
                advance(step - done[stage])
                done[stage] = step

            return watch

        yield told


def _command() -> str:
    """What the user typed, without the folder of the program."""
    import shlex

    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
