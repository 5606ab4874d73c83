r"""Gaussian sites as layers, independent of one another or with a covariance within a layer.

All sites together are :math:`m+D\varepsilon+F\xi` with a diagonal D and a factor F. Layers are independent of one
another in ``bnndp-posterior-1``, so each column of F must reach the weights of one layer only; that layer is then a
``correlated_linear`` with these rows of F, which is exact. A covariance between layers is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Foreign
from bnndp.importers.prefixes import network_tensors
from bnndp.importers.sites import Layer, SiteTable, by_role, layers_of
from bnndp.importers.tables import layer_tensors
from bnndp.importers.values import to_float64

LARGEST = 2**25  # numbers in the factor of one layer: 256 MiB
REAL_PRIORS = "weights are taken to have priors on all real numbers, such as normal ones; the file does not say"
_ASYMMETRY = 1e-5  # of a precision that was summed up in float32, relative to its largest entry

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Law:
    """The law of all sites, by their names."""

    means: Mapping[str, Tensor]
    stds: Mapping[str, Tensor]  # of the independent part; a site that is not here has no variance
    rows: Mapping[str, Tensor] = field(default_factory=dict)  # of the factor, (*shape of the site, rank)

    def __post_init__(self) -> None:
        for name, std in self.stds.items():
            mean = self.means.get(name)
            if mean is None:
                raise ModelFileError(f"it has the scale of {name!r:.80} without its mean: a tensor is missing")
            if mean.shape != std.shape:
                shapes = f"{tuple(mean.shape)} and {tuple(std.shape)}"
                raise ModelFileError(f"mean and scale of {name!r:.80} have the shapes {shapes}")

    @classmethod
    def joint(cls, mean: Tensor, std: Tensor, factor: Tensor | None, shapes: Shapes) -> Law:
        """The law of one vector (n,) of all sites, with stds (n,) and a factor (n, rank)."""
        rows = {} if factor is None else split_sites(factor, shapes)
        return cls(split_sites(mean, shapes), split_sites(std, shapes), rows)

    def with_fixed(self, fixed: Mapping[str, Tensor]) -> Law:
        """The law with more sites, which have no variance."""
        both = next((name for name in fixed if name in self.means), None)
        if both is not None:
            raise ModelFileError(
                f"{both!r:.80} is a site of the posterior and has a value without variance: which one is used?"
            )
        return replace(self, means={**self.means, **fixed})


def to_layers(
    law: Law, table: SiteTable, certain: Mapping[str, str], *, ordered: bool
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of the layers in our names, and the kinds of those that are correlated."""
    layers = layers_of({name: tuple(mean.shape) for name, mean in law.means.items()}, table, certain, ordered=ordered)
    tensors = layer_tensors(by_role(layers, law.means, law.stds))
    used: dict[str, Tensor] = {}  # which columns of the factor reach each layer
    for layer in layers:
        reached = [(law.rows[site].flatten(0, -2) != 0).any(0) for site in layer.sites if site in law.rows]
        used |= {layer.name: torch.stack(reached).any(0)} if layer.weight in law.rows else {}
    for one, other in itertools.combinations(used, 2):
        if bool((used[one] & used[other]).any()):
            raise correlation_error(one, other)
    kinds = {}
    for layer in layers:
        columns = used.get(layer.name)
        if columns is not None and bool(columns.any()):
            rows = {site: law.rows[site][..., columns] for site in layer.sites}
            tensors[f"{layer.name}.factor"] = layer_factor(layer, rows)
            kinds[layer.name] = "correlated_linear"
    return tensors, kinds


def correlation_error(one: str, other: str) -> ModelFileError:
    """What is wrong with a covariance of two layers."""
    return ModelFileError(
        f"weights of the layers {one!r:.60} and {other!r:.60} are correlated; only a covariance within a layer can be "
        "certified, such as that of the last layer alone"
    )


def layer_factor(layer: Layer, rows: Mapping[str, Tensor]) -> Tensor:
    """The factor (n_out, n_in + 1, rank) of a layer from the rows of its sites; the bias is last."""
    if len(layer.shape) != 2:
        raise ModelFileError(f"the kernel of layer {layer.name!r:.80} is correlated; only dense layers can be")
    weight = layer.oriented(rows[layer.weight])
    expect_size(layer.name, weight.shape[0] * (weight.shape[1] + 1), weight.shape[2])
    bias = rows.get(layer.bias or "", weight.new_zeros(weight.shape[0], weight.shape[2]))
    return torch.cat([weight, bias[:, None]], 1)


def expect_size(name: str, values: int, rank: int) -> None:
    """Refuse a factor that is too large to be worked with."""
    if values * rank > LARGEST:
        raise ModelFileError(
            f"the covariance of the {values} weights and biases of layer {name!r:.80} has a factor of {values * rank} "
            f"numbers; at most {LARGEST} are read. Take a diagonal approximation, or that of the last layer alone"
        )


def inverse_factor(name: str, precision: Tensor) -> Tensor:
    r"""F (n, n) with :math:`FF^\top=P^{-1}`: with :math:`P=CC^\top`, it is :math:`C^{-\top}`."""
    if not bool(precision.isfinite().all()):
        raise ModelFileError(f"the precision of {name} has numbers that are not finite")
    if bool(((precision - precision.mT).abs() > _ASYMMETRY * precision.abs().max()).any()):
        raise ModelFileError(f"the precision of {name} is not symmetric")
    lower, fault = torch.linalg.cholesky_ex(0.5 * (precision + precision.mT))
    if int(fault) != 0:
        raise ModelFileError(f"the precision of {name} is not positive definite: there is no such Gaussian")
    return torch.linalg.solve_triangular(lower.mT, torch.eye(len(precision), dtype=precision.dtype), upper=True)


def site_shapes(table: SiteTable, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the sites in a vector of that size, by the table: the file does not say them."""
    shapes = {site.name: site.shape for site in table.sites if site.shape is not None}
    if not shapes or len(shapes) < len(table.sites):
        raise ModelFileError(
            f"it has one vector of {size} values for all sites and does not say which is where: give all sites, in the "
            'order of the guide, by --table, as in sites = [{site = "0.weight", shape = [8, 3]}, ...]'
        )
    total = sum(map(math.prod, shapes.values()))
    if total != size:
        raise ModelFileError(f"the sites of the table have {total} values, the vector of the file has {size}")
    return shapes


def expect_scales(means: Iterable[str], stds: Mapping[str, object]) -> None:
    """Refuse sites that have a location without a scale."""
    alone = next((site for site in means if site not in stds), None)
    if alone is not None:
        raise ModelFileError(f"it has the location of {alone!r:.80} without its scale: a tensor is missing")


def expect_joint_shapes(shapes: Shapes, loc: str, size: int) -> None:
    """Refuse vectors, triangular matrices and factors of a guide that do not fit the location."""
    for name, shape in shapes.items():
        is_factor = name.endswith("cov_factor") and len(shape) == 2
        wanted = (size, shape[1]) if is_factor else (size, size) if name.endswith("scale_tril") else (size,)
        if shape != wanted or name.endswith("cov_factor") != is_factor:
            raise ModelFileError(f"{name} has shape {shape}, but {loc} has {size} values")


def split_sites(values: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """A vector (n,), or the rows (n, rank) of a factor, cut into sites in this order."""
    parts = torch.split(values, [math.prod(shape) for shape in shapes.values()])
    return {
        name: part.reshape((*shape, *values.shape[1:]))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def fixed_beside(beside: Foreign | None) -> dict[str, Tensor]:
    """The parameters of a second file, the state_dict of the network: they have no variance."""
    found = {} if beside is None else network_tensors(beside)
    odd = next((name for name in found if name.rpartition(".")[2] not in ("weight", "bias")), None)
    if odd is not None:
        raise ModelFileError(f"tensor {odd!r:.80} of the second file is not a weight or bias of a layer of torch")
    return {name: to_float64(name, tensor) for name, tensor in found.items()}
