"""All importers there are, and the one that reads a given file."""

from __future__ import annotations

from bnndp.errors import InputError, ModelFileError
from bnndp.importers import laplace, numpyro, posteriors_states, pyro
from bnndp.importers.foreign import Foreign, Importer
from bnndp.importers.ivon import Ivon
from bnndp.importers.libraries import LIBRARIES
from bnndp.importers.mean_field import ByTable, OwnTable
from bnndp.importers.plain import OwnNames, StateDict
from bnndp.importers.prefixes import network_entry
from bnndp.importers.samples import Samples

__all__ = ["IMPORTERS", "importer_for", "importer_named"]

_SINGLE: tuple[Importer, ...] = (OwnNames(), StateDict(), *map(ByTable, LIBRARIES))

IMPORTERS: tuple[Importer, ...] = (
    *_SINGLE,
    OwnTable(),
    Ivon(),
    Samples((*_SINGLE, *posteriors_states.IMPORTERS)),
    *pyro.IMPORTERS,
    *numpyro.IMPORTERS,
    *laplace.IMPORTERS,
    *posteriors_states.IMPORTERS,
)


def importer_for(foreign: Foreign, name: str = "auto") -> Importer:
    """The importer of that name; of ``auto``, the only one that knows the names in the file."""
    if not foreign.tensors:
        raise ModelFileError("it holds no tensors")
    if name != "auto":
        return importer_named(name)
    found = [importer for importer in IMPORTERS if importer.knows(foreign)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{each!r:.60}" for each in list(foreign.tensors)[:4])
    if found:
        several = " or ".join(importer.name for importer in found)
        raise ModelFileError(f"its names ({names}, ...) are known to several importers; choose --from {several}")
    network_entry(foreign)  # which says more where several entries hold tensors
    odd = next((each for each in foreign.tensors if each.rpartition(".")[2] not in ("weight", "bias")), None)
    known = ", ".join(importer.looks_for for importer in IMPORTERS)
    advice = "" if odd is None else f"; if it is no weight of the network, leave it out by --ignore {odd:.80}"
    raise ModelFileError(f"tensor {odd or names!r:.80} is known to no importer{advice}; they look for {known}")


def importer_named(name: str) -> Importer:
    """The importer of that name."""
    found = next((importer for importer in IMPORTERS if importer.name == name), None)
    if found is None:
        known = ", ".join(importer.name for importer in IMPORTERS)
        raise InputError(f"there is no importer {name!r:.40}; known: auto, {known}.")
    return found
