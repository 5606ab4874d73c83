"""Mean and variance of margins: exact for at most one hidden layer (Arb), large samples beyond; points and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from flint import arb, ctx
from support.oracles import PRECISION, pre_activation, rectified
from tests.engine.dense import cases, truth
from torch import Tensor

from bnndp.attack.inside import candidates
from bnndp.engine.dense.forward import Parameters, hidden_layers
from bnndp.engine.dense.margins import margin_rows, margins, mean_margins
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]
INF = math.inf


def every(network: BayesianNetwork, box: Box) -> Tensor:
    """All classes as references: (batch, classes)."""
    return torch.arange(network.n_out).expand(box.batch, -1)


def with_logits(case: cases.Case, classes: int) -> BayesianNetwork:
    """The hidden layers of a case and a layer of logits of the same kind on top."""
    hidden = cases.network(case).linears[:-1]
    generator = torch.Generator().manual_seed(5000 + case.seed)
    n, (low, high) = hidden[-1].n_out, case.std

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    weight = torch.randn(classes, n, generator=generator, dtype=torch.float64) * 2 / n**0.5
    std = [low * (high / low) ** rand(*shape) * (rand(*shape) >= case.zeros) for shape in ((classes, n), (classes,))]
    bias = torch.randn(classes, generator=generator, dtype=torch.float64)
    return BayesianNetwork.from_linears([*hidden, Linear(weight, std[0] / n**0.5, bias, std[1])], "classification")


# At most one hidden layer: exact


@dataclass(frozen=True)
class Exact:
    """Balls of the mean and variance of every margin at a point: [c][j]."""

    mean: list[list[arb]]
    variance: list[list[arb]]


def exact_margins(network: BayesianNetwork, x: list[float]) -> Exact:
    """Without or with one hidden layer: z independent, given z the logits are independent Gaussians."""
    last = network.linears[-1]
    with ctx.workprec(PRECISION):
        if network.depth == 0:
            z = [(arb(v), arb(v) ** 2, arb(0)) for v in x]
        else:
            moments = [rectified(m, r) for m, r in pre_activation(network, x)]
            z = [(m.mean, m.second, m.variance) for m in moments]
        mean, std, bias, bias_std = (
            t.tolist() for t in (last.weight_mean, last.weight_std, last.bias_mean, last.bias_std)
        )

        def pair(c: int, j: int) -> tuple[arb, arb]:
            if c == j:
                return arb(0), arb(0)
            d, v = arb(bias[c]) - arb(bias[j]), arb(bias_std[c]) ** 2 + arb(bias_std[j]) ** 2
            for i, (first, second, variance) in enumerate(z):
                w = arb(mean[c][i]) - arb(mean[j][i])
                d += w * first
                v += w * w * variance + (arb(std[c][i]) ** 2 + arb(std[j][i]) ** 2) * second
            return d, v

        pairs = [[pair(c, j) for j in range(last.n_out)] for c in range(last.n_out)]
        return Exact([[d for d, _ in row] for row in pairs], [[v for _, v in row] for row in pairs])


EXACT = [
    ((3, 4), 0.3, 0.0),
    ((1, 2), 2.0, 0.3),
    ((3, 5, 3), 0.3, 0.0),
    ((2, 12, 4), 1.0, 0.3),
    ((2, 1, 2), 3.0, 0.0),
    ((4, 6, 3), 1e-6, 0.0),
    ((4, 6, 3), 0.0, 0.0),
]


@pytest.mark.parametrize(("sizes", "std", "zeros"), EXACT)
@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.1, 1.0])
def test_exact_margins_lie_within(
    random_network: NetworkFactory, sizes: tuple[int, ...], std: float, zeros: float, radius: float
) -> None:
    """At the centre, vertices and random points, on both sides of zero; no tolerance."""
    network = random_network(sizes, seed=sum(sizes), std=std, zeros=zeros, task="classification")
    generator = torch.Generator().manual_seed(1)
    box = Box.ball(torch.randn(2, sizes[0], generator=generator, dtype=torch.float64), radius)
    found = margins(network, box, every(network, box))
    assert not found.mean.isnan().any()
    points = candidates(box, seed=3, points=3, vertices=4)[:12]
    for b in range(box.batch):
        for x in points[:, b].tolist():
            exact = exact_margins(network, x)
            for c in range(network.n_out):
                for j in range(network.n_out):
                    assert arb(found.mean[b, c, j].item()) <= exact.mean[c][j]
                    assert arb(found.variance[b, c, j].item()) >= exact.variance[c][j]


@pytest.mark.parametrize(("sizes", "std", "zeros"), EXACT)
def test_at_a_point_both_are_exact(
    random_network: NetworkFactory, sizes: tuple[int, ...], std: float, zeros: float
) -> None:
    network = random_network(sizes, seed=sum(sizes), std=std, zeros=zeros, task="classification")
    x = torch.linspace(-1, 1.3, sizes[0], dtype=torch.float64)[None]
    box = Box(x, x)
    found = margins(network, box, every(network, box))
    exact = exact_margins(network, x[0].tolist())
    for c in range(network.n_out):
        for j in range(network.n_out):
            assert found.mean[0, c, j].item() == pytest.approx(float(exact.mean[c][j]), rel=1e-9, abs=1e-11)
            assert found.variance[0, c, j].item() == pytest.approx(float(exact.variance[c][j]), rel=1e-6, abs=1e-12)


# Deeper: samples


DEEP = [case for case in cases.CASES if len(case.sizes) > 2]


def sampled(network: BayesianNetwork, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Given the last hidden layer: mean (samples, pairs) and variance of all margins, [c * classes + j]."""
    z = truth.draw(network, x, seed, samples=20_000)[-1].z
    last = network.linears[-1]
    pairs = (last.weight_mean[:, None] - last.weight_mean).flatten(0, 1)
    bias = (last.bias_mean[:, None] - last.bias_mean).flatten()
    other = 1 - torch.eye(last.n_out, dtype=torch.float64).flatten()
    spread = (last.weight_std.square()[:, None] + last.weight_std.square()).flatten(0, 1) * other[:, None]
    bias_spread = (last.bias_std.square()[:, None] + last.bias_std.square()).flatten() * other
    return z @ pairs.T + bias, z.square() @ spread.T + bias_spread


@pytest.mark.parametrize("case", DEEP, ids=str)
@pytest.mark.parametrize("depth", [2, 3])
def test_sampled_margins_lie_within(case: cases.Case, depth: int) -> None:
    """Mean and variance at the centre, a vertex and a random point: Var D = E s(z) + Var m(z)."""
    whole = with_logits(case, 4)
    hidden = whole.linears[:-1][:depth]
    network = BayesianNetwork.from_linears([*hidden, _fitted(whole.linears[-1], hidden[-1].n_out)], "classification")
    box = cases.region(case)
    found = margins(network, box, every(network, box))
    found_optimised = margins(network, box, every(network, box), steps=3)
    assert (found_optimised.mean >= found.mean - 1e-13 * found.mean.abs().max()).all()  # of another order of sums
    assert torch.equal(found_optimised.variance, found.variance)
    for index, x in enumerate(cases.points(case)):
        m, s = sampled(network, x, seed=index)
        truth.at_least(truth.mean(m), found.mean[0].flatten(), "a mean margin")
        truth.at_least(truth.mean(m), found_optimised.mean[0].flatten(), "an optimised mean margin")
        variance = (m - m.mean(0)).square() + s
        estimate = truth.mean(variance, m.abs().mean(0).square() + s.mean(0))
        truth.at_most(estimate, found.variance[0].flatten(), "the variance of a margin")


def _fitted(layer: Linear, n_in: int) -> Linear:
    """The layer with its columns repeated or cut to take ``n_in`` inputs."""
    index = torch.arange(n_in) % layer.n_in
    return Linear(layer.weight_mean[:, index], layer.weight_std[:, index], layer.bias_mean, layer.bias_std)


@pytest.mark.parametrize("sizes", [(3, 9, 4), (3, 8, 7, 4), (3, 6, 6, 5, 3)])
def test_an_attack_along_the_gradient_does_not_get_below(
    random_network: NetworkFactory, sizes: tuple[int, ...]
) -> None:
    """Without variance the margins are an ordinary function: descend each from many points."""
    network = random_network(sizes, seed=7, std=0.0, task="classification")
    box = Box.ball(torch.tensor([[0.4, -0.3, 0.1]], dtype=torch.float64), 0.3)
    found = margins(network, box, every(network, box), steps=5).mean[0]
    x = candidates(box, seed=0, points=40)[:, 0]
    best = torch.full_like(found, INF)
    for c in range(network.n_out):
        for j in range(network.n_out):
            at = x.clone().requires_grad_()
            for step in range(30):
                z = at
                for index, layer in enumerate(network.linears):
                    z = (z.clamp_min(0) if index else z) @ layer.weight_mean.T + layer.bias_mean
                value = z[:, c] - z[:, j]
                best[c, j] = min(float(best[c, j]), float(value.detach().min()))
                if c == j:
                    break
                (slope,) = torch.autograd.grad(value.sum(), at)
                move = at.detach() - 0.3 * 0.85**step * slope.sign()
                at = move.clamp(box.lower, box.upper).requires_grad_()
    assert (found <= best + 1e-12).all()
    assert (best - found).max() < 2.0  # and the bound is not idle


# Extremes


def one_neuron(mean: float, std: float, weight: float, weight_std: float) -> BayesianNetwork:
    first = Linear(torch.tensor([[1.0]]), torch.tensor([[std]]), torch.tensor([mean]), torch.tensor([std]))
    last = Linear(torch.tensor([[weight], [-weight]]), weight_std * torch.ones(2, 1), torch.zeros(2), torch.zeros(2))
    return BayesianNetwork.from_linears([first, last], "classification")


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("bias", [-1e3, -5.0, 0.0, 5.0])
def test_scales_from_tiny_to_huge(scale: float, bias: float) -> None:
    box = Box(torch.tensor([[-0.5]]), torch.tensor([[0.5]]))
    network = one_neuron(bias, 0.3, scale, scale)
    found = margins(network, box, torch.tensor([[0]]))
    for x in (-0.5, 0.0, 0.5):
        exact = exact_margins(network, [x])
        assert arb(found.mean[0, 0, 1].item()) <= exact.mean[0][1]
        assert arb(found.variance[0, 0, 1].item()) >= exact.variance[0][1]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_what_overflows_has_no_bound(random_network: NetworkFactory, depth: int) -> None:
    sizes = (2, *(4,) * depth, 3)
    calm = random_network(sizes, seed=1, std=0.3, task="classification")
    loud = [Linear(1e120 * k.weight_mean, 1e120 * k.weight_std, k.bias_mean, k.bias_std) for k in calm.linears]
    network = BayesianNetwork.from_linears(loud, "classification")
    box = Box.ball(torch.tensor([[1e80, -1e80]], dtype=torch.float64), 1.0)
    found = margins(network, box, every(network, box))
    other = ~torch.eye(3, dtype=torch.bool)
    mean, variance = found.mean[0][other], found.variance[0][other]
    assert (~(variance < INF)).all()
    assert (mean.isfinite() | mean.isnan() | (mean == -INF)).all()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_box_is_bounded_alike_in_any_batch_and_for_any_references(random_network: NetworkFactory, depth: int) -> None:
    network = random_network((3, *(6,) * depth, 4), seed=2, std=0.4, task="classification")
    generator = torch.Generator().manual_seed(0)
    box = Box.ball(torch.randn(5, 3, generator=generator, dtype=torch.float64), 0.1)
    whole = margins(network, box, every(network, box))
    reference = torch.tensor([[2], [0], [3], [1], [1]])
    some = margins(network, box, reference)
    for b, c in enumerate(reference[:, 0].tolist()):
        assert torch.allclose(some.mean[b, 0], whole.mean[b, c], rtol=1e-12, atol=1e-13)
        assert torch.allclose(some.variance[b, 0], whole.variance[b, c], rtol=1e-12, atol=1e-13)


def test_margins_keep_what_two_logits_share() -> None:
    """Both logits move together: two separate intervals would leave a range of two for a margin that is constant."""
    first = Linear(torch.tensor([[1.0]]), torch.tensor([[0.0]]), torch.tensor([5.0]), torch.tensor([0.0]))
    last = Linear(torch.tensor([[1.0], [1.0]]), torch.zeros(2, 1), torch.tensor([0.5, 0.0]), torch.zeros(2))
    network = BayesianNetwork.from_linears([first, last], "classification")
    found = margins(network, Box(torch.tensor([[-1.0]]), torch.tensor([[1.0]])), torch.tensor([[0]]))
    assert found.mean[0, 0, 1].item() == pytest.approx(0.5, abs=1e-12)
    assert found.variance[0, 0, 1].item() == pytest.approx(0.0, abs=1e-12)


def test_rows_are_differences_of_the_layer(random_network: NetworkFactory) -> None:
    output = random_network((5, 4), seed=3, task="classification").linears[0]
    rows = margin_rows(output, torch.tensor([[2], [0]]))
    assert torch.equal(rows.weight[0], output.weight_mean[2] - output.weight_mean)
    assert torch.equal(rows.variance[1, 3], output.weight_std[0].square() + output.weight_std[3].square())
    assert not rows.variance[0, 2].any()
    assert not rows.bias_variance[1, 0].any()
    assert torch.equal(rows.bias[1], output.bias_mean[0] - output.bias_mean)


def test_rounding_of_the_rows_is_within_their_blur(random_network: NetworkFactory) -> None:
    output = random_network((50, 3), seed=4, task="classification").linears[0]
    rows = margin_rows(output, torch.tensor([[1]]))
    with ctx.workprec(PRECISION):
        for j in range(3):
            for i, (w, blur) in enumerate(zip(rows.weight[0, j].tolist(), rows.blur[0, j].tolist(), strict=True)):
                exact = arb(output.weight_mean[1, i].item()) - arb(output.weight_mean[j, i].item())
                assert abs(arb(w) - exact) <= arb(blur)


def test_the_planes_hold_everywhere_in_the_box(random_network: NetworkFactory) -> None:
    """Not only their minimum: one hidden layer, exact means, at points inside."""
    network = random_network((2, 8, 3), seed=5, std=0.5, task="classification")
    box = Box.ball(torch.tensor([[0.2, -0.4]], dtype=torch.float64), 0.5)
    rows = margin_rows(network.linears[-1], torch.tensor([[1]]))
    affine = mean_margins(rows, hidden_layers(network.linears[:-1], box, Parameters()))
    for x in candidates(box, seed=2, points=12)[:, 0]:
        exact = exact_margins(network, x.tolist())
        found = affine(x[None])[0].tolist()
        assert all(arb(value - 1e-14) <= exact.mean[1][j] for j, value in enumerate(found))


def test_a_box_does_not_depend_on_the_others_of_its_batch() -> None:
    """Neurons are taken together by what boxes ask of them; that changes rounding at most."""
    generator = torch.Generator().manual_seed(7)

    def layer(n_out: int, n_in: int, lift: float) -> Linear:
        weight = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64) * 1.4 / n_in**0.5
        bias = lift + 0.5 * torch.randn(n_out, generator=generator, dtype=torch.float64)
        return Linear(weight, 0.02 * torch.rand_like(weight), bias, 0.02 * torch.rand_like(bias))

    network = BayesianNetwork.from_linears([layer(24, 6, 0), layer(20, 24, -0.7), layer(4, 20, 0)], "classification")
    eps = 10.0 ** torch.linspace(-4, 0, 40, dtype=torch.float64)  # dead, straddling and active neurons in all shares
    box = Box.ball(torch.rand(40, 6, generator=generator, dtype=torch.float64), eps)
    together = margins(network, box, every(network, box))
    for b in range(0, 40, 3):
        one = box[b : b + 1]
        alone = margins(network, one, every(network, one))
        assert torch.allclose(alone.mean, together.mean[b : b + 1], rtol=1e-11, atol=1e-11)
        assert torch.allclose(alone.variance, together.variance[b : b + 1], rtol=1e-9, atol=1e-12)
