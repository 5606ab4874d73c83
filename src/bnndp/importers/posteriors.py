"""States of the ``posteriors`` library, as plain dictionaries of their fields.

================================= ==================================================================================
``VIDiagState``                   ``params``, ``log_sd_diag``: std = exp(log_sd_diag)
``DiagLaplaceState``              ``params``, ``prec_diag``: std = 1 / sqrt(prec_diag)
``EKFDiagState``                  ``params``, ``sd_diag``
``VIDenseState``                  ``params``, ``L_factor``, the lower triangle of L row by row: covariance L L^T
``DenseLaplaceState``             ``params``, ``prec``: covariance prec^-1
``EKFDenseState``                 ``params``, ``cov``
``SGHMCState``, ``SGLDState`` ... ``params``: one sample; a list of them is an ensemble
================================= ==================================================================================

The vector of the dense ones is ``params`` in the order of ``optree``: a plain dictionary by its *sorted* names, so that
``0.bias`` comes before ``0.weight``, an ``OrderedDict`` as it is. A file does not say which of the two it was.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from bnndp.errors import CertError, InputError, ModelFileError
from bnndp.importers.architecture import Architecture, merge_architecture
from bnndp.importers.flatten import flat, state_of
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer
from bnndp.importers.gaussian import Law, expect_size, fixed_beside, inverse_factor, split_sites, to_layers
from bnndp.importers.live import describe_network, posterior_of_live
from bnndp.importers.samples import join_members
from bnndp.importers.sites import SiteTable, site_table
from bnndp.importers.values import to_float64, to_std
from bnndp.layers.correlated import factor_of
from bnndp.network import Posterior

_TORCH = {"weight": "out_in"}
_DIAGONAL = {"log_sd_diag": "exp", "prec_diag": "rsqrt", "sd_diag": "none"}
_DENSE = ("L_factor", "prec", "cov")
_FIELDS = ("params", *_DIAGONAL, *_DENSE)
_ASIDE = ("opt_state", "nelbo", "step", "aux", "log_posterior", "log_likelihood", "momenta", "xi")
_FORMULAS = {
    "log_sd_diag": "mean = params, std = exp(log_sd_diag)",
    "prec_diag": "mean = params, std = 1 / sqrt(prec_diag)",
    "sd_diag": "mean = params, std = sd_diag",
    "L_factor": "mean = params, std = 0, factor = L",
    "prec": "mean = params, std = 0, factor F with F F^T the inverse of prec",
    "cov": "mean = params, std = 0, factor F with F F^T = cov",
    "": "mean = params, all std = 0",
}


def _knows(foreign: Foreign) -> bool:
    """Whether there are parameters, and beside them something of a state."""
    heads = {name.partition(".")[0] for name in foreign.tensors}
    return "params" in heads and bool(heads & {*_DIAGONAL, *_DENSE, "momenta", "log_posterior"})


def _read(foreign: Foreign, choices: Choices) -> Imported:
    """Means, and the spread that the state holds."""
    known = (*_FIELDS, *_ASIDE)
    odd = next((name for name in foreign.tensors if name.partition(".")[0] not in known), None)
    if odd is not None:
        raise ModelFileError(f"tensor {odd!r:.80} is not part of a state; its fields are {', '.join(known)}")
    means = {name: to_float64(f"params.{name}", value) for name, value in foreign.below("params").tensors.items()}
    kinds = [kind for kind in (*_DIAGONAL, *_DENSE) if any(n.partition(".")[0] == kind for n in foreign.tensors)]
    if not means or len(kinds) > 1:
        raise ModelFileError(f"it has {'no params' if not means else ' and '.join(kinds)}: it is not one state")
    kind = kinds[0] if kinds else ""
    table = site_table(choices)
    law = _dense(means, kind, foreign, table) if kind in _DENSE else _diagonal(means, kind, foreign)
    beside = fixed_beside(choices.beside)
    order = SiteTable(layout=table.layout, ignore=table.ignore)  # the sites of a table are those of a vector
    tensors, correlated = to_layers(law.with_fixed(beside), order, _TORCH, ordered=foreign.ordered and not beside)
    return Imported((tensors,), _FORMULAS[kind], kinds=correlated, ordered=True)


POSTERIORS = Importer(
    "posteriors",
    "params.<name> with log_sd_diag, prec_diag, sd_diag, L_factor, prec, cov or momenta",
    ("beside", "table", "ignore"),
    _knows,
    _read,
)
"""One state; of a sampler it has no variance."""


def from_posteriors(
    state: object,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    network: object | None = None,
) -> Posterior:
    """Read the network of a state of ``posteriors``, or the ensemble of a list of states.

    Args:
        state: A state, or a list of them, such as samples of SGHMC; objects, or dictionaries of their fields.
        architecture: The layers, and anything else that the network does not specify.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.
        network: A module, or its ``state_dict()``, with the parameters that the state does not have. A module with all
            layers says its activations.

    Returns:
        The network, or the ensemble with one member for each state.

    Examples:
        >>> params = {"0.weight": torch.ones(1, 2), "0.bias": torch.zeros(1)}
        >>> stds = {name: 0.5 * torch.ones_like(value) for name, value in params.items()}
        >>> from_posteriors({"params": params, "sd_diag": stds}, task="regression").linears[0].weight_std
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    given = merge_architecture(architecture, task, activation)
    states = list(state) if isinstance(state, list | tuple) else [state]
    if not states:
        raise InputError("there are no states.")
    found = join_members([_state_found(each, network) for each in states])
    return posterior_of_live(found, given, partial(describe_network, network, found))


def _state_found(state: object, network: object | None) -> Imported:
    held = state if isinstance(state, Mapping) else {name: getattr(state, name, None) for name in _FIELDS}
    fields = {name: held.get(name) for name in _FIELDS}
    params = fields["params"]
    if not isinstance(params, Mapping):
        raise InputError(f"a state needs params, a dictionary by parameter names, got {type(params).__name__}.")
    order = list(params) if isinstance(params, OrderedDict) else sorted(params)
    table = {"sites": [{"site": name} for name in order]}
    foreign = flat({name: value for name, value in fields.items() if value is not None})
    lacking = state_of(network)
    if isinstance(lacking, Mapping):
        lacking = {name: value for name, value in lacking.items() if name not in params}
    return POSTERIORS.read(foreign, Choices(beside=flat(lacking) if lacking else None, table=table))


def _diagonal(means: Mapping[str, Tensor], kind: str, foreign: Foreign) -> Law:
    if not kind:
        return Law(means, {})
    given = foreign.below(kind).tensors
    lacking = next((name for name in means if name not in given), None)
    if lacking is not None:
        raise ModelFileError(f"it has the mean of {lacking!r:.80}, but not its {kind}: a tensor is missing")
    return Law(means, {name: to_std(f"{kind}.{name}", each, _DIAGONAL[kind]) for name, each in given.items()})


def _dense(means: Mapping[str, Tensor], kind: str, foreign: Foreign, table: SiteTable) -> Law:
    """A joint covariance of the vector of all parameters."""
    shapes = {name: tuple(means[name].shape) for name in _order(means, table, sure=foreign.ordered)}
    n = sum(map(math.prod, shapes.values()))
    given = to_float64(kind, foreign.tensors[kind]) if kind in foreign.tensors else torch.zeros(0)
    wanted = (n * (n + 1) // 2,) if kind == "L_factor" else (n, n)
    if tuple(given.shape) != wanted:
        raise ModelFileError(f"{kind} has shape {tuple(given.shape)}; expected {wanted} of {n} parameters")
    expect_size("the state", n, n)
    if kind == "L_factor":
        factor = torch.zeros(n, n, dtype=torch.float64)
        rows, columns = torch.tril_indices(n, n)
        factor[rows, columns] = given
    elif kind == "prec":
        factor = inverse_factor("the state", given)
    else:
        try:
            factor = factor_of(given)
        except CertError as error:
            raise ModelFileError(f"cov of the state: {error}") from error
    zeros = {name: torch.zeros_like(mean) for name, mean in means.items()}
    return Law(means, zeros, split_sites(factor, shapes))


def _order(means: Mapping[str, Tensor], table: SiteTable, *, sure: bool) -> list[str]:
    """The names in the order of the vector."""
    given = [site.name for site in table.sites]
    if given and sorted(given) != sorted(means):
        raise ModelFileError(f"the sites of the table must be the params of the state: {', '.join(list(means)[:6])}")
    if not given and not (sure and list(means) == sorted(means)):
        raise ModelFileError(
            "the order of its vector is ambiguous: by sorted names if params was a dict, as they are if an "
            "OrderedDict; give it by --table, as in sites = [{site = '0.bias'}, {site = '0.weight'}]"
        )
    return given or list(means)
