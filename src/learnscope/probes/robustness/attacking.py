"""Attacks on the first examples of a moment: what they need is found when the first of them is not remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.model.outputs.example_sums import ExampleSums, joined_sums, kept_outputs
from learnscope.model.robustness.attack import Attacked, Clip, fgsm, judged, pgd, random_perturbation
from learnscope.model.robustness.ball import Per, Threat, Unit, sizes, token_distances, unit_ball
from learnscope.model.robustness.target import Target, find_target, what_is_attacked
from learnscope.model.robustness.texts import changed_texts
from learnscope.model.robustness.token_units import real_tokens, token_count, token_table
from learnscope.probes.robustness.rows import check_counted
from learnscope.task import Outputs
from learnscope.tensor.robustness.perturbation import Ball, Norm


@dataclass(frozen=True)
class Attacking:
    """The attacks of one threat on these batches; every result is plain numbers and text."""

    moment: Moment
    batches: Sequence[Any]
    threat: Threat
    clip: Clip
    seed: int

    def clean(self) -> dict[str, Any]:
        """The batches as they are."""
        return self._judged([None] * len(self.batches))

    def random(self, epsilon: float, seeds: int) -> dict[str, Any]:
        """Means over the seeds, example by example, and the loss of each."""
        runs = []
        for place in range(seeds):
            generator = self.generator(place + 1)
            deltas = [
                random_perturbation(target, ball, generator, clip=self.clip)
                for target, ball in zip(self.targets, self.balls(epsilon), strict=True)
            ]
            runs.append(self._judged(deltas))
        mean: dict[str, Any] = {"positions": runs[0]["positions"]}
        for name in ("loss", "correct", "kl"):
            lists = [run[name] for run in runs]
            mean[name] = None if lists[0] is None else [sum(each) / seeds for each in zip(*lists, strict=True)]
        return {**mean, **self._sizes(epsilon), "losses": [sum(r["loss"]) / sum(r["positions"]) for r in runs]}

    def fgsm(self, epsilon: float) -> dict[str, Any]:
        model, task = self.moment.model, self.moment.task
        found = [
            fgsm(model, task, target, ball, clip=self.clip)
            for target, ball in zip(self.targets, self.balls(epsilon), strict=True)
        ]
        return self._told(found, epsilon)

    def pgd(self, epsilon: float, steps: int, restarts: int, texts: int = 0) -> dict[str, Any]:
        found = self.found_by_pgd(epsilon, steps, restarts)
        told = self._told(found, epsilon)
        if texts and self.targets[0].embedding is not None:
            told["texts"] = self._texts(found[0], self.balls(epsilon)[0], texts)
        return told

    def found_by_pgd(self, epsilon: float, steps: int, restarts: int) -> list[Attacked]:
        """The perturbations themselves, for the weights that the model has now."""
        model, task, generator = self.moment.model, self.moment.task, self.generator(0)
        return [
            pgd(model, task, target, ball, steps=steps, restarts=restarts, generator=generator, clip=self.clip)
            for target, ball in zip(self.targets, self.balls(epsilon), strict=True)
        ]

    def generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1_000_003 + stream)

    @property
    def targets(self) -> list[Target]:
        def find() -> list[Target]:
            return [find_target(self.moment.model, self.moment.task, batch) for batch in self.batches]

        return self.moment.once(("attack targets", self._examples), find)

    @property
    def reference(self) -> list[Outputs]:
        def run() -> list[Outputs]:
            return kept_outputs(self.moment.model, self.moment.task, self.batches)

        return self.moment.once(("kept outputs", self._examples), run)

    def balls(self, epsilon: float) -> list[Ball]:
        pairs = zip(self.targets, self.distances, strict=True)
        return [unit_ball(target, self.threat, apart).of(epsilon) for target, apart in pairs]

    @property
    def distances(self) -> list[Tensor | None]:
        def find() -> list[Tensor | None]:
            return token_distances(self.moment.model, self.targets, self.moment.subject.tokenizer)

        return self.moment.once(("token distances", self._examples), find)

    @property
    def _examples(self) -> int:
        return sum(self.moment.task.size(batch) for batch in self.batches)

    def _told(self, found: Sequence[Attacked], epsilon: float) -> dict[str, Any]:
        return {
            **self._judged([one.delta for one in found]),
            **self._sizes(epsilon),
            "zero_gradients": sum(one.zero_gradients for one in found),
            "gradients": sum(one.gradients for one in found),
            "not_finite": sum(one.not_finite for one in found),
        }

    def _judged(self, deltas: Sequence[Tensor | None]) -> dict[str, Any]:
        model, task = self.moment.model, self.moment.task
        parts: list[ExampleSums] = []
        for target, delta, reference in zip(self.targets, deltas, self.reference, strict=True):
            parts.append(judged(model, task, target, delta, reference))
        return check_counted(joined_sums(parts)).plain()

    def _sizes(self, epsilon: float) -> dict[str, float | None]:
        """ε in every unit, mean over what it bounds."""
        balls = self.balls(epsilon)
        each = [sizes(*these) for these in zip(self.targets, balls, self.distances, strict=True)]
        found: dict[str, float | None] = {}
        for unit in ("absolute", "relative", "token"):
            values = [value for one in each for value in one.get(unit, [])]
            found[f"epsilon_{unit}"] = sum(values) / len(values) if values else None
        return found

    def _texts(self, found: Attacked, ball: Ball, most: int) -> list[dict[str, Any]]:
        moment, target = self.moment, self.targets[0]
        assert target.embedding is not None
        vocabulary = real_tokens(moment.model, token_count(target.embedding), moment.subject.tokenizer)
        table = token_table(target.embedding, vocabulary)
        finite = table.isfinite().all(1)  # a row of NaN is near to nothing, and would hide what is
        vocabulary, table = vocabulary[finite.to(vocabulary.device)], table[finite]
        return changed_texts(
            moment.model, moment.task, target, found.delta, ball, moment.subject.tokenizer, vocabulary, table, most
        )


def threat_for(moment: Moment, batches: Sequence[Any], norm: Norm | None, per: Per | None, unit: Unit | None) -> Threat:
    """What is chosen, and the defaults for what is not: of token models L2 a token, measured by the distance to the
    nearest other one; of continuous inputs L∞, relative to the input."""
    tokens = what_is_attacked(moment.task, batches[0]) == "embeddings"
    if not tokens and per not in (None, "example"):
        raise ValueError(f"per={per!r}: continuous inputs have no tokens; their ε is per example")
    if unit == "token" and not tokens:
        raise ValueError("unit='token': continuous inputs have no tokens; use unit='relative' or 'absolute'")
    if not tokens:
        return Threat(norm or "linf", "example", unit or "relative")
    return Threat(norm or "l2", "sequence" if per == "example" else per or "token", unit or "token")
