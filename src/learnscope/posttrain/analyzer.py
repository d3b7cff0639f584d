"""The model analyzer: performance, bit widths and robustness of a finished model, and a report of all three."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.findings import Cuts, find
from learnscope.options import explain_options
from learnscope.posttrain.bit_widths import BitWidthAnalyzer
from learnscope.posttrain.data import Batches, is_texts, load_data
from learnscope.posttrain.encoders import NO_ROBUSTNESS, EncoderTask, is_headless, with_own_embeddings
from learnscope.posttrain.encoders import NOTE as ENCODER_NOTE
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.loading import load_model
from learnscope.posttrain.performance import PerformanceAnalyzer
from learnscope.posttrain.planning.depth import LENGTH, SAMPLED_LENGTH
from learnscope.posttrain.planning.estimate import Estimate
from learnscope.posttrain.planning.planner import Planner
from learnscope.posttrain.reader import reader_of
from learnscope.posttrain.robustness import RobustnessAnalyzer
from learnscope.posttrain.samples import reader_without_data, sampled_batches
from learnscope.posttrain.session import AuditSession
from learnscope.reading.cost.roofline import DEVICE
from learnscope.reading.cost.roofline import NUMBERS as DEVICE_NUMBERS
from learnscope.reading.gather import one_pass
from learnscope.record import Finding, plain_json
from learnscope.report.audit.folder import write_audit
from learnscope.run import Run
from learnscope.store.files import write_json
from learnscope.task import Task

_SHOWN = (
    "model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size", "max_position_embeddings", "num_labels", "tie_word_embeddings",
)  # fmt: skip
"""Entries of a configuration that reports show, by the names that transformers has for all models."""
PARTS = ("performance", "bit_widths", "robustness")
_THRESHOLDS = ("tokens_per_second", "memory_bytes", "robustness_gap")


class ModelAnalyzer:
    """Examines a finished model: how fast and how good it is, how few bits it needs, how it withstands attacks.

    The model is unchanged after every call. Results are dictionaries of plain numbers: NaN is "not measured", and
    `reasons` beside it says why. `analyzer.run` has the same as records, `generate_comprehensive_report` writes them.

    Args:
        model: a module, or where one is saved: a Hugging Face folder, a `.safetensors` file, or a `.pt` state
            dictionary. No code from a file is run.
        config_path: the configuration of a state dictionary that has none beside it or inside it.
        tokenizer: a tokenizer, its folder or file, or "bytes"; by default the one beside the model.
        thorough: whether to spare no time. Otherwise a large model is examined on fewer examples, or on fewer tokens
            of each, so that all three parts take about two minutes for a GPT-2 of two layers; reports say what was
            left out. The choice depends on the model and the data, never on the machine.
        quick: whether a fifth of that work is enough: fewer examples, fewer tokens of each, shorter timing.
        seed: of the sequences that are sampled from the model if there are no data.
        task: how a batch becomes logits and targets, where the defaults do not recognise it.
        device: where the model is moved to; by default it stays where it is.
        cache: a folder in which results are cached by content, so that nothing is computed twice.
        progress: show progress bars on a terminal.
        name: what reports call the model.
    """

    @explain_options
    def __init__(
        self, model: str | Path | nn.Module, config_path: str | Path | None = None, *, tokenizer: Any = None,
        task: Task | None = None, device: Any = None, cache: str | Path | None = None, progress: bool = True,
        name: str | None = None, thorough: bool = False, quick: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        loaded = load_model(model, config_path, tokenizer, device)
        self.model, self.tokenizer, self.origin = loaded.model, loaded.tokenizer, loaded.origin
        self.notes = list(loaded.notes)
        own = type(model).__name__ if isinstance(model, nn.Module) else Path(os.path.abspath(model)).name or str(model)
        self.name = own if name is None else name
        self.headless = task is None and is_headless(loaded.model)
        task = EncoderTask() if self.headless else task
        self.notes += [ENCODER_NOTE] if self.headless else []
        self.session = AuditSession(
            loaded.model, task=task, tokenizer=loaded.tokenizer, name=self.name, cache=cache, progress=progress
        )
        self.performance_analyzer = PerformanceAnalyzer(self.session)
        self.bit_width_analyzer = BitWidthAnalyzer(self.session)
        self.robustness_analyzer = RobustnessAnalyzer(self.session)
        self.results: dict[str, dict[str, Any]] = {}
        self.findings: list[Finding] = []
        """Findings of the last report."""
        self.planner, self.seed = Planner(self.session, thorough=thorough, quick=quick), seed
        self._about_data: dict[str, Any] = {}
        self.more_facts: dict[str, Any] = {}
        """What an audit of several models says of this one; the report's facts have it."""

    def analyze_performance(self, data_loader: Any = None) -> dict[str, Any]:
        """Loss, perplexity and accuracy; latency, throughput, memory; where the time goes."""
        level = self.planner.level
        self.results["performance"] = self.performance_analyzer.analyze(
            self.data(data_loader),
            seconds=level.seconds,
            process=self.planner.thorough,
            grid_work=level.grid_work,
            one_example=level.one_example,
        )
        return self.results["performance"]

    def analyze_bit_widths(self, data_loader: Any = None, **options: Any) -> dict[str, Any]:
        """Which layers need their bits, what all ways to store the model cost, and which to use.

        Options are those of `BitWidthAnalyzer.analyze`, such as `max_bytes`, `max_increase` or `bits`.
        """
        data = self.planner.fixed(self.data(data_loader))
        share = self.planner.depth(data).bits
        level = self.planner.level
        few = {"search_examples": share.searched} if share.searched else {}
        options = {"examples": share.examples, **few, **level.search, **options}
        part = self.planner.part("bit_widths", data, share, options)
        timed = self.planner.timed(data, part, share)
        self.results["bit_widths"] = self.bit_width_analyzer.analyze(
            part, timed_on=timed, packed_seconds=level.packed_seconds, **options
        )
        return self.results["bit_widths"]

    def analyze_robustness(self, data_loader: Any = None, **options: Any) -> dict[str, Any]:
        """Attacks, noise and changed inputs, and how bit widths affect attacks.

        Options are those of `RobustnessAnalyzer.analyze`, such as `examples` or `epsilons`.
        """
        if self.headless:
            raise PosttrainError(NO_ROBUSTNESS)
        data = self.planner.fixed(self.data(data_loader))
        depth = self.planner.depth(data)
        steps = {"steps": depth.steps, "transfer_steps": depth.transfer_steps}
        options = {"examples": depth.attacks.examples, **steps, "probes": depth.options, **options}
        part = self.planner.part("robustness", data, depth.attacks, options)
        self.results["robustness"] = self.robustness_analyzer.analyze(part, **options)
        return self.results["robustness"]

    def analyze(self, data_loader: Any = None) -> dict[str, dict[str, Any]]:
        """All three, on the same data."""
        data = self.planner.fixed(self.data(data_loader))
        self.analyze_performance(data)
        self.analyze_bit_widths(data)
        if not self.headless:
            self.analyze_robustness(data)
        return self.results

    def data(
        self, source: Any = None, *, split: str | None = None, length: int | None = None, examples: int | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Batches for this model: from a file, a folder or a name; batches as they are.

        Without a source they are sampled from the model itself, or taken from the built-in text if a split of it is
        named. Options are those of `learnscope.posttrain.data.load_data`, such as `split` and `batch_size`. By default
        there are 256 examples, or fewer if the model is large, of 128 tokens (64 of the model's own).
        """
        batches: Any = source
        if source is None or examples is not None or isinstance(source, str | Path):
            self.planner.asked = examples is not None  # batches that are passed on were asked for before
        if source is None and split is None:
            reader = reader_without_data(self.model)
            length = length or min(LENGTH if self.planner.thorough else SAMPLED_LENGTH, reader.positions or LENGTH)
            examples = examples or self.planner.affordable(length, sampled=True)
            batches = sampled_batches(
                self.model, examples=examples, length=length, seed=self.seed, memo=self.session.memo,
                progress=self.session.progress, **options,
            )  # fmt: skip
        elif source is None or isinstance(source, str | Path) or examples is not None or is_texts(source):
            length = length or LENGTH
            if examples is None:
                examples = self.planner.affordable(min(length, reader_of(self.model).positions or length))
            batches = load_data(
                source, model=self.model, tokenizer=self.tokenizer, split=split, length=length, examples=examples,
                **options,
            )  # fmt: skip
        elif split is not None:
            load_data(source, model=self.model, split=split)  # refuses it
        elif not isinstance(source, Batches):
            batches = self.planner.checked(source)
        self._about_data = dict(getattr(batches, "about", {})) or self._about_data
        if self.headless and not getattr(batches, "about", {}).get("own_embeddings"):
            fixed = self.planner.fixed(batches)
            self._about_data = {**fixed.about, "own_embeddings": True}
            return Batches(with_own_embeddings(self.model, fixed), self._about_data)
        return batches

    def check_data(self, source: Any, split: str | None) -> None:
        """Refuse a model that needs other data than these, before anything is computed."""
        if source is None and split is None:
            reader_without_data(self.model)
        elif source is None and self.tokenizer is None:
            raise PosttrainError(
                f"split={split!r} is of the built-in text, and no tokenizer was found for "
                f"{type(self.model).__name__}: give tokenizer=, or data= with input_ids, or leave split= out, and the "
                "model is examined on sequences that are sampled from itself"
            )

    def estimates(self, data: Any, parts: Sequence[str] = PARTS) -> tuple[Estimate, Estimate]:
        """How long the parts will take on these data, and how long thorough ones would, from two timed passes."""
        return self.planner.estimates(self.planner.fixed(data), parts)

    @property
    def run(self) -> Run:
        """Everything that was measured, as records."""
        return self.session.run

    def generate_comprehensive_report(
        self, output_dir: str | Path, *, cuts: Cuts | None = None, thresholds: Mapping[str, float] | None = None,
        target_device: Mapping[str, float] | None = None,
    ) -> Path:  # fmt: skip
        """Write `analysis_results.json`, `summary_report.md`, `insights.md` and `plots/`; returns the folder.

        They are views of the run that is written beside them, which `ls.open_run(output_dir)` opens; an earlier report
        there is replaced. Parts that were not analyzed are named. `thresholds` of the deployment scenarios:
        `tokens_per_second`, `memory_bytes`, `robustness_gap`; `cuts` sets any threshold of the findings. A
        `target_device` is described by `memory_bytes`, `bytes_per_second` (of its memory) and `flops_per_second`: what
        it could reach with this model is computed by the roofline.
        """
        if not list(self.session.run.records()):
            raise PosttrainError(
                "nothing has been analyzed yet: call analyze_performance(data_loader) first, or another"
            )
        config: Any = getattr(self.model, "config", None)
        shown = {key: value for key in _SHOWN if (value := getattr(config, key, None)) is not None}
        if "Classification" not in type(self.model).__name__:
            shown.pop("num_labels", None)  # every configuration has one, also of models without labels
        facts = {
            "origin": self.origin, "configuration": shown, "data": self._about_data, "reduced": self.planner.reduced,
            "notes": self.notes, "effort": self.planner.effort, DEVICE: checked_device(target_device),
            **self.more_facts,
        }  # fmt: skip
        about = {key: value for key, value in facts.items() if value}
        folder, cuts = Path(output_dir), with_thresholds(cuts, thresholds)
        reader = one_pass(self.session.save(folder, plain_json(about)).reader)
        write_audit(reader, folder, cuts=cuts, name=self.name, about=about)
        self.findings = find(reader, cuts)
        write_json(folder / "findings.json", [finding.to_json() for finding in self.findings])
        return folder


def checked_device(numbers: Mapping[str, float] | None) -> dict[str, float]:
    """The numbers of a device, each above 0."""
    for name, value in (numbers or {}).items():
        if name not in DEVICE_NUMBERS:
            raise PosttrainError(f"target_device: {name!r} is not known; there are {', '.join(DEVICE_NUMBERS)}")
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise PosttrainError(f"target_device[{name!r}]={value!r}: a number above 0 is needed")
    return {name: float(value) for name, value in (numbers or {}).items()}


def with_thresholds(cuts: Cuts | None, thresholds: Mapping[str, float] | None) -> Cuts:
    """The cuts with these thresholds of the deployment scenarios."""
    changes: dict[str, Any] = {}
    for name, value in (thresholds or {}).items():
        if name not in _THRESHOLDS:
            raise PosttrainError(f"thresholds: {name!r} is not known; there are {', '.join(_THRESHOLDS)}")
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise PosttrainError(f"thresholds[{name!r}]={value!r}: a number above 0 is needed")
        changes[f"audit_{name}"] = float(value)
    return replace(cuts or Cuts(), **changes)
