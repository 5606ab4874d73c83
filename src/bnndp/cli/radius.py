"""``bnndp radius``: how far each input may be moved before the decision changes, one JSON object a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnndp.cli.certificates import Certificates, certify_radii, expect_checkable
from bnndp.cli.parameters import (
    Attacked,
    Branch,
    DataFolder,
    Dataset,
    Domain,
    EffortLevel,
    Fold,
    Labelled,
    Limit,
    Method,
    Model,
    Norm,
    Optimise,
    Refine,
    RelativeTolerance,
    Run,
    Split,
    TimeLimit,
    finite,
    given,
)

__all__ = ["radius"]


def _positive(value: float) -> float:
    if not finite(value) or value < 0:
        raise typer.BadParameter(f"{value} is not a positive radius.")
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
    tolerance: RelativeTolerance = 0.01,
    method: Method = None,
    effort: EffortLevel = "low",
    refine: Refine = None,
    optimise: Optimise = None,
    branch: Branch = None,
    time_limit: TimeLimit = None,
    attack: Attacked = True,
    out: Annotated[Path | None, typer.Option(help="Where the radii go: one JSON object a line.")] = None,
    run: Run = None,
    certificates: Certificates = None,
) -> None:
    """Find the largest radius for which the decision of a classifier provably stays the label, for every input.

    The label is that of y; without y (a .csv has none) it is the network's own decision. Each line of the output has
    the keys index, label, radius, attack_radius, ratio, effort, seconds. The decision is proved to be the label on the
    ball of that radius; null: not even at the input. The attack found another decision within attack_radius; 0: at the
    input itself, null: nowhere up to --upper, or not searched. ratio is the first over the second; effort the last
    level that was completed for this input; seconds the time, with the attack, shared out over the batch. The table
    counts a null radius of a correctly classified input as 0.

    All inputs are searched by one pass first, and attacked. When the time is over, or on Ctrl-C, after that, the radii
    reached until then are written: all of them are proved. With --run they are kept as they are found, and nothing that
    was done is done again, even if the process is killed; docs/runs.md says how. With --certificates the decision on a
    ball, as large as bnndp-check proves it, is written for every input as a file of its own.
    """
    from rich.console import Console

    from bnndp.cli.inputs import load_classifier
    from bnndp.cli.kept import Kept
    from bnndp.cli.labelled import Source, read_points
    from bnndp.cli.radii import DoneRadii, RadiusJob, summary
    from bnndp.cli.rows import RowFile, no_file
    from bnndp.cli.stopped import Remarks
    from bnndp.options import Options
    from bnndp.radius import Search
    from bnndp.runs.work import Budget

    kept = Kept(run, out, context.find_object(Remarks))
    kept.expect_place()
    expect_checkable(certificates, norm)
    network = load_classifier(model)
    points = read_points(Source(inputs, data, split, data_dir, limit, fold), network, domain)
    search = Search(norm=float(norm), upper=upper, tolerance=tolerance, attack=attack)
    chosen = given(method=method, refine=refine, optimise=optimise, branch=branch)
    job = RadiusJob(network, points, domain, search, Options.of(effort, **chosen, time_limit=time_limit))
    keep = (model, *kept.files) if inputs is None else (model, inputs, *kept.files)
    file = no_file() if out is None else RowFile(out, keep=keep)
    with kept.journal(job, lambda: job.asked("radius")) as journal, file as rows:
        interrupted = kept.fill(job, journal, "radius", Budget(time_limit))
        done = DoneRadii.read(job, journal)
        if rows is not None:
            for row in done.rows():
                rows.write(row)
    Console().print(summary(done))
    if certificates is not None and not interrupted:
        typer.echo(certify_radii(network, model, points.x, done.found, domain, certificates))
    kept.end(interrupted=interrupted, holds="what was reached until then, all of it proved")
