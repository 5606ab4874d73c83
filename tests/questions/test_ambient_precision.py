"""Bounds are float64 whatever precision is set around them: default dtypes, autocast, TF32, and float32 given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from support import records
from support.classifiers import classifier
from tests.marks import slow_but
from torch import Tensor

import bnndp
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.options import Options

DENSE = classifier((3, 5, 3), 4, std=0.05, gain=3.0)
BLIND = bnndp.Search(attack=False, norm=2, tolerance=0.1)
CHAINS = records.networks()
X = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def bounds(name: str, options: Options | None = None, **asked: Any) -> Any:
    network = CHAINS[name]
    boxes = bnndp.Box.ball(torch.linspace(0, 1, 2 * network.n_in, dtype=torch.float64).reshape(2, -1), 0.05)
    return bnndp.certify(network, boxes, options or Options(), **asked)


ANSWERS: dict[str, Callable[[], Any]] = {
    **{f"certify {name}": partial(bounds, name) for name in CHAINS},
    "certify refined": lambda: bounds("tanh", Options(refine=4)),
    "certify variance": lambda: bounds("rows", quantity="variance"),
    "certify classes": lambda: bnndp.certify(DENSE, bnndp.Box.ball(X, 0.05), Options(method="best", optimise=1)),
    "certify classes of a mixture": lambda: bnndp.certify(
        records.classifier(CHAINS["mixture"]), bnndp.Box.ball(torch.zeros(1, 4, dtype=torch.float64), 0.05)
    ),
    "radius and attack": lambda: bnndp.certified_radius(classifier((3, 3), 4, std=0.05), X[:1]),
    "radius of cells": lambda: bnndp.certified_radius(DENSE, X[:1], search=BLIND, options=Options(refine=2)),
    "evaluate": lambda: bnndp.evaluate(DENSE, X, domain=(-5.0, 5.0), search=BLIND),
    "decision": lambda: bnndp.robust_decision(DENSE, X, bnndp.Box.ball(X, 0.02)),
}


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Products of float32 matrices in less than float32, on the CPU and on a GPU."""
    before = torch.get_float32_matmul_precision()
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    torch.set_float32_matmul_precision(precision)
    cuda.allow_tf32, cudnn.allow_tf32 = True, True
    try:
        yield
    finally:
        cuda.allow_tf32 = False
        torch.set_float32_matmul_precision(before)


AMBIENT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default float64": lambda: default(torch.float64),
    "default float16": lambda: default(torch.float16),
    "default bfloat16": lambda: default(torch.bfloat16),
    "autocast bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "products high": lambda: products("high"),
    "products medium": lambda: products("medium"),
}


def numbers(value: Any) -> Iterator[Tensor]:
    """All tensors of an answer."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from numbers(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers(getattr(value, field.name))


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Tensor]]:
    return {name: list(numbers(answer())) for name, answer in ANSWERS.items()}


@pytest.mark.parametrize("ambient", slow_but(AMBIENT, "default float16"))
def test_nothing_around_changes_an_answer(ambient: str, expected: dict[str, list[Tensor]]) -> None:
    with AMBIENT[ambient]():
        for name, answer in ANSWERS.items():
            found = list(numbers(answer()))
            assert len(found) == len(expected[name]) > 0
            for one, other in zip(found, expected[name], strict=True):
                assert one.dtype == other.dtype, name
                assert one.dtype in (torch.float64, torch.int64, torch.bool), name
                assert torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0)), name


def test_what_is_given_in_float32_is_taken_exactly() -> None:
    """Weights and inputs of less than float64 are numbers like any other; the answer is that for these numbers."""
    for dtype in (torch.float32, torch.bfloat16):
        short = [Linear(*(getattr(layer, name).to(dtype) for name in layer.tensors)) for layer in DENSE.linears]
        network = BayesianNetwork.from_linears(short, "classification")
        assert {getattr(layer, name).dtype for layer in network.linears for name in layer.tensors} == {torch.float64}
        x = X.to(dtype)
        found, same = (bnndp.certified_radius(network, each, search=BLIND) for each in (x, x.double()))
        assert found.radius.dtype == torch.float64
        assert torch.equal(found.radius, same.radius)
        one, other = (bnndp.certify(network, bnndp.Box.ball(each, 0.05)) for each in (x, x.double()))
        assert one.lower.dtype == one.upper.dtype == torch.float64
        assert torch.equal(one.lower, other.lower)
        assert torch.equal(one.upper, other.upper)
