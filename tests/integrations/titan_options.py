"""What a job says to learnscope, `[learnscope] options = "titan_options.watched"`."""

from __future__ import annotations

from typing import Any

import learnscope as ls


def watched(trainer: Any) -> dict[str, Any]:
    assert trainer.model_parts
    gradients = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.LearningRate(every=1)]
    return {"probes": [*gradients, ls.Loss(), ls.Holdout(every=2, keep_arrays=False)], "strict": True}


def failing(trainer: Any) -> dict[str, Any]:
    """Of a job that breaks at its third step."""
    step = trainer.train_step

    def train_step(batches: Any) -> None:
        if trainer.step == 3:
            raise ZeroDivisionError("in the middle")
        step(batches)

    trainer.train_step = train_step
    return watched(trainer)
