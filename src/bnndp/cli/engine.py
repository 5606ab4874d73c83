"""``--engine`` and ``--address``: who computes the answers of a command, this process or the workers of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from bnndp.cli.manner import Manner
    from bnndp.runs.engine import Engine
    from bnndp.runs.job import Job

__all__ = ["LOCAL", "Address", "Chosen", "EngineName"]

EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Who computes: this process, or the workers of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of --engine ray: the cluster, or auto for one that runs on this machine; without it one is started.",
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engine of a command."""

    name: str = "local"
    address: str | None = None

    @classmethod
    def of(cls, name: str, address: str | None, device: str) -> Chosen:
        """By the options of a command; refused where they do not go together."""
        if name == "local" and address is not None:
            raise typer.BadParameter("--address is that of a Ray cluster; give --engine ray too, or leave it out.")
        if name == "ray" and device != "cpu":
            raise typer.BadParameter(f"--engine ray computes on CPUs; leave out --device {device}, or --engine ray.")
        return cls(name, address)

    @contextlib.contextmanager
    def open(self, job: Job[Any], manner: Manner) -> Iterator[Engine]:
        """The engine for a job; of a cluster it is told what it has."""
        from bnndp.runs.engine import Local

        if self.name == "local":
            yield Local(job)
            return
        from bnndp.runs.ray_cluster.crew import open_crew

        if self.address is not None:
            manner.tell(f"joining the Ray cluster at {self.address}.")
        with open_crew(job, self.address) as crew:
            threads = "1 thread each" if crew.threads == 1 else f"{crew.threads} threads each"
            manner.tell(f"a Ray cluster with {crew.width} workers, {threads}.")
            yield crew


LOCAL = Chosen()
"""This process."""
