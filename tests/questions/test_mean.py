"""Mean outputs of ensembles: functions of x added before they are minimised, against members evaluated one by one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from support.ensembles import average, certain_ensemble, certain_member, mean_output, outputs, points_of
from support.networks import make_network
from support.oracles import rational_outputs
from support.passes import holds
from support.records import conv, linear, normal
from tests.marks import slow_but
from tests.questions.cases import interval

from bnndp.activations import Gelu, HardTanh, LeakyRelu, Relu, Tanh
from bnndp.activations.activation import Activation
from bnndp.engine.mixture import LowerSum, of_affine
from bnndp.errors import MagnitudeError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.certify import certify

F64 = torch.float64
ACTIVATIONS = (Relu(), LeakyRelu(0.1), HardTanh(), Tanh(), Gelu())


@pytest.mark.parametrize("norm", [math.inf, 2.0, 1.0])
@pytest.mark.parametrize("shift", slow_but((False, True), True))
@pytest.mark.parametrize("phi", ACTIVATIONS, ids=lambda phi: phi.kind)
def test_members_without_variance(phi: Activation, shift: bool, norm: float) -> None:
    """The truth at points, and the sum of the functions of the members, each found as a network of its own."""
    ensemble = certain_ensemble(6, (3, 9, 7, 2), activation=phi, shift=shift, zeros=True)
    box = Box.ball(normal(4, 3, seed=5), 0.2, norm=norm)
    found, x = certify(ensemble, box, Options()), points_of(box, 100)
    truth = mean_output(ensemble, x)
    assert holds(interval(found), truth, 1e-13)
    for point, value in zip(x, truth, strict=True):
        assert holds(Interval(found.affine.lower(point), found.affine.upper(point)), value, 1e-13)
    assert found.method == ("moment",) * 4
    total, separate = LowerSum.zero(box, 2), torch.zeros_like(found.lower)
    for weight, member in zip(ensemble.probabilities, ensemble.members, strict=True):
        own = certify(member, box, Options())
        total = total.plus(weight[None], of_affine(own.affine.lower, box))
        separate += weight * own.width
    loop = total.rounded()
    assert torch.allclose(found.affine.lower.matrix, loop.matrix, rtol=1e-9, atol=1e-11)
    assert torch.allclose(found.affine.lower.offset, loop.offset, rtol=1e-9, atol=1e-11)
    assert bool((found.width <= separate + 1e-12).all())
    assert found.width.mean() < 0.9 * separate.mean()  # members differ in where they are extreme


def test_a_point_is_exact_and_shifts_may_differ() -> None:
    ensemble, x = certain_ensemble(3, (4, 8, 2), shift=True), normal(5, 4, seed=2)
    found = certify(ensemble, Box(x, x))
    assert holds(interval(found), mean_output(ensemble, x), 1e-14)
    assert bool((found.width < 1e-11).all())


def test_random_members_are_the_sum_of_their_means() -> None:
    ensemble = Ensemble(tuple(make_network((2, 10, 1), seed, std=0.3) for seed in range(3)))
    x = normal(4, 2, seed=4)
    low = average(ensemble, [certify(member, Box(x, x)).lower for member in ensemble.members])
    found = certify(ensemble, Box(x, x))
    assert torch.allclose(found.lower, low, rtol=0, atol=1e-12)
    assert bool((found.lower <= low).all())


def test_members_of_every_kind() -> None:
    """Two groups of dense members, a random one, one with dropout; images; and the same function twice."""
    last = linear(2, 5, 6)
    random = (Linear.fixed(normal(5, 4, seed=8)), Relu(), last)
    still = BayesianNetwork((*random[:2], Linear.fixed(last.weight_mean, last.bias_mean)))  # the same mean
    dropped = (Linear.fixed(normal(6, 4, seed=9)), Tanh(), Dropout(0.3), Linear.fixed(normal(2, 6, seed=10)))
    kept = BayesianNetwork((*dropped[:2], dropped[3]))  # dropout after the last activation keeps the mean
    plain = [certain_member((4, 6, 2), seed) for seed in range(3)] + [certain_member((4, 5, 5, 2), 7)]
    ensemble = Ensemble((*plain, BayesianNetwork(random), BayesianNetwork(dropped)))
    assert [len(group) for group in ensemble.alike] == [3, 1, 1, 1]
    box = Box.ball(normal(3, 4, seed=5), 0.2)
    assert holds(interval(certify(ensemble, box)), mean_output(Ensemble((*plain, still, kept)), points_of(box, 100)))
    layers = (conv(2, 1, 3, size=2, std=0.0), Relu(), Flatten(), Linear.fixed(normal(2, 2, seed=5)))
    image = BayesianNetwork(layers, input_shape=(1, 2, 2))
    found = certify(Ensemble((image, image)), box)
    assert holds(interval(found), outputs(image, points_of(box, 100))[0])
    assert torch.allclose(found.lower, certify(image, box).lower, rtol=0, atol=1e-11)


def test_refinement_of_many_members() -> None:
    ensemble, box = certain_ensemble(20, (2, 6, 1)), Box.ball(normal(2, 2, seed=5), 0.3)
    one, refined = certify(ensemble, box), certify(ensemble, box, Options(refine=16))
    assert bool((refined.width < 0.8 * one.width).all())
    assert holds(interval(refined), mean_output(ensemble, points_of(box, 300)))


def test_what_overflows_is_refused() -> None:
    """The mean is a real number and may lie beyond the largest float64 number."""
    broken = BayesianNetwork(
        (Linear.fixed(1e200 * normal(3, 2, seed=1).abs()), Relu(), Linear.fixed(1e200 * normal(2, 3, seed=2)))
    )
    good, box = certain_member((2, 3, 2), 1), Box.ball([[1.0, 1.0]], 0.1)
    for network in (broken, Ensemble((good, broken))):
        with pytest.raises(MagnitudeError, match="in layer 2"):
            certify(network, box)
    light = certify(Ensemble((good, broken), torch.tensor([1.0, 0.0])), box)
    assert torch.allclose(light.lower, certify(good, box).lower, rtol=0, atol=1e-12)


# Rounding


@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-120])
def test_bounds_at_a_point_hold_the_exact_value_though_terms_cancel(scale: float) -> None:
    """The mean over pairs of members is what rounding leaves of terms that are 1e9 times as large."""
    members = []
    for seed in range(12):
        bias = torch.tensor([(1.0 if seed % 2 else -1.0) * 1e9 * scale / 3], dtype=F64)
        first, last = scale * normal(6, 3, seed=seed), normal(1, 6, seed=seed + 20)
        members.append(BayesianNetwork((Linear.fixed(first), Relu(), Linear.fixed(last, bias))))
    ensemble, x = Ensemble(tuple(members)), normal(5, 3, seed=2)
    assert len(ensemble.alike) == 1
    found = certify(ensemble, Box(x, x))
    for low, high, point in zip(found.lower[:, 0].tolist(), found.upper[:, 0].tolist(), x.tolist(), strict=True):
        pairs = zip(members, ensemble.probabilities.tolist(), strict=True)
        truth = sum((Fraction(w) * rational_outputs(m, point)[0] for m, w in pairs), Fraction(0))
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low <= 1e-3 * scale  # 1e-12 of the largest terms
