"""transformers' `Trainer` with accumulation, clip, evaluation, checkpoints: the run says what a raw loop computes."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import EVERY_STEP, Words, language_model, logged, trainer_on
from learnscope.integrations.hf import LearnscopeCallback
from learnscope.reading.held_out import held_out_loss
from learnscope.report.facts import watched

STEPS = 6
USUAL = {
    "eval_dataset": Words(8, first=100), "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps",
    "save_steps": 3, "train_sampling_strategy": "sequential",
}  # fmt: skip


class Trained(NamedTuple):
    trainer: Any
    callback: LearnscopeCallback
    run: ls.Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Without dropout, so that a raw loop can do the same."""
    callback = LearnscopeCallback(probes=[*EVERY_STEP, ls.Holdout(every=2), ls.LoopCalls(every=1), ls.LostSteps()])
    folder = tmp_path_factory.mktemp("trained")
    trainer = trainer_on(language_model(dropout=0), folder, callbacks=[callback], **USUAL)
    trainer.train()
    return Trained(trainer, callback, callback.run)


def test_losses_gradients_and_deltas_are_those_of_a_raw_loop(trained: Trained) -> None:
    """Micro-batches count by their tokens: the loss is Σ over both / tokens of both, not the mean of two means."""
    model = language_model(dropout=0).train()
    steps = small.in_order(Words(), STEPS)
    assert len({small.tokens(batch) for step in steps for batch in step}) > 3, "the test itself: sizes differ"

    def part(batch: dict[str, Tensor], step: Any) -> Tensor:
        every_token = sum(small.tokens(each) for each in step)
        return small.token_loss(model(batch["input_ids"]).logits, batch["labels"]) / every_token

    small.assert_equals_the_loop(trained.run, small.raw_loop(model, steps, part))
    small.assert_no_failures(trained.run)
    theirs = small.state(trained.trainer.model)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, theirs[name], atol=1e-4), name


def test_final_weights_are_the_same_bits_without_it(tmp_path: Path) -> None:
    """With dropout, which a moved random state shows at once, and with everything that a session does by default."""
    weights = []
    for with_it in (False, True):
        trainer = trainer_on(language_model(), tmp_path / str(with_it), **{**USUAL, "eval_on_start": True})
        if with_it:
            callback = ls.watch_trainer(trainer)
        trainer.train()
        weights.append((small.state(trainer.model), [entry.get("loss") for entry in trainer.state.log_history]))
    small.assert_same(weights[0][0], weights[1][0])
    assert weights[0][1] == weights[1][1]
    assert "training_step" not in vars(trainer), "its methods are its own again"
    run = callback.run
    assert run.status == "finished"
    assert 0 in logged(run, "eval_loss"), "evaluated before the first step"
    assert logged(run)[2] == pytest.approx(2 * weights[1][1][1] - logged(run)[1], rel=1e-5), (
        "and losses keep their steps"
    )
    small.assert_no_failures(run)
    assert set(run.frame("Objective", "objective_value").reduction) == {"sum"}, "the model sums, and divides by tokens"
    found = run.findings()
    assert "summed_loss" not in {finding.kind for finding in found}
    assert [finding.title for finding in found if finding.severity != "info"] == []


def test_what_the_trainer_logs_is_in_the_run_under_its_own_names(trained: Trained) -> None:
    run, history = trained.run, trained.trainer.state.log_history
    for entry in history:
        step = entry["step"]
        for name in entry.keys() - {"step", "epoch", "loss", "learning_rate"}:
            assert logged(run, name)[step] == entry[name]
        if "loss" in entry:  # of two steps each
            ours = logged(run)
            assert entry["loss"] == pytest.approx((ours[step] + ours[step - 1]) / 2, rel=1e-6)
            assert entry["grad_norm"] == pytest.approx(small.norms(run, "before_clip")[step - 1], rel=1e-4)
    assert list(logged(run)) == [1, 2, 3, 4, 5, 6]
    assert set(logged(run, "eval_loss")) == {2, 4, 6}
    assert set(logged(run, "train_runtime")) == {6}


def test_the_holdout_is_the_trainers_own_evaluation_set(trained: Trained) -> None:
    """The number is that of all tokens; the trainer's own is a mean of batches, which differ in theirs."""
    run, model, data = trained.run, trained.trainer.model, Words(8, first=100)
    assert run.manifest["attempts"][-1]["holdout"] == {"source": "evaluation set", "examples": 8}
    frame = run.frame("Holdout", "holdout_loss")
    assert list(frame.step) == [2, 4, 6]
    batch = small.stacked([data[place] for place in range(8)])
    with torch.no_grad():
        loss = small.token_loss(model.eval()(batch["input_ids"]).logits, batch["labels"]) / small.tokens(batch)
    assert frame.value.iloc[-1] == pytest.approx(float(loss), rel=1e-5), "measured in eval mode, at its own step"
    assert "loss" not in run.frame("Holdout") or run.frame("Holdout").loss.isna().all(), "known to be the trained loss"
    calls = run.frame("LoopCalls").groupby("name").value.sum()
    assert calls["steps"] == STEPS
    assert calls["backwards"] == 2 * STEPS


def test_the_run_is_in_the_output_folder_and_says_who_trained(trained: Trained) -> None:
    import transformers

    folder = Path(trained.trainer.args.output_dir)
    assert trained.callback.folders == [folder / "learnscope"]
    attempt = trained.run.manifest["attempts"][-1]
    assert attempt["trainer"] == {"class": "Trainer", "transformers": transformers.__version__}
    assert (trained.run.status, trained.callback.watch) == ("finished", None)


PROGRAM = """
from integrations.hf_small import language_model, trainer_on
import learnscope as ls
from learnscope.integrations.hf import LearnscopeCallback
trainer = trainer_on(
    language_model(), FOLDER,
    max_steps=2,
)
trainer.train()
"""
WATCHED = {
    "a callback": PROGRAM.replace("    max_steps=2,\n", "    max_steps=2,\n    callbacks=[LearnscopeCallback()],\n"),
    "watch_trainer": PROGRAM.replace("trainer.train()", "ls.watch_trainer(trainer)\ntrainer.train()"),
}


@pytest.mark.parametrize("how", WATCHED)
def test_it_takes_one_line(how: str, tmp_path: Path) -> None:
    added = [line for line in difflib.ndiff(PROGRAM.splitlines(), WATCHED[how].splitlines()) if line[0] in "+-"]
    assert len(added) == 1
    exec(WATCHED[how], {"FOLDER": tmp_path})
    run = ls.open_run(tmp_path / "learnscope")
    assert (run.status, run.last_step) == ("finished", 2)
    assert len(logged(run)) == 2
    # without an evaluation set, a sample of the training set: called so, and nothing is concluded about other data
    assert run.manifest["attempts"][-1]["holdout"] == {"source": "training set", "examples": 24}
    states = {check.name: (check.state, check.reason) for check in run.checks()}
    for name in ("overfitting", "training examples in the holdout"):
        assert states[name] == ("not applicable", "the holdout is a sample of the training set")
    assert "says nothing about other data" in dict(watched(run))["holdout"]
    assert held_out_loss(run).name == "sample of the training set"


def test_anything_else_is_refused_by_name() -> None:
    from transformers import Trainer

    with pytest.raises(
        TypeError, match=r"a Linear is no trainer of transformers, TRL or Lightning\..*ls\.watch\(model"
    ):
        ls.watch_trainer(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="Trainer is a class: pass the trainer itself"):
        ls.watch_trainer(Trainer)
    with pytest.raises(TypeError, match=r"LearnscopeCallback has no option 'prob'.*Did you mean 'probes'"):
        LearnscopeCallback(prob=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option 'resume'"):
        LearnscopeCallback(resume=True)
