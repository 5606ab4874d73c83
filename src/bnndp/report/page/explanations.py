"""What a run proves and what it does not, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnndp.questions.verdict import Verdict
from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.outcome import Intervals, Outcome, Radii
from bnndp.report.page.record import Record
from bnndp.report.page.scales import at_most, counted, round_down, short


@dataclass(frozen=True, slots=True)
class Tally:
    """How many inputs have which verdict."""

    certified: int
    undecided: int
    falsified: int

    @property
    def total(self) -> int:
        """Of all of them."""
        return self.certified + self.undecided + self.falsified


def tally(outcome: Outcome, eps: float | None) -> Tally | None:
    """The verdicts at a radius, or of the run itself; None where nothing was to be decided."""
    if isinstance(outcome, Radii):
        found = tuple(outcome.verdicts(0.0 if eps is None else eps))
    elif outcome.claims is not None:
        found = outcome.claims.verdict
    else:
        return None
    certified = sum(verdict is Verdict.CERTIFIED for verdict in found)
    falsified = sum(verdict is Verdict.FALSIFIED for verdict in found)
    return Tally(certified, len(found) - certified - falsified, falsified)


def default_radius(record: Record, outcome: Radii) -> float:
    """The radius that the page opens with: one that was asked for, or about the median of what is certified."""
    asked = asked_radii(record)
    if asked:
        return asked[len(asked) // 2]
    known = outcome.radius[outcome.radius > 0]
    other = outcome.attack[np.isfinite(outcome.attack)]
    return round_down(float(np.median(known if known.size else other))) if known.size or other.size else 0.0


def asked_radii(record: Record) -> list[float]:
    """The radii that accuracy was asked for at, in order; none of a run of another command."""
    found = record.lookup("question", "eps")
    numbers = [float(eps) for eps in found if type(eps) in (int, float)] if isinstance(found, list) else []
    return sorted(eps for eps in numbers if 0 <= eps < np.inf)


def moves(record: Record) -> str:
    """What a radius allows, by the norm."""
    return {
        "inf": "each number of the input may move by that much, all of them at the same time",
        "2": "the whole change of the input is at most that long (Euclidean norm)",
        "1": "the changes of all numbers of the input add up to at most that (l1 norm)",
    }.get(_norm(record), "in the norm of the run")


def _norm(record: Record) -> str:
    found = record.options.get("norm")
    return f"{found:g}" if isinstance(found, int | float) else str(found)


def subject(record: Record) -> str:
    """What is bounded, in words."""
    options = record.options
    if options.get("between") is not None:
        return "the probability, over the posterior, that an output lies in the given interval"
    quantity = options.get("quantity")
    if quantity in ("variance", "noise"):
        return {"variance": "the variance of each output over the posterior", "noise": "the mean of exp f(x)"}[quantity]
    if record.lookup("model", "task") == "classification":
        return "the mean probability of each class, E softmax f(x)"
    return "the mean output, E f(x)"


def _decision(record: Record) -> str:
    return "what it is at the input itself" if record.lookup("inputs", "labels") == "network" else "the label"


def headline(record: Record, outcome: Outcome, eps: float | None) -> Markup:
    """The first sentence: what is proved, with its numbers."""
    found = tally(outcome, eps)
    if found is not None:
        where = _everywhere(record, eps)
        return tag(
            "p",
            "For ",
            tag("strong", tag("output", f"{found.certified:,}", id="head-certified"), f" of {found.total:,}"),
            f" {'input' if found.total == 1 else 'inputs'} the decision provably is {_decision(record)}",
            where,
            class_="lead",
        )
    if isinstance(outcome, Radii):
        return tag("p", class_="lead")
    width = outcome.width
    wide = f"Half of the intervals are at most {at_most(float(np.median(width)))} wide, the widest is "
    return tag(
        "p",
        "For ",
        tag("strong", f"{len(width):,} of {record.points:,}"),
        f" {'box' if record.points == 1 else 'boxes'} of inputs{_around(record)} {subject(record)}, is enclosed at "
        "every input of the box. ",
        f"{wide if len(width) > 1 else 'The interval is at most '}{at_most(float(width.max()))}"
        f"{'' if len(width) > 1 else ' wide'}.",
        class_="lead",
    )


def _around(record: Record) -> str:
    """Which boxes they are, where they are balls around inputs."""
    eps = record.options.get("eps")
    return f", those of radius {short(float(eps))} around each input," if isinstance(eps, int | float) else ""


def subtitle(outcome: Outcome) -> str:
    """What the first sentence is about, in a second one."""
    if isinstance(outcome, Radii) or outcome.claims is not None:
        return (
            "The decision is that of the whole posterior: the class with the largest mean probability. What is "
            "certified is proved for every input of the region; what is falsified was found by an attack."
        )
    return "Means are over the whole posterior of the weights. The bounds are proved; no sample was drawn for them."


def _everywhere(record: Record, eps: float | None) -> Child:
    if record.command != "certify":
        return (" for every change of the input up to a radius of ", tag("output", short(eps), id="head-eps"), ".")
    given = record.options.get("eps")
    if isinstance(given, int | float):
        return f" for every change of the input up to a radius of {short(float(given))}."
    return " at every input of its box."


def meaning(record: Record, outcome: Outcome) -> Markup:
    """What exactly is certified."""
    over = (
        "The network is Bayesian: its weights have a distribution, the posterior. What is certified is a mean over all "
        "of it, not what one network drawn from it does. No sample is drawn for a proof and no tail is left out."
    )
    if isinstance(outcome, Radii) or outcome.claims is not None:
        what = (
            "The decision is the class with the largest mean probability, E softmax f(x). Certified means: at every "
            "real input of the region the label is that class, with no tie."
        )
    else:
        what = (
            f"Bounded is {subject(record)}: lower ≤ value ≤ upper holds for each output at every real input of the "
            "box, both ends included."
        )
    radius = f"A radius r is of the norm {_norm(record)}: {moves(record)}."
    domain = record.options.get("domain")
    known = isinstance(domain, list) and len(domain) == 2 and all(type(end) in (int, float) for end in domain)
    cut = f" Only inputs between {short(domain[0])} and {short(domain[1])} count." if known and domain else ""
    balls = record.options.get("eps") is not None or isinstance(outcome, Radii)
    return tag("div", tag("p", what), tag("p", over), tag("p", radius + cut) if balls else None)


def not_promised(outcome: Outcome) -> Markup:
    """What nobody should read into the numbers."""
    decisions = isinstance(outcome, Radii) or outcome.claims is not None
    return tag(
        "ul",
        tag("li", "Nothing about a single network drawn from the posterior, or about an average of a few draws."),
        tag("li", "Nothing about the same network in float32, float16 or another order of summation."),
        tag(
            "li",
            "Nothing about the world: that the posterior is good and the region the right one is for you to judge.",
        ),
        tag(
            "li",
            "Falsified means that an input was found at which another class is ahead, by fresh samples of the "
            "posterior at a confidence of 99.96 %, or by proof. Undecided is neither: the bounds are too loose or the "
            "attack is too weak.",
        )
        if decisions
        else tag(
            "li", "A range from inside is what a search found. It shows how tight the bounds are and proves nothing."
        ),
        class_="plain",
    )


def alarms(record: Record, outcome: Outcome) -> list[Markup]:
    """What a reader must not overlook: answers that are missing, and numbers that contradict one another."""
    found = []
    missing = record.points - len(record.index)
    if missing:
        text = f"The run is not complete: {counted(missing, 'input')} of {record.points:,} have no answer yet. "
        found.append(tag("p", text, "All counts are of the others.", class_="alarm"))
    behind = sum(level != record.identity["stages"][-1] for level in record.levels)
    if behind:
        last = record.identity["stages"][-1]
        text = f"For {counted(behind, 'input')} the effort “{last}” is not completed; what is shown holds."
        found.append(tag("p", text, class_="remark"))
    broken = _contradictions(outcome)
    if broken:
        shown = ", ".join(str(record.index[at]) for at in broken[:8])
        found.append(
            tag(
                "p",
                tag("strong", "Contradiction. "),
                f"{counted(len(broken), 'input')} (number {shown}) are certified beyond what an attack found. One of "
                "the two is wrong: trust neither, and report it to the makers of bnndp with this run folder.",
                class_="alarm",
            )
        )
    return found


def _contradictions(outcome: Outcome) -> list[int]:
    """Where a proof and an attack cannot both be right; a range from inside may be off by its sampling, and is left."""
    if isinstance(outcome, Intervals):
        claims = outcome.claims
        return [] if claims is None else np.flatnonzero(claims.broken & (claims.lead > 0)).tolist()
    return np.flatnonzero(outcome.radius >= outcome.attack).tolist()
