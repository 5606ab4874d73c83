"""Damaged states of all probabilistic libraries: what is read of them is a network, or they are refused in one line."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.foreign_states import RELUS
from support.site_states import random_sites, random_sizes, table_of, vector
from torch import Tensor

from bnndp.errors import CertError
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.registry import importer_for

RAW = "_unconstrained"


def pyro(seed: int) -> tuple[Any, Choices, str]:
    sites = random_sites(random_sizes(seed), seed)
    normal = {f"locs.{n}{RAW}": v for n, v in sites.items()} | {f"scales.{n}{RAW}": v for n, v in sites.items()}
    joint = {"loc": vector(sites), "scale" + RAW: vector(sites), "cov_factor": torch.zeros(len(vector(sites)), 1)}
    return (normal, Choices(), "pyro") if seed % 2 else (joint, Choices(table=table_of(sites)), "pyro")


def tyxe(seed: int) -> tuple[Any, Choices, str]:
    sites = random_sites(random_sizes(seed), seed)
    parts = [(f"net.{name}.{part}{RAW}", value) for name, value in sites.items() for part in ("loc", "scale")]
    return dict(parts), Choices(), "tyxe"


def numpyro(seed: int) -> tuple[Any, Choices, str]:
    sites = {f"w{k}": torch.rand(k + 1, k + 2) for k in range(1, 2 + seed % 3)}
    sites |= {f"b{k}": torch.rand(k + 2) for k in range(1, 2 + seed % 3)}
    if seed % 2:
        return {name: torch.stack([value] * 3) for name, value in sites.items()}, Choices(), "mcmc"
    return {f"{n}_auto_{kind}": v for n, v in sites.items() for kind in ("loc", "scale")}, Choices(), "numpyro"


def laplace(seed: int) -> tuple[Any, Choices, str]:
    sites = random_sites(random_sizes(seed), seed)
    mean = vector(sites)
    kron = [[torch.eye(n) for n in value.shape] for value in sites.values()]
    structure, hessian = [("Diag", torch.ones(len(mean))), ("Kron", kron), ("Full", torch.eye(len(mean)))][seed % 3]
    state = {
        "cls_name": f"{structure}Laplace", "mean": mean, "H": hessian, "prior_precision": torch.ones(1),
        "sigma_noise": torch.tensor(1.0), "temperature": 1.0,
    }  # fmt: skip
    return state, Choices(beside=flat(sites)), "laplace"


def posteriors(seed: int) -> tuple[Any, Choices, str]:
    sites = random_sites(random_sizes(seed), seed)
    n = len(vector(sites))
    if seed % 2:
        return {"params": sites, "log_sd_diag": sites}, Choices(), "posteriors"
    table = {"sites": [{"site": name} for name in sites]}
    return {"params": sites, "prec": torch.eye(n)}, Choices(table=table), "posteriors"


MAKERS = {each.__name__: each for each in (pyro, tyxe, numpyro, laplace, posteriors)}


def damage(foreign: Foreign, source: random.Random) -> Foreign:
    """One or two faults of the kinds that happen: something lost, renamed, of another shape, type or value."""
    tensors, values = dict(foreign.tensors), dict(foreign.values)
    odd: list[Callable[[Tensor], Tensor]] = [
        lambda t: t[..., :-1] if t.ndim else t,
        lambda t: t[None],
        lambda t: t.flatten(),
        lambda t: t.mT if t.ndim == 2 else t,
        lambda t: t * torch.nan,
        lambda t: t.long(),
        lambda t: torch.zeros(0),
        lambda t: torch.tensor(1.0),
        lambda t: -t - 1000,
        lambda t: t * 1e30,
    ]
    for _ in range(source.choice([1, 1, 2])):
        name = source.choice([*tensors, *values]) if tensors or values else ""
        held: dict[str, Any] = tensors if name in tensors else values
        value = held.pop(name, None)
        kind = source.randrange(4)
        if kind == 1:
            held[source.choice(["x", name + "x", "H", "loc", "auto_loc", "mean", name[:-1], ""])] = value
        elif kind > 1 and isinstance(value, Tensor):
            held[name] = source.choice(odd)(value)
        elif kind > 1:
            values[name] = source.choice([None, "?", 0, -1.5, float("nan"), True])
    return Foreign(tensors, values, foreign.lists, foreign.holders, source.random() < 0.8)


@pytest.mark.parametrize("maker", MAKERS)
def test_damaged_states_are_refused_in_one_line(maker: str) -> None:
    refused: list[str] = []
    for seed in range(200):
        state, choices, name = MAKERS[maker](seed)
        whole = flat(state)
        if seed < 6:
            assert posterior_of(importer_for(whole).read(whole, choices), RELUS) is not None
        bad = damage(whole, random.Random(seed))
        if not bad.tensors:
            continue
        try:
            posterior_of(importer_for(bad, name).read(bad, choices), RELUS)
        except CertError as error:
            refused.append(str(error))
    assert len(refused) > 75
    assert all("\n" not in line and "Traceback" not in line for line in refused)
