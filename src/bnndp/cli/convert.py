"""``bnndp convert``: a file of PyTorch, or one without a digest, as a sealed ``bnndp-posterior-1`` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bnndp.errors import InputError, one_line

__all__ = ["convert"]


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A state_dict (.pt, .pth) or a .safetensors file.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the network goes (.safetensors).", show_default=False)
    ],
    arch: Annotated[
        Path | None, typer.Option(help="The layers, as in docs/format.md, with the names of SOURCE (.toml, .json).")
    ] = None,
    activation: Annotated[
        str | None, typer.Option(metavar="KIND", help="Between each two dense layers, without --arch; relu by default.")
    ] = None,
    task: Annotated[
        Literal["regression", "classification"] | None, typer.Option(help="Without --arch; regression by default.")
    ] = None,
    key: Annotated[str, typer.Option(metavar="NAME", help="The entry of SOURCE that is the state_dict.")] = "",
) -> None:
    """Make a safe, sealed model file of a state_dict; nothing in SOURCE is run.

    A pickle is opened in a process of its own, with limits on memory and time, for plain tensors only. Look at the
    names that are printed: without --arch this is the order of the layers.
    """
    from bnndp.importers.convert import convert as converted

    if arch is not None and (activation is not None or task is not None):
        raise InputError("--arch says what the activations and the task are; leave out --activation and --task.")
    if out.resolve() == source.resolve():
        raise InputError(f"{out}: is the input of this command and would be overwritten; change --out.")
    given = None
    if arch is not None or activation is not None or task is not None:
        from bnndp.importers.architecture import Architecture, read_architecture

        given = Architecture(task or "regression", activation or "relu") if arch is None else read_architecture(arch)
    found = converted(source, given, key=key)

    from bnndp.files import save

    save(found.posterior, out, source=found.source, card=found.card, origin=found.origin)
    typer.echo(f"{out}: {found.posterior!r}, SHA-256 of the network {found.posterior.digest()[:16]}...")
    origin = found.origin or {}
    if isinstance(origin.get("layers"), list):
        typer.echo(one_line(f"tensors of {', '.join(map(str, origin['layers']))}; {origin.get('formula')}"))
