"""How far a command has come: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bnndp.runs.work import Advance

_INTERVAL = 5.0  # seconds between two lines, at least


@dataclass(slots=True)
class Pace:
    """What is done, how much of it is certified, and how long the rest will take; ``show`` tells it to the user."""

    total: int
    show: Callable[[Pace], object] = lambda _: None
    done: int = 0
    certified: int | None = None
    _computed: int = 0  # of those done: the others were known before
    _begin: float = field(default_factory=lambda: time.perf_counter())  # noqa: PLW0108 (asked when it begins)

    def advance(self, points: int, certified: int | None = None, *, known: bool = False) -> None:
        """Count more points as done."""
        self.done += points
        self._computed += 0 if known else points
        if certified is not None:
            self.certified = (self.certified or 0) + certified
        self.show(self)

    def __str__(self) -> str:
        """For example ``256 of 1000, 91 % certified, 12 s left``."""
        parts = [f"{self.done} of {self.total}"]
        if self.certified is not None and self.done:
            parts.append(f"{100 * self.certified // self.done} % certified")
        if self._computed and self.done < self.total:
            seconds = (time.perf_counter() - self._begin) / self._computed * (self.total - self.done)
            parts.append(f"{_duration(seconds)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    """In the unit that suits.

    >>> _duration(12.3), _duration(300), _duration(9000)
    ('13 s', '5 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{int(seconds) + 1} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


@contextlib.contextmanager
def show_progress(name: str, total: int, *, quiet: bool = False) -> Iterator[Advance]:
    """Show on stderr how far the work is, moved on by the function it gives; nothing at all if ``quiet``."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield (Pace(total) if quiet else Pace(total, _lines(name))).advance
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(name, total=total, words=str(Pace(total)))
        yield Pace(total, lambda pace: bars.update(task, completed=pace.done, words=str(pace))).advance


def _lines(name: str) -> Callable[[Pace], None]:
    """A line at most every interval."""
    due = time.perf_counter() + _INTERVAL

    def show(pace: Pace) -> None:
        nonlocal due
        if time.perf_counter() >= due and pace.done < pace.total:
            typer.echo(f"{name}: {pace}", err=True)
            due = time.perf_counter() + _INTERVAL

    return show
