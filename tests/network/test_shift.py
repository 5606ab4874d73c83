"""Networks in the user's units: a shift of the inputs, and everything that is computed of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.ensembles import points_of
from torch import Tensor

import bnndp
from bnndp.attack import Reach, attack_radius, decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.errors import InputError, ModelFileError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.paper import recursion
from bnndp.questions.softmax import bound_rows

SHIFT = torch.tensor([3.0, -20.0, 0.125], dtype=torch.float64)
SCALE = torch.tensor([2.0, 50.0, 0.01], dtype=torch.float64)


@pytest.fixture
def pair(random_network: Callable[..., BayesianNetwork]) -> tuple[BayesianNetwork, BayesianNetwork]:
    """A network of standardised inputs and targets, and the same in the user's units."""
    inner = random_network((3, 8, 2), 1, std=0.1)
    return inner, inner.in_units((SHIFT, SCALE), (torch.tensor([1.0, -5.0]), torch.tensor([10.0, 0.1])))


def standard(x: Tensor) -> Tensor:
    return (x - SHIFT) / SCALE


def points(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return SHIFT + SCALE * torch.randn(count, 3, generator=generator, dtype=torch.float64)


def test_the_mean_is_that_of_the_standardised_network(pair: tuple[BayesianNetwork, BayesianNetwork]) -> None:
    inner, outer = pair
    x = points(20)
    want = estimate(inner, standard(x), draw_noise(inner, 1, seed=0)).mean * torch.tensor([10.0, 0.1]) + torch.tensor(
        [1.0, -5.0]
    )
    found = estimate(outer, x, draw_noise(outer, 1, seed=0)).mean
    assert torch.allclose(found, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("norm", [torch.inf, 2, 1])
def test_bounds_hold_in_the_users_units(
    pair: tuple[BayesianNetwork, BayesianNetwork], method: str, norm: float
) -> None:
    outer = pair[1]
    x = points(5)
    box = Box.ball(x, 0.05, norm=norm)
    bounds = bnndp.certify(outer, box, bnndp.Options(method=method))
    inside = points_of(box, 200)
    means = estimate(outer, inside, draw_noise(outer, 1, seed=0)).mean
    assert bounds.affine is not None
    for point, mean in zip(inside, means, strict=True):
        assert bool((bounds.affine.lower(point) <= mean + 1e-11).all())
        assert bool((mean <= bounds.affine.upper(point) + 1e-11).all())
    assert bool((bounds.lower <= means.amin(0) + 1e-11).all() & (means.amax(0) <= bounds.upper + 1e-11).all())
    assert bool((bounds.width < 20 * (means.amax(0) - means.amin(0)) + 1e-3).all())


def test_at_a_point_the_bounds_are_as_tight_as_without(pair: tuple[BayesianNetwork, BayesianNetwork]) -> None:
    x = points(4)
    assert bool((bnndp.certify(pair[1], Box(x, x)).width < 1e-9).all())


def test_a_far_shift_costs_only_rounding(random_network: Callable[..., BayesianNetwork]) -> None:
    inner = random_network((3, 8, 2), 2, std=0.1)
    outer = BayesianNetwork.from_linears(inner.linears, shift=torch.full((3,), 1e6, dtype=torch.float64))
    x = torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64)
    near, far = bnndp.certify(inner, Box.ball(x, 0.1)), bnndp.certify(outer, Box.ball(x + 1e6, 0.1))
    assert torch.allclose(near.lower, far.lower, atol=1e-7)
    assert bool((far.lower <= near.lower + 1e-8).all())


def test_decisions_and_radii_are_in_the_users_units(random_network: Callable[..., BayesianNetwork]) -> None:
    inner = random_network((3, 8, 3), 3, std=0.1, task="classification")
    scale = torch.full((3,), 7.0, dtype=torch.float64)
    outer = inner.in_units((SHIFT, scale))
    x = SHIFT + 7.0 * torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    label = estimate_softmax(inner, (x - SHIFT) / 7.0, draw_softmax_noise(inner, 1024, seed=0)).mean.argmax(-1)
    rows = decision_rows(label, 3)[0]
    want = bound_rows(inner, Box.ball((x - SHIFT) / 7.0, 0.01), rows, label, bnndp.Options())
    found = bound_rows(outer, Box.ball(x, 0.07), rows, label, bnndp.Options())
    assert torch.allclose(want, found, atol=1e-9)
    radii = [
        bnndp.certified_radius(n, p, label, search=bnndp.Search(upper=upper, attack=False)).radius
        for n, p, upper in ((inner, (x - SHIFT) / 7.0, 1.0), (outer, x, 7.0))
    ]
    assert torch.allclose(7.0 * radii[0].nan_to_num(0.0), radii[1].nan_to_num(0.0), rtol=0.02)
    assert bool((radii[1].nan_to_num(0.0) <= attack_radius(outer, x, label, reach=Reach(upper=7.0)).radius).all())


def test_inner_bounds_refuse_a_network_that_shifts(pair: tuple[BayesianNetwork, BayesianNetwork]) -> None:
    with pytest.raises(InputError, match="shifts its inputs"):
        _ = pair[1].unshifted_linears
    with pytest.raises(InputError, match="shifts its inputs"):
        recursion.bound(pair[1], Box.ball(points(1), 0.1), mass=0.9, cells=2)


def test_the_file_keeps_the_shift(pair: tuple[BayesianNetwork, BayesianNetwork], tmp_path: Path) -> None:
    outer = pair[1]
    bnndp.save(outer, tmp_path / "a.safetensors")
    back = bnndp.load(tmp_path / "a.safetensors")
    assert back.shift is not None
    assert torch.equal(back.shift, SHIFT)
    assert back.digest() == outer.digest() != outer.unshifted().digest()


def test_wrong_shifts_are_refused(pair: tuple[BayesianNetwork, BayesianNetwork], tmp_path: Path) -> None:
    inner, outer = pair
    for shift, text in ((torch.zeros(2), "one for each input"), (torch.full((3,), torch.nan), "not finite")):
        with pytest.raises(InputError, match=text):
            BayesianNetwork.from_linears(inner.linears, shift=shift)
    with pytest.raises(InputError, match="units already"):
        outer.in_units((SHIFT, SCALE))
    bnndp.save(outer, tmp_path / "a.safetensors")
    tensors = load_file(tmp_path / "a.safetensors")
    tensors["input_shift"] = torch.zeros(3, dtype=torch.int64)
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        metadata = file.metadata()
    unsealed = {key: value for key, value in json.loads(metadata["bnndp"]).items() if key != "sha256"}
    save_file(tensors, tmp_path / "b.safetensors", metadata={"bnndp": json.dumps(unsealed)})
    with pytest.raises(ModelFileError, match="input_shift"):
        bnndp.load(tmp_path / "b.safetensors")
