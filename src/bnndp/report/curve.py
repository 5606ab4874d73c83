"""Robust accuracy as a table and as a picture: what is proved, and what an attack leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bnndp.questions.evaluate import Curve, Evaluation
from bnndp.report.figure import expect_picture, new_figure, save_figure
from bnndp.report.page.scales import percent

_STEPS = 400  # of the curves


def curve_table(curve: Curve) -> Table:
    """One line per radius; certified accuracy is rounded down and attacked accuracy up, so the printed values hold."""
    title = f"{curve.points} inputs, accuracy {100 * curve.accuracy:.1f} %"
    table = Table("eps", "certified accuracy", title=title)
    if curve.attacked is not None:
        table.add_column("attacked accuracy")
    for eps, proved, left in _lines(curve):
        attacked = [] if left is None else [percent(left, curve.points, up=True)]
        table.add_row(f"{eps:g}", percent(proved, curve.points), *attacked)
    return table


def curve_rows(curve: Curve) -> list[dict[str, object]]:
    """The curve for a file: one record a radius, shares of the inputs, null where nothing was attacked."""
    n = curve.points
    first: dict[str, object] = {"points": n, "accuracy": curve.accuracy}
    return [
        {"eps": eps} | first | {"certified": proved / n, "attacked": None if left is None else left / n}
        for eps, proved, left in _lines(curve)
    ]


def _lines(curve: Curve) -> list[tuple[float, int, int | None]]:
    """Radius, certified and attacked, one after the other."""
    attacked = (None,) * len(curve.eps) if curve.attacked is None else curve.attacked
    return list(zip(curve.eps, curve.certified, attacked, strict=True))


def draw_curve(evaluation: Evaluation, eps: Sequence[float], path: Path) -> None:
    """Write the picture of accuracy against radius, up to the largest of ``eps``, to ``path``."""
    expect_picture(path)
    figure = new_figure(7, 4.5)
    (axes,) = figure.subplots(1, 1, squeeze=False)[0]
    fine = evaluation.curve([max(eps) * step / _STEPS for step in range(_STEPS + 1)])
    marks = evaluation.curve(eps)
    axes.axhline(100 * fine.accuracy, color="0.6", linewidth=1, linestyle="--", label="accuracy at the input")
    for name, colour, where in (("attacked", "C3", "post"), ("certified", "C0", "pre")):  # each to its safe side
        line, dots = ([100 * n / fine.points for n in getattr(curve, name) or ()] for curve in (fine, marks))
        if line:
            axes.step(fine.eps, line, where=where, color=colour, label=f"{name} accuracy")
            axes.plot(marks.eps, dots, "o", color=colour, markersize=4)
    axes.set(xlabel="radius eps", ylabel="inputs that keep their label [%]", ylim=(-2, 102))
    axes.legend(fontsize="small")
    save_figure(figure, path)
