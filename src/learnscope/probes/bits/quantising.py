"""What the probes of bit widths share: how weights are quantised, on which examples, and one variant at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

from learnscope.core.moment import Moment
from learnscope.core.remembered import is_remembered
from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.ledger import Ledger, StoredSizes, ledger
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantise import checked_widths, is_switchable, quantised, quantised_weights, with_weights
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.model.outputs.halves import all_count, halves, sides
from learnscope.model.outputs.repeated import Change
from learnscope.model.outputs.scores import (
    Baseline,
    on_part,
    originals,
    room_for,
    score,
    score_original,
    score_together,
)
from learnscope.probes.bits.damage import judged_by
from learnscope.probes.bits.rounding import RoundingOptions
from learnscope.tensor.bits.methods import find_method

BOTH_HALVES = 1 << 28
"""Bytes of one half's outputs up to which those of both are held, so that weights are rounded once for both."""
KEPT_COPIES = 1 << 30
"""Bytes of quantised weights that are kept from the search until they are judged, so that calibrating is done once."""
Half = Literal["all", "search", "held out"]
"""Which examples: all, every other one from the first on (only so many, if that was said), or those between."""


class BitProbe(RoundingOptions):
    """Probes that run a model with some of its units in fewer bits.

    Units are the attention and the MLP of every block, see `model.bits.quantised_units`. Quantised values replace the
    weights in place; afterwards these are restored bit for bit.
    """

    def notes(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """What was compared and how."""
        notes: dict[str, Any] = {
            "examples": len(scores["sums"]["positions"]),
            "positions": scores["positions"],
            "scheme": self.described(),
            "judged_by": judged_by(scores),
        }
        rerun = scores.get("rerun")
        if rerun is not None:
            notes |= {"rerun": "suffix"} if rerun == "suffix" else {"rerun": "full", "rerun_reason": rerun}
        return notes

    def units(self, moment: Moment) -> list[Unit]:
        embeddings = self.embeddings and not is_switchable(moment.model)  # which sets the bits of its layers alone
        return moment.once(("units", embeddings), lambda: find_units(moment.model, embeddings=embeddings))

    def ledger(self, moment: Moment, bits: Mapping[str, int]) -> Ledger:
        sizes = moment.once(("stored sizes",), lambda: StoredSizes.of(moment.model))
        return ledger(moment.model, bits, self.scheme(), self.units(moment), sizes)

    def variant(
        self, moment: Moment, bits: Mapping[str, int], half: Half = "all", coming: Sequence[Mapping[str, int]] = (),
        then: Half | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """What `learnscope.model.outputs.scores.summary` says of the model with these bits; cached.

        `coming` are variants that will be asked for next: what can be run together with this one is. This one will be
        asked for on the half `then` too: if both are small, it is run on that one while its weights are there.
        """
        bits = checked_widths(bits, self.units(moment))
        scores = moment.remember(self._key(bits, half), lambda: self._run(moment, bits, half, coming, then))
        if half == "all" and not scores["positions"]:
            raise ValueError(
                f"none of the {len(scores['sums']['positions'])} examples has a position that counts, so there is "
                "nothing to compare outputs on: give data with labels other than -100"
            )
        return scores

    def searched_on(self) -> int | None:
        """How many examples are to search on; None: every other one."""
        return None

    def _data_key(self, half: Half = "search") -> int | tuple[int, int]:
        """Of what was measured on these examples, cut in this way."""
        searched = self.searched_on()
        return self.examples if searched is None or half == "all" else (self.examples, searched)

    def _key(self, bits: Mapping[str, int], half: Half) -> dict[str, Any]:
        """Of a result in the cache."""
        examples = [self._data_key(half), half]
        return {"what": "quantised variant 4", "bits": bits, "scheme": self.described(), "examples": examples}

    def _run(
        self, moment: Moment, bits: Mapping[str, int], half: Half, coming: Sequence[Mapping[str, int]],
        then: Half | None,
    ) -> dict[str, Any]:  # fmt: skip
        known = self._originals(moment, half)
        if not bits:
            return score_original(moment.model, moment.task, known)
        done = self._done(moment, half)
        asked = tuple(bits.items())
        if asked not in done:
            group = self._group(moment, known, [bits, *coming], half)
            copies = self.copies(moment)
            later = [] if then is None or known.nbytes > BOTH_HALVES else [self._originals(moment, then)]
            # under the session's guard: another for each of many variants would take as long as their passes
            with moment.sealing():
                first, *others = self._scored(moment, [known, *later], group, copies)
            done |= first
            for other in others:
                self._done(moment, then or half).update(other)
        return done.pop(asked)

    def _originals(self, moment: Moment, half: Half) -> Baseline:
        key, model, task = ("originals", self._data_key(half), half), moment.model, moment.task
        return moment.once(key, lambda: originals(model, task, self.batches(moment, half)))

    def _done(self, moment: Moment, half: Half) -> dict[Any, dict[str, Any]]:
        """Scores of variants that were run with another one, until they are asked for."""
        done: dict[Any, dict[str, Any]] = moment.cache.setdefault(("run together", *self.measured_key(), half), {})
        return done

    def copies(self, moment: Moment) -> QuantisedCopies:
        """The weights as this method rounds them, made once for all variants of the moment."""
        kept, needed = ("quantised copies", *self.measured_key()), find_method(self.method).needs_calibration
        calibration = self._calibration(moment) if needed else None
        return moment.once(kept, lambda: QuantisedCopies(moment.model, self.scheme(), self.method, calibration))

    def _calibration(self, moment: Moment) -> Calibration:
        """What the weights are multiplied with, on the half to search on; collected once for all ways of rounding."""
        batches, units = self.batches(moment, "search"), find_units(moment.model, embeddings=True)
        return moment.once(
            ("calibration", self._data_key()),
            lambda: Calibration.collect(moment.model, batches, units, task=moment.task),
        )

    def release(self, moment: Moment, *, needed_later: bool = False) -> None:
        """Free the copies, which take as much memory as the model, where no other variant needs them soon.

        If they are needed later and are slow to make, they stay while all such copies together are small.
        """
        kept = [copies for copies in moment.cache.values() if isinstance(copies, QuantisedCopies)]
        if needed_later and self.method != "rtn" and sum(copies.nbytes for copies in kept) <= KEPT_COPIES:
            return
        moment.cache.pop(("quantised copies", *self.measured_key()), None)

    def _group(
        self, moment: Moment, known: Baseline, variants: Sequence[Mapping[str, int]], half: Half
    ) -> list[Mapping[str, int]]:
        """The first variant and those that are run together with it: changes of one block that are not known yet."""
        first, *others = variants
        room, block = room_for(known), known.suffix.only_block(self._names(moment, first))
        if room == 1 or block is None or known.suffix.apart is not None:
            return [first]
        same = [each for each in others if known.suffix.only_block(self._names(moment, each)) == block]
        new = [first, *(each for each in same if not is_remembered(moment, self._key(each, half)))]
        return new[: math.ceil(len(new) / math.ceil(len(new) / room))]  # groups of nearly the same size

    def _scored(
        self, moment: Moment, halves: Sequence[Baseline], group: Sequence[Mapping[str, int]], copies: QuantisedCopies
    ) -> list[dict[tuple[tuple[str, int], ...], dict[str, Any]]]:
        """For each half the scores of the first variant; on the first, of the others that could be run with it."""
        model, task, units, activations = moment.model, moment.task, self.units(moment), self.activation_bits
        if len(group) > 1:
            changes = []
            for bits in group:
                weights = quantised_weights(model, bits, self.scheme(), units, copies)
                changed = [unit for unit in units if unit.name in bits]
                applied = partial(with_weights, model, weights, changed, activations)
                changes.append(Change(self._names(moment, bits), applied))
            found = score_together(model, task, halves[0], changes)
            if found is not None:
                return [{tuple(bits.items()): scores for bits, scores in zip(group, found, strict=True)}]
        bits = group[0]
        with quantised(model, bits, self.scheme(), units=units, activation_bits=activations, copies=copies):
            names, asked = self._names(moment, bits), tuple(bits.items())
            return [{asked: score(model, task, known, names)} for known in halves]

    def _names(self, moment: Moment, bits: Mapping[str, int]) -> list[str]:
        """The parameters that a variant changes."""
        return [tensor.name for unit in self.units(moment) if unit.name in bits for tensor in unit.tensors]

    def batches(self, moment: Moment, half: Half) -> list[Any]:
        batches = moment.holdout_batches(self.examples)
        if half == "all":
            return batches

        def split() -> tuple[list[Any], list[Any]]:
            return halves(moment.task, batches, self._positions(moment), self.searched_on())

        search, held_out = moment.once(("halves", self._data_key()), split)
        return search if half == "search" or not held_out else held_out

    def _positions(self, moment: Moment) -> list[int]:
        """Which examples have positions that count: all, if that can be seen; else how many a pass finds."""

        def counted() -> list[int]:
            batches = moment.holdout_batches(self.examples)
            if all_count(moment.task, batches):
                return [1] * sum(map(moment.task.size, batches))
            return [int(count) for count in self.variant(moment, {})["sums"]["positions"]]

        return moment.once(("positions that count", self.examples), counted)

    def _alone(
        self, moment: Moment, unit: str, width: int, half: Half, coming: Sequence[tuple[str, int]]
    ) -> dict[str, Any]:
        """The scores of one unit at a width; of one half from the sums of all examples, which other probes need too."""
        whole = self.variant(moment, {unit: width}, coming=[{other: bits} for other, bits in coming])
        if half == "all":
            return whole
        batches = moment.holdout_batches(self.examples)
        numbered = enumerate(chain(*sides(moment.task, batches, self._positions(moment), self.searched_on())))
        return on_part(whole, [place for place, side in numbered if side == int(half == "held out")])

    def forget(self, moment: Moment, half: Half) -> None:
        """Free outputs that no other probe asks for."""
        moment.cache.pop(("originals", self._data_key(half), half), None)
        moment.cache.pop(("run together", *self.measured_key(), half), None)

    def single_units(self, moment: Moment, half: Half) -> dict[tuple[str, int], dict[str, Any]]:
        """Scores of every unit alone at every width."""
        pairs = [(unit.name, width) for unit in self.units(moment) for width in self.widths()]
        return {
            (unit, width): self._alone(moment, unit, width, half, pairs[place + 1 :])
            for place, (unit, width) in enumerate(moment.track(pairs, "units in fewer bits"))
        }

    def measured_sensitivities(
        self, moment: Moment, scores: Mapping[tuple[str, int], Mapping[str, Any]]
    ) -> Sensitivities:
        """The damages with the sizes in bytes, as a file stores them and an allocation needs them."""
        units, widths = self.units(moment), self.widths()
        ledgers = {width: self.ledger(moment, uniform(units, width)) for width in widths}
        stored = self.ledger(moment, {})
        first = next(iter(scores.values()))
        damage = judged_by(first)
        return Sensitivities(
            damage={unit.name: {b: float(scores[unit.name, b][damage]) for b in widths} for unit in units},
            size={unit.name: {b: ledgers[b].by_unit[unit.name] for b in widths} for unit in units},
            stored=stored.by_unit,
            weights={unit.name: unit.numel for unit in units},
            other_bytes=stored.packed_bytes - sum(stored.by_unit.values()),
            judged_by=damage,
            scheme=self.described(),
            examples=len(first["sums"]["positions"]),
        )

    def measured_key(self) -> tuple[Any, ...]:
        """Of the damages of single units on these examples with this scheme, in the moment's cache."""
        return ("bit sensitivities", self._data_key(), *sorted(self.described().items(), key=str))
