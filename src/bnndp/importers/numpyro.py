"""NumPyro: the parameters of an autoguide (``svi_result.params``), and samples of a chain (``mcmc.get_samples()``).

Scales in ``params`` are what they are called: ``SVI`` has applied their constraints, and nothing is applied again.

================================= ==================================================================================
``AutoNormal``                    ``<site>_auto_loc``, ``<site>_auto_scale``
``AutoDelta``                     ``<site>_auto_loc`` alone: no variance
``AutoDiagonalNormal``            ``auto_loc``, ``auto_scale``, vectors of all sites in the order of the model
``AutoMultivariateNormal``        ``auto_loc``, ``auto_scale_tril`` L: the covariance is L L^T
``AutoLowRankMultivariateNormal`` ``auto_cov_factor`` F: the covariance is diag(scale) (F F^T + 1) diag(scale)
``random_flax_module``            ``nn$params.<path>``: parameters without variance of the module ``nn``
================================= ==================================================================================

Weights are (inputs, outputs) where flax calls them ``kernel``; of other names, in the layout in which they fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.architecture import Architecture, merge_architecture
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat, to_tensors
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer
from bnndp.importers.gaussian import (
    REAL_PRIORS,
    Law,
    expect_joint_shapes,
    expect_scales,
    fixed_beside,
    site_shapes,
    to_layers,
)
from bnndp.importers.samples import sample_count
from bnndp.importers.sites import SiteTable, by_role, ignored_names, layers_of, site_of, site_table
from bnndp.importers.tables import layer_tensors
from bnndp.importers.values import to_float64, to_std
from bnndp.network import Posterior

_CERTAIN = {"kernel": "in_out"}
_FLAT = ("auto_loc", "auto_scale", "auto_scale_tril", "auto_cov_factor")
_SITE = re.compile(r"(?P<site>.+)_auto_(?P<kind>loc|scale)")
_MODULE = re.compile(r"(?P<module>[^$]+)\$params\.(?P<path>.+)")


def _knows_guide(foreign: Foreign) -> bool:
    """Whether any location has the name of an autoguide."""
    return any(name == "auto_loc" or name.endswith("_auto_loc") for name in foreign.tensors)


def _read_guide(foreign: Foreign, choices: Choices) -> Imported:
    """By the form of guide that the names show."""
    table = site_table(choices)
    flat = {name: tensor for name, tensor in foreign.tensors.items() if name in _FLAT}
    others = {name: tensor for name, tensor in foreign.tensors.items() if name not in flat}
    law, formula = _joint(flat, table) if flat else _independent(others)
    fixed = _fixed({name: tensor for name, tensor in others.items() if _SITE.fullmatch(name) is None})
    if flat and len(fixed) < len(others):
        raise ModelFileError("it holds several guides; save one")
    law = law.with_fixed(fixed | fixed_beside(choices.beside))
    tensors, kinds = to_layers(law, table, _CERTAIN, ordered=False)
    return Imported((tensors,), formula, kinds=kinds, remarks=(REAL_PRIORS,), ordered=True)


NUMPYRO = Importer("numpyro", "<site>_auto_loc, or auto_loc", ("beside", "table", "ignore"), _knows_guide, _read_guide)
"""Autoguides of NumPyro, with their usual prefix ``auto``."""


def _knows_chain(foreign: Foreign) -> bool:
    """Whether weights have the names of JAX's or hand-written models and one axis more than a layer's."""
    sites = [(site, foreign.tensors[name].ndim) for name in foreign.tensors if (site := site_of(name)) is not None]
    weights = [(site, ndim) for site, ndim in sites if site.part == "weight"]
    return (
        bool(weights)
        and all(ndim == 3 and site.leaf != "weight" for site, ndim in weights)
        and all(ndim == 2 for site, ndim in sites if site.part == "bias")
    )


def _read_chain(foreign: Foreign, choices: Choices) -> Imported:
    """One member without variance for each sample."""
    table = site_table(choices)
    count = sample_count(foreign.tensors)
    used = {name: tensor for name, tensor in foreign.tensors.items() if name not in table.ignore}
    values = {name: to_float64(name, tensor) for name, tensor in used.items()}
    shapes = {name: tuple(tensor.shape[1:]) for name, tensor in foreign.tensors.items()}
    layers = layers_of(shapes, table, _CERTAIN, ordered=False)
    members = tuple(
        layer_tensors(by_role(layers, {name: value[index] for name, value in values.items()}, {}))
        for index in range(count)
    )
    return Imported(members, f"{len(members)} samples, each with the same probability; all std = 0", ordered=True)


CHAIN = Importer(
    "mcmc",
    "samples (s, inputs, outputs) of <layer>.kernel or w1, and of their biases",
    ("table", "ignore"),
    _knows_chain,
    _read_chain,
)
"""Samples of a Markov chain by site, (samples, ...): of NumPyro, or of Pyro where sites are written by hand."""


def from_numpyro(
    values: Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    table: Mapping[str, object] | None = None,
    ignore: str | Sequence[str] = (),
) -> Posterior:
    """Read the network of an autoguide of NumPyro, or the ensemble of a Markov chain.

    Args:
        values: ``svi_result.params``, or ``mcmc.get_samples()``.
        architecture: The layers, and anything else that the values do not specify.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.
        table: Layouts, order and meaning of sites (docs/importers/numpyro.md).
        ignore: Sites that are not weights, such as the noise of the data.

    Returns:
        The network, or the ensemble with one member for each sample.

    Examples:
        >>> draws = {"w1": torch.zeros(5, 3, 8), "b1": torch.zeros(5, 8), "w2": torch.zeros(5, 8, 2)}
        >>> from_numpyro(draws, task="regression", activation="relu")
        Ensemble(5 x BayesianNetwork(3-8-2, regression))
    """
    given = merge_architecture(architecture, task, activation)
    foreign = flat(to_tensors(values))
    reader = NUMPYRO if NUMPYRO.knows(foreign) else CHAIN
    return posterior_of(reader.read(foreign, Choices(table=table, ignore=ignored_names(ignore))), given)


def _independent(tensors: Mapping[str, Tensor]) -> tuple[Law, str]:
    """Sites with a location, and all or none of them with a scale."""
    parts = {name: (each["site"], each["kind"]) for name in tensors if (each := _SITE.fullmatch(name)) is not None}
    means = {site: to_float64(name, tensors[name]) for name, (site, kind) in parts.items() if kind == "loc"}
    stds = {site: to_std(name, tensors[name]) for name, (site, kind) in parts.items() if kind == "scale"}
    if stds:
        expect_scales(means, stds)
    return Law(means, stds), "mean = auto_loc, std = auto_scale" if stds else "mean = auto_loc, all std = 0"


def _joint(tensors: Mapping[str, Tensor], table: SiteTable) -> tuple[Law, str]:
    """One vector of all sites, with a diagonal, full or low-rank covariance."""
    if set(tensors) == {"auto_loc"}:
        raise ModelFileError(
            "it has auto_loc alone: a Laplace guide, whose covariance is not in its parameters, or a file that is cut "
            "off; save samples of the guide's posterior, and read them by --from mcmc"
        )
    forms = ({"auto_loc", "auto_scale"}, {"auto_loc", "auto_scale", "auto_cov_factor"}, {"auto_loc", "auto_scale_tril"})
    if set(tensors) not in forms:
        raise ModelFileError(f"it has {' and '.join(tensors)} alone: a tensor is missing")
    values = {name: to_float64(name, tensor) for name, tensor in tensors.items()}
    mean, size = values["auto_loc"], values["auto_loc"].numel()
    shapes = site_shapes(table, size)
    expect_joint_shapes({name: tuple(value.shape) for name, value in values.items()}, "auto_loc", size)
    if "auto_scale_tril" in values:
        lower = values["auto_scale_tril"]
        if bool((lower.triu(1) != 0).any()):
            raise ModelFileError("auto_scale_tril is not lower triangular")
        law = Law.joint(mean, torch.zeros_like(mean), lower, shapes)
        return law, "mean = auto_loc, std = 0, factor = auto_scale_tril"
    std = to_std("auto_scale", tensors["auto_scale"])
    if "auto_cov_factor" not in values:
        return Law.joint(mean, std, None, shapes), "mean = auto_loc, std = auto_scale"
    law = Law.joint(mean, std, std[:, None] * values["auto_cov_factor"], shapes)
    return law, "mean = auto_loc, std = auto_scale, factor = auto_scale auto_cov_factor"


def _fixed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of a module that have no prior, by the names that they would have as sites."""
    found = {}
    for name, tensor in tensors.items():
        parts = _MODULE.fullmatch(name)
        if parts is None:
            raise ModelFileError(f"tensor {name!r:.80} is not a location or scale of an autoguide (prefix auto)")
        found[f"{parts['module']}/{parts['path']}"] = to_float64(name, tensor)
    return found
