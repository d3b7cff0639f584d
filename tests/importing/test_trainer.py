"""The Hugging Face Trainer: its state, its event files and its wandb run are three accounts of one training."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learnscope as ls
from importing.trainings import ended

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    folder = tmp_path_factory.mktemp("trainer")
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8, pad_token_id=0)
    torch.manual_seed(0)
    rows = [{"input_ids": (tokens := torch.randint(1, 11, (8,))), "labels": tokens} for _ in range(64)]
    before = {name: os.environ.get(name) for name in ("WANDB_MODE", "WANDB_DIR", "TENSORBOARD_LOGGING_DIR")}
    os.environ |= {
        "WANDB_MODE": "offline", "WANDB_DIR": str(folder), "TENSORBOARD_LOGGING_DIR": str(folder / "board"),
    }  # fmt: skip
    try:
        arguments = TrainingArguments(
            output_dir=str(folder / "out"), max_steps=50, logging_steps=2, eval_strategy="steps", eval_steps=10,
            save_steps=25, per_device_train_batch_size=8, report_to=["tensorboard", "wandb"], disable_tqdm=True,
            use_cpu=True, run_name="../../a run",
        )  # fmt: skip
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows[:48], eval_dataset=rows[48:])
        trainer.train()
        trainer.save_state()
        ended()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    return folder, trainer.state.log_history


def of(run: ls.Run, probe: str, name: str) -> dict[int, float]:
    frame = run.frame(probe, name)
    return dict(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))


def logged(history: list[dict[str, Any]], name: str) -> dict[int, float]:
    return {entry["step"]: entry[name] for entry in history if name in entry}


@pytest.fixture(scope="module")
def runs(trained: tuple[Path, list[dict[str, Any]]]) -> dict[str, ls.Run]:
    folder, _ = trained
    return {
        "trainer": ls.import_run(folder / "out", format="trainer"),
        "tensorboard": ls.import_run(folder / "board"),
        "wandb": ls.import_run(folder / "wandb"),
    }


def test_the_three_accounts_agree_with_what_was_logged(
    trained: tuple[Path, list[dict[str, Any]]], runs: dict[str, ls.Run]
) -> None:
    _, history = trained
    for probe, name, own in (
        ("Loss", "loss", "loss"), ("Holdout", "holdout_loss", "eval_loss"),
        ("LearningRate", "learning_rate", "learning_rate"), ("GradientFlow", "norm", "grad_norm"),
    ):  # fmt: skip
        said = logged(history, own)
        assert len(said) >= 5
        assert of(runs["trainer"], probe, name) == said, own
        assert of(runs["wandb"], probe, name) == said, own
        # event files keep float32
        assert of(runs["tensorboard"], probe, name) == {step: float(np.float32(v)) for step, v in said.items()}, own


def test_the_mean_over_the_training_is_not_taken_for_a_loss(runs: dict[str, ls.Run]) -> None:
    for format, name in (("trainer", "train_loss"), ("tensorboard", "train/train_loss")):
        assert list(of(runs[format], "Loss", name)) == [50], format
    assert runs["wandb"].manifest["imported"]["summary"]["train_loss"] > 0, "the Trainer gives it no step there"
    assert all(len(of(run, "Loss", "loss")) == 25 for run in runs.values())


def test_steps_epochs_and_settings_are_those_of_the_trainer(runs: dict[str, ls.Run]) -> None:
    wandb, state, board = (runs[name].manifest for name in ("wandb", "trainer", "tensorboard"))
    assert wandb["imported"]["step"] == "train/global_step", "wandb's own step counts calls of log"
    assert state["status"] == wandb["status"] == "finished"
    assert state["config"]["max_steps"] == wandb["config"]["max_steps"] == board["config"]["args"]["max_steps"] == 50
    assert board["config"]["model_config"]["n_layer"] == 1
    assert state["imported"]["global_step"] == 50
    for run in runs.values():
        frame = run.frame("Loss", "loss")
        epochs = dict(zip(frame["step"].tolist(), frame["epoch"].tolist(), strict=True))
        assert (epochs[6], epochs[8], epochs[50]) == (0, 1, 8), "6 steps are an epoch, and the 6th ends the first"
        assert len(of(run, "Loss", "epoch") or of(run, "Loss", "train/epoch")) >= 25, "parts of epochs are kept"


def test_findings_and_checks_work_on_them(runs: dict[str, ls.Run]) -> None:
    for run in runs.values():
        assert not [finding for finding in run.findings() if finding.severity == "critical"]
        assert next(check for check in run.checks() if check.name == "overfitting").state != "not measured"


def test_of_several_states_the_last_is_taken(trained: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder = tmp_path / "copied"  # one of its states is taken away
    shutil.copytree(trained[0] / "out", folder / "out")
    names = sorted(path.parent.name for path in (folder / "out").rglob("trainer_state.json"))
    assert names == ["checkpoint-25", "checkpoint-50", "out"]
    run = ls.import_run(folder / "out", tmp_path / "a", format="trainer")
    assert run.manifest["imported"]["files"] == [str(folder / "out" / "trainer_state.json")]
    early = ls.import_run(folder / "out" / "checkpoint-25")
    assert early.last_step == 24
    assert early.manifest["status"] is None, "a state of the middle does not say how it ended"
    (folder / "out" / "trainer_state.json").unlink()
    last = ls.import_run(folder / "out", format="trainer")
    assert "checkpoint-50" in last.manifest["imported"]["files"][0]


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ('[{"step": 1' + "0" * 30 + ', "loss": 1.0}]', r"loss has a value at step 1\.000e\+30"),
        ('[{"step": 1, "loss": ' + "9" * 5000 + "}]", "is no JSON"),
        ('[{"step": 1.5, "loss": 1.0}]', "its step is 1.5, not a whole number"),
        ("[null]", "entry 1 of log_history is None, not an object"),
    ],
)
def test_numbers_that_no_step_can_be_are_refused(history: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(f'{{"log_history": {history}}}')
    with pytest.raises(ls.RunError, match=message):
        ls.import_run(tmp_path)


def test_a_whole_number_beyond_float64_is_infinite(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 1, "loss": ' + "9" * 400 + "}]}")
    assert ls.import_run(tmp_path).frame("Loss")["status"].tolist() == ["inf"]
