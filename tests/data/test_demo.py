"""The networks inside the package: there, small, readable, and good fits of the sine and of the moons."""

import torch

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.data.moons import two_moons
from bnndp.data.sine import clean_sine
from bnndp.files.posterior import load
from bnndp.questions.decision import decide


def test_the_file_is_small_and_loads() -> None:
    with network_path() as path:
        assert path.stat().st_size < 60_000
        network = load(path)
    assert network.sizes == (1, 32, 32, 1)
    assert network.task == "regression"
    assert all((layer.weight_std > 0).all() for layer in network.linears)  # a Bayesian network, not an ordinary one


def test_its_mean_follows_the_sine() -> None:
    with network_path() as path:
        network = load(path)
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)[:, None]
    mean = estimate(network, x, draw_noise(network, 256, seed=0)).mean
    assert (mean - clean_sine(x)).square().mean().sqrt() <= 0.06


def test_the_classifier_is_small_and_decides_the_moons() -> None:
    with network_path(CLASSIFIER) as path:
        assert path.stat().st_size < 10_000
        network = load(path)
    assert network.sizes == (2, 32, 2)
    assert network.task == "classification"
    assert all((layer.weight_std > 0).all() for layer in network.linears)
    data = two_moons(500, noise_std=0.2, seed=7)  # not the seed of the training
    assert (decide(network, data.x) == data.y).double().mean() >= 0.95
