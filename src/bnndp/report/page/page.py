"""The page of a run folder: its sections, in the order in which their questions are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnndp.network import Posterior
from bnndp.report.page.document import asset, document, page_style, section
from bnndp.report.page.explanations import default_radius, meaning, not_promised
from bnndp.report.page.input_table import table_markup, table_of
from bnndp.report.page.interval_charts import has_mean, interval_sections
from bnndp.report.page.markup import Markup, tag
from bnndp.report.page.network_curves import model_of
from bnndp.report.page.outcome import Intervals, Outcome, Radii, outcome_of
from bnndp.report.page.plots import Plot
from bnndp.report.page.provenance import provenance
from bnndp.report.page.radii_charts import radii_sections, radius_end
from bnndp.report.page.record import Record, read_record
from bnndp.report.page.summary import summary
from bnndp.report.page.worst_cases import case_cards, case_description


@dataclass(frozen=True, slots=True)
class Report:
    """A page, and its charts as they can stand alone."""

    page: str
    plots: Sequence[Plot]


def report_of(folder: Path, model: Path | None = None, *, files: bool = False) -> Report:
    """Read a run folder and make its page and plots.

    ``model`` is the file of its network, if it is not where the run says. With ``files`` the page says that the plots
    lie beside it.
    """
    record = read_record(folder)
    outcome = outcome_of(record)
    eps = default_radius(record, outcome) if isinstance(outcome, Radii) else None
    end = radius_end(record, outcome) if isinstance(outcome, Radii) else None
    network = _drawable(record, outcome, model)
    if isinstance(outcome, Radii):
        sections, plots = radii_sections(record, outcome)
    else:
        sections, plots = interval_sections(record, outcome, network)
    body = (
        _header(record),
        tag(
            "main",
            summary(record, outcome, eps, end),
            sections,
            section("worst", "Worst cases", tag("p", case_description(outcome)), case_cards(record, outcome, network)),
            section("inputs", "All inputs", table_markup(table_of(record, outcome, eps), eps, end)),
            section("meaning", "What is certified", meaning(record, outcome)),
            section("limits", "What is not", not_promised(outcome)),
            section("provenance", "Provenance", provenance(record, [plot.name for plot in plots] if files else [])),
            id="main",
        ),
    )
    page = document(f"bnndp: {_name(record)}", body, style=page_style(), script=asset("page.js"))
    return Report(page, plots)


def _name(record: Record) -> str:
    data, model = record.lookup("inputs", "dataset"), record.lookup("model", "path")
    named = [Path(str(model)).stem] if model else []
    return " on ".join([*named, str(data)] if data else named) or record.folder.resolve().name


def _header(record: Record) -> Markup:
    what = {"certify": "Certified bounds", "radius": "Certified radii", "evaluate": "Robust accuracy"}[record.command]
    return tag(
        "header",
        tag("a", "To the content", href="#main", class_="skip"),
        tag("div", tag("p", f"bnndp {record.command}", class_="kicker"), tag("h1", what), tag("p", _name(record))),
        tag("button", "Dark", id="theme", type="button", hidden=True),
        class_="top",
    )


def _drawable(record: Record, outcome: Outcome, model: Path | None) -> Posterior | None:
    """The network, where a picture of it can be drawn: of one input and one output, and of its mean."""
    inputs = record.inputs
    one = (
        isinstance(outcome, Intervals) and outcome.lower.shape[1] == 1 and inputs is not None and inputs.x.shape[1] == 1
    )
    drawable = one and has_mean(record)
    if model is None and not drawable:
        return None
    network = model_of(record, model)
    return network if drawable else None
