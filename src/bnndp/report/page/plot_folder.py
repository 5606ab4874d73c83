"""The folder of plots beside a page: which files go into it, and which are not ours to replace."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from bnndp.errors import CertError, InputError
from bnndp.files.posterior import write_whole
from bnndp.files.regular import cause_of, open_regular
from bnndp.report.page.plots import HEAD, Plot, svg_file

__all__ = ["expect_plots", "write_plots"]

_INSTEAD = "move it, or give --no-plots"


def expect_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Refuse, before anything is written, a folder or a file in it that is not ours to write."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is not a folder, so that no plots can go there; {_INSTEAD}.")
    for plot in plots:
        _expect_own(_place(folder, plot))


def write_plots(folder: Path, plots: Sequence[Plot]) -> list[Path]:
    """Write each plot as an SVG file into the folder, which is made if need be: the files, in order."""
    expect_plots(folder, plots)
    try:
        folder.mkdir(exist_ok=True)
        for plot in plots:
            write_whole(_place(folder, plot), svg_file(plot).encode("utf-8"))
    except (OSError, CertError) as error:
        said = f"{error}" if isinstance(error, CertError) else f"{folder}: cannot be made: {cause_of(error)}"
        raise InputError(f"{said}; change --out, or give --no-plots.") from error
    return [_place(folder, plot) for plot in plots]


def _place(folder: Path, plot: Plot) -> Path:
    return folder / f"{plot.name}.svg"


def _expect_own(path: Path) -> None:
    """Refuse a file that is there and was not made by ``bnndp report``, or that somebody keeps from being changed."""
    if path.is_symlink():
        raise InputError(f"{path}: is a link, and what it names was not made by bnndp report; {_INSTEAD}.")
    try:
        with open_regular(path) as file:
            own = file.read(len(HEAD)) == HEAD.encode()
        kept = not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    except FileNotFoundError:
        return
    except (OSError, CertError) as error:
        raise InputError(f"{path}: cannot be replaced: {cause_of(error)}; {_INSTEAD}.") from error
    if not own:
        raise InputError(f"{path}: was not made by bnndp report and would be lost; {_INSTEAD}.")
    if kept:
        raise InputError(f"{path}: is read-only and is left as it is; {_INSTEAD}.")
