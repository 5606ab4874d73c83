"""Train the classifier that comes with the package: two moons, one hidden layer of 32, Bayes by backprop.

    python tools/make_moons.py    write src/bnndp/data/demo/moons_1x32.safetensors and print its training card

Prior N(0, 2^2/inputs) on the weights and N(0, 2^2) on the biases, temperature one, 1000 points.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bnndp.data.demo
import bnndp.files.posterior
from bnndp.data.moons import two_moons
from bnndp.training import TrainingOptions, train

OPTIONS = TrainingOptions(hidden=(32,), prior="fan_in", prior_std=2.0, init_std=0.05, steps=3000, learning_rate=1e-2)
NOISE_STD = 0.2


def main() -> int:
    """Train, save, print the card."""
    data, held_out = (two_moons(1000, noise_std=NOISE_STD, seed=seed) for seed in (0, 1))
    trained = train(data, OPTIONS, held_out=held_out)
    path = Path(bnndp.data.demo.__file__).parent / bnndp.data.demo.CLASSIFIER
    bnndp.files.posterior.save(trained.network, path)
    print(trained.card)
    return 0


if __name__ == "__main__":
    sys.exit(main())
