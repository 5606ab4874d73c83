r"""laplace-torch: the state_dict of a Laplace approximation, beside the state_dict of its network.

The posterior is a Gaussian at the ``mean``, a vector of parameters of the network in their order, with the precision
:math:`P=cH+\operatorname{diag}(p)`: :math:`c=1/(\sigma^2T)` of the ``sigma_noise`` and the ``temperature``, p the
``prior_precision`` (one number, one for each parameter tensor, or one for each weight).

======= ==================================================== =======================================================
diag    ``H`` (n,)                                           independent weights, std = 1 / sqrt(P)
full    ``H`` (n, n)                                         factor of the inverse of P
lowrank ``H`` = (U (n, r), l (r,)), for U diag(l) U^T        the same
kron    ``H.k`` = (A, B) of a weight, (A,) of a bias         factor with a column u_i x v_j / sqrt(c a_i b_j + p) for
                                                             each pair of eigenvectors of A and B
======= ==================================================== =======================================================

All are exact; a precision that couples layers is refused. Parameters have no names in the file: the second one says
them, and the mean must be made of its values. What is not in the mean was not trained, and has no variance. The task is
the ``likelihood``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bnndp.errors import InputError, ModelFileError
from bnndp.importers.architecture import Architecture, merge_architecture
from bnndp.importers.flatten import flat, state_of
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer
from bnndp.importers.gaussian import (
    correlation_error,
    expect_size,
    fixed_beside,
    inverse_factor,
    layer_factor,
    split_sites,
)
from bnndp.importers.live import describe_network, posterior_of_live
from bnndp.importers.prefixes import strip_prefixes
from bnndp.importers.sites import Layer, SiteTable, by_role, layers_of
from bnndp.importers.tables import layer_tensors
from bnndp.importers.values import to_float64, to_std
from bnndp.network import TASKS, Posterior

_CLASS = re.compile(r"(?P<structure>Diag|Full|Kron|LowRank)(?P<last>LL)?Laplace")
_TORCH = {"weight": "out_in"}
_GLM = (
    "certified is the mean over draws of the weights: that is pred_type='nn', link_approx='mc' of laplace-torch, whose "
    "default is another prediction (pred_type='glm', link_approx='probit')"
)
_FORMULAS = {
    "Diag": "std = 1 / sqrt(H / (sigma_noise^2 temperature) + prior_precision)",
    "Full": "factor F with F F^T the inverse of H / (sigma_noise^2 temperature) + diag(prior_precision)",
    "LowRank": "factor F with F F^T the inverse of U diag(l) U^T / (sigma_noise^2 temperature) + diag(prior_precision)",
    "Kron": "factor with columns u_i x v_j / sqrt(a_i b_j / (sigma_noise^2 temperature) + prior_precision)",
}
Shapes = Mapping[str, tuple[int, ...]]


def _knows(foreign: Foreign) -> bool:
    """Whether it names its class, and has the prior of a Laplace approximation."""
    return "cls_name" in foreign.values and "prior_precision" in {*foreign.tensors, *foreign.values}


def _read(foreign: Foreign, choices: Choices) -> Imported:
    """The network of the second file, with the variance of this one."""
    structure, last = _structure(foreign)
    if choices.beside is None:
        raise ModelFileError("it does not name its parameters: give the state_dict of the network by --beside")
    if not choices.beside.ordered:
        raise ModelFileError("the file of the network keeps no order, as no safetensors file does; give the .pt file")
    values = fixed_beside(choices.beside)
    layers = layers_of({name: tuple(value.shape) for name, value in values.items()}, SiteTable(), _TORCH, ordered=True)
    curvature = _curvature(foreign, structure, _trained(foreign, values, layers, last=last), last=last)
    likelihood = str(foreign.values.get("likelihood"))
    task = likelihood if likelihood in TASKS else None
    if structure == "Diag":
        tensors = layer_tensors(by_role(layers, values, curvature.stds()))
        return Imported((tensors,), _FORMULAS[structure], remarks=(_GLM,), ordered=True, task=task)
    own = [layer for layer in layers if any(site in curvature.shapes for site in layer.sites)]
    rows = curvature.kron(own) if structure == "Kron" else curvature.full(own, low_rank=structure == "LowRank")
    factors = {f"{layer.name}.factor": layer_factor(layer, rows[layer.name]) for layer in own}
    tensors = layer_tensors(by_role(layers, values, {})) | factors
    kinds = {layer.name: "correlated_linear" for layer in own}
    return Imported((tensors,), _FORMULAS[structure], kinds=kinds, remarks=(_GLM,), ordered=True, task=task)


LAPLACE = Importer("laplace", "cls_name, mean and H of a Laplace approximation", ("beside",), _knows, _read)
"""Laplace approximations of all weights, or of the last layer."""


def from_laplace(
    approximation: object,
    network: object | None = None,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
) -> Posterior:
    """Read the network of a Laplace approximation of laplace-torch.

    Args:
        approximation: A fitted approximation, which holds its network and says the task, or its ``state_dict()``.
        network: The module, which says its activations, or its ``state_dict()``. Needed beside a state.
        architecture: The layers, and anything else that the module does not specify.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.

    Returns:
        The network, with independent or correlated weights.

    Examples:
        >>> module = torch.nn.Linear(2, 1)
        >>> state = {"cls_name": "DiagLaplace", "likelihood": "regression", "H": 3 * torch.ones(3), "temperature": 1.0}
        >>> state |= {"mean": torch.nn.utils.parameters_to_vector(module.parameters()).detach()}
        >>> state |= {"prior_precision": torch.ones(1), "sigma_noise": torch.ones(())}
        >>> from_laplace(state, module).linears[0].weight_std  # 1 / sqrt(3 + 1)
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    given = merge_architecture(architecture, task, activation)
    inner = getattr(approximation, "model", None)
    inner = getattr(inner, "model", inner) if type(inner).__name__ == "FeatureExtractor" else inner
    beside = inner if network is None else network
    if beside is None:
        raise InputError("the state_dict of a Laplace approximation has no names: give the network as well.")
    found = LAPLACE.read(flat(state_of(approximation)), Choices(beside=flat(state_of(beside))))
    live = beside if isinstance(beside, torch.nn.Module) else inner
    return posterior_of_live(found, given, partial(describe_network, live, found))


def _structure(foreign: Foreign) -> tuple[str, bool]:
    """Which approximation of the Hessian, and whether of the last layer."""
    name = foreign.values.get("cls_name")
    found = _CLASS.fullmatch(str(name))
    if found is None:
        why = "its subnetwork is not in the file" if "Subnet" in str(name) else "it is not a Gaussian over weights"
        raise ModelFileError(f"it is a {name!r:.40}, which cannot be read: {why}; known: {', '.join(_FORMULAS)}Laplace")
    return found["structure"], found["last"] is not None


def _trained(
    foreign: Foreign, values: Mapping[str, Tensor], layers: Sequence[Layer], *, last: bool
) -> dict[str, tuple[int, ...]]:
    """The parameters that the mean is made of, in its order, with their shapes."""
    given = foreign.tensors.get("mean")
    if given is None or given.ndim != 1 or not len(given):
        raise ModelFileError("it has no vector 'mean': it is cut off, or was not fitted")
    mean = to_float64("mean", given)
    found = _last(mean, values, layers, foreign.values.get("_last_layer_name")) if last else _placed(mean, values)
    if len(found) == 1:
        return {name: tuple(values[name].shape) for name in found[0]}
    what = "one layer" if last else f"the parameters {', '.join(list(values)[:4])}"
    how = "in more than one way" if found else "not"
    raise ModelFileError(
        f"its mean of {len(mean)} values is {how} made of the values of {what} of the second file: give the state_dict "
        "of the same network, as it was when the approximation was fitted"
    )


def _last(mean: Tensor, values: Mapping[str, Tensor], layers: Sequence[Layer], name: object) -> list[tuple[str, ...]]:
    """The layers, or that of the name if there is one, whose parameters are the mean."""
    found = []
    for layer in layers:
        own = tuple(each for each in values if each in layer.sites)
        named = name is None or strip_prefixes(str(name)) == strip_prefixes(layer.name)
        if named and torch.equal(torch.cat([values[each].flatten() for each in own]), mean):
            found.append(own)
    return found


def _placed(mean: Tensor, values: Mapping[str, Tensor]) -> list[tuple[str, ...]]:
    """The ways, two at most, to make up the mean of some of the parameters, in their order."""
    ways: dict[int, list[tuple[str, ...]]] = {0: [()]}
    for name, value in values.items():
        longer: dict[int, list[tuple[str, ...]]] = {}
        for place, some in ways.items():
            if torch.equal(mean[place : place + value.numel()], value.flatten()):
                longer.setdefault(place + value.numel(), []).extend((*each, name) for each in some)
        for place, some in longer.items():
            ways[place] = [*ways.get(place, []), *some][:2]
    return ways.get(len(mean), [])


def _curvature(foreign: Foreign, structure: str, shapes: Shapes, *, last: bool) -> _Curvature:
    """The numbers of the precision, checked."""
    sigma, temperature = _number(foreign, "sigma_noise"), _number(foreign, "temperature")
    sizes = [math.prod(shape) for shape in shapes.values()]
    given = foreign.tensors.get("prior_precision")
    if given is None:
        given = torch.tensor([_number(foreign, "prior_precision")], dtype=torch.float64)
    prior = to_float64("prior_precision", given).reshape(-1)
    allowed = {1, len(sizes)} if structure == "Kron" else {1, sum(sizes)} if last else {1, len(sizes), sum(sizes)}
    if len(prior) not in allowed:
        raise ModelFileError(f"prior_precision has {len(prior)} values; expected one of {sorted(allowed)}")
    if len(prior) not in (1, sum(sizes)) or structure == "Kron":
        prior = prior.expand(len(sizes)).repeat_interleave(torch.tensor(sizes))
    hessian = {name: to_float64(name, value) for name, value in foreign.tensors.items() if re.match(r"H(\.|$)", name)}
    return _Curvature(shapes, 1 / sigma**2 / temperature, prior.expand(sum(sizes)), hessian)


def _number(foreign: Foreign, name: str) -> float:
    tensor = foreign.tensors.get(name)
    found = tensor.item() if tensor is not None and tensor.numel() == 1 else foreign.values.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < math.inf:
        raise ModelFileError(f"{name} is {found!r:.40}; expected a number > 0")
    return float(found)


@dataclass(frozen=True, slots=True)
class _Curvature:
    """The precision ``c H + diag(p)`` of the parameters of these shapes, in this order."""

    shapes: Shapes
    factor: float  # c
    prior: Tensor  # p, (n,)
    hessian: Mapping[str, Tensor]  # H, or its parts H.k and H.k.l

    def _part(self, name: str, *wanted: int) -> Tensor:
        found = self.hessian.get(name)
        if found is None or tuple(found.shape) != wanted:
            got = "is not there" if found is None else f"has shape {tuple(found.shape)}"
            raise ModelFileError(f"{name} {got}; expected shape {wanted}, of its parameters {', '.join(self.shapes)}")
        return found

    def stds(self) -> dict[str, Tensor]:
        """Stds of independent weights."""
        precision = self.factor * self._part("H", len(self.prior)) + self.prior
        return split_sites(to_std("the precision", precision, "rsqrt"), self.shapes)

    def full(self, layers: Sequence[Layer], *, low_rank: bool) -> dict[str, dict[str, Tensor]]:
        """Rows of the factor of each layer, by site: of a dense precision."""
        n = len(self.prior)
        places = split_sites(torch.arange(n), self.shapes)
        own = {layer: torch.cat([places[site].flatten() for site in layer.sites if site in places]) for layer in layers}
        for layer, at in own.items():
            expect_size(layer.name, len(at), len(at))
        if low_rank:
            basis = self._part("H.0", n, *self.hessian.get("H.0", self.prior[:, None]).shape[1:2])
            hessian = (basis * self._part("H.1", basis.shape[1])) @ basis.mT
        else:
            hessian = self._part("H", n, n)
        precision = self.factor * hessian + torch.diag(self.prior)
        for (one, at), (other, there) in itertools.combinations(own.items(), 2):
            if bool((precision[at][:, there] != 0).any()) or bool((precision[there][:, at] != 0).any()):
                raise correlation_error(one.name, other.name)
        found = {}
        for layer, at in own.items():
            rows = inverse_factor(f"layer {layer.name!r:.80}", precision[at][:, at])
            shapes = {site: self.shapes[site] for site in self.shapes if site in layer.sites}
            found[layer.name] = _whole(layer, split_sites(rows, shapes))
        return found

    def kron(self, layers: Sequence[Layer]) -> dict[str, dict[str, Tensor]]:
        """Rows of the factor of each layer, by site: of Kronecker products."""
        priors = split_sites(self.prior, self.shapes)
        found = {}
        for layer in layers:
            sites = [site for site in self.shapes if site in layer.sites]
            sizes = [math.prod(self.shapes[site]) for site in sites]
            expect_size(layer.name, layer.shape[0] * (math.prod(layer.shape[1:]) + 1), sum(sizes))
            blocks = {site: self._block(site, priors[site].flatten()[0]) for site in sites}
            rows = torch.block_diag(*blocks.values())
            found[layer.name] = _whole(layer, split_sites(rows, {site: self.shapes[site] for site in sites}))
        return found

    def _block(self, site: str, prior: Tensor) -> Tensor:
        """The factor (m, m) of one parameter tensor of m values."""
        index = list(self.shapes).index(site)
        shape = self.shapes[site]
        sides = (shape[0],) if len(shape) == 1 else (shape[0], math.prod(shape[1:]))
        values, vectors = torch.ones(1).double(), torch.ones(1, 1).double()
        for side, size in enumerate(sides):
            part, basis = self._eigen(f"H.{index}.{side}", size)
            values, vectors = torch.outer(values, part).flatten(), torch.kron(vectors, basis.contiguous())
        std = to_std(f"the precision of {site}", self.factor * values + prior, "rsqrt")
        return vectors * std

    def _eigen(self, name: str, size: int) -> tuple[Tensor, Tensor]:
        """Eigenvalues, none below zero, and eigenvectors of a factor; it is a matrix, or a diagonal."""
        if name in self.hessian and self.hessian[name].ndim == 1:
            return self._part(name, size).clamp_min(0), torch.eye(size, dtype=torch.float64)
        values, vectors = torch.linalg.eigh(self._part(name, size, size), UPLO="U")
        return values.clamp_min(0), vectors


def _whole(layer: Layer, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of all sites of a layer: of those that were not trained they are zero."""
    rank = next(iter(rows.values())).shape[-1]
    shapes = dict(zip(layer.sites, (layer.shape, (layer.sizes[1],)), strict=False))
    return {site: rows.get(site, torch.zeros(*shape, rank).double()) for site, shape in shapes.items()}
