"""Ball arithmetic of these tests runs in 256 bits throughout, also where a test combines balls itself."""

from collections.abc import Callable, Iterator

import pytest
from flint import ctx
from support import oracles
from support.networks import make_network

from bnndp.network import BayesianNetwork


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(oracles.PRECISION):
        yield


@pytest.fixture(scope="session")
def random_network() -> Callable[..., BayesianNetwork]:
    return make_network
