"""Libraries for PyTorch whose layers hold independent Gaussian weights: their names, as tables.

Names and functions are those by which each library draws its weights, read in its source: bayesian-torch 0.5, blitz
0.2.8, torchbnn 1.2, torch-uncertainty 0.13, PyTorch-BayesianCNN. All have the layout of torch.
"""

from __future__ import annotations

from bnndp.importers.tables import FIXED, Row, Table


def _rows(weight: tuple[str, str], bias: tuple[str, str], transform: str) -> tuple[Row, ...]:
    """Mean and std of the weight and of the bias."""
    return tuple(
        row
        for part, (mean, std) in (("weight", weight), ("bias", bias))
        for row in (Row(f"<layer>.{mean}", f"{part}_mean"), Row(f"<layer>.{std}", f"{part}_std", transform))
    )


def _unused(*names: str) -> tuple[Row, ...]:
    return tuple(Row(f"<layer>.{name}", "unused") for name in names)


_BAYESIAN_TORCH = Table(
    "bayesian-torch",
    "mean = mu, std = log1p(exp(rho))",
    (
        *_rows(("mu_weight", "rho_weight"), ("mu_bias", "rho_bias"), "softplus"),
        *_rows(("mu_kernel", "rho_kernel"), ("mu_bias", "rho_bias"), "softplus")[:2],
        *_unused(*(f"eps_{part}" for part in ("weight", "kernel", "bias"))),  # drawn anew for each sample
        *_unused(*(f"prior_{part}_{what}" for part in ("weight", "kernel", "bias") for what in ("mu", "sigma"))),
        *FIXED,
    ),
    (("<layer>.rho_weight",), ("<layer>.rho_kernel",)),
)

# weight_mu and weight_sampler.mu share memory until the model is moved to a device or another dtype; from then on only
# the sampler's are trained.
_BLITZ = Table(
    "blitz",
    "mean = sampler.mu, std = log1p(exp(sampler.rho))",
    (
        *_rows(("weight_sampler.mu", "weight_sampler.rho"), ("bias_sampler.mu", "bias_sampler.rho"), "softplus"),
        *(
            Row(f"<layer>.{part}_{what}", "copy", of=f"<layer>.{part}_sampler.{what}", stale=True)
            for part in ("weight", "bias")
            for what in ("mu", "rho")
        ),
        *_unused("weight_sampler.eps_w", "bias_sampler.eps_w"),
        *FIXED,
    ),
    (("<layer>.weight_sampler.eps_w",),),
    "blitz keeps biases of layers that were built with bias=False; if yours were, leave them out by --no-bias",
    idle_biases=True,
)

_TORCHBNN = Table(
    "torchbnn",
    "mean = mu, std = exp(log_sigma)",
    (
        *_rows(("weight_mu", "weight_log_sigma"), ("bias_mu", "bias_log_sigma"), "exp"),
        *_unused("weight_eps", "bias_eps"),  # the one draw of a frozen layer
        *FIXED,
    ),
    (("<layer>.weight_log_sigma",),),
)

# What it calls sigma is rho: the samplers hold the same tensors by their right names.
_TORCH_UNCERTAINTY = Table(
    "torch-uncertainty",
    "mean = mu, std = log1p(exp(sigma)), as its sigma is a rho",
    (
        *_rows(("weight_mu", "weight_sigma"), ("bias_mu", "bias_sigma"), "softplus"),
        *(
            Row(f"<layer>.{part}_sampler.{theirs}", "copy", of=f"<layer>.{part}_{ours}")
            for part in ("weight", "bias")
            for theirs, ours in (("mu", "mu"), ("rho", "sigma"))
        ),
        *_unused(*(f"{part}_prior_dist.{what}" for part in ("weight", "bias") for what in ("pi", "mus", "sigmas"))),
        *FIXED,
    ),
    (("<layer>.weight_prior_dist.pi", "<layer>.weight_sigma"),),
)

_BAYESIAN_CNN = Table(
    "bayesian-cnn",
    "mean = mu, std = log1p(exp(rho))",
    (*_rows(("W_mu", "W_rho"), ("bias_mu", "bias_rho"), "softplus"), *FIXED),
    (("<layer>.W_rho",),),
)

LIBRARIES = (_BAYESIAN_TORCH, _BLITZ, _TORCHBNN, _TORCH_UNCERTAINTY, _BAYESIAN_CNN)
"""All tables."""
