r"""Bayes by backprop for regression: a mean-field Gaussian posterior fitted by stochastic gradients of the ELBO.

.. math::
   \mathrm{ELBO}(q)=\sum_i\mathbb E_{w\sim q}\log N(y_i\mid f_w(x_i),\sigma^2)-\mathrm{KL}(q\,\|\,p),\qquad
   q(w)=\prod_j N(\mu_j,\sigma_j^2),\quad p(w)=\prod_j N(0,\tau_j^2)

(Blundell et al. 2015, arXiv:1505.05424). Gradients use local reparametrisation (Kingma, Salimans and Welling 2015,
arXiv:1506.02557): given the layer below, the pre-activations of a mean-field layer are independent Gaussians, so one
draws them, afresh for every point, instead of the weights. In the last layer the expectation of the Gaussian
log-likelihood is taken in closed form, so a network without hidden layers is trained without any sampling.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.data import RegressionData
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Linear
from bnndp.sampling import draw_noise, estimate

__all__ = ["Card", "Trained", "TrainingOptions", "elbo", "evaluate", "train"]

PRIORS = ("unit", "fan_in")
SCHEDULES = ("constant", "cosine")
SAMPLINGS = ("local", "weights")
_CARD_POINTS, _CARD_DRAWS = 1024, 256
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Everything that decides the result, apart from the data.

    ``prior="unit"`` is N(0, prior_std^2) on every weight and bias; ``prior="fan_in"`` divides the standard deviation of
    the weights of a layer by sqrt(n_in), so that the prior over functions keeps its scale as layers grow wider.
    """

    hidden: tuple[int, ...] = (64, 64)
    noise_std: float = 0.1  # of the likelihood
    prior: str = "unit"
    prior_std: float = 1.0
    init_std: float = 0.1  # where the standard deviations of the posterior start
    init_gain: float = 1.0  # means start uniform in +-init_gain / sqrt(n_in)
    steps: int = 2000
    batch: int | None = None  # points of a step; None: all of them
    learning_rate: float = 1e-2
    sampling: str = "local"  # local reparametrisation, or one draw of all weights a step
    schedule: str = "cosine"  # constant, or cosine: down to zero
    warm_up: float = 0.0  # share of the steps in which the weight of the KL term rises to one
    seed: int = 0
    dtype: str = "float32"  # of the arithmetic; the result is float64

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for field in ("noise_std", "prior_std", "init_std", "init_gain", "learning_rate"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{field} must be finite and positive, got {value!r}.")
        for field, known in (
            ("prior", PRIORS),
            ("sampling", SAMPLINGS),
            ("schedule", SCHEDULES),
            ("dtype", tuple(DTYPES)),
        ):
            if getattr(self, field) not in known:
                raise InputError(f"{field} must be one of {', '.join(known)}, got {getattr(self, field)!r}.")
        if any(width < 1 for width in self.hidden):
            raise InputError(f"widths of hidden layers must be at least 1, got {self.hidden}.")
        if self.steps < 1 or (self.batch is not None and self.batch < 1):
            raise InputError(f"steps and batch must be at least 1, got steps={self.steps}, batch={self.batch}.")
        if not 0 <= self.warm_up < 1:
            raise InputError(f"warm_up must be in [0, 1), got {self.warm_up!r}.")


@dataclass(frozen=True, slots=True)
class Card:
    """How well the posterior fits; errors are those of its mean function E f(x)."""

    rmse_train: float
    rmse_clean: float | None  # against the function without noise, where it is known
    rmse_held_out: float | None
    elbo: float  # of all points, estimated
    seconds: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A posterior and its training card."""

    network: BayesianNetwork
    card: Card


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Free parameters of a mean-field layer, and the standard deviations of its prior."""

    weight_mean: Tensor  # (n_out, n_in)
    weight_log_std: Tensor  # (n_out, n_in)
    bias_mean: Tensor  # (n_out,)
    bias_log_std: Tensor  # (n_out,)
    weight_prior_std: float
    bias_prior_std: float

    @property
    def free(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_mean, self.weight_log_std, self.bias_mean, self.bias_log_std

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:  # z (points, n_in)
        """Mean and variance of ``W z + b`` given ``z``: (points, n_out) each."""
        mean = torch.addmm(self.bias_mean, z, self.weight_mean.T)
        variance = torch.addmm((2 * self.bias_log_std).exp(), z * z, (2 * self.weight_log_std).exp().T)
        return mean, variance

    def divergence(self) -> Tensor:
        """KL from the prior, of weights and biases together."""
        weights = _gaussian_divergence(self.weight_mean, self.weight_log_std, self.weight_prior_std)
        return weights + _gaussian_divergence(self.bias_mean, self.bias_log_std, self.bias_prior_std)

    def linear(self) -> Linear:
        """The frozen layer, in float64."""
        mean, log_std, bias, bias_log_std = (t.detach().to(torch.float64) for t in self.free)
        return Linear(mean, log_std.exp(), bias, bias_log_std.exp())

    @classmethod
    def of(cls, linear: Linear, options: TrainingOptions | None = None) -> _Layer:
        """The parameters of a frozen layer, with the prior of ``options``."""
        stds = _prior_stds(options or TrainingOptions(), linear.n_in)
        return cls(linear.weight_mean, linear.weight_std.log(), linear.bias_mean, linear.bias_std.log(), *stds)


def train(
    data: RegressionData,
    options: TrainingOptions,
    *,
    held_out: RegressionData | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Fit a posterior to ``data``; ``progress`` is called after each step with its number and the ELBO's estimate."""
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(options.seed)
    dtype = DTYPES[options.dtype]
    x, y = data.x.to(dtype), data.y.to(dtype)
    layers = _start(options, data.n_in, data.n_out, generator)
    optimiser = torch.optim.Adam([t for layer in layers for t in layer.free], lr=options.learning_rate)
    likelihood = _LIKELIHOODS[options.sampling]
    batches = _batches(data.points, options.batch, generator)
    with torch.enable_grad():
        for step in range(options.steps):
            for group in optimiser.param_groups:
                group["lr"] = options.learning_rate * _rate(options, step)
            rows = next(batches)
            fit = likelihood(layers, x[rows], y[rows], options.noise_std, generator).mean()
            objective = fit * data.points - _warmth(options, step) * _divergence(layers)
            optimiser.zero_grad(set_to_none=True)
            (-objective / data.points).backward()
            optimiser.step()
            if progress is not None:
                progress(step, float(objective.detach()))
    network = BayesianNetwork.from_linears(layer.linear() for layer in layers)
    seconds = time.perf_counter() - start
    return Trained(network, evaluate(network, data, options, held_out=held_out, seconds=seconds))


@torch.no_grad()
def elbo(network: BayesianNetwork, data: RegressionData, options: TrainingOptions, *, samples: int = 8) -> float:
    """Unbiased estimate of the ELBO of ``network`` on all of ``data`` (exact without hidden layers), in float64.

    Prior and noise are those of ``options``; the seed of the samples is ``options.seed + 1``.
    """
    generator = torch.Generator().manual_seed(options.seed + 1)
    layers = [_Layer.of(linear, options) for linear in network.linears]
    draws = [
        _expected_log_likelihood(layers, data.x, data.y, options.noise_std, generator).sum()
        for _ in range(samples if network.depth else 1)
    ]
    return float(torch.stack(draws).mean() - _divergence(layers))


def evaluate(
    network: BayesianNetwork,
    data: RegressionData,
    options: TrainingOptions,
    *,
    held_out: RegressionData | None = None,
    seconds: float = 0.0,
) -> Card:
    """The card of a posterior: errors on the first 1024 points of each set, ELBO on all of ``data``."""
    return Card(
        rmse_train=_rmse(network, data.x, data.y),
        rmse_clean=None if data.clean is None else _rmse(network, data.x, data.clean),
        rmse_held_out=None if held_out is None else _rmse(network, held_out.x, held_out.y),
        elbo=elbo(network, data, options),
        seconds=seconds,
    )


def _start(options: TrainingOptions, n_in: int, n_out: int, generator: torch.Generator) -> list[_Layer]:
    """Layers at their starting values: means uniform in +-gain/sqrt(n_in), every standard deviation ``init_std``."""
    sizes = (n_in, *options.hidden, n_out)
    log_std = math.log(options.init_std)
    dtype = DTYPES[options.dtype]
    layers = []
    for below, above in itertools.pairwise(sizes):
        scale = options.init_gain / math.sqrt(below)
        weight, bias = (
            ((2 * torch.rand(shape, generator=generator, dtype=dtype) - 1) * scale).requires_grad_()
            for shape in ((above, below), (above,))
        )
        weight_log_std, bias_log_std = (torch.full_like(t, log_std).requires_grad_() for t in (weight, bias))
        layers.append(_Layer(weight, weight_log_std, bias, bias_log_std, *_prior_stds(options, below)))
    return layers


def _prior_stds(options: TrainingOptions, n_in: int) -> tuple[float, float]:
    """Prior standard deviations of the weights and of the biases of a layer with ``n_in`` inputs."""
    weight = options.prior_std / math.sqrt(n_in) if options.prior == "fan_in" else options.prior_std
    return weight, options.prior_std


def _batches(points: int, size: int | None, generator: torch.Generator) -> Iterator[slice | Tensor]:
    """Rows of one step after another: all points, or pieces of a fresh permutation in each epoch."""
    while size is None or size >= points:
        yield slice(None)
    while True:
        order = torch.randperm(points, generator=generator)
        yield from order[: points - points % size].split(size)


def _rate(options: TrainingOptions, step: int) -> float:
    return 1.0 if options.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * step / options.steps))


def _warmth(options: TrainingOptions, step: int) -> float:
    return min(1.0, (step + 1) / (options.warm_up * options.steps)) if options.warm_up else 1.0


def _draw(layer: _Layer, z: Tensor, generator: torch.Generator) -> Tensor:
    """One sample of ``ReLU(W z + b)`` given ``z``, with fresh weights for every point."""
    mean, variance = layer.moments(z)
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    return (mean + variance.sqrt() * noise).relu()


def _expected_log_likelihood(
    layers: Sequence[_Layer],
    x: Tensor,  # (points, n_in)
    y: Tensor,  # (points, n_out)
    noise_std: float,
    generator: torch.Generator,
) -> Tensor:
    r"""Unbiased estimate of :math:`\mathbb E_q\log N(y\mid f_w(x),\sigma^2)`, one a point: (points,).

    Given the sampled last hidden layer, f is Gaussian with mean m and variance v, so that
    :math:`\mathbb E\log N=-\frac{(y-m)^2+v}{2\sigma^2}-\log(\sigma\sqrt{2\pi})` exactly.
    """
    z = x
    for layer in layers[:-1]:
        z = _draw(layer, z, generator)
    mean, variance = layers[-1].moments(z)
    misfit = ((y - mean).square() + variance).sum(-1) / (2 * noise_std**2)
    return -misfit - y.shape[-1] * math.log(noise_std * math.sqrt(2 * math.pi))


def _sampled_log_likelihood(
    layers: Sequence[_Layer],
    x: Tensor,  # (points, n_in)
    y: Tensor,  # (points, n_out)
    noise_std: float,
    generator: torch.Generator,
) -> Tensor:
    """The same expectation with one draw of the weights shared by all points: unbiased, with far noisier gradients."""
    z = x
    for k, layer in enumerate(layers):
        weight, bias = (
            mean + log_std.exp() * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            for mean, log_std in ((layer.weight_mean, layer.weight_log_std), (layer.bias_mean, layer.bias_log_std))
        )
        z = torch.addmm(bias, z.relu() if k else z, weight.T)
    misfit = (y - z).square().sum(-1) / (2 * noise_std**2)
    return -misfit - y.shape[-1] * math.log(noise_std * math.sqrt(2 * math.pi))


_LIKELIHOODS = {"local": _expected_log_likelihood, "weights": _sampled_log_likelihood}


def _divergence(layers: Sequence[_Layer]) -> Tensor:
    """KL(q || p) of all layers."""
    return torch.stack([layer.divergence() for layer in layers]).sum()


def _gaussian_divergence(mean: Tensor, log_std: Tensor, prior_std: float) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, tau^2)) = ((sigma^2 + mu^2) / tau^2 - 1) / 2 - log(sigma / tau), summed."""
    scaled = ((2 * log_std).exp() + mean.square()) / prior_std**2
    return (0.5 * (scaled - 1) - log_std + math.log(prior_std)).sum()


def _rmse(network: BayesianNetwork, x: Tensor, y: Tensor) -> float:
    """Root mean square of E f(x) - y, less the share of it that is the sampling error of E f (none if K <= 1)."""
    mean = estimate(network, x[:_CARD_POINTS], draw_noise(network, _CARD_DRAWS, seed=0))
    square = (mean.mean - y[:_CARD_POINTS]).square() - mean.std_error.square()
    return math.sqrt(max(0.0, float(square.mean())))
