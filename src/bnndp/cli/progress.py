"""How far a command has come, on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["show_progress"]


@contextlib.contextmanager
def show_progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, moved by the function it gives; nothing at all where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)
