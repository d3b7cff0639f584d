"""Watching a live training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.core.handed import Examples
from learnscope.core.probe import Probe
from learnscope.model.guard import preserve_rng
from learnscope.options import explain_options, known_name, whole_number
from learnscope.probes.outputs.loss import Loss
from learnscope.run import Run
from learnscope.session import opening
from learnscope.session.defaults import choose_probes, limit_defaults
from learnscope.session.ending import finish, interrupted_by
from learnscope.session.engine import FED, Engine
from learnscope.session.loop import Loop
from learnscope.session.loop_loss import LoopLoss
from learnscope.session.opening import Exist, begin, check_model, is_there, open_backend
from learnscope.session.ranks import SilentLoop, first_step, is_silent, silent_engine
from learnscope.session.steps.optimizers import as_optimizers
from learnscope.session.subject import make_subject, provided
from learnscope.session.telling.alerts import AlertsTo, alerts_for
from learnscope.session.telling.shown import Shown
from learnscope.session.telling.told import Told
from learnscope.session.unfired import warn_of_unfired
from learnscope.task import Task
from learnscope.task.losses import LossCallable

if TYPE_CHECKING:  # a session without sinks does without these modules
    from learnscope.sinks.base import Sink


@explain_options
def watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    run: str | Path | None = None,
    probes: Sequence[Probe] | None = None,
    task: Task | None = None,
    loss: LossCallable | None = None,
    holdout: Any = None,
    train: Any = None,
    test: Any = None,
    groups: Mapping[str, str | Sequence[str]] | None = None,
    clock: Optimizer | None = None,
    sinks: Sequence[Sink] = (),
    budget: float | None = None,
    strict: bool = False,
    resume: bool = False,
    step: int | None = None,
    exist: Exist = "next",
    record_command: bool = True,
    write_every: int = 50,
    write_seconds: float = 1.0,
    alerts: AlertsTo = None,
    stop_on: Sequence[str] = (),
    raise_on_stop: bool = False,
    view: bool = False,
) -> Watch:
    """Record what happens inside `model` while the loop that follows trains it.

    Args:
        model: the module being trained, compiled or wrapped as the loop uses it.
        optimizer: the optimizer or optimizers; without one, call `w.step()` after each step.
        run: folder to write; None keeps the run in memory, as `w.run`. Of several ranks, rank 0 writes; the others'
            sessions record nothing.
        probes: what to record; by default gradients, parameter change, loss, calls of the loop, what its loss function
            and the model are given, learning rates of an optimizer, and the model on the holdout data if there is any:
            after step 1, every 10 steps to 100, then every 100, within a tenth of the wall time (or two seconds), and
            when the session closes.
        task: how a batch becomes logits and targets, where the defaults do not recognise it.
        loss: the loss that the model is trained with, for evaluations: a function of (outputs, targets) that gives a
            number or one for each example, or a module such as `nn.BCEWithLogitsLoss()`. Without it, the task's or the
            model's own; otherwise the usual one for classes, and a guess, labelled as such, for numbers.
        holdout: data that probes evaluate the model on: a loader, a data set or a list of batches.
            A loader is never iterated: its data set is read in order.
        train: training data for the probes that need it, in the same forms.
        test: test data for the probes that need it, in the same forms.
        groups: parts of the model to tell apart by a name of your own, such as `{"encoder": "encoder",
            "norms": ["*norm*"]}`: the name or path of a module, or a pattern with `*`, or several.
        clock: with several optimizers that do not step in turn, the one whose steps count. Of the others, the last
            step meanwhile is recorded, or null if there was none.
        sinks: where else records go.
        budget: the share of wall time that probes may take, such as 0.02; they are spaced out to hold it.
        strict: raise when a probe fails, instead of warning and going on.
        resume: continue the run in the folder, if there is one.
        step: with resume, the step of the checkpoint that training continues from (default: the last recorded).
        exist: what to do if the folder holds a run already and `resume` is off: "next" records into `<run>-2`, `-3`, …
            and says so, "refuse" raises. Earlier runs are never overwritten.
        record_command: False leaves the command line out of run.json; known secrets in it are hidden in any case.
        write_every: records are written together, at the latest when they are of so many steps: what a kill may lose.
            1 writes each at once. Those of a failure, or of numbers that are not finite, are written at once anyway.
        write_seconds: the same in seconds, as seen when the loop next takes a step.
        alerts: tell what goes wrong while it trains (not finite, a spike, divergence, no learning, overfitting), each
            once: True prints a line; a function, or several, is called with the finding too; so are sinks that have a
            method `alert`.
        stop_on: alerts after which `w.should_stop` is true, on rank 0: "nonfinite", "spike", "diverging",
            "not_learning", "overfitting".
        raise_on_stop: raise `ls.TrainingStopped` after the optimizer's step in place of waiting to be asked.
        view: show the run in a browser while it trains, and print the address; see `learnscope view`.
    """
    if view:
        from learnscope.session.telling.viewing import check_view

        check_view(run)
    whole_number("write_every", write_every, 1)
    known_name("exist", exist, get_args(Exist))
    if not isinstance(write_seconds, float | int) or not write_seconds >= 0:
        raise ValueError(f"write_seconds={write_seconds!r}: seconds, a number from 0")
    check_model(model)
    optimizers = as_optimizers(optimizer, model)
    clocks = as_optimizers(clock, model)
    if run is not None and is_silent(run):
        engine, step = silent_engine(model, optimizers, strict=strict), first_step(run, resume=resume, step=step)
        return Watch(engine, clock=clocks[0] if clocks else None, resume=False, step=step, loop=SilentLoop)
    with preserve_rng():
        subject = make_subject(
            model, optimizers, task=task, loss=loss, holdout=holdout, train=train, test=test, groups=groups
        )
        engine = Engine(
            subject,
            choose_probes(probes, subject),
            open_backend(run, resume=resume, exist=exist),
            source="watch",
            provides={"grads", "previous", "calls", "loss_calls", "forwards", *FED, *provided(subject)},
            sinks=sinks, strict=strict, budget=budget, record_command=record_command,
            write_every=write_every, write_seconds=write_seconds,
        )  # fmt: skip
        if probes is None:
            limit_defaults(engine.bound)
        told = alerts_for(engine, alerts, stop_on, raises=raise_on_stop)
        watched = Watch(engine, clock=clocks[0] if clocks else None, resume=resume, step=step)
        return watched.shown(told, optimizers, view=view)


class Watch(Shown, Told):
    """A live session. Close it with `close()`, or use it as a context manager."""

    def __init__(
        self, engine: Engine, *, clock: Optimizer | None, resume: bool, step: int | None, loop: type[Loop] = Loop
    ) -> None:  # fmt: skip
        self._engine, self._closed = engine, False
        again = resume and is_there(engine.backend)
        if not again:  # before anything is written
            engine.open_probes(engine.moment("open", step or 0))
        steps, epoch = begin(engine, resume=resume, step=step)
        try:
            self._loop = loop(engine, steps=steps, epoch=epoch or 0, clock=clock)
        except BaseException as error:  # no room for a copy of the weights
            finish(engine, interrupted_by(error), last_step=steps)
            raise
        self._loop_loss = LoopLoss(engine)
        self.learn_loss, self._hand_over = engine.safely(self._loop_loss.logged), engine.safely(self._loop.hand_over)
        self._take_examples = engine.safely(self._loop.take_examples)
        self._logs = any("logged" in bound.probe.needs for bound in engine.bound)
        passes = self._open_again() if again else None
        self._restored = passes is not None
        engine.closer = self._end
        self._engine.safely(self._loop.start)(passes or 1)

    def _open_again(self) -> int | None:
        """Restore the state of a run that goes on, and open the probes with it; returns what load_state gives."""
        try:
            passes = opening.load_state(self._engine, self._loop.snapshots, self.steps)
            self._engine.open_probes(self._loop.moment("open"))
            if passes is None:
                lost = opening.state_missing(self._engine, self.steps)
                self._engine.store_file("run.json", lambda: self._engine.note(state_restored=False, state_lost=lost))
        except BaseException as error:
            self._loop.detach()
            finish(self._engine, interrupted_by(error), last_step=self.steps)
            raise
        return passes

    @property
    def steps(self) -> int:
        """Training steps taken so far, those before a resume included."""
        return self._loop.steps_taken

    @property
    def run(self) -> Run:
        """The run as recorded so far."""
        self._engine.write_all()
        return Run(self._engine.backend)

    def log(self, **values: float | Tensor) -> None:
        """Record numbers of this step, such as the loss. Tensors are read later, without waiting for them."""
        if self._engine.subject.holdout is not None:
            self.learn_loss(values.get("loss"))
        if self._loop.listens and not self._logs:
            self._engine.add(Loss())
            self._logs = True
        try:  # no wrapper around what is called at every step
            self._loop.log(values)
        except Exception:  # noqa: BLE001  (ours, and not the training's)
            self._engine.failed("log")
        if self._alerts is not None:
            self._alerts.raise_if_asked()

    def batch(self, batch: Any) -> None:
        """Hand over the step's batch, for probes that look at batches."""
        self._engine.safely(self._loop_loss.batch)(batch)
        self._hand_over(batch=batch)

    def examples(self, ids: Any, logits: Tensor, targets: Tensor, *, inputs: Any = None, groups: Any = None) -> None:
        """Hand over the loop's own logits with the examples' ids, for probes that follow examples.

        Args:
            ids: of the examples, whole numbers: `learnscope.IndexedDataset` gives them some.
            logits: as the model gave them.
            targets: classes, aligned with the logits.
            inputs: what the model was given, or the whole batch, if it is always the same for an example (not
                augmented): an id that comes back with other inputs is then refused. It is also what gradient norms of
                examples are taken on; a language model's are then those of the batch's own `labels`.
            groups: the group of each example, numbers or names, to follow groups apart; by default its class.
        """
        if groups is None and self._take_examples(ids, logits, targets, inputs):  # as most are
            return
        examples = Examples.copied(ids, logits, targets, inputs, groups)
        self._engine.safely(self._loop_loss.examples)(logits, examples.targets)
        self._hand_over(examples=examples)

    def end_epoch(self) -> None:
        """Fire the probes with at="epoch"."""
        self._engine.safely(self._loop.end_epoch)()

    def step(self) -> None:
        """Count a step that no torch optimizer took: to be called after each update, before gradients are cleared."""
        if self._engine.subject.optimizers:
            raise RuntimeError("w.step() is for loops without a torch optimizer; this one is already counted")
        self._engine.safely(self._loop.manual_step)()
        self.raise_if_asked()

    def save_state(self) -> Path | None:
        """Save what resuming at this step needs; call it before you save your own checkpoint.

        None for a run in memory, and with a warning if the file could not be written: training goes on.
        """
        engine, loop = self._engine, self._loop
        with preserve_rng():
            for each in (loop.settle, loop.feed.flush, engine.write_out):
                engine.safely(each)()
            for bound in engine.bound:
                engine.safely(bound.probe.settle)(bound.state)
        name = f"the state of step {self.steps:,}"
        return engine.store_file(name, lambda: opening.save_state(engine, loop.snapshots, self.steps, loop.passes))

    def save_checkpoint(self, path: str | Path, content: Mapping[str, Any]) -> None:
        """Save the session's state and then your checkpoint, so that no checkpoint is without its state after a kill.

        Args:
            path: the file, written whole or not at all by `torch.save`; if that fails, the error is raised.
            content: what you need to go on: `{"model": model.state_dict(), "optimizer": …, "step": w.steps}`.
        """
        from learnscope.session.user_checkpoint import write_checkpoint

        self.save_state()
        write_checkpoint(Path(path), content)

    def close(self, status: str = "finished") -> None:
        """Finish the run and take every hook away. Closing twice does nothing."""
        if self._closed or self._engine.inherited:
            return
        self._closed = True
        whole = not self._engine.guarding  # else a signal has come in the middle of a measurement
        with preserve_rng():
            if whole:
                self._engine.safely(self._loop.settle)()
            self._loop.detach()
            if whole:
                self._engine.safely(self._loop.conclude)(status)
            self._engine.safely(self._engine.close)()
        self._finish(status)
        if status == "finished":  # a loop that was cut short says nothing about schedules
            warn_of_unfired(self._engine, self.steps - self._loop.first_step, epochs=self._loop.epoch)

    def _finish(self, status: str) -> None:
        skipped = self._loop.skipped_steps
        facts = {"last_step": self.steps, "skipped_steps": skipped, "state_restored": self._restored}
        self._engine.safely(finish)(self._engine, status, **facts)

    def _end(self, status: str) -> None:
        """The process ends, perhaps in the middle of `close`."""
        if self._closed:
            self._finish(status)
        else:
            self.close(status)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close("finished" if error is None else interrupted_by(error))
