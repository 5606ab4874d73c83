"""``bnndp certify``: bounds for every input of a file, one JSON object a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bnndp.cli.certificates import Certificates, certify_boxes, expect_checkable
from bnndp.cli.parameters import (
    Branch,
    Domain,
    EffortLevel,
    Method,
    Model,
    Norm,
    Optimise,
    Refine,
    Run,
    TimeLimit,
    finite,
    given,
)

__all__ = ["certify"]


def certify(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: Model,
    inputs: Annotated[
        Path,
        typer.Argument(metavar="INPUTS", help="A .npz with x (n, inputs) or lower and upper; or a .csv of rows x."),
    ],
    out: Annotated[Path | None, typer.Option(help="Where the bounds go: one JSON object a line.")] = None,
    run: Run = None,
    certificates: Certificates = None,
    eps: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="Radius of the ball around every row of x.")
    ] = None,
    norm: Norm = "inf",
    domain: Domain = None,
    method: Method = None,
    effort: EffortLevel = "low",
    refine: Refine = None,
    tolerance: Annotated[
        float, typer.Option(min=0, callback=finite, help="Stop splitting a box when less than this can be won.")
    ] = 0.0,
    time_limit: TimeLimit = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Find the range from inside too: about a second a box for 2x64.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the attack.")] = 0,
    optimise: Optimise = None,
    branch: Branch = None,
    label: Annotated[
        int | None, typer.Option(min=0, help="The decision of a classifier in question, for all inputs without y.")
    ] = None,
    quantity: Annotated[
        Literal["mean", "variance", "noise"],
        typer.Option(help="What to bound of a regression network: its mean, its variance, or E exp of its outputs."),
    ] = "mean",
    between: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="A B", help="Bound the probability that the outputs lie in [A, B]; inf is allowed."),
    ] = None,
) -> None:
    """Bound the mean output over each box: lower <= E f(x) <= upper for all its x, over the whole posterior.

    For a classifier the bounds are those of its expected softmax, one for each class. With --quantity variance they are
    those of the variance of the outputs, with --between A B those of the probability that an output lies in [A, B], and
    with --quantity noise those of E exp(output), the variance of the data where an output is its logarithm.

    Each line of the output has the keys index, lower, upper, width, inside_lower, inside_upper, method, effort,
    seconds: numbers for a network with one output, lists for several. The inside_* are the extremes that the attack
    found, null without --attack; method is the one that gave the interval (with --method best: moment, partition or
    both); effort is the last level that was completed for this box; seconds is the time of the certification, without
    the attack, shared out over its chunk. If a classifier is given labels (y in the .npz, or --label) the keys label,
    verdict, lead, rival, witness follow: certified, with the least lead of the label over every other class on the
    whole box; falsified, with the class that is ahead at the witness; or undecided.

    All boxes get one pass first. When the time is over, or on Ctrl-C, after that, the bounds reached until then are
    written: all of them hold. With --run they are kept as they are found, and nothing that was done is done again, even
    if the process is killed; docs/runs.md says how. With --certificates what bnndp-check proves of each box is written
    too, as files of their own: a little less than the bounds, by fewer inequalities.
    """
    from rich.console import Console

    from bnndp.cli.inputs import Neighbourhood, load_network, read_boxes
    from bnndp.cli.job import Job, written
    from bnndp.cli.kept import Kept
    from bnndp.cli.labelled import labels_in_question
    from bnndp.cli.rows import RowFile, no_file
    from bnndp.cli.stopped import Remarks
    from bnndp.options import Options
    from bnndp.quantities import Between
    from bnndp.runs.work import Budget

    kept = Kept(run, out, context.find_object(Remarks))
    kept.expect_place()
    network = load_network(model)
    around = Neighbourhood(eps, float(norm), domain)
    box = read_boxes(inputs, network.n_in, around)
    labels = labels_in_question(inputs, network, box.batch, label)
    if attack and network.task == "classification":
        raise typer.BadParameter("the range from inside is for regression; give labels, or use bnndp radius.")
    wanted = None if between is None else Between(*between)
    other = f"--quantity {quantity}" if quantity != "mean" else "--between" if between is not None else None
    if other is not None and network.task == "classification":
        raise typer.BadParameter(f"{other} is for regression; a classifier has bounds of its expected softmax.")
    if other is not None and attack:
        raise typer.BadParameter(f"the range from inside is that of the mean; leave out --attack or {other}.")
    if quantity != "mean" and between is not None:
        raise typer.BadParameter(f"give either --quantity {quantity} or --between, not both.")
    expect_checkable(certificates, norm, other)
    chosen = given(method=method, refine=refine, optimise=optimise, branch=branch)
    options = Options.of(effort, **chosen, tolerance=tolerance, time_limit=time_limit)
    job = Job(network, box, options, attack, seed, labels, quantity, wanted, inputs)
    file = no_file() if out is None else RowFile(out, keep=(model, inputs, *kept.files))
    with kept.journal(job, lambda: job.asked(around)) as journal, file as rows:
        interrupted = kept.fill(job, journal, "certify", Budget(time_limit, shared=run is None))
        summary = written(job, journal, rows)
    Console().print(summary)
    if certificates is not None and not interrupted:
        typer.echo(certify_boxes(network, model, box, labels, certificates, effort))
    kept.end(interrupted=interrupted, holds="the bounds that were reached until then, all of which hold")
