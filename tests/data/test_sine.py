"""The noisy sine sets: the function, the noise and the seed."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bnndp.data import RegressionData, noisy_sine
from bnndp.data.sine import POINTS, clean_sine
from bnndp.errors import InputError


@pytest.mark.parametrize("n_in", [1, 2])
class TestNoisySine:
    def test_has_the_papers_shape_and_domain(self, n_in: int) -> None:
        data = noisy_sine(n_in)
        assert (data.points, data.n_in, data.n_out) == (8192, n_in, 1) == (POINTS, n_in, 1)
        assert data.x.dtype == data.y.dtype == torch.float64
        assert data.x.min() >= -1
        assert data.x.max() <= 1
        assert data.x.min() < -0.99  # it fills the domain, negative side included
        assert data.x.max() > 0.99

    def test_clean_is_the_mean_of_the_sines(self, n_in: int) -> None:
        data = noisy_sine(n_in, points=50)
        truth = [sum(math.sin(2 * math.pi * v) for v in row) / n_in for row in data.x.tolist()]
        assert data.clean.flatten().tolist() == pytest.approx(truth, abs=1e-14)

    def test_noise_has_the_given_std_and_no_mean(self, n_in: int) -> None:
        data = noisy_sine(n_in, noise_std=0.3, seed=4)
        assert data.clean is not None
        noise = data.y - data.clean
        # five standard errors of the mean and of the standard deviation
        assert abs(noise.mean().item()) <= 5 * 0.3 / math.sqrt(POINTS)
        assert abs(noise.std().item() - 0.3) <= 5 * 0.3 / math.sqrt(2 * POINTS)

    def test_seed_decides_everything(self, n_in: int) -> None:
        first, same, other = (noisy_sine(n_in, points=20, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(first.x, same.x)
        assert torch.equal(first.y, same.y)
        assert not torch.equal(first.x, other.x)

    def test_noise_does_not_move_the_inputs(self, n_in: int) -> None:
        quiet, loud = (noisy_sine(n_in, points=20, noise_std=std) for std in (0.0, 1.0))
        assert torch.equal(quiet.x, loud.x)
        assert torch.equal(quiet.y, quiet.clean)
        assert clean_sine(torch.zeros(3, 4, n_in)).shape == (3, 4, 1)

    def test_generating_leaves_the_global_generator_alone(self, n_in: int) -> None:
        state = torch.get_rng_state()
        noisy_sine(n_in, points=10)
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("wrong", [{"n_in": 0}, {"points": 0}, {"noise_std": -1.0}, {"noise_std": math.nan}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        noisy_sine(**wrong)


@pytest.mark.parametrize(
    ("x", "y", "clean", "says"),
    [
        (torch.zeros(3), torch.zeros(3, 1), None, "x must have shape"),
        (torch.zeros(3, 1), torch.zeros(2, 1), None, "x has 3 points, y has 2"),
        (torch.zeros(3, 1), torch.zeros(3, 1), torch.zeros(3, 2), "clean has shape"),
        (torch.zeros(3, 1), torch.tensor([[0.0], [math.nan], [0.0]]), None, r"y\[1, 0\] is not finite: nan"),
        (torch.tensor([[math.inf]]), torch.zeros(1, 1), None, r"x\[0, 0\] is not finite: inf"),
    ],
)
def test_wrong_records_are_refused(x: Tensor, y: Tensor, clean: Tensor | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        RegressionData(x, y, clean)
