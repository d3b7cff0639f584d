"""`learnscope audit`: examines one or more models and writes a report of each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learnscope.comparison import compare
from learnscope.model.cost.freed_memory import freed_memory_kept
from learnscope.posttrain.analyzer import PARTS, ModelAnalyzer, checked_device, with_thresholds
from learnscope.posttrain.builtin import make_builtin
from learnscope.posttrain.encoders import NO_ROBUSTNESS
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.exporting import check_export, export_model, kept_to, search_options
from learnscope.posttrain.exporting import in_words as in_words_of
from learnscope.posttrain.planning.estimate import Estimate, in_words, remaining
from learnscope.posttrain.session import check_folder
from learnscope.posttrain.several.beside import Beside, prepare
from learnscope.posttrain.tasks import check_can_answer, read_tasks
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.progress import progress_bar
from learnscope.record import Finding
from learnscope.run import Run, open_run

SENSITIVITY = "sensitivity.json"
CACHE = "cache"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """What to examine, on what, and where the results go."""

    models: Mapping[str, str | Path | nn.Module] = field(default_factory=dict)
    """By the names that reports give them; none is the built-in model, made on first use."""
    output_dir: Path = Path("analysis_results")
    config_path: Path | None = None
    tokenizer: Any = None
    device: str | None = None
    data: Any = None
    split: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    batch_size: int = 8
    length: int | None = None
    """Tokens of an example; None: 128, or 64 of sequences that are sampled from the model."""
    examples: int | None = None
    """At most; None: 256, or fewer if the model is large and the audit is not thorough."""
    seed: int = 0
    """Of the sequences that are sampled from the model where there are no data."""
    thorough: bool = False
    tasks: Sequence[str | Path] = ()
    """Files of questions with known answers, `.jsonl`: see `learnscope.posttrain.read_task`."""
    quick: bool = False
    target_device: Mapping[str, float] = field(default_factory=dict)
    """Its `memory_bytes`, `bytes_per_second` and `flops_per_second`, for what the roofline says of it."""
    parts: Sequence[str] = PARTS
    max_bytes: int | None = None
    max_kl: float | None = None
    max_increase: float | None = None
    """The loss that is accepted, a share of the perplexity; None: 0.01. This and what follows: see `BitFrontier`."""
    bits: Sequence[int] | None = None
    embeddings: bool | None = None
    symmetric: bool | None = None
    granularity: str | None = None
    group_size: int | None = None
    activation_bits: int | None = None
    method: str | None = None
    export: Path | None = None
    export_format: str | None = None
    """packed, torchao, compressed-tensors or gguf; None: by the ending of `export`, a folder is compressed-tensors."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    threads: int | None = None
    cache: bool = True
    progress: bool = True


_BITS = (
    "max_bytes", "max_kl", "max_increase", "bits", "embeddings", "symmetric", "granularity", "group_size",
    "activation_bits", "method",
)  # fmt: skip
"""Options of the bit widths."""


def bit_options(options: AuditOptions, stored: torch.dtype = torch.float32) -> dict[str, Any]:
    """Those of the bit widths that were given, and with an export those that let the search keep to its format, for a
    model whose weights are `stored` so."""
    given = {name: value for name in _BITS if (value := getattr(options, name)) is not None}
    return given if options.export is None else search_options(options.export, options.export_format, given, stored)


def run_audit(options: AuditOptions, say: Say = print) -> dict[str, Run]:
    """Examine every model and write its run folder with its report; returns the runs by the models' names.

    A single model's report goes into `output_dir`, several go into folders of their names below it, with a comparison.
    A model that cannot be loaded is refused before anything is written.
    """
    return {name: run for name, (run, _) in audited(options, say).items()}


def audited(options: AuditOptions, say: Say) -> dict[str, tuple[Run, list[Finding]]]:
    """The runs with the findings of their reports."""
    _check(options)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    models = dict(options.models)
    if not models:
        split = options.split if options.data is not None else options.split or "validation"
        options = replace(options, split=split)  # of the text that it is trained on
        folder = options.output_dir / "built-in_model"
        if not (folder / "config.json").is_file():
            say("no model was named: a small GPT-2 is trained on the standard library's help texts first …")
        with progress_bar("training the built-in model", show=options.progress) as show:
            models["built-in"] = make_builtin(folder, show=show)
    beside = Beside()
    if len(models) > 1:  # refuse what cannot be loaded, or needs other data, before the first takes its time
        beside = prepare(models, lambda name, model: _analyzer(name, model, options, options.output_dir),
                         lambda analyzer: _data(analyzer, options), options)  # fmt: skip
        for line in beside.in_words():
            say(line)
    folders = _folders(models, options.output_dir)
    for folder in folders.values():
        check_folder(folder)
    runs = {
        name: _audit_one(_analyzer(name, model, options, folders[name]), options, folders[name], say, beside)
        for name, model in models.items()
    }
    if len(runs) > 1:
        compared = compare([run for run, _ in runs.values()], names=list(runs))
        written = compared.save_audits(options.output_dir), compared.page(options.output_dir)
        say(f"side by side: {written[0]} and {written[1]}")
    return runs


def _check(options: AuditOptions) -> None:
    """Refuse wrong options before minutes are spent."""
    with_thresholds(None, options.thresholds)
    if options.tasks and "performance" not in options.parts:
        raise PosttrainError("tasks= belong to the performance, which parts= leaves out: add performance")
    read_tasks(options.tasks)  # refuses files that cannot be read
    checked_device(options.target_device)
    if options.quick and options.thorough:
        raise PosttrainError("thorough= and quick= exclude each other: give one of them")
    asked, export = {"max_bytes": options.max_bytes, "max_kl": options.max_kl}, options.export
    budgets = {name: value for name, value in asked.items() if value is not None}
    if not options.parts or not set(options.parts) <= set(PARTS):
        raise PosttrainError(f"parts={list(options.parts)!r}: some of {', '.join(PARTS)} are needed")
    if len(budgets) > 1:
        raise PosttrainError("give one budget, bytes (max_bytes=) or damage (max_kl=): the other is what is made small")
    for name, value in budgets.items():
        if not 0 < value < math.inf:
            raise PosttrainError(f"{name}={value!r}: a number above 0 is needed")
    if export is not None and len(options.models) > 1:
        raise PosttrainError("export= writes the weights of one model: audit the models one by one to export them")
    if export is not None and "bit_widths" not in options.parts:
        raise PosttrainError("export= writes the recommended bit widths, which parts= leaves out: add bit_widths")
    given = bit_options(replace(options, export=None))
    if given and "bit_widths" not in options.parts:
        what = "a budget" if budgets else f"{next(iter(given))}="
        raise PosttrainError(f"{what} is for the bit widths, which parts= leaves out: add bit_widths")
    if export is not None:
        check_export(export, options.export_format)
        check_writable(export)
    elif options.export_format is not None:
        raise PosttrainError(f"export_format={options.export_format!r} is that of a file: name it (export=)")
    BitFrontier(**bit_options(options))  # refuses what no model could take
    for folder in (options.output_dir, *options.output_dir.parents):
        if folder.exists() and not folder.is_dir():
            raise PosttrainError(f"{folder} is a file: name a folder for the report (output_dir=)")


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before minutes are spent on what goes into it."""
    folder = path.expanduser().absolute().parent
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise PosttrainError(f"export={str(path)!r} cannot be written: {existing} is no folder that may be written to")


def _data(analyzer: ModelAnalyzer, options: AuditOptions) -> Any:
    columns = {"text_column": options.text_column, "label_column": options.label_column}
    named = {name: column for name, column in columns.items() if column is not None}
    return analyzer.data(
        options.data, split=options.split, batch_size=options.batch_size, length=options.length,
        examples=options.examples, **named,
    )  # fmt: skip


def _audit_one(
    analyzer: ModelAnalyzer, options: AuditOptions, folder: Path, say: Say, beside: Beside
) -> tuple[Run, list[Finding]]:
    for note in analyzer.notes:
        say(f"{analyzer.name}: {note}")
    if options.data is None and options.split is None:
        say(f"{analyzer.name}: no data were given, so it is examined on its own samples (seed={options.seed})")
    data = _data(analyzer, options)
    if analyzer.headless and "robustness" in options.parts:
        say(f"{analyzer.name}: {NO_ROBUSTNESS}")
        options = replace(options, parts=[part for part in options.parts if part != "robustness"])
    planned, lines = _planned(analyzer, data, options)
    for line in lines:
        say(f"{analyzer.name}: {line}")
    took: dict[str, float] = {}
    for number, part in enumerate(options.parts, 1):
        left = in_words(remaining(planned.seconds, took))
        where = f"part {number} of {len(options.parts)}, about {left} left"
        say(f"{analyzer.name}: {part.replace('_', ' ')} … ({where})")
        started = time.monotonic()
        if part == "performance":
            analyzer.analyze_performance(data)
            if options.tasks:
                analyzer.performance_analyzer.answer_tasks(data, read_tasks(options.tasks))
        elif part == "bit_widths":
            given = bit_options(options, next(analyzer.model.parameters()).dtype)
            asked = bit_options(replace(options, export=None))
            if options.export is not None and given != asked:
                say(f"{analyzer.name}: {kept_to(options.export, options.export_format, given, asked)}")
            with freed_memory_kept():
                analyzer.analyze_bit_widths(data, **given)
            analyzer.bit_width_analyzer.save_sensitivity(folder / SENSITIVITY)
        else:
            with freed_memory_kept():
                analyzer.analyze_robustness(data)
        took[part] = time.monotonic() - started
    beside.measure(analyzer, data)
    analyzer.generate_comprehensive_report(folder, thresholds=options.thresholds, target_device=options.target_device)
    if options.export is not None:  # after the report, which is of use also where a format cannot hold the mix
        for line in in_words_of(export_model(analyzer, options.export, data, format=options.export_format)):
            say(f"{analyzer.name}: {line}")
    return open_run(folder), analyzer.findings


def _planned(analyzer: ModelAnalyzer, data: Any, options: AuditOptions) -> tuple[Estimate, list[str]]:
    """The estimate, and in words what will be done, how long it will take, and what is left out."""
    batches = analyzer.planner.fixed(data)
    planned, thorough = analyzer.planner.estimates(batches, options.parts)
    each = [
        f"{part.replace('_', ' ')} {in_words(planned.seconds[part])} ({planned.forwards[part]:,} forward passes of an "
        "example)"
        for part in options.parts
    ]
    lines = [f"about {in_words(planned.total)}, from two timed passes: {', '.join(each)}"]
    if "bit_widths" in options.parts and (sample := analyzer.planner.sample(batches)) is not None:
        lines.append(f"bit widths: {sample.words()}")
    left_out = analyzer.planner.left_out(batches, options.parts)
    lines += [f"{part.replace('_', ' ')}: {text}" for part, text in left_out.items()]
    if left_out:
        lines.append(f"thorough= leaves none of that out, and takes about {in_words(thorough.total)}")
    return planned, lines


def _analyzer(name: str, model: Any, options: AuditOptions, folder: Path) -> ModelAnalyzer:
    analyzer = ModelAnalyzer(
        model, options.config_path, tokenizer=options.tokenizer, device=options.device, name=name,
        cache=folder / CACHE if options.cache else None, progress=options.progress, thorough=options.thorough,
        quick=options.quick, seed=options.seed,
    )  # fmt: skip
    analyzer.check_data(options.data, options.split)
    check_can_answer(analyzer.model, analyzer.tokenizer, read_tasks(options.tasks))
    if options.export is not None:
        check_export(options.export, options.export_format, analyzer.model)
    if "bit_widths" in options.parts:
        analyzer.bit_width_analyzer.check(**bit_options(options))
    return analyzer


def named(paths: Sequence[str | Path]) -> dict[str, str | Path]:
    """Models by the shortest ends of their paths that differ."""
    parts = [Path(os.path.abspath(Path(path).expanduser())).parts for path in paths]
    if len(set(parts)) < len(parts):
        raise PosttrainError("the same model is named twice: name each once")
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return {"/".join(part[-depth:]): path for part, path in zip(parts, paths, strict=True)}


def _folders(names: Collection[str], home: Path) -> dict[str, Path]:
    """A folder for each model below `home`, by its name, no two the same; for a single model `home` itself."""
    if len(names) == 1:
        return dict.fromkeys(names, home)
    folders: dict[str, Path] = {}
    for name in names:
        plain = name.replace("/", "_").replace("\\", "_").lstrip(".") or "model"
        paths = (home / (plain if number == 1 else f"{plain}_{number}") for number in count(1))
        folders[name] = next(path for path in paths if path not in folders.values())
    return folders
