r"""The normal form of a network: the simplest layers that are the same function with the same law.

What can be written in several ways gets the same bounds, at the same speed, as the simplest of them. Every pass and
question bounds the normal form (``tighten/pass_choice.py``); files, certificates and reports keep the network as it
was given. A rewriting is made only where the law stays the same:

* layers become the simplest of the same law (``simplest_layers.py``);
* an ensemble loses its members of weight zero, equal members are taken together, and one that is left stands alone.

Last, layers are scaled into the range of magnitudes that bounds are computed for (``magnitudes.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bnndp.activations import PiecewiseAffine
from bnndp.errors import MagnitudeError
from bnndp.layers import Branched, Flatten
from bnndp.network.ensemble import Ensemble, Posterior
from bnndp.network.magnitudes import INPUTS, Placed, scaled
from bnndp.network.network import BayesianNetwork, Layer, flat
from bnndp.network.simplest_layers import Shape, are, grows, is_vector, simplified

__all__ = ["normal_form"]


@dataclass(frozen=True, slots=True)
class _Known:
    """A normal form, and how often the tensors that it was made of had been changed in place."""

    form: Posterior | None  # None: the network itself
    tensors: tuple[Tensor, ...]
    changes: int

    @property
    def current(self) -> bool:
        return self.changes == _changes(self.tensors)


_FORMS: WeakKeyDictionary[Posterior, _Known] = WeakKeyDictionary()


def normal_form(network: Posterior) -> Posterior:
    """The network in normal form, itself if it is; made once, and again if a tensor was changed in place.

    Raises:
        MagnitudeError: If a number is beyond the range that bounds are computed for.
    """
    known = _FORMS.get(network)
    if known is None or not known.current:
        found = _of_ensemble(network) if isinstance(network, Ensemble) else _of_network(network)
        layers = (layer for member in network.members for layer in flat(member.layers))
        tensors = [getattr(layer, name) for layer in layers for name in layer.tensors]
        tensors += [member.shift for member in network.members if member.shift is not None]
        counted = tuple(tensor for tensor in (*tensors, network.probabilities) if not tensor.is_inference())
        known = _FORMS[network] = _Known(None if found is network else found, counted, _changes(counted))
    return known.form or network


def _changes(tensors: Sequence[Tensor]) -> int:
    return sum([tensor._version for tensor in tensors])


def _of_network(network: BayesianNetwork) -> BayesianNetwork:
    if network.shift is not None and not bool((network.shift.abs() <= INPUTS).all()):
        i = int((~(network.shift.abs() <= INPUTS)).nonzero()[0, 0])
        raise MagnitudeError(
            f"shift[{i}] is {network.shift[i].item():.3g}; bounds are computed for inputs up to {INPUTS:.3g}. Give the "
            "inputs in other units."
        )
    shape, pixels = network.shapes[0], not grows(network.layers, network.shapes[0])
    placed = [Placed(f"layer {index}", layer) for index, layer in enumerate(network.layers)]
    placed = simplified(placed, shape, pixels)
    if isinstance(placed[0].layer, Flatten):
        placed, shape = placed[1:], (network.n_in,)
    elif is_vector(shape, pixels):
        shape = shape[:1]
    layers = tuple(each.layer for each in scaled(placed))
    return network if are(layers, network.layers) else replace(network, layers=layers, input_shape=shape)


def _of_ensemble(ensemble: Ensemble) -> Posterior:
    """Of all members, those that are equal together."""
    forms: list[BayesianNetwork] = []
    weights: list[list[float]] = []
    by_beginning: dict[object, list[int]] = {}
    for index, (member, weight) in enumerate(zip(ensemble.members, ensemble.probabilities.tolist(), strict=True)):
        if weight == 0:
            continue
        form = _of_member(index, member)
        like = by_beginning.setdefault(_beginning(form), [])
        same = next((other for other in like if _equal(form, forms[other])), None)
        if same is None:
            like.append(len(forms))
            forms.append(form)
            weights.append([weight])
        else:
            weights[same].append(weight)
    if len(forms) == 1:
        return forms[0]
    if len(forms) == len(ensemble.members) and all(a is b for a, b in zip(forms, ensemble.members, strict=True)):
        return ensemble
    shape = max((form.shapes[0] for form in forms), key=len)
    totals = torch.tensor([math.fsum(each) for each in weights], dtype=torch.float64)
    return Ensemble(tuple(_taking(form, shape) for form in forms), totals.to(ensemble.probabilities.device))


def _of_member(index: int, member: BayesianNetwork) -> BayesianNetwork:
    try:
        form = normal_form(member)
    except MagnitudeError as error:
        raise MagnitudeError(f"member {index}: {error}") from error
    return form if isinstance(form, BayesianNetwork) else member  # always: a network has one member


def _taking(form: BayesianNetwork, shape: Shape) -> BayesianNetwork:
    """With inputs of this shape, which other members need."""
    return form if form.shapes[0] == shape else replace(form, layers=(Flatten(), *form.layers), input_shape=shape)


def _beginning(form: BayesianNetwork) -> object:
    """Kinds and a few numbers, which equal networks share and most others do not."""
    kinds = tuple(layer.kind for layer in form.layers)
    first: Any = next((layer for layer in form.layers if layer.tensors), None)
    return kinds, () if first is None else tuple(getattr(first, first.tensors[0]).flatten()[:4].tolist())


def _equal(form: BayesianNetwork, other: BayesianNetwork) -> bool:
    shifts = [each.shift for each in (form, other) if each.shift is not None]
    same = not shifts or (len(shifts) == 2 and torch.equal(shifts[0], shifts[1]))
    return same and form.shapes == other.shapes and all(map(_equal_layers, form.layers, other.layers))


def _equal_layers(one: Layer, other: Layer) -> bool:
    if one is other:
        return True
    if isinstance(one, Branched) and isinstance(other, Branched) and one.kind == other.kind:
        pairs = list(zip(one.branches, other.branches, strict=False))
        same = len(one.branches) == len(other.branches) and all(len(a) == len(b) for a, b in pairs)
        return same and all(all(map(_equal_layers, a, b)) for a, b in pairs)
    if one.kind != other.kind or isinstance(one, PiecewiseAffine):  # a function of the user is equal to itself only
        return False
    settings = all(getattr(one, name) == getattr(other, name) for name in one.settings)
    return settings and all(torch.equal(getattr(one, name), getattr(other, name)) for name in one.tensors)
