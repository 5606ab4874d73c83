"""The normal form has the law of the network: layer by layer against explicit covariances, and by its own draws."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import records
from support.layer_networks import make_case
from support.records import conv, correlated, linear, matrix_normal, normal, uniform

from bnndp.activations import Elu, Identity, LeakyRelu, PiecewiseAffine, Relu, Tanh
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.geometry.box import Box
from bnndp.layers import (
    AveragePool,
    Branched,
    Concatenate,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)  # fmt: skip
from bnndp.network import BayesianNetwork, Ensemble, normal_form
from bnndp.network.normal_form import _FORMS
from bnndp.questions.certify import certify

F64 = torch.float64


def only(layer: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The layers of the normal form of a network that ends in a layer of two outputs."""
    size = torch.Size(layer.out_shape(shape)).numel()
    found = normal_form(BayesianNetwork((layer, Tanh(), Flatten(), linear(2, size, 9)), input_shape=shape))
    assert isinstance(found, BayesianNetwork)
    return found.layers[:-2]


def diagonal(n: int, seed: int) -> torch.Tensor:
    """A diagonal matrix of both signs with its columns in another order."""
    return torch.diag(normal(n, seed=seed))[:, torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


def rows_of_one(n_out: int, n_in: int, seed: int) -> CorrelatedLinear:
    base, zero = linear(n_out, n_in, seed), torch.zeros(n_out, n_in)
    factor = torch.stack([diagonal(n_in + 1, seed + k) for k in range(n_out)])
    return CorrelatedLinear(base.weight_mean, zero, base.bias_mean, zero[:, 0], factor, False)


def blocks(n_out: int, n_in: int, seed: int) -> CorrelatedLinear:
    """One factor for the layer, of which each Gaussian belongs to one row."""
    rows = [normal(n_in + 1, 2 + k % 2, seed=seed + k) for k in range(n_out)]
    factor = torch.block_diag(*rows).reshape(n_out, n_in + 1, -1)
    return replace(correlated(n_out, n_in, seed, shared=True), factor=factor)


def of_two_rows() -> CorrelatedLinear:
    """A diagonal factor but for one Gaussian, which two of three rows share."""
    factor = torch.diag(normal(9, seed=4)).reshape(3, 3, 9)
    factor[2, 1] = factor[0, 0]
    return replace(correlated(3, 2, 4, shared=True, std=0.0), factor=factor)


LAYERS: dict[str, tuple[Any, tuple[int, ...], type]] = {
    "rows of one": (rows_of_one(3, 4, 1), (4,), Linear),
    "a factor of zeros": (replace(correlated(3, 4, 1, shared=True), factor=torch.zeros(3, 5, 1)), (4,), Linear),
    "blocks": (blocks(3, 4, 2), (4,), CorrelatedLinear),
    "a Gaussian of two rows": (of_two_rows(), (2,), CorrelatedLinear),
    "shared": (correlated(3, 4, 3, shared=True), (4,), CorrelatedLinear),
    "own rows": (correlated(3, 4, 3, shared=False), (4,), CorrelatedLinear),
    "kronecker": (
        MatrixNormalLinear(normal(3, 4, seed=1), normal(3, seed=2), diagonal(3, 3), diagonal(5, 4)), (4,), Linear
    ),
    "kronecker with zeros": (
        MatrixNormalLinear(normal(2, 2, seed=1), normal(2, seed=2), diagonal(2, 3) * torch.tensor([1.0, 0.0]),
                           torch.zeros(3, 2)), (2,), Linear
    ),
    "kronecker with two in a row": (
        MatrixNormalLinear(normal(2, 2, seed=1), normal(2, seed=2), torch.tensor([[0.3, 0.4, 0.0], [0.0, 0.0, 0.5]]),
                           diagonal(3, 4)), (2,), MatrixNormalLinear
    ),
    "kronecker, full": (matrix_normal(3, 4, 5), (4,), MatrixNormalLinear),
    "one position": (conv(3, 2, 6, size=4), (2, 4, 4), Linear),
    "one position of a larger image": (conv(3, 2, 6, size=3, stride=5), (2, 4, 5), Linear),
    "one position in padding": (conv(3, 2, 6, size=7, padding=3, stride=9), (2, 4, 5), Linear),
    "one pixel": (conv(3, 2, 6, size=3, padding=1), (2, 1, 1), Linear),
    "several positions": (conv(3, 2, 6), (2, 4, 5), Conv2d),
    "one pixel in wide padding": (conv(3, 2, 6, size=1, padding=1), (2, 1, 1), Conv2d),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_the_law_of_a_layer_stays(name: str) -> None:
    layer, shape, kind = LAYERS[name]
    new = next(each for each in only(layer, shape) if not isinstance(each, Flatten))
    assert type(new) is kind
    z = normal(*shape, seed=7)
    mean, covariance = records.law(layer, z)
    found = records.law(new, z.flatten() if isinstance(new, Linear) else z)
    torch.testing.assert_close(found[0], mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found[1], covariance, rtol=1e-13, atol=1e-13)


def test_rows_of_their_own_need_fewer_gaussians() -> None:
    (new,) = only(LAYERS["blocks"][0], (4,))[:1]
    assert not new.shared
    assert new.factor.shape == (3, 5, 3)


@pytest.mark.parametrize("change", [1e-300, 5e-324])
def test_nothing_is_taken_for_zero(change: float) -> None:
    """A second Gaussian of any size, a product that underflows, a bias of any size: the layer stays as it is."""
    layer = rows_of_one(2, 2, 1)
    factor = layer.factor.clone()
    factor[0, 0] = torch.tensor([0.3, change, 0.0])
    assert isinstance(only(replace(layer, factor=factor), (2,))[0], CorrelatedLinear)
    tiny = torch.diag(torch.tensor([1e-160, 1.0], dtype=F64))
    small = MatrixNormalLinear(
        torch.eye(2), torch.zeros(2), tiny, torch.diag(torch.tensor([1e-160, 1.0, 1.0], dtype=F64))
    )
    assert isinstance(only(small, (2,))[0], MatrixNormalLinear)
    block = Residual((Linear.fixed(torch.zeros(2, 2), torch.tensor([0.0, change], dtype=F64)),))
    assert isinstance(only(block, (2,))[0], Residual)


def test_what_is_another_function_stays() -> None:
    """A clipped ReLU, slopes near those of others, blocks that double, pooling that drops values."""
    kept: list[tuple[Any, tuple[int, ...]]] = [
        (PiecewiseAffine(torch.tensor([-9.0, 0.0, 9.0]), torch.tensor([0.0, 0.0, 9.0]), 1.0, 0.0), (4,)),
        (PiecewiseAffine.of(lambda x: torch.relu(x), 1.0), (4,)),  # noqa: PLW0108 (a function of the user)
        (LeakyRelu(1e-300), (4,)),
        (LeakyRelu(1 - 1e-16), (4,)),
        (Elu(1e-300), (4,)),
        (Dropout(1e-300), (4,)),
        (Residual((Identity(),)), (4,)),
        (Residual((Relu(),), (Linear.fixed(torch.eye(4), torch.ones(4)),)), (4,)),
        (Residual((Relu(),), (Linear(torch.eye(4), torch.eye(4), torch.zeros(4), torch.zeros(4)),)), (4,)),
        (
            Residual((Relu(),), (Conv2d.fixed(torch.eye(2)[..., None, None], stride=1, padding=1), MaxPool(3, 1))),
            (2, 4, 4),
        ),
        (Concatenate(((), ())), (4,)),
        (Concatenate(((Linear.fixed(torch.ones(1, 4)),), (Linear.fixed(torch.ones(1, 4)), Relu()))), (4,)),
        (AveragePool(1, stride=2), (2, 4, 4)),
        (MaxPool(2), (2, 4, 4)),
    ]
    for layer, shape in kept:
        (new,) = (each for each in only(layer, shape) if each.kind == layer.kind)
        assert new is layer or isinstance(layer, Residual)
        if isinstance(layer, Branched):
            assert [len(branch) for branch in new.branches] == [len(branch) for branch in layer.branches]


@pytest.mark.parametrize("kind", ["residual", "projection", "concatenate", "conv_blocks"])
def test_networks_of_blocks_compute_the_same(kind: str) -> None:
    """Mean weights and draws of one seed, with every block in a block that changes nothing."""
    for index in range(12):
        network = make_case(5, kind, index).network
        form = normal_form(network).members[0]
        around = tuple(Concatenate(((layer,),)) for layer in network.layers[:-1])
        other = normal_form(BayesianNetwork((*around, network.layers[-1]), input_shape=network.input_shape)).members[0]
        assert [layer.kind for layer in other.layers] == [layer.kind for layer in form.layers]
        assert other.digest() == form.digest()
        certain = [without_noise(each) for each in (network, form)]
        x = normal(3, network.n_in, seed=index)
        one, two = (evaluate(draw_networks(each, 1, seed=0), x) for each in certain)
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def without_noise(network: BayesianNetwork) -> BayesianNetwork:
    return replace(network, layers=tuple(map(certain_layer, network.layers)))


def certain_layer(layer: Any) -> Any:
    if isinstance(layer, Branched):
        return layer.with_branches([[certain_layer(each) for each in branch] for branch in layer.branches])
    if isinstance(layer, Dropout):
        return Dropout(0.0, layer.law, layer.channels)
    names = [n for n in ("weight_std", "bias_std", "factor", "row_factor") if n in layer.tensors]
    return replace(layer, **{n: torch.zeros_like(getattr(layer, n)) for n in names}) if names else layer


def test_networks_of_images_compute_the_same() -> None:
    """Every value by torch, with and without what the normal form leaves out."""
    kernel, bias = normal(3, 2, 3, 3, seed=1), normal(3, seed=2)
    layers = (
        Conv2d.fixed(kernel, bias, padding=1), LeakyRelu(0.0), MaxPool(1), AveragePool(2), Dropout(0.0),
        Conv2d.fixed(normal(4, 3, 2, 2, seed=3)), Relu(), Conv2d.fixed(normal(2, 4, 1, 1, seed=4)), Flatten(),
    )  # fmt: skip
    network = BayesianNetwork(layers, input_shape=(2, 4, 4))
    kinds = [layer.kind for layer in normal_form(network).members[0].layers]
    assert kinds == ["conv2d", "relu", "average_pool", "flatten", "linear", "relu", "linear"]
    x = normal(5, 32, seed=5)
    z = F.avg_pool2d(F.relu(F.conv2d(x.reshape(5, 2, 4, 4), kernel, bias, padding=1)), 2)
    z = F.relu(F.conv2d(z, layers[5].weight_mean))  # type: ignore[union-attr]
    truth = F.conv2d(z, layers[7].weight_mean).flatten(1)  # type: ignore[union-attr]
    found = certify(network, Box(x, x))
    assert bool(((found.lower <= truth + 1e-9) & (truth - 1e-9 <= found.upper) & (found.width < 1e-6)).all())


def test_ensembles() -> None:
    one, two = (BayesianNetwork((linear(4, 3, k), Relu(), linear(2, 4, k + 9))) for k in (1, 2))
    assert normal_form(Ensemble((one,))) is one
    assert normal_form(Ensemble((one, replace(one), one))) is one
    found = normal_form(Ensemble((one, two, replace(one)), torch.tensor([0.2, 0.5, 0.3], dtype=F64)))
    assert found.members == (one, two)
    assert found.probabilities.tolist() == [0.5, 0.5]
    kept = Ensemble((one, two, replace(one, shift=torch.ones(3))))
    assert normal_form(kept) is kept
    picture = BayesianNetwork((conv(2, 1, 3, size=2), Relu(), Flatten(), linear(2, 12, 4)), input_shape=(1, 4, 3))
    flat = BayesianNetwork((Flatten(), linear(2, 12, 5)), input_shape=(1, 4, 3))
    mixed = normal_form(Ensemble((picture, flat)))
    assert [member.shapes[0] for member in mixed.members] == [(1, 4, 3)] * 2


def test_a_network_in_normal_form_is_itself_and_is_found_once() -> None:
    network = BayesianNetwork((linear(4, 3, 1), Tanh(), linear(2, 4, 5)), shift=uniform(3, seed=1))
    assert normal_form(network) is network
    other = replace(network, layers=(network.layers[0], Identity(), *network.layers[1:]))
    assert normal_form(other) is normal_form(other)
    before = len(_FORMS)
    del other
    gc.collect()
    assert len(_FORMS) < before


def test_a_tensor_that_is_changed_in_place_is_seen() -> None:
    """Where the normal form has tensors of its own, and where it has those of the network."""
    box = Box(torch.ones(1, 3), torch.ones(1, 3))
    for first in (linear(4, 3, 1), rows_of_one(4, 3, 1)):
        network = BayesianNetwork((first, LeakyRelu(0.0), linear(2, 4, 5)))
        before = certify(network, box)
        first.weight_mean.mul_(2.0)
        fresh = certify(replace(network, layers=(replace(first), *network.layers[1:])), box)
        assert torch.equal(certify(network, box).lower, fresh.lower)
        assert not torch.equal(before.lower, fresh.lower)
