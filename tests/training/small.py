"""Trainings of a few steps, as the command line would start them."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from learnscope.trackers import write_logs
from learnscope.training import builtin, tracking
from learnscope.training.command import Outcome, train
from learnscope.training.screen import Screen
from learnscope.training.settings.parser import parse

BOTH = ("--enable_tracking", "--tracking_frequency", "2")


def hardly_trained_base(folder: Path) -> Path:
    """The built-in model after a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtin, "STEPS", 30)
        builtin.make_base_model(folder)
    return folder


def command_line(base: Path, folder: Path, *flags: str, **training: Any) -> list[str]:
    """Options of a small training: `training` are those of that section."""
    usual = {
        "output_dir": folder,
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "logging_steps": 1,
        "save_steps": 2,
    }
    line = ["--config.model.model_name_or_path", str(base), "--config.model.attn_implementation", "sdpa"]
    line += ["--config.dataset.num_examples", "48", "--config.dataset.holdout_examples", "8", "--config.peft.r", "4"]
    for name, value in (usual | training).items():
        line += [f"--config.training.{name}", str(value)]
    return [*line, *flags]


def trained(base: Path, folder: Path, *flags: str, figures: bool = False, **training: Any) -> tuple[Outcome, str]:
    """What came of it, and what was printed. Figures take longer than such a training, and are made on demand."""
    printed = io.StringIO()
    screen = Screen(Console(file=printed, width=200))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "write_logs", partial(write_logs, plots=figures))
        outcome = train(parse(command_line(base, folder, *flags, **training)), screen)
    return outcome, printed.getvalue()


def weights(outcome: Outcome) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in outcome.trainer.model.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
