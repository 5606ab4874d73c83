"""Charts as files: well-formed, whole, in their own colours, and no file of somebody else is lost to them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from support.browser import Browser
from support.run_folders import interval_answer, radius_answer, write_run

from bnndp.cli.main import main
from bnndp.errors import InputError
from bnndp.report.page.document import asset
from bnndp.report.page.page import report_of
from bnndp.report.page.plots import HEAD, Plot, svg_file, write_plots

SVG = "{http://www.w3.org/2000/svg}"
RADII = [radius_answer(0.1, 0.2), radius_answer("nan", 0.0, label=1, decision=0), radius_answer(0.25, "inf")]
INSIDE = [interval_answer([0.0], [1.0], ([0.1], [0.9])), interval_answer([-1.0], [1.5], ([0.0], [1.0]))]
RUNS = {
    "radii": ("radius", RADII, None),
    "capped": ("radius", RADII, {"upper": 0.25}),
    "not attacked": ("radius", [radius_answer(0.1, "nan")], None),
    "nothing certified": ("radius", [radius_answer("nan", "inf")] * 3, None),
    "bounds": ("certify", INSIDE, None),
    "bounds alone": ("certify", [interval_answer([0.0, 0.0], [1.0, 2.0])], None),
    "bounds without end": ("certify", [interval_answer(["-inf"], ["inf"])], None),
}


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    command, answers, options = RUNS[request.param]
    x = np.array([[0.0, 0.0], [1.0, 0.5], [0.5, 1.0]]) if request.param == "radii" else None
    return write_run(tmp_path / "run", command, answers, options=options, x=x)


def texts(drawn: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in drawn.iter(f"{SVG}text")]


def test_every_plot_is_a_file_of_its_own(run: Path) -> None:
    """Well-formed, with its title, its axes and its legend, and nothing that would have to be fetched."""
    plots = report_of(run).plots
    assert len({plot.name for plot in plots}) == len(plots) >= 2
    for plot in plots:
        assert re.fullmatch("[a-z-]+", plot.name)
        text = svg_file(plot)
        drawn = ET.fromstring(text)
        assert drawn.tag == f"{SVG}svg"
        said = texts(drawn)
        assert said[0] == plot.title
        assert {plot.chart.frame.x_label, plot.chart.frame.y_label} <= set(said)
        entries = [text for _, text in plot.keys]
        assert [text for text in said if text in entries] == entries
        assert " ".join(" ".join(said).split()).endswith(plot.note)
        assert not {"script", "image", "use", "a"} & {element.tag.removeprefix(SVG) for element in drawn.iter()}
        assert not re.search(r"url\(|@import|href|light-dark|var\(|NaN|nan|inf\b", text)


def test_what_a_run_has_is_drawn(tmp_path: Path) -> None:
    x = np.array([[0.0, 0.0], [1.0, 0.5], [0.5, 1.0]])
    found = {
        name: [plot.name for plot in report_of(write_run(tmp_path / name, command, answers, x=points)).plots]
        for name, command, answers, points in (
            ("radii", "radius", RADII, x),
            ("bounds", "certify", INSIDE, None),
            ("widths", "certify", [interval_answer([0.0], [1.0])], None),
        )
    }
    assert found == {
        "radii": ["certified-accuracy", "radii", "ratios", "plane"],
        "bounds": ["widths", "tightness"],
        "widths": ["widths", "width-counts"],
    }


def test_a_plot_has_the_classes_of_the_page_and_every_one_has_a_style(run: Path) -> None:
    """What is drawn in the file is what is drawn in the page; nothing is left black for want of a rule."""
    report = report_of(run)
    styled = set(re.findall(r"\.([a-z]+)", str(asset("chart.css"))))
    for plot in report.plots:
        assert plot.chart.content in report.page
        drawn = ET.fromstring(svg_file(plot))
        for path in drawn.iter(f"{SVG}path"):
            assert str(path.get("class")).split()[0] in styled


def test_the_same_run_gives_the_same_files(run: Path) -> None:
    first, second = ([svg_file(plot) for plot in report_of(run).plots] for _ in range(2))
    assert first == second


def a_plot(tmp_path: Path) -> Plot:
    return report_of(write_run(tmp_path / "run", "radius", RADII)).plots[0]


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    plot = a_plot(tmp_path)
    place = tmp_path / "plots" / "certified-accuracy.svg"
    for _ in range(2):
        assert write_plots(tmp_path / "plots", [plot]) == [place]
        assert place.read_text(encoding="utf-8") == svg_file(plot)
    ours(place)  # of an older version, say
    write_plots(tmp_path / "plots", [plot])
    assert place.read_text(encoding="utf-8") == svg_file(plot)


def ours(place: Path) -> Path:
    place.write_text(f"{HEAD}<svg/>")
    return place


NOT_OURS: dict[str, Callable[[Path], object]] = {
    "a file": lambda place: place.write_text("<svg>mine</svg>"),
    "a folder": lambda place: place.mkdir(),
    "a link": lambda place: place.symlink_to(ours(place.with_name("elsewhere"))),
    "a pipe": os.mkfifo,
    "read-only": lambda place: ours(place).chmod(0o444),
}


@pytest.mark.parametrize("kind", NOT_OURS)
def test_what_is_not_ours_is_left_and_said_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing else is written: neither the page nor another plot."""
    run = write_run(tmp_path / "run", "radius", RADII)
    (run / "plots").mkdir()
    NOT_OURS[kind](run / "plots" / "radii.svg")
    before = sorted(run.rglob("*"))
    assert main(["report", str(run)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert str(run / "plots" / "radii.svg") in said
    assert "--no-plots" in said
    assert sorted(run.rglob("*")) == before
    assert main(["report", str(run), "--no-plots"]) == 0


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    plot, named, within = a_plot(tmp_path), tmp_path / "file", tmp_path / "plots" / "mine.svg"
    within.parent.mkdir()
    for place in (named, within):
        place.write_text("mine")
    with pytest.raises(InputError, match="is not a folder"):
        write_plots(named, [plot])
    write_plots(within.parent, [plot])
    assert named.read_text() == within.read_text() == "mine"


def test_a_browser_shows_them_as_they_are(browser: Browser, tmp_path: Path) -> None:
    """No complaint, nothing fetched, no text beyond the edges."""
    x = np.array([[0.0, 0.0], [1.0, 0.5], [0.5, 1.0]])
    runs = [write_run(tmp_path / "radii", "radius", RADII, options={"upper": 0.25}, x=x)]
    runs.append(write_run(tmp_path / "bounds", "certify", INSIDE))
    for run in runs:
        for place in write_plots(run / "plots", report_of(run).plots):
            with browser.page(place.as_uri()) as page:
                assert page.complaints() == []
                assert page.requests() == [place.as_uri()]
                beyond = page.run(
                    "(() => { const all = document.documentElement.getBoundingClientRect();"
                    " return [...document.querySelectorAll('text')].filter((text) => {"
                    " const own = text.getBoundingClientRect(); return own.left < all.left || own.right > all.right"
                    " || own.top < all.top || own.bottom > all.bottom; }).map((text) => text.textContent); })()"
                )
                assert beyond == [], place
