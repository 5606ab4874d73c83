"""Mixtures of networks: what they refuse, what they keep, and weights that sum to one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.ensembles import certain_member, outputs
from support.records import linear, normal, uniform

from bnndp.activations import LeakyRelu, PiecewiseAffine, Relu, Tanh
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Ensemble


def member(seed: int = 0, n_in: int = 4, n_out: int = 3, **settings: Any) -> BayesianNetwork:
    return BayesianNetwork((linear(5, n_in, seed), Tanh(), linear(n_out, 5, seed + 1)), **settings)


def test_an_ensemble_has_the_sizes_of_its_members() -> None:
    own = Ensemble((member(0), member(1)))
    assert (own.n_in, own.n_out, own.task, own.depth, own.widest) == (4, 3, "regression", 1, 5)
    assert own.input_shape == (4,)
    assert not own.plain
    assert own.random
    assert repr(own) == "Ensemble(2 x BayesianNetwork(4-5-3, regression, linear tanh linear))"
    assert own.probabilities.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (member(1, n_in=5), "input_shape"),
        (member(1, n_out=2), "n_out"),
        (member(1, task="classification"), "task"),
        (Ensemble((member(1),)), "member 1 is Ensemble"),
        (linear(3, 4, 0), "member 1 is Linear"),
    ],
    ids=["inputs", "outputs", "task", "an ensemble", "a layer"],
)
def test_members_must_agree(other: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        Ensemble((member(0), other))


def test_no_members_are_refused() -> None:
    with pytest.raises(InputError, match="at least one member"):
        Ensemble(())


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        ([0.5, 0.5 + 1e-8], "sum to 1"),
        ([1.0, 1.0], "sum to 1"),
        ([0.0, 0.0], "sum to 1"),
        ([1.5, -0.5], r"weights\[1\] is -0.5"),
        ([math.nan, 1.0], "not finite"),
        ([math.inf, 1.0], "not finite"),
        ([1.0], r"shape \(2,\)"),
        ([[0.5, 0.5]], r"shape \(2,\)"),
    ],
    ids=str,
)
def test_wrong_weights_are_refused(weights: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        Ensemble((member(0), member(1)), weights)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 49, 1000])
def test_weights_are_divided_once_and_then_kept_bit_for_bit(count: int) -> None:
    one = member(0)
    given = uniform(count, seed=count)
    given = given / given.sum() * (1 + 3e-10)
    kept = Ensemble((one,) * count, given).probabilities
    assert abs(math.fsum(kept.tolist()) - 1) <= 2**-51
    assert torch.equal(Ensemble((one,) * count, kept).probabilities, kept)
    assert torch.allclose(kept, given, rtol=1e-9, atol=0)
    equal = Ensemble((one,) * count).probabilities
    assert torch.equal(Ensemble((one,) * count, equal).probabilities, equal)


def test_the_digest_sees_members_order_and_weights() -> None:
    a, b = member(0), member(1)
    own = [Ensemble((a, b)), Ensemble((b, a)), Ensemble((a, a)), Ensemble((a, b), [0.25, 0.75])]
    assert len({one.digest() for one in own} | {a.digest()}) == 5
    assert Ensemble((a, b)).digest() == Ensemble((a, b)).to("cpu").digest()


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ensemble((member(0),)).members = ()  # type: ignore[misc]


def test_stacked_samples_make_networks_without_variance() -> None:
    samples = [(normal(6, 5, 4, seed=1), normal(6, 5, seed=2)), (normal(6, 2, 5, seed=3), normal(6, 2, seed=4))]
    x, shift = normal(3, 4, seed=5), normal(4, seed=6)
    for activation in (None, Tanh()):
        own = Ensemble.of_samples(samples, activation=activation, shift=shift)
        assert (len(own.members), own.random) == (6, False)
        hidden = torch.einsum("moi,pi->mpo", samples[0][0], x - shift) + samples[0][1][:, None]
        hidden = hidden.clamp_min(0) if activation is None else hidden.tanh()
        want = torch.einsum("moi,mpi->mpo", samples[1][0], hidden) + samples[1][1][:, None]
        got = torch.stack([outputs(one, x)[0] for one in own.members])
        assert torch.allclose(got, want, rtol=1e-12, atol=1e-12)
    assert isinstance(Ensemble.of_samples(samples).members[0].layers[1], Relu)
    with pytest.raises(InputError, match="one sample for each member"):
        Ensemble.of_samples([(normal(6, 5, 4, seed=1), normal(5, 5, seed=2))])


def test_members_are_grouped_by_structure_and_variance() -> None:
    surrogate = PiecewiseAffine.of(torch.sin, 1.0, reach=3.0, pieces=8)
    same = PiecewiseAffine(surrogate.knots, surrogate.values, 1.0, 0.5)
    random = BayesianNetwork((*certain_member((2, 3, 1), 0).layers[:2], linear(1, 3, 1)))
    activations = (Tanh(), LeakyRelu(0.1), LeakyRelu(0.2), surrogate, surrogate, same)
    members = (
        certain_member((2, 3, 1), 0),
        random,
        certain_member((2, 3, 1), 1),
        certain_member((2, 4, 1), 2),
        certain_member((2, 3, 1), 4, shift=True),
        random,
        certain_member((2, 3, 1), 7),
        *(certain_member((2, 3, 1), 8, activation=phi) for phi in activations),
    )
    ensemble = Ensemble(members)
    assert ensemble.alike == ((0, 2, 6), (1,), (3,), (4,), (5,), (7,), (8,), (9,), (10, 11), (12,))
    assert len(ensemble.examples) == len(ensemble.alike)
    assert Ensemble((random, random)).alike == ((0,), (1,))
