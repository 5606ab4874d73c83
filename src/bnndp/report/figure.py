"""An empty figure without a window, and how it gets to the disk: what every picture shares."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from bnndp.errors import CertError, InputError, ModelFileError
from bnndp.files.posterior import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
"""Six colours of Okabe and Ito (2008), which the colour-blind tell apart too."""

_SUFFIXES = (".png", ".svg", ".pdf")
_NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # the same call, the same bytes


def expect_picture(path: Path, *, option: str = "--plot") -> None:
    """Refuse, before any work is done, a place where no picture can be written; ``option`` is what named it."""
    if path.suffix.lower() not in _SUFFIXES:
        got = repr(path.suffix) if path.suffix else "no suffix"
        raise InputError(f"{path}: a picture must end in {', '.join(_SUFFIXES)}, got {got}; change {option}.")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{path}: the folder {path.resolve().parent} does not exist; make it or change {option}.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file and cannot be replaced; change {option}.")
    new_figure(1, 1)  # is matplotlib there?


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches; without pyplot, which would choose a backend and might open a window."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CertError("a picture needs matplotlib, which is not installed; pip install 'bnndp[plot]'.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, *, option: str = "--plot") -> None:
    """Write the picture as a whole or not at all; the same figure always gives the same bytes."""
    from matplotlib import rc_context

    suffix, drawn = path.suffix.lower(), io.BytesIO()
    with rc_context({"svg.hashsalt": "bnndp"}):  # otherwise the names inside are random
        figure.savefig(drawn, format=suffix[1:], dpi=150, metadata=_NO_DATE[suffix])
    try:
        write_whole(path, drawn.getvalue())
    except ModelFileError as error:
        raise InputError(f"{error}; change {option}.") from error
