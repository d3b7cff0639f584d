"""All ways to store a model in fewer bits on one frontier of size and damage, and which of them to use."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, get_args

from torch import nn

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.mixes import Mix, uniform
from learnscope.model.bits.quantise import is_switchable
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.sensitivities import Sensitivities, check_budget
from learnscope.options import check_whole
from learnscope.probes.bits.bit_sensitivity import BitSensitivity
from learnscope.probes.bits.candidates import Candidate, Quantiser, least_ways
from learnscope.probes.bits.columns import Configuration, configuration_table
from learnscope.probes.bits.damage import judged_by
from learnscope.probes.bits.frontier_search import Search
from learnscope.probes.bits.tolerance import Loss, Tolerance
from learnscope.probes.bits.trials import ORIGINAL, Judged
from learnscope.probes.outputs.columns import with_cosine_reasons
from learnscope.quantities.bits import BitFrontier as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.bits.allocation import FrontierPoint, NoAllocation, Point
from learnscope.tensor.bits.frontier import undominated
from learnscope.tensor.bits.methods import METHODS
from learnscope.tensor.bits.quantize import WHOLE_BITS, Granularity, checked_bits

WIDTHS = (16, 8, 7, 6, 5, 4, 3, 2)
ALONE = (8, 4, 3, 2)
"""Widths at which single units are measured; damages between them are read off a line of their logarithms."""


class BitFrontier(Probe):
    """Which way of storing the model in fewer bits to use, chosen among all that could be worth it.

    Tried are 16-bit floats (float16, bfloat16) and 2 to 8 bits for all weights, with and without embeddings and head;
    scales by channel, tensor, or group of 32, 64 or 128 inputs; with and without a zero point; methods that clip, or
    are calibrated on data (`methods`); mixes of widths; and activations in 8 bits. The search goes from coarse to fine
    on every other example: widths first, other ways and methods of rounding only near the width that is needed, mixes
    in the best of these. A mix is the one that loses least within some bytes, or takes fewest within a damage, if the
    damages of single units add up (a knapsack, solved exactly). What may be worth it is measured on the other
    examples, and judged on these alone.

    `choices` (a note) names, each with what it loses, its interval and n: "indistinguishable", the smallest whose loss
    is within `max_increase` and cannot be told from none, and, of a language model, whose mean KL is at most 2
    `max_increase`² (the next token's distributions then differ by `max_increase` at most); "within", the smallest
    within `max_increase`; "at_size", the one of least damage in `max_bytes`; "at_damage", the smallest within `max_kl`.
    Within means that the upper end of the 95 % interval is, so that few examples do not make a bad model good (of
    accuracies: the number itself). All are chosen among configurations for which no other that was measured has as few
    bytes and as little damage, and less of one. `recommended` is the one for the budget, if there is one, else
    "indistinguishable". Without an interval (fewer than 8 examples to judge on) the numbers alone decide, and the note
    `no_intervals` says why.

    Notes: `recommended` (unit → bits; a unit that is not named stays as stored), `recommended_name`,
    `recommended_scheme`, `usable` (all that answer the same question, the best first), `within` (all that lose no more
    than `max_increase`, the smallest first), `bits`, `schemes` and `family`
    by configuration, `dropped` (tried in the search, and far worse than another in no more bytes, by name), `far`
    (tried in the search, and not judged with `judged="frontier"`), `same`
    (mixes that are another configuration), `left_out` (what cannot be made, and why), `search_examples`,
    `held_out_examples`, `alone_examples`, `held_out`, `judged_by`, `allowed`.
    """

    at: At = "once"
    bits: Sequence[int] | None = None
    """Widths that are possible, of 2 to 8 and 16; None: all. 16-bit floats are always compared with."""
    granularity: Granularity | None = None
    """None: by channel, and near the width that is needed also by group and tensor."""
    group_size: int | None = None
    symmetric: bool | None = None
    """None: with a zero point at 3 bits and fewer, and what that changes near the width that is needed."""
    examples: int = 32
    """Examples of the data, half of them to search on and half to judge on."""
    search_examples: int | None = None
    """So many to search on, and all others to judge on; parts of a document stay together. None: half of them."""
    judged: Judged = "all"
    """What is judged: all that the search does not find far worse than another, or only its "frontier" near what may be
    lost, and 16, 8 and 4 bits beside it."""
    alone_examples: int = 32
    """The first of these that single units are measured on."""
    embeddings: bool = True
    activation_bits: int | None = None
    """Of all configurations; None: as they are, and 8 for two that are named so."""
    method: str = "rtn"
    methods: Sequence[str] = ("mse", "gptq", "awq")
    """Other methods of rounding that are tried where rounding to the nearest (`method="rtn"`) is no longer enough."""
    max_bytes: int | None = None
    """Of the whole packed model."""
    max_kl: float | None = None
    max_increase: float = 0.01
    """The loss that is accepted: a share of the perplexity, or of a classifier's answers."""

    needs = frozenset({"holdout"})
    cost = "a pass over the examples for each unit at four widths, of what follows the unit, and for 20 to 30 others"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, alone_examples=1)
        if self.search_examples is not None:
            check_whole(self, search_examples=1)
        if self.judged not in get_args(Judged):
            raise ValueError(f"BitFrontier(judged={self.judged!r}): {' or '.join(get_args(Judged))}")
        if self.max_bytes is not None and self.max_kl is not None:
            raise ValueError("BitFrontier: give max_bytes or max_kl, not both; the other is what is made small")
        check_budget("BitFrontier", self.max_bytes, self.max_kl)
        if not (math.isfinite(self.max_increase) and self.max_increase > 0):
            raise ValueError(
                f"BitFrontier(max_increase={self.max_increase!r}): a share above 0 is needed, such as 0.01"
            )
        if self.group_size is not None and self.granularity not in (None, "group"):
            raise ValueError(
                f"BitFrontier: group_size={self.group_size} is for granularity='group', not {self.granularity!r}"
            )
        if self.bits is not None and not isinstance(self.bits, str) and any(b not in WIDTHS for b in self.bits):
            raise ValueError(
                f"BitFrontier(bits={self.bits!r}): 2 to 8 and 16 are possible; as stored is always compared with"
            )
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"BitFrontier(methods={self.methods!r}): {', '.join(METHODS)} are possible")
        try:
            Quantiser(**self.ways(), bits=self.bits if self.bits is not None else WIDTHS)
        except ValueError as error:
            raise ValueError(str(error).replace("Quantiser", "BitFrontier")) from None

    def open(self, moment: Moment) -> None:
        self.check_fits(moment.model)

    def ways(self, model: nn.Module | None = None) -> dict[str, Any]:
        """The options that all configurations share; a model that sets its own precision does so for its blocks."""
        grouped = self.granularity == "group" or self.group_size is not None
        return {
            "granularity": "group" if grouped else self.granularity or "channel",
            "group_size": self.group_size or 64, "symmetric": self.symmetric, "examples": self.examples,
            "embeddings": self.embeddings and not is_switchable(model), "activation_bits": self.activation_bits,
            "method": self.method, **({"scales": "float16"} if grouped else {}),
        }  # fmt: skip

    def widths(self, model: nn.Module | None = None) -> list[int]:
        """The widths that units may have, from high to low."""
        usual = BitSensitivity.bits if is_switchable(model) else WIDTHS  # it may know no others
        return sorted({checked_bits(width) for width in (usual if self.bits is None else self.bits)}, reverse=True)

    def alone_widths(self, model: nn.Module | None = None) -> list[int]:
        """The widths at which units are measured one by one."""
        whole = [width for width in self.widths(model) if width in WHOLE_BITS]
        return [width for width in whole if width in ALONE or self.bits is not None] or self.widths(model)

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a budget that nothing can keep, from shapes alone, before anything is measured."""
        if self.max_bytes is None:
            return
        least = self.least_bytes(model)
        if self.max_bytes < least:
            raise NoAllocation(
                f"max_bytes={self.max_bytes} cannot be kept: the smallest that these bits allow takes {least} bytes, "
                "with what is not quantised. Give more room, or fewer bits."
            )

    def least_bytes(self, model: nn.Module) -> int:
        """Of the smallest configuration that could be tried."""
        ways = self.ways(model)
        units = find_units(model, embeddings=ways["embeddings"])
        schemes = [Quantiser(**ways).scheme()]
        if self._free(model):
            schemes += [way.scheme() for way in least_ways(units, ways)]
        mixes: list[Mix] = [uniform(units, width) for width in self.widths(model)]
        return min(ledger(model, mix, scheme, units).packed_bytes for mix, scheme in product([{}, *mixes], schemes))

    def measure(self, moment: Moment) -> Measurement:
        self.check_fits(moment.model)
        ways = self.ways(moment.model) | {"searched": self.search_examples}
        base, alone = Quantiser(**ways), self._alone(moment, ways)
        tolerance, free = Tolerance(self.max_increase), self._free(moment.model)
        others = self.methods if base.method == "rtn" and not is_switchable(moment.model) else ()
        search = Search(moment, base, ways, self.widths(moment.model), free, tolerance, alone, others, self.judged)
        search.run(max_bytes=self.max_bytes, max_kl=self.max_kl)
        dropped, far = search.hopeless(), search.far(max_bytes=self.max_bytes, max_kl=self.max_kl)
        base.forget(moment, "search")  # before the other half's outputs are kept
        tried, losses = _held_out(moment, base, search, {*dropped, *far})
        base.forget(moment, "held out")
        damage = judged_by(search.original)
        front = undominated(Point(item.name, item.ledger.packed_bytes, item.scores[damage]) for item in tried)
        choices = self._choices([item for item in tried if item.name in front], losses, damage)
        best = next(item for item in tried if item.name == self._asked_for(choices))
        answers = self._answers([i for i in tried if math.isfinite(i.scores[damage])], losses, damage)
        usable = answers[self._question()]
        points = [FrontierPoint(name, ()) for name in front]
        table = configuration_table(Q, tried, tried[0].scores, points, sampled=moment.subject.sampled)
        stored = base.ledger(moment, {}).by_unit
        units = {unit.name: round(8 * stored[unit.name] / max(1, unit.numel)) for unit in base.units(moment)}
        chosen = Q.chosen_bits.column([best.bits.get(name, width) for name, width in units.items()])
        budgets = ((Q.budget_bytes, self.max_bytes), (Q.budget_kl, self.max_kl))
        given = [quantity.column([value]) for quantity, value in budgets if value is not None]
        tables = [_with_changes(table, tried, losses, search), Table("unit", list(units), [chosen])]
        tables += [Table("model", ["model"], given)] if given else []
        unsure = next((loss.reason for loss in losses.values() if loss.reason is not None), None)
        notes = {
            **search.notes(tried, best, dropped, far), "choices": choices, "allowed": self.max_increase,
            "usable": [item.name for item in usable if item.bits],
            "within": [item.name for item in answers["within"] if item.bits],
            **({} if unsure is None else {"no_intervals": unsure}), **base.notes(tried[0].scores),
            "held_out": base.batches(moment, "held out") is not base.batches(moment, "search"),
        }  # fmt: skip
        if not notes["held_out"]:
            notes["held_out_reason"] = "only one document counts: it was searched on and compared on"
        return Measurement(tables, notes=notes, finish=with_cosine_reasons)

    def _free(self, model: nn.Module) -> bool:
        return self.granularity is None and self.group_size is None and not is_switchable(model)

    def _alone(self, moment: Moment, ways: Mapping[str, Any]) -> Sensitivities:
        few = {**ways, "examples": min(self.examples, self.alone_examples)}
        single = Quantiser(**few, bits=self.alone_widths(moment.model))
        return single.measured_sensitivities(moment, single.single_units(moment, "search"))

    def _answers(
        self, items: Sequence[Configuration], losses: Mapping[str, Loss], damage: str
    ) -> dict[str, list[Configuration]]:
        """By question, the configurations that would do, the best first."""
        by_size = sorted(items, key=lambda item: item.ledger.packed_bytes)
        within = [i for i in by_size if not i.bits or losses[i.name].within]
        same = [i for i in within if not i.bits or losses[i.name].same]
        found = {"indistinguishable": same, "within": within}
        if self.max_bytes is not None:
            fitting = [item for item in by_size if item.ledger.packed_bytes <= self.max_bytes]
            found["at_size"] = sorted(fitting, key=lambda item: item.scores[damage])
        if self.max_kl is not None:
            found["at_damage"] = [item for item in by_size if item.scores[damage] <= self.max_kl]
        return found

    def _choices(
        self, front: Sequence[Configuration], losses: Mapping[str, Loss], damage: str
    ) -> dict[str, dict[str, Any]]:
        """By question, the configuration to use, with what it loses; `front` has none that another dominates."""
        return {
            question: {
                "name": items[0].name, "bytes": items[0].ledger.packed_bytes, "damage": items[0].scores[damage],
                **losses[items[0].name].to_json(),
            }
            for question, items in self._answers(front, losses, damage).items()
            if items
        }  # fmt: skip

    def _question(self) -> str:
        """The one that the recommendation answers."""
        if self.max_bytes is not None:
            return "at_size"
        return "indistinguishable" if self.max_kl is None else "at_damage"

    def _asked_for(self, choices: Mapping[str, Mapping[str, Any]]) -> str:
        if self.max_bytes is not None and "at_size" not in choices:
            raise NoAllocation(
                f"max_bytes={self.max_bytes} cannot be kept by anything that was measured with finite outputs. Give "
                "more room, or fewer bits."
            )
        return str(choices[self._question()]["name"])


def _held_out(
    moment: Moment, base: Quantiser, search: Search, left: Collection[str]
) -> tuple[list[Configuration], dict[str, Loss]]:
    """Everything that may be worth it, on the half that the search has not seen; the model as it is comes first."""
    original = base.variant(moment, {}, "held out")
    tried = [Configuration(ORIGINAL, {}, original, base.ledger(moment, {}))]
    kept = [candidate for name, candidate in search.tried.items() if name not in left]
    shown = moment.track(kept, "configurations on held-out examples")
    tried += [_measured(moment, candidate, base) for candidate in shown]
    return tried, {item.name: search.tolerance.loss(original, item.scores) for item in tried}


def _measured(moment: Moment, candidate: Candidate, base: Quantiser) -> Configuration:
    scores = candidate.way.variant(moment, candidate.bits, "held out")
    if candidate.way.measured_key() != base.measured_key():
        candidate.way.release(moment)
    return Configuration(candidate.name, candidate.bits, scores, candidate.way.ledger(moment, candidate.bits))


def _with_changes(table: Table, tried: Sequence[Configuration], losses: Mapping[str, Loss], search: Search) -> Table:
    """The table with what each configuration loses, and its damage in the search."""
    cells: dict[str, list[float | str]] = {"change": [], "change_low": [], "change_high": [], "search_damage": []}
    for item in tried:
        loss = losses[item.name]
        why = loss.reason if item.bits else None
        ends = (0.0, 0.0) if not item.bits else (loss.low, loss.high)
        cells["change"].append(loss.change)
        cells["change_low"].append(why or ends[0])
        cells["change_high"].append(why or ends[1])
        cells["search_damage"].append(search.damage(item.name) if item.bits else 0.0)
    return Table(
        table.kind, table.scopes, [*table.columns, *(Q.named(name).cells(each) for name, each in cells.items())]
    )
