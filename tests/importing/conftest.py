"""Trainings that several files look at, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from importing.trainings import Training, ended, train


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Training]:
    """A healthy, an overfitting and a diverging training, each recorded by every tool."""
    root: Path = tmp_path_factory.mktemp("trainings")
    made = {}
    for kind in ("healthy", "overfitting", "diverging"):
        (root / kind).mkdir()
        made[kind] = train(root / kind, kind)
    ended()
    return made
