"""The tables of ``make tightness``, on a terminal and as Markdown: the same headings and rows for both."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.tightness.layers import Step
from benchmarks.tightness.sources import ALL, Source

__all__ = ["Section", "markdown", "sections"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title and a remark above it."""

    title: str
    remark: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def table(self) -> Table:
        """For a terminal."""
        table = Table(*self.headings, title=self.title, caption=self.remark)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a file."""
        remark = textwrap.fill(self.remark, 116)
        lines = [f"## {self.title}", "", remark, "", _line(self.headings), _line(["---"] * len(self.headings))]
        return "\n".join([*lines, *(_line(row) for row in self.rows), ""])


def sections(results: Mapping[str, Sequence[Row]]) -> list[Section]:
    """The tables of all parts that were measured."""
    makers: tuple[tuple[str, Callable[[Sequence[Row]], list[Section]]], ...] = (
        ("regression", _regression),
        ("classification", _classification),
        ("layers", _layers),
        ("widening", _widening),
    )
    return [section for name, make in makers if results.get(name) for section in make(results[name])]


def markdown(results: Mapping[str, Any]) -> str:
    """The whole page."""
    head = [
        "# Tightness, and where it is lost",
        "",
        f"Written by `{results['command']}`; the sources are defined in [tightness.md](../tightness.md). A share is",
        "the part of the gap between the certified result and the one from inside that disappears when this one bound",
        "is replaced by its true value at the worst input found. Shares act on each other and need not add up to",
        "100 %; *all* replaces every one of them at once and says how much of the gap they explain together.",
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(section.markdown() for section in sections(results))


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _columns(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """The sources that any of the rows has, in their order, and all of them together."""
    present = {name for shares in rows for name in shares}
    return [name for name in (*(source.value for source in Source), ALL) if name in present]


def _shares(shares: Mapping[str, float], columns: Sequence[str]) -> list[str]:
    """In per cent; a source that a network does not have is left empty."""
    return [str(round(100 * shares[name])) if name in shares else "" for name in columns]


def _regression(rows: Sequence[Row]) -> list[Section]:
    columns = _columns(row["breakdown"]["shares"] for row in rows)
    results = Section(
        "Regression: widths",
        f"Certified width of E f(x) on balls of radius eps, one pass, means over {rows[0]['boxes']} balls. Point gap: "
        "the certified width at the centres themselves. Paper: the width it printed for its own network of that size.",
        ["network", "eps", "certified", "from inside", "ratio", "point gap", "paper", "leading source"],
        [
            [
                row["name"], f"{row['eps']:g}", f"{row['width']:.3g}",
                f"{row['inside']:.3g} ± {row['inside_error']:.0e}", f"{row['ratio']:.3f}", f"{row['point_gap']:.2e}",
                "" if row["paper"] is None else f"{row['paper']:g}", row["breakdown"]["leading"],
            ]
            for row in rows
        ],
    )  # fmt: skip
    shares = Section(
        "Regression: shares of the gap, %",
        "Of the gap certified width less range from inside, over the first balls of each network.",
        ["network", "gap", *columns],
        [
            [
                row["name"],
                f"{row['breakdown']['certified'] - row['breakdown']['inside']:.2e}",
                *_shares(row["breakdown"]["shares"], columns),
            ]
            for row in rows
        ],
    )
    return [results, shares]


def _classification(rows: Sequence[Row]) -> list[Section]:
    results = Section(
        "Classification: radii and leads",
        "Means over the images of the network's own decisions, pixels in [0, 1]. Lead: of E softmax of the decision "
        "over the next class, certified and at the worst input found, on the ball of radius eps and at the image.",
        [
            "network", "images", "certified radius", "attack", "mean ratio", "eps", "lead on ball", "inside",
            "lead at image", "inside", "leading on ball", "leading at image",
        ],
        [
            [
                row["name"], str(row["images"]), f"{row['radius']:.4f}", f"{row['attack']:.4f}", f"{row['ratio']:.3f}",
                f"{row['eps']:g}", f"{row['on_ball']['certified']:.4f}", f"{row['on_ball']['inside']:.4f}",
                f"{row['at_point']['certified']:.4f}", f"{row['at_point']['inside']:.4f}", row["on_ball"]["leading"],
                row["at_point"]["leading"],
            ]
            for row in rows
        ],
    )  # fmt: skip
    found = [results]
    for key, where in (("on_ball", "on the ball"), ("at_point", "at the image")):
        columns = _columns(row[key]["shares"] for row in rows)
        found.append(
            Section(
                f"Classification: shares of the gap {where}, %",
                "Of the gap lead at the worst input found less certified lead.",
                ["network", "gap", *columns],
                [
                    [
                        row["name"],
                        f"{row[key]['inside'] - row[key]['certified']:.2e}",
                        *_shares(row[key]["shares"], columns),
                    ]
                    for row in rows
                ],
            )
        )
    return found


def _layers(rows: Sequence[Row]) -> list[Section]:
    steps = [step.value for step in Step]
    return [
        Section(
            "Other layers: radius : attack, as certified and without one step",
            "Means over the images, one pass. Each column replaces one step of the proof by what it is in truth, or "
            "nearly: variances on the ball by those certified at the image (growth), or by sampled ones at the image "
            "(variance); the leads by those of draws (law); the means of the margins by those of an attack "
            "(relaxation).",
            ["network", "images", "attack", "certified at 0", "radius : attack", *(f"no {step}" for step in steps)],
            [
                [
                    row["name"], str(row["images"]), f"{row['attack']:.4f}", f"{row['share']:.2f}",
                    f"{row['certified']:.3f}", *(f"{row[step]:.3f}" for step in steps),
                ]
                for row in rows
            ],
        )
    ]  # fmt: skip


def _widening(rows: Sequence[Row]) -> list[Section]:
    measured = [row for row in rows if "factor" not in row]
    columns = _columns(row["shares"] for row in measured)
    columns = [name for name in columns if name not in ("region", "planes 1", "planes 2")]  # there is no region
    gaps = Section(
        "Widening: the gap at single points, two hidden layers",
        "Means over networks and points; shares of the gap in %, of the first network.",
        ["family", "width", "predictive sd", "point gap", "gap / sd", *columns],
        [
            [
                row["family"], str(row["width"]), f"{row['std']:.4f}", f"{row['point_gap']:.3e}",
                f"{row['point_gap'] / row['std']:.4f}", *_shares(row["shares"], columns),
            ]
            for row in measured
        ],
    )  # fmt: skip
    factors = Section(
        "Widening: factors",
        "From the narrowest to the widest network; at equal predictive variance the point gap should not grow by more "
        "than 2.",
        ["family", "widths", "factor of the gap", "factor of gap / sd", "grows most"],
        [
            [
                row["family"],
                " to ".join(map(str, row["widths"])),
                f"{row['factor']:.2f}",
                f"{row['factor_per_std']:.2f}",
                row["grows_most"] or "none",
            ]
            for row in rows
            if "factor" in row
        ],
    )
    return [gaps, factors]
