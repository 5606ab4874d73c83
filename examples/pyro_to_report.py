"""A classifier trained with Pyro, certified: from the guide to a report that opens in a browser.

    pip install pyro-ppl
    python examples/pyro_to_report.py

Writes guide.pt, moons.safetensors, test.npz and the run folder moons-run into the current folder. Takes about a minute.
"""

import subprocess
import sys

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_median
from pyro.nn import PyroModule, PyroSample
from torch import nn

from bnndp.data.moons import two_moons


class Classifier(PyroModule):
    """One hidden layer of 32 ReLUs, with standard normal priors scaled by the number of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = PyroModule[nn.Linear](2, 32)
        self.out = PyroModule[nn.Linear](32, 2)
        for layer in (self.hidden, self.out):
            scale = layer.in_features**-0.5
            layer.weight = PyroSample(dist.Normal(0.0, scale).expand(layer.weight.shape).to_event(2))
            layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand(layer.bias.shape).to_event(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.out(torch.relu(self.hidden(x)))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("label", dist.Categorical(logits=logits), obs=y)
        return logits


def main() -> None:
    """Train, convert, certify, report."""
    pyro.set_rng_seed(0)
    train, test = two_moons(400, noise_std=0.1, seed=0), two_moons(30, noise_std=0.1, seed=1)
    model = Classifier()
    guide = AutoNormal(model, init_scale=0.01, init_loc_fn=init_to_median)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
    x, y = train.x.float(), train.y
    for _ in range(600):
        svi.step(x, y)

    pyro.get_param_store().save("guide.pt")
    np.savez("test.npz", x=test.x, y=test.y)
    for command in (
        ["convert", "guide.pt", "--task", "classification", "--activation", "relu", "-o", "moons.safetensors"],
        ["inspect", "moons.safetensors"],
        ["certify", "moons.safetensors", "test.npz", "--eps", "0.05", "--out", "bounds.jsonl"],
        ["radius", "moons.safetensors", "test.npz", "--run", "moons-run"],
        ["report", "moons-run"],
    ):
        print("$ bnndp", *command, flush=True)
        subprocess.run([sys.executable, "-m", "bnndp", *command], check=True)


if __name__ == "__main__":
    main()
