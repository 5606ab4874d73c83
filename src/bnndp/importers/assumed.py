"""What is taken for granted of a network that is made of tensors alone, said where the user sees it.

``bnndp convert`` prints it and keeps it in the file; in Python it is a warning of the logger ``bnndp.importers``, which
goes to standard error unless the program sets up its own logging.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bnndp.importers.architecture import ASSUMED, Architecture
from bnndp.importers.build import posterior_of

if TYPE_CHECKING:
    from bnndp.importers.foreign import Found
    from bnndp.network import Posterior

__all__ = ["assumed", "told_posterior_of"]

_LOG = logging.getLogger("bnndp.importers")


def assumed(found: Found, given: Architecture | None, option: str = "--activation") -> tuple[str, ...]:
    """One remark if there is an activation between layers that nobody said; ``option`` is how to say it.

    >>> from bnndp.importers.foreign import Found
    >>> two = Found(({"0.weight_mean": [], "0.weight_std": [], "2.weight_mean": []},), "")
    >>> assumed(two, None)
    ('relu is taken between the layers; tensors do not say what is there. If it is another, give --activation',)
    >>> assumed(two, Architecture(activation="relu"))
    ()
    """
    architecture = given or Architecture()
    layers = sum(name.endswith(".weight_mean") for name in found.members[0])
    if architecture.layers is not None or architecture.activation is not None or layers < 2:
        return ()
    return (
        f"{ASSUMED} is taken between the layers; tensors do not say what is there. If it is another, give {option}",
    )


def told_posterior_of(found: Found, given: Architecture | None) -> Posterior:
    """The posterior for a caller in Python, who is told what was assumed."""
    posterior = posterior_of(found, given)
    for remark in assumed(found, given, "activation="):
        _LOG.warning("%s.", remark)
    return posterior
