"""Examining a finished model once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.core.probe import Probe
from learnscope.model.sharded import refuse_sharded
from learnscope.model.weights.checkpoint import load_into, preserve_weights, read_weights
from learnscope.model.weights.snapshot import Snapshot
from learnscope.options import explain_options
from learnscope.probes.bits.bit_frontier import ALONE, BitFrontier
from learnscope.probes.bits.bit_sensitivity import BitSensitivity
from learnscope.probes.cost.exported_speed import ExportedSpeed
from learnscope.probes.cost.inference_speed import InferenceSpeed
from learnscope.probes.cost.layer_times import LayerTimes
from learnscope.probes.cost.memory_use import MemoryUse
from learnscope.probes.outputs.performance import Performance
from learnscope.probes.robustness.attacks import Attacks
from learnscope.probes.robustness.bit_robustness import BitRobustness
from learnscope.probes.robustness.input_perturbation import InputPerturbation
from learnscope.probes.robustness.noise_robustness import NoiseRobustness
from learnscope.probes.robustness.prompt_perturbation import PromptPerturbation
from learnscope.run import Run
from learnscope.session.ending import concluding
from learnscope.session.opening import check_model
from learnscope.session.replay import fixed_batch, look_at, opened, origin_of, usual_probes
from learnscope.session.subject import make_subject, provided, take_snapshots
from learnscope.sinks.base import Sink
from learnscope.store.memo import ResultCache
from learnscope.task import Task
from learnscope.task.losses import LossCallable


@explain_options
def audit(
    model: nn.Module,
    data: Any = None,
    *,
    run: str | Path | None = None,
    probes: Sequence[Probe] | None = None,
    base: Any = None,
    task: Task | None = None,
    loss: LossCallable | None = None,
    train: Any = None,
    test: Any = None,
    sinks: Sequence[Sink] = (),
    strict: bool = False,
    tokenizer: Any = None,
    cache: str | Path | None = None,
    progress: bool = True,
    record_command: bool = True,
) -> Run:
    """Examine a finished model once; it is unchanged afterwards.

    Args:
        model: the model.
        data: labelled data to examine it on: a loader, a data set, a list of batches, or one batch.
        run: folder to write; None keeps the run in memory.
        probes: what to measure; by default what `data` and `base` allow: with labelled data everything about
            performance, bit widths and robustness, which takes minutes for larger models.
        base: the weights to compare with (a module, a state dictionary or a path), such as the pretrained ones.
        task: how a batch becomes logits and targets, where the defaults do not recognise it.
        loss: the loss that the model is trained with, for evaluations: a function of (outputs, targets) that gives a
            number or one for each example, or a module such as `nn.BCEWithLogitsLoss()`. Without it, the task's or the
            model's own; otherwise the usual one for classes, and a guess, labelled as such, for numbers.
        train: training data for the probes that need it.
        test: test data for the probes that need it.
        sinks: where else records go.
        strict: raise when a probe fails.
        tokenizer: of a language model, for texts that an attack changes.
        cache: a folder in which results are cached by content, so that a second audit, or an interrupted one, only
            does what is missing.
        progress: show progress bars on a terminal.
        record_command: False leaves the command line out of run.json; known secrets in it are hidden in any case.
    """
    if isinstance(model, str | Path):
        raise TypeError(
            f"ls.audit examines a module, not {str(model)!r}: learnscope.posttrain.ModelAnalyzer(path) loads one, and "
            "so does `learnscope audit --model_path`"
        )
    check_model(model)
    refuse_sharded(base)
    subject = make_subject(model, task=task, loss=loss, holdout=data, train=train, test=test)
    subject.tokenizer = tokenizer
    provides = provided(subject) | ({"grads"} if fixed_batch(subject) is not None else set())
    provides |= {"previous"} if base is not None else set()
    chosen = list(probes) if probes is not None else [*usual_probes(provides), *_audit_probes(provides)]
    if not chosen:
        raise ValueError("there is nothing to examine: pass data, base= weights to compare with, or probes")
    snapshots: dict[str, Snapshot] = {}
    if base is not None:
        with preserve_weights(model):
            load_into(model, read_weights(base), origin_of(base, 0))
            snapshots = take_snapshots(subject, chosen, 0)
    engine = opened(
        subject, chosen, run, source="audit", provides=provides, sinks=sinks, strict=strict,
        record_command=record_command,
    )  # fmt: skip
    with concluding(engine, last_step=0):
        subject.memo, subject.show_progress = ResultCache(Path(cache) if cache is not None else None), progress
        look_at(engine, 0, "audit", snapshots, first=True, last=True)
    return Run(engine.backend)


def _audit_probes(provides: set[str]) -> list[Probe]:
    """Probes for finished models rather than for models in training."""
    candidates: list[Probe] = [
        Performance(), MemoryUse(), InferenceSpeed(), LayerTimes(),
        BitSensitivity(bits=ALONE, embeddings=True), BitFrontier(), ExportedSpeed(), PromptPerturbation(),
        InputPerturbation(), NoiseRobustness(), Attacks(), BitRobustness(),
    ]  # fmt: skip
    return [probe for probe in candidates if probe.needs <= provides]
