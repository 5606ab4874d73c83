"""Robustness as a condition of a test suite: an error that names the inputs which fail it, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.decision import robust_decision
from bnndp.questions.robustness import adversarial_robustness
from bnndp.questions.verdict import Verdict

_NAMED = 5  # inputs that an error names


class NotRobust(AssertionError):
    """Raised by :func:`assert_robust` if fewer inputs are certified than were asked for.

    Attributes:
        verdict: The verdict on each input.

    Examples:
        >>> issubclass(NotRobust, AssertionError)
        True
    """

    def __init__(self, message: str, verdict: tuple[Verdict, ...]) -> None:
        super().__init__(message)
        self.verdict = verdict


def assert_robust(  # noqa: PLR0913 (the question, and how hard to try)
    network: Posterior,
    x: Tensor,  # (n,) or (batch, n)
    label: Tensor | int | None = None,  # (batch,): of a classifier; None: its own decisions at x
    *,
    eps: float,
    gamma: float | None = None,
    share: float = 1.0,
    norm: float = torch.inf,
    domain: tuple[float, float] | None = None,
    options: Options | None = None,
) -> None:
    """Raise :class:`NotRobust`, an AssertionError, unless at least ``share`` of the inputs are certified.

    A classifier is certified at x if its decision is provably the label on the whole ball around x, a regression
    network if its mean output provably changes by at most ``gamma`` there. What cannot be computed is not certified.
    The function is meant for tests; ``python -O`` does not switch it off.

    Args:
        network: The network or ensemble.
        x: The inputs, ``(n,)`` or ``(batch, n)``.
        label: The labels of a classifier, one or ``(batch,)``; its own decisions at x if None.
        eps: Radius of the balls.
        gamma: For regression: the largest change of the mean output allowed.
        share: The share of the inputs that must be certified, above 0 and at most 1.
        norm: Norm of the balls: 1, 2 or ``math.inf``.
        domain: Smallest and largest value that an input may take.
        options: Method, effort and limits.

    Raises:
        NotRobust: If too few inputs are certified; the message names some that are not.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> layer = Linear(torch.tensor([[2.0]]), torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
        >>> network = BayesianNetwork.from_linears([layer])
        >>> assert_robust(network, torch.tensor([[0.5]]), eps=0.1, gamma=0.21)
        >>> assert_robust(network, torch.tensor([[0.5]]), eps=0.1, gamma=0.19)
        Traceback (most recent call last):
        bnndp.questions.assertions.NotRobust: 0 of 1 inputs certified, a share of 1 asked for: the mean output changes \
by at most 0.19 on balls of radius 0.1. Input 0: falsified, changes by up to 0.2.
    """
    if not 0 < share <= 1:
        raise InputError(f"share must lie above 0 and be at most 1, got {share!r}.")
    box = Box.ball(x, eps, domain=domain, norm=norm)
    points = Box(x, x).lower
    if network.task == "classification":
        if gamma is not None:
            raise InputError("gamma is for regression; a classifier is asked for its decision.")
        found = robust_decision(network, points, box, label, options=options)
        verdict, claim = found.verdict, "the decision stays the same"
        notes = [f"lead {bound:.3g}" for bound in found.bound.tolist()]
    else:
        if gamma is None or label is not None:
            raise InputError("a regression network has no labels; give gamma, the largest change of its mean output.")
        change = adversarial_robustness(network, points, box, gamma, options=options)
        verdict, claim = change.verdict, f"the mean output changes by at most {gamma:g}"
        notes = [f"changes by up to {most:.3g}" for most in change.change.tolist()]
    _expect(verdict, notes, share, f"{claim} on balls of radius {eps:g}")


def _expect(verdict: tuple[Verdict, ...], notes: Sequence[str], share: float, claim: str) -> None:
    failed = [i for i, each in enumerate(verdict) if each is not Verdict.CERTIFIED]
    certified, count = len(verdict) - len(failed), len(verdict)
    if count > 0 and certified / count >= share:
        return
    named = "; ".join(f"Input {i}: {verdict[i].value}, {notes[i]}" for i in failed[:_NAMED])
    more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    raise NotRobust(
        f"{certified} of {count} inputs certified, a share of {share:g} asked for: {claim}. {named}{more}.", verdict
    )
