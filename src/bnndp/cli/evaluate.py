"""``bnndp evaluate``: robust accuracy over a test set, as a table, a picture and a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

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

__all__ = ["SeveralRadii", "evaluate"]


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
        if not (value >= 0 and finite(value) is not None):
            raise typer.BadParameter(f"{value} is not a radius; radii are numbers from 0 upward.")
    return values


def evaluate(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    model: Model,
    eps: Annotated[list[float], typer.Option(callback=_radii, metavar="E ...", help="The radii.", show_default=False)],
    inputs: Labelled = None,
    data: Dataset = None,
    split: Split = "test",
    data_dir: DataFolder = None,
    limit: Limit = None,
    fold: Fold = 0,
    norm: Norm = "inf",
    domain: Domain = None,
    tolerance: RelativeTolerance = 0.01,
    method: Method = None,
    effort: EffortLevel = "low",
    refine: Refine = None,
    optimise: Optimise = None,
    branch: Branch = None,
    time_limit: TimeLimit = None,
    attack: Attacked = True,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where the figures go: one JSON object a radius; - is stdout.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where the picture goes (.png, .svg or .pdf).")] = None,
    run: Run = None,
    device: Device = "cpu",
    engine: EngineName = "local",
    address: Address = None,
    require_certified: Annotated[
        float | None,
        typer.Option(
            callback=share,
            metavar="SHARE",
            help="Exit with status 3 if the certified accuracy at the largest radius is less: a share of all inputs.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Count the inputs of a test set that a classifier gets right, however they are moved within each radius.

    Certified accuracy: the decision is proved to be the label on the whole ball. Attacked accuracy: it is the label at
    the input, by sampling, and no attack changed it. The truth lies between. Each line of --out has the keys eps,
    points, accuracy, certified, attacked, effort: shares of the inputs, attacked null with --no-attack, and the last
    level of effort that was completed for all inputs. Radii are searched once an input, to --tolerance: certified
    accuracy may be too low by the inputs within that of a radius, never too high.

    All inputs are searched by one pass first, and attacked. When the time is over, or on Ctrl-C, after that, the
    figures reached until then are given. With --run the radii are kept as they are found, and nothing that was done is
    done again, even if the process is killed; docs/runs.md says how.
    """
    from bnndp.cli.inputs import load_classifier
    from bnndp.cli.kept import Kept
    from bnndp.cli.labelled import Source, read_points
    from bnndp.cli.origin import Origin
    from bnndp.cli.radii import DoneRadii, RadiusJob, curve_summary
    from bnndp.cli.rows import open_rows
    from bnndp.errors import InputError
    from bnndp.options import Options
    from bnndp.questions.radius import Search
    from bnndp.report.curve import curve_rows, curve_table, draw_curve, expect_picture
    from bnndp.runs.work import Budget

    kept = Kept.begin(context, run, out, json=json, quiet=quiet).by(Chosen.of(engine, address, device))
    computing = device_of(device)
    model_file = load_classifier(model, kept.manner)
    network, source = model_file.posterior, Source(inputs, data, split, data_dir, limit, fold)
    points = read_points(source, network, domain, kept.manner)
    if points.label is None:
        raise InputError(
            f"{points.source}: needs an array y of labels beside x, or a column label of a .csv, to compare with."
        )
    if plot is not None:
        expect_picture(plot)
    # A little further than the last radius: what an attack finds on its surface is then seen to lie within.
    search = Search(float(norm), max(eps) * (1 + tolerance) or 1.0, tolerance, attack, seed=seed)
    chosen = given(method=method, refine=refine, optimise=optimise, branch=branch)
    options = Options.of(effort, **chosen, time_limit=time_limit)
    job = RadiusJob(network.to(computing), points, domain, search, options, computing)
    radii = sorted(set(eps))
    question = {"quantity": "decision", "norm": norm, "eps": radii, "upper": search.upper, "domain": domain}
    question |= {"attack": attack, "seed": seed}
    origin = Origin(kept.remarks, model, model_file, source.given(points), computing, question)
    keep = (model, *kept.files) if inputs is None else (model, inputs, *kept.files)
    with kept.journal(job, lambda: job.asked("evaluate"), origin) as journal, open_rows(out, keep=keep) as rows:
        end = kept.fill(job, journal, "radius", Budget(time_limit))
        done = DoneRadii.read(job, journal)
        curve = done.found.curve(radii)
        lines = [row | {"effort": done.level} for row in curve_rows(curve)]
        if rows is not None:
            for row in lines:
                rows.write(row)
        with kept.exports() as exports:
            if exports is not None:
                done.export(journal, exports)
    kept.written()
    kept.manner.table(curve_table(curve))
    if plot is not None:
        draw_curve(done.found, curve.eps, plot)
    found = curve_summary(done, end, lines)
    kept.conclude(end, "what was reached until then, all of it proved", found, require_certified)
