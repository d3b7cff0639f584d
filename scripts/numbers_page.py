"""`docs/numbers.md`: every declared name with its meaning, its source, and what it is held against."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from learnscope.quantities import Quantity, declared
from references.table import Reference, all_references, version

TESTS = Path(__file__).parents[1] / "tests" / "references"
HEAD = """# Numbers and what they are held against

Every name that a probe records: what it means, with its formula; where the formula comes from; and the code of another
project, or the formula of a paper, that the recorded number is compared with. This page is made by `make names` from
the declarations in `learnscope/quantities/` and the table in `tests/references/table/`. A test fails if the table
claims a name that no test compares. Versions are those of `constraints.txt`.

{declared} names are declared, {bare} of them different: several probes record the same name of different things.

- {held} ({held_bare} different) are held against the code of {projects} installed projects.
- {papers} more are held against the formula of a paper only, which a test states once more in NumPy and float64.
- The other {rest} are tested elsewhere in `tests/`, without another project.
"""
REFERENCES = """## References

Relative and absolute tolerance, and the reason for them. Tests marked *soak* run by `make soak`, which installs the
projects of the extra `references`.

| | project | what it computes | tolerance | tests |
|---|---|---|---|---|
"""


def numbers_page() -> str:
    references = all_references()
    places = {name: f"R{place}" for place, name in enumerate(references, 1)}
    of_name: dict[str, list[str]] = defaultdict(list)
    for key, reference in references.items():
        for name in reference.names:
            of_name[name].append(f"{_project(reference)} [{places[key]}](#references)")
    parts = [_head(references)]
    for probe, quantities in sorted(declared().items()):
        rows = ["| name | meaning | source | held against |", "|---|---|---|---|"]
        rows += _rows(quantities.all(), of_name)
        parts.append(f"## {probe}\n\n" + "\n".join(rows) + "\n")
    tests = _tests()
    lines = [_row([places[key], *_cells(reference), tests[key]]) for key, reference in references.items()]
    return "\n".join([*parts, REFERENCES + "\n".join(lines) + "\n"])


def _head(references: Mapping[str, Reference]) -> str:
    names = {f"{probe}.{quantity.name}" for probe, found in declared().items() for quantity in found.all()}
    held = {name for reference in references.values() if reference.project for name in reference.names}
    papers = {name for reference in references.values() for name in reference.names} - held
    return HEAD.format(
        declared=len(names), bare=len(_bare(names)), held=len(held), held_bare=len(_bare(held)), papers=len(papers),
        rest=len(names - held - papers), projects=len({r.project for r in references.values() if r.project}),
    )  # fmt: skip


def _bare(names: Iterable[str]) -> set[str]:
    return {name.split(".")[1] for name in names}


def _project(reference: Reference) -> str:
    return f"{reference.project} {version(reference.project)}" if reference.project else reference.paper


def _cells(reference: Reference) -> list[str]:
    tolerance = f"{reference.relative:g}" + f" and {reference.absolute:g}" * bool(reference.absolute)
    project = _project(reference) + ", formula" * bool(reference.paper)
    return [project, reference.call, f"{tolerance}: {reference.why}"]


def _rows(quantities: Iterable[Quantity], of_name: Mapping[str, list[str]]) -> list[str]:
    """Neighbours that differ only in their names share a row."""

    def shared(quantity: Quantity) -> tuple[str, ...]:
        unit = f" [{quantity.unit}]" * bool(quantity.unit)
        meaning = f"{quantity.when}: " * bool(quantity.when) + quantity.meaning + unit
        return meaning, quantity.source, "; ".join(of_name.get(f"{quantity.probe}.{quantity.name}", []))

    rows = []
    for cells, group in groupby(quantities, key=shared):
        rows.append(_row([", ".join(f"`{quantity.name}`" for quantity in group), *cells]))
    return rows


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _tests() -> dict[str, str]:
    """By reference, the tests that are marked with it, found without importing them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.glob("test_*.py")):
        for test in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(test, ast.FunctionDef):
                soak = any(ast.unparse(decorator) == "pytest.mark.soak" for decorator in test.decorator_list)
                for key in _held_by(test):
                    found[key].append(f"`{path.name}::{test.name}`" + " (soak)" * soak)
    return {key: ", ".join(tests) for key, tests in found.items()}


def _held_by(test: ast.FunctionDef) -> list[str]:
    calls = [decorator for decorator in test.decorator_list if isinstance(decorator, ast.Call)]
    holds = [call for call in calls if ast.unparse(call.func) == "holds"]
    return [argument.attr for call in holds for argument in call.args if isinstance(argument, ast.Attribute)]
