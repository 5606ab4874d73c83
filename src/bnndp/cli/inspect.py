"""``bnndp inspect``: what a model file holds, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bnndp.cli.parameters import Json, Model, Quiet

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def inspect(model: Model, json: Json = False, quiet: Quiet = False) -> None:
    """Show the layers of a network with their shapes and the spread of their weights, and what each command can do.

    The spread is the least, median and largest standard deviation of the weights and biases of a layer; that of an
    ensemble is taken over all members. The digest is that of all numbers of the network, the SHA-256 that of the file.
    """
    from bnndp.cli.inputs import load_model
    from bnndp.cli.inspection import inspected
    from bnndp.cli.messages import Messages

    messages = Messages(json, quiet)
    found = inspected(model, load_model(model, messages))
    messages.table(_facts(found), _layers(found), _commands(found))
    messages.summary(found)


def _facts(found: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    ensemble = found["ensemble"]
    lines = {
        "file": found["path"],
        "SHA-256": found["sha256"] + ("" if found["sealed"] else " (no seal inside: bnndp convert writes one)"),
        "digest": found["digest"],
        "task": found["task"],
        "inputs": f"{found['inputs']}, shape {_shape(found['input_shape'])}" + (", shifted" * found["shifted"]),
        "outputs": found["outputs"],
        "parameters": found["parameters"],
        "members": None if ensemble is None else _members(ensemble),
        "source": found["source"],
        "origin": None if found["origin"] is None else _short(found["origin"]),
        "training": None if found["training"] is None else _short(found["training"]),
    }
    for name, value in lines.items():
        if value is not None:
            table.add_row(name, _text(value))
    return table


def _members(ensemble: Mapping[str, Any]) -> str:
    told = "all like the first, whose layers follow" if ensemble["alike"] else "not alike; the layers are the first's"
    return f"{ensemble['members']}, weights {ensemble['least_weight']:.4g} to {ensemble['largest_weight']:.4g}; {told}"


def _layers(found: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table("layer", "kind", "output shape", "parameters", "std least", "median", "largest", title="layers")
    for layer in found["layers"]:
        settings = ", ".join(f"{name} {value}" for name, value in layer["settings"].items())
        spread = layer["spread"]
        ends = (
            ("", "", "") if spread is None else tuple(f"{spread[name]:.3g}" for name in ("least", "median", "largest"))
        )
        kind = f"{layer['kind']} ({settings})" if settings else layer["kind"]
        cells = (layer["name"], kind, _shape(layer["output_shape"]), layer["parameters"] or "", *ends)
        table.add_row(*map(_text, cells))
    return table


def _commands(found: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table("command", "", "", title="what can be asked")
    for name, entry in found["commands"].items():
        table.add_row(*map(_text, (name, "yes" if entry["can"] else "no", entry["why"])))
    return table


def _shape(shape: list[int]) -> str:
    return " x ".join(map(str, shape))


def _short(record: Mapping[str, Any]) -> str:
    """The plain entries of a record; the rest is in --json."""
    plain = (f"{name} {value}" for name, value in record.items() if isinstance(value, str | int | float))
    return ", ".join(plain) or "see --json"


def _text(value: object) -> Text:
    """What a file says, as harmless text: no markup, no control characters."""
    from rich.text import Text

    from bnndp.errors import one_line

    return Text(one_line(str(value)))
