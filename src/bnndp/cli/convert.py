"""``bnndp convert``: files of other libraries, or one without a digest, as a sealed ``bnndp-posterior-1`` file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bnndp.errors import InputError, one_line

if TYPE_CHECKING:
    from bnndp.files.posterior import ModelFile
    from bnndp.importers.architecture import Architecture
    from bnndp.layers import Record
    from bnndp.network import BayesianNetwork, Posterior

_MOST = 40  # layers, or remarks, that are printed


def convert(  # noqa: PLR0913 (options of a command)
    source: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="A state_dict (.pt, .pth), a .safetensors, .npz or .onnx file; several files are an ensemble.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the network goes (.safetensors).", show_default=False)
    ],
    importer: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NAME",
            help="The library of SOURCE, such as bayesian-torch; auto: recognised by the names.",
        ),
    ] = "auto",
    arch: Annotated[
        Path | None, typer.Option(help="The layers, as in docs/format.md, with the names of SOURCE (.toml, .json).")
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Between each two dense layers, without --arch; needed where there are two or more.",
        ),
    ] = None,
    task: Annotated[
        Literal["regression", "classification"] | None,
        typer.Option(help="Required if neither SOURCE nor --arch gives it."),
    ] = None,
    key: Annotated[str, typer.Option(metavar="NAME", help="The entry of SOURCE that is the state_dict.")] = "",
    beside: Annotated[
        Path | None, typer.Option(help="The state_dict of the network, where SOURCE is that of its optimiser.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Names of tensors and what they are (.toml, .json): docs/importers/torch.md.")
    ] = None,
    scale_transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For a guide of Pyro: the transform of its scales: exp, softplus or 'sigmoid M'."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A site or tensor that is not a weight of the network, such as the noise of the data; repeatable.",
        ),
    ] = None,
    std: Annotated[
        Path | None,
        typer.Option(
            help="For an ONNX file: standard deviations of its weights under their names (.safetensors, .npz)."
        ),
    ] = None,
    bias: Annotated[
        bool, typer.Option("--bias/--no-bias", help="--no-bias: leave out biases in the file that no layer has.")
    ] = True,
) -> None:
    """Make a safe, sealed model file of a posterior that another library trained; nothing in SOURCE is run.

    A pickle is opened in a process of its own, with limits on memory and time, for plain tensors only. Look at what is
    printed: the formula of the standard deviations, the activation and, without --arch, the order of the layers.
    """
    from bnndp.importers.convert import ConvertOptions
    from bnndp.importers.convert import convert as converted

    if out.suffix.lower() != ".safetensors":
        raise InputError(f"{out}: a model file is written, whose name must end in .safetensors; change --out.")
    for path in (*source, beside, table, arch, std):
        if path is not None and out.resolve() == path.resolve():
            raise InputError(f"{out}: is the input of this command and would be overwritten; change --out.")
    asked = ConvertOptions(importer, key, beside, table, scale_transform, bias, tuple(ignore or ()), std)
    found = converted(source, _architecture(arch, activation, task), asked)

    from bnndp.files.posterior import save

    save(found.posterior, out, source=found.source, card=found.card, origin=found.origin)
    typer.echo(f"{out}: {found.posterior!r}, SHA-256 of the network {found.posterior.digest()[:16]}...")
    for line in (*_understood(found), _activation(found.posterior), *_notes(found)):
        typer.echo(one_line(line))


def _architecture(arch: Path | None, activation: str | None, task: str | None) -> Architecture | None:
    """The architecture that the user gives; None if there is none."""
    if arch is None and activation is None and task is None:
        return None
    from bnndp.importers.architecture import merge_architecture, read_architecture

    given = None if arch is None else read_architecture(arch)
    if given is not None and (activation is not None or (task is not None and given.task is not None)):
        raise InputError("--arch says what the activations and the task are; leave out --activation and --task.")
    return merge_architecture(given, task, activation)


def _understood(found: ModelFile) -> Iterator[str]:
    """How the values were read, and what they are like; nothing of a file that was ours before."""
    origin = found.origin or {}
    names = origin.get("layers")
    if not isinstance(names, list) or not names:
        return
    yield f"read by {origin.get('importer')}: {origin.get('formula')}"
    chains = list(zip(*map(_weighted, found.posterior.members), strict=False))
    for name, layers in list(zip(names, chains, strict=False))[:_MOST]:
        shape = " x ".join(map(str, layers[0].weight_mean.shape))
        yield f"  {name}: {layers[0].kind} {shape}, {_spread(layers)}"


def _activation(posterior: Posterior) -> str:
    """What is between the layers."""
    from bnndp.network import flat, is_activation

    layers = (layer for member in posterior.members for layer in flat(member.layers))
    kinds = dict.fromkeys(layer.kind for layer in layers if is_activation(layer))
    return f"{'activations' if len(kinds) > 1 else 'activation'}: {', '.join(kinds) or 'none'}"


def _notes(found: ModelFile) -> Iterator[str]:
    """What the user should know, as it is kept in the file."""
    remarks = (found.origin or {}).get("remarks", [])
    for remark in remarks[:_MOST] if isinstance(remarks, list) else ():
        yield f"note: {remark}"


def _weighted(network: BayesianNetwork) -> list[Record]:
    """The layers with weights, those of residual blocks too, in the order of the network."""
    from bnndp.layers import WEIGHTED
    from bnndp.network import flat

    return [layer for layer in flat(network.layers) if isinstance(layer, WEIGHTED)]


def _spread(layers: tuple[Record, ...]) -> str:
    """Least, median and largest standard deviation of the weights, over all members."""
    import torch

    kept = [getattr(layer, "weight_std", None) for layer in layers]
    found = [std.flatten() for std in kept if std is not None]
    if not found:
        return "correlated weights"
    all_of = torch.cat(found)
    if not bool((all_of > 0).any()):
        return (
            "no variance in the weights"
            if not any(hasattr(layer, "factor") for layer in layers)
            else "correlated weights"
        )
    least, middle, largest = all_of.min().item(), all_of.median().item(), all_of.max().item()
    return f"std of the weights {least:.3g} to {largest:.3g}, median {middle:.3g}"
