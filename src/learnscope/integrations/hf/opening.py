"""From a trainer that begins to train to an open session: its run, its data, what its steps hand over."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from learnscope.core.probe import Probe, ProbeWarning
from learnscope.integrations.carrying import carried_in, carry_into
from learnscope.integrations.hf.calls import Caller
from learnscope.integrations.hf.holdout import Evaluated, default_holdout
from learnscope.integrations.hf.ids import NumberedLoader, without_ids
from learnscope.integrations.hf.kinds import joined_examples, kind_of, refuse_examples, without_logits
from learnscope.integrations.hf.steps import Steps, Wanted, weighting
from learnscope.integrations.hf.trackers import Trackers
from learnscope.integrations.placing import FOLDER, Place, place
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.updates.learning_rate import LearningRate
from learnscope.reading.course.trainers import GIVEN, NONE
from learnscope.session.defaults import default_probes
from learnscope.session.watch import Watch, watch


@dataclass(frozen=True, slots=True)
class Opened:
    """A session on a trainer."""

    trainer: Any
    watch: Watch
    steps: Steps
    trackers: Trackers
    folder: Path | None
    recorded: frozenset[str]
    """What the trainer logs and a probe records already."""


def open_session(caller: Caller, state: Any, options: Mapping[str, Any], loader: Any) -> Opened:
    """Open the session, or refuse before the first step what cannot be watched."""
    trainer = caller.trainer
    given = dict(options)
    where = choose_place(caller, state.global_step, given.pop("run"))
    evaluated = _evaluated(trainer, given.pop("holdout"))
    asked: Sequence[Probe] | None = given.pop("probes")
    no_ids = joined_examples(trainer) or without_ids(loader)
    refuse_examples(trainer, asked or (), no_ids)
    trackers = Trackers(trainer)
    given["sinks"] = [*given.get("sinks", ()), *([trackers.headlines] if trackers.headlines is not None else [])]
    opened, evaluated = _watch(trainer, asked, evaluated, **where.options, **given)
    opened.logs_follow_steps()
    opened.note(**_facts(trainer, evaluated, state))
    numbered_loader = NumberedLoader(loader) if no_ids is None else None
    steps = Steps(trainer, opened, _wanted(asked or (), trainer), numbered_loader, given.get("task"))
    known = asked is None or any(isinstance(probe, LearningRate) for probe in asked)
    recorded = frozenset({"loss", "epoch", *(["learning_rate"] if known else [])})
    return Opened(trainer, opened, steps, trackers, opened.folder, recorded)


def save_session(opened: Opened, state: Any) -> None:
    """Save what resuming needs, and put it into the checkpoint that the trainer has just written."""
    saved = opened.watch.save_state()
    checkpoint = output_folder(opened.trainer) / f"checkpoint-{state.global_step}"
    opened.watch.safely(carry_into)(checkpoint, opened.watch, saved)


def output_folder(trainer: Any) -> Path:
    """Where the trainer writes: in a search for hyper-parameters, each trial has its own."""
    return Path(trainer._get_output_dir(getattr(trainer, "_trial", None)))


def choose_place(caller: Caller, step: int, run: str | Path | None) -> Place:
    """Where the run goes; after a checkpoint, its steps are the trainer's."""
    output = output_folder(caller.trainer)
    carried = None
    if step > 0:
        carried = dataclasses.replace(carried_in(caller.checkpoint or output / f"checkpoint-{step}"), step=step)
    where = place(output / FOLDER if run is None else Path(run), carried, asked=run is not None)
    if where.missing:
        _say(where.missing)
    return where


def _watch(
    trainer: Any, asked: Sequence[Probe] | None, evaluated: Evaluated, **options: Any
) -> tuple[Watch, Evaluated]:
    """The session; a holdout that nobody asked for and that cannot be read is left out, and the run says why."""
    model, optimizer = trainer.model_wrapped, trainer.optimizer

    def begin(evaluated: Evaluated) -> Watch:
        probes = list(asked) if asked is not None else default_probes(holdout=evaluated.batches is not None)
        task = options.get("task") or evaluated.task
        opened = watch(
            model, optimizer, probes=[_weighted(probe, trainer) for probe in probes],
            holdout=evaluated.batches, **{**options, "task": task},
        )  # fmt: skip
        if asked is None:
            opened.chosen_by_nobody()
        return opened

    if evaluated.source == GIVEN or evaluated.batches is None:
        return begin(evaluated), evaluated
    try:
        return begin(evaluated), evaluated
    except (TypeError, ValueError) as error:
        why = str(error).splitlines()[0]
        without = Evaluated(f"{NONE}the {evaluated.source} could not be read ({why})")
        opened = begin(without)  # raises what is wrong besides the holdout
        cure = "Pass task=, which says how, or holdout=False for none"
        _say(f"the model is not evaluated on the trainer's {evaluated.source}: {why} {cure}.")
        return opened, without


def _weighted(probe: Probe, trainer: Any) -> Probe:
    """How micro-batches are weighed is known here, where a loop of one's own has to say it."""
    if isinstance(probe, GradientFlow) and probe.weighted_by is None:
        return dataclasses.replace(probe, weighted_by=weighting(trainer))
    return probe


def _evaluated(trainer: Any, holdout: Any) -> Evaluated:
    if holdout is None:
        return default_holdout(trainer)
    return Evaluated(f"{NONE}holdout=False") if holdout is False else Evaluated(GIVEN, holdout)


def _wanted(probes: Sequence[Probe], trainer: Any) -> Wanted:
    following = [probe for probe in probes if "examples" in probe.needs]
    return Wanted(
        examples=bool(following) and without_logits(trainer) is None,
        inputs=any(getattr(probe, "grand_every", 0) for probe in following),
        batch=any("batch" in probe.needs for probe in probes),
    )


def _facts(trainer: Any, evaluated: Evaluated, state: Any) -> dict[str, Any]:
    kind = kind_of(trainer)
    about = {"class": type(trainer).__name__} | ({} if kind is None else {"kind": kind, "trl": version("trl")})
    facts: dict[str, Any] = {
        "trainer": {**about, "transformers": version("transformers")},
        "holdout": {"source": evaluated.source, **({"examples": evaluated.examples} if evaluated.examples else {})},
    }
    return facts | ({"trial": dict(state.trial_params)} if state.trial_params else {})


def _say(text: str) -> None:
    warnings.warn(text, ProbeWarning, stacklevel=4)
