"""What the baselines ask of a row's subject: the boxes that the first layer sees, and labels."""

from __future__ import annotations

from torch import Tensor

from benchmarks.paper.grid import Subject
from bnndp.errors import InputError
from bnndp.geometry.box import Box

__all__ = ["asked_ball", "asked_label", "seen_ball"]


def seen_ball(subject: Subject, radius: float | Tensor, at: Tensor | None = None) -> Box:
    """The l-infinity balls around the inputs, or those at the indices ``at``, cut to the domain and less the shift.

    ``radius`` is one number or (points,).
    """
    x = subject.x if at is None else subject.x[at]
    box = Box.ball(x, radius, domain=subject.domain)
    shift = subject.network.shift
    return box if shift is None else box.moved(shift)


def asked_ball(subject: Subject) -> Box:
    """The balls whose radius a subject of regression names, as the first layer sees them."""
    if subject.eps is None:
        raise InputError("a width is that of a ball, but the subject has eps=None; give it a radius.")
    return seen_ball(subject, subject.eps)


def asked_label(subject: Subject) -> Tensor:
    """The labels (points,) whose decision a subject of classification asks about."""
    if subject.label is None:
        raise InputError("a radius is that of a decision, but the subject has label=None; give it one for each input.")
    return subject.label
