"""What a picture of a network with one or two inputs is drawn on: its mean over the whole range, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.explorer.session import Session
from bnndp.report.page.charts import Band
from bnndp.report.page.network_curves import band_of
from bnndp.report.page.pixels import field_uri

_SIDE = 60  # pixels of a field
_SAMPLES = 512  # behind each of them


@dataclass(frozen=True, slots=True)
class Backdrop:
    """A band for one input and one output, a picture for two inputs, or nothing."""

    band: Band | None = None
    field: str | None = None  # a data: address
    shown: str = ""  # what the field shows, in words


def mean_at(session: Session, x: Tensor, samples: int = _SAMPLES) -> Tensor:
    """The mean output, or the mean probability of each class, from inside: (points, outputs)."""
    network = session.network
    if network.task == "classification":
        return estimate_softmax(network, x, draw_softmax_noise(network, samples, seed=0)).mean
    return estimate(network, x, draw_noise(network, samples, seed=0)).mean


def backdrop_of(session: Session) -> Backdrop:
    """For networks with one or two inputs what is behind everything else."""
    n = session.network.n_in
    if n == 1 and session.network.n_out == 1:
        return Backdrop(band=band_of(session.network, *session.span[0]))
    return _field(session) if n == 2 else Backdrop()


def _field(session: Session) -> Backdrop:
    (left, right), (low, high) = session.span
    across, upward = (torch.linspace(*ends, _SIDE, dtype=torch.float64) for ends in ((left, right), (high, low)))
    grid = torch.stack(torch.meshgrid(across, upward, indexing="xy"), -1).reshape(-1, 2)  # row by row, from the top
    mean = mean_at(session, grid).numpy()
    if session.network.task == "classification":
        share = mean[:, 0] if mean.shape[1] == 2 else mean.argmax(1) / (mean.shape[1] - 1)
        shown = "the mean probability of class 0" if mean.shape[1] == 2 else "the decision"
    else:
        first = mean[:, 0]
        share, shown = (first - first.min()) / max(float(np.ptp(first)), 1e-300), "the mean of the first output"
    return Backdrop(field=field_uri(share.reshape(_SIDE, _SIDE)), shown=shown)
