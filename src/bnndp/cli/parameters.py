"""Arguments and options that several commands share; nothing heavy is imported, so that ``--help`` stays quick.

Commands import this module under the name ``p`` and name its types in their signatures.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

# The data sets of the registry, for --help, which must not import it; a test compares them.
CLASSES = ("moons", "digits", "mnist", "fashion_mnist", "cifar10", "cifar10_subset")
TARGETS = (
    "sine1d", "sine2d", "kin8nm", "concrete", "power_plant", "energy", "yacht", "wine_quality_red", "naval",
)  # fmt: skip


def finite(value: float | None) -> float | None:
    """Refuse NaN and infinities, which pass the checks of ranges."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def positive(value: float | None) -> float | None:
    """Refuse what is not a finite number above zero."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value} is not a finite number above zero.")
    return value


def given(**options: object) -> dict[str, object]:
    """Those options that are on the command line: they win over --effort, also at their defaults."""
    return {name: value for name, value in options.items() if value is not None}


def share(value: float | None) -> float | None:
    """Refuse what is not a share."""
    if value is not None and not 0 <= value <= 1:
        raise typer.BadParameter(f"{value} is not a share: a number from 0 to 1.")
    return value


def _share(value: float) -> float:
    if not 0 < value < 1:
        raise typer.BadParameter(f"{value} is not between 0 and 1.")
    return value


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The network: a bnndp-posterior-1 file (.safetensors).")]
Method = Annotated[
    Literal["auto", "moment", "partition", "best"] | None,
    typer.Option(help="The method; set by --effort if not given."),
]
Norm = Annotated[Literal["inf", "2", "1"], typer.Option(help="Norm of the ball.")]
Domain = Annotated[
    tuple[float, float] | None, typer.Option(metavar="LO HI", help="Smallest and largest value that an input may take.")
]
EffortLevel = Annotated[
    Literal["low", "medium", "high"],
    typer.Option(
        help="low: one pass; medium: about 10 times the cost; high: about 100 times. Sets options that are not given."
    ),
]
Refine = Annotated[
    int | None,
    typer.Option(min=1, metavar="CELLS", help="Split each box into at most CELLS; set by --effort if not given."),
]
Optimise = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="STEPS", help="Steps to optimise the planes of the bounds; set by --effort if not given."
    ),
]
Branch = Annotated[
    int | None,
    typer.Option(min=1, metavar="CELLS", help="Branch a decision by signs of neurons; set by --effort if not given."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        callback=positive,
        metavar="SECONDS",
        help="Time for the whole command; inputs that are not reached have no result.",
    ),
]
Run = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="FOLDER", help="Keep every answer in this folder; the same command continues from there."
    ),
]
RelativeTolerance = Annotated[float, typer.Option(callback=_share, help="Relative precision of the radii.")]
Labelled = Annotated[
    Path | None,
    typer.Argument(
        metavar="INPUTS",
        help="A .npz with x (n, inputs) and labels y, a .npy of x, or a .csv with a column label; or give --data.",
    ),
]
Dataset = Annotated[
    str | None, typer.Option("--data", metavar="NAME", help=f"A data set in place of INPUTS: {', '.join(CLASSES)}.")
]
Split = Annotated[Literal["test", "train"], typer.Option(help="Which part of --data.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the data sets; the one that BNNDP_DATA names by default.")
]
Fold = Annotated[int, typer.Option(min=0, help="Which published split of --data, the one it was trained on.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N inputs.")]
Attacked = Annotated[
    bool, typer.Option("--attack/--no-attack", help="Also search for the smallest radius that breaks it.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the attack.")]


def required(less: str) -> Any:
    """The option --require-certified; ``less`` says when too little is certified."""
    return typer.Option(callback=share, metavar="SHARE", help=f"Exit with status 3 if {less}")


Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object in place of the table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]
EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="What computes: this process, or the workers of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="For --engine ray: the cluster, or auto for one that runs on this machine; without it one is started.",
    ),
]


def _device_name(value: str) -> str:
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", value) is None:
        raise typer.BadParameter(f"{value!r} is not a device; use cpu, cuda or cuda:N.")
    return value


Device = Annotated[
    str, typer.Option(callback=_device_name, metavar="NAME", help="Where to compute: cpu, cuda or cuda:N.")
]


def device_of(name: str, engine: str = "local", address: str | None = None) -> str:
    """The device in full, cuda:0 for cuda; refused where this machine, or the engine, has none of that name."""
    if engine == "local" and address is not None:
        raise typer.BadParameter("--address is that of a Ray cluster; give --engine ray too, or leave it out.")
    if engine == "ray" and name != "cpu":
        raise typer.BadParameter(f"--engine ray computes on CPUs; leave out --device {name}, or --engine ray.")
    if name == "cpu":
        return name
    import torch

    from bnndp.errors import InputError

    number = int(name.partition(":")[2] or 0)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= count:
        found = "no CUDA device that torch can use" if count == 0 else f"CUDA devices 0 to {count - 1} only"
        raise InputError(f"--device {name}: this machine has {found}; choose another, or cpu.")
    return f"cuda:{number}"
