"""Several models in one audit: what they are compared on, and what is measured of each beside the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from learnscope.model.weights.snapshot import Snapshot
from learnscope.posttrain.analyzer import ModelAnalyzer
from learnscope.posttrain.data import is_texts, source_rows, token_limit
from learnscope.posttrain.examples import Encoder
from learnscope.posttrain.planning.depth import LENGTH, WANTED
from learnscope.posttrain.reader import load_tokenizer, reader_of
from learnscope.posttrain.several.shared import (
    Reading,
    Shared,
    searched_documents,
    shared_batches,
    shared_texts,
)
from learnscope.probes.bits.candidates import Quantiser
from learnscope.probes.bits.shared_texts import SharedTexts
from learnscope.probes.bits.trials import ORIGINAL
from learnscope.probes.updates.layer_rewind import LayerRewind
from learnscope.record import Record

WORK = 0.5e12
"""Multiply-adds that the ranking may take of the largest model."""
TEXTS, FEWEST_TEXTS = 64, 16
WAYS = 9
"""Ways to store a model that take part, with the model as it is."""
NO_DATA = "no data were given, and each model is examined on its own samples: give data="
WHOLE_BATCHES = "its batches cannot be cut into examples"


@dataclass(frozen=True)
class Beside:
    """For each of several models, the texts that all are measured on, or why it is not ranked."""

    shared: Mapping[str, Shared] = field(default_factory=dict)
    not_ranked: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    """The first model, if others have the same layers: they may be fine-tuned from it."""
    base_weights: Mapping[str, Tensor] = field(default_factory=dict)
    tuned: frozenset[str] = frozenset()

    def in_words(self) -> list[str]:
        lines = []
        if self.shared:
            texts = len(next(iter(self.shared.values())).texts)
            lines.append(f"{len(self.shared)} models are ranked on the same {texts} texts, which no search sees")
        lines += [f"{name} is not ranked: {why}" for name, why in self.not_ranked.items()]
        return lines + [f"{name} has the layers of {self.base}, and is compared with it" for name in sorted(self.tuned)]

    def measure(self, analyzer: ModelAnalyzer, data: Any) -> None:
        """What only an audit of several measures of a model; it goes into its run like all else."""
        name, session = analyzer.name, analyzer.session
        if name in self.not_ranked:
            analyzer.more_facts["not_ranked"] = self.not_ranked[name]
        if name in self.shared:
            shared, record = self.shared[name], session.record("BitFrontier")
            ways = {} if record is None else ways_to_rank(record)
            probe = SharedTexts(configurations=ways, texts=shared.texts, examples=len(shared.texts))
            calibrated = any(way["scheme"].get("method", "rtn") != "rtn" for way in ways.values())
            session.measure(probe, shared.batches, train_data=_search_half(analyzer) if calibrated else None)
        if name in self.tuned:
            before = Snapshot(self.base_weights, 0)
            probe_of_layers = LayerRewind(every=1, examples=WANTED)
            session.measure(probe_of_layers, data, previous=before, facts={"base": self.base})


def ways_to_rank(record: Record) -> dict[str, dict[str, Any]]:
    """Those that answer a question, the 16-bit floats, and others of the model's own frontier, evenly by size."""
    notes = record.notes
    front: list[tuple[float, str]] = []
    for table in record.tables:
        if table.kind == "configuration":
            columns = {column.name: list(column.values) for column in table.columns}
            for scope, size, on in zip(table.scopes, columns["packed_bytes"], columns["on_frontier"], strict=True):
                front += [(float(size), scope)] if on == 1 and scope != ORIGINAL else []
    answers = [choice["name"] for choice in notes.get("choices", {}).values()]
    first = [name for name in dict.fromkeys([*answers, "float16", "bfloat16"]) if notes["bits"].get(name)]
    others = [name for _, name in sorted(front) if name not in first]
    room = max(WAYS - 1 - len(first), 0)
    evenly = [others[place * (len(others) - 1) // max(room - 1, 1)] for place in range(min(room, len(others)))]
    chosen = dict.fromkeys([*first, *(others if len(others) <= room else evenly)])
    return {name: {"bits": dict(notes["bits"][name]), "scheme": dict(notes["schemes"][name])} for name in chosen}


def _search_half(analyzer: ModelAnalyzer) -> list[Any]:
    """The examples that the search over bits was made on, and its methods calibrated."""
    probe, batches = analyzer.session.measured("BitFrontier")
    return Quantiser(examples=probe.examples).batches(analyzer.session.moment(batches), "search")  # type: ignore[attr-defined]


def prepare(
    models: Mapping[str, Any], make: Callable[[str, Any], ModelAnalyzer], read: Callable[[ModelAnalyzer], Any],
    options: Any,
) -> Beside:  # fmt: skip
    """Look at all models, one at a time, before the first is examined. `make` loads one and refuses what cannot be
    audited, `read` reads its data; `options` are those of the audit."""
    rows_given = options.data is None or isinstance(options.data, str | Path) or is_texts(options.data)
    sampled = options.data is None and options.split is None
    readings: dict[str, Reading] = {}
    given: dict[str, Shared | None] = {}
    shapes: dict[str, dict[str, Any]] = {}
    base_weights: dict[str, Tensor] = {}
    largest = 1
    for name, model in models.items():
        analyzer = make(name, model)
        weights = dict(analyzer.model.named_parameters())
        shapes[name] = {key: weight.shape for key, weight in weights.items()}
        base_weights = base_weights or {key: weight.detach().cpu().clone() for key, weight in weights.items()}
        largest = max(largest, sum(weight.numel() for weight in weights.values()))
        if sampled:
            continue
        if rows_given:
            readings[name] = _reading(analyzer, read(analyzer), options)
        else:
            batches = analyzer.planner.fixed(read(analyzer))
            given[name] = shared_batches(analyzer.session.task_of(batches), batches, TEXTS)
        del analyzer, weights
    first, *others = models
    tuned = frozenset(name for name in others if shapes[name] == shapes[first])
    length = options.length or LENGTH
    shared, why = _shared(models, readings, given, options, _texts(largest, length))
    return Beside(shared, why, first if tuned else "", base_weights if tuned else {}, tuned)


def _texts(parameters: int, length: int) -> int:
    """How many texts the largest model can be run on in every way to store it."""
    return max(FEWEST_TEXTS, min(TEXTS, int(WORK / (WAYS * parameters * length))))


def _shared(
    models: Mapping[str, Any], readings: Mapping[str, Reading], given: Mapping[str, Shared | None], options: Any,
    most: int,
) -> tuple[dict[str, Shared], dict[str, str]]:  # fmt: skip
    if readings:
        rows, _, _ = source_rows(options.data, options.split)
        return shared_texts(readings, rows, most)
    if given:
        found = {name: shared for name, shared in given.items() if shared is not None}
        return found, {name: WHOLE_BATCHES for name, shared in given.items() if shared is None}
    return {}, dict.fromkeys(models, NO_DATA)


def _reading(analyzer: ModelAnalyzer, data: Any, options: Any) -> Reading:
    reader, tokenizer = reader_of(analyzer.model), load_tokenizer(analyzer.tokenizer)
    limit = token_limit(reader, tokenizer, options.length or LENGTH)
    encoder = Encoder(reader, tokenizer, limit, options.text_column, options.label_column)
    batches = analyzer.planner.fixed(data)
    return Reading(encoder, searched_documents(analyzer.session.task_of(batches), batches))
