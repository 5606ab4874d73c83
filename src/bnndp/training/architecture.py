"""Which layers a network in training has: the language of convolutions, and the steps that the options ask for.

The language names one layer after another, parted by commas: ``6x5`` is a convolution of 6 channels with kernels of
5 x 5, ``6x5s2p2`` one with stride 2 and padding 2, ``pool2`` average pooling of 2 x 2 windows, ``max2`` max pooling.
The activation follows each convolution, pooling comes after it, and dropout before the next layer of weights.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from bnndp.activations import ACTIVATIONS
from bnndp.activations.activation import Activation
from bnndp.errors import InputError
from bnndp.layers import AveragePool, Dropout, Flatten, MaxPool
from bnndp.layers.convolution import window_shape
from bnndp.training.forward import Fixed, Stage

NAMED_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "piecewise_affine")
_CONVOLUTION = re.compile(r"([1-9]\d{0,3})x([1-9]\d?)(?:s([1-9]\d?))?(?:p(\d{1,2}))?")
_POOLING = re.compile(r"(pool|max)([1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Convolution:
    """``channels`` x ``kernel`` with its stride and padding."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Pooling:
    """Windows of ``size`` x ``size`` that do not overlap."""

    size: int
    largest: bool  # max pooling, else the average


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The shape of a layer of weights, and what surrounds it."""

    shape: tuple[int, ...]  # of the weights
    stage: Stage
    fixed: bool  # without variance

    @property
    def fan_in(self) -> int:
        """Number of weights per output."""
        return math.prod(self.shape[1:])


def parse(text: str) -> tuple[Convolution | Pooling, ...]:
    """The layers that ``text`` names.

    >>> parse("6x5p2,pool2")
    (Convolution(channels=6, kernel=5, stride=1, padding=2), Pooling(size=2, largest=False))
    """
    found: list[Convolution | Pooling] = []
    for item in text.split(","):
        convolution, pooling = _CONVOLUTION.fullmatch(item), _POOLING.fullmatch(item)
        if convolution is not None:
            channels, kernel, stride, padding = convolution.groups()
            found.append(Convolution(int(channels), int(kernel), int(stride or 1), int(padding or 0)))
        elif pooling is not None:
            found.append(Pooling(int(pooling[2]), pooling[1] == "max"))
        else:
            raise InputError(
                f"conv has {item!r}; its layers look like 6x5, 6x5s2p2, pool2 or max2, with commas between."
            )
    if isinstance(found[0], Pooling):
        raise InputError(f"conv begins with {text.partition(',')[0]}; the first layer must be a convolution.")
    return tuple(found)


def layer_specs(  # noqa: PLR0913 (all that decides the layers)
    n_in: int,
    hidden: tuple[int, ...],
    n_out: int,
    *,
    activation: str = "relu",
    conv: str = "",
    image: tuple[int, int, int] | None = None,
    dropout: Dropout | None = None,
    dropout_last: bool = False,
    gaussian: str = "all",
) -> tuple[LayerSpec, ...]:
    """The layers of weights, first to last.

    ``gaussian`` says which have variances: all, none, or dense: only those that are not convolutions. Dropout comes
    after every layer without variances but the last; with ``dropout_last`` after the last of these alone.
    """
    phi = ACTIVATIONS[activation]()
    found, n_in = _convolutions(n_in, conv, image, phi, fixed=gaussian != "all") if conv else ([], n_in)
    for width in hidden:
        found.append(LayerSpec((width, n_in), Stage((phi,)), gaussian == "none"))
        n_in = width
    if dropout is not None:
        wanted = [k for k, spec in enumerate(found) if spec.fixed]
        for k in wanted[-1:] if dropout_last else wanted:
            found[k] = _dropped(found[k], dropout)
    if conv:  # from images to vectors
        last = max(k for k, spec in enumerate(found) if len(spec.shape) == 4)
        found[last] = _followed(found[last], Flatten())
    return (*found, LayerSpec((n_out, n_in), Stage(), gaussian == "none"))


def _convolutions(
    n_in: int, conv: str, image: tuple[int, int, int] | None, phi: Activation, *, fixed: bool
) -> tuple[list[LayerSpec], int]:
    """The convolutions, each with its activation and pooling, and how many values come out of the last."""
    if image is None or math.prod(image) != n_in:
        raise InputError(
            f"conv={conv!r} needs images, but the inputs have {n_in} values and image is {image}; "
            "give image=(channels, rows, columns) of a set of images, or leave conv out."
        )
    found: list[LayerSpec] = []
    shape: tuple[int, ...] = image
    for item in parse(conv):
        try:
            if isinstance(item, Pooling):
                record: AveragePool | MaxPool = (MaxPool if item.largest else AveragePool)(item.size)
                shape = record.out_shape(shape)
                found[-1] = _followed(found[-1], record)
                continue
            step = Stage((phi,), (item.stride,) * 2, (item.padding,) * 2, None if found else image)
            kernel = (item.kernel, item.kernel)
            rows, columns = window_shape(shape, kernel, step.stride, step.padding)
        except InputError as error:
            raise InputError(f"conv={conv!r} does not fit images of shape {image}: {error}") from error
        found.append(LayerSpec((item.channels, shape[0], *kernel), step, fixed))
        shape = (item.channels, rows, columns)
    return found, math.prod(shape)


def _dropped(spec: LayerSpec, dropout: Dropout) -> LayerSpec:
    """With dropout after it; of units where there are no channels."""
    return _followed(spec, dropout if len(spec.shape) == 4 else replace(dropout, channels=False))


def _followed(spec: LayerSpec, record: Fixed) -> LayerSpec:
    return replace(spec, stage=replace(spec.stage, after=(*spec.stage.after, record)))
