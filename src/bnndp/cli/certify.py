"""``bnndp certify``: bounds for every input of a file or a data set, one JSON object per line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bnndp.cli import parameters as p
from bnndp.cli.certificates import Certificates, certificate_folder, expect_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bnndp.network import Posterior


def certify(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: p.Model,
    inputs: Annotated[
        Path | None,
        typer.Argument(
            metavar="INPUTS",
            help="A .npz with x (n, inputs), or lower and upper, and labels y; a .npy of x; or a .csv of rows x, with "
            "labels in a column label.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"A data set in place of INPUTS: {', '.join(p.CLASSES + p.TARGETS)}."),
    ] = None,
    split: p.Split = "test",
    data_dir: p.DataFolder = None,
    limit: p.Limit = None,
    fold: p.Fold = 0,
    vnnlib: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="In place of INPUTS: a box of inputs in VNN-LIB; may be given several times."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the bounds go: one JSON object per line; - is stdout.")
    ] = None,
    run: p.Run = None,
    certificates: Certificates = None,
    eps: Annotated[
        float | None, typer.Option(min=0, callback=p.finite, help="Radius of the ball around every row of x.")
    ] = None,
    norm: p.Norm = "inf",
    domain: p.Domain = None,
    method: p.Method = None,
    effort: p.EffortLevel = "low",
    refine: p.Refine = None,
    tolerance: Annotated[
        float, typer.Option(min=0, callback=p.finite, help="Stop splitting a box when less than this can be gained.")
    ] = 0.0,
    time_limit: p.TimeLimit = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Find the range from inside too: about a second per box for 2x64.")
    ] = False,
    seed: p.Seed = 0,
    optimise: p.Optimise = None,
    branch: p.Branch = None,
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
    device: p.Device = "cpu",
    engine: p.EngineName = "local",
    address: p.Address = None,
    vnncomp_csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts as VNN-COMP does: unsat, sat or unknown.")
    ] = None,
    require_certified: Annotated[
        float | None, p.required("the verdict is certified for less than this share of all boxes; needs labels.")
    ] = None,
    json: p.Json = False,
    quiet: p.Quiet = False,
) -> None:
    """Bound the mean output over each box: lower <= E f(x) <= upper for all its x, over the whole posterior.

    For a classifier the bounds are those of its expected softmax, one for each class. With --quantity variance they are
    those of the variance of the outputs, with --between A B those of the probability that an output lies in [A, B], and
    with --quantity noise those of E exp(output), the variance of the data where an output is its logarithm.

    Each line of the output has the keys index, lower, upper, width, inside_lower, inside_upper, method, effort,
    seconds: numbers for a network with one output, lists for several. The inside_* are the extremes that the attack
    found, null without --attack; method is the one that gave the interval (with --method best: moment, partition or
    both); effort is the last level that was completed for this box; seconds is the time of the certification, without
    the attack, shared out over its chunk. If a classifier is given labels (those of INPUTS or --data, or --label) the
    keys label, verdict, lead, rival, witness follow: certified, with a lower bound of the lead of the label over every
    other class on the whole box (one that is enough, not the best); falsified, with the class that is ahead at the
    witness; or undecided.

    All boxes get one pass first. When the time is over, or on Ctrl-C, after that, the bounds reached until then are
    written: all of them hold. Boxes that one pass did not reach in time have no bounds, and the exit status is 130.
    With --run they are kept as they are found, and nothing that was done is done again, even if the process is killed;
    docs/runs.md says how. With --certificates what bnndp-check proves of each box is written too, as files of their
    own: a little less than the bounds, by fewer inequalities.
    """
    from bnndp.cli.boxes import BoxJob
    from bnndp.cli.certificates import Issuing
    from bnndp.cli.inputs import Neighbourhood, Source, load_model, read_inputs
    from bnndp.cli.messages import Messages
    from bnndp.cli.output import STDOUT, write_verdicts
    from bnndp.cli.run import Run
    from bnndp.cli.summary import BoxSummary
    from bnndp.options import Options
    from bnndp.questions.interval_probability import Between
    from bnndp.runs.work import work

    _expect_one_source(inputs, data, vnnlib, limit, data_dir)
    messages = Messages(json, quiet, rows=out == STDOUT)
    task = Run.of(context, run, out, messages, time_limit, shared=run is None)
    computing, folder = p.device_of(device, engine, address), certificate_folder(certificates, run)
    model_file = load_model(model, messages)
    network, around = model_file.posterior, Neighbourhood(eps, float(norm), domain)
    source = Source(inputs, data, split, data_dir, limit, fold, tuple(vnnlib or ()))
    read = read_inputs(source, network, messages, boxes=True).asked_about(label, network)
    box = read.box(around)
    other = _checked(network, quantity, between, attack=attack)
    _expect_verdicts(read.label is not None, vnncomp_csv, require_certified, task.files(model, read))
    expect_checkable(folder, norm, other)
    chosen = p.given(method=method, refine=refine, optimise=optimise, branch=branch)
    options, wanted = Options.of(effort, **chosen, tolerance=tolerance), None if between is None else Between(*between)
    asked = ("certify", network.to(computing), options, read.label, str(source), box.to(computing))
    job = BoxJob(*asked, around=around, attack=attack, seed=seed, bounded=quantity, between=wanted)
    summary = BoxSummary()
    with task.opened(job, (model, model_file), read, (engine, address)) as (journal, write, workers):
        interrupted = work(job, journal, messages.progress, task.schedule, workers)
        end = task.write(job, journal, summary, write, interrupted=interrupted)
        if vnncomp_csv is not None:
            write_verdicts(vnncomp_csv, model, source.names(job.points), (row for row, *_ in job.rows(journal)))
    values = summary.values()
    messages.table(summary.table())
    if folder is not None and end.why is None:
        values |= Issuing(network, model, folder, messages, task.schedule.at).of_boxes(box, read.label, effort)
    task.conclude(job, end, values, "the bounds found so far, all of which hold", require_certified)


def _expect_one_source(
    inputs: Path | None, data: str | None, vnnlib: Sequence[Path] | None, limit: int | None, folder: Path | None
) -> None:
    """Refuse none and several of INPUTS, --data and --vnnlib, and what does not go with the last."""
    if (inputs is not None) + (data is not None) + bool(vnnlib) != 1:
        raise typer.BadParameter(
            "give either the file INPUTS, a data set by --data NAME or --vnnlib FILE, one of them."
        )
    for name, value in (("--limit", limit), ("--data-dir", folder)):
        if vnnlib and value is not None:
            raise typer.BadParameter(f"{name} goes with INPUTS or --data; leave it out with --vnnlib.")


def _checked(network: Posterior, quantity: str, between: tuple[float, float] | None, *, attack: bool) -> str | None:
    """The option by which another quantity than the mean is asked for; refused where it does not fit."""
    other = f"--quantity {quantity}" if quantity != "mean" else "--between" if between is not None else None
    if attack and network.task == "classification":
        raise typer.BadParameter("the range from inside is for regression; give labels, or use bnndp radius.")
    if other is not None and network.task == "classification":
        raise typer.BadParameter(f"{other} is for regression; a classifier has bounds of its expected softmax.")
    if other is not None and attack:
        raise typer.BadParameter(f"the range from inside is that of the mean; leave out --attack or {other}.")
    if quantity != "mean" and between is not None:
        raise typer.BadParameter(f"give either --quantity {quantity} or --between, not both.")
    return other


def _expect_verdicts(there: bool, vnncomp_csv: Path | None, required: float | None, keep: Sequence[Path]) -> None:
    """Refuse options about verdicts where there are none, and a file for them that is one of ``keep``."""
    from bnndp.cli.output import expect_other

    for name, value in (("--vnncomp-csv", vnncomp_csv), ("--require-certified", required)):
        if value is not None and not there:
            raise typer.BadParameter(f"{name} is about verdicts: it needs a classifier, and labels or --label.")
    if vnncomp_csv is not None:
        expect_other(vnncomp_csv, keep, "--vnncomp-csv")
