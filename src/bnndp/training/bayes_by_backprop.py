r"""Bayes by backprop: a mean-field Gaussian posterior fitted by stochastic gradients of the ELBO.

.. math::
   \sum_i\mathbb E_{w\sim q}\log p(y_i\mid f_w(x_i))-T\,\mathrm{KL}(q\,\|\,p),\qquad
   q(w)=\prod_j N(\mu_j,\sigma_j^2),\quad p(w)=\prod_j N(0,\tau_j^2)

(Blundell et al. 2015, arXiv:1505.05424; T, the temperature, is one unless the options say otherwise), maximised by Adam
over :math:`\mu` and :math:`\log\sigma`. Gradients use local reparametrisation: given the layer below, the
pre-activations of a mean-field layer are independent Gaussians, so one draws them, afresh for every point, instead of
the weights. In the last layer of regression the expectation is taken in closed form, so a network without hidden layers
is trained without any sampling; logits are drawn as the hidden layers are. Kernels of convolutions are drawn by
flipout, see :mod:`.mean_field`.

The method ``map`` is the same with layers that have no standard deviations: maximum a posteriori, with dropout where
the options ask for it. With ``robust`` a share of the log-likelihood is that of the worst case, see :mod:`.robust`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bnndp.data import Data
from bnndp.errors import InputError
from bnndp.training.elbo import FITS
from bnndp.training.likelihoods import likelihood_of
from bnndp.training.mean_field import FreeLayer, divergence, initial_layers
from bnndp.training.method import StepSettings
from bnndp.training.options import TrainingOptions
from bnndp.training.robust import robust_objective

_MEMORY = ("step", "exp_avg", "exp_avg_sq")  # what torch's Adam keeps of each parameter


class BayesByBackprop:
    """The methods ``bbb`` and ``map``."""

    __slots__ = ("_fit", "_generator", "_layers", "_likelihood", "_optimiser", "_options", "_points")

    def __init__(self, data: Data, options: TrainingOptions, generator: torch.Generator) -> None:
        self._likelihood, self._fit = likelihood_of(data, options), FITS[options.sampling]
        self._layers = initial_layers(options, data.n_in, data.n_out, generator)
        self._optimiser = torch.optim.Adam(self._parameters(), lr=options.learning_rate)
        self._points, self._generator, self._options = data.points, generator, options
        if options.robust is not None and self._likelihood.task != "classification":
            raise InputError(f"robust={options.robust} is for classification, the data are {data}; leave it out.")

    @torch.enable_grad()
    def step(self, x: Tensor, y: Tensor, schedule: StepSettings) -> Tensor:  # x (points, n_in)
        """A step of Adam; the estimate of the mean log-likelihood is the one whose gradient was taken."""
        for group in self._optimiser.param_groups:
            group["lr"] = schedule.learning_rate
        gain = self._fit(self._likelihood, self._layers, x, y, self._generator).mean()
        if self._options.robust is not None:
            gain = robust_objective(gain, self._layers, x, y, self._options.robust, schedule.step / self._options.steps)
        objective = gain * self._points - schedule.kl_weight * divergence(self._layers)
        self._optimiser.zero_grad(set_to_none=True)
        (-objective / self._points).backward()
        self._optimiser.step()
        return gain.detach()

    def layers(self) -> list[FreeLayer]:
        """The free layers themselves."""
        return self._layers

    def state(self) -> dict[str, Tensor]:
        """Parameters, and the memory of Adam once there is any."""
        parameters = self._parameters()
        state = {f"{i}": parameter.detach() for i, parameter in enumerate(parameters)}
        for i, parameter in enumerate(parameters):
            state |= {f"{i}.{name}": value for name, value in self._optimiser.state.get(parameter, {}).items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Copy the parameters, and hand Adam its memory."""
        parameters = self._parameters()
        for i, parameter in enumerate(parameters):
            parameter.detach().copy_(state[f"{i}"])
        memory = {
            i: {name: state[f"{i}.{name}"] for name in _MEMORY} for i in range(len(parameters)) if f"{i}.step" in state
        }
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": memory})

    def _parameters(self) -> list[Tensor]:
        return [parameter for layer in self._layers for parameter in layer.parameters]
