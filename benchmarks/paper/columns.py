"""The ways in which the tables measure a network, each a function from a row's subject to a number for every input."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.paper.grid import Column, Subject
from bnndp.attack import AttackBudget, Reach, attack_radius
from bnndp.attack.inside import inside_range
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.questions.certify import certify
from bnndp.questions.radius import Search, certified_radius

__all__ = [
    "ATTACK",
    "CLIPPED",
    "COLUMNS",
    "CONVOLUTION_COLUMNS",
    "HIGH",
    "INSIDE",
    "MEDIUM",
    "MOMENT",
    "NO_DOMAIN",
    "PARTITION",
    "POINT",
    "RADIUS_COLUMNS",
    "WIDTH_COLUMNS",
]

MOMENT, PARTITION, INSIDE, CLIPPED, POINT = "moment", "partition", "inside", "moment, x >= 0", "moment, point"
ATTACK, NO_DOMAIN = "attack", "moment, no domain"
MEDIUM, HIGH = "medium effort", "high effort"
_BOXES = 256  # certified at once


def width(subject: Subject, options: Options) -> Tensor:
    """Certified widths on the balls, the largest output's: (points,)."""
    return _widths(subject, _ball(subject), options)


def clipped_width(subject: Subject, options: Options) -> Tensor:
    """The same on what the paper's code makes of the balls: the part with x >= 0, or zero where there is none."""
    ball = _ball(subject)
    return _widths(subject, Box(ball.lower.clamp_min(0), ball.upper.clamp_min(0)), options)


def point_width(subject: Subject, options: Options) -> Tensor:
    """Certified widths at the inputs themselves: what is lost to the posterior alone."""
    return _widths(subject, Box(subject.x, subject.x), options)


def inside_width(subject: Subject) -> Tensor:
    """The ranges that an attack finds in the balls: (points,).

    In balls as small as those of the table the mean is nearly linear: a short search finds what a long one does.
    """
    found = inside_range(subject.network, _ball(subject), samples=2048, restarts=1, steps=10)
    return found.width.amax(-1)


def radius(subject: Subject, options: Options, *, domain: bool = True) -> Tensor:
    """Certified radii of the decisions, NaN where not even the input itself is certified: (points,)."""
    found = certified_radius(
        subject.network,
        subject.x,
        subject.label,
        subject.domain if domain else None,
        search=Search(attack=False),
        options=options,
    )
    return found.radius


def broken_radius(subject: Subject) -> Tensor:
    """The smallest radii at which an attack changes the decisions, infinite where none does: (points,)."""
    if subject.label is None:
        raise InputError("an attack on a decision needs the labels of the inputs; give the subject its labels.")
    reach = Reach(domain=subject.domain)
    return attack_radius(subject.network, subject.x, subject.label, reach=reach, budget=AttackBudget()).radius


def _ball(subject: Subject) -> Box:
    if subject.eps is None:
        raise InputError("a width is that of a ball, but the subject has no eps; give it one.")
    return Box.ball(subject.x, subject.eps, domain=subject.domain)


def _widths(subject: Subject, box: Box, options: Options) -> Tensor:
    parts = [box[start : start + _BOXES] for start in range(0, box.batch, _BOXES)]
    with torch.no_grad():
        return torch.cat([certify(subject.network, part, options).width.amax(-1) for part in parts])


WIDTH_COLUMNS = (
    Column(MOMENT, lambda subject: width(subject, Options(method="moment"))),
    Column(PARTITION, lambda subject: width(subject, Options(method="partition"))),
    Column(INSIDE, inside_width, whole=False),
    Column(CLIPPED, lambda subject: clipped_width(subject, Options(method="moment"))),
    Column(POINT, lambda subject: point_width(subject, Options(method="moment"))),
)
"""Of Table 1a."""

RADIUS_COLUMNS = (
    Column(MOMENT, lambda subject: radius(subject, Options(method="moment"))),
    Column(PARTITION, lambda subject: radius(subject, Options(method="partition"))),
    Column(ATTACK, broken_radius, whole=False, attack=True),
    Column(NO_DOMAIN, lambda subject: radius(subject, Options(method="moment"), domain=False)),
)
"""Of Table 1b."""

CONVOLUTION_COLUMNS = (
    Column(MOMENT, lambda subject: radius(subject, Options())),
    Column(ATTACK, broken_radius, whole=False, attack=True),
    Column(NO_DOMAIN, lambda subject: radius(subject, Options(), domain=False)),
)
"""Of Table 2."""

COLUMNS = {
    "table-1a": (
        Column(MEDIUM, lambda subject: width(subject, Options(effort="medium"))),
        Column(HIGH, lambda subject: width(subject, Options(effort="high"))),
    ),
    "table-1b": (
        Column(MEDIUM, lambda subject: radius(subject, Options(effort="medium"))),
        Column(HIGH, lambda subject: radius(subject, Options(effort="high")), points=10),
    ),
}
"""The levels of effort beyond one pass, which take long: more columns for ``--baselines benchmarks.paper.columns``."""
