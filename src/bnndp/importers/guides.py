"""What a live guide of Pyro says of the network: its model is a module that is run as it was when the guide was made.

The layers and activations are those that are seen between the inputs and the last layer. The task is that of the only
observed site, if its distribution is made of what the last layer gives: a ``Normal`` around it (or a ``StudentT`` or a
``Laplace``), or a ``Categorical`` of it as logits. Models that are functions, and layers written by hand, say nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, distributions, nn

from bnndp.errors import InputError
from bnndp.importers.live import Reading, Said, are_known, said_by
from bnndp.importers.module import parts_of
from bnndp.importers.trace import FLATTEN, Seen, called, watched

__all__ = ["read_guide"]

_AROUND = (distributions.Normal, distributions.StudentT, distributions.Laplace)
_OF_LOGITS = (distributions.Categorical, distributions.OneHotCategorical)


def read_guide(guide: object, reading: Reading) -> Said | None:
    """What the model of a live guide says; None if it says nothing."""
    model = _model(guide)
    nodes = getattr(getattr(guide, "prototype_trace", None), "nodes", {})
    if not isinstance(model, nn.Module) or "_INPUT" not in nodes:
        return None
    args, kwargs = nodes["_INPUT"]["args"], nodes["_INPUT"]["kwargs"]
    inputs = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
    parts = _parts(model)
    if inputs is None or not are_known(parts.values()):
        return None
    seen = watched(model, parts, inputs, lambda: _trace(model, args, kwargs))
    calls = called(seen, parts, reading.functions)
    layers = said_by(calls, reading)
    start = 1 if [entry["type"] for entry in layers[:1]] == [FLATTEN] else 0  # as a vector, which inputs are here
    shape = tuple(inputs.shape[1:]) if inputs.ndim > 2 and start == 0 else None
    return Said(layers[start:], _task(*seen.last, seen.result), shape)


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
    found = {name: part for child, inner in model.named_children() for name, part in parts_of(inner, child).items()}
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


def _task(where: str, last: Seen, nodes: Any) -> str | None:
    """What the outputs of the last layer are used for; refused if they are not seen to be used as they are."""
    observed = [node for node in nodes.values() if node["type"] == "sample" and node["is_observed"]]
    laws = [_law(node["fn"]) for node in observed if not node["infer"].get("_deterministic")]
    logits = last.values - last.values.logsumexp(-1, keepdim=True)
    classes = [torch.equal(law.logits, logits) for law in laws if isinstance(law, _OF_LOGITS)]
    if len(laws) == 1 and (classes == [True] or (isinstance(laws[0], _AROUND) and _is_same(laws[0].loc, last))):
        return "classification" if classes else "regression"
    used = [nodes["_RETURN"]["value"], *(getattr(law, name, None) for law in laws for name in ("loc", "logits"))]
    if all(classes) and any(_is_same(each, last) for each in used):
        return None
    raise InputError(f"the model does something with what {where} gives before it is observed or returned.")


def _law(law: Any) -> Any:
    """A distribution without the axes that ``to_event`` has made its own."""
    return _law(law.base_dist) if isinstance(law, distributions.Independent) else law


def _is_same(tensor: object, last: Seen) -> bool:
    return isinstance(tensor, Tensor) and Seen.now(tensor).has_values_of(last)
