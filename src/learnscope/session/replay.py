"""Examining saved checkpoints one after the other."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track
from torch import nn

from learnscope.core.gradients import Gradients, read_gradients
from learnscope.core.handed import HandedOver
from learnscope.core.probe import Probe
from learnscope.core.subject import Subject
from learnscope.model.outputs.evaluate import gradients
from learnscope.model.sharded import refuse_sharded
from learnscope.model.weights.checkpoint import load_into, memory_of, preserve_weights, read_weights
from learnscope.model.weights.snapshot import Snapshot
from learnscope.options import explain_options
from learnscope.probes.examples.ledger_writer import presentations
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.outputs.holdout import Holdout
from learnscope.probes.updates.parameter_change import ParameterChange
from learnscope.run import Run
from learnscope.session.ending import concluding
from learnscope.session.engine import Engine
from learnscope.session.opening import begin, check_model, open_backend
from learnscope.session.ranks import is_silent
from learnscope.session.steps.fed import collects_until_epoch
from learnscope.session.subject import make_subject, provided, snapshot_key, take_snapshots
from learnscope.sinks.base import Sink
from learnscope.task import Task
from learnscope.task.losses import LossCallable


@explain_options
def replay(
    checkpoints: Mapping[int, Any] | Sequence[Any],
    *,
    model: nn.Module | None = None,
    run: str | Path | None = None,
    probes: Sequence[Probe] | None = None,
    task: Task | None = None,
    loss: LossCallable | None = None,
    holdout: Any = None,
    train: Any = None,
    test: Any = None,
    sinks: Sequence[Sink] = (),
    strict: bool = False,
    progress: bool = True,
    record_command: bool = True,
) -> Run:
    """Measure saved checkpoints as `watch` would have measured the live model.

    Args:
        checkpoints: by step, or in order: modules, state dictionaries, or paths to `.pt`/`.safetensors` files.
            They are loaded one at a time.
        model: the architecture to load them into; it is as it was afterwards. Not needed for modules.
        run: folder to write; None keeps the run in memory.
        probes: what to measure at every checkpoint (`every` is ignored; `at="once"` looks at the first, `at="end"` at
            the last). By default parameter change, and with data gradients and holdout.
        task: how a batch becomes logits and targets, where the defaults do not recognise it.
        loss: the loss that the model is trained with, for evaluations: a function of (outputs, targets) that gives a
            number or one for each example, or a module such as `nn.BCEWithLogitsLoss()`. Without it, the task's or the
            model's own; otherwise the usual one for classes, and a guess, labelled as such, for numbers.
        holdout: data to evaluate on; its first batch also gives the replayed gradients if there is no train.
        train: training data; its first batch gives the replayed gradients.
        test: test data for the probes that need it.
        sinks: where else records go.
        strict: raise when a probe fails.
        progress: show a progress bar on a terminal.
        record_command: False leaves the command line out of run.json; known secrets in it are hidden in any case.
    """
    steps = _steps(checkpoints)
    for step in steps if isinstance(checkpoints, dict | list | tuple) else ():  # others may load them on access
        refuse_sharded(checkpoints[step])
    model = model if model is not None else _architecture(checkpoints[steps[0]])
    check_model(model)
    subject = make_subject(model, task=task, loss=loss, holdout=holdout, train=train, test=test)
    provides = {"previous"} | provided(subject) | ({"grads"} if fixed_batch(subject) is not None else set())
    provides |= {"examples"} if subject.train_data is not None else set()
    chosen = list(probes) if probes is not None else usual_probes(provides)
    engine = opened(
        subject, chosen, run, source="replay", provides=provides, sinks=sinks, strict=strict,
        record_command=record_command,
    )  # fmt: skip
    snapshots: dict[str, Snapshot] = {}
    with concluding(engine, last_step=steps[-1]), preserve_weights(model) as own:
        for step in track(steps, "replaying", disable=not progress, transient=True):
            source = checkpoints[step]
            # model.state_dict() shares its memory with the model, which by now may hold another checkpoint
            weights = {name: own.get(memory_of(value), value) for name, value in read_weights(source).items()}
            load_into(model, weights, origin_of(source, step))
            del source, weights
            look_at(engine, step, "checkpoint", snapshots, first=step == steps[0], last=step == steps[-1])
    return Run(engine.backend)


def opened(
    subject: Subject, probes: Sequence[Probe], run: str | Path | None, *, source: str, provides: set[str],
    sinks: Sequence[Sink], strict: bool, record_command: bool,
) -> Engine:  # fmt: skip
    """Open a session; a probe may refuse it before anything is written."""
    sinks = () if is_silent(run) else sinks
    engine = Engine(
        subject, probes, open_backend(run, resume=False), source=source, provides=provides, sinks=sinks, strict=strict,
        record_command=record_command,
    )  # fmt: skip
    engine.open_probes(engine.moment("open", 0))
    begin(engine, resume=False, step=0)
    return engine


def look_at(engine: Engine, step: int, phase: str, snapshots: dict[str, Snapshot], *, first: bool, last: bool) -> None:
    """Fire every probe at one set of weights, then keep those as the previous ones."""
    subject = engine.subject
    moment = engine.moment(phase, step, take_gradients=lambda: _replayed(subject))
    _present(engine, step)
    elsewhere = {"once": not first, "end": not last}
    for bound in engine.bound:
        key = snapshot_key(bound.probe)
        moment.snapshot = snapshots.get(key) if key is not None else None
        if (key is not None and moment.snapshot is None) or elsewhere.get(bound.probe.at):
            continue
        engine.fire(bound, moment)
    if phase == "checkpoint":
        parameters = subject.by_name()
        for snapshot in snapshots.values():
            snapshot.update(parameters, step)
        if not snapshots:
            snapshots.update(take_snapshots(subject, [bound.probe for bound in engine.bound], step))


def _present(engine: Engine, step: int) -> None:
    """Run the training data once for the probes that follow examples: every checkpoint is one presentation."""
    collecting = [b for b in engine.bound if collects_until_epoch(b.probe) and "examples" in b.probe.needs]
    subject = engine.subject
    if not collecting or subject.train_data is None or subject.task is None:
        return
    for examples in presentations(subject.model, subject.task, subject.train_data):
        moment = engine.moment("checkpoint", step, epoch=step, handed=HandedOver(examples=[examples]))
        for bound in collecting:
            bound.waiting += 1
            engine.prepare(bound, moment)


def _replayed(subject: Subject) -> Gradients:
    """Gradients of one fixed batch in eval mode: comparable between checkpoints, not those of the training."""
    batch = fixed_batch(subject)
    assert batch is not None
    assert subject.task is not None
    by_name = gradients(subject.model, subject.task, batch)
    by_position = {position: by_name[name] for position, name in enumerate(subject.names) if name in by_name}
    return read_gradients(subject, by_position, origin="replayed")


def fixed_batch(subject: Subject) -> Any:
    """The batch that replayed gradients come from, if it has targets to differentiate a loss for."""
    for data in (subject.train_data, subject.holdout):
        if data and subject.task is not None and subject.task.targets(data[0]) is not None:
            return data[0]
    return None


def usual_probes(provides: set[str]) -> list[Probe]:
    candidates: list[Probe] = [ParameterChange(), GradientFlow(), Holdout()]
    return [probe for probe in candidates if probe.needs <= provides]


def _steps(checkpoints: Mapping[int, Any] | Sequence[Any]) -> list[int]:
    """The steps in order. Checkpoints are not read: a mapping may load them on access."""
    if isinstance(checkpoints, str | Path | nn.Module):
        raise TypeError("replay takes several checkpoints: a list, or a dictionary by step; ls.audit takes one model")
    if not isinstance(checkpoints, Mapping | Sequence):
        raise TypeError(f"checkpoints are a list or a dictionary by step, not a {type(checkpoints).__name__}")
    steps = list(checkpoints) if isinstance(checkpoints, Mapping) else list(range(len(checkpoints)))
    if not steps:
        raise ValueError("there are no checkpoints to replay")
    if not all(isinstance(step, int) and not isinstance(step, bool) and step >= 0 for step in steps):
        raise TypeError("checkpoints are keyed by their step, a whole number from 0 on: {0: 'a.pt', 100: 'b.pt'}")
    return sorted(steps)


def _architecture(first: Any) -> nn.Module:
    if not isinstance(first, nn.Module):
        raise TypeError("state dictionaries and files do not say what the model is: pass model=, the architecture")
    # a copy: examining one of the caller's modules must not load another's weights into it
    return copy.deepcopy(first)


def origin_of(source: Any, step: int) -> str:
    return str(source) if isinstance(source, str | Path) else f"the checkpoint of step {step}"
