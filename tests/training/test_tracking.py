"""Tracking: the same training to the last bit, the documented files, and an end in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import learnscope as ls
from learnscope.trackers import GradientFlowTracker, SpectralTracker
from learnscope.training.errors import TrainError
from training.small import BOTH, assert_same, trained, weights

TREE = (
    "spectral_logs/spectral_history.pt", "spectral_logs/spectral_history_summary.json",
    "gradient_logs/gradient_flow.pt", "gradient_logs/gradient_flow_summary.json",
    "gradient_logs/gradient_heatmap_A.png", "gradient_logs/gradient_heatmap_B.png",
    "gradient_logs/gradient_layer_comparison.png", "spectral_history_final.pt", "gradient_flow_final.pt",
)  # fmt: skip
GRPO = {"method": "grpo", "num_generations": 4, "max_completion_length": 6, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def sft(base: Path, tmp_path_factory: Any) -> tuple[Path, Any, str]:
    folder = tmp_path_factory.mktemp("sft") / "out"
    outcome, said = trained(base, folder, *BOTH, figures=True)
    return folder, outcome, said


def test_a_tracked_sft_is_the_same_to_the_last_bit(base: Path, tmp_path: Path, sft: tuple[Path, Any, str]) -> None:
    plain, _ = trained(base, tmp_path / "plain")
    assert not (tmp_path / "plain" / "run").exists()
    assert_same(weights(plain), weights(sft[1]))


@pytest.mark.parametrize("family", [pytest.param("lora", marks=pytest.mark.soak), "adalora"])
def test_a_tracked_grpo_is_the_same_to_the_last_bit(base: Path, tmp_path: Path, family: str) -> None:
    """Sampling draws random numbers at every step: one that tracking took away would show."""
    flags = ("--config.peft.type", family)
    plain, _ = trained(base, tmp_path / "plain", *flags, **GRPO)
    tracked, said = trained(base, tmp_path / "tracked", *flags, *BOTH, **GRPO)
    assert_same(weights(plain), weights(tracked))
    run = ls.open_run(tmp_path / "tracked" / "run")
    rewards = [entry["reward"] for entry in plain.trainer.state.log_history if "reward" in entry]
    assert len(rewards) == 4
    assert run.frame("Loss", "reward").value.tolist() == pytest.approx(rewards)
    assert f"reward {rewards[0]:.3g} → {rewards[-1]:.3g}" in said


def test_the_documented_tree(sft: tuple[Path, Any, str]) -> None:
    folder, _, said = sft
    assert [name for name in TREE if not (folder / name).stat().st_size] == []
    for step in (2, 4):
        for name in ("spectral_history.pt", "gradient_flow.pt"):
            kind = SpectralTracker if name == "spectral_history.pt" else GradientFlowTracker
            assert kind.load(folder / f"checkpoint-{step}" / name).steps == list(range(2, step + 1, 2))
    assert f"next: learnscope report {folder / 'run'}" in said
    assert "No problems found; not checked: " in said, "findings are shown as a report shows them"
    assert "4 steps" in said


def test_the_closing_probe_looks_at_examples_that_were_not_trained_on(sft: tuple[Path, Any, str]) -> None:
    folder, outcome, _ = sft
    run = ls.open_run(folder / "run")
    record = next(record for record in run.records() if record.probe == "AdapterTruncation")
    assert record.error is None
    assert record.step == 4
    assert record.notes["examples"] == 8
    taught = {tuple(row["input_ids"]) for row in outcome.trainer.train_dataset}
    assert len(taught) > 30
    held = [tuple(row["input_ids"]) for row in outcome.trainer.eval_dataset]
    assert len(held) == 8
    assert sum(row in taught for row in held) == 0


def test_only_what_was_asked_for_is_tracked(base: Path, tmp_path: Path) -> None:
    flags = ["--enable_gradient_tracking", "--tracking_frequency", "2", "--tracking_output_dir", str(tmp_path / "logs")]
    trained(base, tmp_path / "out", *flags, "--config.tracker.save_with_checkpoints", "false")
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"gradient_logs", "gradient_flow_final.pt"}
    assert not list((tmp_path / "out").glob("*/gradient_flow.pt"))
    assert {record.probe for record in ls.open_run(tmp_path / "out" / "run").records()} == {
        "AdapterGradients", "Loss", "LearningRate",
    }  # fmt: skip
    with pytest.raises(TrainError, match=r"gradient_logs is there from an earlier training"):
        trained(base, tmp_path / "other", *flags)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("out of memory")])
def test_a_training_that_breaks_off_leaves_its_files(base: Path, tmp_path: Path, error: Any) -> None:
    from learnscope.training import screen

    def stop(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 3:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen.ProgressLines, "on_step_end", stop)
        with pytest.raises(type(error) if isinstance(error, Exception) else error):
            trained(base, tmp_path / "out", *BOTH, figures=True)
    assert [name for name in TREE if not (tmp_path / "out" / name).stat().st_size] == []
    run = ls.open_run(tmp_path / "out" / "run")
    assert run.manifest["status"].startswith(f"interrupted by {getattr(error, '__name__', type(error).__name__)}")
    assert not (tmp_path / "out" / "adapter_model.safetensors").exists()
    assert sorted(set(run.frame("AdapterSpectrum").step)) == [2]


def test_a_failure_of_tracking_does_not_end_the_training(
    base: Path, tmp_path: Path, sft: tuple[Path, Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpectralTracker, "save", full)
    outcome, said = trained(base, tmp_path / "out", *BOTH)
    assert said.count("tracking has failed and training goes on: OSError: [Errno 28] No space left on device") == 1
    assert "the trackers' files could not be written" in said
    assert_same(weights(outcome), weights(sft[1]))
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    assert ls.open_run(tmp_path / "out" / "run").manifest["status"] == "finished"


def test_epochs_are_ended_when_they_end(base: Path, tmp_path: Path) -> None:
    """40 examples in batches of 8: five steps an epoch; the third epoch is not finished."""
    trained(base, tmp_path / "out", *BOTH, max_steps=12)
    run = ls.open_run(tmp_path / "out" / "run")
    epochs = run.frame("Loss", "loss").set_index("step").epoch
    assert [int(epochs[step]) for step in (5, 6, 10, 11, 12)] == [0, 1, 1, 2, 2]
