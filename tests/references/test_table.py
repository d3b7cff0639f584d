"""The table claims what tests do, no more: its names are declared, its projects pinned, its references used."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch import nn

import learnscope as ls
from learnscope.quantities import declared
from references import table
from references.holding import Held, holds, package
from references.table import Reference

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
REFERENCES = list(table.all_references().values())


def modules() -> list[ModuleType]:
    return [importlib.import_module(f"references.{path.stem}") for path in sorted(HERE.glob("test_*.py"))]


def test_every_reference_is_one_that_a_test_holds_names_against() -> None:
    used = {
        id(reference)
        for module in modules()
        for test in vars(module).values()
        for reference in getattr(test, "references", ())
    }
    unused = [reference.call for reference in REFERENCES if id(reference) not in used]
    assert not unused, f"no test is marked @holds with {unused}"


def test_every_name_is_declared() -> None:
    known = {f"{probe}.{quantity.name}" for probe, quantities in declared().items() for quantity in quantities.all()}
    for reference in REFERENCES:
        assert reference.names
        assert set(reference.names) <= known, set(reference.names) - known


def test_every_project_has_a_version_and_every_tolerance_a_reason() -> None:
    for reference in REFERENCES:
        assert reference.why
        assert 0 < reference.relative < 0.1
        assert bool(reference.project) != bool(reference.paper)
        if reference.project:
            assert table.version(reference.project), f"{reference.project} is not in constraints.txt"


def test_at_least_sixty_names_are_held_against_installed_projects() -> None:
    names = {name for reference in REFERENCES if reference.project for name in reference.names}
    assert len(names) >= 60
    assert len({name.split(".")[1] for name in names}) >= 60, "not the same name of many probes"


def test_projects_that_the_development_environment_lacks_are_in_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extra = {canonicalize_name(Requirement(line).name) for line in extras["references"]}
    soaked = set()
    for path in HERE.glob("test_*.py"):
        soaked |= {found.split(".")[0] for found in re.findall(r'package\("([\w.]+)"\)', path.read_text())}
    assert {canonicalize_name(name) for name in soaked - {"no_such_project"}} == extra
    assert extra <= {canonicalize_name(reference.project) for reference in REFERENCES}


# ---- the proof needs proving, too

TWO = Reference(("WeightSpectrum.smallest_sv", "WeightSpectrum.largest_sv"), "a call", "scipy", 1e-6, 0.0, "made up")


def run_of_two() -> ls.Run:
    model = nn.Sequential(nn.Linear(3, 2))
    return ls.audit(model, probes=[ls.WeightSpectrum()], strict=True)


def ours(run: ls.Run, name: str) -> float:
    return float(run.frame(*name.split(".")).value.iloc[0])


@pytest.mark.parametrize("left_out", TWO.names)
def test_a_test_that_compares_too_little_fails(left_out: str) -> None:
    run = run_of_two()

    @holds(TWO)
    def lazy(held: Held) -> None:
        for name in TWO.names:
            if name != left_out:
                held(run, name, ours(run, name), "tensor")

    with pytest.raises(AssertionError, match=re.escape(left_out)):
        lazy()


def test_a_number_that_is_off_fails() -> None:
    run = run_of_two()
    held, true = Held((TWO,)), ours(run, "WeightSpectrum.largest_sv")
    held(run, "WeightSpectrum.largest_sv", true * (1 + 1e-7), "tensor")
    for wrong in (true * (1 + 1e-5), -true, 0.0, float("nan")):
        with pytest.raises(AssertionError):
            held(run, "WeightSpectrum.largest_sv", wrong, "tensor")


def test_a_name_that_the_table_does_not_claim_cannot_be_held() -> None:
    run = run_of_two()
    with pytest.raises(AssertionError, match="does not claim"):
        Held((TWO,))(run, "WeightSpectrum.stable_rank", ours(run, "WeightSpectrum.stable_rank"), "tensor")
    with pytest.raises(AssertionError, match="declares no"):
        Held((TWO,))(run, "WeightSpectrum.size", 1.0, "tensor")


def test_a_missing_project_skips_by_name_and_fails_where_nothing_may_be_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_project is not installed"):
        package("no_such_project")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"no_such_project is not installed.*references"):
        package("no_such_project")
