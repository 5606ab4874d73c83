"""What a model file holds, in JSON-compatible values: its layers, how wide their posteriors are, what can be asked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnndp.certificates.certificate import file_digest
from bnndp.certificates.curves import curve_of
from bnndp.errors import CertError, MagnitudeError
from bnndp.files.posterior import FORMAT, ModelFile
from bnndp.layers import WEIGHTED, Branched, Conv2d, CorrelatedLinear, Linear, MatrixNormalLinear, Residual
from bnndp.network import BayesianNetwork, Ensemble, Layer, Posterior, flat, is_activation, normal_form


def inspected(path: Path, found: ModelFile) -> dict[str, Any]:
    """Everything that ``bnndp inspect`` says."""
    network = found.posterior
    members = network.members
    alike = len({_structure(member) for member in members}) == 1
    return {
        "path": str(path),
        "format": FORMAT,
        "sha256": file_digest(path),
        "sealed": found.sha256 is not None,
        "digest": network.digest(),
        "task": network.task,
        "input_shape": list(network.input_shape or ()),
        "inputs": network.n_in,
        "outputs": network.n_out,
        "parameters": sum(_parameters(layer) for member in members for layer in flat(member.layers)),
        "random": network.random,
        "shifted": any(member.shift is not None for member in members),
        "ensemble": _ensemble(network, alike) if isinstance(network, Ensemble) else None,
        "layers": list(_layers(members if alike else members[:1])),
        "source": found.source,
        "training": found.card,
        "origin": found.origin,
        "commands": _commands(network, members),
    }


def _ensemble(network: Ensemble, alike: bool) -> dict[str, Any]:
    """Of an ensemble: how many members, their weights, and whether all have the layers of the first."""
    weights = network.probabilities
    ends = {"least_weight": weights.min().item(), "largest_weight": weights.max().item()}
    return {"members": len(network.members), **ends, "alike": alike}


def _structure(network: BayesianNetwork) -> tuple[object, ...]:
    """What two members must share for their layers to be told together."""
    layers = tuple((layer.kind, *(getattr(layer, name) for name in layer.settings)) for layer in flat(network.layers))
    return network.shapes, layers


def _layers(members: Sequence[BayesianNetwork]) -> Iterator[dict[str, Any]]:
    """The layers of the first member; the spread is that of all of them."""
    names = list(_named(members[0].layers, members[0].shapes[0]))
    columns = zip(*(flat(member.layers) for member in members), strict=True)
    for (name, shape), same in zip(names, columns, strict=True):
        layer = same[0]
        settings = {setting: getattr(layer, setting) for setting in layer.settings}
        stds = [std for each in same for std in _stds(each)]
        yield {
            "name": name,
            "kind": layer.kind,
            "settings": settings,
            "output_shape": list(shape),
            "parameters": _parameters(layer),
            "spread": _spread(torch.cat(stds)) if stds else None,
        }


def _named(layers: Sequence[Layer], shape: tuple[int, ...], prefix: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    """A name and the shape of the output of every layer; those in blocks have that of the block in front."""
    for index, layer in enumerate(layers):
        if isinstance(layer, Branched):
            names = ("", "shortcut.") if isinstance(layer, Residual) else [f"{k}." for k in range(len(layer.branches))]
            for branch, name in zip(layer.branches, names, strict=True):
                yield from _named(branch, shape, f"{prefix}{index}.{name}")
        else:
            yield f"{prefix}{index}", layer.out_shape(shape)
        shape = layer.out_shape(shape)


def _parameters(layer: Layer) -> int:
    """Weights and biases: each counts once, however its posterior is given."""
    return layer.weight_mean.numel() + layer.bias_mean.numel() if isinstance(layer, WEIGHTED) else 0


def _stds(layer: Layer) -> list[Tensor]:
    """The standard deviations of all weights and biases of a layer, each as a vector; none if it has no weights."""
    if isinstance(layer, MatrixNormalLinear):
        rows, columns = (factor.square().sum(-1).sqrt() for factor in (layer.row_factor, layer.column_factor))
        return [(rows[:, None] * columns).reshape(-1)]
    if isinstance(layer, CorrelatedLinear):
        own = torch.cat([layer.weight_std, layer.bias_std[:, None]], -1)
        return [(own.square() + layer.factor.square().sum(-1)).sqrt().reshape(-1)]
    if isinstance(layer, Linear | Conv2d):
        return [layer.weight_std.reshape(-1), layer.bias_std.reshape(-1)]
    return []


def _spread(stds: Tensor) -> dict[str, float]:  # (n,)
    return {"least": stds.min().item(), "median": stds.median().item(), "largest": stds.max().item()}


def _commands(network: Posterior, members: Sequence[BayesianNetwork]) -> dict[str, dict[str, Any]]:
    """What can be asked of the network: for each command or option whether, and why or what."""
    classifier = network.task == "classification"
    what = "bounds of the expected softmax, and verdicts on decisions" if classifier else "bounds of the mean outputs"
    decisions = "it has no decisions: it is for regression"
    outputs = "they are those of regression networks"
    return {
        "certify": _entry(True, what),
        "certify --quantity variance": _entry(not classifier, outputs if classifier else "bounds of the variance"),
        "certify --between": _entry(not classifier, outputs if classifier else "bounds of probabilities of intervals"),
        "certify --quantity noise": _noise(members, outputs if classifier else None),
        "certify --method partition": _partition(members),
        "radius": _entry(classifier, "certified radii of decisions" if classifier else decisions),
        "evaluate": _entry(classifier, "robust accuracy" if classifier else decisions),
        "certificates": _certificates(members),
    }


def _partition(members: Sequence[BayesianNetwork]) -> dict[str, Any]:
    try:
        plain = all(form.plain for member in members for form in normal_form(member).members)
    except MagnitudeError as error:
        return _entry(False, str(error))
    return _entry(
        plain, "the method of the paper" if plain else "it knows dense ReLU networks with independent weights only"
    )


def _entry(can: bool, why: str) -> dict[str, Any]:
    return {"can": can, "why": why}


def _noise(members: Sequence[BayesianNetwork], refused: str | None) -> dict[str, Any]:
    if refused is not None:
        return _entry(False, refused)
    if any(layer.random for member in members for layer in _before_the_last(member)):
        return _entry(False, "something before the last layer is random, so that E exp of an output may be infinite")
    return _entry(True, "bounds of E exp of the outputs")


def _before_the_last(network: BayesianNetwork) -> tuple[Layer, ...]:
    last = max(index for index, layer in enumerate(network.layers) if isinstance(layer, WEIGHTED))
    return network.layers[:last]


def _certificates(members: Sequence[BayesianNetwork]) -> dict[str, Any]:
    """Whether the checker knows all layers, and which of its proofs apply."""
    try:
        for layer in (layer for member in members for layer in flat(member.layers) if is_activation(layer)):
            curve_of(layer)
    except CertError as error:
        return _entry(False, str(error))
    proofs = "by moments and by chains of boxes" if all(member.plain for member in members) else "by chains of boxes"
    missing = importlib.util.find_spec("flint") is None
    return _entry(True, f"{proofs}{'; needs pip install bnndp[check]' if missing else ''}")
