"""The proof by moments: everything that is said of a hidden layer, against draws of the layers before it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bnndp.certificates.certificate import plain
from bnndp.certificates.prove import prove_mean
from bnndp.geometry.box import Box as Region
from bnndp.layers import Linear
from bnndp.maths.rectified import expected_relu, moments
from bnndp.network import BayesianNetwork

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb

from bnndp_checker.ball_arithmetic import Rejected, use_precision
from bnndp_checker.layers import Box, Gaussian, gaussian
from bnndp_checker.moment import First, Known, _layer, _row_variance, moment_bounds
from bnndp_checker.read_model import Layer
from bnndp_checker.read_model import Tensor as Stored
from bnndp_checker.strict_json import Unreadable

DRAWS = 20_000


@pytest.fixture(autouse=True)
def _precision() -> None:
    use_precision()


def _network(std: float | list[float], *sizes: int) -> BayesianNetwork:
    stds = std if isinstance(std, list) else [std] * (len(sizes) - 1)
    dice = torch.Generator().manual_seed(len(sizes))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice, dtype=torch.float64)

    return BayesianNetwork.from_linears(
        Linear(normal(b, a) / a**0.5, own * normal(b, a).abs(), 0.3 * normal(b), own * normal(b).abs())
        for (a, b), own in zip(itertools.pairwise(sizes), stds, strict=True)
    )


def _read(linear: Linear) -> Layer:
    tensors = {name: getattr(linear, name) for name in linear.tensors}
    return Layer(
        "linear", {}, {name: Stored(tuple(t.shape), tuple(t.flatten().tolist())) for name, t in tensors.items()}
    )


def _known(network: BayesianNetwork, region: Region) -> tuple[First, list[Known], list[Gaussian], dict[str, Any]]:
    eye = torch.eye(network.n_out, dtype=torch.float64)
    proof = prove_mean(network, region, torch.cat([eye, -eye]))
    assert proof.tree(0)["kind"] == "moment"
    (part,) = plain(proof.tree(0)["members"])
    box = Box(*([arb(x) for x in side[0].tolist()] for side in (region.lower, region.upper)))
    layers = [gaussian(_read(linear), ()) for linear in network.linears]
    first = First(layers[0], box, part["steps"][0])
    known = [first.known]
    for layer, given in zip(layers[1:-1], part["steps"][1:], strict=True):
        known.append(_layer(layer, given, first, known, "layer"))
    return first, known, layers, part


def _law(linear: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the pre-activations given z."""
    return (
        z @ linear.weight_mean.T + linear.bias_mean,
        z.square() @ linear.weight_std.T.square() + linear.bias_std.square(),
    )


def _values(balls: list[Any]) -> Tensor:
    return torch.tensor([float(x) for x in balls], dtype=torch.float64)


REGION = Region.ball(torch.tensor([[0.4, -0.3]], dtype=torch.float64), 0.1)
POINTS = [REGION.lower, REGION.upper, REGION.centre]


@pytest.mark.parametrize("std", [0.1, 0.6, [0.6, 0.0, 0.0, 0.0], [0.9, 0.0, 0.9, 0.0]], ids=str)
def test_what_is_known_of_hidden_layers(std: float | list[float]) -> None:
    network = _network(std, 2, 5, 4, 3, 2)
    _, known, _, _ = _known(network, REGION)
    dice = torch.Generator().manual_seed(3)
    for x in POINTS:
        z = x.expand(DRAWS, -1)
        for k, (linear, said) in enumerate(zip(network.linears[:-1], known, strict=True)):
            m, s = _law(linear, z)
            given = moments(m, s.sqrt())  # of z given the layer before
            mean, square, fourth = given.mean, given.second, given.fourth
            near = 6 / math.sqrt(DRAWS)

            def at_least(found: list[Any], values: Tensor) -> None:
                error = near * values.std(0) + 1e-9  # noqa: B023
                assert bool((_values(found) >= values.mean(0) - error).all())

            at_least(said.high, mean)
            at_least([-a for a in said.low], -mean)
            at_least(said.square, square)
            at_least([-a for a in said.square_low], -square)
            at_least(said.fourth, fourth)
            at_least(said.noise, square - mean.square())
            at_least(said.square_noise, fourth - square.square())
            at_least(said.variance, square - mean.mean(0).square())
            if k:
                remainder = mean - _values(said.slope) * m
                at_least([a**2 for a in said.remainder], (remainder - remainder.mean(0)).square())
                at_least([a**2 for a in said.square_sd], (square - square.mean(0)).square())
            z = (m + s.sqrt() * torch.randn(m.shape, generator=dice, dtype=torch.float64)).clamp_min(0)
            rows = [[1.0, -1.0, 0.5, *[0.2] * (z.shape[1] - 3)], [1.0] * z.shape[1]]
            total = z @ torch.tensor(rows, dtype=torch.float64).T
            bounds = _row_variance([[arb(a) for a in row] for row in rows], known[: k + 1])
            at_least(bounds, (total - total.mean(0)).square())


@pytest.mark.parametrize("vertices", [True, False])
def test_planes_of_the_first_layer(vertices: bool) -> None:
    """E z is known for every x: planes above and below it, of both kinds."""
    network = _network(0.4, 2, 6, 1)
    region = REGION
    _, _, layers, part = _known(network, region)
    given = part["steps"][0]
    if vertices:
        given = {"tangent": given["tangent"], "vertices": [[(0.3).hex(), (-0.2).hex()]] * 6}
    else:
        given = {"tangent": given["tangent"]} | {
            key: [value.hex()] * 6 for key, value in (("alpha", 0.5), ("beta", 0.3), ("root", 0.2))
        }
    first = First(layers[0], Box(*([arb(x) for x in side[0].tolist()] for side in (region.lower, region.upper))), given)
    eye = [[arb(sign * (i == j)) for j in range(6)] for sign in (1, -1) for i in range(6)]
    rows, constants = first.back(eye, [arb(0)] * 12)
    lines, ends = torch.stack([_values(row) for row in rows]), _values(constants)
    gaps = []
    for a, b in itertools.product((0.0, 0.5, 1.0), repeat=2):
        x = region.lower[0] + torch.tensor([a, b], dtype=torch.float64) * (region.upper - region.lower)[0]
        m, s = _law(network.linears[0], x)
        truth = expected_relu(m, s.sqrt())
        gaps.append(lines @ x + ends - torch.cat([truth, -truth]))
    least = torch.stack(gaps).amin(0)
    assert bool((least >= -1e-12).all())
    assert bool((least[6:] < 0.02).all())  # tangents touch
    assert not vertices or bool((least[:6] < 1e-12).all())  # at one vertex at least


def test_the_squares_of_a_layer_move_together() -> None:
    """What all z^2 do alike, given the layer before, adds in deviations, not in squares."""
    network = _network(0.3, 2, 4, 3, 3, 1)
    first, known, layers, part = _known(network, REGION)
    alike = replace(known[1], square_noise=[arb(0)] * 3, square_sd=[arb(100)] * 3)
    found = _layer(layers[2], part["steps"][2], first, [known[0], alike], "layer")
    shares = 100 * network.linears[2].weight_std.square().sum(-1)  # sd s, at least
    middle = _values([arb(float.fromhex(text)) for text in part["steps"][2]["middle"]])
    assert bool((_values(found.remainder) >= 0.398 * shares / middle.sqrt()).all())
    assert bool((_values(found.square_sd) >= shares).all())


def test_ranges_of_means_that_are_not_proved() -> None:
    network = _network(0.3, 2, 4, 3, 1)
    first, known, layers, part = _known(network, REGION)
    for key, by in (("mean", 1), ("mean", -1)):
        given = plain({**part["steps"][1]})
        side = 0 if by > 0 else 1
        given[key] = [list(part_) for part_ in given[key]]
        given[key][side][0] = (float.fromhex(given[key][side][0]) + 0.3 * by).hex()
        with pytest.raises(Rejected, match="range"):
            _layer(layers[1], given, first, known[:1], "layer")
    for key, value in (
        ("level", 0.0),
        ("level", -1.0),
        ("middle", 0.0),
        ("reach", 0.0),
        ("centre", 1.5),
        ("centre", -0.1),
    ):
        with pytest.raises(Rejected):
            _layer(layers[1], part["steps"][1] | {key: [value.hex()] * 3}, first, known[:1], "layer")


@pytest.mark.parametrize(
    "kinds",
    [
        ["linear"],
        ["linear", "relu"],
        ["linear", "relu", "linear", "relu"],
        ["linear", "linear"],
        ["linear", "tanh", "linear"],
    ],
)
def test_other_networks_are_refused(kinds: list[str]) -> None:
    layer = _read(_network(0.1, 2, 2).linears[0])
    layers = [layer if kind == "linear" else Layer(kind, {}, {}) for kind in kinds]
    with pytest.raises(Unreadable, match="dense ReLU"):
        moment_bounds(layers, (2,), Box([arb(0)] * 2, [arb(1)] * 2), [[arb(1)] * 2], {"steps": []})
