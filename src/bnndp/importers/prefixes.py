"""The tensors of the network alone: out of a checkpoint that holds more, and without the names of its wrappers.

Checkpoints hold the state_dict in an entry, beside that of an optimiser. ``DataParallel``, ``torch.compile``, Lightning
and hand-written classes put a name before all others. Nothing is guessed: an entry is taken if it is the only one with
tensors that is not an optimiser's, and a name is cut off if all names begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Foreign

_LIGHTNING = "pytorch-lightning_version"  # the mark of its checkpoints, whose network is always the same entry
_PREFIXES = ("module", "model", "net", "network", "_orig_mod", "state_dict")


def optimisers(foreign: Foreign) -> tuple[str, ...]:
    """The entries that are state_dicts of optimisers: those with a list of ``param_groups``."""
    found = (name for name in foreign.lists if name.rpartition(".")[2] == "param_groups")
    return tuple(name.rpartition(".")[0] for name in found)


def network_entry(foreign: Foreign) -> Foreign:
    """The only entry with arrays that is not an optimiser's; a :class:`ModelFileError` names several.

    Tensors without axes are numbers that a checkpoint keeps, such as a loss; any other that is left over is refused.
    """
    if _LIGHTNING in foreign.values and "state_dict" in foreign.holders:  # callbacks hold tensors of their own there
        return foreign.below("state_dict")
    if not foreign.holders:
        return foreign
    entries = _entries(foreign, optimisers(foreign))
    found = [name for name in foreign.holders if name in entries.values()]
    if len(found) > 1:
        some = " or ".join(f"{name!s:.40}" for name in found[:4] if name)
        raise ModelFileError(f"several of its entries hold tensors; give --key {some}")
    if not found:
        raise ModelFileError("it holds the tensors of an optimiser and none of a network")
    odd = next((tensor for tensor, entry in entries.items() if entry is None), None)
    if odd is not None:
        raise ModelFileError(f"tensor {odd!r:.80} is not in the entry with the others; give --key {found[0]:.40}")
    return foreign.below(found[0])


def _entries(foreign: Foreign, aside: Sequence[str]) -> dict[str, str | None]:
    """The innermost mapping that each array is in, None of those in lists; without those of optimisers."""
    found: dict[str, str | None] = {}
    for tensor, value in foreign.tensors.items():
        if value.ndim == 0 or any(_is_below(tensor, name) for name in aside):
            continue
        within = [name for name in foreign.holders if _is_below(tensor, name)]
        inner = max(within, key=len, default=None)
        listed = any(_is_below(tensor, name) and len(name) > len(inner or "") for name in foreign.lists)
        found[tensor] = None if listed else inner
    return found


def _is_below(name: str, entry: str) -> bool:
    return not entry or name.startswith(f"{entry}.")


def network_tensors(foreign: Foreign) -> dict[str, Tensor]:
    """The tensors of the network, in the order of the file, by names without prefixes that all of them share."""
    tensors = network_entry(foreign).tensors
    start = shared_prefix(list(tensors))
    return {name.removeprefix(start): tensor for name, tensor in tensors.items()}


def network_names(foreign: Foreign) -> list[str]:
    """The names of these tensors; none where they are not one network's."""
    try:
        return list(network_tensors(foreign))
    except ModelFileError:
        return []


def shared_prefix(names: Sequence[str]) -> str:
    """What all names begin with, of wrappers that we know: ``model.module.``, say."""
    start = ""
    while names:
        first = names[0].removeprefix(start).partition(".")[0]
        longer = f"{start}{first}."
        if first not in _PREFIXES or not all(name.startswith(longer) for name in names):
            break
        start = longer
    return start


def strip_prefixes(name: str) -> str:
    """A name without the prefixes of wrappers, whatever the others are.

    >>> strip_prefixes("model._orig_mod.fc1")
    'fc1'
    """
    first, _, rest = name.partition(".")
    return strip_prefixes(rest) if rest and first in _PREFIXES else name
