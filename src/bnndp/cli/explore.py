"""``bnndp explore``: a network in the browser, with bounds and attacks that follow the mouse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnndp.cli.parameters import CLASSES, TARGETS, DataFolder, Domain, Fold, Limit, Model, Split

if TYPE_CHECKING:
    from torch import Tensor

    from bnndp.cli.inputs import Source
    from bnndp.network import Posterior


def explore(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: Model,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Inputs of a data set: {', '.join(CLASSES + TARGETS)}.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Inputs from a file: .npz, .npy or .csv, with or without labels."),
    ] = None,
    split: Split = "test",
    data_dir: DataFolder = None,
    fold: Fold = 0,
    limit: Limit = None,
    domain: Domain = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free port.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Show a network in the browser: move an input and a radius, and see what is proved and what an attack finds.

    A network with one or two inputs can be explored anywhere in --domain; any other needs inputs to choose from. The
    page is served to this machine only, under an address that nobody else knows. Ctrl-C ends it.
    """
    import contextlib

    from bnndp.cli.inputs import Source, load_model
    from bnndp.cli.invocation import Invocation
    from bnndp.errors import InputError
    from bnndp.explorer.server import Explorer, open_page
    from bnndp.explorer.session import Session

    invocation = context.find_object(Invocation)
    if invocation is not None:
        invocation.written = None
    network = load_model(model).posterior
    if data is not None and inputs is not None:
        raise typer.BadParameter("give --data or --inputs, not both.")
    if domain is not None and not domain[0] < domain[1]:
        raise typer.BadParameter(f"--domain needs LO < HI, got {domain[0]} {domain[1]}.")
    x, label = _given(network, Source(inputs, data, split, None if data is None else data_dir, limit, fold))
    session = Session(model.stem if data is None else f"{model.stem} on {data}", network, x, label, domain)
    try:
        explorer = Explorer(session, port)
    except OSError as error:
        raise InputError(f"port {port} cannot be used: {error.strerror}; give another --port, or 0.") from error
    try:
        typer.echo(f"{explorer.address}\nCtrl-C ends it.")
        with open_page(explorer.address) if browser else contextlib.nullcontext():
            explorer.serve()
    except KeyboardInterrupt:
        typer.echo("bnndp: ended.", err=True)


def _given(network: Posterior, source: Source) -> tuple[Tensor | None, Tensor | None]:
    """The inputs to choose from, with their labels where the network decides; none of no source."""
    from bnndp.cli.inputs import read_inputs, read_set
    from bnndp.cli.messages import Messages
    from bnndp.data import ClassificationData

    if source.path is None and source.data is None:
        return None, None
    if source.data is None:
        read = read_inputs(source, network, Messages(quiet=True))
        return read.x, read.label
    found = read_set(source, network)
    known = isinstance(found, ClassificationData) and network.task == "classification"
    label = found.y if known and int(found.y.max()) < network.n_out else None
    return found.x[: source.limit], None if label is None else label[: source.limit]
