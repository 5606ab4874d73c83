"""Live guides of Pyro: the posterior of a guide or a ParamStore in memory, and what the model of the guide says.

The layers and activations are those that are run between the inputs and the last layer. The task is that of the only
observed site, if its distribution is made of the outputs of the last layer: a ``Normal``, ``StudentT`` or ``Laplace``
around them, or a ``Categorical`` with them as logits. Models that are functions, and layers written by hand, have none.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributions, nn

from bnndp.errors import InputError
from bnndp.importers.architecture import Architecture, merge_architecture
from bnndp.importers.flatten import flat, state_of
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.live import (
    TraceOptions,
    any_known,
    describe_calls,
    describe_network,
    posterior_of_live,
)
from bnndp.importers.module import leaf_modules
from bnndp.importers.pyro import PYRO, TYXE
from bnndp.importers.pyro_constraints import CONSTRAINTS
from bnndp.importers.sites import ignored_names
from bnndp.importers.trace import FLATTEN, Snapshot, calls_of, record_run
from bnndp.network import Posterior

_AROUND = (distributions.Normal, distributions.StudentT, distributions.Laplace)
_OF_LOGITS = (distributions.Categorical, distributions.OneHotCategorical)


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
    """Read the network of a guide of Pyro or TyXe. Files are read by ``bnndp convert``.

    Args:
        guide: A guide or its ``state_dict()``, or a ParamStore or its ``get_state()``. A live guide says the order of
            its sites and the transform of its scales. Its model, if that is a module, says the activations that are
            modules, and the task if its observed site is a usual one.
        architecture: The layers, and anything else that the guide does not specify.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.
        scale_transform: ``"exp"``, ``"softplus"`` or ``"sigmoid M"``, for a ``state_dict()``, which does not say.
        network: A module, or its ``state_dict()``, with the layers that have no prior.
        table: Layouts, order and meaning of sites (docs/importers/pyro.md).
        ignore: Sites that are not weights, such as the noise of the data.

    Returns:
        The network, with independent or correlated weights.

    Examples:
        >>> state = {
        ...     "locs.0.weight_unconstrained": torch.ones(1, 2),
        ...     "scales.0.weight_unconstrained": torch.zeros(1, 2),
        ... }
        >>> from_pyro(state, task="regression", scale_transform="exp").linears[0].weight_std
        tensor([[1., 1.]], dtype=torch.float64)
    """
    given = merge_architecture(architecture, task, activation)
    foreign, sites = _guide(guide)
    full_table = dict(table or {})
    if sites and "sites" not in full_table:
        full_table["sites"] = sites
    aside = ignored_names(ignore)
    _expect_real(guide, full_table.get("ignore", ()), aside)
    reader = TYXE if TYXE.knows(foreign) else PYRO
    beside = None if network is None else flat(state_of(network))
    found = reader.read(foreign, Choices(scale_transform, beside=beside, table=full_table or None, ignore=aside))

    def read(options: TraceOptions) -> Architecture | None:
        return _describe_guide(guide, options) or describe_network(network, found, options)

    return posterior_of_live(found, given, read)


def _describe_guide(guide: object, options: TraceOptions) -> Architecture | None:
    """What the model of a live guide says; None if it says nothing."""
    model = _model(guide)
    nodes = getattr(getattr(guide, "prototype_trace", None), "nodes", {})
    if not isinstance(model, nn.Module) or "_INPUT" not in nodes:
        return None
    args, kwargs = nodes["_INPUT"]["args"], nodes["_INPUT"]["kwargs"]
    inputs = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
    parts = _parts(model)
    if inputs is None or not any_known(parts.values()):
        return None
    run = record_run(model, parts, inputs, lambda: _trace(model, args, kwargs))
    calls = calls_of(run, parts, options.functions)
    layers = describe_calls(calls, options)
    start = 1 if [entry["type"] for entry in layers[:1]] == [FLATTEN] else 0  # as a vector, which inputs are here
    shape = tuple(inputs.shape[1:]) if inputs.ndim > 2 and start == 0 else None
    return Architecture(_task(*run.last, run.result), layers=layers[start:], input_shape=shape)


def _model(guide: object) -> object:
    """The model of a guide, without the handlers that Pyro puts around it."""
    try:
        found: object = getattr(guide, "model", None)
    except TypeError:  # a guide forgets it when it is copied or saved
        return None
    handled = type(found).__module__.startswith("pyro.")
    return importlib.import_module("pyro.poutine.messenger").unwrap(found) if handled else found


def _parts(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model, which may have sites and parameters of its own beside them."""
    found = {name: part for child, inner in model.named_children() for name, part in leaf_modules(inner, child).items()}
    return {name: part for part, name in {part: name for name, part in found.items()}.items()}  # each part once


def _trace(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """The nodes of the model in a run of it; parameters that Pyro registers meanwhile are forgotten."""
    pyro = importlib.import_module("pyro")
    store = pyro.get_param_store()
    before = set(store.keys())
    try:
        return pyro.poutine.trace(model).get_trace(*args, **kwargs).nodes
    finally:
        for name in set(store.keys()) - before:
            del store[name]


def _task(where: str, last: Snapshot, nodes: Any) -> str | None:
    """What the outputs of the last layer are used for; refused if they may be changed before they are used."""
    observed = [node for node in nodes.values() if node["type"] == "sample" and node["is_observed"]]
    laws = [_law(node["fn"]) for node in observed if not node["infer"].get("_deterministic")]
    logits = last.values - last.values.logsumexp(-1, keepdim=True)
    classes = [torch.equal(law.logits, logits) for law in laws if isinstance(law, _OF_LOGITS)]
    if len(laws) == 1 and (classes == [True] or (isinstance(laws[0], _AROUND) and _is_same(laws[0].loc, last))):
        return "classification" if classes else "regression"
    used = [nodes["_RETURN"]["value"], *(getattr(law, name, None) for law in laws for name in ("loc", "logits"))]
    if all(classes) and any(_is_same(each, last) for each in used):
        return None
    raise InputError(f"the model changes the output of {where} before it is observed or returned.")


def _law(law: Any) -> Any:
    """A distribution without the axes that ``to_event`` added."""
    return _law(law.base_dist) if isinstance(law, distributions.Independent) else law


def _is_same(tensor: object, last: Snapshot) -> bool:
    return isinstance(tensor, Tensor) and Snapshot.of(tensor).has_values_of(last)


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
