"""Trainers of other packages, as they can be watched from a callback; see test_clients.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clients import trainers
from clients.account import check_loop


def test_the_hugging_face_trainer(tmp_path: Path) -> None:
    check_loop(partial(trainers.hugging_face, folder=tmp_path))


def test_lightning(tmp_path: Path) -> None:
    check_loop(partial(trainers.lightning, folder=tmp_path))
