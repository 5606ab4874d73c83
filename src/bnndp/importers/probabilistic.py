"""Networks from live objects of probabilistic libraries: Pyro, NumPyro, laplace-torch, posteriors. None is imported.

What they do not say is said by ``task`` and ``activation``, as of :func:`bnndp.from_module`, or an ``Architecture``;
what nobody says is refused. A live network is asked (:mod:`bnndp.importers.live`), and must not be contradicted.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.importers.architecture import Architecture, architecture_of
from bnndp.importers.build import posterior_of
from bnndp.importers.constraints import CONSTRAINTS
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign, Found
from bnndp.importers.guides import read_guide
from bnndp.importers.laplace import Laplace
from bnndp.importers.live import Reading, Said, live_posterior, read_network
from bnndp.importers.numpyro import Chain, NumpyroGuide
from bnndp.importers.posteriors_states import State
from bnndp.importers.pyro import PyroGuide, TyxeGuide
from bnndp.importers.samples import joined

if TYPE_CHECKING:
    from bnndp.network import Posterior

__all__ = ["from_laplace", "from_numpyro", "from_posteriors", "from_pyro"]

_FIELDS = ("params", "log_sd_diag", "prec_diag", "sd_diag", "L_factor", "prec", "cov")  # of states of posteriors


def from_pyro(  # noqa: PLR0913 (what the guide does not say)
    guide: object,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    scale_transform: str | None = None,
    network: object | None = None,
    table: Mapping[str, object] | None = None,
    ignore: str | Sequence[str] = (),
) -> Posterior:
    """The network of a guide of Pyro or TyXe, its ``state_dict()``, or a ParamStore, its ``get_state()``.

    Of a live guide with one vector for all sites their order is known, and its scales need no transform: they are those
    of its constraints. Its model, if that is a module, says the activations that are modules, and mostly the task
    (:mod:`bnndp.importers.guides`). ``network`` is a module, or a state_dict, with the layers that have no prior.
    ``ignore`` names sites that are no weights, such as the noise of the data. A file is read by ``bnndp convert``.

    >>> state = {"locs.0.weight_unconstrained": torch.ones(1, 2), "scales.0.weight_unconstrained": torch.zeros(1, 2)}
    >>> from_pyro(state, task="regression", scale_transform="exp").linears[0].weight_std
    tensor([[1., 1.]], dtype=torch.float64)
    """
    given = architecture_of(architecture, task, activation)
    foreign, told = _guide(guide)
    said = dict(table or {})
    if told and "sites" not in said:
        said["sites"] = told
    aside = _names(ignore)
    _expect_real(guide, said.get("ignore", ()), aside)
    reader = TyxeGuide() if TyxeGuide().knows(foreign) else PyroGuide()
    beside = None if network is None else flat(_state(network))
    found = reader.read(foreign, Choices(scale_transform, beside=beside, table=said or None, ignore=aside))

    def read(reading: Reading) -> Said | None:
        return read_guide(guide, reading) or read_network(network, found, reading)

    return live_posterior(found, given, read)


def from_numpyro(
    values: Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    table: Mapping[str, object] | None = None,
    ignore: str | Sequence[str] = (),
) -> Posterior:
    """The network of ``svi_result.params`` of an autoguide, or the ensemble of ``mcmc.get_samples()``.

    ``ignore`` names sites that are no weights, such as the noise of the data.

    >>> draws = {
    ...     "w1": torch.zeros(5, 3, 8),
    ...     "b1": torch.zeros(5, 8),
    ...     "w2": torch.zeros(5, 8, 2),
    ...     "b2": torch.zeros(5, 2),
    ... }
    >>> from_numpyro(draws, task="regression", activation="relu")
    Ensemble(5 x BayesianNetwork(3-8-2, regression))
    """
    given = architecture_of(architecture, task, activation)
    foreign = flat(_arrays(values))
    reader = NumpyroGuide() if NumpyroGuide().knows(foreign) else Chain()
    return posterior_of(reader.read(foreign, Choices(table=table, ignore=_names(ignore))), given)


def from_laplace(
    approximation: object,
    network: object | None = None,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
) -> Posterior:
    """The network of a fitted Laplace approximation, or of its ``state_dict()`` and the network (or its state_dict).

    A live approximation has its network in it; one of the last layer has it within a feature extractor. The network, if
    it is a module, says its activations, the approximation the task.
    """
    given = architecture_of(architecture, task, activation)
    inner = getattr(approximation, "model", None)
    inner = getattr(inner, "model", inner) if type(inner).__name__ == "FeatureExtractor" else inner
    beside = inner if network is None else network
    if beside is None:
        raise InputError("the state_dict of a Laplace approximation has no names: give the network as well.")
    found = Laplace().read(flat(_state(approximation)), Choices(beside=flat(_state(beside))))
    live = beside if isinstance(beside, torch.nn.Module) else inner
    return live_posterior(found, given, partial(read_network, live, found))


def from_posteriors(
    state: object,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    network: object | None = None,
) -> Posterior:
    """The network of a state of ``posteriors``, or the ensemble of a list of states, such as samples of SGHMC.

    ``network`` is a module, or a state_dict, with the parameters that the state does not have. A module with all layers
    says the activations.
    """
    given = architecture_of(architecture, task, activation)
    states = list(state) if isinstance(state, list | tuple) else [state]
    if not states:
        raise InputError("there are no states.")
    parts = [_state_found(each, network) for each in states]
    found = joined(parts) if len(parts) > 1 else parts[0]
    return live_posterior(found, given, partial(read_network, network, found))


def _state_found(state: object, network: object | None) -> Found:
    fields = {name: _field(state, name) for name in _FIELDS}
    params = fields["params"]
    if not isinstance(params, Mapping):
        raise InputError(f"a state needs params, a dictionary by parameter names, got {type(params).__name__}.")
    order = list(params) if isinstance(params, OrderedDict) else sorted(params)
    table = {"sites": [{"site": name} for name in order]}
    held = flat({name: value for name, value in fields.items() if value is not None})
    lacking = _without(_state(network), params)
    return State().read(held, Choices(beside=flat(lacking) if lacking else None, table=table))


def _field(state: object, name: str) -> object:
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)


def _without(state: object, params: Mapping[str, object]) -> object:
    """The parameters of the network that the state does not have."""
    return {name: value for name, value in state.items() if name not in params} if isinstance(state, Mapping) else state


def _guide(guide: object) -> tuple[Foreign, list[dict[str, object]]]:
    """What a guide or a store holds, and the sites of a vector in their order, where a live guide knows them."""
    if isinstance(guide, str | os.PathLike):
        raise InputError(
            f"{os.fspath(guide)!r:.80} is the name of a file, and a guide, a ParamStore or the state of one is needed; "
            "files are read by bnndp convert FILE -o MODEL.safetensors, and what it writes by bnndp.load."
        )
    get = getattr(guide, "get_state", None)
    given = get() if callable(get) else guide
    if isinstance(given, Mapping):
        return flat(_stubs(given) if "constraints" in given else given), []
    if not isinstance(guide, torch.nn.Module):
        raise InputError(f"a guide, a ParamStore or the state of one is needed, got {type(guide).__name__}.")
    shapes = getattr(guide, "_unconstrained_shapes", None) or {}
    return flat(_stubs(_store(guide))), [{"site": name, "shape": list(shape)} for name, shape in shapes.items()]


def _names(ignore: object) -> tuple[str, ...]:
    """The names of the sites to be left out, of which there may be one."""
    names = (ignore,) if isinstance(ignore, str) else ignore
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"ignore must be a list of names of sites, got {ignore!r:.80}.")
    return tuple(names)


def _expect_real(guide: object, listed: object, ignore: tuple[str, ...]) -> None:
    """Refuse sites of a live guide whose priors are not on all real numbers: they are Gaussian in other coordinates."""
    aside = (*(listed if isinstance(listed, list | tuple) else ()), *ignore)
    for name, node in getattr(getattr(guide, "prototype_trace", None), "nodes", {}).items():
        latent = node.get("type") == "sample" and not node.get("is_observed") and name not in aside
        support: Any = getattr(node.get("fn"), "support", None) if latent else None
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        if support is not None and support is not torch.distributions.constraints.real:
            raise InputError(
                f"site {name!r:.80} has the support {support!r:.60}, not all real numbers, so that its values are not "
                f"Gaussian; if the network has no use for it, give ignore=[{name!r:.80}]."
            )


def _store(guide: torch.nn.Module) -> dict[str, object]:
    """A live guide as the ParamStore of its own parameters, with the constraints that its modules keep."""
    raw = "_unconstrained"
    params = {name.removesuffix(raw): value for name, value in guide.state_dict().items()}
    if not params:
        raise InputError("the guide has no parameters: run it once, or train it.")
    constraints: dict[str, object] = dict.fromkeys(params, torch.distributions.constraints.real)
    for prefix, module in guide.named_modules():
        for name, (constraint, _) in getattr(module, "_pyro_params", {}).items():
            constraints[f"{prefix}.{name}".lstrip(".")] = constraint
    return {"params": params, "constraints": constraints}


def _stubs(store: Mapping[str, object]) -> dict[str, object]:
    """A ParamStore with constraints as they stand in files."""
    given = store["constraints"]
    constraints = {name: _stub(each) for name, each in given.items()} if isinstance(given, Mapping) else given
    return {"params": store.get("params", {}), "constraints": constraints}


def _stub(constraint: object) -> object:
    """The inert constraint for a live one; what is not known stays, and is refused later."""
    kind = type(constraint)
    stub = CONSTRAINTS.get(f"{kind.__module__}.{kind.__qualname__}")
    if stub is None:
        return constraint
    found = stub()
    vars(found).update({name: _stub(value) for name, value in vars(constraint).items()})
    return found


def _state(of: object) -> object:
    give = getattr(of, "state_dict", None)
    return give() if callable(give) else of


def _arrays(given: object) -> object:
    """Arrays in mappings as tensors; shapes that stand for parameters with a prior are left out."""
    if isinstance(given, Mapping):
        return {name: _arrays(value) for name, value in given.items() if type(value).__name__ != "ParamShape"}
    return torch.as_tensor(given) if hasattr(given, "__array__") and not isinstance(given, Tensor) else given
