"""Norms of sums of products of two independent values, against explicit discrete laws."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support import records

from bnndp.engine.laws.quadratic import _product_norm

F64 = torch.float64


@pytest.mark.parametrize("scale", [1e-9, 0.1, 10.0])
@pytest.mark.parametrize("q", [4, 8])
def test_sums_of_many_signs_hold(q: int, scale: float) -> None:
    """For n signs the sum of all products of two is the square of their sum less n: a binomial law."""
    n = 100
    claim = _product_norm(q, 1 - torch.eye(n, dtype=F64)[None], torch.full((1, n), scale, dtype=F64))
    moment = sum(math.comb(n, k) * abs((2 * k - n) ** 2 - n) ** q for k in range(n + 1)) / 2**n
    truth = scale**2 * float(moment) ** (1 / q)
    assert truth <= float(claim) < 2 * truth


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("q", [4, 8])
def test_products_of_skew_values_hold(q: int, seed: int) -> None:
    """Centred laws on two points each: all outcomes of seven of them."""
    n = 7
    share = 0.02 + 0.96 * records.uniform(n, seed=seed)
    ends = torch.stack([(1 - share), -share])  # with the chances share and 1 - share
    chances = torch.stack([share, 1 - share])
    form = records.normal(3, n, n, seed=10 + seed)
    form = (form + form.mT) * (1 - torch.eye(n, dtype=F64))
    form[2] = form[2].abs()
    picks = torch.tensor(list(itertools.product((0, 1), repeat=n)))  # (outcomes, n)
    columns = torch.arange(n)
    values, weight = ends[picks, columns], chances[picks, columns].prod(-1)
    truth = (weight @ torch.einsum("pk,okl,pl->po", values, form, values).abs() ** q) ** (1 / q)
    norms = (chances * ends.abs() ** q).sum(0) ** (1 / q)
    assert bool((truth <= _product_norm(q, form.abs(), norms[None])[0] * (1 + 1e-12)).all())
