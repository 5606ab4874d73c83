r"""Is the decision of a classifier the same on a whole region? Certified by bounds, falsified by an attack.

The decision at x is the class with the largest expected probability, or with the smallest expected loss if
misclassifications are weighted: :math:`\arg\min_k\sum_iL_{ki}\,\mathbb Ep_i(x)`. It is c on the region if
:math:`(L_k-L_c)\cdot\mathbb Ep(x)>0` for every :math:`k\ne c` and every x in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack import AttackBudget, decision_rows, evade
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.notebook import html_table
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict, judge

_DRAWS = 4096


@dataclass(frozen=True, slots=True)
class Decision:
    """Verdict on the decision in each region, with the evidence for it.

    CERTIFIED is proved by ``bound``. FALSIFIED is shown by ``witness``: fresh samples of the posterior prefer ``rival``
    there, with a confidence of 99.96 %. Certified regions are not attacked: their ``margin`` is NaN.

    Attributes:
        verdict: The verdict on each region.
        label: The decision in question, ``(batch,)``.
        bound: A lower bound of the lead of the label over every other class on the whole region, ``(batch,)``.
        witness: The worst input found, ``(batch, n)``; x itself where nothing was searched.
        margin: Estimated lead of the label over the rival at the witness, ``(batch,)``.
        error: Half-width of the confidence interval of ``margin``, ``(batch,)``.
        rival: The class that leads at the witness, ``(batch,)``; the label itself where nothing was searched.
        proved: For each region, whether the bounds at the witness prove that the decision is different there.

    Examples:
        >>> import bnndp
        >>> layer = bnndp.layers.Linear.fixed(torch.tensor([[1.0], [-1.0]]))
        >>> network = bnndp.BayesianNetwork((layer,), "classification")
        >>> found = robust_decision(network, [[0.3]], Box([[0.1]], [[0.5]]))
        >>> found.label.tolist(), found.verdict[0].value
        ([0], 'certified')
    """

    verdict: tuple[Verdict, ...]
    label: Tensor  # (batch,)
    bound: Tensor  # (batch,)
    witness: Tensor  # (batch, n)
    margin: Tensor  # (batch,)
    error: Tensor  # (batch,)
    rival: Tensor  # (batch,)
    proved: tuple[bool, ...]

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        columns = {
            "label": self.label.tolist(),
            "verdict": [verdict.value for verdict in self.verdict],
            "lead": self.bound.tolist(),
            "rival": self.rival.tolist(),
        }
        return html_table(f"Decisions on {len(self.verdict)} regions", columns)


def decide(network: Posterior, x: Tensor, *, losses: Tensor | None = None, seed: int = 0) -> Tensor:
    """Estimate the decision of the network at each input from 4096 draws of the posterior.

    Args:
        network: The classifier.
        x: The inputs, ``(batch, n)``.
        losses: Losses of misclassification, ``(classes, classes)``, decision by true class; if None, all are equal.
        seed: Seed of the draws.

    Returns:
        The class with the largest expected probability, or with the smallest expected loss, ``(batch,)``.

    Examples:
        >>> import bnndp
        >>> layer = bnndp.layers.Linear.fixed(torch.tensor([[1.0], [-1.0]]))
        >>> decide(bnndp.BayesianNetwork((layer,), "classification"), [[0.3], [-0.3]])
        tensor([0, 1])
    """
    point = Box(x, x).lower
    if point.shape[1] != network.n_in:
        raise InputError(
            f"x has {point.shape[1]} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    probability = estimate_softmax(network, point, draw_softmax_noise(network, _DRAWS, seed=seed)).mean
    if losses is None:
        return probability.argmax(-1)
    matrix = torch.as_tensor(losses, dtype=torch.float64, device=point.device)
    return (probability @ matrix.mT).argmin(-1)


def labels_of(network: Posterior, x: Tensor, label: Tensor | int | None, losses: Tensor | None) -> Tensor:
    """The labels (batch,) that are asked about: those given, one for all, or the network's own decisions."""
    if label is None:
        return decide(network, x, losses=losses)
    given = torch.as_tensor(label, device=x.device)
    if given.ndim == 0:
        return given.expand(x.shape[0])
    if given.shape != (x.shape[0],):
        raise InputError(
            f"there are {x.shape[0]} inputs, but label has shape {tuple(given.shape)}; give one label for each."
        )
    return given


def robust_decision(  # noqa: PLR0913 (two of them are for weighted losses and the attack only)
    network: Posterior,
    x: Tensor,  # (n,) or (batch, n)
    box: Box,
    label: Tensor | int | None = None,
    *,
    losses: Tensor | None = None,  # (classes, classes)
    options: Options | None = None,
    seed: int = 0,
) -> Decision:
    """Decide whether the decision of a classifier is the same on each region around x.

    Args:
        network: The classifier.
        x: The points, ``(n,)`` or ``(batch, n)``.
        box: One region around each point.
        label: The decision to prove, one or ``(batch,)``; the network's own decision at x if None.
        losses: Losses of misclassification, ``(classes, classes)``, decision by true class; if None, all are equal.
        options: Method, effort and limits.
        seed: Seed of the attack.

    Returns:
        A verdict on each region. Only regions that are not certified are attacked.

    Examples:
        >>> import bnndp
        >>> layer = bnndp.layers.Linear.fixed(torch.tensor([[1.0], [-1.0]]))
        >>> network = bnndp.BayesianNetwork((layer,), "classification")
        >>> robust_decision(network, [[0.3]], Box([[-0.1]], [[0.7]])).verdict[0].value
        'falsified'
    """
    options = (options or Options()).started()
    expect_classifier(network)
    points = Box(x, x).lower
    if points.shape != box.lower.shape:
        raise InputError(
            f"x has shape {tuple(points.shape)}, the regions {tuple(box.lower.shape)}; give one point per region."
        )
    if not bool(box.contains(points).all()):
        raise InputError("each point x must lie in its region; give the region around it.")
    asked = labels_of(network, points, label, losses)
    rows = decision_rows(asked, network.n_out, losses)[0]
    with torch.no_grad():
        bound = bound_rows(network, box, rows, asked, options)
    bound = torch.maximum(bound, rows.amin(-1)).amin(-1)  # no average of probabilities is below its least coefficient
    nothing = torch.full_like(bound, torch.nan)
    witness, margin, error, rival = points.clone(), nothing, nothing.clone(), asked.clone()
    proved = torch.zeros_like(bound, dtype=torch.bool)
    left = ~(bound > 0)
    if bool(left.any()) and not options.deadline.passed:
        found = evade(
            network, box[left], asked[left], losses=losses, budget=AttackBudget(seed=seed, deadline=options.deadline)
        )
        witness[left], margin[left], error[left], rival[left] = found.x, found.margin, found.error, found.rival
        proved[left] = _is_proved(network, found.x, asked[left], found.rival, losses, options)
    broken = (margin + error < 0) | proved
    verdict = tuple(judge(proved=p, broken=b) for p, b in zip((bound > 0).tolist(), broken.tolist(), strict=True))
    return Decision(verdict, asked, bound, witness, margin, error, rival, tuple(proved.tolist()))


def _is_proved(
    network: Posterior, x: Tensor, label: Tensor, rival: Tensor, losses: Tensor | None, options: Options
) -> Tensor:
    """Whether the bounds at the input x prove that ``rival`` is ahead of ``label`` there: (batch,)."""
    rows, others = decision_rows(rival, network.n_out, losses)  # L_k - L_rival for every k but the rival
    row = rows[others == label[:, None]][:, None]  # that of the label: positive where the rival is ahead
    with torch.no_grad():
        return bound_rows(network, Box(x, x), row, rival, options)[:, 0] > 0


def expect_classifier(network: Posterior) -> None:
    """Refuse a regression network, and a module of torch, in one line."""
    if isinstance(network, torch.nn.Module):
        raise InputError(
            f"network must be a BayesianNetwork or Ensemble, got {type(network).__name__}; make one of it with "
            "bnndp.from_module(module, task='classification')."
        )
    if network.task != "classification":
        raise InputError(f"a decision needs a classifier; this network is for {network.task} (use bnndp.certify).")
