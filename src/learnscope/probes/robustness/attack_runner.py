"""Attacks on the first examples of a moment, and the options of the probes that make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.model.outputs.example_sums import KeptOutputs, example_sums, joined_sums, kept
from learnscope.model.robustness.attack import (
    Attacked,
    Clip,
    Start,
    attacked_sums,
    changed_texts,
    fgsm,
    gradient_at_input,
    pgd,
    random_perturbation,
)
from learnscope.model.robustness.ball import PERS, UNITS, Per, Threat, Unit, sizes, token_distances, unit_ball
from learnscope.model.robustness.target import Target, What, find_target
from learnscope.model.robustness.token_units import real_tokens, token_count, token_table, vocabulary_digest
from learnscope.options import check_whole
from learnscope.probes.robustness.shared import RobustnessProbe, check_counted
from learnscope.task import Outputs
from learnscope.tensor.robustness.perturbation import NORMS, Ball, Norm

T = TypeVar("T")


class AttackProbe(RobustnessProbe):
    """Options of the probes that attack a model."""

    norm: Norm | None = None
    per: Per | None = None
    """L2 of token models: of each token's embedding, or of the sequence's as one vector."""
    unit: Unit | None = None
    steps: int = 10
    restarts: int = 1
    """Starts of PGD: the input itself, and from the second on random points of the ball."""
    clip: tuple[float, float] | None = None
    """The range of valid inputs, such as (0, 1), which attacks do not leave."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, steps=1, restarts=1, seed=0)
        kind = type(self).__name__
        for name, known in (("norm", NORMS), ("per", PERS), ("unit", UNITS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"{kind}({name}={value!r}): one of {', '.join(known)}, or None for the default")
        if self.clip is None:
            return
        ends = list(self.clip) if isinstance(self.clip, Sequence) else []
        numbers = [isinstance(end, int | float) and not isinstance(end, bool) for end in ends]
        if len(ends) != 2 or not all(numbers) or not ends[0] < ends[1]:
            raise ValueError(f"{kind}(clip={self.clip!r}): the lowest and the highest valid input, such as (0, 1)")

    def runner(self, moment: Moment) -> tuple[AttackRunner, What]:
        batches, what = self.batches(moment)
        return AttackRunner(moment, batches, self._threat(what), self.clip, self.seed), what

    def _threat(self, what: What) -> Threat:
        """The options, with defaults for those that are None: for tokens L2 per token in shares of the distance to the
        nearest other token, for continuous inputs L∞ relative to the input."""
        if what == "embeddings":
            per = "sequence" if self.per == "example" else self.per or "token"
            return Threat(self.norm or "l2", per, self.unit or "token")
        if self.per not in (None, "example"):
            raise ValueError(f"per={self.per!r}: continuous inputs have no tokens; their ε is per example")
        if self.unit == "token":
            raise ValueError("unit='token': continuous inputs have no tokens; use unit='relative' or 'absolute'")
        return Threat(self.norm or "linf", "example", self.unit or "relative")


@dataclass(frozen=True)
class AttackRunner:
    """The attacks of one threat on these batches; results are plain numbers and text."""

    moment: Moment
    batches: Sequence[Any]
    threat: Threat
    clip: Clip
    seed: int

    def key(self, what: str) -> dict[str, Any]:
        """What every result depends on, to cache it by."""
        return {
            "what": what, "norm": self.threat.norm, "per": self.threat.per, "unit": self.threat.unit,
            "seed": self.seed, "clip": None if self.clip is None else [float(end) for end in self.clip],
            "examples": [self.moment.task.size(batch) for batch in self.batches],
            "vocabulary": vocabulary_digest(self.moment.subject.tokenizer),
        }  # fmt: skip

    def random(self, epsilon: float, seeds: int) -> dict[str, Any]:
        """Means over the seeds, example by example, and the loss of each seed."""
        runs = []
        for place in range(seeds):
            generator = self._generator(place + 1)
            deltas = [
                random_perturbation(target, ball, generator, clip=self.clip)
                for target, ball in zip(self.targets, self.balls(epsilon), strict=True)
            ]
            runs.append(self.evaluate(deltas))
        mean: dict[str, Any] = {"positions": runs[0]["positions"]}
        for name in ("loss", "correct", "kl"):
            lists = [run[name] for run in runs]
            mean[name] = None if lists[0] is None else [sum(each) / seeds for each in zip(*lists, strict=True)]
        return {**mean, **self._sizes(epsilon), "losses": [sum(r["loss"]) / sum(r["positions"]) for r in runs]}

    def fgsm(self, epsilon: float) -> dict[str, Any]:
        model, task = self.moment.model, self.moment.task
        attacked = [
            fgsm(model, task, target, ball, clip=self.clip, start=start)
            for target, ball, start in zip(self.targets, self.balls(epsilon), self._starts, strict=True)
        ]
        return self._result(attacked, epsilon)

    def pgd(self, epsilon: float, steps: int, restarts: int, texts: int = 0) -> dict[str, Any]:
        attacked = self.perturbations(epsilon, steps, restarts)
        result = self._result(attacked, epsilon)
        if texts and self.targets[0].embedding is not None:
            result["texts"] = self._texts(attacked[0], self.balls(epsilon)[0], texts)
        return result

    def perturbations(self, epsilon: float, steps: int, restarts: int) -> list[Attacked]:
        """Those of PGD against the weights that the model has now."""
        model, task, generator = self.moment.model, self.moment.task, self._generator(0)
        return [
            pgd(
                model, task, target, ball, steps=steps, restarts=restarts, generator=generator, clip=self.clip,
                start=start,
            )
            for target, ball, start in zip(self.targets, self.balls(epsilon), self._starts, strict=True)
        ]  # fmt: skip

    def evaluate(self, deltas: Sequence[Tensor | None] | None = None, *, compared: bool = True) -> dict[str, Any]:
        """The model on the batches with these perturbations, or without any; `compared` with its outputs on them."""
        model, task, count = self.moment.model, self.moment.task, len(self.batches)
        references = self._references(compared)
        each = zip(self.targets, deltas or [None] * count, references, strict=True)
        return check_counted(joined_sums([attacked_sums(model, task, *inputs) for inputs in each])).plain()

    def clean(self, *, compared: bool = True) -> dict[str, Any]:
        """What `evaluate` says of the model as it is stored on the batches as they are, without another pass."""
        outputs = [own.outputs for own in self.own_outputs]
        return self.sums_of(outputs, compared=compared)

    def sums_of(self, outputs: Sequence[Outputs], *, compared: bool = True) -> dict[str, Any]:
        """What `evaluate` says of outputs that were seen."""
        each = zip(outputs, map(self.moment.task.size, self.batches), self._references(compared), strict=True)
        return check_counted(joined_sums([example_sums(*inputs) for inputs in each])).plain()

    def _references(self, compared: bool) -> Sequence[KeptOutputs | None]:
        return self.own_outputs if compared else [None] * len(self.batches)

    @property
    def own_outputs(self) -> list[KeptOutputs]:
        """The model's own outputs on the batches: those of the pass in which every attack begins."""
        return self._once("kept outputs", lambda: [kept(start.outputs) for start in self._starts if start is not None])

    @property
    def targets(self) -> list[Target]:
        model, task = self.moment.model, self.moment.task
        return self._once("attack targets", lambda: [find_target(model, task, batch) for batch in self.batches])

    def balls(self, epsilon: float) -> list[Ball]:
        pairs = zip(self.targets, self._distances, strict=True)
        return [unit_ball(target, self.threat, distances).of(epsilon) for target, distances in pairs]

    @property
    def _starts(self) -> list[Start | None]:
        """The gradients at the inputs, which attacks of all sizes begin with; None where the weights are exchanged."""
        model, task = self.moment.model, self.moment.task
        if self.moment.cache.sealed:
            return [None] * len(self.targets)
        return self._once("input gradients", lambda: [gradient_at_input(model, task, each) for each in self.targets])

    @property
    def _distances(self) -> list[Tensor | None]:
        model, tokenizer = self.moment.model, self.moment.subject.tokenizer
        return self._once("token distances", lambda: token_distances(model, self.targets, tokenizer))

    def _once(self, what: str, compute: Callable[[], T]) -> T:
        return self.moment.once((what, sum(self.moment.task.size(batch) for batch in self.batches)), compute)

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1_000_003 + stream)

    def evaluate_attacked(self, attacked: Sequence[Attacked], *, compared: bool = True) -> dict[str, Any]:
        """What `evaluate` says of these attacks, for the weights that they were made with."""
        seen = [attack.outputs for attack in attacked if attack.outputs is not None]
        if len(seen) == len(attacked):
            return self.sums_of(seen, compared=compared)
        return self.evaluate([attack.delta for attack in attacked], compared=compared)

    def _result(self, attacked: Sequence[Attacked], epsilon: float) -> dict[str, Any]:
        return {
            **self.evaluate_attacked(attacked),
            **self._sizes(epsilon),
            "zero_gradients": sum(attack.zero_gradients for attack in attacked),
            "gradients": sum(attack.gradients for attack in attacked),
            "not_finite": sum(attack.not_finite for attack in attacked),
        }

    def _sizes(self, epsilon: float) -> dict[str, float | None]:
        """ε in every unit, mean over what it bounds."""
        each = [sizes(*args) for args in zip(self.targets, self.balls(epsilon), self._distances, strict=True)]
        means: dict[str, float | None] = {}
        for unit in UNITS:
            values = [value for by_unit in each for value in by_unit.get(unit, [])]
            means[f"epsilon_{unit}"] = sum(values) / len(values) if values else None
        return means

    def _texts(self, attacked: Attacked, ball: Ball, most: int) -> list[dict[str, Any]]:
        moment, target = self.moment, self.targets[0]
        assert target.embedding is not None
        vocabulary = real_tokens(moment.model, token_count(target.embedding), moment.subject.tokenizer)
        table = token_table(target.embedding, vocabulary)
        finite = table.isfinite().all(1)  # a row of NaN is near to nothing, and would hide what is
        vocabulary, table = vocabulary[finite.to(vocabulary.device)], table[finite]
        return changed_texts(
            moment.model, moment.task, target, attacked.delta, ball, moment.subject.tokenizer, vocabulary, table, most
        )
