"""``bnndp radius``: how far each input may be moved before the decision changes, one JSON object a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnndp.cli.certificates import Certificates, certificate_folder, expect_checkable
from bnndp.cli.device import Device, device_of
from bnndp.cli.engine import Address, Chosen, EngineName
from bnndp.cli.parameters import (
    Attacked,
    Branch,
    DataFolder,
    Dataset,
    Domain,
    EffortLevel,
    Fold,
    Json,
    Labelled,
    Limit,
    Method,
    Model,
    Norm,
    Optimise,
    Quiet,
    Refine,
    RelativeTolerance,
    Run,
    Seed,
    Split,
    TimeLimit,
    finite,
    given,
    share,
)

__all__ = ["radius"]


def _positive(value: float) -> float:
    if not finite(value) or value < 0:
        raise typer.BadParameter(f"{value} is not a positive radius.")
    return value


def _no_radius(value: float | None) -> float | None:
    if value is not None:
        raise typer.BadParameter(
            "this command searches for the radii, up to --upper; for given ones there are bnndp certify and evaluate."
        )
    return value


def radius(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: Model,
    inputs: Labelled = None,
    data: Dataset = None,
    split: Split = "test",
    data_dir: DataFolder = None,
    limit: Limit = None,
    fold: Fold = 0,
    norm: Norm = "inf",
    domain: Domain = None,
    upper: Annotated[float, typer.Option(callback=_positive, help="The largest radius tried.")] = 1.0,
    eps: Annotated[float | None, typer.Option(callback=_no_radius, hidden=True)] = None,  # noqa: ARG001
    tolerance: RelativeTolerance = 0.01,
    method: Method = None,
    effort: EffortLevel = "low",
    refine: Refine = None,
    optimise: Optimise = None,
    branch: Branch = None,
    time_limit: TimeLimit = None,
    attack: Attacked = True,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Where the radii go: one JSON object a line; - is stdout.")] = None,
    run: Run = None,
    certificates: Certificates = None,
    device: Device = "cpu",
    engine: EngineName = "local",
    address: Address = None,
    require_certified: Annotated[
        float | None,
        typer.Option(
            callback=share,
            metavar="SHARE",
            help="Exit with status 3 if less than this share of all inputs has a certified radius, be it 0.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the largest radius for which the decision of a classifier provably stays the label, for every input.

    The label is that of y; without labels it is the network's own decision. Each line of the output has the keys index,
    label, decision, radius, capped, attack_radius, ratio, effort, seconds. decision is what the network decides at the
    input, by sampling. The decision is proved to be the label on the ball of the radius; null: not even at the input.
    capped: the radius is --upper itself, and a larger one was not tried. The attack found another decision within
    attack_radius; 0: at the input itself, null: nowhere up to --upper, or not searched. ratio is the first over the
    second; effort the last level that was completed for this input; seconds the time, with the attack, shared out over
    the batch. The means in the table are over the correctly classified inputs: that of the radius counts null as 0, and
    those of the attack are over the inputs that it changed, whose number is in the header where it is not all.

    All inputs are searched by one pass first, and attacked. When the time is over, or on Ctrl-C, after that, the radii
    reached until then are written: all of them are proved. With --run they are kept as they are found, and nothing that
    was done is done again, even if the process is killed; docs/runs.md says how. With --certificates the decision on a
    ball, as large as bnndp-check proves it, is written for every input as a file of its own.
    """
    from bnndp.cli.certificates import Issuing
    from bnndp.cli.inputs import load_classifier
    from bnndp.cli.kept import Kept
    from bnndp.cli.labelled import Source, read_points
    from bnndp.cli.origin import Origin
    from bnndp.cli.radii import DoneRadii, RadiusJob, summary, table_of
    from bnndp.cli.rows import open_rows
    from bnndp.options import Options
    from bnndp.questions.radius import Search
    from bnndp.runs.work import Budget

    kept = Kept.begin(context, run, out, json=json, quiet=quiet).by(Chosen.of(engine, address, device))
    computing, folder = device_of(device), certificate_folder(certificates, run)
    expect_checkable(folder, norm)
    model_file = load_classifier(model, kept.manner)
    network, source = model_file.posterior, Source(inputs, data, split, data_dir, limit, fold)
    points = read_points(source, network, domain, kept.manner)
    search = Search(float(norm), upper, tolerance, attack, seed=seed)
    chosen = given(method=method, refine=refine, optimise=optimise, branch=branch)
    options = Options.of(effort, **chosen, time_limit=time_limit)
    job = RadiusJob(network.to(computing), points, domain, search, options, computing)
    question = {"norm": norm, "upper": upper, "domain": domain, "attack": attack, "seed": seed, "quantity": "decision"}
    origin = Origin(kept.remarks, model, model_file, source.given(points), computing, question)
    keep = (model, *kept.files) if inputs is None else (model, inputs, *kept.files)
    kept.remind()
    with kept.journal(job, lambda: job.asked("radius"), origin) as journal, open_rows(out, keep=keep) as rows:
        end = kept.fill(job, journal, "radius", Budget(time_limit))
        done = DoneRadii.read(job, journal)
        if rows is not None:
            for row in done.rows():
                rows.write(row)
        with kept.exports() as exports:
            if exports is not None:
                done.export(journal, exports)
    kept.written()
    labelled = points.label is not None
    found = summary(done, end, labelled=labelled)
    kept.manner.table(table_of(done, labelled=labelled))
    if folder is not None and not end.interrupted:
        issued = Issuing(network, model, folder, kept.manner).of_radii(points.x, done.found, domain)
        kept.manner.table(issued.told)
        found["certificates"] = issued.summary()
    kept.conclude(end, "what was reached until then, all of it proved", found, require_certified)
