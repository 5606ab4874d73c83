"""``--certificates``: after the answers, what the independent checker proves of each input, as files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["Certificates", "certify_boxes", "certify_radii", "expect_checkable"]

Certificates = Annotated[
    Path | None,
    typer.Option(
        "--certificates",
        metavar="FOLDER",
        help="Write a certificate for every input, as far as bnndp-check proves it; docs/certificates.md.",
    ),
]

_CELLS = {"low": 1, "medium": 8, "high": 64}  # that a box may be cut into, by effort


def expect_checkable(folder: Path | None, norm: str, other: str | None = None) -> None:
    """Refuse what no certificate can be about."""
    if folder is None:
        return
    if norm != "inf":
        raise typer.BadParameter(f"certificates are about boxes; leave out --norm {norm} or --certificates.")
    if other is not None:
        raise typer.BadParameter(f"certificates are about means and decisions; leave out {other} or --certificates.")


def certify_boxes(network: Any, model: Path, box: Any, label: Any, folder: Path, effort: str) -> str:
    """Certificates of boxes: the ranges of all outputs, or of all classes with the leads of the label; a summary."""
    from bnndp.decision import decide
    from bnndp.proofs.issue import Office, interval_claim, probability_claim

    office = Office(network, model, folder, _CELLS[effort])
    if network.task == "regression":
        n = network.n_out
        found = _written(office.of_boxes(interval_claim(network, box)), box.batch, folder)
        widths = [-(one[:n] + one[n:]).mean().item() for one in found if one is not None]
        told = f", mean width {sum(widths) / len(widths):.6g}" if widths else ""
    else:
        label = decide(network, box.centre) if label is None else label
        leads = _written(office.of_boxes(probability_claim(network, box, label)), box.batch, folder)
        kept = sum(one is not None and bool((one[: network.n_out - 1] > 0).all()) for one in leads)
        found, told = leads, f", the decision proved for {kept}"
    return f"certificates: {sum(one is not None for one in found)} of {box.batch} in {folder}{told}"


def certify_radii(network: Any, model: Path, x: Any, done: Any, domain: Any, folder: Path) -> str:
    """Certificates of the decisions on balls, as large as the checker proves them up to the radii; a summary."""
    from bnndp.proofs.issue import Office

    office = Office(network, model, folder)
    radii: list[float] = []

    def seen() -> Iterable[Any]:
        for one in office.of_radii(x, done.label, done.radius, domain):
            if one.radius is not None:
                radii.append(one.radius)
            yield one

    found = _written(seen(), x.shape[0], folder)
    mean = f", mean radius {sum(radii) / len(found):.6g} (0 where there is none)" if radii else ""
    return f"certificates: {len(radii)} of {len(found)} in {folder}{mean}"


def _written(issued: Iterable[Any], total: int, folder: Path) -> list[Any]:
    """What is proved of each input (None: no certificate); ``index.jsonl`` in the folder says it in full."""
    from bnndp.cli.progress import show_progress
    from bnndp.files import write_whole

    found, lines = [], []
    with show_progress("certificates", total) as advance:
        for one in issued:
            found.append(None if one.path is None else one.at_least)
            row = {"index": one.index, "certificate": None if one.path is None else one.path.name}
            row |= {"radius": one.radius, "reason": one.reason or None}
            if one.path is not None:
                row["at_least"] = one.at_least.tolist()
            lines.append(json.dumps(row))
            advance(1)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "index.jsonl", "".join(line + "\n" for line in lines).encode())
    return found
