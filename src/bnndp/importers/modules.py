"""Many live modules of one architecture as an ensemble: a deep ensemble, or snapshots of a chain."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bnndp.errors import CertError, InputError
from bnndp.importers.architecture import Architecture
from bnndp.importers.module import from_module
from bnndp.network import BayesianNetwork, Ensemble, Posterior

__all__ = ["ensemble_of", "expect_alike", "live_modules"]


def live_modules(samples: Sequence[object]) -> list[nn.Module]:
    """The samples if they are modules, none if none of them is; some of both are refused."""
    found = [each for each in samples if isinstance(each, nn.Module)]
    if found and len(found) < len(samples):
        raise InputError(f"{len(found)} of {len(samples)} samples are modules; give modules or state_dicts alone.")
    return found


def expect_alike(modules: Sequence[nn.Module]) -> None:
    """Refuse modules whose tensors differ in names or shapes."""
    shapes = [{name: tuple(value.shape) for name, value in each.state_dict().items()} for each in modules]
    for index, each in enumerate(shapes):
        odd = next((name for name in {**shapes[0], **each} if shapes[0].get(name) != each.get(name)), None)
        if odd is not None:
            found, first = (some.get(odd, "not there") for some in (each, shapes[0]))
            raise InputError(
                f"sample {index} is of another architecture than sample 0: {odd!r:.80} is {found}, there {first}; "
                "samples are of one network."
            )


def ensemble_of(
    modules: Sequence[nn.Module],
    given: Architecture,
    weights: Tensor | None,  # (modules,)
) -> Posterior:
    """The mixture of modules, each read by :func:`from_module`; of a single one, its network."""
    expect_alike(modules)
    networks = tuple(_network(index, module, given) for index, module in enumerate(modules))
    chains = [_chain(network) for network in networks]
    odd = next((index for index, chain in enumerate(chains) if chain != chains[0]), None)
    if odd is not None:
        found, first = (" ".join(_words(*layer) for layer in chains[index]) for index in (odd, 0))
        raise InputError(
            f"sample {odd} is of another architecture than sample 0: {found}, there {first}; samples are of one "
            "network."
        )
    return networks[0] if len(networks) == 1 and weights is None else Ensemble(networks, weights)


def _network(index: int, module: nn.Module, given: Architecture) -> BayesianNetwork:
    try:
        return from_module(module, task=given.task, activation=given.activation, input_shape=given.input_shape)
    except CertError as error:
        raise type(error)(
            f"sample {index}: {str(error).rstrip('.')}; bnndp.from_module takes more arguments: read each module by it "
            "and join them by bnndp.Ensemble, or give an Architecture."
        ) from error


def _words(kind: str, settings: dict[str, object]) -> str:
    return kind + (f"({', '.join(f'{name}={value}' for name, value in settings.items())})" if settings else "")


def _chain(network: BayesianNetwork) -> list[tuple[str, dict[str, object]]]:
    """The kinds and settings of the layers."""
    return [(layer.kind, {name: getattr(layer, name) for name in layer.settings}) for layer in network.layers]
