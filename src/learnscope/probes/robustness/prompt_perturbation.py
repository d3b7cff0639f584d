"""What changes of a prompt that anybody could send do to what a language model predicts after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.intervals import ratio_interval, share_difference_interval
from learnscope.model.outputs.example_sums import (
    ExampleSums,
    example_sums,
    example_sums_by_batch,
    joined_sums,
    outputs_of_batches,
)
from learnscope.model.robustness.prompts import (
    NO_TOKENIZER,
    TEXT_KINDS,
    TOKEN_KINDS,
    Prompter,
    prompts_of,
)
from learnscope.model.robustness.token_units import vocabulary_digest
from learnscope.options import check_whole
from learnscope.probes.robustness.shared import RobustnessProbe, check_counted, check_numbers, column, counted
from learnscope.quantities.robustness import PromptPerturbation as Q
from learnscope.record import Column, Measurement, Table

CLEAN = "clean"


class PromptPerturbation(RobustnessProbe):
    """Prompts with typing errors, other casing, spaces and word order, and with words of another text before them.

    Of a language model the first half of each text is the prompt: it is changed, and the second half, which stays, is
    predicted after it. So the same tokens are predicted at the same places, and losses, accuracy and
    KL(as it is ‖ changed) are compared position by position. Of a text classifier the whole text is changed, and its
    label stays. `level` is the share of the places that are changed, one at least.

    Scopes of text, which need a tokenizer: "typos" (a letter becomes one beside it on a keyboard), "letter_swaps"
    (neighbouring letters), "casing", "whitespace" (a space is doubled, left out or a line break), "word_order"
    (neighbouring words), "distractor" (the first words of another prompt before it). Prompts are decoded and encoded
    again for these, also the clean ones that they are compared with. Of tokens alone: "token_swaps" (neighbouring
    tokens) and "token_distractor". And "clean" at level 0, the prompts as they are.

    Notes: `examples`, `positions`, `changed` ("the first half of each text", or "the whole text").
    """

    levels: Sequence[float] = (0.02, 0.1)
    seeds: int = 3
    kinds: Sequence[str] = (*TEXT_KINDS, *TOKEN_KINDS)

    cost = "a forward pass over the examples for each kind, level and seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, seeds=1, seed=0)
        check_numbers(self, "levels", self.levels, low=0)
        unknown = sorted(set(self.kinds) - {*TEXT_KINDS, *TOKEN_KINDS})
        if unknown or not self.kinds or max(self.levels) > 1:
            known = ", ".join((*TEXT_KINDS, *TOKEN_KINDS))
            raise ValueError(f"PromptPerturbation(kinds={self.kinds!r}, levels={self.levels!r}): kinds are {known}; "
                             "levels are shares, from 0 to 1")  # fmt: skip

    def measure(self, moment: Moment) -> Measurement:
        batches, _ = self.batches(moment)
        tokenizer = moment.subject.tokenizer
        prompts = prompts_of(moment.model, batches, tokenizer)
        plan = [(CLEAN, 0.0), *((kind, float(level)) for kind in self.kinds for level in sorted(set(self.levels)))]
        tables, notes = [], {}
        clean: dict[bool, dict[str, Any]] = {}
        for kind, level in moment.track(plan, "changed prompts"):
            why = prompts if isinstance(prompts, str) else None
            if why is None and kind in TEXT_KINDS and not callable(tokenizer):
                why = NO_TOKENIZER
            if why is not None or isinstance(prompts, str):
                tables.append(Table("prompt", [kind], _missing(level, why or "")))
                continue
            prompter = Prompter(moment.model, prompts, tokenizer)
            key = {
                "what": f"changed prompts: {kind}", "level": level, "seeds": self.seeds, "seed": self.seed,
                "vocabulary": vocabulary_digest(tokenizer), "examples": len(prompts),
            }  # fmt: skip
            runs = moment.remember(key, partial(self._runs, moment, prompter, kind, level))
            text = kind in TEXT_KINDS
            if text not in clean:
                own = {**key, "what": f"prompts as they are, text: {text}", "level": 0.0}
                clean[text] = moment.remember(own, partial(self._runs, moment, prompter, kind, None))["runs"][0]
            tables.append(Table("prompt", [kind], _columns(level, runs, clean[text])))
            whole = prompts[0].label is not None
            notes = {
                "examples": counted(clean[text]["positions"]), "positions": sum(clean[text]["positions"]),
                "changed": "the whole text" if whole else "the first half of each text, and the second is predicted",
            }  # fmt: skip
        return Measurement(tables, notes=notes)

    def _runs(self, moment: Moment, prompter: Prompter, kind: str, level: float | None) -> dict[str, Any]:
        """Sums of every seed, and how much was changed; without a level, of the prompts as they are."""
        runs, changed, of = [], 0, 0
        for place in range(self.seeds if level and kind != CLEAN else 1):
            batches, count, total = prompter.clean(kind), 0, 1
            if level is not None and kind != CLEAN:
                batches, count, total = prompter.changed(kind, level, self.seed + place)
            runs.append(check_counted(self._sums(moment, prompter, kind, batches)).plain())
            changed, of = changed + count, of + total
        return {"runs": runs, "changed_share": changed / of if of else None}

    def _sums(self, moment: Moment, prompter: Prompter, kind: str, batches: Sequence[Any]) -> ExampleSums:
        """Of these batches beside the prompts as they are; what was run before is not run again: of short prompts,
        several levels change a single place, and the same one."""
        model, task, text = moment.model, moment.task, kind in TEXT_KINDS
        own = prompter.clean(kind)
        reference = moment.once(("clean prompts", text), lambda: outputs_of_batches(model, task, own))

        def as_they_are() -> dict[Any, ExampleSums]:
            parts = zip(own, reference, strict=True)
            return {_key(n, b): example_sums(out.outputs, task.size(b), out) for n, (b, out) in enumerate(parts)}

        known = moment.once(("sums of prompts", text), as_they_are)
        keys = [_key(n, batch) for n, batch in enumerate(batches)]
        new = [n for n, key in enumerate(keys) if key not in known]
        if new:
            parts = example_sums_by_batch(model, task, [batches[n] for n in new], [reference[n] for n in new])
            known.update(zip([keys[n] for n in new], parts, strict=True))
        return joined_sums([known[key] for key in keys])


def _key(place: int, batch: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """A batch of prompts by its content, and by what it is compared with."""
    return place, *((tuple(values.shape), values.numpy().tobytes()) for values in batch.values())


def _columns(level: float, result: dict[str, Any], clean: dict[str, Any]) -> list[Column]:
    runs, labels = result["runs"], {"level": level}
    positions = np.array(runs[0]["positions"], dtype=np.float64)
    total = float(positions.sum())
    mean = {name: np.mean([run[name] for run in runs], axis=0) for name in ("loss", "correct", "kl")}
    before = {name: np.array(clean[name], dtype=np.float64) for name in ("loss", "correct")}
    ends = {
        Q.loss_change: ratio_interval(mean["loss"] - before["loss"], positions),
        Q.accuracy_change: share_difference_interval(mean["correct"], before["correct"], positions),
        Q.kl: ratio_interval(mean["kl"], positions),
    }
    values = {
        Q.loss_change: (mean["loss"] - before["loss"]).sum() / total,
        Q.accuracy_change: (mean["correct"] - before["correct"]).sum() / total,
        Q.kl: mean["kl"].sum() / total,
    }
    columns = [
        column(Q.loss, mean["loss"].sum() / total, labels),
        column(Q.accuracy, mean["correct"].sum() / total, labels),
    ]
    for quantity, value in values.items():
        low, high, reason = ends[quantity]
        columns.append(column(quantity, float(value), labels))
        columns += [
            column(Q.named(f"{quantity.name}_{end}"), x, labels, reason) for end, x in (("low", low), ("high", high))
        ]
    columns.append(column(Q.changed_share, result["changed_share"], labels, "there is nothing that could be changed"))
    return [*columns, column(Q.seeds, len(runs), labels), column(Q.examples, counted(runs[0]["positions"]), labels)]


def _missing(level: float, why: str) -> list[Column]:
    return [column(quantity, None, {"level": level}, why) for quantity in Q.all()]
