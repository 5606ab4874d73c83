"""Networks from tensors by name, and from samples: mappings, stacked tensors, live modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from bnndp.errors import CertError, InputError
from bnndp.importers.architecture import Architecture, merge_architecture
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat, state_of, to_tensors
from bnndp.importers.foreign import Choices, Imported, expect_used
from bnndp.importers.live import describe_samples, posterior_of_live
from bnndp.importers.module import from_module
from bnndp.importers.registry import importer_for
from bnndp.importers.samples import join_members
from bnndp.network import BayesianNetwork, Ensemble, Posterior


def from_tensors(  # noqa: PLR0913 (what the tensors do not say)
    tensors: Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    importer: str = "auto",
    bias: bool = True,
    table: Mapping[str, object] | None = None,
) -> Posterior:
    """Describe the network of tensors or arrays by name, such as a ``state_dict``, as ``bnndp convert`` reads files.

    Args:
        tensors: Tensors or arrays by name, possibly nested.
        architecture: The layers. Without them they are dense, in the order of the tensors.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.
        importer: The name of an importer, as ``--from`` takes it.
        bias: False leaves out biases that the tensors hold but no layer uses.
        table: The content of a table of names (docs/importers/torch.md).

    Returns:
        A network, or an ensemble if the tensors hold several. What is neither given nor known is refused.

    Examples:
        >>> import torch
        >>> layer = {"mu_weight": torch.ones(1, 2), "rho_weight": torch.zeros(1, 2)}
        >>> from_tensors(layer, task="regression").linears[0].weight_std  # softplus(0) = log(2)
        tensor([[0.6931, 0.6931]], dtype=torch.float64)
    """
    given = merge_architecture(architecture, task, activation)
    choices = Choices(bias=bias, table=table)
    return posterior_of(_read(tensors, importer, choices), given)


def from_samples(
    samples: Sequence[Mapping[str, object]] | Sequence[nn.Module] | nn.ModuleList | Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    weights: Tensor | None = None,  # (samples,)
    importer: str = "auto",
) -> Posterior:
    """Describe an ensemble of samples, such as a deep ensemble or a Markov chain.

    Args:
        samples: A ``state_dict`` each, or one mapping of tensors with a first axis of samples, or live modules of one
            architecture. Without layers of an ``architecture``, each module is read by :func:`bnndp.from_module`,
            which knows its activations.
        architecture: The layers. Without them they are dense, in the order of the tensors.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.
        weights: The probabilities of the samples; equal if not given.
        importer: The name of the importer that reads each sample, as ``--from`` takes it.

    Returns:
        The ensemble; of a single sample, its network.

    Examples:
        >>> import torch
        >>> draws = {"0.weight": torch.randn(5, 3, 2), "0.bias": torch.zeros(5, 3)}
        >>> from_samples(draws, task="regression")
        Ensemble(5 x BayesianNetwork(2-3, regression))
        >>> modules = [nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)) for _ in range(4)]
        >>> from_samples(modules, task="classification")
        Ensemble(4 x BayesianNetwork(2-3-2, classification, linear tanh linear))
    """
    given = merge_architecture(architecture, task, activation)
    if isinstance(samples, nn.Module) and not isinstance(samples, nn.ModuleList):
        raise InputError(f"one {type(samples).__name__} is not a list of samples; read it with bnndp.from_module.")
    live: list[nn.Module] = []
    if isinstance(samples, Mapping):
        found = _read(samples, "samples", Choices())
    else:
        each = list(samples)
        if not each:
            raise InputError("there are no samples.")
        live = _live_modules(each)
        states = [module.state_dict() for module in live]
        _expect_alike([{f"{name!r:.80}": tuple(value.shape) for name, value in state.items()} for state in states])
        if live and importer == "auto" and (given is None or given.layers is None):
            return _ensemble(live, given or Architecture(), weights)
        found = join_members([_read(state_of(sample), importer, Choices()) for sample in each])
    if weights is not None:
        found = replace(found, weights=weights)
    return posterior_of_live(found, given, partial(describe_samples, live))


def _read(tensors: object, importer: str, choices: Choices) -> Imported:
    foreign = flat(to_tensors(tensors))
    chosen = importer_for(foreign, importer, choices.table)
    expect_used(chosen, choices)
    return chosen.read(foreign, choices)


def _live_modules(samples: Sequence[object]) -> list[nn.Module]:
    """The samples if all are modules, none if none is."""
    modules = [each for each in samples if isinstance(each, nn.Module)]
    if modules and len(modules) < len(samples):
        raise InputError(f"{len(modules)} of {len(samples)} samples are modules; give modules or state_dicts alone.")
    return modules


def _layers(network: BayesianNetwork) -> dict[str, object]:
    """The kind and the settings of each layer."""
    settings = [[f"{name}={getattr(layer, name)!r}" for name in layer.settings] for layer in network.layers]
    return {f"layer {i}": " ".join([layer.kind, *settings[i]]) for i, layer in enumerate(network.layers)}


def _expect_alike(samples: Sequence[Mapping[str, object]]) -> None:
    """Refuse samples that differ in the names or shapes of tensors, or in their layers."""
    for index, each in enumerate(samples):
        odd = next((name for name in {**samples[0], **each} if samples[0].get(name) != each.get(name)), None)
        if odd is not None:
            found, first = (some.get(odd, "not there") for some in (each, samples[0]))
            raise InputError(
                f"sample {index} is of another architecture than sample 0: {odd} is {found}, there {first}; samples "
                "are of one network."
            )


def _ensemble(modules: Sequence[nn.Module], given: Architecture, weights: Tensor | None) -> Posterior:
    """The mixture of modules; of a single one without weight, its network."""
    networks = [_network(index, module, given) for index, module in enumerate(modules)]
    _expect_alike([_layers(network) for network in networks])
    return networks[0] if len(networks) == 1 and weights is None else Ensemble(tuple(networks), weights)


def _network(index: int, module: nn.Module, given: Architecture) -> BayesianNetwork:
    try:
        return from_module(module, task=given.task, activation=given.activation, input_shape=given.input_shape)
    except CertError as error:
        raise type(error)(
            f"sample {index}: {str(error).rstrip('.')}; bnndp.from_module takes more arguments: read each module by it "
            "and join them by bnndp.Ensemble, or give an Architecture."
        ) from error
