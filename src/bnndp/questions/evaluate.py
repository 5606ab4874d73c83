r"""Robust accuracy over a test set: how many inputs keep their label on every ball of a radius, for any radius at once.

One certified and one attacked radius per input give the whole curve. Balls of one centre lie in one another, so

* the decision is proved to be the label on the ball of radius :math:`\epsilon` if the certified radius is at least
  :math:`\epsilon` (a radius that is too small by the tolerance of the search only lowers the certified accuracy);
* an attack has broken it if its radius, that of a ball with a confirmed witness, is at most :math:`\epsilon`.

The true robust accuracy lies between the certified and the attacked accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.decision import decide, expect_classifier
from bnndp.questions.notebook import html_table
from bnndp.questions.radius import Radius, Search, better_radii
from bnndp.tighten.effort import last

_WATCHED = 64  # inputs per batch if progress is shown


@dataclass(frozen=True, slots=True)
class Curve:
    """Robust accuracy as a function of the radius, in numbers of inputs.

    Attributes:
        eps: The radii.
        certified: For each radius, the number of inputs whose label is proved on the whole ball.
        attacked: For each radius, the number of correct inputs that the attack did not break; None without attack.
        correct: Number of inputs whose decision, estimated by sampling, is the label.
        points: Number of all inputs.

    Examples:
        >>> Curve(eps=(0.0, 0.1), certified=(3, 2), attacked=None, correct=3, points=4).accuracy
        0.75
    """

    eps: tuple[float, ...]
    certified: tuple[int, ...]
    attacked: tuple[int, ...] | None
    correct: int
    points: int

    @property
    def accuracy(self) -> float:
        """Share of the inputs whose decision, by sampling, is the label."""
        return self.correct / self.points

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        columns: dict[str, Sequence[object]] = {"eps": self.eps, "certified": [n / self.points for n in self.certified]}
        if self.attacked is not None:
            columns["attacked"] = [n / self.points for n in self.attacked]
        return html_table(f"Accuracy over {self.points} inputs, {self.accuracy:.1%} at the input", columns)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Certified and attacked radius of every input of a data set.

    Attributes:
        label: The labels, ``(points,)``.
        decision: The decisions of the network at the inputs, estimated by sampling, ``(points,)``.
        radius: Certified radii, ``(points,)``; NaN where nothing is certified, not even at the input.
        attack: Attacked radii, ``(points,)``; infinite where no attack succeeded, NaN without attack.
        upper: The largest radius that was tried.
        witness: The inputs found by the attack, ``(points, n)``; None if not kept.
        rival: The class that leads at each witness, ``(points,)``; None if not kept.

    Examples:
        >>> label = torch.tensor([0, 1])
        >>> Evaluation(label, label, torch.tensor([0.1, 0.3]), torch.tensor([0.2, 0.4]), upper=1.0).certified(0.2)
        tensor([False,  True])
    """

    label: Tensor  # (points,)
    decision: Tensor  # (points,)
    radius: Tensor  # (points,)
    attack: Tensor  # (points,)
    upper: float
    witness: Tensor | None = None  # (points, n)
    rival: Tensor | None = None  # (points,)

    def __getitem__(self, part: slice) -> Evaluation:
        """The results of some inputs."""
        return self._each(lambda column: column[part])

    def to(self, device: torch.device | str) -> Evaluation:
        """The same with its tensors on ``device``."""
        return self._each(lambda column: column.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Evaluation:
        """The same with every column changed in the same way."""
        witness = None if self.witness is None else change(self.witness)
        rival = None if self.rival is None else change(self.rival)
        label, decision, radius, attack = map(change, (self.label, self.decision, self.radius, self.attack))
        return Evaluation(label, decision, radius, attack, self.upper, witness, rival)

    @property
    def correct(self) -> Tensor:
        """Where the decision is the label: (points,)."""
        return self.decision == self.label

    @property
    def ratio(self) -> Tensor:
        """Certified over attacked radius; NaN where the attack found nothing or the decision is wrong: (points,)."""
        comparable = self.attack.isfinite() & (self.attack > 0)
        return torch.where(comparable, self.radius.nan_to_num(0.0) / self.attack, torch.nan)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        columns = {
            "label": self.label,
            "decision": self.decision,
            "certified": self.radius,
            "attack": self.attack,
            "ratio": self.ratio,
        }
        return html_table(
            f"Radii of {self.label.numel()} inputs", {name: column.tolist() for name, column in columns.items()}
        )

    def certified(self, eps: float) -> Tensor:
        """Where the decision is proved to be the label on the ball of radius ``eps``: (points,)."""
        return self.radius >= self._radius(eps)

    def unbroken(self, eps: float) -> Tensor:
        """Where the decision is the label at the input and no attack changed it within ``eps``: (points,)."""
        return self.correct & (self.attack > self._radius(eps))

    def curve(self, eps: Sequence[float] | Tensor) -> Curve:
        """Certified and attacked accuracy at each radius of ``eps``."""
        radii = tuple(torch.as_tensor(eps, dtype=torch.float64).reshape(-1).tolist())
        if not radii:
            raise InputError("eps must hold at least one radius.")
        certified = tuple(int(self.certified(radius).sum()) for radius in radii)
        attacked = None
        if not self.attack.isnan().any():
            attacked = tuple(int(self.unbroken(radius).sum()) for radius in radii)
        return Curve(radii, certified, attacked, int(self.correct.sum()), self.label.numel())

    def _radius(self, eps: float) -> float:
        if not 0 <= eps <= self.upper:
            raise InputError(f"eps must lie between 0 and the largest radius tried, {self.upper}, got {eps!r}.")
        return eps

    @classmethod
    def joined(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """One record of several sets of inputs, tried up to the same radius; without the witnesses."""
        names = ("label", "decision", "radius", "attack")
        label, decision, radius, attack = (torch.cat([getattr(part, name) for part in parts]) for name in names)
        return cls(label, decision, radius, attack, min(part.upper for part in parts))


def evaluate(  # noqa: PLR0913 (the question, how hard to try, and who is told)
    network: Posterior,
    x: Tensor,  # (points, n)
    label: Tensor | None = None,  # (points,); None: the network's own decisions
    domain: tuple[float, float] | None = None,
    *,
    search: Search | None = None,
    options: Options | None = None,
    progress: Callable[[Sequence[slice]], Iterable[slice]] | None = None,
) -> Evaluation:
    """Find the certified and the attacked radius of every input, and with them the robust accuracy at any radius.

    When ``options.time_limit`` has passed, or on Ctrl-C after the first pass, the answer is the best found so far.

    Args:
        network: The classifier.
        x: The inputs, ``(points, n)``.
        label: The labels, ``(points,)``; the network's own decisions if None.
        domain: Smallest and largest value that an input may take.
        search: Norm, largest radius and precision.
        options: Method, effort and limits.
        progress: Iterates over batches of the inputs and shows the progress, such as ``tqdm.auto.tqdm`` or
            ``rich.progress.track``. Each batch then has its share of the time, and the witnesses are not kept.

    Returns:
        The radii; :meth:`Evaluation.curve` gives the accuracies.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> layer = Linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1), torch.zeros(2), torch.zeros(2))
        >>> network = BayesianNetwork.from_linears([layer], "classification")
        >>> found = evaluate(network, torch.tensor([[0.3], [-0.1], [0.6]]), torch.tensor([0, 0, 0]))
        >>> curve = found.curve([0.0, 0.2, 0.5])
        >>> curve.correct, curve.certified, curve.attacked
        (2, (2, 2, 1), (2, 2, 1))
    """
    options = options or Options()
    if progress is None:
        options = options.started()
        return last(better_evaluations(network, x, label, domain, search=search, options=options), options.deadline)
    points, found = torch.as_tensor(x, dtype=torch.float64), []
    limit = None if options.time_limit is None else options.time_limit * _WATCHED / max(len(points), _WATCHED)
    shared = replace(options, time_limit=limit)
    for part in progress([slice(k, k + _WATCHED) for k in range(0, max(len(points), 1), _WATCHED)]):
        own = None if label is None else torch.as_tensor(label)[part]
        found.append(evaluate(network, points[part], own, domain, search=search, options=shared))
    return Evaluation.joined(found)


def better_evaluations(  # noqa: PLR0913 (those of evaluate, and where to start from)
    network: Posterior,
    x: Tensor,  # (points, n)
    label: Tensor | None = None,  # (points,); None: the network's own decisions
    domain: tuple[float, float] | None = None,
    *,
    search: Search | None = None,
    options: Options | None = None,
    known: Evaluation | None = None,
) -> Iterator[Evaluation]:
    """The answers of :func:`evaluate` as they get better, as those of :func:`bnndp.questions.radius.better_radii` do.

    With ``known``, an earlier answer to the same question, they continue from there.
    """
    search = search or Search()
    expect_classifier(network)
    start = None
    if known is None:
        decision = decide(network, x, losses=search.losses)
        given = decision if label is None else torch.as_tensor(label, device=decision.device)
        if given.shape != decision.shape:
            raise InputError(
                f"there are {decision.numel()} inputs, but the labels have shape {tuple(given.shape)}; "
                "give one for each."
            )
    else:
        decision, given = known.decision, known.label
        start = Radius(known.label, known.radius, known.attack, x)  # the witnesses are not asked for
    first = known is None

    def evaluation(found: Radius) -> Evaluation:
        witness, rival = (found.witness, found.rival) if first else (None, None)
        return Evaluation(found.label, decision, found.radius, found.attack, search.upper, witness, rival)

    return map(evaluation, better_radii(network, x, given, domain, search=search, options=options, known=start))
