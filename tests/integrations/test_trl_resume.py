"""TRL's trainers that go on from a checkpoint: the run is as if there had been no break, and so are the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import EVERY_STEP, logged, norms
from integrations.test_trl_trainers import STEPS, Case, dpo, grpo, reward, sft

SAVED = 2
"""The step of the checkpoint that a second training goes on from."""


def saving(make: Callable[[Path], Case], folder: Path) -> Any:
    from transformers import PrinterCallback
    from transformers.trainer_utils import SaveStrategy

    trainer = make(folder).trainer
    trainer.remove_callback(PrinterCallback)
    trainer.args.save_strategy, trainer.args.save_steps = SaveStrategy.STEPS, SAVED
    return trainer


def numbers(run: ls.Run) -> dict[str, list[float]]:
    change, rates = run.frame("ParameterChange", "l2", "model"), run.frame("LearningRate", "learning_rate")
    return {
        "loss": list(logged(run).values()), "before": norms(run, "before_clip"), "after": norms(run, "stepped"),
        "change": list(change.value), "rate": list(rates.value), "steps": list(logged(run)),
    }  # fmt: skip


@pytest.mark.parametrize("make", [sft, dpo, reward, grpo], ids=lambda make: make.__name__)
def test_a_resumed_training_is_the_same_as_one_without_a_break(make: Callable[[Path], Case], tmp_path: Path) -> None:
    whole = saving(make, tmp_path)
    callback = ls.watch_trainer(whole, probes=EVERY_STEP)
    whole.train()
    expected = numbers(callback.run)
    assert expected["steps"] == list(range(1, STEPS + 1))

    checkpoint = str(tmp_path / f"checkpoint-{SAVED}")
    resumed = saving(make, tmp_path)
    callback = ls.watch_trainer(resumed, probes=EVERY_STEP)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert [entry["start_step"] for entry in callback.run.manifest["attempts"]] == [0, SAVED]
    assert callback.run.manifest["attempts"][-1]["state_restored"] is True
    assert numbers(callback.run) == expected
    small.assert_same(small.state(whole.model), small.state(resumed.model))
