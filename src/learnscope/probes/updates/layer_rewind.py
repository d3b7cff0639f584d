"""Which layers could have their earlier weights back: those of the base model, or of the last measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.outputs.halves import sides
from learnscope.model.outputs.scores import Baseline, interval, on_part, originals, score, score_original
from learnscope.model.weights.rounded import as_they_were, precision_note
from learnscope.options import check_whole
from learnscope.probes.outputs.columns import REGRESSION
from learnscope.quantities.updates import LayerRewind as Q
from learnscope.record import Column, Measurement, Table

MOST_TOGETHER = 24
"""Numbers of layers that are tried together, at most; of more layers, evenly spaced ones."""
NO_TARGETS = "the data has no targets"


class LayerRewind(Probe):
    """The model with the weights that one layer had at the last measurement, layer by layer, then several together.

    A layer that can be rewound without damage did not need its update, however far it moved (Zhang, Bengio and
    Singer 2019, "Are all layers created equal?"). For a fine-tuned model beside its base, measure the two as
    checkpoints: `ls.replay({0: base, 1: tuned}, model=model, probes=[ls.LayerRewind(every=1)], holdout=…)`.

    Layers are then rewound together, those of the least damage first. The order comes from every other example and the
    numbers with a label `rewound` from the others. `could_go_back` is the largest number of layers up to which the loss
    rises by no more than `loss_bound`, at the upper end of its interval; without targets KL takes its place.

    Notes: `span` (the steps of the two weights), `order` (layers in the order in which they are rewound), `go_back`
    (those that could), `undecided` (why it could not be told of more), `unchanged` (layers that are the same at both),
    `examples`, `judged_by` ("loss" or "kl").

    It takes memory for a copy of the changed weights, beside the snapshot.
    """

    every: Schedule = 100
    examples: int = 32
    loss_bound: float = 0.01
    """A rise of the loss that is small enough: in nats per position, 0.01 is a perplexity that is 1 % higher; of
    regression, as a share of the model's own loss."""
    snapshot_device: str = "cpu"
    """Where the previous weights are kept: a torch device, or "disk"."""
    snapshot_dtype: str = "native"
    """Their dtype: each weight's own, or a float dtype."""

    needs = frozenset({"previous", "holdout"})
    cost = (
        "a forward over `examples` holdout examples for each layer, of what comes after it, and for each number of them"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1)
        if not 0 < self.loss_bound < math.inf:
            raise ValueError(f"LayerRewind(loss_bound={self.loss_bound!r}): a number above 0 is needed")

    def measure(self, moment: Moment) -> Measurement:
        subject, before = moment.subject, moment.previous
        subject.refresh()
        now = subject.by_name()
        before.check(now)
        layers = {
            layer: [subject.names[place] for place in places] for layer, places in subject.scopes("layer").items()
        }
        previous = as_they_were(before, now)
        moved = {layer: _distance(names, now, previous) for layer, names in layers.items()}
        changed = [layer for layer, (distance, _) in moved.items() if distance != 0]
        batches = moment.holdout_batches(self.examples)
        known = moment.once(("originals", self.examples, "all"), lambda: originals(moment.model, moment.task, batches))
        rewinding = _Rewinding(moment, known, layers, now, previous)
        own = rewinding.scores([])
        alone = {
            layer: rewinding.scores([layer] if layer in changed else [])
            for layer in moment.track(list(layers), "layers rewound")
        }
        judge = _Judge(own, self.loss_bound, *_places(moment, batches, own))
        order = sorted(changed, key=lambda layer: judge.searched(alone[layer]))
        together = {
            count: rewinding.scores(order[:count])
            for count in moment.track(_counts(len(order)), "layers rewound together")
        }
        enough, undecided = judge.could_go_back(together)
        weights = [sum(now[name].numel() for name in names) for names in layers.values()]
        columns = [
            *_columns(list(alone.values()), own, {}),
            Q.relative_distance.cells([_relative(*moved[layer]) for layer in layers]),
            Q.weights.column(weights),
        ]
        tables = [
            Table("layer", list(layers), columns),
            Table("model", ["model"], [
                *chain(*(_columns([judge.held_out(each)], judge.held_out(own), {"rewound": count})
                         for count, each in together.items())),
                Q.could_go_back.column([enough], {"loss_bound": self.loss_bound}),
            ]),
        ]  # fmt: skip
        notes = {
            "span": [before.step, moment.step], "order": order, "go_back": order[:enough],
            "unchanged": [layer for layer in layers if layer not in changed], "judged_by": judge.by,
            "examples": len(own["sums"]["positions"]), **precision_note(before, now),
            **({} if undecided is None else {"undecided": undecided}),
        }  # fmt: skip
        return Measurement(tables, notes=notes)


class _Rewinding:
    """The model with the earlier weights of some layers."""

    def __init__(
        self, moment: Moment, known: Baseline, layers: Mapping[str, Sequence[str]], now: Mapping[str, Tensor],
        previous: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        self._moment, self._known, self._layers, self._now, self._previous = moment, known, layers, now, previous

    def scores(self, layers: Sequence[str]) -> dict[str, Any]:
        model, task = self._moment.model, self._moment.task
        if not layers:
            return score_original(model, task, self._known)
        names = [name for layer in layers for name in self._layers[layer]]
        weights = {name: self._previous[name].detach().to(self._now[name], copy=True) for name in names}
        with self._moment.exchanged(weights):
            return score(model, task, self._known, names)


class _Judge:
    """Which numbers of layers do no damage, on examples that their order does not come from."""

    def __init__(self, own: Mapping[str, Any], bound: float, search: Sequence[int], rest: Sequence[int]) -> None:
        self._own, self._bound, self._search, self._rest = own, bound, search, rest
        self.by = "kl" if own["loss"] is None else "loss"

    def searched(self, scores: Mapping[str, Any]) -> float:
        damage = float(on_part(scores, self._search)["mse" if self._own["regression"] else "kl"])
        return math.inf if math.isnan(damage) else damage

    def held_out(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        part = on_part(scores, self._rest)
        return {**part, "loss": part.get("loss")}

    def could_go_back(self, together: Mapping[int, Mapping[str, Any]]) -> tuple[int, str | None]:
        """The largest number up to which none does damage, and why more could not be judged."""
        enough = 0
        for count, scores in together.items():
            harmless = self._is_harmless(self.held_out(scores), self.held_out(self._own))
            if harmless is not True:
                return enough, harmless or None
            enough = count
        return enough, None

    def _is_harmless(self, variant: Mapping[str, Any], own: Mapping[str, Any]) -> bool | str:
        """Whether it is, or the reason why that cannot be told."""
        if self.by == "kl":
            return float(variant["kl"]) <= self._bound
        scale = own["loss"] if own["regression"] else 1.0
        if not variant["loss"] - own["loss"] <= self._bound * scale:
            return False
        if variant["sums"]["loss"] == own["sums"]["loss"]:
            return True
        _, high, reason = interval(variant, "loss", own)
        if reason is None and high > self._bound * scale:
            return f"a rise of the loss by {high:.3g} cannot be ruled out: more examples would tell"
        return reason or True


def _distance(names: Sequence[str], now: Mapping[str, Tensor], previous: Mapping[str, Tensor]) -> tuple[float, float]:
    """‖W − W₀‖ and ‖W₀‖ of a layer, in float64."""
    moved = size = 0.0
    for name in names:
        old = previous[name].detach().to(torch.float64)
        moved += float((now[name].detach().to(old) - old).square().sum())
        size += float(old.square().sum())
    return math.sqrt(moved), math.sqrt(size)


def _relative(distance: float, size: float) -> float | str:
    if size == 0:
        return 0.0 if distance == 0 else "its weights were 0"
    return distance / size


def _places(moment: Moment, batches: Sequence[Any], own: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The examples of the search and the others; all of them twice if there is only one document."""
    counts = [int(count) for count in own["sums"]["positions"]]
    of_examples = list(chain(*sides(moment.task, batches, counts)))
    search, rest = ([place for place, side in enumerate(of_examples) if side == half] for half in (0, 1))
    return search, rest or search


def _counts(layers: int) -> list[int]:
    """Numbers of layers to rewind together.

    >>> _counts(3), _counts(100)[:3], _counts(100)[-1], len(_counts(100))
    ([1, 2, 3], [4, 8, 12], 100, 24)
    """
    if layers <= MOST_TOGETHER:
        return list(range(1, layers + 1))
    return [round(layers * number / MOST_TOGETHER) for number in range(1, MOST_TOGETHER + 1)]


def _columns(variants: Sequence[Mapping[str, Any]], own: Mapping[str, Any], labels: Mapping[str, Any]) -> list[Column]:
    """KL, squared error and the change of the loss with their intervals, a variant a row."""
    damage = "mse" if own["regression"] else "kl"
    missing = NO_TARGETS if own["loss"] is None else None
    damages = [_ends(each, damage) for each in variants]
    changes = [(missing, missing) if missing else _ends(each, "loss", own) for each in variants]
    return [
        Q.kl.cells([REGRESSION if own["regression"] else each["kl"] for each in variants], **labels),
        Q.mse.cells([each["mse"] for each in variants], **labels),
        Q.damage_low.cells([low for low, _ in damages], **labels),
        Q.damage_high.cells([high for _, high in damages], **labels),
        Q.loss_change.cells([missing or each["loss"] - own["loss"] for each in variants], **labels),
        Q.loss_change_low.cells([low for low, _ in changes], **labels),
        Q.loss_change_high.cells([high for _, high in changes], **labels),
    ]


def _ends(
    scores: Mapping[str, Any], name: str, less: Mapping[str, Any] | None = None
) -> tuple[float | str, float | str]:
    """The ends of an interval over examples, or the reason for none, twice; both 0 of the model beside itself."""
    if not any(scores["sums"]["mse"]):
        return 0.0, 0.0
    low, high, reason = interval(scores, name, less)
    return (low, high) if reason is None else (reason, reason)
