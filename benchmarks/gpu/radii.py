"""Certified radii of many images on a device: how fast, with how much memory, and what of the ceilings is reached."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.ceilings import Ceilings, wait
from benchmarks.gpu.counting import Counts, counted
from benchmarks.gpu.profiling import Profile, profiled
from bnndp.options import Options
from bnndp.questions.radius import Radius, Search, certified_radius

__all__ = ["Rate", "Share", "Timed", "radii", "rate", "share", "together"]

SEARCH = Search(attack=False, tolerance=0.01)
_WARM = 256  # images of the first call
_COARSE = 0.3  # tolerance of the search that is profiled: the same passes, fewer of them


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds from images on the host to radii on the host, after a first call on a few images."""

    images: int
    seconds: float
    first_call: float  # seconds of the first call, on at most 256 images
    peak: int  # bytes of the device's memory, at most; 0 on a CPU
    certified: int  # images with a positive radius
    mean_radius: float

    @property
    def a_second(self) -> float:
        """Images per second."""
        return self.images / self.seconds


@dataclass(frozen=True, slots=True)
class Share:
    """What of the ceilings some images reach: counted operations over time in products, and over all time."""

    images: int
    counts: Counts
    profile: Profile  # of a coarser search
    in_matrix_products: float  # of the flops ceiling, during the products of two matrices
    in_products: float  # the same during all products
    untimed: float  # share of the operations whose kernels the profile lost; they count in neither
    of_flops: float  # over the whole run, at the measured rate of images
    of_bytes: float  # bytes that the operations touch, of the copy's rate, over the whole run
    busy: float  # kernel seconds over seconds, of the coarser search


@dataclass(frozen=True, slots=True)
class Timed:
    """Operations and seconds by kind of product, of those that have both, and the share of operations without."""

    flops: dict[str, int]
    seconds: dict[str, float]
    untimed: float

    def rate(self, *kinds: str) -> float:
        """Operations per second during the products of these kinds; 0 without any."""
        seconds = sum(self.seconds[kind] for kind in kinds)
        return sum(self.flops[kind] for kind in kinds) / seconds if seconds else 0.0


def together(counts: Counts, profile: Profile) -> Timed:
    """Each product that was counted with its time in a profile of the same computation.

    Refused where the two did not see the same products: operations would be divided by the time of others.
    """
    if [kind for kind, _ in counts.products] != [kind for kind, _ in profile.products]:
        raise RuntimeError(
            f"{len(counts.products)} products were counted and {len(profile.products)} profiled, or in another order; "
            "name the operations that one of them misses in benchmarks/gpu/counting.py."
        )
    flops, seconds, lost = {"matrix": 0, "vector": 0}, {"matrix": 0.0, "vector": 0.0}, 0
    for (kind, count), (_, spent) in zip(counts.products, profile.products, strict=True):
        if spent > 0:
            flops[kind], seconds[kind] = flops[kind] + count, seconds[kind] + spent
        else:
            lost += count
    return Timed(flops, seconds, lost / max(1, counts.matrix + counts.vector))


def radii(case: Case, device: str, options: Options, search: Search = SEARCH) -> Radius:
    """The radii of all images of the network's own decisions, back on the host."""
    found = certified_radius(case.network, case.x.to(device), domain=(0, 1), search=search, options=options)
    return Radius(*(column.cpu() for column in (found.label, found.radius, found.attack, found.witness)))


def rate(case: Case, device: str, options: Options) -> Rate:
    """How fast the radii of all images are found; the network of the case is on the device."""
    begin = time.perf_counter()
    radii(case.first(_WARM), device, options)
    warm = time.perf_counter() - begin
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    wait(device)
    begin = time.perf_counter()
    found = radii(case, device, options)
    seconds = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated(device) if cuda else 0
    positive = found.radius.nan_to_num(0.0)
    return Rate(case.x.shape[0], seconds, warm, peak, int((positive > 0).sum()), float(positive.mean()))


def share(case: Case, device: str, options: Options, ceilings: Ceilings, speed: float) -> Share:
    """Count the radii of the images, and profile a coarser search; ``speed`` is the rate measured without either."""
    counts, coarse = counted(lambda: radii(case, device, options)), replace(SEARCH, tolerance=_COARSE)

    def searched() -> Radius:
        return radii(case, device, options, coarse)

    of_coarse = counted(searched)
    begin = time.perf_counter()
    searched()
    seconds = time.perf_counter() - begin
    profile = profiled(searched, device)
    timed = together(of_coarse, profile)
    images = case.x.shape[0]
    every = counts.matrix + counts.vector
    return Share(
        images=images,
        counts=replace(counts, products=()),
        profile=replace(profile, products=()),
        in_matrix_products=timed.rate("matrix") / ceilings.flops,
        in_products=timed.rate("matrix", "vector") / ceilings.flops,
        untimed=timed.untimed,
        of_flops=every / images * speed / ceilings.flops,
        of_bytes=counts.bytes / images * speed / ceilings.bytes,
        busy=profile.busy / seconds,
    )
