from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from learnscope.report import layout
from learnscope.report.audit import folder


def save_unpainted(figure: Figure, path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(figure), "draw", lambda *_: None)
        layout.save(figure, path)


@pytest.fixture(scope="session", autouse=True)
def _unpainted_plots() -> Iterator[None]:
    """The figures of an audit are made and written here, and not painted, which takes half of a small audit's time.
    (They are in tests/seeds/ and tests/report/audit/, where somebody looks at them.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "save", save_unpainted)
        yield
