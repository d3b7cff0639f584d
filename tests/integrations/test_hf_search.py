"""A search for hyper-parameters: each trial is a run of its own, in the trial's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import Words, language_model, logged, trainer_on

pytestmark = pytest.mark.soak


def test_every_trial_is_a_run(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="a search needs a backend: pip install optuna")
    rates = [0.001, 0.01, 0.03]
    trainer = trainer_on(
        None, tmp_path, model_init=lambda: language_model(dropout=0), eval_dataset=Words(8, first=100), max_steps=4,
        eval_strategy="steps", eval_steps=4,
    )  # fmt: skip
    callback = ls.watch_trainer(trainer, probes=small.EVERY_STEP)

    def space(trial: Any) -> dict[str, Any]:
        rate = rates[trial.number]
        return {"learning_rate": trial.suggest_float("learning_rate", rate, rate)}

    trainer.hyperparameter_search(hp_space=space, n_trials=3, backend="optuna", direction="minimize")
    assert callback.folders == [tmp_path / f"run-{number}" / "learnscope" for number in range(3)]
    for folder, rate in zip(callback.folders, rates, strict=True):
        run = ls.open_run(folder)
        assert (run.status, len(logged(run))) == ("finished", 4)
        assert run.manifest["attempts"][-1]["trial"] == {"learning_rate": rate}
        assert run.frame("LearningRate", "learning_rate").value.iloc[0] == pytest.approx(rate)
