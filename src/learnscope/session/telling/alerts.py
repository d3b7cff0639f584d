"""Alerts: findings that are told while the training goes on, and the wish to stop it."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from learnscope.characters import visible
from learnscope.model.guard import preserve_rng
from learnscope.options import nearest
from learnscope.record import Finding, Record
from learnscope.session.writing import Writer, is_alarming

Tell = Callable[[Finding], object]
AlertsTo = bool | Tell | Sequence[Tell] | None
NAMES = ("nonfinite", "spike", "diverging", "not_learning", "overfitting")
SHARE, SHORTEST_PAUSE = 0.01, 1.0
"""The share of the run's time that judging may take, and the fewest seconds between two judgements."""

LOSS_COMES = 2
"""Steps after which the loss of a step is written for certain, which says more than its gradients alone."""


class TrainingStopped(RuntimeError):
    """Raised in the training loop by an alert that it was asked to stop on; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.title}. {finding.advice}")
        self.finding = finding


class Alerts:
    """Judges the run when records were written, and tells each finding once. It is one of the session's sinks."""

    direct: ClassVar[bool] = True
    unlisted: ClassVar[bool] = True

    def __init__(self, writer: Writer, to: AlertsTo, stop_on: Iterable[str], *, raises: bool) -> None:
        self.told: list[Finding] = []
        self.stops: Finding | None = None
        """The finding for which the training should stop."""
        self.cost = 0.0
        """Seconds that judging has taken."""
        self._writer, self._stop_on, self._raises = writer, frozenset(stop_on), raises
        self.since = 0
        """What began before this step was told by an earlier attempt."""
        self._calls = [*to] if isinstance(to, Sequence) else [to] if callable(to) else []
        # imported here: most sessions have no alerts, and need neither
        from learnscope.sinks.console import ConsoleSink
        from learnscope.store.columnar.growing import growing

        self._prints = not any(isinstance(sink, ConsoleSink) for sink in writer.sinks)
        self._run = growing(writer.backend)
        self._known: set[str] = set()
        self._seen_once: set[str] = set()
        self._next = time.perf_counter() + SHORTEST_PAUSE
        self._broke_at: int | None = None
        self._may_hurry = True
        self._urgent = self._judging = self._failed = False
        self._hooks: list[Any] = []
        self._too_early = False
        """Whether something was found of which a step later more will be known."""
        with preserve_rng():  # what is imported may draw
            from learnscope.findings import alerts as judging
            from learnscope.findings import analyses

            analyses()
        self._rules = judging

    @property
    def should_stop(self) -> bool:
        return self.stops is not None

    def write(self, record: Record) -> None:
        """A number that is not finite does not wait for the next judgement, but for what else is known of its step."""
        if self._broke_at is not None:
            self._urgent = self._urgent or record.step >= self._broke_at + LOSS_COMES
        elif "nonfinite" not in self._known and is_alarming(record):
            self._broke_at = record.step

    def look(self, *, last: bool = False) -> None:
        """Judge the run if that is due. Whatever fails here ends the alerts and not the training."""
        regular = last or time.perf_counter() >= self._next
        due = regular or (self._urgent and self._may_hurry)
        if not due or self._judging or self._failed or not self._writer.written:
            return
        self._judging, started = True, time.perf_counter()
        try:
            with preserve_rng():
                self._judge(last=last)
        except Exception:  # whatever it is, it is ours and not the training's: reported, not passed on
            if self._writer.strict:
                raise
            self._failed = True
            self._writer.warn("alerts", f"alerts failed and are off, training goes on:\n{traceback.format_exc()}")
        finally:
            self._judging = self._urgent = False
            self._broke_at = None
            # once between two regular judgements: it may have been for nothing, unless it only came too early
            self._may_hurry = regular or self._too_early
            took = time.perf_counter() - started
            self.cost += took
            self._next = started + took + max(SHORTEST_PAUSE, took / SHARE)

    def _judge(self, *, last: bool) -> None:
        run = self._rules.as_it_is_now(self._run)
        found = list(self._rules.alarming(run))
        self._too_early = False
        for name, finding in found:
            key = name if name == "nonfinite" else finding.fingerprint  # NaN spreads: its first place is told
            if key in self._known or self._is_old(finding):
                continue
            if last or self._is_certain(name, finding):
                self._known.add(key)
                cause = self._rules.with_its_cause(run, finding)
                self._tell(name, finding if self._is_old(cause) else cause)
            else:
                self._too_early |= name in self._rules.AT_ONCE
        self._seen_once = {finding.fingerprint for _, finding in found}

    def _is_old(self, finding: Finding) -> bool:
        return finding.begins is not None and finding.begins < self.since

    def _is_certain(self, name: str, finding: Finding) -> bool:
        if name not in self._rules.AT_ONCE:
            return finding.fingerprint in self._seen_once
        return finding.begins is None or self._writer.last_step >= finding.begins + LOSS_COMES

    def _tell(self, name: str, finding: Finding) -> None:
        if self.stops is None and name in self._stop_on:
            self.stops = finding
        if finding.fingerprint in {each.fingerprint for each in self.told}:  # the cause of two alerts
            return
        self.told.append(finding)
        if self._prints:
            text = f"learnscope: step {self._writer.last_step:,}: {finding.severity}: {finding.title}"
            print(visible(text), file=sys.stderr, flush=True)
        of_sinks = [alert for sink in self._writer.sinks if (alert := getattr(sink, "alert", None)) is not None]
        for call in (*self._calls, *of_sinks):
            try:
                call(finding)
            except Exception:  # foreign code, as a sink's
                if self._writer.strict:
                    raise
                self._writer.warn(f"alert {id(call)}", f"{call!r} failed:\n{traceback.format_exc()}")

    def close(self) -> None:
        """What was not told yet; hooks are taken away."""
        for hook in self._hooks:
            hook.remove()
        self.look(last=True)

    def raise_in(self, optimizers: Iterable[Any]) -> None:
        """If that was asked for, an optimizer's step raises `TrainingStopped` after it was taken."""
        if self._raises:
            self._hooks = [optimizer.register_step_post_hook(self._after_step) for optimizer in optimizers]

    def _after_step(self, *_: Any) -> None:
        self.raise_if_asked()

    def raise_if_asked(self) -> None:
        if self._raises and self.stops is not None:
            raise TrainingStopped(self.stops)


def alerts_for(writer: Writer, to: AlertsTo, stop_on: Sequence[str], *, raises: bool) -> Alerts | None:
    """The alerts of a session, if any were asked for; from now on it has them."""
    names = [stop_on] if isinstance(stop_on, str) else list(stop_on)
    for name in names:
        if name not in NAMES:
            close = nearest(name, NAMES)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(NAMES)}"
            raise ValueError(f"stop_on={name!r}: there is no such alert; {hint}")
    if raises and not names:
        raise ValueError("raise_on_stop=True needs the alerts to stop on: stop_on=('nonfinite', 'diverging')")
    if not names and (to is None or to is False):
        return None
    alerts = Alerts(writer, to, names, raises=raises)
    writer.sinks.insert(0, alerts)  # before those that it tells are closed
    writer.alerts = alerts
    return alerts
