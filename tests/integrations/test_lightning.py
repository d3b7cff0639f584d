"""The real Lightning trainer against a loop without one: the same numbers, and the same weights bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from integrations import raw
from integrations.lightning_parts import Module, run_of, trainer, watching
from learnscope.integrations.lightning import LearnscopeCallback, watch_lightning
from learnscope.reading.held_out import held_out_loss
from learnscope.report.facts import watched

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two epochs with accumulation, clipping, a schedule, evaluation and loggers, watched and unwatched."""
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    models, callback = [], watching()
    folder = tmp_path_factory.mktemp("fits")
    for name, own in (("plain", None), ("watched", callback)):
        loggers = [CSVLogger(folder / name), TensorBoardLogger(folder / name)]
        module = Module()
        trainer(folder / name, own, logger=loggers, log_every_n_steps=1).fit(module, raw.data(), raw.held_out())
        models.append(raw.weights(module))
    return models, run_of(callback), folder


def test_every_number_is_that_of_a_raw_loop_and_so_is_every_bit_of_the_weights(fits: Any) -> None:
    (plain, watched), run, _ = fits
    model, steps = raw.train(2)
    raw.assert_equal(raw.recorded(run), steps)
    assert raw.differing(plain, watched) == []
    assert raw.differing(raw.weights(model), watched) == []
    assert [record.error for record in run.records() if record.error] == []
    assert run.status == "finished"
    assert max(steps.before) > raw.CLIP, "the test itself: something is clipped"


def test_what_the_module_logs_is_recorded_under_its_names(fits: Any) -> None:
    _, run, _ = fits
    _, steps = raw.train(2)
    frame = run.frame("Loss").set_index(["name", "step"]).value
    assert list(frame["train_loss_step"]) == pytest.approx(steps.loss, rel=1e-5)
    assert frame["val_loss"].to_dict() == pytest.approx({4: steps.held_out[3], 8: steps.held_out[7]}, rel=1e-5)
    assert list(frame["train_loss_epoch"].index) == [4, 8]


def test_a_few_numbers_go_to_the_trainers_own_loggers(fits: Any) -> None:
    import pandas as pd
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, _, folder = fits
    _, steps = raw.train(2)
    rows = pd.read_csv(next((folder / "watched").rglob("metrics.csv")))
    own = [name for name in rows if name.startswith("learnscope/")]
    assert 3 <= len(own) <= 6
    norms = rows[["step", "learnscope/gradient_norm"]].dropna()
    assert list(norms["step"]) == list(range(8)), "the trainer's axis: the first step is 0"
    assert list(norms["learnscope/gradient_norm"]) == pytest.approx(steps.before, rel=1e-5)
    board = EventAccumulator(str(next((folder / "watched").rglob("events*")).parent)).Reload()
    values = [event.value for event in board.Scalars("learnscope/gradient_norm")]
    assert values == pytest.approx(steps.before, rel=1e-5)
    assert {name for name in board.Tags()["scalars"] if not name.startswith("learnscope/")} == {
        "epoch", "train_loss_step", "train_loss_epoch", "val_loss"
    }  # fmt: skip


def test_the_run_lies_in_the_log_folder_and_says_what_it_was_made_with(fits: Any) -> None:
    _, run, folder = fits
    assert run.path.parent.parent.parent == folder / "watched"
    attempt = run.manifest["attempts"][-1]
    assert attempt["holdout"]["source"] == "validation set"
    assert "lightning" in attempt["trainer"]
    assert list(run.frame("GradientFlow", "norm", "layer").scope.unique()) == ["0", "2"], "names of the net"


def test_each_fit_has_a_run_of_its_own_and_a_sanity_check_has_none(tmp_path: Path) -> None:
    callback = watching(probes=[ls.Loss(), ls.Holdout(every=1)])
    fitted = trainer(tmp_path, callback, max_epochs=1, num_sanity_val_steps=2, limit_train_batches=3)
    fitted.validate(Module(), raw.held_out(), verbose=False)
    assert callback.w is None
    runs = []
    for _ in range(2):
        fitted.fit_loop.max_epochs += 0 if not runs else 1
        fitted.fit(Module(), raw.data())
        runs.append(run_of(callback))
    assert [run.path.name for run in runs] == ["learnscope", "learnscope-2"]
    assert [run.last_step for run in runs] == [1, 1]
    assert runs[0].manifest["attempts"][-1]["holdout"]["source"] == "training set"


def test_a_sample_of_the_training_set_says_nothing_about_other_data(tmp_path: Path) -> None:
    """Without a validation set every row of the holdout is trained on, and the model learns them by heart."""
    callback = watching(probes=[ls.Loss(), ls.Holdout(every=1), ls.Inputs(every=1)])
    trainer(tmp_path, callback, max_epochs=2).fit(Module(), raw.data())
    run = run_of(callback)
    assert run.frame("Inputs", "holdout_overlap").value.max() == 1.0, "the test itself: rows are in the holdout"
    states = {check.name: (check.state, check.reason) for check in run.checks()}
    for name in ("overfitting", "training examples in the holdout"):
        assert states[name] == ("not applicable", "the holdout is a sample of the training set")
    assert {"overfitting", "holdout_overlap"} & {finding.kind for finding in run.findings()} == set()
    assert "says nothing about other data" in dict(watched(run))["holdout"]
    assert held_out_loss(run).name == "sample of the training set"

    given = watching(probes=[ls.Loss(), ls.Holdout(every=1), ls.Inputs(every=1)], holdout=raw.data())
    trainer(tmp_path, given, max_epochs=2).fit(Module(), raw.data())
    assert dict(watched(run_of(given)))["holdout"] == "holdout="
    assert "holdout_overlap" in {finding.kind for finding in run_of(given).findings()}, "asked for: then it is told"


def test_a_trainer_that_is_there_is_watched_by_one_call(tmp_path: Path) -> None:
    fitted = trainer(tmp_path, None, max_epochs=1, limit_train_batches=3)
    callback = watch_lightning(fitted, probes=[ls.Loss()], holdout=False)
    assert callback.run is None
    with pytest.raises(ValueError, match="already"):
        watch_lightning(fitted)
    fitted.fit(Module(), raw.data())
    assert callback.run is not None
    assert callback.run.last_step == 1
    assert "holdout" not in callback.run.manifest["attempts"][0]
    with pytest.raises(TypeError, match=r"no option 'holdot'.*Did you mean 'holdout'"):
        LearnscopeCallback(holdot=None)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_clipping_by_value_and_mixed_precision(precision: Any, tmp_path: Path) -> None:
    callback, module = watching(), Module()
    clip = {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}
    trainer(tmp_path, callback, max_epochs=1, precision=precision, **clip).fit(module, raw.data(), raw.held_out())
    mixed = precision != "32-true"
    model, steps = raw.train(1, lambda parameters: nn.utils.clip_grad_value_(parameters, 0.02), autocast=mixed)
    assert raw.differing(raw.weights(model), raw.weights(module)) == []
    found = raw.recorded(run_of(callback))
    assert found.after == pytest.approx(steps.after, rel=1e-5)
    assert found.moved == pytest.approx(steps.moved, rel=1e-5)
    assert found.loss == pytest.approx(steps.loss, rel=1e-5)


class Silent(Module):
    def training_step(self, batch: Any, index: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.soak
def test_a_compiled_module(tmp_path: Path) -> None:
    torch._dynamo.reset()
    callback, module = watching(), Silent()
    trainer(tmp_path, callback, max_epochs=1).fit(torch.compile(module, backend="eager"), raw.data(), raw.held_out())
    model, steps = raw.train(1)
    raw.assert_equal(raw.recorded(run_of(callback)), steps)
    assert raw.differing(raw.weights(model), raw.weights(module)) == []


class Stops(Module):
    """Raises in the middle of an epoch."""

    error: type[BaseException] = ZeroDivisionError

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4:
            raise self.error("in the middle")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_and_ctrl_c_close_the_run_and_say_so(error: type[BaseException], tmp_path: Path) -> None:
    import signal

    callback, module = watching(), Stops()
    module.error = error
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((ZeroDivisionError, SystemExit)):
            trainer(tmp_path, callback).fit(module, raw.data())
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning leaves it ignored
    run = ls.open_run(tmp_path / "learnscope")
    assert run.status == f"interrupted by {error.__name__}: in the middle"
    assert run.manifest["attempts"][-1]["last_step"] == 1


def test_early_stopping_and_alerts_end_a_fit(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import EarlyStopping

    callback = watching()
    stopping = EarlyStopping("val_loss", min_delta=100.0, patience=1)
    trainer(tmp_path, callback, stopping, max_epochs=9).fit(Module(), raw.data(), raw.held_out())
    assert (run_of(callback).status, run_of(callback).last_step) == ("finished", 8)

    class Broken(Module):
        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0] / (index < 3)), batch[1])

    callback = watching(alerts=[lambda finding: None], stop_on=["nonfinite"])
    fitted = trainer(tmp_path, callback, max_epochs=9, accumulate_grad_batches=1)
    fitted.fit(Broken(), raw.data(), raw.held_out())
    assert fitted.global_step < 11


def test_optimizers_that_step_by_hand_have_losses_of_their_own(tmp_path: Path) -> None:
    class Pair(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.head = nn.Linear(5, 1)

        def training_step(self, batch: Any, index: int) -> None:
            for number, (part, optimizer) in enumerate(zip((self.net, self.head), self.optimizers(), strict=True)):
                optimizer.zero_grad()
                self.manual_backward(part(batch[0]).square().mean() + number)
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net, self.head)]

        def validation_step(self, batch: Any, index: int) -> None:
            pass

    torch.manual_seed(5)
    module = Pair()
    net, head = raw.net(), nn.Linear(5, 1)
    head.load_state_dict(module.head.state_dict())
    callback = watching(probes=[ls.GradientFlow(every=1), ls.Loss()])
    fitted = trainer(tmp_path, callback, max_epochs=1, gradient_clip_val=None, accumulate_grad_batches=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ls.ProbeWarning)
        fitted.fit(module, raw.data())
    expected: list[list[float]] = [[], []]
    for x, _ in raw.data():
        for number, part in enumerate((net, head)):
            loss = part(x).square().mean() + number
            gradients = torch.autograd.grad(loss, list(part.parameters()))
            expected[number].append(float(loss.detach()))
            with torch.no_grad():
                for p, gradient in zip(part.parameters(), gradients, strict=True):
                    p -= 0.1 * gradient
    run = run_of(callback)
    assert run.last_step == 11
    frame = run.frame("Loss").set_index(["name", "step"]).value
    for number in range(2):
        assert list(frame[f"loss_{number}"]) == pytest.approx(expected[number], rel=1e-5)


def test_data_that_cannot_be_read_is_said_and_training_goes_on(tmp_path: Path) -> None:
    class Odd(Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.head(self.net(batch[0])), batch[1])

    callback = LearnscopeCallback()
    with pytest.warns(UserWarning, match="not evaluated on held-out data: validation set: Odd could not be run"):
        trainer(tmp_path, callback, max_epochs=1).fit(Odd(), raw.data(), raw.held_out())
    assert run_of(callback).manifest["attempts"][-1]["holdout"]["source"].startswith("none: ")
    assert list(run_of(callback).frame("Holdout").value) == []

    class Moved(Module):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0] / 2, batch[1]

    with pytest.warns(UserWarning, match=r"Moved\.on_after_batch_transfer makes other batches"):
        trainer(tmp_path, LearnscopeCallback(), max_epochs=1).fit(Moved(), raw.data(), raw.held_out())


def test_the_loss_of_numbers_is_read_off_the_training_step(tmp_path: Path) -> None:
    """With accumulation too, where Lightning divides it: the holdout is then scored by the same loss, unlabelled."""

    class Regression(Module):
        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.smooth_l1_loss(self.net(batch[0]), batch[1])

    held = DataLoader(TensorDataset(raw.HELD_X, torch.zeros(20, 4)), batch_size=8)
    train = DataLoader(TensorDataset(raw.X, torch.zeros(44, 4)), batch_size=4)
    callback = watching(probes=[ls.Loss(), ls.Holdout(every=1)])
    trainer(tmp_path, callback, max_epochs=1, limit_val_batches=1).fit(Regression(), train, held)
    frame = run_of(callback).frame("Holdout", "holdout_loss")
    assert "loss" not in frame or frame.loss.isna().all()


def test_what_fails_in_a_hook_is_a_warning_and_training_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    callback, module = watching(strict=False), Module()
    monkeypatch.setattr(callback, "_is_fresh", lambda *_: 1 / 0)
    with pytest.warns(ls.ProbeWarning, match="watching failed, training goes on"):
        trainer(tmp_path, callback).fit(module, raw.data(), raw.held_out())
    assert raw.differing(raw.weights(raw.train(2)[0]), raw.weights(module)) == []
    assert run_of(callback).status == "finished"


def test_an_alert_may_raise_in_a_hook(tmp_path: Path) -> None:
    class Broken(Module):
        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0] / (index < 3)), batch[1])

    callback = watching(strict=False, alerts=[lambda finding: None], stop_on=["nonfinite"], raise_on_stop=True)
    with pytest.raises(ls.TrainingStopped):
        trainer(tmp_path, callback, accumulate_grad_batches=1).fit(Broken(), raw.data(), raw.held_out())
    assert run_of(callback).status.startswith("interrupted by TrainingStopped")


def test_batches_and_examples_are_handed_over_and_early_logs_move_nothing(tmp_path: Path) -> None:
    class Telling(Module):
        def on_train_epoch_start(self) -> None:
            self.log("epoch_began", 1.0)

        def training_step(self, batch: Any, index: int) -> Any:
            logits = self.net(batch[0])
            return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits.detach()}

    indexed = ls.IndexedDataset(TensorDataset(raw.X, raw.Y))
    loader = DataLoader(indexed, batch_size=4, sampler=raw.data().sampler)
    following = [ls.ExampleLedger(), ls.BatchStats(every=1), ls.Loss()]
    callback = watching(probes=following)
    trainer(tmp_path, callback).fit(Telling(), loader)
    run = run_of(callback)
    assert list(run.frame("Loss", "loss").step) == list(range(1, 9))
    assert list(run.frame("Loss", "loss").value) == pytest.approx(raw.train(2)[1].loss, rel=1e-5)
    assert list(run.frame("BatchStats", "batch_size").step) == list(range(1, 9))
    examples = run.examples()
    assert sorted(examples.get("id", examples.index)) == list(range(44))
    assert run.frame("ExampleLedger").step.nunique() == 2

    nothing = pytest.warns(ls.ProbeWarning, match="ExampleLedger has recorded nothing")
    with nothing, pytest.warns(ls.ProbeWarning, match="needs the logits of each batch: return"):
        trainer(tmp_path, watching(probes=[ls.ExampleLedger()], strict=False), max_epochs=1).fit(Module(), loader)
