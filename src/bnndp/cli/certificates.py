"""``--certificates``: after the answers, what the independent checker proves of each input, as files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from bnndp.certificates.issue import Issued
    from bnndp.cli.messages import Messages

_OWN = ""  # the folder of the run
_FOLDER = "certificates"  # its name there

Certificates = Annotated[
    str | None,
    typer.Option(
        "--certificates",
        metavar="[FOLDER]",
        help="Write a certificate for every input, as far as bnndp-check proves it; without FOLDER into that of --run; "
        "docs/certificates.md.",
    ),
]

_CELLS = {"low": 1, "medium": 8, "high": 64}  # that a box may be cut into, by effort


class FolderInRun(typer.core.TyperCommand):
    """A command whose --certificates may stand alone, before another option or at the end."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the option an empty value where it stands alone."""
        pairs = zip(args, [*args, "-"][1:], strict=True)
        alone = (word == "--certificates" and after.startswith("-") for word, after in pairs)
        return super().parse_args(
            ctx, [f"{word}={_OWN}" if one else word for word, one in zip(args, alone, strict=True)]
        )


def certificate_folder(given: str | None, run: Path | None) -> Path | None:
    """Where the certificates go; None: there are to be none."""
    if given != _OWN:
        return None if given is None else Path(given)
    if run is None:
        raise typer.BadParameter("--certificates without a folder belongs to --run; give one of the two folders.")
    return run / _FOLDER


def expect_checkable(folder: Path | None, norm: str, other: str | None = None) -> None:
    """Refuse what no certificate can be about."""
    if folder is None:
        return
    if norm != "inf":
        raise typer.BadParameter(f"certificates are about boxes; leave out --norm {norm} or --certificates.")
    if other is not None:
        raise typer.BadParameter(f"certificates are about means and decisions; leave out {other} or --certificates.")


@dataclass(frozen=True, slots=True)
class Issuing:
    """The certificates of one model file into a folder, as long as there is time."""

    network: Any
    model: Path
    folder: Path
    messages: Messages
    until: float  # on the monotonic clock

    def of_boxes(self, box: Any, label: Any, effort: str) -> dict[str, Any]:
        """The ranges of all outputs, or of all classes with the leads of the label; the entry of the summary."""
        from bnndp.certificates.issue import Office, interval_claim, probability_claim
        from bnndp.questions.decision import decide

        network, n = self.network, self.network.n_out
        office = Office(network, self.model, self.folder, _CELLS[effort])
        if network.task == "regression":
            found = self._written(office.of_boxes(interval_claim(network, box)), box.batch)
            widths = [-(one.at_least[:n] + one.at_least[n:]).mean().item() for one in found]
            return self._told(found, box.batch, f", mean width {sum(widths) / len(widths):.6g}" if widths else "")
        label = decide(network, box.centre) if label is None else label
        found = self._written(office.of_boxes(probability_claim(network, box, label)), box.batch)
        decided = sum(bool((one.at_least[: n - 1] > 0).all()) for one in found)
        return self._told(found, box.batch, f", the decision proved for {decided}")

    def of_radii(self, x: Any, done: Any, domain: Any) -> dict[str, Any]:
        """The decisions on balls, as large as the checker proves them up to the radii; the entry of the summary."""
        from bnndp.certificates.issue import Office

        issued = Office(self.network, self.model, self.folder).of_radii(x, done.label, done.radius, domain)
        found = self._written(issued, x.shape[0])
        mean = sum(one.radius for one in found) / x.shape[0]
        return self._told(found, x.shape[0], f", mean radius {mean:.6g} (0 where there is none)" if found else "")

    def _told(self, found: list[Issued], total: int, more: str) -> dict[str, Any]:
        self.messages.table(f"certificates: {len(found)} of {total} in {self.folder}{more}")
        return {"certificates": {"written": len(found), "folder": str(self.folder)}}

    def _written(self, issued: Iterator[Issued], total: int) -> list[Any]:
        """The certificates that there are; ``index.jsonl`` in the folder says of every input what became of it."""
        from bnndp.files.posterior import write_whole

        found, lines = [], []
        with self.messages.progress("certificates", total) as advance:
            for index in range(total):
                one = next(issued) if time.monotonic() < self.until else None
                row: dict[str, Any] = {
                    "index": index,
                    "certificate": None,
                    "radius": None,
                    "reason": "the time is over",
                }
                if one is not None:
                    row |= {"radius": one.radius, "reason": one.reason or None}
                if one is not None and one.path is not None:
                    found.append(one)
                    row |= {"certificate": one.path.name, "at_least": one.at_least.tolist()}
                lines.append(json.dumps(row) + "\n")
                advance(1)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "index.jsonl", "".join(lines).encode())
        return found
