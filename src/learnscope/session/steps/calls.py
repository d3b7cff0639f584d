"""What the training loop calls, and in which order: backward, step, clearing of gradients, schedules, evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from learnscope.core.subject import Subject
from learnscope.model.guard import is_guarded
from learnscope.session.counting.leaves import (
    Mark,
    PlainLeaf,
    Sampled,
    added,
    all_train,
    are_ordinary,
    begin_anew,
    due,
    have_stepped,
    holds,
    is_zero,
    marked,
    marks,
    unchanged,
    writes,
)
from learnscope.session.counting.quiet import PlainQuiet
from learnscope.session.steps import schedules
from learnscope.session.steps.backwards import Backwards
from learnscope.session.steps.modes import Modes, watch_evaluations
from learnscope.session.steps.optimizers import untraced
from learnscope.session.telling.listeners import until_gone


class Calls:
    """Counts a loop's calls into the subject's `CallCounts`, from the hooks of a few parameters and of the optimizers.

    Gradients count as not cleared if a backward finds the very gradient that a step has used, with nothing written
    into it since; clearing sets it to None, or writes zeros, which raises its version. Zeros that are written through
    `.data` leave no trace: such a gradient is looked at, now and then. Without `counts` nobody asks: nothing gets a
    hook, and only steps and backward passes are counted.
    """

    def __init__(self, subject: Subject, backwards: Backwards, quiet: PlainQuiet, *, counts: bool) -> None:
        self._subject, self._counts = subject, subject.calls
        self._leaves, self._course = backwards.leaves, backwards.course
        self._any, self._quiet = backwards.course.any, quiet
        self._discards = False
        """Whether a leaf has backward passes whose gradient was cleared, since the last training step."""
        self._modes = Modes(subject.model)
        self._course.modules = self._modes.few
        self._flags: set[str] = set()
        """What is so of the training step that is open."""
        self._is_cleared = Sampled()
        self._is_discarded = Sampled()
        self._clears_early = False
        self._doubtful: dict[int, list[Mark | None] | None] = {}
        """By optimizer whose step no watched backward came before: its gradients after its last step."""
        self._stepped_schedules: Counter[int] = Counter()
        self._members: dict[int, tuple[int, list[PlainLeaf]]] = {}
        self.on_discard: Callable[[], object] | None = None
        """Called when a backward finds the gradients of an earlier one cleared, and no step has used them."""
        self.on_pending: Callable[[], object] | None = None
        """Counts the quiet steps that nobody has asked for yet."""
        self._on_reach: Callable[[], object] | None = None
        self._ends: list[Callable[[], object]] = []
        if counts:
            self._listen()

    def _listen(self) -> None:
        stop = watch_evaluations(self._subject.model, self._evaluated)
        self._counts.evaluated = stop is not None
        # these hooks are the process's own, and hold nothing of this session
        before = register_optimizer_step_pre_hook(untraced(self._any.begins))
        after = register_optimizer_step_post_hook(untraced(self._any.stepped))
        schedules.listeners.add(self._scheduled)
        self._ends = [until_gone(self, each.remove) for each in (before, after)] + ([] if stop is None else [stop])

    def close(self) -> None:
        schedules.listeners.remove(self._scheduled)
        while self._ends:
            self._ends.pop()()

    def refresh(self) -> None:
        self._modes.refresh()
        self._course.modules = self._modes.few
        self._members.clear()

    def tell_reached(self, listener: Callable[[], object] | None) -> None:
        """Whom to call when a backward reaches a watched parameter, if somebody waits for that."""
        self._on_reach, self._course.told = listener, listener is not None

    @property
    def any_steps(self) -> int:
        return self._any.steps

    @property
    def waiting(self) -> int:
        """Backward passes that no step of any optimizer has followed yet."""
        return max((added(leaf) for leaf in self._leaves if leaf.steps_then == self.any_steps), default=0)

    # backward

    def reached(self, leaf: PlainLeaf, gradient: Tensor) -> None:
        """A backward is about to add to the gradient of a watched parameter."""
        course = self._course
        if not course.begun:
            course.begun, course.looks = True, due(self._quiet.number + 1)
            if not all_train(course.modules):
                self._flag("eval_mode_steps")
        present = leaf.parameter.grad
        if present is None or self._was_cleared(leaf, present):
            if leaf.reached:  # hardly ever: a step has used what came before
                self._cleared(leaf)
            leaf.stale = False
        elif leaf.used:
            leaf.stale = True
        leaf.used = False
        leaf.reached += 1
        leaf.steps_then = self._any.steps
        leaf.mark = None if present is None else marked(present, writes=1)  # as the backward will leave it
        if course.looks:
            leaf.nonzero = leaf.nonzero or not is_zero(gradient)
        if self._on_reach is not None:
            self._on_reach()

    def _cleared(self, leaf: PlainLeaf) -> None:
        """The gradient of a watched parameter is not what earlier backward passes have made of it."""
        if added(leaf) and leaf.steps_then == self.any_steps and not self._any.inside:
            self._discard(leaf)
            if self.on_discard is not None:
                self.on_discard()
        begin_anew(leaf)

    def _discard(self, leaf: PlainLeaf) -> None:
        leaf.discarded += added(leaf)
        self._discards = self._quiet.eventful = True

    def _was_cleared(self, leaf: PlainLeaf, present: Tensor) -> bool:
        if leaf.mark is None:  # made by a backward of this step, and nothing is known of it
            return False
        kept = holds(leaf.mark, present)
        if leaf.used:
            return not kept or self._is_cleared.is_zero(present)
        return not kept and self._is_discarded.is_zero(present)  # a clip writes it too

    # steps

    def begins(self, optimizer: Optimizer | None) -> None:
        """An optimizer is about to step with the gradients that are there; None: the loop steps by itself."""
        held, looks = self._held(optimizer), self._course.looks
        if not looks and not self._clears_early and are_ordinary(held):  # as at most steps
            return
        # a loop's own step is a write like any other; an inference tensor counts none
        if any(0 <= leaf.written != writes(leaf.parameter) for leaf in held):
            self._flag("weights_written")
        reached = [leaf for leaf in held if leaf.reached]
        if held and not reached:
            if self._is_without_backward(optimizer):
                self._flag("steps_without_backward")
            return
        present = [leaf for leaf in reached if leaf.parameter.grad is not None]
        stale = [leaf for leaf in present if leaf.stale]
        # of a loop's own step, it is not known which gradients it uses
        if stale and (optimizer is not None or len(stale) == len(present)):
            self._flag("uncleared_steps")
        if present and looks:
            self._clears_early = self._are_zeroed(present) and any(leaf.nonzero for leaf in reached)
        if reached and (self._clears_early or not present):
            self._flag("cleared_steps")

    @staticmethod
    def _are_zeroed(leaves: Sequence[PlainLeaf]) -> bool:
        gradients = [leaf.parameter.grad for leaf in leaves]
        return all(gradient is None or is_zero(gradient) for gradient in gradients)

    def _is_without_backward(self, optimizer: Optimizer | None) -> bool:
        """No watched parameter was reached: the others' gradients tell, from the second time on."""
        gradients = [p.grad for p in self._parameters(optimizer)]
        if all(gradient is None for gradient in gradients):
            return True
        before = self._doubtful.setdefault(id(optimizer), None)
        return before is not None and unchanged(before, gradients)

    def stepped(self, optimizer: Optimizer | None) -> None:
        """An optimizer has stepped."""
        held = self._held(optimizer)
        have_stepped(held)
        if optimizer is None:
            self._any.steps += 1
            for leaf in held:  # what the loop writes itself is no write beside an optimizer's step
                leaf.written = -1
        if self._doubtful and id(optimizer) in self._doubtful:
            self._doubtful[id(optimizer)] = marks([p.grad for p in self._parameters(optimizer)])

    def clipped_nothing(self) -> None:
        """A clip was given no tensor at all."""
        self._counts.empty_clips += 1

    def skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler has let an optimizer's step do nothing."""
        for leaf in self._held(optimizer):
            self._discard(leaf)
            begin_anew(leaf)

    def step_ended(self, passes: int, *, counted: bool = True) -> None:
        """A training step has ended after so many backward passes; one that was skipped does not count."""
        counts = self._counts
        counts.backwards += passes
        if self._discards:
            counts.backwards_without_step += self._take_discarded()
        if counted:
            counts.steps += 1
            if self._flags:
                self._count_flags()
            if counts.has_schedule:
                self._count_schedules()
            self._quiet.eventful = False
        if self._flags:
            self._flags.clear()
        self._quiet.number = counts.steps
        self._course.begun, self._course.ordinary = False, not due(counts.steps + 1)

    def quiet_steps_ended(self, steps: int, passes: int) -> None:
        """So many steps have ended of which there is nothing to be said but how many backward passes they had."""
        counts = self._counts
        counts.steps += steps
        counts.backwards += passes
        if counts.has_schedule:  # what was stepped since is of the first
            self._count_schedules()
            if steps > 1:
                counts.schedule[0] += steps - 1

    def may_be_quiet(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer holds all that is followed, and nothing needs a closer look at its next step."""
        doubtful = self._clears_early or bool(self._doubtful)
        return not doubtful and len(self._held(optimizer)) == len(self._leaves) > 0

    def _flag(self, flag: str) -> None:
        self._flags.add(flag)
        self._quiet.eventful = True

    def _count_schedules(self) -> None:
        self._counts.schedule[max(self._stepped_schedules.values(), default=0)] += 1
        self._stepped_schedules.clear()

    def _count_flags(self) -> None:
        counts = self._counts
        for flag in self._flags:
            setattr(counts, flag, getattr(counts, flag) + 1)
        if "eval_mode_steps" in self._flags and not counts.eval_modules:
            counts.eval_modules = self._modes.names_in_eval()

    def settle(self, passes: int) -> None:
        """The loop is over: the step of backward passes that wait for one never comes."""
        self._counts.backwards += passes
        self._counts.backwards_without_step += self._take_discarded() + self.waiting
        for leaf in self._leaves:
            begin_anew(leaf)

    def _take_discarded(self) -> int:
        discarded, self._discards = max((leaf.discarded for leaf in self._leaves), default=0), False
        for leaf in self._leaves:
            leaf.discarded = 0
        return discarded

    # what else is seen

    def _evaluated(self) -> None:
        if not is_guarded():
            self._counts.train_mode_evaluations += 1

    def _scheduled(self, schedule: Any) -> None:
        if any(schedule.optimizer is each for each in self._subject.optimizers):
            if self._quiet.pending and self.on_pending is not None:
                self.on_pending()  # those steps were before it
            self._counts.has_schedule = True
            self._stepped_schedules[id(schedule)] += 1

    def _parameters(self, optimizer: Optimizer | None) -> list[nn.Parameter]:
        if optimizer is None:
            return self._subject.parameters
        return [p for group in optimizer.param_groups for p in group["params"]]

    def _held(self, optimizer: Optimizer | None) -> list[PlainLeaf]:
        if optimizer is None:
            return self._leaves
        groups = len(optimizer.param_groups)
        known = self._members.get(id(optimizer))
        if known is None or known[0] != groups:  # groups that grow are seen at the next refresh
            inside = {id(p) for p in self._parameters(optimizer)}
            known = self._members[id(optimizer)] = groups, [x for x in self._leaves if id(x.parameter) in inside]
        return known[1]
