"""Attack the checker: hill climbing on the numbers of a certificate, until its claim would pass the truth.

For random networks of every kind of layer a proof is made, then its numbers are changed at random (scaled, moved,
swapped, set to extreme values); a change that lets the checker prove more is kept. What is proved at the end must still
be below the mean of draws at many points of the box, with six standard errors.

    python -m benchmarks.fuzz.checker --seconds 600 --seed 7
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from support.layer_networks import KINDS, make_case
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.certificates.certificate import plain
from bnndp.certificates.prove import Claim, prove
from bnndp.files.posterior import save
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp_checker.ball_arithmetic import use_precision
from bnndp_checker.check import PROOFS
from bnndp_checker.layers import Box as Balls
from bnndp_checker.read_certificate import numbers
from bnndp_checker.read_model import Model, read_model

__all__ = ["Attack", "attack", "claims_of", "least_sampled"]

_EXTREME = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, -1e300, 1e6, 700.0)


@dataclass(frozen=True, slots=True)
class Attack:
    """How an attack ended: bounds (rows,) before and after, the truth (rows,) from draws, and how many tries."""

    before: Tensor
    after: Tensor
    truth: Tensor
    tries: int
    kept: int

    @property
    def broken(self) -> bool:
        """Whether more was proved than is true."""
        return not bool((self.after <= self.truth).all())


def least_sampled(claim: Claim, draws: int, seed: int) -> Tensor:
    """Least sampled values (rows,) over corners and inner points of the first box, six standard errors added."""
    dice = torch.Generator().manual_seed(seed)
    shares = torch.rand(12, claim.box.n, generator=dice, dtype=torch.float64)
    shares[:6] = shares[:6].round()
    x = claim.box.lower[0] + shares * (claim.box.upper[0] - claim.box.lower[0])
    values = evaluate(draw_networks(claim.network, draws, seed=seed), x)
    values = values.expand(draws, *values.shape[1:])
    values = (torch.softmax(values, -1) if claim.of == "softmax" else values) @ claim.rows[0].mT
    return (values.mean(0) + 6 * values.std(0) / math.sqrt(draws)).amin(0) + 1e-11 * (1 + values.abs().amax((0, 1)))


def attack(claim: Claim, *, seed: int, seconds: float, draws: int = 40_000) -> Attack | None:
    """Climb from the proof of the first box of a claim; None where there is no proof."""
    dice, proof = random.Random(seed), prove(claim)
    if not bool(proof.at_least[0].isfinite().all()):
        return None
    tree = plain(proof.tree(0))
    with tempfile.TemporaryDirectory() as folder:
        save(claim.network, Path(folder) / "model")
        model = read_model(Path(folder) / "model")
    use_precision()
    rows = [numbers(row, claim.rows.shape[-1], "row") for row in plain(claim.rows[0])]
    sides = (numbers(plain(side[0]), claim.box.n, "box") for side in (claim.box.lower, claim.box.upper))
    box = Balls(*sides)
    best = before = _proved(tree, claim.of, model, box, rows)
    end, tries, kept = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        row, changed = dice.randrange(len(rows)), copy.deepcopy(tree)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            _change(dice, changed)
        found = _proved(changed, claim.of, model, box, rows)
        tries += 1
        if found[row] >= best[row] and not any(map(math.isnan, found)):
            kept += found[row] > best[row]
            tree, best = changed, [max(a, b) for a, b in zip(found, best, strict=True)]
    first, last = (torch.tensor(values, dtype=torch.float64) for values in (before, best))
    return Attack(first, last, least_sampled(claim, draws, seed), tries, kept)


def _proved(tree: dict[str, Any], of: str, model: Model, box: Balls, rows: list[Any]) -> list[float]:
    """The least values that the checker proves of each row; minus infinity where it rejects."""
    try:
        ((layers, _),) = model.members
        found = PROOFS[of, tree["kind"]](layers, model.input_shape, box, rows, tree["members"][0])
        return [float(value.lower()) if value > -1e300 else -math.inf for value in found.least]
    except Exception:  # noqa: BLE001 (a rejection, whatever it is called)
        return [-math.inf] * len(rows)


def _leaves(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every number of a proof, as a container and a key."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _leaves(value)
        elif key != "kind":
            yield tree, key


def _change(dice: random.Random, tree: dict[str, Any]) -> None:
    places = list(_leaves(tree["members"]))
    holder, key = dice.choice(places)
    if isinstance(holder[key], int):
        holder[key] = dice.choice((holder[key] + 1, holder[key] - 1, -1, 0, True))
        return
    value, size = float.fromhex(holder[key]), 10 ** dice.uniform(-8, 1)
    other, at = dice.choice(places)
    found = {
        0: value * (1 + dice.gauss(0, 1) * size),
        1: value + dice.gauss(0, 1) * size,
        2: dice.choice(_EXTREME),
        3: -value,
        4: float.fromhex(other[at]) if isinstance(other[at], str) else value,
    }[dice.choice((0, 0, 0, 1, 1, 1, 2, 3, 4))]
    holder[key] = (found if math.isfinite(found) else value).hex()


def claims_of(network: BayesianNetwork, box: Box) -> list[Claim]:
    """Both sides of every output, and of every probability with the leads of the first class."""
    eye = torch.eye(network.n_out, dtype=torch.float64)
    found = [Claim(network, "mean", box, torch.cat([eye, -eye])[None])]
    if network.n_out > 1:
        rows = torch.cat([eye, -eye, eye[:1] - eye[1:]])[None]
        classifier = replace(network, task="classification")
        found.append(Claim(classifier, "softmax", box, rows, torch.zeros(1, dtype=torch.long)))
    return found


def main() -> int:
    """Attack until the time is up; the exit status is 1 if anything broke."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="for all attacks")
    parser.add_argument("--each", type=float, default=5.0, help="for one of them")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    end, index, broken, attacks, tries, gains = time.monotonic() + options.seconds, 0, 0, 0, 0, 0
    while time.monotonic() < end:
        kind = KINDS[index % len(KINDS)]
        case = make_case(options.seed, kind, index)
        for claim in claims_of(case.network, case.box[torch.tensor([index // len(KINDS) % 3])]):
            found = attack(claim, seed=options.seed + index, seconds=options.each)
            if found is not None:
                attacks, tries, gains, broken = (
                    attacks + 1,
                    tries + found.tries,
                    gains + found.kept,
                    broken + found.broken,
                )
                if found.broken:
                    print(f"BROKEN: {kind} {index} {case.act} {claim.of}: {found.after} > {found.truth}", flush=True)
        index += 1
    print(
        f"{attacks} attacks on {index} networks, {tries} changed certificates, {gains} of them better, {broken} broken"
    )
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
