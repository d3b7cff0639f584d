"""What trainers do to a session: checkpoints and resuming, best models, early stops, errors, several trainings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import EVERY_STEP, Words, language_model, logged, trainer_on
from learnscope.integrations.carrying import ABOUT, STATE
from learnscope.integrations.hf import LearnscopeCallback

SAVING = {"save_strategy": "steps", "save_steps": 2, "eval_dataset": Words(8, first=100)}
PROBES = [*EVERY_STEP, ls.Holdout(every=2), ls.LoopCalls(every=2)]


def watched(folder: Path, model: Any = None, **options: Any) -> tuple[Any, LearnscopeCallback]:
    callback = LearnscopeCallback(probes=PROBES, run=options.pop("run", None), **options.pop("watching", {}))
    return trainer_on(model or language_model(), folder, callbacks=[callback], **options), callback


def numbers(run: ls.Run) -> list[tuple[Any, ...]]:
    """All that was recorded, but times."""
    frame = run.frame()
    frame = frame[~frame.name.str.contains("runtime|per_second|total_flos|train_loss")]
    return sorted((r.step, r.probe, r.name, r.scope, str(r.stage), repr(r.value)) for r in frame.itertuples())


def closed(callback: LearnscopeCallback) -> str:
    assert callback.watch is None
    return str(callback.run.status)


def test_a_resumed_training_goes_on_with_its_run(tmp_path: Path) -> None:
    """After a break at step 5, from the checkpoint of step 4, in a folder that has moved: as if it had never been."""
    whole, callback = watched(tmp_path / "whole", **SAVING)
    whole.train()
    expected = numbers(callback.run)

    trainer, callback = watched(tmp_path / "parts", **SAVING)
    _raise_at(trainer, 5, RuntimeError("the machine"))
    with pytest.raises(RuntimeError, match="the machine"):
        trainer.train()
    assert closed(callback) == "interrupted by RuntimeError: the machine"
    checkpoint = tmp_path / "parts" / "checkpoint-4"
    assert {STATE, ABOUT} <= {path.name for path in checkpoint.iterdir()}

    (tmp_path / "parts").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "learnscope" / "state")  # the checkpoint has its own
    trainer, callback = watched(tmp_path / "moved", **SAVING)
    trainer.train(resume_from_checkpoint=True)
    run = callback.run
    assert callback.folders == [tmp_path / "moved" / "learnscope"]
    assert [entry["start_step"] for entry in run.manifest["attempts"]] == [0, 4]
    assert run.manifest["attempts"][-1]["state_restored"] is True
    assert run.status == "finished"
    assert numbers(run) == expected
    small.assert_same(small.state(whole.model), small.state(trainer.model))


def test_a_checkpoint_without_a_run_is_said(tmp_path: Path) -> None:
    trainer = trainer_on(language_model(), tmp_path, **SAVING)
    trainer.args.max_steps = 2
    trainer.train()
    trainer, callback = watched(tmp_path, **SAVING)
    with pytest.warns(
        ls.ProbeWarning, match=r"goes on at step 2 of a run that is not known: .*was saved without learns"
    ):
        trainer.train(resume_from_checkpoint=True)
    assert min(logged(callback.run)) == 3, "a new run, whose steps are the trainer's"

    shutil.rmtree(callback.folders[-1])
    trainer, callback = watched(tmp_path, **{**SAVING, "max_steps": 8})
    with pytest.warns(ls.ProbeWarning, match=r"the run of .*checkpoint-6, .* is not there any more"):
        trainer.train(resume_from_checkpoint=True)

    (tmp_path / "checkpoint-6" / ABOUT).write_text(json.dumps({"run": "../learnscope", "absolute": "/nowhere"}))
    (tmp_path / "checkpoint-6" / STATE).unlink()
    trainer, callback = watched(tmp_path, **{**SAVING, "max_steps": 8})
    with pytest.warns(ls.ProbeWarning, match=r"no state was saved at step 6, so what .*ParameterChange.* is lost"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_the_best_model_is_loaded_after_the_run_is_closed(tmp_path: Path) -> None:
    """What is measured at the end is the model that was trained, not the one that is put in its place afterwards."""
    from transformers import EarlyStoppingCallback

    trainer, callback = watched(
        tmp_path, **SAVING, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, max_steps=40,
        metric_for_best_model="eval_loss", greater_is_better=True, learning_rate=0.05,
    )  # fmt: skip
    trainer.add_callback(EarlyStoppingCallback(2))
    trainer.train()
    run, best = callback.run, trainer.state.best_global_step
    assert best == 2, "the test itself: the highest loss is the first"
    assert run.last_step == trainer.state.global_step == 6, "stopped after two that were not better"
    assert run.status == "finished"
    change = run.frame("ParameterChange", "l2", "model")
    assert list(change.step) == [1, 2, 3, 4, 5, 6]
    assert set(logged(run, "eval_loss")) == {2, 4, 6}


class Stops(nn.Module):
    """A model of one's own, without transformers' classes, that breaks at a step."""

    def __init__(self, at: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.at, self.error, self.calls = at, error, 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.inner(x)
        if self.training and torch.is_grad_enabled():
            self.calls += 1
            if self.calls == self.at:
                if self.error is not None:
                    raise self.error
                logits = logits * torch.nan
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def points(size: int = 24) -> list[dict[str, Tensor]]:
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": (row[0] > 0).long()} for row in x]


def _raise_at(trainer: Any, step: int, error: BaseException) -> None:
    from transformers import TrainerCallback

    class Raises(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step - 1:
                raise error

    trainer.add_callback(Raises())


@pytest.mark.parametrize("added", ["in the call", "afterwards", "by watch_trainer"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no")], ids=repr)
def test_an_error_in_the_middle_closes_the_run(added: str, error: BaseException, tmp_path: Path) -> None:
    callback = LearnscopeCallback(probes=[ls.Loss()], holdout=False)
    model = Stops(7, error)
    trainer = trainer_on(
        model, tmp_path, train=points(), callbacks=[callback] if added == "in the call" else [],
    )  # fmt: skip
    if added == "afterwards":
        trainer.add_callback(callback)
    elif added == "by watch_trainer":
        callback = ls.watch_trainer(trainer, probes=[ls.Loss()], holdout=False)
    methods = type(trainer).training_step
    with pytest.raises(type(error)):
        trainer.train()
    assert closed(callback).startswith(f"interrupted by {type(error).__name__}")
    assert list(logged(callback.run)) == [1, 2, 3]
    assert trainer.training_step.__func__ is methods, "the trainer's methods are its own again"
    assert trainer.accelerator is not None


def test_a_nan_that_the_trainer_hides_is_seen(tmp_path: Path) -> None:
    """`logging_nan_inf_filter` puts the mean of the others in its place."""
    callback = LearnscopeCallback()
    trainer = trainer_on(Stops(5), tmp_path, train=points(), callbacks=[callback], logging_steps=1, max_steps=3)
    trainer.train()
    logs = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert logs[3] == logs[3], "the test itself: it is hidden"
    run = callback.run
    frame = run.frame("Loss", "loss")
    assert list(frame[frame.step == 3].status) == ["nan"]
    found = next(finding for finding in run.findings() if finding.severity == "critical")
    assert found.kind == "nonfinite"


def test_each_training_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Twice by one trainer, and the second from where the weights are."""
    trainer, callback = watched(tmp_path, max_steps=2)
    first = small.state(trainer.model)
    trainer.train()
    between = small.state(trainer.model)
    trainer.train()
    assert callback.folders == [tmp_path / "learnscope", tmp_path / "learnscope-2"]
    for folder, before in zip(callback.folders, (first, between), strict=True):
        run = ls.open_run(folder)
        assert (run.status, list(logged(run))) == ("finished", [1, 2])
        total = sum(float(value.double().square().sum()) for value in before.values()) ** 0.5
        ratio = run.frame("ParameterChange", "update_to_weight", "model").value.iloc[0]
        moved = run.frame("ParameterChange", "l2", "model").value.iloc[0]
        assert moved / ratio == pytest.approx(total, rel=1e-5), "measured from its own first weights"


def test_a_training_that_begins_again_with_a_smaller_batch(tmp_path: Path) -> None:
    """`auto_find_batch_size`: memory runs out, and the trainer starts over within one `train()`."""
    model = Stops(3, RuntimeError("CUDA out of memory."))
    callback = LearnscopeCallback(probes=[ls.Loss()], holdout=False)
    options = {"auto_find_batch_size": True, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    trainer = trainer_on(model, tmp_path, train=points(), callbacks=[callback], **options, max_steps=4)
    trainer.train()
    assert [ls.open_run(folder).status for folder in callback.folders] == [
        "interrupted: the trainer began again", "finished",
    ]  # fmt: skip
    assert list(logged(callback.run)) == [1, 2, 3, 4]


def test_an_alert_can_stop_the_trainer(tmp_path: Path) -> None:
    told: list[ls.Finding] = []
    callback = LearnscopeCallback(alerts=told.append, stop_on=("nonfinite",))
    trainer = trainer_on(Stops(1), tmp_path, train=points(), callbacks=[callback], max_steps=30)
    trainer.train()
    assert [finding.kind for finding in told] == ["nonfinite"]
    assert trainer.state.global_step < 10


def test_epochs_end_where_the_trainers_do(tmp_path: Path) -> None:
    """24 examples in steps of 4: the third epoch is broken off, and did not end."""

    @ls.probe(at="epoch")
    def ended(moment: ls.Moment) -> dict[str, float]:
        return {"at": float(moment.step)}

    trainer = trainer_on(language_model(), tmp_path, max_steps=15)
    callback = ls.watch_trainer(trainer, probes=[ended])
    trainer.train()
    frame = callback.run.frame("ended")
    assert list(zip(frame.epoch, frame.value, strict=True)) == [(0, 6), (1, 12)]
