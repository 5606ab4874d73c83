"""Robust accuracy of linear classifiers, where every radius is known, and the rules that join radii into a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from support.classifiers import classifier, exact_radius, linear, random_linear

import bnndp
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork
from bnndp.questions.evaluate import Evaluation, evaluate
from bnndp.questions.radius import Search, certified_radius


def record(radius: list[float], attack: list[float], wrong: int = 0) -> Evaluation:
    """Results made by hand; the first ``wrong`` inputs are decided otherwise."""
    label = torch.zeros(len(radius), dtype=torch.int64)
    decision = (torch.arange(len(radius)) < wrong).long()
    certified, broken = (torch.tensor(values, dtype=torch.float64) for values in (radius, attack))
    return Evaluation(label, decision, certified, broken, upper=1.0)


def test_the_curve_of_a_linear_classifier_is_that_of_its_exact_radii() -> None:
    network = random_linear(3, 3, 2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    label = torch.randint(3, (40,), generator=generator)  # right about once in three
    exact = exact_radius(network, x, label)
    assert 5 < int((exact > 0).sum()) < 35
    found = evaluate(network, x, label, search=Search(upper=5.0, tolerance=0.01))
    assert torch.equal(found.correct, exact > 0)
    eps = [0.0, 0.05, 0.2, 0.5, 1.0]
    curve = found.curve(eps)
    assert curve.accuracy == int((exact > 0).sum()) / 40
    assert curve.attacked is not None
    for radius, proved, left in zip(eps, curve.certified, curve.attacked, strict=True):
        truth = int((exact > radius).sum())
        assert int((exact > 1.011 * radius).sum()) <= proved <= truth <= left
        assert left <= int((exact > radius / 1.03).sum())
    assert curve.certified[0] == curve.correct


def test_certified_means_that_the_ball_of_this_radius_is_certified() -> None:
    network = classifier((2, 8, 3), 1, std=0.1, gain=2.0)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = evaluate(network, x, search=Search(upper=0.5, tolerance=0.05))
    assert bool(found.correct.all())  # the labels are the network's own decisions
    assert bool((found.certified(0.02) <= found.unbroken(0.02)).all())
    again = certified_radius(network, x, found.label, search=Search(upper=0.02, attack=False, tolerance=0.05))
    assert torch.equal(found.certified(0.02), again.radius == 0.02)  # none lies within the tolerance of 0.02 here
    assert bool(found.certified(0.02).any())


def test_the_rules_of_the_curve() -> None:
    nan, inf = math.nan, math.inf
    found = record([nan, nan, 0.0, 0.2, 0.3], [0.0, 0.1, 0.1, 0.2, inf], wrong=1)
    curve = found.curve([0.0, 0.1, 0.2, 0.25, 1.0])
    assert (curve.correct, curve.points) == (4, 5)
    assert curve.certified == (3, 2, 2, 1, 0)  # at eps = radius it is certified
    assert curve.attacked == (4, 2, 1, 1, 1)  # at eps = attack it is broken
    assert found.ratio.tolist()[1:4] == [0.0, 0.0, 1.0]
    assert found.ratio.isnan().tolist() == [True, False, False, False, True]


def test_without_an_attack_there_is_no_attacked_accuracy() -> None:
    network = random_linear(2, 2, 0)
    found = evaluate(network, torch.eye(2), search=Search(attack=False))
    assert bool(found.attack.isnan().all())
    assert found.curve([0.1]).attacked is None


def test_parts_are_joined_in_order() -> None:
    one, two = record([0.1], [0.2]), record([0.3, 0.4], [0.5, 0.6], wrong=1)
    both = Evaluation.joined([one, two])
    assert both.radius.tolist() == [0.1, 0.3, 0.4]
    assert both.attack.tolist() == [0.2, 0.5, 0.6]
    assert both.correct.tolist() == [True, False, True]


def test_what_lies_on_the_surface_of_the_domain_counts() -> None:
    network = linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    found = evaluate(network, torch.tensor([[0.0], [1.0]]), torch.tensor([1, 0]), (0.0, 1.0))
    assert found.curve([0.0, 0.5]).certified == (1, 1)  # even odds at 0 are no proof; 1 keeps its label


@pytest.mark.parametrize("eps", [-0.1, 1.1, math.nan, math.inf])
def test_radii_that_were_not_tried_are_refused(eps: float) -> None:
    with pytest.raises(InputError, match=r"eps must lie between 0 and the largest radius tried, 1.0"):
        record([0.1], [0.2]).curve([0.1, eps])


def test_refusals() -> None:
    network = random_linear(2, 2, 0)
    with pytest.raises(InputError, match="at least one radius"):
        record([0.1], [0.2]).curve([])
    with pytest.raises(InputError, match=r"2 inputs, but the labels have shape \(3,\)"):
        evaluate(network, torch.eye(2), torch.tensor([0, 1, 0]))
    with pytest.raises(InputError, match="needs a classifier"):
        evaluate(BayesianNetwork(network.layers, "regression"), torch.eye(2))
    with pytest.raises(InputError, match="outside the domain"):
        evaluate(network, 2 * torch.eye(2), domain=(0.0, 1.0))
    with pytest.raises(InputError, match="x has 3 inputs"):
        evaluate(network, torch.eye(3))


def test_progress_sees_every_batch_and_changes_nothing() -> None:
    x = torch.linspace(0.1, 1, 150, dtype=torch.float64)[:, None]
    network = linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    seen: list[slice] = []

    def progress(parts: Sequence[slice]) -> Iterator[slice]:
        for part in parts:
            seen.append(part)
            yield part

    how = Search(attack=False)
    watched, plain = evaluate(network, x, search=how, progress=progress), evaluate(network, x, search=how)
    assert [part.start for part in seen] == [0, 64, 128]
    assert torch.allclose(watched.radius, plain.radius, rtol=0.02, atol=0)
    assert torch.equal(watched.label, plain.label)


def test_the_module_does_not_hide_the_function() -> None:
    assert bnndp.evaluate is evaluate
    assert all(getattr(bnndp, name) is not None for name in bnndp.__all__)
