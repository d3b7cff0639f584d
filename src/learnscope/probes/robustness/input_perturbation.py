"""How much random changes of the inputs change a model's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.model.outputs.example_sums import (
    ExampleSums,
    KeptOutputs,
    example_sums,
    example_sums_of_pass,
    joined_sums,
)
from learnscope.model.robustness.target import What, find_target
from learnscope.model.robustness.token_noise import (
    Perturbed,
    add_noise,
    drop_entries,
    drop_tokens,
    mask_tokens,
    substitute_tokens,
)
from learnscope.model.robustness.token_units import real_tokens, token_count, vocabulary_digest
from learnscope.probes.robustness.shared import SeededProbe, check_counted, check_numbers, column, means, over_seeds
from learnscope.quantities.robustness import InputPerturbation as Q
from learnscope.record import Measurement, Table
from learnscope.task.batches import map_leaves

SCOPES: dict[What, tuple[str, str]] = {
    "embeddings": ("token_dropout", "token_substitution"),
    "inputs": ("input_dropout", "input_noise"),
}


class InputPerturbation(SeededProbe):
    """The model on inputs of which a share was removed or replaced at random, for several seeds.

    Scopes for token ids, where `level` is the share of each sequence's tokens (one at least; never special tokens, and
    never padding):

    - "token_dropout": tokens are removed and sequences are shorter; or, with `dropout="mask"`, replaced by the
      tokenizer's mask token.
    - "token_substitution": tokens are replaced by others, drawn evenly from the vocabulary's real tokens.

    What is predicted then is said in `learnscope.model.robustness.token_noise`. Scopes for continuous inputs:

    - "input_dropout": each entry is set, with probability `level`, to its mean over the examples (to that of all
      entries where examples differ in shape).
    - "input_noise": N(0, (level·rms of the example)²) is added to each entry.

    And "clean" at level 0, the inputs as they are.

    Notes: `examples`, `positions` (of the clean inputs), `dropout`.
    """

    levels: Sequence[float] = (0.05, 0.1, 0.2)
    dropout: Literal["remove", "mask"] = "remove"

    cost = "a forward pass over the examples for each level and seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "levels", self.levels, low=0)
        if max(self.levels) > 1:
            raise ValueError(f"InputPerturbation(levels={self.levels!r}): shares, from 0 to 1")
        if self.dropout not in ("remove", "mask"):
            raise ValueError(f"InputPerturbation(dropout={self.dropout!r}): 'remove' or 'mask'")

    def measure(self, moment: Moment) -> Measurement:
        batches, what = self.batches(moment)
        plan = [(scope, float(level)) for scope in SCOPES[what] for level in sorted(set(self.levels))]
        tables: list[Table] = []
        clean: dict[str, Any] = {}
        for scope, level in moment.track([("clean", 0.0), *plan], "changed inputs"):
            key = self._key(moment, batches, scope, level)
            result = moment.remember(key, partial(self._changed, moment, batches, scope, level))
            labels = {"level": level}
            clean = result if scope == "clean" else clean
            columns = [
                *over_seeds(Q, result["runs"], labels),
                column(Q.changed_share, result["changed_share"], labels, "there is nothing that could be changed"),
                column(Q.seeds, len(result["runs"]), labels),
            ]
            tables.append(Table("perturbation", [scope], columns))
        notes: dict[str, Any] = {"examples": clean["examples"], "positions": clean["positions"]}
        return Measurement(tables, notes=notes | ({"dropout": self.dropout} if what == "embeddings" else {}))

    def _key(self, moment: Moment, batches: Sequence[Any], scope: str, level: float) -> dict[str, Any]:
        key = {"what": f"perturbed inputs: {scope}", "level": level, "seeds": self.seeds, "seed": self.seed}
        key["examples"] = [moment.task.size(batch) for batch in batches]
        if scope.startswith("token"):
            key |= {"dropout": self.dropout, "vocabulary": vocabulary_digest(moment.subject.tokenizer)}
        return key

    def _changed(self, moment: Moment, batches: Sequence[Any], scope: str, level: float) -> dict[str, Any]:
        runs: list[dict[str, Any]] = []
        examples = positions = changed = of = 0
        change = None if scope == "clean" else self._change(moment, batches, scope, level)
        for place in range(1 if change is None else self.seeds):
            generator = torch.Generator().manual_seed(self.seed + place)
            parts = [Perturbed(batch, 0, 1) if change is None else change(batch, generator) for batch in batches]
            totals = _sums(moment, [part.batch for part in parts], own=change is None)
            sums = (check_counted(totals) if change is None else totals).plain()
            examples, positions = len(sums["positions"]), sum(sums["positions"])
            changed, of = changed + sum(part.changed for part in parts), of + sum(part.of for part in parts)
            runs.append({name: value for name, value in means(sums).items() if name != "kl"})
        share = changed / of if of else None
        return {"runs": runs, "examples": examples, "positions": positions, "changed_share": share}

    def _change(
        self, moment: Moment, batches: Sequence[Any], scope: str, level: float
    ) -> Callable[[Any, torch.Generator], Perturbed]:
        """The function that changes a batch."""
        model, task, tokenizer = moment.model, moment.task, moment.subject.tokenizer
        if scope == "token_dropout":
            drop = drop_tokens if self.dropout == "remove" else mask_tokens
            return lambda batch, generator: drop(model, task, batch, level, generator, tokenizer)
        if scope == "token_substitution":

            def rows() -> int:
                embedding = find_target(model, task, task.take(batches[0], 1)).embedding
                assert embedding is not None
                return token_count(embedding)

            vocabulary = real_tokens(model, moment.once("rows of the embedding", rows), tokenizer)
            return lambda batch, generator: substitute_tokens(
                model, task, batch, level, generator, tokenizer, vocabulary
            )
        mean = _mean([find_target(model, task, batch).origin for batch in batches])

        def changed(batch: Any, generator: torch.Generator) -> Perturbed:
            target = find_target(model, task, batch)
            if scope == "input_dropout":
                new, count = drop_entries(target.origin, level, mean, generator)
            else:
                new, count = add_noise(target.origin, level, generator), target.origin.numel() if level else 0
            new_batch = map_leaves(target.batch, lambda leaf: new if leaf is target.leaf else leaf)
            return Perturbed(new_batch, count, target.origin.numel())

        return changed


def _sums(moment: Moment, batches: Sequence[Any], *, own: bool) -> ExampleSums:
    """Of a pass; of the model's own outputs on the batches as they are, where another probe has kept them."""
    known: Sequence[KeptOutputs] | None = moment.cache.get(("kept outputs", sum(map(moment.task.size, batches))))
    if not own or known is None:
        return example_sums_of_pass(moment.model, moment.task, batches)
    pairs = zip(known, map(moment.task.size, batches), strict=True)
    return joined_sums([example_sums(each.outputs, size) for each, size in pairs])


def _mean(origins: Sequence[Tensor]) -> Tensor:
    """Of every entry over the examples; of all entries where examples differ in shape."""
    if len({origin.shape[1:] for origin in origins}) == 1:
        return torch.cat(list(origins)).double().mean(0)
    return torch.cat([origin.flatten() for origin in origins]).double().mean()
