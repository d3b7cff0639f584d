"""What the probes of bit widths share: how weights are quantised, on which examples, and one variant at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.core.remembered import is_remembered
from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.ledger import Ledger, ledger
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantise import checked_widths, is_switchable, quantised, quantised_weights, with_weights
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.bits.sensitivities import Sensitivities
from learnscope.model.outputs.repeated import Change
from learnscope.model.outputs.scores import (
    Baseline,
    halves,
    on_part,
    originals,
    room_for,
    score,
    score_original,
    score_together,
    sides,
)
from learnscope.options import check_whole, is_whole
from learnscope.probes.bits.damage import judged_by
from learnscope.tensor.bits.methods import check_method, find_method
from learnscope.tensor.bits.quantize import WHOLE_BITS, Granularity, QuantiseError, Scheme, checked_bits

KEPT_COPIES = 1 << 30
"""Bytes of quantised weights that are kept from the search until they are judged, so that calibrating is done once."""
Half = Literal["all", "search", "held out"]
"""Which examples: all, every other one from the first on, or those between."""


class BitProbe(Probe):
    """Options of the probes that run a model with some of its units in fewer bits.

    Units are the attention and the MLP of every block, see `model.bits.quantised_units`. Quantised values replace the
    weights in place; afterwards these are restored bit for bit.
    """

    at: At = "once"
    bits: Sequence[int] = (8, 4, 2)
    granularity: Granularity = "channel"
    """A scale for each output channel, for each `group_size` inputs of one, or for the whole weight ("tensor")."""
    group_size: int = 64
    symmetric: bool | None = None
    """Around 0, or with a zero point; None: with one at 3 bits and fewer."""
    examples: int = 32
    """Examples of the data that outputs are compared on."""
    embeddings: bool = False
    """Whether embeddings, heads and other weights outside of blocks are units too."""
    activation_bits: int | None = None
    """Bits of the inputs of quantised modules, each token by its own range; None: as they are."""
    scales: Literal["float32", "float16"] = "float32"
    """How scales are stored: with small groups they are a good part of the bytes."""
    method: str = "rtn"
    """How weights are rounded: "rtn", each to the nearest number of its scale, or another of
    `learnscope.tensor.bits.methods.METHODS`. Those that need data are calibrated on the half to search on."""

    needs = frozenset({"holdout"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1)
        name, activations = type(self).__name__, self.activation_bits
        if activations is not None and not (is_whole(activations) and activations in WHOLE_BITS):
            raise ValueError(f"{name}(activation_bits={activations!r}): 2 to 8, or None for activations as they are")
        try:
            check_method(self.method)
        except QuantiseError as error:
            raise ValueError(f"{name}: {error}") from None
        if isinstance(self.bits, str) or not isinstance(self.bits, Sequence) or not self.bits:
            raise ValueError(f"{name}(bits={self.bits!r}): one or more of 2 to 8 and 16 are needed")
        try:
            self.scheme()
            widest = self.widths()[0]
        except QuantiseError as error:
            raise ValueError(f"{name}: {error}") from error
        if widest > 16:
            raise ValueError(
                f"{name}(bits={self.bits!r}): 2 to 8 and 16 are possible; as stored is always compared with"
            )

    def scheme(self) -> Scheme:
        plain = Scheme(
            symmetric=self.symmetric, granularity=self.granularity, group_size=self.group_size,
            scale_dtype=getattr(torch, self.scales),
        )  # fmt: skip
        return find_method(self.method).scheme(plain)

    def widths(self) -> list[int]:
        """The bits from high to low, each once."""
        return sorted({checked_bits(bits) for bits in self.bits}, reverse=True)

    def described(self) -> dict[str, Any]:
        """The scheme in words and numbers, for notes and files."""
        scheme: dict[str, Any] = {"granularity": self.granularity, "symmetric": self.symmetric}
        if self.granularity == "group":
            scheme["group_size"] = self.group_size
        if self.activation_bits is not None:
            scheme["activation_bits"] = self.activation_bits
        if self.scales != "float32":
            scheme["scales"] = self.scales
        if self.method != "rtn":
            scheme["method"] = self.method
        return scheme

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
        return ledger(moment.model, bits, self.scheme(), self.units(moment))

    def variant(
        self, moment: Moment, bits: Mapping[str, int], half: Half = "all", coming: Sequence[Mapping[str, int]] = ()
    ) -> dict[str, Any]:
        """What `learnscope.model.outputs.scores.summary` says of the model with these bits; cached.

        `coming` are variants that will be asked for next: what can be run together with this one is.
        """
        bits = checked_widths(bits, self.units(moment))
        scores = moment.remember(self._key(bits, half), lambda: self._run(moment, bits, half, coming))
        if half == "all" and not scores["positions"]:
            raise ValueError(
                f"none of the {len(scores['sums']['positions'])} examples has a position that counts, so there is "
                "nothing to compare outputs on: give data with labels other than -100"
            )
        return scores

    def _key(self, bits: Mapping[str, int], half: Half) -> dict[str, Any]:
        """Of a result in the cache."""
        examples = [self.examples, half]
        return {"what": "quantised variant 4", "bits": bits, "scheme": self.described(), "examples": examples}

    def _run(
        self, moment: Moment, bits: Mapping[str, int], half: Half, coming: Sequence[Mapping[str, int]]
    ) -> dict[str, Any]:
        model, task = moment.model, moment.task
        key = ("originals", self.examples, half)
        known = moment.once(key, lambda: originals(model, task, self.batches(moment, half)))
        if not bits:
            return score_original(model, task, known)
        done: dict[Any, dict[str, Any]] = moment.cache.setdefault(("run together", *self.measured_key(), half), {})
        asked = tuple(bits.items())
        if asked not in done:
            group = self._group(moment, known, [bits, *coming], half)
            copies = self.copies(moment)
            # under the session's guard: another for each of many variants would take as long as their passes
            with moment.sealing():
                done |= self._scored(moment, known, group, copies)
        return done.pop(asked)

    def copies(self, moment: Moment) -> QuantisedCopies:
        """The weights as this method rounds them, made once for all variants of the moment."""
        kept, needed = ("quantised copies", *self.measured_key()), find_method(self.method).needs_calibration
        calibration = self._calibration(moment) if needed else None
        return moment.once(kept, lambda: QuantisedCopies(moment.model, self.scheme(), self.method, calibration))

    def _calibration(self, moment: Moment) -> Calibration:
        """What the weights are multiplied with, on the half to search on; collected once for all ways of rounding."""
        batches, units = self.batches(moment, "search"), find_units(moment.model, embeddings=True)
        return moment.once(
            ("calibration", self.examples),
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
        self, moment: Moment, known: Baseline, group: Sequence[Mapping[str, int]], copies: QuantisedCopies
    ) -> dict[tuple[tuple[str, int], ...], dict[str, Any]]:
        """The scores of the first variant, and of the others where they could be run together with it."""
        model, task, units, activations = moment.model, moment.task, self.units(moment), self.activation_bits
        if len(group) > 1:
            changes = []
            for bits in group:
                weights = quantised_weights(model, bits, self.scheme(), units, copies)
                changed = [unit for unit in units if unit.name in bits]
                applied = partial(with_weights, model, weights, changed, activations)
                changes.append(Change(self._names(moment, bits), applied))
            found = score_together(model, task, known, changes)
            if found is not None:
                return {tuple(bits.items()): scores for bits, scores in zip(group, found, strict=True)}
        bits = group[0]
        with quantised(model, bits, self.scheme(), units=units, activation_bits=activations, copies=copies):
            return {tuple(bits.items()): score(model, task, known, self._names(moment, bits))}

    def _names(self, moment: Moment, bits: Mapping[str, int]) -> list[str]:
        """The parameters that a variant changes."""
        return [tensor.name for unit in self.units(moment) if unit.name in bits for tensor in unit.tensors]

    def batches(self, moment: Moment, half: Half) -> list[Any]:
        batches = moment.holdout_batches(self.examples)
        if half == "all":
            return batches

        def split() -> tuple[list[Any], list[Any]]:
            return halves(moment.task, batches, self._positions(moment))

        search, held_out = moment.once(("halves", self.examples), split)
        return search if half == "search" or not held_out else held_out

    def _positions(self, moment: Moment) -> list[int]:
        """How many positions of each example count."""

        def counted() -> list[int]:
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
        numbered = enumerate(chain(*sides(moment.task, batches, self._positions(moment))))
        return on_part(whole, [place for place, side in numbered if side == int(half == "held out")])

    def forget(self, moment: Moment, half: Half) -> None:
        """Free outputs that no other probe asks for."""
        moment.cache.pop(("originals", self.examples, half), None)
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
        return ("bit sensitivities", self.examples, *sorted(self.described().items(), key=str))
