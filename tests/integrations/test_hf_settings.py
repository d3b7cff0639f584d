"""Settings of trainers: compiled models, bfloat16, other losses, evaluation sets of many kinds, trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import EVERY_STEP, Words, language_model, logged, trainer_on

EVALUATION = {"eval_dataset": Words(8, first=100)}


def twice(folder: Path, probes: Any = None, watching: Any = None, **options: Any) -> tuple[Any, ls.Run]:
    """Train without and with a callback: the same weights, bit for bit."""
    plain = trainer_on(language_model(), folder / "plain", **options)
    plain.train()
    trainer = trainer_on(language_model(), folder / "watched", **options)
    callback = ls.watch_trainer(trainer, probes=probes or [*EVERY_STEP, ls.Holdout(every=2)], **(watching or {}))
    trainer.train()
    small.assert_same(small.state(plain.model), small.state(trainer.model))
    small.assert_no_failures(callback.run)
    return trainer, callback.run


@pytest.mark.soak
def test_a_compiled_model(tmp_path: Path) -> None:
    """The model that is trained is compiled, and probes run it as it was written."""
    trainer, run = twice(tmp_path, torch_compile=True, torch_compile_backend="aot_eager", **EVALUATION)
    assert hasattr(trainer.model_wrapped, "_orig_mod"), "the test itself"
    assert list(logged(run)) == [1, 2, 3, 4, 5, 6]
    scopes = set(run.frame("ParameterChange", kind="layer").scope)
    assert scopes
    assert not any("_orig_mod" in scope for scope in scopes)
    assert len(run.frame("Holdout", "holdout_loss")) == 3


def test_bfloat16(tmp_path: Path) -> None:
    """The loss is computed under autocast, and so is that of the holdout."""
    trainer, run = twice(tmp_path, bf16=True, eval_strategy="steps", eval_steps=2, **EVALUATION)
    assert trainer.accelerator.mixed_precision == "bf16"
    ours = run.frame("Holdout", "holdout_loss").value
    assert list(ours) == pytest.approx(list(logged(run, "eval_loss").values()), rel=0.05)
    entries = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert [entry["grad_norm"] for entry in entries] == pytest.approx(small.norms(run, "before_clip")[1::2], rel=1e-4)


def test_a_loss_that_is_not_the_models_is_labelled(tmp_path: Path) -> None:
    """Label smoothing, or a loss function of the trainer's: what is evaluated is another loss, and the run says so."""

    def half(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return small.token_loss(outputs.logits, labels) / 2 / (num_items_in_batch or 1)

    for name, option in {"smoothed": {"label_smoothing_factor": 0.2}, "given": {"compute_loss_func": half}}.items():
        trainer, run = twice(tmp_path / name, logging_steps=1, **option, **EVALUATION)
        assert set(run.frame("Holdout", "holdout_loss").loss) == {"cross entropy"}
        logs = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
        assert logged(run) == logs


def test_several_evaluation_sets(tmp_path: Path) -> None:
    """The first is evaluated by its name; the trainer's own numbers of all are there."""
    sets = {"near": Words(8, first=100), "far": Words(4, first=300)}
    _, run = twice(tmp_path, eval_dataset=sets, eval_strategy="steps", eval_steps=3)
    assert run.manifest["attempts"][-1]["holdout"] == {"source": "evaluation set 'near'", "examples": 8}
    assert logged(run, "eval_near_loss").keys() == logged(run, "eval_far_loss").keys() == {3, 6}


def test_data_of_ones_own_and_none(tmp_path: Path) -> None:
    batches = [small.stacked([Words(first=200)[place] for place in range(5)])]
    _, run = twice(tmp_path / "own", watching={"holdout": batches}, **EVALUATION)
    assert run.manifest["attempts"][-1]["holdout"] == {"source": "holdout="}
    assert set(run.frame("Holdout", "holdout_examples").value) == {5}
    _, run = twice(tmp_path / "none", probes=EVERY_STEP, watching={"holdout": False}, **EVALUATION)
    assert "Holdout" not in run.manifest["probes"]


class Odd(nn.Module):
    """A model whose batches nobody can read without being told how."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, first: Tensor, second: Tensor, third: Tensor) -> dict[str, Tensor]:
        return {"loss": ((first - second * third).square() * self.weight.square()).mean()}


def test_an_evaluation_set_that_cannot_be_read_is_no_obstacle(tmp_path: Path) -> None:
    """Nobody asked for a holdout: the run is without it, and says why. One that was asked for is refused."""
    rows = [{name: torch.rand(3) for name in ("first", "second", "third")} for _ in range(8)]
    options = {"train": rows, "eval_dataset": rows, "max_steps": 2}
    trainer = trainer_on(Odd(), tmp_path, **options)
    callback = ls.watch_trainer(trainer)
    with pytest.warns(ls.ProbeWarning, match="not evaluated on the trainer's evaluation set: .*for a Odd.*Pass task="):
        trainer.train()
    assert callback.run.manifest["attempts"][-1]["holdout"]["source"].startswith("none: the evaluation set could not")
    assert len(logged(callback.run)) == 2
    trainer.remove_callback(callback)
    ls.watch_trainer(trainer, probes=[ls.Holdout(every=1)])
    with pytest.raises(ValueError, match="Holdout needs 'holdout', which watch does not have"):
        trainer.train()


def test_micro_batches_are_weighed_as_the_trainer_does(tmp_path: Path) -> None:
    """By tokens: so the noise scale is there although sizes differ, and says in what it counts."""
    trainer = trainer_on(language_model(dropout=0), tmp_path, max_steps=6)
    callback = ls.watch_trainer(trainer, probes=[ls.GradientFlow(every=1)], holdout=False)
    trainer.train()
    options = callback.run.manifest["probes"]["GradientFlow"]
    assert options["weighted_by"] == "size"
    noise = callback.run.frame("GradientFlow", "noise", "model")
    assert len(noise) == 5, "micro-batches are seen from the second step on"
    assert noise.value.notna().all()


def test_numbers_go_to_the_trackers_that_the_trainer_reports_to(tmp_path: Path) -> None:
    """TensorBoard's own reader finds them in the trainer's own file, each at its step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers.integrations import TensorBoardCallback

    trainer, run = twice(tmp_path, report_to=["tensorboard"], **EVALUATION)
    assert any(isinstance(callback, TensorBoardCallback) for callback in trainer.callback_handler.callbacks)
    (folder,) = {path.parent for path in (tmp_path / "watched").rglob("events.out.tfevents*")}
    board = EventAccumulator(str(folder)).Reload()
    tags = [tag for tag in board.Tags()["scalars"] if "learnscope" in tag]
    names = ["gradient_norm", "gradient_norm_clipped", "update_to_weight", "holdout_loss", "holdout_accuracy"]
    assert {f"train/learnscope/{name}" for name in names} <= set(tags)
    assert len(tags) < 8, "a few of them"
    written = {event.step: event.value for event in board.Scalars("train/learnscope/gradient_norm")}
    assert written == pytest.approx(dict(enumerate(small.norms(run, "before_clip"), start=1)), rel=1e-6)
    held_out = {event.step: event.value for event in board.Scalars("train/learnscope/holdout_loss")}
    frame = run.frame("Holdout", "holdout_loss")
    assert held_out == pytest.approx(dict(zip(frame.step, frame.value, strict=True)), rel=1e-6)
    assert not any("learnscope" in key for entry in trainer.state.log_history for key in entry)


def test_a_tracker_that_fails_costs_one_warning(tmp_path: Path) -> None:
    from transformers.integrations import TensorBoardCallback

    class Broken(TensorBoardCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if any(name.startswith("learnscope/") for name in logs):
                raise OSError("no room")

    trainer = trainer_on(language_model(), tmp_path, callbacks=[Broken()])
    callback = ls.watch_trainer(trainer, probes=EVERY_STEP)
    with pytest.warns(ls.ProbeWarning, match="Broken could not take learnscope's numbers .OSError: no room.") as said:
        trainer.train()
    assert len([each for each in said if "no room" in str(each.message)]) == 1
    assert callback.run.status == "finished"
