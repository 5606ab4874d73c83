"""Random posteriors as probabilistic libraries hold them, and the comparison of samples with those of ours."""

from __future__ import annotations

import importlib
import random
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.network import BayesianNetwork, Ensemble

Sites = dict[str, Tensor]

SEEDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))]
"""Of random networks; the first three have every depth of ``random_sizes``."""


def library(name: str) -> Any:
    """A library that need not be there; its own warnings are none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name} is not installed: {error}")


def random_sizes(seed: int) -> tuple[int, ...]:
    """Of a chain whose neighbours differ, so that no weight is square."""
    source = random.Random(seed)
    sizes = [source.randint(1, 7)]
    while len(sizes) < 2 + seed % 3:
        sizes.append(source.choice([n for n in range(1, 8) if n != sizes[-1]]))
    return tuple(sizes)


def random_sites(sizes: tuple[int, ...], seed: int, *, start: float = 0.0, scale: float = 1.0) -> Sites:
    """Values of ``<2k>.weight`` and ``<2k>.bias`` in the layout of torch, in float32 as libraries have them."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for index, (n_in, n_out) in enumerate(pairwise(sizes)):
        found[f"{2 * index}.weight"] = start + scale * torch.randn(n_out, n_in, generator=generator)
        found[f"{2 * index}.bias"] = start + scale * torch.randn(n_out, generator=generator)
    return found


def vector(sites: Sites) -> Tensor:
    """All values in one."""
    return torch.cat([value.flatten() for value in sites.values()])


def table_of(sites: Sites) -> dict[str, object]:
    """Names and shapes, as a user writes them."""
    return {"sites": [{"site": name, "shape": list(value.shape)} for name, value in sites.items()]}


def check_independent(network: object, means: Sites, stds: Sites) -> None:
    """Means and standard deviations equal, bit for bit."""
    assert isinstance(network, BayesianNetwork)
    names = dict.fromkeys(name.rpartition(".")[0] for name in means)
    assert len(network.linears) == len(names)
    for layer, name in zip(network.linears, names, strict=True):
        for part in ("weight", "bias"):
            mean = means[f"{name}.{part}"].double()
            std = stds.get(f"{name}.{part}", torch.zeros_like(mean)).double()
            assert torch.equal(getattr(layer, f"{part}_mean"), mean), (name, part)
            assert torch.equal(getattr(layer, f"{part}_std"), std), (name, part)


def covariance(layer: Any) -> Tensor:
    """Of all weights and then all biases of a correlated layer, as ``parameters_to_vector`` has them."""
    factor = layer.factor
    rows = torch.cat([factor[:, :-1].flatten(0, 1), factor[:, -1]])
    stds = torch.cat([layer.weight_std.flatten(), layer.bias_std])
    return rows @ rows.mT + torch.diag(stds**2)


def expect_same_mean(theirs: Tensor, network: BayesianNetwork | Ensemble, x: Tensor) -> None:
    """Outputs (draws, points, n_out) of the library and ours: means within five standard errors, spreads alike."""
    ours = evaluate(draw_networks(network, len(theirs), seed=7), x.double())
    theirs = theirs.double()
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error + 1e-6).all())
    ratio = (ours.std(0) / theirs.std(0)).log().abs()
    assert bool((ratio < 5 * 1.5 / len(theirs) ** 0.5).all()), ratio
