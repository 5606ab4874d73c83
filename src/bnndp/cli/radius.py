"""``bnndp radius``: how far each input may be moved before the decision changes, one JSON object a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    model: Model,
    out: Annotated[Path, typer.Option(help="Where the radii go: one JSON object a line.", show_default=False)],
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
) -> None:
    """Find the largest radius for which the decision of a classifier provably stays the label, for every input.

    The label is that of y; without y (a .csv has none) it is the network's own decision. Each line of the output has
    the keys index, label, radius, attack_radius, ratio, effort, seconds. The decision is proved to be the label on the
    ball of that radius; null: not even at the input. The attack found another decision within attack_radius; 0: at the
    input itself, null: nowhere up to --upper, or not searched. ratio is the first over the second; effort the last
    level that was completed for this input; seconds the time, with the attack, shared out over the batch. The table
    counts a null radius of a correctly classified input as 0.

    All inputs are searched by one pass first, and attacked. When the time is over, or on Ctrl-C, after that, the radii
    reached until then are written: all of them are proved.
    """
    import time

    from rich.console import Console

    from bnndp.cli.inputs import load_classifier
    from bnndp.cli.labelled import Source, read_points
    from bnndp.cli.radii import RadiusJob, run, summary
    from bnndp.cli.rows import RowFile
    from bnndp.options import Options
    from bnndp.radius import Search

    network = load_classifier(model)
    points = read_points(Source(inputs, data, split, data_dir, limit, fold), network, domain)
    search = Search(norm=float(norm), upper=upper, tolerance=tolerance, attack=attack)
    chosen = given(method=method, refine=refine, optimise=optimise, branch=branch)
    job = RadiusJob(network, points, domain, search, Options.of(effort, **chosen, time_limit=time_limit))
    begin = time.perf_counter()
    with RowFile(out, keep=(model,) if inputs is None else (model, inputs)) as rows:
        done = run(job, rows)
    Console().print(summary(done.found, time.perf_counter() - begin))
    done.expect_whole(out)
