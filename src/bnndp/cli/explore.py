"""``bnndp explore``: a network in the browser, with bounds and attacks that follow the mouse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnndp.cli.parameters import CLASSES, TARGETS, DataFolder, Domain, Fold, Limit, Model, Split

if TYPE_CHECKING:
    from torch import Tensor

    from bnndp.network import Posterior

__all__ = ["explore"]


def explore(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: Model,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Inputs of a data set: {', '.join(CLASSES + TARGETS)}.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Inputs of a file: .npz, .npy or .csv, with labels or without.")
    ] = None,
    split: Split = "test",
    data_dir: DataFolder = None,
    fold: Fold = 0,
    limit: Limit = None,
    domain: Domain = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Show a network in the browser: move an input and a radius, and see what is proved and what an attack finds.

    A network with one or two inputs can be explored anywhere in --domain; any other needs inputs to choose from. The
    page is served to this machine only, under an address that nobody else knows. Ctrl-C ends it.
    """
    import contextlib

    from bnndp.cli.inputs import load_network
    from bnndp.cli.stopped import Remarks
    from bnndp.errors import InputError
    from bnndp.explorer.opening import opened
    from bnndp.explorer.server import Explorer
    from bnndp.explorer.session import Session

    remarks = context.find_object(Remarks)
    if remarks is not None:
        remarks.written = None
    network = load_network(model)
    if data is not None and inputs is not None:
        raise typer.BadParameter("give --data or --inputs, not both.")
    if domain is not None and not domain[0] < domain[1]:
        raise typer.BadParameter(f"--domain needs LO < HI, got {domain[0]} {domain[1]}.")
    x, label = _of_set(network, data, split, data_dir, fold) if data is not None else _of_file(network, inputs)
    named = model.stem if data is None else f"{model.stem} on {data}"
    session = Session(
        named, network, None if x is None else x[:limit], None if label is None else label[:limit], domain
    )
    try:
        explorer = Explorer(session, port)
    except OSError as error:
        raise InputError(f"port {port} cannot be used: {error.strerror}; give another --port, or 0.") from error
    try:
        typer.echo(f"{explorer.address}\nCtrl-C ends it.")
        with opened(explorer.address) if browser else contextlib.nullcontext():
            explorer.serve()
    except KeyboardInterrupt:
        typer.echo("bnndp: ended.", err=True)


def _of_set(network: Posterior, data: str, split: str, folder: Path | None, fold: int) -> tuple[Tensor, Tensor | None]:
    """The inputs of a published set, with their labels where the network decides."""
    from bnndp.cli.inputs import check_array, faults_of
    from bnndp.cli.labelled import shown_store
    from bnndp.data import ClassificationData, load

    with shown_store(folder) as store:
        found = load(data, split, folder=store, fold=fold)
    with faults_of(f"{data} ({split})"):
        check_array("x", found.x.numpy(), network.n_in)
    known = isinstance(found, ClassificationData) and network.task == "classification"
    return found.x, found.y if known and int(found.y.max()) < network.n_out else None


def _of_file(network: Posterior, path: Path | None) -> tuple[Tensor | None, Tensor | None]:
    """The inputs of a file, with their labels where it has some; none of no file."""
    import torch

    from bnndp.cli.inputs import faults_of, read_matrices
    from bnndp.cli.labelled import read_labels
    from bnndp.errors import InputError

    def points(names: list[str]) -> tuple[str, ...]:
        if "x" not in names:
            raise InputError(f"needs an array x of points; it holds {', '.join(sorted(names)) or 'nothing'}.")
        return ("x",)

    if path is None:
        return None, None
    with faults_of(path):
        x = read_matrices(path, network.input_shape or (), points)["x"]
    labels = read_labels(path, x.shape[0], network.n_out) if network.task == "classification" else None
    return torch.from_numpy(x), labels
