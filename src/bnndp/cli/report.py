"""``bnndp report``: a run folder as one HTML page that can be sent, opened without a network, and printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by --run (docs/runs.md).")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes; report.html in the run folder by default.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The file of the network, for pictures, if it is not where the run says.")
    ] = None,
    plots: Annotated[
        bool,
        typer.Option(
            "--plots/--no-plots", help="Also write the charts as SVG files, in the folder plots beside the page."
        ),
    ] = True,
) -> None:
    """Write what a run proved, and what it did not, as one page: in words, as charts, and as a table of all inputs.

    The page is self-contained. It shows what the folder has, even if the run is still in progress or was stopped.
    What is certified is rounded to the safe side. Its charts are also written as files, for a paper or a slide.
    """
    from bnndp.errors import InputError
    from bnndp.files.posterior import write_whole
    from bnndp.report.page.page import report_of
    from bnndp.report.page.plots import expect_plots, write_plots
    from bnndp.runs.folder import OWN

    if not run.is_dir():
        raise InputError(f"{run}: there is no such folder; give the one of --run.")
    place = run / "report.html" if out is None else out
    if any(place.resolve() == (run / name).resolve() for name in OWN):
        raise InputError(f"{place}: is a file of the run and would be lost; change --out.")
    if model is not None and place.resolve() == model.resolve():
        raise InputError(f"{place}: is the model and would be overwritten; change --out.")
    if not place.parent.is_dir():
        raise InputError(f"{place}: the folder {place.parent} does not exist; make it or change --out.")
    found, folder = report_of(run, model, files=plots), place.parent / "plots"
    page = found.page.encode("utf-8", "replace")
    if plots:
        expect_plots(folder, found.plots)
    write_whole(place, page)
    typer.echo(f"{place}: {len(page) / 1000:,.0f} kB")
    if plots:
        names = ", ".join(path.name for path in write_plots(folder, found.plots))
        typer.echo(f"{folder}: {names}")
