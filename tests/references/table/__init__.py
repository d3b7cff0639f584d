"""Which recorded numbers are held against other projects' code.

The one place: `holding.py` takes tolerances from here, `docs/numbers.md` its last column, and `test_table.py` proves
that a test compares every name that stands here. Versions are those of `constraints.txt`.
"""

from __future__ import annotations

from references.table import models, outputs, papers, parameters
from references.table.reference import Reference, version

__all__ = ["Reference", "all_references", "models", "outputs", "papers", "parameters", "version"]


def all_references() -> dict[str, Reference]:
    """By the names that tests call them, in the order of their files."""
    homes = (parameters, outputs, models, papers)
    return {name: value for home in homes for name, value in vars(home).items() if isinstance(value, Reference)}
