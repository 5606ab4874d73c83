"""A regression network of bayesian-torch, straight from the live module: bounds of its mean and its variance.

pip install --no-deps bayesian-torch
python examples/from_bayesian_torch.py
"""

import torch
from bayesian_torch.layers import LinearReparameterization
from bayesian_torch.models.dnn_to_bnn import get_kl_loss
from torch import nn

import bnndp


class Sequential(nn.Sequential):
    """The layers of bayesian-torch give their divergence beside their output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x, return_kl=False) if isinstance(layer, LinearReparameterization) else layer(x)
        return x


def main() -> None:
    """Train on a noisy sine, certify around a few inputs."""
    torch.manual_seed(0)
    x = torch.rand(256, 1) * 2 - 1
    y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
    layer = {"posterior_rho_init": -5.0}
    model = Sequential(LinearReparameterization(1, 32, **layer), nn.Tanh(), LinearReparameterization(32, 1, **layer))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(600):
        optimiser.zero_grad()
        loss = (model(x) - y).square().mean() / 0.02 + get_kl_loss(model) / len(x)
        loss.backward()
        optimiser.step()

    network = bnndp.importers.from_tensors(model.state_dict(), bnndp.importers.Architecture("regression", "tanh"))
    print(network)
    boxes = bnndp.Box.ball([[-0.5], [0.0], [0.5]], eps=0.02)
    mean, variance = bnndp.certify(network, boxes), bnndp.certify(network, boxes, quantity="variance")
    for k in range(3):
        print(
            f"{mean.lower[k].item():.4f} <= E f(x) <= {mean.upper[k].item():.4f},  "
            f"Var f(x) <= {variance.upper[k].item():.2e}  for |x - {boxes.centre[k].item():g}| <= 0.02"
        )


if __name__ == "__main__":
    main()
