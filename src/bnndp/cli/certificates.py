"""``--certificates``: after the answers, what the independent checker proves of each input, as files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from bnndp.cli.messages import Messages

__all__ = ["Certificates", "FolderInRun", "Issuing", "certificate_folder", "expect_checkable"]

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
        after = [*args, "-"][1:]
        alone = [
            word == "--certificates" and follows.startswith("-") for word, follows in zip(args, after, strict=True)
        ]
        return super().parse_args(
            ctx, [f"{word}={_OWN}" if lone else word for word, lone in zip(args, alone, strict=True)]
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
    """The certificates of one model file into a folder."""

    network: Any
    model: Path
    folder: Path
    messages: Messages

    def of_boxes(self, box: Any, label: Any, effort: str) -> dict[str, Any]:
        """The ranges of all outputs, or of all classes with the leads of the label."""
        from bnndp.certificates.issue import Office, interval_claim, probability_claim
        from bnndp.questions.decision import decide

        network = self.network
        office = Office(network, self.model, self.folder, _CELLS[effort])
        if network.task == "regression":
            n = network.n_out
            found = self._written(office.of_boxes(interval_claim(network, box)), box.batch)
            widths = [-(one[:n] + one[n:]).mean().item() for one in found if one is not None]
            told = f", mean width {sum(widths) / len(widths):.6g}" if widths else ""
        else:
            label = decide(network, box.centre) if label is None else label
            found = self._written(office.of_boxes(probability_claim(network, box, label)), box.batch)
            kept = sum(one is not None and bool((one[: network.n_out - 1] > 0).all()) for one in found)
            told = f", the decision proved for {kept}"
        return self._told(found, told)

    def of_radii(self, x: Any, done: Any, domain: Any) -> dict[str, Any]:
        """The decisions on balls, as large as the checker proves them up to the radii."""
        from bnndp.certificates.issue import Office

        office = Office(self.network, self.model, self.folder)
        radii: list[float] = []

        def seen() -> Iterable[Any]:
            for one in office.of_radii(x, done.label, done.radius, domain):
                if one.radius is not None:
                    radii.append(one.radius)
                yield one

        found = self._written(seen(), x.shape[0])
        mean = f", mean radius {sum(radii) / len(found):.6g} (0 where there is none)" if radii else ""
        return self._told(found, mean)

    def _told(self, found: list[Any], more: str) -> dict[str, Any]:
        """The entry of the summary, which is also told in words."""
        count = sum(one is not None for one in found)
        self.messages.table(f"certificates: {count} of {len(found)} in {self.folder}{more}")
        return {"certificates": {"written": count, "folder": str(self.folder)}}

    def _written(self, issued: Iterable[Any], total: int) -> list[Any]:
        """What is proved of each input (None: no certificate); ``index.jsonl`` in the folder says it in full."""
        from bnndp.files.posterior import write_whole

        found, lines = [], []
        with self.messages.progress("certificates", total) as advance:
            for one in issued:
                found.append(None if one.path is None else one.at_least)
                row = {"index": one.index, "certificate": None if one.path is None else one.path.name}
                row |= {"radius": one.radius, "reason": one.reason or None}
                if one.path is not None:
                    row["at_least"] = one.at_least.tolist()
                lines.append(json.dumps(row))
                advance(1)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "index.jsonl", "".join(line + "\n" for line in lines).encode())
        return found
