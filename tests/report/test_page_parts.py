"""The parts of the page: markup cannot be broken out of, numbers are rounded to the safe side, charts show the data."""

from __future__ import annotations

import base64
import io
import math
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image as matplotlib_image

from bnndp.report.page.charts import histogram, stairs
from bnndp.report.page.frame import Frame
from bnndp.report.page.markup import Markup, data_script, tag
from bnndp.report.page.pixels import difference_uri, field_uri, image_shape, image_uri
from bnndp.report.page.scales import Scale, percent, rounded, short, ticks

NASTY = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '" onload="alert(1)',
    "' onclick='alert(1)",
    "&lt;b&gt;",
    "<!-- -->",
    "]]>",
    "\u202ereversed",
    "\x00\x1b[31m",
    "\ud800",
]


class Reader(HTMLParser):
    """What a browser would see: elements with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@pytest.mark.parametrize("text", NASTY)
def test_a_text_stays_a_text(text: str) -> None:
    found = read(tag("p", text, title=text))
    assert [name for name, _ in found.elements] == ["p"]
    assert set(found.elements[0][1]) == {"title"}
    if text.isprintable():
        assert found.text == text
        assert found.elements[0][1]["title"] == text


@pytest.mark.parametrize("text", NASTY)
def test_data_do_not_leave_their_element(text: str) -> None:
    found = read(data_script("d", {text: [text]}))
    assert [name for name, _ in found.elements] == ["script"]
    assert "<" not in data_script("d", text).removeprefix('<script type="application/json" id="d">')[:-9]


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert tag("p", "a\u202eb\x00\ud800") == "<p>a\\u202eb\\u0000\\ud800</p>"


def test_only_markup_is_left_as_it_is() -> None:
    assert tag("p", Markup("<b>"), "<b>") == "<p><b>&lt;b&gt;</p>"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 8))
def test_numbers_are_rounded_to_their_side(value: float, digits: int) -> None:
    low, high = (rounded(value, up=up, digits=digits) for up in (False, True))
    assert low <= value <= high
    if math.isfinite(low) and math.isfinite(high) and abs(value) > 1e-300:
        assert high - low <= 10.0 ** (2 - digits) * abs(value)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_share_is_never_made_more(part: int, whole: int) -> None:
    down, up = (float(percent(part, whole, up=side).removesuffix(" %")) for side in (False, True))
    share = 100 * part / whole
    assert down <= share + 1e-9
    assert up >= share - 1e-9
    assert up - down <= 0.1 + 1e-9


def test_all_is_said_only_of_all() -> None:
    assert percent(10**6 - 1, 10**6) == "99.9 %"
    assert percent(1, 10**6, up=True) == "0.1 %"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within(low: float, relative: float) -> None:
    span = relative * max(1.0, abs(low))
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 12
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value in found)


def test_a_scale_keeps_what_lies_beyond_at_its_ends() -> None:
    scale = Scale(0.0, 2.0, 10.0, 30.0)
    assert [scale(value) for value in (0.0, 1.0, 2.0, 5.0, math.inf, -math.inf)] == [10, 20, 30, 30, 30, 10]


def test_numbers_that_are_none_have_signs() -> None:
    assert [short(value) for value in (math.nan, math.inf, -math.inf, None)] == ["–", "∞", "−∞", "–"]


@pytest.mark.parametrize("rising", [False, True])
def test_stairs_are_the_shares(rising: bool) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(0, 1, 50).round(1), [np.nan] * 5, [np.inf] * 3])
    corners = stairs(values, 58, 1.2, rising=rising)
    for eps in (0.05, 0.15, 0.55, 0.95, 1.1):
        height = [y for x, y in corners if x <= eps][-1]
        expected = (values <= eps).sum() if rising else (values >= eps).sum()
        assert height == pytest.approx(expected / 58)
    assert corners[0][0] == 0
    assert corners[-1][0] == 1.2


def test_a_histogram_has_every_number_once() -> None:
    values = np.array([0.0, 0.01, 0.5, 1.0, np.nan, np.inf])
    chart = histogram(values, np.empty(0), 1.0, ("x", "y"), "text")
    counts = [int(part.split(": ")[1].split("<")[0]) for part in chart.content.split("<title>")[1:]]
    assert sum(counts) == 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_a_path_goes_where_its_points_are(points: list[tuple[int, int]]) -> None:
    """What is left out lies on the way: every point and every stretch of the line is still drawn."""
    frame = Frame.over((0.0, 4.0), (0.0, 4.0), ("x", "y"))
    kept = [
        tuple(map(float, corner.split())) for corner in frame.path(points).removeprefix("M").split("L")
    ]  # a corner of the path
    whole = [(round(frame.x(x), 1), round(frame.y(y), 1)) for x, y in points]
    at = 0
    for corner in whole:  # one after the other, each is on the stretch where the one before was, or on a later one
        while not _on(corner, kept[at], kept[min(at + 1, len(kept) - 1)]):
            at += 1
    assert kept[0] == whole[0]
    assert kept[-1] == whole[-1]


def _on(point: tuple[float, ...], start: tuple[float, ...], end: tuple[float, ...]) -> bool:
    """Whether a point is one of the ends, or between them on a level or upright line."""
    straight = start[0] == end[0] or start[1] == end[1]
    between = all(min(a, b) <= p <= max(a, b) for p, a, b in zip(point, start, end, strict=True))
    return point in (start, end) or (straight and between)


def test_a_path_of_many_stairs_is_short() -> None:
    """As long as there are places to be told apart, not as there are values."""
    frame = Frame.over((0.0, 1.0), (0.0, 1.0), ("x", "y"))
    steep = stairs(0.5 + np.linspace(0, 1e-6, 10_000), 10_000, 1.0, rising=True)
    assert frame.path(steep).count("L") == 3  # level, upright, level


def test_a_path_draws_what_coincides_once() -> None:
    frame = Frame.over((0.0, 1.0), (0.0, 1.0), ("x", "y"))
    assert frame.path([(0.0, 0.0), (1e-9, 0.0), (1.0, 1.0)]).count("L") == 1
    assert frame.path([]) == ""


def pixels(uri: str) -> np.ndarray:
    payload = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.round(255 * matplotlib_image.imread(io.BytesIO(payload), format="png")[..., :3]).astype(int)


def test_a_picture_is_that_of_the_input() -> None:
    values = np.linspace(0, 1, 64)
    found = pixels(image_uri(values, (1, 8, 8), 0.0, 1.0))
    assert found.shape == (8, 8, 3)
    assert (found[..., 0].ravel() == np.round(255 * values)).all()


def test_the_channels_of_a_picture_are_its_colours() -> None:
    values = np.zeros((3, 8, 9))
    values[1, 2, 3] = 1.0
    found = pixels(image_uri(values.ravel(), (3, 8, 9), 0.0, 1.0))
    assert np.argwhere(found).tolist() == [[2, 3, 1]]


def test_a_change_is_white_where_there_is_none_and_coloured_by_its_sign() -> None:
    change = np.zeros(64)
    change[0], change[1] = 0.2, -0.2
    found = pixels(difference_uri(change, (1, 8, 8)))
    assert (found[1:] == 255).all()
    assert found[0, 0, 0] > found[0, 0, 2]  # rises: orange
    assert found[0, 1, 2] > found[0, 1, 0]  # falls: blue


def test_a_field_has_its_colours_at_its_ends() -> None:
    found = pixels(field_uri(np.array([[0.0, 0.5, 1.0]])))[0]
    assert (found[1] == 255).all()
    assert found[0, 2] > found[0, 0]
    assert found[2, 0] > found[2, 2]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((784,), (1, 28, 28)),
        ((3072,), (3, 32, 32)),
        ((1, 8, 12), (1, 8, 12)),
        ((4,), None),
        ((2, 9, 9), None),
        ((8,), None),
    ],
)
def test_shapes_of_pictures(shape: tuple[int, ...], expected: tuple[int, int, int] | None) -> None:
    assert image_shape(shape) == expected
