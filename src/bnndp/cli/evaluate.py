"""``bnndp evaluate``: robust accuracy over a test set, as a table, a picture and a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from bnndp.cli import parameters as p


class SeveralRadii(typer.core.TyperCommand):
    """A command whose --eps takes all numbers that follow: ``--eps 0.01 0.02`` is ``--eps 0.01 --eps 0.02``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each number."""
        plain: list[str] = []
        for word in args:
            after = plain[-2:-1] == ["--eps"] or (bool(plain) and plain[-1].startswith("--eps="))
            plain += ["--eps", word] if after and _is_number(word) else [word]
        return super().parse_args(ctx, plain)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _radii(values: Any) -> Any:  # list[float]: of that annotation typer asks issubclass(), an error in Python 3.10
    for value in values:
        if not (value >= 0 and p.finite(value) is not None):
            raise typer.BadParameter(f"{value} is not a radius; radii are numbers from 0 upward.")
    return values


def evaluate(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: p.Model,
    eps: Annotated[list[float], typer.Option(callback=_radii, metavar="E ...", help="The radii.", show_default=False)],
    inputs: p.Labelled = None,
    data: p.Dataset = None,
    split: p.Split = "test",
    data_dir: p.DataFolder = None,
    limit: p.Limit = None,
    fold: p.Fold = 0,
    norm: p.Norm = "inf",
    domain: p.Domain = None,
    tolerance: p.RelativeTolerance = 0.01,
    method: p.Method = None,
    effort: p.EffortLevel = "low",
    refine: p.Refine = None,
    optimise: p.Optimise = None,
    branch: p.Branch = None,
    time_limit: p.TimeLimit = None,
    attack: p.Attacked = True,
    seed: p.Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where the figures go: one JSON object per radius; - is stdout.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where the picture goes (.png, .svg or .pdf).")] = None,
    run: p.Run = None,
    device: p.Device = "cpu",
    engine: p.EngineName = "local",
    address: p.Address = None,
    require_certified: Annotated[
        float | None, p.required("the certified accuracy at the largest radius is less: a share of all inputs.")
    ] = None,
    json: p.Json = False,
    quiet: p.Quiet = False,
) -> None:
    """Count the inputs of a test set that a classifier gets right, however they are moved within each radius.

    Certified accuracy: the decision is proved to be the label on the whole ball. Attacked accuracy: it is the label at
    the input, by sampling, and no attack changed it. The truth lies between. Each line of --out has the keys eps,
    points, accuracy, certified, attacked, effort: shares of the inputs, attacked null with --no-attack, and the last
    level of effort that was completed for all inputs. Radii are searched once per input, to --tolerance: certified
    accuracy may be too low by the inputs within that of a radius, never too high.

    All inputs are searched by one pass first, and attacked. When the time is over, or on Ctrl-C, after that, the
    figures reached until then are given. Inputs that were not reached in time count as neither right nor certified, and
    the exit status is 130. With --run the radii are kept as they are found, and nothing that was done is done again,
    even if the process is killed; docs/runs.md says how.
    """
    from bnndp.cli.inputs import Source, load_classifier, read_inputs
    from bnndp.cli.messages import Messages
    from bnndp.cli.output import STDOUT
    from bnndp.cli.radii import RadiusJob
    from bnndp.cli.run import Run
    from bnndp.cli.summary import RadiusSummary
    from bnndp.errors import InputError
    from bnndp.options import Options
    from bnndp.questions.radius import Search
    from bnndp.report.curve import curve_rows, curve_table, draw_curve
    from bnndp.report.figure import expect_picture
    from bnndp.runs.work import work

    messages = Messages(json, quiet, rows=out == STDOUT)
    task = Run.of(context, run, out, messages, time_limit)
    computing = p.device_of(device, engine, address)
    model_file = load_classifier(model, messages)
    network, source = model_file.posterior, Source(inputs, data, split, data_dir, limit, fold)
    read = read_inputs(source, network, messages).within(domain)
    if read.label is None:
        raise InputError(
            f"{source}: needs an array y of labels beside x, or a column label of a .csv, to compare with."
        )
    if plot is not None:
        expect_picture(plot)
    # A little further than the last radius: what an attack finds on its surface is then seen to lie within.
    search = Search(float(norm), max(eps) * (1 + tolerance) or 1.0, tolerance, attack, seed=seed)
    chosen = p.given(method=method, refine=refine, optimise=optimise, branch=branch)
    asked = ("evaluate", network.to(computing), Options.of(effort, **chosen), read.label, str(source))
    job = RadiusJob(*asked, read.x.to(computing), domain, search, sorted(set(eps)))
    summary = RadiusSummary(search.upper)
    with task.opened(job, (model, model_file), read, (engine, address)) as (journal, write, workers):
        interrupted = work(job, journal, messages.progress, task.schedule, workers)
        end = task.write(job, journal, summary, None, interrupted=interrupted)
        curve = summary.evaluation.curve(job.eps)
        lines = [row | {"effort": summary.level} for row in curve_rows(curve)]
        if write is not None:
            for line in lines:
                write(line)
    messages.table(curve_table(curve))
    if plot is not None:
        draw_curve(summary.evaluation, curve.eps, plot)
    values = summary.curve_values(lines)
    task.conclude(job, end, values, "the results so far, all of them proved", require_certified)
