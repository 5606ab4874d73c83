"""The answer to a question: certified bounds at once, and what an attack finds where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.attack.inside import inside_range
from bnndp.explorer.session import Question, Session
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify
from bnndp.questions.decision import decide, robust_decision
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether the decision stays ``label`` on the ball: ``attacked`` says whether that was tried to be broken."""

    label: int
    verdict: Verdict
    lead: float  # the label is ahead of every other class by at least this
    attacked: bool
    rival: int | None = None  # the class that is ahead at the witness
    witness: Tensor | None = None  # (1, n_in)


@dataclass(frozen=True, slots=True)
class Answer:
    """Bounds of every output on the ball, and the decision or the range from inside."""

    question: Question
    box: Box  # (1, n_in)
    bounds: Bounds  # (1, outputs)
    claim: Claim | None = None  # of a classifier
    inside: tuple[Tensor, Tensor] | None = None  # (1, outputs) each, of a regression network that was attacked


def answer(session: Session, question: Question) -> Answer:
    """Everything that is asked for; by one pass, so that it comes while the mouse still moves."""
    network = session.network
    box = Box.ball(question.x, question.eps, domain=session.domain)
    bounds = certify(network, box)
    if network.task == "classification":
        return Answer(question, box, bounds, _claim(session, question, box))
    if not question.attack:
        return Answer(question, box, bounds)
    found = inside_range(network, box)
    return Answer(question, box, bounds, inside=(found.lower, found.upper))


def _claim(session: Session, question: Question, box: Box) -> Claim:
    network, options = session.network, Options()
    label = decide(network, question.x) if question.label is None else torch.tensor([question.label])
    if question.attack:
        found = robust_decision(network, question.x, box, label)
        broken = found.verdict[0] is Verdict.FALSIFIED
        rival, witness = (int(found.rival), found.witness) if broken else (None, None)
        return Claim(int(label), found.verdict[0], found.bound.item(), True, rival, witness)
    with torch.no_grad():
        lead = bound_rows(network, box, decision_rows(label, network.n_out)[0], label, options).amin().item()
    return Claim(int(label), judge(proved=lead > 0, broken=False), lead, False)
