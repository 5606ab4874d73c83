"""Where the numbers come from: the command, the files with their digests, the versions, and how to check again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.record import Record
from bnndp.report.page.scales import counted

_LONGEST = 400  # characters of a value


def provenance(record: Record, plots: Sequence[str] = ()) -> Markup:
    """A list of what the run is of and how it was made, and the command that makes it again.

    ``plots`` are the names of files beside the page that have its charts.
    """
    line = record.lookup("command_line")
    again = tag("pre", tag("code", str(line)), tabindex="0") if isinstance(line, str) else None
    return tag(
        "div",
        tag("p", "The command that makes this run again, or goes on with it:") if again else None,
        again,
        tag("dl", ((tag("dt", name), tag("dd", value)) for name, value in _entries(record, plots)), class_="facts"),
        tag(
            "details",
            tag("summary", "All options that the answers depend on"),
            tag("dl", ((tag("dt", k), tag("dd", _code(v))) for k, v in sorted(record.options.items())), class_="facts"),
        ),
    )


def _entries(record: Record, plots: Sequence[str]) -> Iterator[tuple[str, Child]]:
    version = record.identity["version"]
    model, inputs = record.lookup("model"), record.lookup("inputs")
    yield "Certificates", _certificates(record)
    if isinstance(model, Mapping):
        yield "Model", (_code(model.get("path")), " ", str(model.get("network") or ""))
        yield "Model file, SHA-256", _code(model.get("sha256"))
        if model.get("source"):
            yield "Origin of the model", str(model["source"])[:_LONGEST]
    yield "Numbers of the network, SHA-256", _code(record.identity["model"])
    if isinstance(inputs, Mapping):
        named = inputs.get("dataset")
        yield "Inputs", _set(inputs) if named else (_code(inputs.get("path")), _limit(inputs))
        if inputs.get("sha256"):
            yield "Input file, SHA-256", _code(inputs["sha256"])
    yield "Regions and labels, SHA-256", _code(record.identity["data"])
    yield "bnndp", (f"{version.get('bnndp')}, source ", _code(version.get("source")))
    others = [f"{name} {record.lookup(name)}" for name in ("python", "numpy") if record.lookup(name)]
    yield "With", ", ".join([f"torch {version.get('torch')}", *others])
    where = [str(record.lookup(name)) for name in ("platform", "device") if record.lookup(name)]
    if where:
        yield "On", ", ".join(where)
    if record.lookup("begun"):
        yield "Begun", str(record.lookup("begun"))[:_LONGEST]
    if plots:
        names = ", ".join(f"plots/{name}.svg" for name in plots)
        yield "Charts as files", (_code(names), ", written beside this page")


def _set(inputs: Mapping[str, object]) -> str:
    fold = inputs.get("fold")
    return f"{inputs.get('dataset')}, {inputs.get('split')}{f', fold {fold}' if fold else ''}{_limit(inputs)}"


def _limit(inputs: Mapping[str, object]) -> str:
    return f", the first {inputs['limit']}" if inputs.get("limit") is not None else ""


def _certificates(record: Record) -> Child:
    if not record.certificates:
        return (
            "none in the folder: the numbers rest on the code of bnndp and float64 arithmetic, rounded outward. With ",
            tag("code", "--certificates"),
            " a second, independent program checks them in ball arithmetic.",
        )
    return (
        f"{counted(record.certificates, 'file')} in the folder; this page has not checked them. Each is checked by ",
        tag("code", "bnndp-check CERTIFICATE MODEL"),
        ", an independent program; it proves a little less than the numbers above.",
    )


def _code(value: object) -> Markup:
    text = value if isinstance(value, str) else json.dumps(value)
    return tag("code", text[:_LONGEST])
