"""``bnndp verify``: a network and a VNN-LIB property, with the answers of the verification competition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnndp.cli import parameters as p

if TYPE_CHECKING:
    from bnndp.cli.messages import Messages
    from bnndp.network import Posterior
    from bnndp.questions.constraint import Safety


def verify(  # noqa: PLR0913 (options of a command)
    context: typer.Context,
    network: Annotated[
        Path, typer.Argument(metavar="NETWORK", help="An ONNX file (.onnx, .onnx.gz) or a bnndp-posterior-1 file.")
    ],
    property_: Annotated[Path, typer.Argument(metavar="PROPERTY", help="A VNN-LIB file (.vnnlib, .vnnlib.gz).")],
    std: Annotated[
        Path | None,
        typer.Option(
            help="Standard deviations of the weights of an ONNX file, under their names (.safetensors, .npz)."
        ),
    ] = None,
    effort: p.EffortLevel = "medium",
    time_limit: p.TimeLimit = None,
    device: p.Device = "cpu",
    seed: p.Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Where the answer goes, too.")] = None,
    quiet: p.Quiet = False,
) -> None:
    """Decide whether any input in the boxes of a property has outputs that the property describes.

    The first line of the answer is unsat: no input has, which is proved; sat: one has, and follows with its outputs;
    unknown; or timeout. The outputs of a network with variance are its expected outputs. Both sat and unsat are proved
    for the network in real numbers, with all rounding errors; the outputs that are printed are rounded. When the time
    is over without an answer the exit status is 130.
    """
    from bnndp.cli.exit_status import INTERRUPTED
    from bnndp.cli.invocation import Ended
    from bnndp.cli.messages import Messages
    from bnndp.cli.output import open_text
    from bnndp.errors import CertError, InputError
    from bnndp.files.regions import regions_of
    from bnndp.files.vnnlib import read_vnnlib
    from bnndp.options import Options
    from bnndp.questions.constraint import verify as decided

    messages, options = Messages(quiet=quiet), Options(effort=effort, time_limit=time_limit).started()
    context.obj.written = None if out is None else context.obj.written
    computing = p.device_of(device)
    posterior, asked = _network(network, std, messages).to(computing), read_vnnlib(property_)
    try:
        regions = [region.to(computing) for region in regions_of(asked)]
        with open_text(out, keep=[path for path in (network, property_, std) if path is not None]) as write:
            answer = decided(posterior, regions, options, seed=seed)
            text = "".join(f"{line}\n" for line in _lines(answer))
            typer.echo(text, nl=False)
            write(text)
    except InputError as error:
        raise InputError(f"{property_}: {error}") from error
    except CertError as error:
        raise type(error)(f"{network}: {error}") from error
    messages.tell(f"{answer.cells} cells of the inputs were bounded, {answer.left} of them are not proved")
    if text == "timeout\n":
        raise Ended("the time was over before there was an answer", INTERRUPTED)


def _network(path: Path, std: Path | None, messages: Messages) -> Posterior:
    """The network in a file of either kind."""
    from bnndp.cli.inputs import load_model
    from bnndp.errors import InputError
    from bnndp.importers.onnx import is_onnx

    if is_onnx(path):
        from bnndp.importers.onnx.read import read_onnx

        return read_onnx(path, std)
    if std is not None:
        raise InputError(f"{path}: holds its standard deviations itself; leave out --std.")
    return load_model(path, messages).posterior


def _lines(answer: Safety) -> list[str]:
    """The answer in the format of the competition."""
    from bnndp.questions.verdict import Verdict

    if answer.verdict is Verdict.CERTIFIED:
        return ["unsat"]
    if answer.witness is None or answer.output is None:
        return ["timeout" if answer.late else "unknown"]
    pairs = [*_named("X", answer.witness.tolist()), *_named("Y", answer.output.tolist())]
    start, end = ["(", *[" "] * (len(pairs) - 1)], [*[""] * (len(pairs) - 1), ")"]
    return ["sat", *(f"{a}{pair}{b}" for a, pair, b in zip(start, pairs, end, strict=True))]


def _named(name: str, values: list[float]) -> list[str]:
    return [f"({name}_{index} {value!r})" for index, value in enumerate(values)]
