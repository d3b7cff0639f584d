from collections.abc import Iterator

import pytest

from unpainted import unpainted_plots


@pytest.fixture(scope="module", autouse=True)
def _unpainted_plots() -> Iterator[None]:
    """Nobody looks at them here; all are painted in tests/seeds/ and tests/report/audit/."""
    with unpainted_plots():
        yield
