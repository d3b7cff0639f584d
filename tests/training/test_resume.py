"""A training that is broken off and resumed ends where an uninterrupted one does, and so do its records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import learnscope as ls
from learnscope.training.errors import TrainError
from training.small import BOTH, assert_same, trained, weights

RESUME = {"resume_from_checkpoint": "latest"}
LONG = {"max_steps": 6, "save_steps": 3, "learning_rate": 1e-2}


def broken_off(base: Path, folder: Path, *flags: str, **training: object) -> None:
    """Ends after the fourth step, when the checkpoint of the third is there."""
    from transformers import TrainerCallback

    from learnscope.training import screen

    def stop(self: TrainerCallback, args: object, state: object, control: object, **given: object) -> None:
        if state.global_step == 4:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen.ProgressLines, "on_step_end", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(base, folder, *flags, **training)


SELDOM = [pytest.param(family, marks=pytest.mark.soak) for family in ("lora-fa", "pissa")]


@pytest.mark.parametrize("family", ["lora", "adalora", *SELDOM])
def test_sft_ends_bit_for_bit_the_same(base: Path, tmp_path: Path, family: str) -> None:
    flags = ("--config.peft.type", family, "--config.peft.lora_dropout", "0.1", *BOTH)
    whole, _ = trained(base, tmp_path / "whole", *flags, **LONG)
    broken_off(base, tmp_path / "broken", *flags, **LONG)
    resumed, said = trained(base, tmp_path / "broken", *flags, **LONG, **RESUME)
    assert f"from {tmp_path / 'broken' / 'checkpoint-3'}" in said
    assert resumed.trainer.state.global_step == 6
    assert_same(weights(whole), weights(resumed))
    told = ls.open_run(tmp_path / "whole" / "run"), ls.open_run(tmp_path / "broken" / "run")
    assert len(told[1].manifest["attempts"]) == 2
    for probe in ("AdapterSpectrum", "AdapterGradients", "Loss"):
        a, b = (run.frame(probe).drop(columns=["attempt", "time", "cost"]) for run in told)
        keys = [column for column in a.columns if column != "value"]
        a, b = (frame.sort_values(keys).reset_index(drop=True) for frame in (a, b))
        assert a[keys].equals(b[keys])
        assert a.value.tolist() == pytest.approx(b.value.tolist(), rel=1e-12, nan_ok=True)


def test_grpo_ends_bit_for_bit_the_same(base: Path, tmp_path: Path) -> None:
    """The trainer restores the random state that sampling draws from; one generation a step leaves none half used."""
    options = {**LONG, "method": "grpo", "num_generations": 4, "max_completion_length": 6}
    whole, _ = trained(base, tmp_path / "whole", *BOTH, **options)
    broken_off(base, tmp_path / "broken", *BOTH, **options)
    resumed, _ = trained(base, tmp_path / "broken", *BOTH, **options, **RESUME)
    assert_same(weights(whole), weights(resumed))
    rewards = [
        ls.open_run(tmp_path / name / "run").frame("Loss", "reward").value.tolist() for name in ("whole", "broken")
    ]
    assert len(rewards[0]) == 6
    assert rewards[0] == rewards[1]


def test_a_training_of_an_earlier_run_is_left_alone(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    trained(base, folder, *BOTH)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(TrainError, match=r"left as it is.*resume_from_checkpoint latest.*overwrite_output_dir true"):
        trained(base, folder, *BOTH)
    with pytest.raises(TrainError, match="nothing is left to train; raise max_steps"):
        trained(base, folder, *BOTH, **RESUME)
    with pytest.raises(TrainError, match=r"cannot be loaded|there is no such folder"):
        trained(Path("not/there"), folder, overwrite_output_dir="true")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "notes.txt").write_text("mine")
    outcome, _ = trained(base, folder, overwrite_output_dir="true", max_steps=2)
    assert outcome.trainer.state.global_step == 2
    assert not (folder / "run").exists()
    assert not (folder / "checkpoint-4").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_not_ours_is_never_cleared(base: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    with pytest.raises(TrainError, match=r"has no train_config.yaml.* nothing in it is removed"):
        trained(base, tmp_path, overwrite_output_dir="true")
    assert (tmp_path / "checkpoint-7").is_dir()


def test_checkpoints_that_do_not_fit(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(TrainError, match="there is no checkpoint in"):
        trained(base, folder, **RESUME)
    trained(base, folder)
    with pytest.raises(TrainError, match=r"its adapter has peft_type='LORA', and config.peft asks for 'IA3'"):
        trained(base, folder, "--config.peft.type", "ia3", max_steps=8, **RESUME)
    with pytest.raises(TrainError, match=r"its adapter has r=4, and config.peft asks for 2"):
        trained(base, folder, "--config.peft.r", "2", max_steps=8, **RESUME)
    with pytest.raises(TrainError, match="there is no folder"):
        trained(base, folder, resume_from_checkpoint=tmp_path / "nothing")
    state = folder / "checkpoint-4" / "trainer_state.json"
    state.write_text(json.dumps(json.loads(state.read_text()))[:40])
    with pytest.raises(TrainError, match="missing or damaged"):
        trained(base, folder, max_steps=8, **RESUME)


def test_tracking_may_begin_when_resuming(base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path / "out")
    outcome, _ = trained(base, tmp_path / "out", *BOTH, max_steps=8, **RESUME)
    run = ls.open_run(tmp_path / "out" / "run")
    assert sorted(set(run.frame("AdapterSpectrum").step)) == [6, 8]
    assert outcome.tracking.failure is None
