"""``make bench-layers``: the networks of other layers and posteriors: tightness, radii, ensembles, memory.

Parts (``--only``): ``activations`` certified against inside range on the 2D sine for four activations; ``cnn`` radii,
certified and attacked, of Bayesian convolutional networks on test images; ``ensemble`` cost and bounds of ten
networks against one; ``members`` cost of a pass over hundreds of small networks, together and one by one (random
weights: no data needed); ``laplace`` radii of a last layer by Laplace with its full covariance; ``effort`` radii at
each level of effort of one network, the same below a last layer by Laplace, and ensembles of three and ten. Networks
are those of ``benchmarks/networks.py``, needs BNNDP_DATA. One thread. Figures also go to ``results-layers.json``.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.networks import ACTIVATIONS, network, posterior
from benchmarks.results import FOLDER, keep, show
from benchmarks.timing import median_time
from bnndp import certify
from bnndp.activations import Relu, Tanh
from bnndp.activations.activation import Activation
from bnndp.attack import AttackBudget, Reach, attack_radius
from bnndp.attack.inside import inside_range
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.data import load
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import LEVELS, Options
from bnndp.questions.radius import Search, better_radii, certified_radius

__all__ = ["main"]

PARTS = ("activations", "cnn", "ensemble", "members", "laplace", "effort")
PIXELS = (0.0, 1.0)
CNN = {
    "fashion-cnn": ("fashion_mnist", 0.00061),
    "fashion-cnn-warm": ("fashion_mnist", 0.00061),
    "fashion-cnn-dropout-last": ("fashion_mnist", 0.00061),
    "cifar-cnn": ("cifar10_subset", 0.00011),
}
"""Networks, their data, and the paper's radius for as many convolutions (Table 2)."""
MEMBERS = (
    (200, (8, 50, 1), Relu(), 1),
    (500, (8, 50, 1), Relu(), 1),
    (500, (8, 50, 1), Tanh(), 1),
    (500, (8, 50, 50, 1), Relu(), 1),
    (200, (8, 50, 1), Relu(), 64),
)
"""Samples of small networks: how many, their sizes and activation, and boxes at a time."""
MOST = 20
"""Images of which radii of high effort are asked."""
FIRST = 100
"""The first test image: those before it were looked at when the networks were trained."""
EFFORT = AttackBudget(restarts=3, steps=10, targets=2, draws=16, samples=1024)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for, print their tables, write their figures."""
    parser = argparse.ArgumentParser(description="Networks of other layers and posteriors.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--images", type=int, default=100, help="number of test images (and boxes)")
    parser.add_argument("--networks", nargs="+", choices=tuple(CNN), default=tuple(CNN), metavar="NAME")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the file of figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts: dict[str, Callable[[int], Any]] = {
        "activations": _activations,
        "cnn": lambda images: {name: _radii(name, *CNN[name], images=images) for name in options.networks},
        "ensemble": _ensemble,
        "members": _members,
        "laplace": lambda images: _radii("mnist-laplace", "mnist", float("nan"), images=images),
        "effort": lambda images: _effort(min(images, MOST)),
    }
    for part in options.only:
        keep("layers", part, parts[part](options.images), options.out)


def _activations(boxes: int) -> list[dict[str, Any]]:
    """Mean over the boxes of certified width : inside range."""
    rows: list[dict[str, Any]] = []
    for shape, eps in (("1x64", 1e-2), ("2x64", 1e-3)):
        for name in ACTIVATIONS:
            own = network(f"sine2d-{shape}-{name}")
            centre = 2 * torch.rand(boxes, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1
            box = Box.ball(centre, eps)
            ends = certify(own, box)
            inside = inside_range(own, box, samples=2048, restarts=4, steps=30)
            width = ends.upper - ends.lower
            valid = (ends.lower <= inside.lower + inside.error) & (ends.upper >= inside.upper - inside.error)
            rows.append(
                {
                    "network": f"sine2d-{shape}-{name}",
                    "eps": eps,
                    "certified": width.mean().item(),
                    "inside": inside.width.mean().item(),
                    "ratio": (width / inside.width).mean().item(),
                    "violations": int((~valid).sum()),
                }
            )
    first = {row["eps"]: row["ratio"] for row in rows if row["network"].endswith("-relu")}
    for row in rows:
        row["of relu"] = row["ratio"] / first[row["eps"]]
    show("2D sine: certified width and inside range, mean of the boxes", rows)
    return rows


def _radii(name: str, data: str, paper: float, *, images: int) -> dict[str, Any]:
    """Certified and attacked radii of the first images."""
    own, test = network(name), load(data, "test")
    part = slice(FIRST, FIRST + images)
    x, y = test.x[part], test.y[part]
    noise = draw_softmax_noise(own, 512, seed=5)
    decided = estimate_softmax(own, x, noise).mean.argmax(-1)
    started = time.process_time()
    found = certified_radius(own, x, decided, PIXELS, search=Search(attack=False))
    seconds = time.process_time() - started
    attack = attack_radius(own, x, decided, reach=Reach(domain=PIXELS), budget=EFFORT).radius
    certified = found.radius.nan_to_num(0.0)
    row = {
        "network": name,
        "accuracy": (decided == y).double().mean().item(),
        "certified": certified.mean().item(),
        "at the image": (~found.radius.isnan()).double().mean().item(),
        "attack": attack.mean().item(),
        "ratio": torch.where(attack > 0, certified / attack, 0.0).mean().item(),
        "violations": int((certified > attack).sum()),
        "paper": paper,
        "times": certified.mean().item() / paper,
        "seconds an image": seconds / images,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    show(f"{name}: radii of {images} test images from number {FIRST}", [row])
    return row


def _effort(images: int) -> list[dict[str, Any]]:
    """Mean of certified : attacked radius at each level of effort, for kinds of posteriors around one architecture."""
    ten, laplace = posterior("mnist-ensemble"), network("mnist-laplace")
    head = laplace.layers[-1]
    if not isinstance(ten, Ensemble) or not isinstance(head, CorrelatedLinear):
        raise SystemExit("mnist-ensemble is not an ensemble, or mnist-laplace has no last layer by Laplace.")
    fixed = (*laplace.layers[:-1], Linear.fixed(head.weight_mean, head.bias_mean))
    kinds: dict[str, Posterior] = {
        "without variance": BayesianNetwork(fixed, "classification"),
        "last-layer Laplace": laplace,
        "ensemble of 3": Ensemble(ten.members[:3]),
        "ensemble of 10": ten,
    }
    x, rows = load("mnist", "test").x[FIRST : FIRST + images], list[dict[str, Any]]()
    for kind, own in kinds.items():
        found = certified_radius(own, x, None, PIXELS, search=Search(attack=False))
        broken = attack_radius(own, x, found.label, reach=Reach(domain=PIXELS), budget=AttackBudget(seed=0)).radius
        row: dict[str, Any] = {"network": kind, "images": images, "attack": broken.mean().item()}
        for level in LEVELS:
            started, known = time.process_time(), replace(found, attack=broken)
            *_, best = better_radii(own, x, None, PIXELS, options=Options(effort=level), known=known)
            certified = best.radius.nan_to_num(0.0)
            row[level] = torch.where(broken > 0, certified / broken, 0.0).mean().item()
            row[f"{level}, s an image"] = (time.process_time() - started) / images
            row["violations"] = row.get("violations", 0) + int((certified > broken).sum())
        rows.append(row)
    show(f"MNIST 2x64: certified : attacked radius of {images} test images from number {FIRST}", rows)
    return rows


def _ensemble(images: int) -> dict[str, Any]:
    """Ten networks against one: cost of a pass, and the width of bounds against the average of separate intervals."""
    own = posterior("mnist-ensemble")
    if not isinstance(own, Ensemble):
        raise SystemExit("mnist-ensemble is not an ensemble.")
    x = load("mnist", "test").x[FIRST : FIRST + images]
    search = Search(attack=False)
    one = median_time(lambda: certified_radius(own.members[0], x, None, PIXELS, search=search))
    all_ = median_time(lambda: certified_radius(own, x, None, PIXELS, search=search))
    found = certified_radius(own, x, None, PIXELS, search=search)
    attack = attack_radius(own, x, found.label, reach=Reach(domain=PIXELS), budget=EFFORT).radius
    certified = found.radius.nan_to_num(0.0)
    affine, separate = _widths(own, Box.ball(x, 0.01, domain=PIXELS))
    row = {
        "members": len(own.members),
        "radius": certified.mean().item(),
        "attack": attack.mean().item(),
        "ratio": torch.where(attack > 0, certified / attack, 0.0).mean().item(),
        "violations": int((certified > attack).sum()),
        "cost of one": all_ / one,
        "width": affine,
        "separate width": separate,
    }
    show("ensemble of MNIST 2x64", [row])
    return row


def _members(_images: int) -> list[dict[str, Any]]:
    """A pass over many networks without variance, as samples of a chain are: together, and one after the other."""
    rows = []
    for count, sizes, activation, boxes in MEMBERS:
        own, box = _samples(count, sizes, activation), Box.ball(torch.full((boxes, sizes[0]), 0.3), 0.05)
        pairs = list(zip(own.probabilities, own.members, strict=True))

        def loop(box: Box = box, pairs: list[Any] = pairs) -> AffineBounds:
            return _added([(weight, certify(member, box).affine) for weight, member in pairs], box)

        def together(box: Box = box, own: Ensemble = own) -> AffineBounds:
            found = certify(own, box).affine
            assert found is not None  # a regression
            return found

        one, other = loop().interval(), together().interval()
        width = one.upper - one.lower
        apart = torch.maximum((one.lower - other.lower).abs(), (one.upper - other.upper).abs()) / width
        times = median_time(loop), median_time(together)
        rows.append(
            {
                "members": count,
                "sizes": "-".join(map(str, sizes)),
                "activation": activation.kind,
                "boxes": boxes,
                "one by one, ms": 1e3 * times[0],
                "together, ms": 1e3 * times[1],
                "times": times[0] / times[1],
                "apart, of the width": apart.max().item(),
            }
        )
    show("members without variance: one pass over all, together and one by one", rows)
    return rows


def _samples(count: int, sizes: Sequence[int], activation: Activation) -> Ensemble:
    """Networks of random weights."""
    generator = torch.Generator().manual_seed(6)
    pairs = []
    for n_in, n_out in pairwise(sizes):
        weight = torch.randn(count, n_out, n_in, generator=generator, dtype=torch.float64) * (2 / n_in) ** 0.5
        pairs.append((weight, 0.3 * torch.randn(count, n_out, generator=generator, dtype=torch.float64)))
    return Ensemble.of_samples(pairs, activation=activation)


def _added(pairs: Sequence[tuple[Tensor, Any]], box: Box) -> AffineBounds:
    """The weighted sum of affine bounds."""
    lower, upper = (
        Affine(
            sum((weight * getattr(each, side).matrix for weight, each in pairs), torch.zeros(())),
            sum((weight * getattr(each, side).offset for weight, each in pairs), torch.zeros(())),
        )
        for side in ("lower", "upper")
    )
    return AffineBounds(lower, upper, box)


def _widths(own: Ensemble, box: Box) -> tuple[float, float]:
    """Mean width of the bounds of the logits' means, by the sum of affine bounds and by the average of intervals."""
    members = [replace(member, task="regression") for member in own.members]
    together = certify(replace(own, members=tuple(members)), box).width
    pairs = zip(own.probabilities.tolist(), members, strict=True)
    separate: Tensor = sum((w * certify(member, box).width for w, member in pairs), torch.zeros_like(together))
    return together.mean().item(), separate.mean().item()


if __name__ == "__main__":
    main()
