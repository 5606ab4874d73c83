"""Robustness as a test: run it by pytest, or by itself, which needs no pytest.

    pytest examples/assert_robust.py
    python examples/assert_robust.py

The model is the one that comes with the package; put your own file and your own inputs in its place.
"""

from importlib import resources

import bnndp
from bnndp.data.moons import two_moons

MODEL = resources.files("bnndp.data.demo") / "moons_1x32.safetensors"


def test_decisions_are_robust() -> None:
    network, test = bnndp.load(MODEL), two_moons(50, noise_std=0.1, seed=3)
    bnndp.assert_robust(network, test.x, test.y, eps=0.05, share=0.8)


def test_too_much_is_not_claimed() -> None:
    network, test = bnndp.load(MODEL), two_moons(50, noise_std=0.1, seed=3)
    try:
        bnndp.assert_robust(network, test.x, test.y, eps=1.0)
    except bnndp.questions.assertions.NotRobust as error:
        print(error)
    else:
        raise AssertionError("a radius of 1.0 was certified for all inputs, which reaches from one moon to the other")


if __name__ == "__main__":
    test_decisions_are_robust()
    test_too_much_is_not_claimed()
