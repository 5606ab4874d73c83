"""The explorer in a real browser: it answers, follows the mouse, and claims nothing when it cannot answer."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

import pytest
import torch
from support.browser import Browser, Page

from bnndp.explorer.server import Explorer, open_page
from bnndp.explorer.session import Session
from bnndp.files.posterior import load

MOONS, SINE = (
    resources.files("bnndp.data.demo") / name for name in ("moons_1x32.safetensors", "sine1d_2x32.safetensors")
)


@contextmanager
def served(session: Session) -> Iterator[str]:
    """An explorer in a thread, by its address."""
    explorer = Explorer(session)
    thread = threading.Thread(target=explorer.serve)
    thread.start()
    try:
        yield explorer.address
    finally:
        explorer.stop()
        thread.join(20)


def rests(page: Page) -> str:
    """What is proved, once the attack has been tried too."""
    page.wait("document.getElementById('state').textContent.startsWith('bounds and attack')")
    return page.run("document.getElementById('sentence').textContent")


def put(page: Page, identity: str, value: object) -> None:
    """Enter a value, and wait until the answer to the one before is gone."""
    page.run(
        "(() => { document.getElementById('state').textContent = '';"
        f" const field = document.getElementById('{identity}');"
        f" field.value = '{value}'; field.dispatchEvent(new Event('input')); }})()"
    )


@pytest.fixture(scope="module")
def moons() -> Iterator[str]:
    x = torch.tensor([[-1.4, 0.4], [1.0, -0.4]], dtype=torch.float64)
    with served(Session("moons", load(str(MOONS)), x, torch.tensor([0, 1]), (-2.0, 3.0))) as address:
        yield address


def test_the_plane_is_explored_by_radius_and_by_mouse(browser: Browser, moons: str) -> None:
    with browser.page(moons) as page:
        put(page, "eps", 0.1)
        assert rests(page).startswith("Certified. At every input within 0.1 the class is 0")
        put(page, "eps", 2.4)
        assert rests(page).startswith("Falsified. Within 2.4 an attack found an input at which class 1 is ahead")
        assert page.run("document.querySelectorAll('.dots.witness').length") == 1
        put(page, "eps", 0.1)
        rests(page)
        put(page, "index", 1)
        assert "the class is 1" in rests(page)
        box = page.run("((b) => [b.x, b.y, b.width])(document.querySelector('#view svg').getBoundingClientRect())")
        unit = box[2] / 460
        page.run("document.getElementById('state').textContent = ''")
        page.mouse("mousePressed", box[0] + 200 * unit, box[1] + 100 * unit, down=True)
        page.mouse("mouseMoved", box[0] + 90 * unit, box[1] + 100 * unit, down=True)
        page.mouse("mouseReleased", box[0] + 90 * unit, box[1] + 100 * unit, down=False)
        assert "the class is 0" in rests(page)
        x = page.run("Number(document.getElementById('x0').value)")
        assert x == pytest.approx(-2 + 5 * (90 - 66) / (446 - 66), abs=0.05)
        assert page.complaints() == []
        assert {address.split("/")[2] for address in page.requests() if address.startswith("http")} == {
            moons.split("/")[2]
        }


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_light_and_dark(browser: Browser, moons: str, dark: bool) -> None:
    with browser.page(moons, width=390, height=844, dark=dark) as page:
        rests(page)
        assert page.run("document.documentElement.scrollWidth") == 390
        unnamed = page.run("[...document.querySelectorAll('input')].filter((f) => f.labels.length === 0).length")
        assert unnamed == 0
        assert page.complaints() == []


def unanswered(page: Page, identity: str) -> str:
    """What is said next to a field whose value has no answer; nothing is shown that could be taken for one."""
    page.wait(f"document.getElementById('{identity}').getAttribute('aria-invalid') === 'true'")
    time.sleep(0.5)  # longer than the page waits before it asks for an attack
    assert page.run("document.getElementById('sentence').textContent").startswith("No answer: the marked field")
    for name in ("view", "bounds", "state"):
        assert page.run(f"document.getElementById('{name}').textContent") == ""
    return page.run(f"document.getElementById('{identity}-fault').textContent")


@pytest.mark.parametrize(
    ("identity", "value", "said"),
    [
        ("index", "99", "Give a whole number from 0 to 1."),
        ("eps", "-3", "Give a number from 0 to 2.5."),
        *(
            pytest.param("index", value, "Give a whole number from 0 to 1.", marks=pytest.mark.slow)
            for value in ("0.5", "-1", "")
        ),
        *(
            pytest.param("eps", value, "Give a number from 0 to 2.5.", marks=pytest.mark.slow)
            for value in ("abc", "2.6", "1e400", "NaN", "")
        ),
    ],
)
def test_a_value_out_of_range_has_a_message_and_no_answer(
    browser: Browser, moons: str, identity: str, value: str, said: str
) -> None:
    with browser.page(moons) as page:
        rests(page)
        asked = len(page.requests())
        put(page, identity, value)
        assert unanswered(page, identity) == said
        assert len(page.requests()) == asked
        put(page, identity, "0")
        assert "within" in rests(page).lower()
        assert page.run(f"document.getElementById('{identity}-fault').textContent") == ""


def test_an_answer_under_way_is_not_shown_for_a_value_that_has_none(browser: Browser, moons: str) -> None:
    with browser.page(moons) as page:
        rests(page)
        page.run(
            "window.fetch = ((real) => async (...all) => { const found = await real(...all);"
            " await new Promise((done) => setTimeout(done, 500)); return found; })(fetch); 0"
        )
        put(page, "eps", 0.2)
        put(page, "eps", -3)
        unanswered(page, "eps")
        put(page, "eps", 0.1)
        assert "within 0.1 " in rests(page)


def test_a_number_that_is_typed(browser: Browser, moons: str) -> None:
    """What no number can hold reaches the page as no value at all."""
    with browser.page(moons) as page:
        rests(page)
        page.run("document.getElementById('eps').select()")
        for key in "1e400":
            page.press(key, ord(key.upper()), key)
        assert unanswered(page, "eps") == "Give a number from 0 to 2.5."


def test_a_moved_input_is_none_of_the_list_and_the_largest_radius_is_one(browser: Browser, moons: str) -> None:
    with browser.page(moons) as page:
        put(page, "index", 99)
        unanswered(page, "index")
        put(page, "x0", -1.5)
        assert "within" in rests(page).lower()
        assert page.run("document.getElementById('index').value") == ""
        assert page.run("document.getElementById('index-fault').textContent") == ""
        put(page, "eps-range", 1)
        assert "within 2.5" in rests(page).lower()


def test_a_question_that_is_refused_leaves_no_claim(browser: Browser, moons: str) -> None:
    with browser.page(moons) as page:
        rests(page)
        page.run("window.fetch = ((real) => (address, options) => real(address, {...options, body: '{}'}))(fetch); 0")
        put(page, "eps", 0.2)
        page.wait("document.getElementById('sentence').textContent.startsWith('No answer:')")
        for name in ("bounds", "view"):
            assert page.run(f"document.getElementById('{name}').textContent") == ""


@pytest.mark.slow
def test_a_program_that_ended_leaves_no_claim(browser: Browser) -> None:
    """The command itself: it says its address, and Ctrl-C is its good end."""
    heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
    program = f"{heeded}; from bnndp.cli.main import run; run()"
    words = [sys.executable, "-c", program, "explore", str(MOONS), "--domain", "-2", "3", "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip() if process.stdout is not None else ""
        with browser.page(address) as page:
            assert "within" in rests(page)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=90)[1] == "bnndp: ended.\n"
            assert process.returncode == 0
            put(page, "eps", 0.2)
            page.wait("document.getElementById('sentence').textContent.startsWith('No answer:')")
            assert page.run("document.getElementById('bounds').textContent") == ""
    finally:
        process.kill()
        process.wait()


def test_the_browser_is_led_to_the_page_by_a_file_of_this_user(
    browser: Browser, moons: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    with open_page(moons) as place:
        assert asked == [place.as_uri()]
        assert moons.split("/")[3] not in asked[0]
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        with browser.page(asked[0]) as page:
            page.wait(f"location.href === '{moons}' && document.readyState === 'complete'")
            assert "within" in rests(page).lower()
    assert not place.exists()


def test_a_line_is_drawn_with_its_bounds(browser: Browser) -> None:
    with served(Session("sine", load(str(SINE)), domain=(-1.0, 1.0))) as address, browser.page(address) as page:
        put(page, "eps", 0.02)
        page.wait("document.getElementById('state').textContent.startsWith('bounds in')")
        assert "the mean output lies between" in page.run("document.getElementById('sentence').textContent")
        for kind in ("#view .interval", "#view .band", "#view .line.mean", "#view .line.certified", "#bounds .zero"):
            assert page.run(f"document.querySelectorAll('{kind}').length") >= 1
        assert page.complaints() == []
