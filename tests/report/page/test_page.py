"""The page of a run: its numbers are those of the run, it needs nothing else, and no run can inject into it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.markup import outline
from support.run_folders import interval_answer, page_of, radius_answer, write_run

from bnndp.cli.main import main
from bnndp.errors import RunStateError
from bnndp.files.posterior import save
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.report.page.page import report_of

NASTY = "</script></title><script>window.injected = 1</script><img src=x onerror='window.injected = 1'>\u202e\"'&"


def text_of(page: str) -> str:
    return " ".join(outline(page).text.split())


def data_of(page: str) -> dict[str, list[list[object]]]:
    return json.loads(page.split('id="data">')[1].split("</script>", maxsplit=1)[0])


def column(page: str, name: str) -> list[object]:
    data = data_of(page)
    at = [entry["name"] for entry in data["columns"]].index(name)  # type: ignore[call-overload]
    return [row[at] for row in data["rows"]]


def line() -> BayesianNetwork:
    """One input, one output, one hidden layer."""
    torch.manual_seed(0)
    hidden = Linear(torch.randn(6, 1), torch.full((6, 1), 0.1), torch.randn(6), torch.full((6,), 0.1))
    output = Linear(torch.randn(1, 6), torch.full((1, 6), 0.1), torch.zeros(1), torch.zeros(1))
    return BayesianNetwork.from_linears([hidden, output])


def image_classifier() -> BayesianNetwork:
    """64 inputs, 3 classes."""
    torch.manual_seed(1)
    layer = Linear(0.5 * torch.randn(3, 64), torch.full((3, 64), 0.02), torch.zeros(3), torch.zeros(3))
    return BayesianNetwork.from_linears([layer], "classification")


def run_in(folder: Path, command: str, *options: object, name: str = "run") -> Path:
    """The folder of a run with the network and the inputs that lie in ``folder``."""
    words = [command, folder / "net.safetensors", folder / "inputs.npz", *options, "--quiet", "--run", folder / name]
    assert main([str(word) for word in words]) == 0
    return folder / name


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regression")
    save(line(), folder / "net.safetensors")
    np.savez(folder / "inputs.npz", x=np.linspace(-1, 1, 9)[:, None])
    return run_in(folder, "certify", "--eps", 0.1, "--attack")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    save(image_classifier(), folder / "net.safetensors")
    np.savez(folder / "inputs.npz", x=rng.uniform(0, 1, (8, 64)), y=rng.integers(0, 3, 8))
    return run_in(folder, "radius", "--domain", 0, 1)


def rows_of(run: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in (run / "rows.jsonl").read_text().splitlines()]


def test_a_regression_run_has_its_intervals_rounded_outward(regression: Path) -> None:
    page = page_of(regression)
    rows = rows_of(regression)
    for name, side in (("lower", -1), ("upper", 1), ("width", 1)):
        exact, shown = np.array([row[name] for row in rows]), np.array(column(page, name))
        assert (side * (shown - exact) >= 0).all()
        assert np.allclose(shown, exact, rtol=1e-4, atol=1e-12)
    widest = max(float(str(row["width"])) for row in rows)
    said = "For 9 of 9 boxes of inputs, those of radius 0.1 around each input, the mean output, E f(x), is enclosed"
    assert said in text_of(page)
    largest = float(re.search(r"the widest is ([0-9.]+)\.", text_of(page))[1])  # type: ignore[index]
    assert widest <= largest <= widest * 1.001


def test_a_regression_run_is_drawn_with_its_mean_where_the_model_is_there(regression: Path, tmp_path: Path) -> None:
    with_model = page_of(regression)
    assert "mean of the network, from inside" in with_model
    assert with_model.count('class="zero"') == 6  # the worst cases: affine bounds less the mean
    moved = shutil.copytree(regression, tmp_path / "moved")
    alone = page_of(moved)
    assert "The model file is not where the run says" in alone
    assert 'class="zero"' not in alone
    assert page_of(moved, regression.parent / "net.safetensors") == with_model


def test_another_network_is_not_drawn(regression: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(regression, tmp_path / "run")
    torch.manual_seed(9)
    layer = Linear(torch.randn(1, 1), torch.full((1, 1), 0.1), torch.zeros(1), torch.zeros(1))
    save(BayesianNetwork((layer,)), tmp_path / "net.safetensors")  # where the run says its model lies
    page = page_of(moved)
    assert "The model file is not where the run says" in page
    with pytest.raises(RunStateError, match="is not the network of this run"):
        page_of(moved, tmp_path / "net.safetensors")


def test_a_radius_run_has_its_radii_rounded_to_the_safe_side(images: Path) -> None:
    page, rows = page_of(images), rows_of(images)
    assert page_of(images) == page  # the same every time
    for name, key, side in (("proved radius", "radius", -1), ("attack radius", "attack_radius", 1)):
        pairs = list(zip(column(page, name), [row[key] for row in rows], strict=True))
        assert [shown is None for shown, _ in pairs] == [exact is None for _, exact in pairs]
        for shown, exact in pairs:
            if shown is not None:
                assert side * (float(str(shown)) - float(str(exact))) >= 0
                assert float(str(shown)) == pytest.approx(float(str(exact)), rel=1e-4)
    assert column(page, "label") == [row["label"] for row in rows]


def test_the_first_sentence_counts_what_is_proved(images: Path) -> None:
    text, rows = text_of(page_of(images)), rows_of(images)
    found = re.search(
        r"For (\d+) of 8 inputs the decision provably is the label .* up to a radius of ([0-9.]+)\.", text
    )
    assert found is not None
    radii = [float(str(row["radius"])) for row in rows if row["radius"] is not None]
    assert int(found[1]) == sum(radius >= float(found[2]) for radius in radii) > 0


def test_images_are_shown_with_what_an_attack_made_of_them(images: Path) -> None:
    page = page_of(images)
    pictures = [value for tag, name, value in outline(page).attributes if (tag, name) == ("img", "src")]
    shown = [row for row in rows_of(images) if row["label"] == row["decision"] and row["attack_radius"]]
    assert len(pictures) == 3 * min(6, len(shown)) > 0
    assert all(str(source).startswith("data:image/png;base64,") for source in pictures)


def test_accuracy_over_the_radius_has_the_radii_that_were_asked_for(images: Path) -> None:
    page = page_of(run_in(images.parent, "evaluate", "--eps", 0.01, 0.02, 0.03, name="accuracy"))
    assert page.count('class="mark"') == 3
    assert "up to a radius of 0.02." in text_of(page)


def test_a_page_needs_nothing_else(regression: Path, images: Path) -> None:
    for run in (regression, images):
        page = page_of(run)
        found = outline(page)
        assert not {"link", "iframe", "object", "embed", "base", "form action"} & set(found.names)
        for tag, name, value in found.attributes:
            assert not name.startswith("on"), (tag, name)
            assert name != "style", tag
            if name in ("src", "href", "srcset", "action", "data"):
                assert str(value).startswith(("data:image/png;base64,", "#")), (tag, name, value)
        assert "url(" not in page
        assert "@import" not in page
        policy = next(value for tag, name, value in found.attributes if (tag, name) == ("meta", "content") and value)
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy


def hostile(folder: Path) -> Path:
    """A run whose every text tries to get out."""
    made = {
        "command_line": NASTY,
        "begun": NASTY,
        "platform": NASTY,
        "model": {"path": NASTY, "sha256": NASTY, "task": NASTY, "network": NASTY, "source": NASTY},
        "inputs": {"dataset": NASTY, "split": NASTY, "fold": NASTY, "limit": NASTY, "labels": NASTY},
        "question": {"eps": [NASTY]},
    }
    options = {NASTY: NASTY, "domain": [NASTY, NASTY], "norm": NASTY, "quantity": NASTY}
    answers = [interval_answer([0.0], [1.0], method=NASTY), interval_answer([0.0], [1.0], method=NASTY)]
    return write_run(folder, "certify", answers, made=made, options=options, stages=(NASTY, NASTY))


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    plain = [interval_answer([0.0], [1.0])] * 2
    names = set(outline(page_of(write_run(tmp_path / "plain", "certify", plain))).names)
    found = outline(page_of(hostile(tmp_path / "hostile")))
    assert set(found.names) - names <= {"pre", "br"}  # the command line has a place of its own
    assert "img" not in found.names
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert found.names.count("script") == 2


def test_the_name_of_a_folder_does_not_become_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<img src=x onerror=alert(1)>", "radius", [radius_answer(0.1)])
    assert "img" not in outline(page_of(folder)).names


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "radius", [radius_answer(0.1)], points=5, stages=("low", "high"))
    text = text_of(page_of(folder))
    assert "The run is not complete: 4 inputs of 5 have no answer yet." in text
    assert "the effort “high” is not completed" in text


def ranged(inside: float) -> dict[str, Any]:
    return interval_answer([0.0], [1.0], ([inside], [0.9]))


FALSIFIED = interval_answer([0.1, 0.2], [0.8, 0.9], label=1, lead=0.1, verdict="falsified", rival=0, witness=[0.0])
BEYOND = "For 1 box the range from inside reaches beyond the bounds."
ALARMS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a proof and an attack": ("radius", radius_answer(0.3, 0.3), radius_answer(0.1, 0.2), "Contradiction."),
    "a verdict and a lead": ("certify", FALSIFIED, FALSIFIED | {"lead": -0.1}, "Contradiction."),
    "a range from inside": ("certify", ranged(-0.1), ranged(0.1), BEYOND),
}


@pytest.mark.parametrize("case", ALARMS)
def test_what_contradicts_a_proof_is_an_alarm(tmp_path: Path, case: str) -> None:
    command, wrong, right, words = ALARMS[case]
    assert words in text_of(page_of(write_run(tmp_path / "wrong", command, [right, wrong])))
    text = text_of(page_of(write_run(tmp_path / "right", command, [right])))
    assert not any(alarm in text for alarm in ("Contradiction.", "reaches beyond"))


@pytest.mark.parametrize(
    "answers",
    [
        [radius_answer("nan", 0.0, label=1, decision=0)],
        [radius_answer("nan", "inf")],
        [radius_answer(0.0, "nan")],
        [radius_answer(1.0, "inf")],
    ],
)
def test_a_run_of_one_input_has_a_page(tmp_path: Path, answers: list[dict[str, object]]) -> None:
    text = text_of(page_of(write_run(tmp_path / "run", "radius", answers)))
    certified = answers[0]["radius"] in (0.0, 1.0)
    assert f"For {int(certified)} of 1 input the decision provably" in text


def test_the_curve_ends_at_the_largest_radius_that_was_tried(tmp_path: Path) -> None:
    """What is certified there does not fall to nothing beyond: nothing beyond was asked."""
    answers = [radius_answer(0.25, "inf"), radius_answer(0.1, 0.2)]
    page = page_of(write_run(tmp_path / "run", "radius", answers, options={"upper": 0.25}))
    assert data_of(page)["end"] == 0.25
    assert "For 1 input the decision is proved up to the largest radius that was tried." in text_of(page)
    certified = re.search(r'd="([^"]*)" class="line certified"', page)
    assert certified is not None
    heights = [float(point.split()[1]) for point in certified[1].removeprefix("M").split("L")]
    assert heights[-1] == pytest.approx((12 + 224) / 2)  # one half of the inputs, in the middle of the chart


def test_one_input_is_said_in_the_singular(tmp_path: Path) -> None:
    text = text_of(page_of(write_run(tmp_path / "radius", "radius", [radius_answer(0.1, 0.2)])))
    assert "The certified radius is 0.5 of the radius of the attack, for the one input that has both." in text
    text = text_of(page_of(write_run(tmp_path / "bounds", "certify", [interval_answer([0.0], [1.0])])))
    assert "is enclosed at every input of the box. The interval is at most 1 wide." in text


def test_of_many_inputs_in_the_plane_some_are_drawn(tmp_path: Path) -> None:
    """So many that they can be told apart, and the page says how many; of a few all are."""
    rng = np.random.default_rng(0)
    for total, drawn in ((40, 40), (2000, 150)):
        answers = [radius_answer(0.1, 0.2)] * total
        page = page_of(write_run(tmp_path / str(total), "radius", answers, x=rng.uniform(0, 1, (total, 2))))
        plane = page.split('id="plane"')[1].split("</section>")[0]
        dots = re.search(r'd="([^"]*)" class="dots certified"', plane)
        assert dots is not None
        assert dots[1].count("M") == drawn
        assert (f"{drawn} of {total:,} inputs, taken evenly." in plane) is (drawn < total)


def test_bounds_of_a_variance_do_not_ask_for_the_model(tmp_path: Path) -> None:
    """Its mean would not be drawn with it."""
    words = "The model file is not where the run says"
    for quantity, asked in (("mean", True), ("variance", False)):
        save(line(), tmp_path / "net.safetensors")
        np.savez(tmp_path / "inputs.npz", x=np.zeros((1, 1)))
        run = run_in(tmp_path, "certify", "--eps", 0.1, "--quantity", quantity, name=quantity)
        (tmp_path / "net.safetensors").unlink()
        page = page_of(run)
        assert 'id="overview"' in page
        assert (words in page) is asked


def test_bounds_without_end_have_a_page(tmp_path: Path) -> None:
    answers = [interval_answer(["-inf", 0.0], ["inf", 1.0]), interval_answer([0.0, 0.0], [0.0, 0.0])]
    page = page_of(write_run(tmp_path / "run", "certify", answers))
    assert column(page, "width") == [None, 0.0]
    assert "the widest is ∞." in text_of(page)


@pytest.mark.slow
def test_ten_thousand_inputs_have_a_page_of_a_megabyte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    radius = rng.uniform(0, 0.1, 10_000)
    answers = [
        radius_answer(float(r), float(1.5 * r), label=int(k))
        for r, k in zip(radius, rng.integers(0, 10, 10_000), strict=True)
    ]
    page = page_of(write_run(tmp_path / "run", "radius", answers))
    assert len(column(page, "input")) == 10_000
    assert outline(page).names.count("tr") < 60  # the rest is drawn by the script
    assert len(page) < 1_300_000


@pytest.mark.parametrize("name", ["run.json", "results.jsonl", "inputs.npz"])
def test_the_page_replaces_no_file_of_the_run(images: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = (images / name).read_bytes()
    assert main(["report", str(images), "--out", str(images / name)]) == 2
    assert (images / name).read_bytes() == before
    assert "would be lost" in capsys.readouterr().err


def test_the_command_writes_the_page_and_says_how_large_it_is(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "page.html"
    assert main(["report", str(images), "--no-plots", "--out", str(place)]) == 0
    assert place.read_text(encoding="utf-8") == page_of(images)
    assert re.fullmatch(rf"{re.escape(str(place))}: \d+ kB\n", capsys.readouterr().out)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(images), "--model", str(place)]) == 2


def test_the_command_writes_the_charts_beside_the_page_and_names_them(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "page.html"
    assert main(["report", str(images), "--out", str(place)]) == 0
    names = ["certified-accuracy.svg", "radii.svg", "ratios.svg"]
    assert capsys.readouterr().out.splitlines()[1] == f"{tmp_path / 'plots'}: {', '.join(names)}"
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    page = place.read_text(encoding="utf-8")
    assert page == report_of(images, files=True).page
    assert all(f"plots/{name}" in text_of(page) for name in names)


def test_a_radius_at_the_end_of_the_search_is_shown_as_at_least_that(tmp_path: Path) -> None:
    """Whether the answer says so itself or the largest radius of the run does; older answers say nothing."""
    said = [radius_answer(0.5) | {"capped": True}, radius_answer(0.25, 0.3) | {"capped": False}, radius_answer(0.25)]
    known = [radius_answer(0.25), radius_answer(0.2, 0.25)]
    for name, answers, options, expected in (
        ("said", said, {}, ["≥ 0.5", "0.25", "0.25"]),
        ("known", known, {"upper": 0.25}, ["≥ 0.25", "0.2"]),
    ):
        page = page_of(write_run(tmp_path / name, "radius", answers, options=options))
        rows = re.findall("<tr>(.*?)</tr>", page.split('id="rows"')[1])[1:]
        assert [re.findall("<td[^>]*>([^<]*)", row)[4] for row in rows] == expected
    text = text_of(page_of(tmp_path / "said"))
    assert "For 1 input the search ended at the largest radius that was tried, 0.5:" in text
    assert "≥" not in page_of(write_run(tmp_path / "none", "radius", [radius_answer(0.1, 0.2)])).split("<script>")[0]


def test_an_answer_that_proves_nothing_is_never_at_least_something(tmp_path: Path) -> None:
    answers = [radius_answer("nan", 0.2) | {"capped": True}, radius_answer(0.1, 0.2) | {"capped": "yes"}]
    page = page_of(write_run(tmp_path / "run", "radius", answers))
    assert "≥" not in page.split("<script>")[0]
    assert "the search ended" not in page
