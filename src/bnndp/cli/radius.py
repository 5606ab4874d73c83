"""``bnndp radius``: how far each input may be moved before the decision changes, one JSON object per line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnndp.cli import parameters as p
from bnndp.cli.certificates import Certificates, certificate_folder, expect_checkable


def _positive(value: float) -> float:
    if not p.finite(value) or value < 0:
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
    model: p.Model,
    inputs: p.Labelled = None,
    data: p.Dataset = None,
    split: p.Split = "test",
    data_dir: p.DataFolder = None,
    limit: p.Limit = None,
    fold: p.Fold = 0,
    norm: p.Norm = "inf",
    domain: p.Domain = None,
    upper: Annotated[float, typer.Option(callback=_positive, help="The largest radius tried.")] = 1.0,
    eps: Annotated[float | None, typer.Option(callback=_no_radius, hidden=True)] = None,  # noqa: ARG001
    tolerance: p.RelativeTolerance = 0.01,
    method: p.Method = None,
    effort: p.EffortLevel = "low",
    refine: p.Refine = None,
    optimise: p.Optimise = None,
    branch: p.Branch = None,
    time_limit: p.TimeLimit = None,
    attack: p.Attacked = True,
    seed: p.Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Where the radii go: one JSON object per line; - is stdout.")] = None,
    run: p.Run = None,
    certificates: Certificates = None,
    device: p.Device = "cpu",
    engine: p.EngineName = "local",
    address: p.Address = None,
    require_certified: Annotated[
        float | None, p.required("less than this share of all inputs has a certified radius (0 counts).")
    ] = None,
    json: p.Json = False,
    quiet: p.Quiet = False,
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
    reached until then are written: all of them are proved. Inputs that were not reached in time have none, and the exit
    status is 130. With --run they are kept as they are found, and nothing that was done is done again, even if the
    process is killed; docs/runs.md says how. With --certificates the decision on a ball, as large as bnndp-check proves
    it, is written for every input as a file of its own.
    """
    from bnndp.cli.certificates import Issuing
    from bnndp.cli.inputs import Source, load_classifier, read_inputs
    from bnndp.cli.messages import Messages
    from bnndp.cli.output import STDOUT
    from bnndp.cli.radii import RadiusJob
    from bnndp.cli.run import Run
    from bnndp.cli.summary import RadiusSummary
    from bnndp.options import Options
    from bnndp.questions.radius import Search
    from bnndp.runs.work import work

    messages = Messages(json, quiet, rows=out == STDOUT)
    task = Run.of(context, run, out, messages, time_limit)
    computing, folder = p.device_of(device, engine, address), certificate_folder(certificates, run)
    expect_checkable(folder, norm)
    model_file = load_classifier(model, messages)
    network, source = model_file.posterior, Source(inputs, data, split, data_dir, limit, fold)
    read = read_inputs(source, network, messages).within(domain)
    chosen = p.given(method=method, refine=refine, optimise=optimise, branch=branch)
    search = Search(float(norm), upper, tolerance, attack, seed=seed)
    asked = ("radius", network.to(computing), Options.of(effort, **chosen), read.label, str(source))
    job = RadiusJob(*asked, read.x.to(computing), domain, search)
    summary = RadiusSummary(upper, labelled=read.label is not None)
    with task.opened(job, (model, model_file), read, (engine, address)) as (journal, write, workers):
        interrupted = work(job, journal, messages.progress, task.schedule, workers)
        end = task.write(job, journal, summary, write, interrupted=interrupted)
    values = summary.values()
    messages.table(summary.table())
    if folder is not None and end.why is None:
        values |= Issuing(network, model, folder, messages, task.schedule.at).of_radii(
            read.x, summary.evaluation, domain
        )
    task.conclude(job, end, values, "the results so far, all of them proved", require_certified)
