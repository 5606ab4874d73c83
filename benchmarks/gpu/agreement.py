"""Bounds on a device beside those of the CPU: equal within rounding, and held against attacks from inside.

Differences are relative to the width of the bounds, or to the radius. A search may turn off at a trial whose bound is
zero within rounding, so radii may differ by the tolerance of the search at most. What is found from inside on the
device, by attacks on the estimated mean, must not lie outside the bounds of the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu.cases import Case
from bnndp.attack.inside import CONFIDENCE, candidates, inside_range
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify
from bnndp.questions.radius import Radius, Search, certified_radius

__all__ = ["Agreement", "bounds_agree", "radii_agree", "sloppy"]

_VERTICES, _DRAWS = 8, 4096


@dataclass(frozen=True, slots=True)
class Agreement:
    """One question asked of both devices."""

    question: str
    inputs: int
    largest: float  # difference, relative to the width or the radius
    equal: bool  # the same inputs have a finite bound or a radius on both
    inside: int  # inputs that an attack reached
    broken: int  # inputs whose bound on the device an attack breaks
    unmoved: bool  # bit for bit the same where reduced precision is allowed


def bounds_agree(
    case: Case, eps: float, domain: tuple[float, float] | None, device: str, options: Options
) -> Agreement:
    """``certify`` on the balls of radius ``eps`` around the inputs."""
    box = Box.ball(case.x, eps, domain=domain)
    here = certify(case.network.to("cpu"), box, options)
    network, there = case.network.to(device), box.to(device)
    found = certify(network, there, options)
    with sloppy(device):
        again = certify(network, there, options)
    low, high = _from_inside(network, there)
    bad = ((low < found.lower) | (high > found.upper)).any(-1)
    width = (here.upper - here.lower).clamp_min(torch.finfo(torch.float64).tiny)
    apart = torch.maximum((found.lower.cpu() - here.lower).abs(), (found.upper.cpu() - here.upper).abs()) / width
    finite = all(bool(torch.equal(a.isfinite(), b.cpu().isfinite())) for a, b in _ends(here, found))
    unmoved = all(bool(torch.equal(a, b)) for a, b in _ends(found, again))
    return Agreement(f"{case.name}: bounds", box.batch, float(apart.max()), finite, box.batch, int(bad.sum()), unmoved)


def radii_agree(case: Case, device: str, options: Options, *, attacked: int) -> Agreement:
    """``certified_radius``; the first inputs are attacked too."""
    search = Search(attack=False)
    here = certified_radius(case.network.to("cpu"), case.x, domain=(0, 1), search=search, options=options)
    network, x = case.network.to(device), case.x.to(device)

    def asked(how: Search, count: int) -> Radius:
        label = here.label[:count].to(device)
        return certified_radius(network, x[:count], label, (0, 1), search=how, options=options)

    found = asked(search, x.shape[0])
    with sloppy(device):
        again = asked(search, x.shape[0])
    broken = asked(replace(search, attack=True), attacked)
    radius = found.radius.cpu()
    apart = (radius - here.radius).abs() / here.radius.clamp_min(torch.finfo(torch.float64).tiny)
    both = here.radius.isfinite() & (here.radius > 0)
    return Agreement(
        question=f"{case.name}: radii",
        inputs=x.shape[0],
        largest=float(apart[both].max()) if bool(both.any()) else 0.0,
        equal=bool(torch.equal(here.radius.isnan(), radius.isnan())),
        inside=int(broken.attack.isfinite().sum()),
        broken=int((broken.attack < broken.radius).sum()),
        unmoved=bool(torch.equal(found.radius.nan_to_num(-1.0), again.radius.nan_to_num(-1.0))),
    )


def _from_inside(network: Posterior, box: Box) -> tuple[Tensor, Tensor]:
    """The smallest and largest means that are found in each box, less what sampling may be off: (batch, outputs) each.

    Those of a regression network are searched by gradients; probabilities are estimated at the centre and at vertices.
    """
    if network.task == "regression":
        inside = inside_range(network, box)
        return inside.lower + inside.error, inside.upper - inside.error
    points = candidates(box, vertices=_VERTICES, points=0)  # (points, batch, n)
    found = estimate_softmax(network, points, draw_softmax_noise(network, _DRAWS, seed=1))
    error = CONFIDENCE * found.std_error
    return (found.mean + error).amin(0), (found.mean - error).amax(0)


@contextmanager
def sloppy(device: str) -> Iterator[None]:
    """Allow whatever precision torch can be allowed to lose: TF32 products, and autocast to 16 bits."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = True, True
    try:
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _ends(a: Bounds, b: Bounds) -> Iterator[tuple[Tensor, Tensor]]:
    yield a.lower, b.lower
    yield a.upper, b.upper
