"""What ``bnndp certify`` is asked about: boxes of a file, a data set or VNN-LIB files, with decisions in question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bnndp.cli.inputs import Neighbourhood, Regions, balls, faults_of, read_boxes
from bnndp.cli.labelled import Source, has_labels, read_labels, read_published
from bnndp.cli.manner import PLAIN, Manner
from bnndp.cli.origin import Given
from bnndp.cli.vnncomp import read_vnnlib
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior

__all__ = ["Boxes"]


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes that were checked against a network, and where they come from."""

    box: Box
    label: Tensor | None  # (boxes,) of int64: the decisions in question
    given: Given
    files: tuple[Path, ...]  # that they were read from
    source: str  # of all of them, in messages
    rows: bool = True  # whether they are the rows of one source; else there is a file for each

    def names(self) -> Iterator[str]:
        """One a box."""
        return (f"{self.source}#{row}" for row in range(self.box.batch)) if self.rows else map(str, self.files)

    @classmethod
    def of_source(
        cls,
        source: Source,
        network: Posterior,
        around: Neighbourhood,
        label: int | None = None,
        manner: Manner = PLAIN,
    ) -> Boxes:
        """Around the inputs of a file or of a data set, or the boxes of a file; ``label`` is one for all."""
        limit = source.limit
        if source.path is not None:
            regions = read_boxes(source.path, network.input_shape or (), around, limit)
            decides = network.task == "classification"
            found = read_labels(source.path, regions.rows, network.n_out, limit) if decides else None
            if not decides and has_labels(source.path):
                manner.tell(f"{source.path}: its labels are not used: the network is for regression.")
        else:
            x, found = read_published(source, network, manner)
            arrays = {"x": x.numpy()}
            with faults_of(source):
                regions = Regions(balls(arrays["x"], around), arrays, x.shape[0])
        asked = _in_question(str(source), network, regions.box.batch, found, label)
        files = () if source.path is None else (source.path,)
        return cls(regions.box, asked, source.given_as(regions.arrays, asked), files, str(source))

    @classmethod
    def of_vnnlib(
        cls, paths: Sequence[Path], network: Posterior, around: Neighbourhood, label: int | None = None
    ) -> Boxes:
        """One box of each VNN-LIB file."""
        regions = read_vnnlib(paths, network, around)
        asked = _in_question(str(paths[0]), network, regions.box.batch, None, label)
        given = Source(paths[0]).given_as(regions.arrays, asked)
        return cls(regions.box, asked, given, tuple(paths), str(paths[0]), rows=False)


def _in_question(source: str, network: Posterior, count: int, found: Tensor | None, label: int | None) -> Tensor | None:
    """The decisions (count,) that are asked about: those found, or one for all; None where there are none."""
    if label is None:
        return found
    if network.task != "classification":
        raise InputError(f"--label is for classifiers; this network is for {network.task}. Leave it out.")
    if found is not None:
        raise InputError(f"{source}: holds labels y, and --label {label} was given too; use one of the two.")
    if label >= network.n_out:
        raise InputError(f"--label is {label}, but the classes of the network are 0 to {network.n_out - 1}.")
    return torch.full((count,), label)
