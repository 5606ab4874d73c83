"""A deep ensemble: five networks of plain PyTorch, certified together, against each of them alone.

python examples/ensemble.py
"""

import torch
from torch import nn

import bnndp
from bnndp.data.moons import two_moons


def trained(seed: int) -> nn.Sequential:
    """One member."""
    torch.manual_seed(seed)
    data = two_moons(300, noise_std=0.1, seed=0)
    model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.x.float()), data.y).backward()
        optimiser.step()
    return model


def main() -> None:
    """Certified radii of the average of the softmaxes."""
    members = [bnndp.from_module(trained(seed), task="classification") for seed in range(5)]
    ensemble = bnndp.Ensemble(tuple(members))
    test = two_moons(40, noise_std=0.1, seed=1)
    for name, network in (("one member", members[0]), ("the ensemble", ensemble)):
        found = bnndp.certified_radius(network, test.x, test.y)
        certified = found.radius.nan_to_num(0.0)
        print(f"{name}: mean certified radius {certified.mean():.3f}, attacked {found.attack.mean():.3f}")


if __name__ == "__main__":
    main()
