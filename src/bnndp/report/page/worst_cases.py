"""The inputs that matter most: those that break first or are known least, each with a picture where it can have one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bnndp.network import Posterior
from bnndp.questions.verdict import Verdict
from bnndp.report.page.charts import distance_chart
from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.network_curves import affine_bounds, distances
from bnndp.report.page.outcome import Intervals, Outcome, Radii
from bnndp.report.page.pixels import image_shape, input_images
from bnndp.report.page.record import Inputs, Record
from bnndp.report.page.scales import at_least, at_most, short

_CASES = 6
_LISTED = 8  # numbers of an input that are written out


def worst_cases(outcome: Outcome) -> list[int]:
    """Positions in the columns: of decisions the first to break, then the least certain; of intervals the widest."""
    if isinstance(outcome, Radii):
        broken = outcome.correct & np.isfinite(outcome.attack) & (outcome.attack > 0)
        least = np.where(broken, outcome.attack, np.inf)
        order = np.lexsort((np.nan_to_num(outcome.radius), least))
        order = order[(broken if outcome.attacked else outcome.correct)[order]]
    elif outcome.claims is not None:
        rank = [(v is Verdict.CERTIFIED) - (v is Verdict.FALSIFIED) for v in outcome.claims.verdict]  # the worst first
        order = np.lexsort((outcome.claims.lead, np.array(rank)))
    else:
        order = np.argsort(-outcome.width, kind="stable")
    return order[:_CASES].tolist()


def case_description(outcome: Outcome) -> str:
    """What the cases have in common."""
    if isinstance(outcome, Radii):
        return (
            "The correctly decided inputs whose decision an attack changes at the smallest radius."
            if outcome.attacked
            else "The correctly decided inputs with the smallest proved radius."
        )
    if outcome.claims is not None:
        return "Falsified decisions first, then undecided ones, then those with the smallest proved lead."
    return (
        "The boxes with the widest certified intervals. Where there is a picture, it shows affine bounds less the mean."
    )


def case_cards(record: Record, outcome: Outcome, network: Posterior | None) -> Markup:
    """A card for each of the worst cases."""
    found = worst_cases(outcome)
    if not found:
        return tag("p", "There is none.")
    return tag("div", (_card(record, outcome, at, network) for at in found), class_="cards")


def _card(record: Record, outcome: Outcome, at: int, network: Posterior | None) -> Markup:
    index = record.index[at]
    facts = _radius_facts(outcome, at) if isinstance(outcome, Radii) else _interval_facts(outcome, at)
    witness = record.witnesses.get(index)
    return tag(
        "article",
        tag("h3", f"Input {index}"),
        _picture(record, record.index[at], network),
        tag("dl", ((tag("dt", name), tag("dd", value)) for name, value in facts), class_="facts"),
        tag("p", f"At the witness class {witness.rival} is ahead.", class_="small") if witness is not None else None,
        class_="card",
    )


def _radius_facts(outcome: Radii, at: int) -> Iterator[tuple[str, Child]]:
    yield "label", int(outcome.label[at])
    proved = at_least(float(outcome.radius[at])) if not np.isnan(outcome.radius[at]) else "nothing"
    yield "proved up to", f"{proved}, the largest that was tried" if outcome.capped[at] else proved
    if np.isfinite(outcome.attack[at]):
        yield "broken at", at_most(float(outcome.attack[at]))
        yield "ratio", short(float(outcome.ratio[at]))


def _interval_facts(outcome: Intervals, at: int) -> Iterator[tuple[str, Child]]:
    if outcome.claims is not None:
        verdict = outcome.claims.verdict[at].value
        yield "label", int(outcome.claims.label[at])
        yield "verdict", tag("span", verdict, class_=f"verdict {verdict}")
        yield "lead", f"at least {at_least(float(outcome.claims.lead[at]))}"
    else:
        output = int(outcome.widest[at])
        name = "output" if outcome.lower.shape[1] == 1 else f"output {output}"
        low, high = float(outcome.lower[at, output]), float(outcome.upper[at, output])
        yield name, f"{at_least(low)} to {at_most(high)}"
        yield "width", at_most(float(outcome.width[at]))
        if outcome.inside is not None:
            yield "from inside", short(float(outcome.inside[at]))


def _picture(record: Record, index: int, network: Posterior | None) -> Child:
    inputs = record.inputs
    if inputs is None:
        return None
    shape = image_shape(inputs.shape)
    if shape is not None:
        return _images(record, inputs, index, shape)
    if network is not None:  # it can be drawn: one input, one output
        return _zoom(inputs, index, network)
    witness = record.witnesses.get(index)
    attacked = None if witness is None else (tag("br"), _listed("witness", witness.x))
    return tag("p", _listed("x", inputs.x[index]), attacked, class_="small")


def _listed(name: str, values: np.ndarray) -> str:
    more = ", …" if len(values) > _LISTED else ""
    return f"{name} = ({', '.join(short(value) for value in values[:_LISTED].tolist())}{more})"


def _images(record: Record, inputs: Inputs, index: int, shape: tuple[int, int, int]) -> Markup:
    x, witness, domain = inputs.x[index], record.witnesses.get(index), record.options.get("domain")
    known = isinstance(domain, list) and len(domain) == 2 and all(isinstance(end, int | float) for end in domain)
    limits = (float(domain[0]), float(domain[1])) if known and domain is not None else None
    attacked = witness.x if witness is not None and witness.x.shape == x.shape else None
    return input_images(x, attacked, shape, limits, size=84, name=f"Input {index}: ")


def _zoom(inputs: Inputs, index: int, network: Posterior) -> Child:
    """A box of one input: its certified affine bounds less the mean."""
    bounds = affine_bounds(network, inputs.lower[[index]], inputs.upper[[index]])
    if bounds is None or not inputs.lower[index, 0] < inputs.upper[index, 0]:
        return None
    lower, upper = distances(network, bounds)
    text = f"Input {index}: certified affine bounds less the mean over the box."
    return distance_chart(lower, upper, text=text).inline()
