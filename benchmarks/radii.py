"""``make bench-classification``: certified radii beside the attack's, uncertain posteriors, what is lost where, speed.

Parts (``--only``): ``radius`` the authors' MNIST 2x64 (VOGN), first 100 test images; ``uncertain`` the posteriors by
Bayes by backprop of ``benchmarks/networks.py`` on images with E p_c >= 0.9; ``speed`` the radius of 100 images against
one pass. Needs BNNDP_DATA (MNIST, and the posteriors beside it). One thread. Figures also go to
``results-classification.json``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.networks import authors, network
from benchmarks.results import FOLDER, keep, show
from benchmarks.timing import median_time
from bnndp.attack import decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.data import mnist
from bnndp.engine.margins import margins
from bnndp.engine.tails.tails import margin_tails
from bnndp.geometry.box import Box
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.softmax import union_bound
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.radius import Radius, Search, certified_radius
from bnndp.questions.softmax import bound_rows
from bnndp.tighten.pass_choice import pass_over

__all__ = ["main"]

PARTS = ("radius", "uncertain", "speed")
PIXELS = (0.0, 1.0)
IMAGES = 100
UNCERTAIN = ("mnist-1x128", "mnist-2x64")
DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class _Images:
    x: Tensor  # (images, 784)
    label: Tensor  # (images,)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for, print their tables, write their figures."""
    parser = argparse.ArgumentParser(description="Classification: radii, uncertain posteriors, speed.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--images", type=int, default=IMAGES, help="number of test images, from the first")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the file of figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts = {"radius": _radius, "uncertain": _uncertain, "speed": _speed}
    for part in options.only:
        keep("classification", part, parts[part](options.images), options.out)


def _radius(images: int) -> list[dict[str, Any]]:
    net, test = authors("mnist_2x64_vogn"), mnist("test")
    x, y = test.x[:images], test.y[:images]
    ways = (
        ("one pass, domain [0, 1]", PIXELS, Options()),
        ("one pass, no domain", None, Options()),
        ("optimised (20 steps)", PIXELS, Options(optimise=20)),
        ("optimised, 4 cells", PIXELS, Options(optimise=10, branch=4)),
        ("optimised, 16 cells", PIXELS, Options(optimise=10, branch=16)),
        ("partition", PIXELS, Options(method="partition")),
    )
    rows: list[dict[str, Any]] = []
    attacks: dict[Any, Tensor] = {}
    for name, domain, options in ways:
        attack = attacks.get(domain)
        start = time.process_time()
        found = certified_radius(net, x, y, domain, search=Search(attack=attack is None), options=options)
        seconds = time.process_time() - start
        attacks[domain] = found.attack if attack is None else attack
        row = _summary(name, found, attacks[domain], seconds / images)
        row["seconds"] = None if attack is None else row["seconds"]  # the first includes the attack
        rows.append(row)
        print(f"{name}: {row['radius']:.5f}, ratio {row['ratio']:.3f}", flush=True)
    show("MNIST 2x64 (VOGN): certified radius over correctly classified images, to 1 %; seconds per image", rows)
    return rows


def _summary(name: str, found: Radius, attack: Tensor, seconds: float) -> dict[str, Any]:
    right = attack > 0  # the network decides for the label at the image itself
    radius = found.radius.nan_to_num(0.0)
    return {
        "way": name,
        "images": int(right.sum()),
        "radius": float(radius[right].mean()),
        "attack": float(attack[right].mean()),
        "ratio": float((radius / attack)[right].mean()),
        "broken": int((radius > attack).sum()),
        "certified_at_input": float(found.radius[right].isfinite().double().mean()),
        "seconds": seconds,
    }


def _confident(net: BayesianNetwork, images: int) -> _Images:
    """The first test images whose sampled E p_c is at least 0.9 for the network's own decision c."""
    x = mnist("test").x[: 2 * images]
    probability = estimate_softmax(net, x, draw_softmax_noise(net, 4096, seed=1)).mean
    best = probability.max(-1)
    at = (best.values >= 0.9).nonzero()[:images, 0]
    return _Images(x[at], best.indices[at])


def _uncertain(images: int) -> list[dict[str, Any]]:
    results = []
    for name in UNCERTAIN:
        net = network(name)
        some = _confident(net, images)
        lost = _breakdown(net, some)
        found = certified_radius(net, some.x, some.label, PIXELS, search=Search())
        row = _summary(name, found, found.attack, 0.0)
        row["lost"] = {k: [float(v.mean()), float((v > 0).double().mean())] for k, v in lost.items()}
        steps = [{"bound": step, "mean": mean, "decided": share} for step, (mean, share) in row["lost"].items()]
        show(f"{name}: the least lead at radius 0, from the truth to the bound", steps)
        show(name, [{key: value for key, value in row.items() if key not in ("way", "seconds", "lost")}])
        results.append(row)
    return results


def _breakdown(net: BayesianNetwork, some: _Images) -> dict[str, Tensor]:
    """Least lead of the label over any class at the images: true, and by each step from the truth to the bound."""
    rows = decision_rows(some.label, net.n_out)[0]
    sampled = [_sampled(net, x, int(c)) for x, c in zip(some.x, some.label.tolist(), strict=True)]
    lead, sigma, mean, variance, chernoff = (torch.stack(part) for part in zip(*sampled, strict=True))
    point = Box(some.x, some.x)
    with torch.no_grad():
        known = margins(pass_over(net, point, Options()), some.label[:, None], net.n_out)
        d, v = known.mean[:, 0], known.variance[:, 0]
        tails = margin_tails(net.linears, point, some.label, d, torch.ones_like(d, dtype=torch.bool))

        def union(tail: Tensor) -> Tensor:
            return union_bound(rows, tail, some.label).amin(-1)

        return {
            "sampled E p": lead,
            "union over classes, sampled E sigma(-D)": union(sigma),
            "exponential moments, sampled": union(chernoff),
            "exponential moments, proved": union(tails),
            "two moments, sampled": union(logistic_tail(mean, variance)),
            "two moments, proved": union(logistic_tail(d, v)),
            "all together, proved": bound_rows(net, point, rows, some.label, Options()).amin(-1),
        }


def _sampled(net: BayesianNetwork, x: Tensor, label: int) -> tuple[Tensor, ...]:
    """Lead, E sigma(-D), E D, Var D and the least C(lambda) E e^{-lambda D} of the margins, by plain sampling."""
    generator = torch.Generator().manual_seed(0)
    z = x[None].expand(DRAWS, -1)
    for k, layer in enumerate(net.linears):
        mean = z @ layer.weight_mean.T + layer.bias_mean
        std = (z.square() @ layer.weight_std.square().T + layer.bias_std.square()).sqrt()
        z = mean + std * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        z = z.clamp_min(0) if k < net.depth else z
    probability = torch.softmax(z, -1).mean(0)
    others = probability.clone()
    others[label] = -1.0
    d = z[:, [label]] - z
    best = torch.ones_like(probability)
    for step in range(1, 21):
        lam = torch.tensor(step / 20, dtype=torch.float64)
        constant = torch.exp(torch.xlogy(lam, lam) + torch.xlogy(1 - lam, 1 - lam))
        best = torch.minimum(best, constant * torch.exp(-lam * d).mean(0))
    return probability[label] - others.max(), torch.sigmoid(-d).mean(0), d.mean(0), d.var(0), best


def _speed(images: int) -> dict[str, Any]:
    net, test = authors("mnist_2x64_vogn"), mnist("test")
    x, y = test.x[:images], test.y[:images]
    rows, ball = decision_rows(y, net.n_out)[0], Box.ball(x, 0.03, domain=PIXELS)
    with torch.no_grad():
        one = median_time(lambda: bound_rows(net, ball, rows, y, Options()))
    search = median_time(lambda: certified_radius(net, x, y, PIXELS, search=Search(attack=False)))
    print(
        f"radius of {images} images to 1 %: {search:.2f} s CPU = {search / one:.1f} x one certified pass of the batch "
        f"({one:.3f} s); {images / search:.0f} images per second"
    )
    return {"radius_seconds": search, "pass_seconds": one, "ratio": search / one}


if __name__ == "__main__":
    main()
