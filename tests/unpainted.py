"""Figures of audits that are made and written, and not painted, which takes half of a small audit's time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from learnscope.report import layout
from learnscope.report.audit import folder


@contextmanager
def unpainted_plots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "save", _save_unpainted)
        yield


def _save_unpainted(figure: Figure, path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(figure), "draw", lambda *_: None)
        layout.save(figure, path)
