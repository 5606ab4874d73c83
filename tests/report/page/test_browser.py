"""The page in a real browser: it loads without a complaint, sorts, filters, turns pages, can be read in the dark."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.browser import Browser, Page
from support.run_folders import interval_answer, page_of, radius_answer, write_run

from bnndp.report.page.outcome import Radii, outcome_of
from bnndp.report.page.record import read_record

NASTY = "</script></title><script>window.injected = 1</script><img src=x onerror='window.injected = 1'>\"'&"
ROWS = 10_000


def written(folder: Path) -> str:
    """The address of the page of a run."""
    place = folder / "report.html"
    place.write_text(page_of(folder), encoding="utf-8")
    return place.as_uri()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 radii, some of them nothing, some inputs wrong."""
    rng = np.random.default_rng(0)
    answers = [radius_answer(0.05, 0.09)] * 5  # exactly at radii that are asked about
    answers += [radius_answer("nan", 0.07, label=1, decision=2)] * 5  # wrong at the input, whatever the attack says
    for radius, label, luck in zip(
        rng.uniform(0, 0.1, ROWS - 10), rng.integers(0, 10, ROWS - 10), rng.uniform(0, 1, ROWS - 10), strict=True
    ):
        if luck < 0.1:
            answers.append(radius_answer("nan", 0.0, label=int(label), decision=int(label + 1) % 10))
        else:
            answers.append(
                radius_answer(float(radius), float(radius * (1 + luck)) if luck < 0.9 else "inf", label=int(label))
            )
    folder = write_run(tmp_path_factory.mktemp("large") / "run", "radius", answers)
    written(folder)
    return folder


@pytest.fixture
def address(large: Path) -> str:
    """That of its page."""
    return (large / "report.html").as_uri()


@pytest.fixture
def found(large: Path) -> Radii:
    outcome = outcome_of(read_record(large))
    assert isinstance(outcome, Radii)
    return outcome


def cells(page: Page, column: int) -> list[str]:
    return page.run(f"[...document.querySelectorAll('#rows tbody tr')].map((row) => row.cells[{column}].textContent)")


def choose(page: Page, identity: str, value: object) -> None:
    page.run(
        f"(() => {{ const field = document.getElementById('{identity}'); field.value = {json.dumps(str(value))};"
        " field.dispatchEvent(new Event('input')); field.dispatchEvent(new Event('change')); })()"
    )


def text(page: Page, identity: str) -> str:
    return page.run(f"document.getElementById('{identity}').textContent")


def sort(page: Page, column: int) -> None:
    page.run(f"document.querySelectorAll('#rows th button')[{column}].click()")


def test_it_loads_without_a_complaint_and_asks_for_nothing(browser: Browser, address: str) -> None:
    with browser.page(address) as page:
        assert page.complaints() == []
        assert page.requests() == [address]
        assert len(cells(page, 0)) == 25
        assert text(page, "count") == "1 to 25 of 10,000 inputs"


def test_a_complaint_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    place = tmp_path / "bad.html"
    place.write_text("<!doctype html><script>nothing.there()</script><img src='missing.png'>")
    with browser.page(place.as_uri()) as page:
        page.wait("document.images[0].complete")
        assert any("nothing is not defined" in complaint for complaint in page.complaints())
        assert len(page.requests()) == 2


def test_columns_sort_either_way_and_what_is_missing_comes_last(browser: Browser, found: Radii, address: str) -> None:
    known = np.sort(found.radius[~np.isnan(found.radius)])
    with browser.page(address) as page:
        sort(page, 4)
        assert np.allclose([float(cell) for cell in cells(page, 4)], known[:25], rtol=1e-4)
        assert page.run("document.querySelectorAll('#rows th')[4].getAttribute('aria-sort')") == "ascending"
        sort(page, 4)
        assert np.allclose([float(cell) for cell in cells(page, 4)], known[::-1][:25], rtol=1e-4)
        assert page.run("document.querySelectorAll('#rows th')[4].getAttribute('aria-sort')") == "descending"
        page.run("document.getElementById('page-last').click()")
        assert set(cells(page, 4)) == {"nothing"}
        assert text(page, "page-number") == "page 400 of 400"
        sort(page, 0)
        assert cells(page, 0) == [str(index) for index in range(25)]
        assert page.complaints() == []


def test_filters_keep_what_passes_all_of_them(browser: Browser, found: Radii, address: str) -> None:
    expected = int(((found.label == 3) & (found.radius >= 0.05)).sum())
    with browser.page(address) as page:
        choose(page, "filter-1", 3)
        assert set(cells(page, 1)) == {"3"}
        assert f"of {int((found.label == 3).sum()):,} that pass, of 10,000 inputs" in text(page, "count")
        choose(page, "filter-which", 4)
        choose(page, "filter-side", "least")
        choose(page, "filter-limit", 0.05)
        assert f"of {expected:,} that pass" in text(page, "count")
        assert all(float(cell) >= 0.05 for cell in cells(page, 4))
        choose(page, "filter-limit", 7)
        assert text(page, "count") == "none of 10,000 inputs"
        assert cells(page, 0) == []
        choose(page, "filter-limit", "")
        choose(page, "filter-1", "")
        assert text(page, "count") == "1 to 25 of 10,000 inputs"
        assert page.complaints() == []


def test_the_verdicts_at_a_radius_are_those_of_the_run(browser: Browser, found: Radii, address: str) -> None:
    with browser.page(address) as page:
        for eps in (0.0, 0.02, 0.05, 0.09):
            verdicts = [verdict.value for verdict in found.verdicts(eps)]
            expected = Counter(verdicts)
            choose(page, "radius", eps)
            for kind in ("certified", "undecided", "falsified"):
                assert int(text(page, f"count-{kind}").replace(",", "")) == expected[kind]
            assert text(page, "head-certified").replace(",", "") == str(expected["certified"])
            assert float(text(page, "head-eps")) == eps
            assert cells(page, 3) == verdicts[:25]


def test_the_page_opens_as_it_was_written(browser: Browser, large: Path, address: str) -> None:
    """What the script computes for the radius that the page opens with is what stands in the page without it."""
    source = (large / "report.html").read_text(encoding="utf-8")
    with browser.page(address) as page:
        for kind in ("certified", "undecided", "falsified"):
            for part in ("count", "percent"):
                still = re.search(rf'id="{part}-{kind}">([^<]*)<', source)
                assert still is not None
                assert text(page, f"{part}-{kind}") == still[1]


def test_a_radius_that_may_be_more_stays_so_when_the_table_is_sorted(browser: Browser, tmp_path: Path) -> None:
    answers = [radius_answer(0.1, 0.2), radius_answer(0.25) | {"capped": True}, radius_answer(0.05, 0.2)]
    with browser.page(written(write_run(tmp_path / "run", "radius", answers))) as page:
        assert cells(page, 4) == ["0.1", "≥ 0.25", "0.05"]
        sort(page, 4)
        assert cells(page, 4) == ["0.05", "0.1", "≥ 0.25"]
        choose(page, "filter-which", 4)
        choose(page, "filter-limit", 0.2)
        assert cells(page, 4) == ["≥ 0.25"]
        assert page.complaints() == []


def test_a_key_sorts_too(browser: Browser, address: str) -> None:
    with browser.page(address) as page:
        page.run("document.querySelectorAll('#rows th button')[5].focus()")
        page.press("Enter", 13, "\r")
        assert page.run("document.querySelectorAll('#rows th')[5].getAttribute('aria-sort')") == "ascending"


_CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const colour = (value) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = value; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const linear = (v) => v <= 0.03928 * 255 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => { const [r, g, b] = rgb.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (element) => { for (let at = element; at; at = at.parentElement) {
    const found = colour(getComputedStyle(at).backgroundColor); if (found[3] === 255) return found; }
    return [255, 255, 255, 255]; };
  const worst = [];
  const texts = 'p, li, dt, dd, td, th, th button, h1, h2, h3, summary, figcaption, label, svg text, code';
  for (const element of document.querySelectorAll(texts)) {
    if (!element.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), svg = element.namespaceURI.endsWith('svg');
    const front = light(colour(svg ? style.fill : style.color).slice(0, 3)), back = light(behind(element).slice(0, 3));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) worst.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return worst.slice(0, 5);
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read_in_light_and_dark(browser: Browser, address: str, dark: bool) -> None:
    """By the ratio of contrast that WCAG asks for, 4.5."""
    with browser.page(address, dark=dark) as page:
        assert page.run(_CONTRAST) == []
        background = page.run("getComputedStyle(document.body).backgroundColor")
        numbers = [float(number) for number in re.findall(r"[0-9.]+", background)]
        assert (max(numbers[:3]) < 60) is dark


def test_the_button_changes_the_theme_and_says_what_it_does(browser: Browser, address: str) -> None:
    with browser.page(address) as page:
        before = page.run("getComputedStyle(document.body).backgroundColor")
        assert text(page, "theme") == "Dark"
        page.run("document.getElementById('theme').click()")
        assert page.run("getComputedStyle(document.body).backgroundColor") != before
        assert page.run("document.getElementById('theme').getAttribute('aria-label')") == "Show in light colours"
        assert page.run(_CONTRAST) == []
        page.run("document.getElementById('theme').click()")
        assert page.run("getComputedStyle(document.body).backgroundColor") == before


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, address: str) -> None:
    with browser.page(address, width=390, height=844) as page:
        assert page.run("document.documentElement.scrollWidth") == 390


def test_what_a_reader_hears_has_names(browser: Browser, address: str) -> None:
    """Every chart, field and button has a name, every section a title, and no identity is given twice."""
    with browser.page(address) as page:
        charts = page.run(
            "[...document.querySelectorAll('svg[role=img]')].map((svg) => svg.getAttribute('aria-label'))"
        )
        assert len(charts) >= 3
        assert all(len(name) > 15 for name in charts)
        unnamed = page.run(
            "[...document.querySelectorAll('input, select')].filter((f) => f.labels.length === 0).map((f) => f.id)"
        )
        assert unnamed == []
        assert page.run("[...document.querySelectorAll('button')].every((b) => b.textContent.trim() !== '')")
        assert page.run(
            "[...document.querySelectorAll('section')]"
            ".every((s) => document.getElementById(s.getAttribute('aria-labelledby')))"
        )
        identities = page.run("[...document.querySelectorAll('[id]')].map((element) => element.id)")
        assert len(identities) == len(set(identities))


def test_it_prints(browser: Browser, address: str) -> None:
    with browser.page(address, dark=True) as page:
        assert page.pdf().startswith(b"%PDF")


def test_nothing_of_a_hostile_run_runs(browser: Browser, tmp_path: Path) -> None:
    made = {"command_line": NASTY, "model": {"path": NASTY, "network": NASTY}, "inputs": {"dataset": NASTY}}
    answers = [interval_answer([0.0], [1.0], method=f"{NASTY}{number % 2}") for number in range(40)]
    folder = write_run(tmp_path / "run", "certify", answers, made=made, options={NASTY: NASTY}, stages=(NASTY,))
    with browser.page(written(folder)) as page:
        method = page.run("[...document.querySelectorAll('#rows th')].findIndex((th) => th.textContent === 'method')")
        sort(page, method)
        choose(page, f"filter-{method}", f"{NASTY}1")
        assert len(cells(page, 0)) == 20
        assert cells(page, method)[0] == f"{NASTY}1"
        assert page.run("typeof window.injected") == "undefined"
        assert page.run("document.images.length") == 0
        assert page.complaints() == []


def test_the_policy_stops_what_escaping_would_have_missed(browser: Browser, tmp_path: Path) -> None:
    """A page into which a script was put by force does not run it."""
    folder = write_run(tmp_path / "run", "radius", [radius_answer(0.1)])
    place = folder / "report.html"
    forced = "<script>window.injected = 1</script><img src=x onerror='window.injected = 1'></main>"
    place.write_text(page_of(folder).replace("</main>", forced), encoding="utf-8")
    with browser.page(place.as_uri()) as page:
        page.wait("document.images[0].complete")
        assert page.run("typeof window.injected") == "undefined"
        assert any("Content Security Policy" in complaint for complaint in page.complaints())
