"""Ball arithmetic of these tests runs in 256 bits throughout, also where a test combines balls itself."""

from collections.abc import Iterator

import pytest
from flint import ctx
from support import oracles


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(oracles.PRECISION):
        yield
