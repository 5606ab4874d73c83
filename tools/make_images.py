"""Make the pictures of docs/images anew: reports and explorers of fresh runs, light and dark, wide and on a phone.

    BNNDP_DATA=FOLDER python -m tools.make_images MODEL

MODEL is a classifier of MNIST (docs/data.md says where the data set comes from). The other networks come with the
package. The page is that of `bnndp report`; the browser is that of the tests (tools/setup_browser.sh). Every
picture is reduced to 256 colours, the frequent ones exactly. It takes about a minute.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from support.browser import Page, find_browser, open_browser

from bnndp.cli.main import main as bnndp
from bnndp.data.moons import two_moons
from bnndp.explorer.server import Explorer
from bnndp.explorer.session import Session
from bnndp.files.posterior import load

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"": (1280, 1900), "-phone": (390, 1900)}  # of a report; an explorer is 1280 x 900
LARGEST = 200_000  # bytes of a picture
EXACT = 64  # colours that are kept exactly
THEMES = {"light": False, "dark": True}

Asked = tuple[Session, Mapping[str, object]]


def run(*words: object) -> None:
    """A command of bnndp, which must succeed."""
    status = bnndp([str(word) for word in words])
    if status != 0:
        sys.exit(f"bnndp {words[0]} ended with the status {status}")


def demo(name: str) -> Path:
    """A network that comes with the package."""
    return Path(str(resources.files("bnndp.data.demo"))) / name


def reports(work: Path, mnist: Path) -> dict[str, Path]:
    """The pages of a regression and of a run of radii, by name."""
    shutil.copyfile(demo("sine1d_2x32.safetensors"), work / "sine.safetensors")
    np.savez(work / "sine.npz", x=np.linspace(-1, 1, 41)[:, None])
    run("certify", work / "sine.safetensors", work / "sine.npz", "--eps", 0.025, "--attack", "--run", work / "sine")
    shutil.copyfile(mnist, work / "mnist-2x64.safetensors")
    run(
        "radius", work / "mnist-2x64.safetensors", "--data", "mnist", "--limit", 100, "--domain", 0, 1,
        "--run", work / "mnist",
    )  # fmt: skip
    for name in ("sine", "mnist"):
        run("report", work / name)
    return {name: work / name / "report.html" for name in ("sine", "mnist")}


def sessions(work: Path) -> dict[str, Asked]:
    """What is explored, by name, with what is entered there."""
    test = two_moons(60, noise_std=0.2, seed=2)
    found: dict[str, Asked] = {
        "moons": (Session("moons", load(demo("moons_1x32.safetensors")), test.x, test.y), {"index": 3, "eps": 0.35})
    }
    with np.load(work / "mnist" / "inputs.npz") as inputs:
        x, y = torch.from_numpy(inputs["x"]), torch.from_numpy(inputs["y"])
    images = Session("mnist-2x64 on mnist", load(work / "mnist-2x64.safetensors"), x, y, (0.0, 1.0))
    return found | {"mnist": (images, {"index": 18, "eps": 0.02})}


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
        thread.join()


def enter(page: Page, fields: Mapping[str, object]) -> None:
    """Enter values into the explorer, and wait until the attack has been tried."""
    for name, value in fields.items():
        page.wait("document.getElementById('state').textContent.startsWith('bounds and attack')")
        page.run(
            "(() => { document.getElementById('state').textContent = '';"
            f" const field = document.getElementById('{name}');"
            f" field.value = '{value}'; field.dispatchEvent(new Event('input')); }})()"
        )
    page.wait("document.getElementById('state').textContent.startsWith('bounds and attack')")


def few_colours(picture: Image.Image) -> Image.Image:
    """The picture in 256 colours: the most frequent ones exactly as they are, and others so that rare ones stay."""
    pixels = np.asarray(picture)
    found, where, count = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    frequent = found[np.argsort(-count)[:EXACT]]
    spread = picture.quantize(256 - EXACT, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.concatenate([frequent, np.array(spread, dtype=np.uint8).reshape(-1, 3)])  # (colours, 3)
    distance = np.square(found[:, None].astype(int) - palette.astype(int)).sum(2)  # (found, colours)
    reduced = Image.fromarray(distance.argmin(1)[where.ravel()].reshape(pixels.shape[:2]).astype(np.uint8))
    reduced.putpalette(palette.tobytes())
    return reduced


def shoot(page: Page, place: Path) -> None:
    """The page as a small picture; a complaint of the browser ends it all."""
    if page.complaints():
        sys.exit(f"{place.name}: {page.complaints()}")
    page.screenshot(place, whole=False)
    with Image.open(place) as taken:
        few_colours(taken.convert("RGB")).save(place, optimize=True)
    size = place.stat().st_size
    print(f"{place.name}: {size / 1000:.0f} kB")
    if size > LARGEST:
        sys.exit(f"{place.name}: has {size} bytes, more than {LARGEST}")


def main() -> None:
    """All pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a classifier of MNIST")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args()
    program = find_browser()
    if program is None:
        sys.exit("there is no Chromium; tools/setup_browser.sh installs one")
    with tempfile.TemporaryDirectory(prefix="bnndp-images-") as folder, open_browser(program) as browser:
        work = Path(folder)
        for name, place in reports(work, given.model).items():
            for kind, (width, height) in SIZES.items():
                for theme, dark in THEMES.items():
                    with browser.page(place.as_uri(), width=width, height=height, dark=dark) as page:
                        shoot(page, given.out / f"report-{name}{kind}-{theme}.png")
        for name, (session, fields) in sessions(work).items():
            for theme, dark in THEMES.items():
                with served(session) as address, browser.page(address, dark=dark) as page:
                    enter(page, fields)
                    shoot(page, given.out / f"explore-{name}-{theme}.png")


if __name__ == "__main__":
    main()
