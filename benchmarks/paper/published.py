"""The figures that the paper prints (Adams, Patane, Lahijanian and Laurenti, ICML 2023), to stand beside ours.

Its networks for these tables are not public, and two things of its code (repository BNN_DP of the first author) matter
for a comparison. Boxes of regression are clipped to inputs >= 0: an interval below zero becomes the point zero, so that
the bounds are those of other, smaller boxes. And the seconds are means over all architectures, on eight cores.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIGURE_1", "TABLE_1A", "TABLE_1B", "TABLE_2", "Interval1D", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: mean certified widths on balls of radius ``eps``, or mean certified radii.

    FL (Berrada et al. 2021) bounds the posterior cut off at 5 and at 3 standard deviations, not the whole one.
    ``convolutions`` (Table 2) have kernels of 4 x 4 and are trained by dropout, the dense layers above by bbb.
    """

    data: str
    hidden: tuple[int, ...]
    bnn_dp: float
    fl_5: float
    fl_3: float
    seconds: float  # that BNN-DP took for one input on eight cores, a mean over all networks on the data set
    eps: float | None = None
    convolutions: int = 0
    kernels: int = 0

    @property
    def conv(self) -> str:
        """The convolutions in the language of ``bnndp train``."""
        return ",".join([f"{self.kernels}x4"] * self.convolutions)


@dataclass(frozen=True, slots=True)
class Interval1D:
    """A panel of Figure 1: a network on 1D noisy sine, an interval, and what FL gives on it."""

    hidden: tuple[int, ...]
    centre: float
    eps: float
    fl_1: tuple[float, float]
    fl_3: tuple[float, float]


def _widths(data: str, seconds: float, *rows: tuple[int, int, float, float, float, float]) -> tuple[Row, ...]:
    return tuple(
        Row(data, (width,) * depth, ours, fl_5, fl_3, seconds, eps) for depth, width, eps, ours, fl_5, fl_3 in rows
    )


def _radii(data: str, seconds: float, *rows: tuple[int, int, float, float, float]) -> tuple[Row, ...]:
    return tuple(Row(data, (width,) * depth, ours, fl_5, fl_3, seconds) for depth, width, ours, fl_5, fl_3 in rows)


TABLE_1A = (
    *_widths(
        "sine2d",
        8.0,
        (1, 64, 1e-2, 0.041, 1.8, 0.8),
        (1, 256, 1e-2, 0.040, 3.0, 1.2),
        (1, 512, 1e-2, 0.039, 6.4, 2.5),
        (2, 64, 1e-3, 0.109, 718.1, 101.1),
        (2, 128, 1e-3, 0.239, 112.2, 20.1),
        (2, 256, 1e-3, 0.376, 599.3, 92.1),
        (3, 64, 5e-4, 0.477, 699.2, 74.8),
        (3, 128, 5e-4, 0.629, 11214.4, 1142.8),
        (3, 256, 5e-4, 14.180, 275408.1, 2882.3),
    ),
    *_widths(
        "kin8nm",
        13.2,
        (1, 64, 1e-2, 0.044, 0.7, 0.3),
        (1, 256, 1e-2, 0.040, 45.4, 24.7),
        (1, 512, 1e-2, 0.041, 12.6, 6.0),
        (2, 64, 1e-3, 0.070, 31.3, 10.8),
        (2, 128, 1e-3, 0.240, 1459.8, 420.9),
        (2, 256, 1e-3, 0.968, 9420.9, 2715.9),
        (3, 64, 5e-4, 0.348, 12638.5, 59304.6),
        (3, 128, 5e-4, 0.964, 433149.4, 232811.6),
        (3, 256, 5e-4, 69.488, 3441470.8, 21877545.4),
    ),
)

TABLE_1B = (
    *_radii(
        "mnist",
        15.2,
        (1, 64, 0.0150, 0.0090, 0.0102),
        (1, 128, 0.0145, 0.0091, 0.0131),
        (1, 256, 0.0137, 0.0082, 0.0090),
        (1, 512, 0.0131, 0.0070, 0.0073),
        (2, 64, 0.0073, 0.0041, 0.0042),
        (2, 128, 0.0062, 0.0028, 0.0035),
        (2, 256, 0.0049, 0.0023, 0.0023),
        (3, 64, 0.0032, 0.0014, 0.0016),
        (3, 256, 0.0018, 0.0009, 0.0009),
    ),
    *_radii(
        "fashion_mnist",
        22.1,
        (1, 64, 0.0128, 0.0077, 0.0080),
        (1, 128, 0.0065, 0.0041, 0.0045),
        (1, 256, 0.0081, 0.0043, 0.0046),
        (1, 512, 0.0092, 0.0044, 0.0048),
        (2, 64, 0.0048, 0.0024, 0.0026),
        (2, 128, 0.0021, 0.0018, 0.0019),
        (2, 256, 0.0032, 0.0016, 0.0016),
        (3, 64, 0.0015, 0.0006, 0.0008),
        (3, 256, 0.0007, 0.0006, 0.0007),
    ),
)

TABLE_2 = (
    Row("fashion_mnist", (64,), 0.00065, 0.00112, 0.00122, 3.7, convolutions=1, kernels=2),
    Row("fashion_mnist", (64,), 0.00061, 0.00109, 0.00117, 3.7, convolutions=2, kernels=2),
    Row("cifar10", (), 0.00007, 0.00009, 0.00010, 1.8, convolutions=2, kernels=4),
    Row("cifar10", (), 0.00011, 0.00019, 0.00021, 1.8, convolutions=3, kernels=3),
)

FIGURE_1 = (
    Interval1D((2048,), 0.7, 0.075, (-1.68, 0.59), (-7.07, 9.31)),
    Interval1D((64, 64), 0.1, 0.025, (0.23, 0.71), (-0.65, 1.54)),
)
