"""The version stands in ``bnndp.__version__``; the installed package, the changelog and the citation agree with it."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import bnndp

ROOT = Path(__file__).resolve().parent.parent
HEADING = re.compile(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def headings() -> list[tuple[str, str]]:
    """Versions of the changelog with their dates, the newest first."""
    return HEADING.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def test_the_installed_package_has_it() -> None:
    assert metadata.version("bnndp") == bnndp.__version__, "the installation is out of date; run: make setup"


def test_the_changelog_begins_with_it() -> None:
    versions = [version for version, _ in headings()]
    if ".dev" in bnndp.__version__:
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        assert versions[0] == "Unreleased"
        assert f"The version is {bnndp.__version__}.\n" in text
    else:
        assert versions[0] == bnndp.__version__
    assert all(date for version, date in headings() if version != "Unreleased")


def test_the_citation_is_of_the_last_release() -> None:
    version, date = next(row for row in headings() if row[0] != "Unreleased")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    assert f"\ndate-released: {date}\n" in citation
