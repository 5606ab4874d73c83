"""Certified radii of many images on a device: how fast, with how much memory, and what of the ceilings is reached."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.ceilings import Ceilings, wait
from benchmarks.gpu.counting import Counts, counted
from benchmarks.gpu.profiling import Profile, profiled
from bnndp.options import Options
from bnndp.radius import Radius, Search, certified_radius

__all__ = ["Rate", "Share", "radii", "rate", "share"]

SEARCH = Search(attack=False, tolerance=0.01)
_WARM = 256  # images of the first call


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
        """Images a second."""
        return self.images / self.seconds


@dataclass(frozen=True, slots=True)
class Share:
    """What of the ceilings some images reach: counted operations over time in products, and over all time."""

    images: int
    counts: Counts
    profile: Profile
    in_matrix_products: float  # of the flops ceiling, during the products of two matrices
    in_products: float  # the same during all products
    of_flops: float  # over the whole run, at the measured rate of images
    of_bytes: float  # bytes that the operations touch, of the copy's rate, over the whole run
    busy: float  # share of the time in which kernels run, by the profile


def radii(case: Case, device: str, options: Options) -> Radius:
    """The radii of all images of the network's own decisions, back on the host."""
    found = certified_radius(case.network, case.x.to(device), domain=(0, 1), search=SEARCH, options=options)
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
    """Count and profile the radii of the images; ``speed`` is the rate that was measured without either."""
    counts = counted(lambda: radii(case, device, options))
    seen = profiled(lambda: radii(case, device, options), device)
    images = case.x.shape[0]
    every = counts.matrix + counts.vector
    return Share(
        images=images,
        counts=counts,
        profile=seen,
        in_matrix_products=_over(counts.matrix, seen.matrix) / ceilings.flops,
        in_products=_over(every, seen.matrix + seen.vector) / ceilings.flops,
        of_flops=every / images * speed / ceilings.flops,
        of_bytes=counts.bytes / images * speed / ceilings.bytes,
        busy=seen.busy / images * speed,
    )


def _over(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
