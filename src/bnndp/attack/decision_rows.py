r"""What a decision claims, as rows: the decision c holds where every row has a mean that is not negative.

The decision at x is :math:`\arg\min_k\sum_i L_{ki}\,\mathbb E\,p_i(x)` for a matrix L of losses (the paper's footnote
on the weighted classification loss; without one :math:`L=1-I`, the arg max of :math:`\mathbb E\,p`). It is c where

.. math:: A_k\cdot\mathbb E\,p(x)\ge 0\quad\text{for all }k\ne c,\qquad A_k=L_k-L_c .
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.errors import InputError


def decision_rows(label: Tensor, classes: int, losses: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the rows whose means are all non-negative exactly where the decision is the label.

    Args:
        label: The decision c of each input, ``(batch,)``.
        classes: Number of classes.
        losses: Losses L of misclassification, ``(classes, classes)``, decision by true class; ones off the diagonal if
            not given.

    Returns:
        The rows ``L_k - L_c`` for all classes k but c, ``(batch, classes - 1, classes)``, and those k,
        ``(batch, classes - 1)``.

    Examples:
        >>> decision_rows(torch.tensor([1]), 3)[0].tolist()
        [[[-1.0, 1.0, 0.0], [0.0, 1.0, -1.0]]]
    """
    if classes < 2:
        raise InputError(f"a decision needs at least 2 classes, got a network with {classes} output.")
    if label.ndim != 1 or label.is_floating_point() or label.is_complex() or label.dtype == torch.bool:
        raise InputError(f"label must be one integer for each input, got {label.dtype} of shape {tuple(label.shape)}.")
    wrong = (label < 0) | (label >= classes)
    if wrong.any():
        at = int(wrong.nonzero()[0, 0])
        raise InputError(f"label {at} is {int(label[at])}, but the classes are 0 to {classes - 1}.")
    matrix = _losses(losses, classes).to(label.device)
    others = torch.arange(classes - 1, device=label.device)
    others = others + (others >= label[:, None])  # (batch, classes - 1)
    return matrix[others] - matrix[label][:, None], others


def _losses(given: Tensor | None, classes: int) -> Tensor:
    """The matrix of losses in float64: (classes, classes)."""
    if given is None:
        return 1 - torch.eye(classes, dtype=torch.float64)
    losses = torch.as_tensor(given, dtype=torch.float64)
    if losses.shape != (classes, classes):
        raise InputError(f"losses must be ({classes}, {classes}), decision by true class, got {tuple(losses.shape)}.")
    bad = ~losses.isfinite()
    if bad.any():
        k, i = bad.nonzero()[0].tolist()
        raise InputError(f"losses[{k}, {i}] is {losses[k, i].item()}; losses must be finite.")
    return losses
