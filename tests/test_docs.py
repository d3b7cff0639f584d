"""Documented code runs: every Python block of the README and the docs, as printed, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forked import run_program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    program, folder = tmp_path / "page.py", tmp_path / "here"
    program.write_text("\n".join(blocks(page)))
    folder.mkdir()
    result = run_program(program, folder=folder, strict=True, audits=page.name == "posttrain.md")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_readme_names_both_commands_and_a_short_example() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert len(blocks(ROOT / "README.md")) == 1
