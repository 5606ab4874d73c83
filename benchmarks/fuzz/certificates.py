"""Certificates of networks of every kind: all genuine ones must be accepted, no tampered one may be.

Each genuine certificate is checked as it was made, without the check that ``bnndp`` itself does before it issues one.
Then it is changed in one place, with its digest made right again, so that it claims more or proves less than it did.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from support.handmade import sealed
from support.layer_networks import KINDS, make_case

from bnndp.certificates.certificate import file_digest
from bnndp.certificates.issue import interval_claim, probability_claim
from bnndp.certificates.prove import Claim, prove
from bnndp.files.posterior import save
from bnndp.geometry.box import Box
from bnndp.network import Ensemble, Posterior
from bnndp_checker import check

__all__ = ["TAMPERS", "Genuine", "genuine", "main", "tampered"]

Body = dict[str, Any]
SMALL = 1e-6


@dataclass(frozen=True, slots=True)
class Genuine:
    """A certificate with its model."""

    name: str
    body: Body
    model: Path


def genuine(folder: Path, seed: int, rounds: int) -> Iterator[Genuine]:
    """Certificates of all kinds of layers, both tasks, ensembles, shifts and splits, ``rounds`` of each."""
    for index in range(rounds):
        for kind in KINDS:
            case = make_case(seed, kind, index, boxes=2)
            network: Posterior = case.network
            if index % 4 == 3:
                network = replace(case.network, shift=0.1 * torch.ones(case.network.n_in, dtype=torch.float64))
            if index % 5 == 4:
                other = make_case(seed + 1, kind, index, boxes=1).network
                same = other.input_shape == case.network.input_shape and other.n_out == case.network.n_out
                members = (case.network, other if same else case.network)
                network = Ensemble(members, torch.tensor([0.25, 0.75], dtype=torch.float64))
            name = f"{kind}/{case.act}/{case.twist}/{index}"
            yield from _both(folder, name, network, case.box, cells=4 if index % 3 == 2 else 1)


def _both(folder: Path, name: str, network: Posterior, box: Box, *, cells: int) -> Iterator[Genuine]:
    yield from _of(folder, f"{name}/mean", network, interval_claim(network, box), cells)
    if network.n_out > 1:
        if isinstance(network, Ensemble):
            members = tuple(replace(member, task="classification") for member in network.members)
            classifier: Posterior = replace(network, members=members)
        else:
            classifier = replace(network, task="classification")
        label = torch.zeros(box.batch, dtype=torch.long)
        yield from _of(folder, f"{name}/softmax", classifier, probability_claim(classifier, box, label), cells)


def _of(folder: Path, name: str, network: Posterior, claim: Claim, cells: int) -> Iterator[Genuine]:
    model = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.safetensors"
    save(network, model)
    proof = prove(claim, cells=cells)
    for index in range(claim.box.batch):
        if bool(proof.at_least[index].isfinite().all()):
            yield Genuine(f"{name}/{index}", json.loads(proof.certificate(index, file_digest(model)).text), model)


# One change each; None where a certificate has nothing of the kind.


def _leaf(proof: Body, dice: random.Random) -> Body:
    while proof["kind"] == "split":
        proof = dice.choice(proof["parts"])
    return dice.choice(proof["members"])


def _moved(text: str, by: float) -> str:
    return (float.fromhex(text) + by).hex()


def _tighten(body: Body, dice: random.Random) -> Body:
    claim = body["claim"]["at_least"]
    k = dice.randrange(len(claim))
    claim[k] = _moved(claim[k], SMALL * max(1.0, abs(float.fromhex(claim[k]))))
    return body


def _constant(body: Body) -> bool:
    """Whether the claim says that the mean does not change on the region, as that of a dead network."""
    n = len(body["claim"]["rows"][0])
    lower, upper = ([float.fromhex(a) for a in body["claim"]["at_least"][-k:][:n]] for k in (2 * n, n))
    return all(a + b > -SMALL for a, b in zip(lower, upper, strict=True))


def _enlarge(body: Body, _: random.Random) -> Body | None:
    if _constant(body):  # then a larger region may be just as true
        return None
    low, high = body["region"]["low"], body["region"]["high"]
    body["region"]["low"] = [_moved(a, -0.01 * max(1.0, abs(float.fromhex(a)))) for a in low]
    body["region"]["high"] = [_moved(a, 0.01 * max(1.0, abs(float.fromhex(a)))) for a in high]
    return body


def _network(body: Body, _: random.Random) -> Body:
    digest = body["network"]["sha256"]
    body["network"]["sha256"] = ("0" if digest[0] != "0" else "1") + digest[1:]
    return body


def _sign(body: Body, dice: random.Random) -> Body | None:
    rows = body["claim"]["rows"]
    k = dice.randrange(len(rows))
    if float.fromhex(body["claim"]["at_least"][k]) <= 0:
        return None
    rows[k] = [(-float.fromhex(a)).hex() for a in rows[k]]
    return body


def _numbers(body: Body, dice: random.Random, key: str, part: int, direction: int) -> Body | None:
    """One number of a step moved to the side on which it no longer holds."""
    steps = [step for step in _leaf(body["proof"], dice)["steps"] if step is not None and key in step]
    if not steps:
        return None
    side = dice.choice(steps)[key][part]
    k = dice.randrange(len(side))
    side[k] = _moved(side[k], direction * 1e-3 * max(1.0, abs(float.fromhex(side[k]))))
    return body


def _step_number(key: str, part: int, direction: int) -> Callable[[Body, random.Random], Body | None]:
    return lambda body, dice: _numbers(body, dice, key, part, direction)


def _drop_step(body: Body, dice: random.Random) -> Body | None:
    steps = _leaf(body["proof"], dice)["steps"]
    if not steps:
        return None
    steps.pop(dice.randrange(len(steps)))
    return body


def _double_step(body: Body, dice: random.Random) -> Body | None:
    steps = _leaf(body["proof"], dice)["steps"]
    if not steps:
        return None
    steps.append(copy.deepcopy(steps[-1]))
    return body


def _drop_region(body: Body, _: random.Random) -> Body | None:
    """Half of a split region left out: what is left is about the other half only."""
    proof = body["proof"]
    if proof["kind"] != "split":
        return None
    body["proof"] = proof["parts"][0]
    return body


def _members(body: Body, _: random.Random) -> Body | None:
    proof = body["proof"]
    if proof["kind"] == "split":
        return None
    proof["members"].append(copy.deepcopy(proof["members"][0]))
    return body


def _not_a_number(body: Body, dice: random.Random) -> Body:
    claim = body["claim"]["at_least"]
    claim[dice.randrange(len(claim))] = dice.choice(["nan", "inf", "-inf", "1.5", "", None, True, "0x1p99999"])
    return body


def _last(key: str, factor: float) -> Callable[[Body, random.Random], Body | None]:
    def change(body: Body, dice: random.Random) -> Body | None:
        final = _leaf(body["proof"], dice).get("final")
        if final is None or not final[key] or float.fromhex(final[key][0]) == 0:
            return None
        final[key][0] = (float.fromhex(final[key][0]) * factor).hex()
        return body

    return change


TAMPERS: dict[str, Callable[[Body, random.Random], Body | None]] = {
    "claim tightened by 1e-6": _tighten,
    "region enlarged": _enlarge,
    "another network": _network,
    "sign of a row": _sign,
    "largest mean lowered": _step_number("mean", 1, -1),
    "least mean raised": _step_number("mean", 0, 1),
    "largest standard deviation lowered": _step_number("deviation", 1, -1),
    "line above lowered": _step_number("above", 1, -1),
    "line below raised": _step_number("below", 1, 1),
    "a layer left out": _drop_step,
    "a layer twice": _double_step,
    "half of the region left out": _drop_region,
    "a member too many": _members,
    "not a number": _not_a_number,
    "noise of the last layer": _last("noise", 0.9),
    "tilt above one": _last("tilts", 200.0),
}


def tampered(given: Body, how: str, dice: random.Random) -> str | None:
    """The certificate with one change and the right digest; None if it has nothing to change."""
    body = TAMPERS[how](copy.deepcopy(given), dice)
    return None if body is None else sealed(body)


def main() -> None:
    """Run the campaign and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="cases of each kind of layer")
    parser.add_argument("--tampered", type=int, default=3, help="changes tried on each certificate")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dice = random.Random(options.seed)
    counts, accepted, seconds, wrong = Counter[str](), Counter[str](), list[float](), list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "certificate.json"
        for found in genuine(Path(scratch), options.seed, options.rounds):
            path.write_text(json.dumps(found.body))
            start = time.perf_counter()
            verdict = check(path, found.model)
            seconds.append(time.perf_counter() - start)
            counts["genuine"] += 1
            accepted["genuine"] += verdict.accepted
            if not verdict.accepted:
                wrong.append(f"rejected {found.name}: {verdict.reason}")
            for how in dice.sample(list(TAMPERS), options.tampered):
                text = tampered(found.body, how, dice)
                if text is None:
                    continue
                path.write_text(text)
                counts[how] += 1
                if check(path, found.model).accepted:
                    accepted[how] += 1
                    wrong.append(f"accepted {found.name}: {how}")
    for name, count in counts.items():
        print(f"{name}: {accepted[name]} of {count} accepted")
    print(f"tampered: {sum(accepted[n] for n in TAMPERS)} of {sum(counts[n] for n in TAMPERS)} accepted")
    print(f"checking: median {statistics.median(seconds):.3f} s, largest {max(seconds):.2f} s")
    print("\n".join(wrong[:40]))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
