"""What pyproject.toml allows is what is tested: the lowest versions, and the versions of Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("sql",)
"""The extras that are tested with their lowest versions too."""


def floors(requirements: list[str]) -> dict[str, Version]:
    """By the package's name: what each `name>=version` allows at least; another form is an error."""
    found = {}
    for requirement in map(Requirement, requirements):
        (bound,) = requirement.specifier
        assert bound.operator == ">=", f"{requirement} has no lowest version"
        found[canonicalize_name(requirement.name)] = Version(bound.version)
    return found


def pinned(path: Path) -> dict[str, Version]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def test_the_lowest_versions_that_are_allowed_are_the_tested_ones() -> None:
    allowed = floors(PROJECT["dependencies"])
    for extra in EXTRAS:
        allowed |= floors(PROJECT["optional-dependencies"][extra])
    assert pinned(ROOT / "constraints-lowest.txt") == allowed


def test_the_newest_tested_versions_are_allowed() -> None:
    newest = pinned(ROOT / "constraints.txt")
    for name, version in pinned(ROOT / "constraints-lowest.txt").items():
        assert version <= newest[name], name


def test_the_pythons_that_are_allowed_are_the_tested_ones() -> None:
    """All tests run with the lowest, which is the one that is named; without torch, those that do without it."""
    others = re.findall(r"^PYTHONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    minors = [11, *(Version(other).minor for other in others)]
    assert minors == list(range(11, 11 + len(minors)))
    assert PROJECT["requires-python"] == f">=3.11,<3.{minors[-1] + 1}"
    assert [kind for kind in PROJECT["classifiers"] if ":: 3." in kind] == ["Programming Language :: Python :: 3.11"]


def test_other_pythons_get_every_dependency_but_torch() -> None:
    lines = (ROOT / "tests" / "without_torch.txt").read_text().splitlines()
    installed = {canonicalize_name(line) for line in lines if not line.startswith("#")}
    needed = pinned(ROOT / "constraints-lowest.txt").keys() - {"torch"}
    assert installed == needed | {"pytest", "pytest-xdist", "hypothesis"}
