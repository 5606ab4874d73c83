"""All importers there are, and the one that reads a given file."""

from __future__ import annotations

from collections.abc import Mapping

from bnndp.errors import InputError, ModelFileError
from bnndp.importers.foreign import Foreign, Importer
from bnndp.importers.ivon import IVON
from bnndp.importers.laplace import LAPLACE
from bnndp.importers.libraries import LIBRARIES
from bnndp.importers.mean_field import OWN_NAMES, OWN_TABLE, STATE_DICT, by_table
from bnndp.importers.numpyro import CHAIN, NUMPYRO
from bnndp.importers.posteriors import POSTERIORS
from bnndp.importers.prefixes import network_entry
from bnndp.importers.pyro import PYRO, TYXE
from bnndp.importers.samples import samples_of

_SINGLE = (OWN_NAMES, STATE_DICT, *map(by_table, LIBRARIES))
_SAMPLES = samples_of((*_SINGLE, POSTERIORS))
IMPORTERS = (*_SINGLE, OWN_TABLE, IVON, _SAMPLES, PYRO, TYXE, NUMPYRO, CHAIN, LAPLACE, POSTERIORS)


def importer_for(foreign: Foreign, name: str = "auto", table: Mapping[str, object] | None = None) -> Importer:
    """The importer of that name; of ``auto``, that of a table of tensors, or the only one that knows the names."""
    if not foreign.tensors:
        raise ModelFileError("it holds no tensors")
    if name == "auto" and "tensors" in (table or {}):
        name = "table"
    found = [each for each in IMPORTERS if (each.knows(foreign) if name == "auto" else each.name == name)]
    if len(found) == 1:
        return found[0]
    if name != "auto":
        known = ", ".join(importer.name for importer in IMPORTERS)
        raise InputError(f"there is no importer {name!r:.40}; known: auto, {known}.")
    names = ", ".join(f"{each!r:.60}" for each in list(foreign.tensors)[:4])
    if found:
        several = " or ".join(importer.name for importer in found)
        raise ModelFileError(f"its names ({names}, ...) are known to several importers; choose --from {several}")
    network_entry(foreign)  # which says more where several entries hold tensors
    odd = next((each for each in foreign.tensors if each.rpartition(".")[2] not in ("weight", "bias")), None)
    known = ", ".join(importer.looks_for for importer in IMPORTERS)
    advice = "" if odd is None else f"; if it is not a weight of the network, leave it out with --ignore {odd:.80}"
    raise ModelFileError(f"tensor {odd or names!r:.80} is known to no importer{advice}; they look for {known}")
