"""Guesses in single precision: near the bounds, of copies of their own, and without a trace in float64."""

from __future__ import annotations

import math

import pytest
import records
import torch
from classifiers import classifier, linear
from torch import Tensor

import bnndp
from bnndp import single
from bnndp.classify import bound_rows
from bnndp.ensemble import Posterior
from bnndp.evasion import decision_rows
from bnndp.network import BayesianNetwork, flat
from bnndp.options import Options
from bnndp.partition import clipped, concentration
from bnndp.regions import Box
from bnndp.single import Likeness

NETWORKS = {name: records.classifier(network) for name, network in records.networks().items() if network.n_out > 1} | {
    "narrow": classifier((3, 16, 16, 3), 2, std=0.01),
    "wide": classifier((3, 8, 3), 5, std=1.0),
    "affine": classifier((3, 3), 5),
}


def question(network: Posterior, eps: float, norm: float = math.inf) -> tuple[Box, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    box = Box.ball(torch.rand(6, network.n_in, generator=generator, dtype=torch.float64), eps, norm=norm)
    label = torch.arange(6) % network.n_out
    return box, decision_rows(label, network.n_out, None)[0], label


def tensors(network: Posterior) -> list[Tensor]:
    members = (network,) if isinstance(network, BayesianNetwork) else network.members
    return [getattr(layer, name) for member in members for layer in flat(member.layers) for name in layer.tensors]


@pytest.mark.parametrize("norm", [math.inf, 2])
@pytest.mark.parametrize("eps", [0.0, 0.01])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_guess_is_near_the_bound(name: str, eps: float, norm: float) -> None:
    """Probabilities between 0 and 1: float32 has 1e-7 of them; a bound of many steps keeps about 1e-4.

    On the ball of a point alone the ends of an interval may cross in float32: then there is no guess, and no more.
    """
    box, rows, label = question(NETWORKS[name], eps, norm)
    true = bound_rows(NETWORKS[name], box, rows, label, Options())
    guess = Likeness.of(NETWORKS[name]).guess_rows(box, rows, label, Options())
    assert guess.dtype == torch.float64
    near = ((guess - true).abs() <= 2e-3).all(-1)
    assert int(near.sum()) >= (6 if eps else 5)
    assert not bool((guess[~near] > 0).any())


@pytest.mark.parametrize(
    "options", [Options(optimise=1), Options(refine=2), Options(branch=2)], ids=["optimise", "refine", "branch"]
)
def test_costlier_bounds_have_guesses_too(options: Options) -> None:
    network = classifier((3, 6, 6, 3), 2, std=0.01)
    box, rows, label = question(network, 0.05)
    guess = Likeness.of(network).guess_rows(box, rows, label, options)
    assert bool(((guess - bound_rows(network, box, rows, label, options)).abs() <= 2e-3).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_itself_stays_as_it_is(name: str) -> None:
    network = NETWORKS[name]
    before = network.digest()
    likeness = Likeness.of(network)
    assert {t.dtype for t in tensors(likeness.network)} == {torch.float32}
    assert {t.dtype for t in tensors(network)} == {torch.float64}
    assert network.digest() == before
    assert "Likeness" not in bnndp.__all__


def test_a_region_in_float32_has_parts_in_float32() -> None:
    box = single._single_box(Box.ball(torch.rand(4, 3), 0.1, norm=2))
    for part in (
        box,
        box[:2],
        box[torch.tensor([1])],
        box.moved(torch.zeros(3)),
        box.split(torch.tensor([0, 1, 2, 0])),
    ):
        assert part.within is not None
        assert {t.dtype for t in (part.lower, part.upper, part.within.centre, part.within.radius)} == {torch.float32}


def test_constants_move_into_the_range_of_float32_and_of_nothing_else() -> None:
    wide, short = torch.zeros(1, dtype=torch.float64), torch.zeros(1)
    with single._InRange():
        assert (wide + 1e-300).item() == wide.clamp_min(1e-300).item() == 1e-300
        assert wide.clamp_max(-1e200).item() == -1e200
        assert (short + 1e-300).item() == short.clamp(min=1e-300).item() == pytest.approx(1e-37)
        assert short.clamp_max(-1e200).item() == pytest.approx(-3e38)
        assert (short + math.inf).item() == math.inf
        assert (short + 0.5).item() == 0.5
    assert (short + 1e-300).item() == 0


def test_weights_that_do_not_count_are_zero() -> None:
    """Among them all whose float32 is not normal, which make products slow."""
    found = single._single_tensor(torch.tensor([1.0, -1e-3, 1e-19, 1e-25, 1e-42, 0.0], dtype=torch.float64))
    assert torch.equal(found, torch.tensor([1.0, -1e-3, 1e-19, 0.0, 0.0, 0.0]))
    assert single._single_tensor(torch.zeros(0, dtype=torch.float64)).shape == (0,)


@pytest.mark.parametrize("size", [1e50, 1e150])
def test_beyond_float32_there_is_no_guess(size: float) -> None:
    network = linear(torch.tensor([[size, 0.0], [0.0, size]], dtype=torch.float64), torch.zeros(2), std=1.0)
    box, first = Box.ball([[1.0, 0.5]], 0.01), torch.zeros(1, dtype=torch.int64)
    rows = decision_rows(first, 2, None)[0]
    assert bool((bound_rows(network, box, rows, first, Options()) > 0).all())
    assert not bool((Likeness.of(network).guess_rows(box, rows, first, Options()) > 0).any())


def test_an_error_is_no_guess() -> None:
    network = classifier((3, 4, 3), 0)
    first = torch.zeros(1, dtype=torch.int64)
    rows = decision_rows(first, 3, None)[0]
    guess = Likeness.of(network).guess_rows(Box.ball(torch.zeros(1, 2), 0.1), rows, first, Options())
    assert guess.shape == (1, 2)
    assert bool(guess.isnan().all())


def test_what_float64_keeps_for_later_is_none_of_a_guess() -> None:
    """The tables that the partition method makes once are made in float64, also while a guess is asked for."""
    network = classifier((3, 8, 8, 3), 7, std=0.05)
    box, rows, asked = question(network, 0.01)
    options = Options(method="partition")

    def forget() -> None:
        for module in (clipped, concentration):
            for made in vars(module).values():
                if hasattr(made, "cache_clear"):
                    made.cache_clear()

    forget()
    true = bound_rows(network, box, rows, asked, options)
    forget()
    Likeness.of(network).guess_rows(box, rows, asked, options)
    assert torch.equal(bound_rows(network, box, rows, asked, options), true)


def test_no_ambient_autocast_reaches_a_guess() -> None:
    network = classifier((3, 16, 16, 3), 2, std=0.01)
    box, rows, asked = question(network, 0.01)
    plain = Likeness.of(network).guess_rows(box, rows, asked, Options())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Likeness.of(network).guess_rows(box, rows, asked, Options()), plain)
