"""A watched training loop: what it hands over, and what happens at each hook of a training step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from learnscope.core.handed import HandedOver, MicroBatches
from learnscope.core.moment import Moment
from learnscope.core.probe import is_due, prepares
from learnscope.probes.gradients.lost_steps import LostSteps
from learnscope.session.bound import Bound
from learnscope.session.counting.quiet import StepCount
from learnscope.session.engine import Engine
from learnscope.session.steps.attempts import Attempts
from learnscope.session.steps.backwards import Backwards, MicroBatchMeter, is_one_of_several
from learnscope.session.steps.calls import Calls
from learnscope.session.steps.due import DueSteps
from learnscope.session.steps.ends import StepEnds
from learnscope.session.steps.fed import FedProbes, collects_until_epoch
from learnscope.session.steps.feed import Feed
from learnscope.session.steps.handing import Handing
from learnscope.session.steps.listening import Listening
from learnscope.session.subject import snapshot_key, take_snapshots
from learnscope.session.unfired import unmeasured_end

NO_STEPS = (
    "the loop had backward passes and no step, so nothing of its steps was recorded: pass the optimizer, "
    "ls.watch(model, optimizer), or call w.step() after each step"
)


class Loop(Handing):
    """Fires the probes that are due at the hooks of one training loop."""

    listens = True
    """Whether what the loop hands over is recorded."""

    def __init__(self, engine: Engine, *, steps: int, epoch: int, clock: Optimizer | None) -> None:
        self.engine, self.subject = engine, engine.subject
        self.epoch = epoch
        self.skipped_steps = 0
        self.snapshots = take_snapshots(self.subject, [bound.probe for bound in engine.bound], steps)
        self._names_rows = any(isinstance(b.probe, LostSteps) or "logged" in b.probe.needs for b in engine.bound)
        self._fed = FedProbes(engine)
        self._fed.epoch = epoch
        waits = engine.write_every > 1 and engine.write_seconds > 0
        self.feed = Feed(engine.safely(self._fed.complete), self._fed.note, lag=int(waits))
        self.sizes: list[float] = []
        self._before: Sequence[Bound] = ()
        self._after: Sequence[Bound] = ()
        self._meter: MicroBatchMeter | None = None
        self._times_out_of_turn = 0
        self._of_one_rank = is_one_of_several()
        counts = any("calls" in bound.probe.needs for bound in engine.bound)
        self._counts = counts
        self._backwards = Backwards(self.subject, engine.failed, follow=counts)
        self._count = StepCount(engine, self.feed, self._backwards, steps, follows=counts)
        self._listening = Listening(engine)
        self._due = DueSteps(engine)
        self._seen_at_last_step = 0
        self._seen_when_opened = 0
        self._micro_batches: MicroBatches | None = None
        self._calls = Calls(self.subject, self._backwards, self._count.quiet, counts=counts)
        self._attempts = Attempts(engine, self._backwards, self._calls, self._count.quiet, self.feed, self.moment)
        if counts:
            self._backwards.on_reach = self._calls.reached
        self._ends = StepEnds(
            engine, self, self._calls if counts else None, self._attempts if counts else None, self._count.quiet
        )
        self._count.plan = self._plan_step
        self._count.ended = self._calls.quiet_steps_ended if counts else self._backwards.quiet_steps_ended
        self._calls.on_pending = self._count.catch_up
        self._ends.attach(self.subject.optimizers, clock)

    def start(self, passes: int = 1) -> None:
        """Fire the probes with at="once", and plan the first step; `passes` is the backward passes of a step."""
        self._fire(self.engine.due("once", 1), self.moment("once"))
        self._plan_step(passes)

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self._count.steps

    @property
    def first_step(self) -> int:
        """How many there were when the session began."""
        return self._count.first

    @property
    def passes(self) -> int:
        """Backward passes of the last step."""
        return self._count.passes

    @property
    def steps_taken(self) -> int:
        """Training steps, with one that is open if it will count."""
        return self.steps + self._ends.counted

    @property
    def measures_micro_batches(self) -> bool:
        return self._meter is not None

    def settle(self) -> None:
        """Nothing more will come of the training step that is open."""
        if self._count.quiet.pending:
            self._count.catch_up()
        self._ends.settle()

    def moment(self, phase: str, step: int | None = None, **details: Any) -> Moment:
        return self.engine.moment(phase, self.steps if step is None else step, epoch=self.epoch, **details)

    def end_epoch(self) -> None:
        self.settle()
        self.feed.flush()
        self._fire(self.engine.due("epoch", self.epoch + 1), self.moment("epoch"))
        self.epoch += 1
        self._fed.epoch = self.epoch
        self.engine.write_out()

    def conclude(self, status: str) -> None:
        """The loop is over: probes that collect hand-overs measure, and so do those with at="end"."""
        finished = status == "finished"
        self._attempts.end(status)
        self.feed.flush()
        collecting = [b for b in self.engine.bound if collects_until_epoch(b.probe) and (b.waiting or b.fired)]
        self._fire(collecting, self.moment("after_step"))
        if self._backwards.passes and self.steps == self.first_step and not self.subject.optimizers:
            self.engine.warn("steps", NO_STEPS)
        self._calls.settle(self._backwards.passes)
        if finished:
            unmeasured = unmeasured_end(self.engine, self.steps, self.first_step)
            self._fire([*unmeasured, *self.engine.due("end", 1)], self.moment("end"))

    def manual_step(self) -> None:
        """A step that no torch optimizer took. Gradients are those not cleared yet."""
        self._calls.begins(None)
        self.step_opened()
        self.gradients_known()
        self._calls.stepped(None)
        self.step_ended()

    def detach(self) -> None:
        self._ends.close()
        self._backwards.close()
        self._calls.close()
        self._listening.stop()
        self._attempts.close()
        if self._meter is not None:
            self._meter.close()

    # the hook points, in the order of a step

    def _plan_step(self, passes: int) -> None:
        """Decide which probes are due at the coming step, and listen to its micro-batches if a probe uses them."""
        self._count.passes = passes
        # decided before the step, so that what is gone afterwards can be kept
        self._before, self._after = self._due.at(self.steps + 1)
        if self._before or not self._listening.idle:
            self._listening.plan(self._before)
        self._ends.forget()
        if self.sizes:
            self.sizes.clear()
        if passes > 1 and self._micro_batch_users():
            self._meter = MicroBatchMeter(self.subject.parameters, of_one_rank=self._of_one_rank)
        self._count.quiet.number = self.subject.calls.steps
        self._count.may_be_quiet(self._due.next, now=self._is_quiet())

    def _is_quiet(self) -> bool:
        """Whether the coming step has only to be counted."""
        busy = self._before or self._after or self._backwards.has_order or self._meter is not None
        if busy or not (self._listening.idle and self._ends.is_settled and self.listens):
            return False
        return not self._counts or self._calls.may_be_quiet(self.subject.optimizers[0])

    def looks_at_step(self) -> bool:
        return True

    def due_probes(self) -> Sequence[Bound]:
        return [*self._before, *self._after]

    def clip_readers(self) -> list[Bound]:
        readers = [bound for bound in self._before if "grads" in bound.probe.needs]
        if self._ends.half_taken:  # the clip may be the first thing that is seen of the next step
            coming = [b for b in self.engine.bound if b.probe.at == "before_step" and "grads" in b.probe.needs]
            readers += [b for b in coming if b not in readers and is_due(b.probe.every, self.steps + 2)]
        return readers

    def optimizer_comes(self, *, begins_anew: bool) -> None:
        if self._ends.half_taken:
            self.feed.settle(self.steps + 1, self._seen_since_a_step(), begins_anew=begins_anew)

    def optimizer_went(self) -> None:
        self._seen_at_last_step = self._backwards.seen

    def step_opened(self) -> None:
        """Gradients of the first optimizer are complete, no step has been taken."""
        self._micro_batches = None if self._meter is None else self._read_meter()
        self._seen_when_opened = self._backwards.seen
        if self._count.reads_anew:
            self.subject.refresh()
            self._calls.refresh()
        preparing = [bound for bound in self._after if prepares(bound.probe)] if self._after else ()
        if preparing:
            moment = self.moment("before_step", step=self.steps + 1, take_gradients=self._ends.gradients)
            for bound in preparing:
                self.engine.prepare(bound, moment)

    def gradients_known(self) -> None:
        """Gradients are complete; the step has not been taken, of several optimizers the last."""
        if self._backwards.has_order:
            self.subject.backward_order = self._backwards.take_order() or self.subject.backward_order
        micro_batches, self._micro_batches = self._micro_batches, None
        if not self._before:  # most steps: nothing is due
            return
        if self._backwards.seen > self._seen_when_opened:
            micro_batches = None  # the optimizers' gradients come from different backward passes
        handed = HandedOver(micro_batches=micro_batches, stepped=self._ends.stepped(), **self._listening.take())
        moment = self.moment("before_step", step=self.steps + 1, take_gradients=self._ends.gradients, handed=handed)
        self._fire(self._before, moment)

    def step_ended(self) -> None:
        """The step has been taken."""
        passes = self._backwards.take_passes()
        self._calls.step_ended(passes, counted=not self._ends.skipped)
        self._seen_at_last_step = 0
        if self._ends.skipped:
            self.skipped_steps += 1
            self._read_meter()
            self._plan_step(passes)
            return
        self._count.steps += 1
        self._attempts.step_ended()
        if self._after:
            handed = HandedOver(stepped=self._ends.stepped())
            self._fire(self._after, self.moment("after_step", take_gradients=self._ends.gradients, handed=handed))
        self.feed.stepped(self.steps)
        self.engine.write_in_time(time.time())
        self._plan_step(passes)

    # helpers

    def _micro_batch_users(self) -> list[Bound]:
        return [bound for bound in self._before if "micro_batches" in bound.probe.uses]

    def _fire(self, due: Sequence[Bound], moment: Moment) -> None:
        used: dict[str, Bound] = {}
        last = {snapshot_key(bound.probe): bound for bound in due}
        for bound in due:
            key = snapshot_key(bound.probe)
            moment.snapshot = self.snapshots.get(key) if key is not None else None
            if moment.snapshot is not None:
                moment.snapshot.may_be_renewed = bound is last[key]
            if bound.probe.reads_only:  # no backward of its own
                self.engine.fire(bound, moment)
            else:
                with self._backwards.paused():
                    self.engine.fire(bound, moment)
            if moment.snapshot is not None and key is not None:
                used[key] = bound
        for key, bound in used.items():
            with self.engine.charged([bound]):
                self.snapshots[key] = self.snapshots[key].renewed(self.subject.by_name(), moment.step)

    def _read_meter(self) -> MicroBatches | None:
        meter, self._meter = self._meter, None
        if meter is None:
            return None
        measured = meter.close(self.sizes)
        users = self._micro_batch_users()
        for bound in users:
            self.engine.budget.add(bound.label, meter.seconds / len(users))
        if meter.failure is not None:
            self.engine.warn("micro-batches", f"micro-batch gradients could not be measured: {meter.failure}")
        return measured

    def out_of_turn(self) -> None:
        self._times_out_of_turn += 1
        if self._times_out_of_turn == 3:
            self.engine.warn(
                "turns",
                "the optimizers do not step in turn, so a training step ends whenever one of them steps again; pass "
                "clock=, the optimizer whose steps count",
            )
