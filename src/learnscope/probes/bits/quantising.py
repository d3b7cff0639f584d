"""What the probes of bit widths share: how weights are quantised, on which examples, and one variant at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.bits.quantise import checked, quantised
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.model.outputs.scores import Originals, halves, originals, positions_of_examples, score, score_original
from learnscope.options import check_whole, is_whole
from learnscope.tensor.bits.quantize import WHOLE_BITS, Granularity, QuantiseError, Scheme, checked_bits

Half = Literal["all", "search", "held out"]
"""Which examples: all, every other one from the first on, or those between."""


class BitProbe(Probe):
    """Options of the probes that run a model with some of its units in fewer bits.

    Units are the attention and the MLP of every block, see `model.bits.quantised_units`. Weights are exchanged
    with quantised values in place and back, bit for bit.
    """

    at: At = "once"
    granularity: Granularity = "channel"
    """A scale for each output channel, for each `group_size` inputs of one, or for the whole weight ("tensor")."""
    group_size: int = 64
    symmetric: bool | None = None
    """Around 0, or with a zero point; None: with one at 3 bits and fewer."""
    examples: int = 32
    """Examples of the data that outputs are compared on."""
    embeddings: bool = False
    """Whether embeddings, heads and what else stands outside of blocks are units too."""
    activation_bits: int | None = None
    """Bits of what enters the quantised modules, each token by its own range; None: as it is."""

    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        check_whole(self, examples=1)
        if self.activation_bits is not None:
            check_activation_bits(name, self.activation_bits)
        try:
            self.scheme()
        except QuantiseError as error:
            raise ValueError(f"{name}: {error}") from error

    def scheme(self) -> Scheme:
        return Scheme(symmetric=self.symmetric, granularity=self.granularity, group_size=self.group_size)

    def described(self) -> dict[str, Any]:
        """The scheme in words and numbers, for notes and files."""
        found: dict[str, Any] = {"granularity": self.granularity, "symmetric": self.symmetric}
        if self.granularity == "group":
            found["group_size"] = self.group_size
        if self.activation_bits is not None:
            found["activation_bits"] = self.activation_bits
        return found

    def units(self, moment: Moment) -> list[Unit]:
        return find_units(moment.model, embeddings=self.embeddings)

    def variant(
        self, moment: Moment, units: Sequence[Unit], bits: Mapping[str, int], half: Half = "all"
    ) -> dict[str, Any]:
        """What `learnscope.model.outputs.scores.summary` says of the model with these bits; remembered."""
        bits = checked(bits, units)
        part = {
            "what": "quantised variant 1",
            "bits": bits,
            "scheme": self.described(),
            "examples": [self.examples, half],
        }
        found = moment.remember(part, lambda: self._run(moment, units, bits, half))
        if half == "all" and not found["positions"]:
            raise ValueError(
                f"none of the {len(found['sums']['positions'])} examples has a position that counts, so there is "
                "nothing to compare outputs on: give data with labels other than -100"
            )
        return found

    def _run(self, moment: Moment, units: Sequence[Unit], bits: Mapping[str, int], half: Half) -> dict[str, Any]:
        known = moment.once(("originals", self.examples, half), lambda: self._originals(moment, half))
        if not bits:
            return score_original(moment.model, moment.task, known)
        names = [tensor.name for unit in units if unit.name in bits for tensor in unit.tensors]
        # under the session's guard: another for each of many variants would take as long as their passes
        with (
            moment.sealing(),
            quantised(moment.model, bits, self.scheme(), units=units, activation_bits=self.activation_bits),
        ):
            return score(moment.model, moment.task, known, names)

    def _originals(self, moment: Moment, half: Half) -> Originals:
        return originals(moment.model, moment.task, self.batches(moment, half))

    def batches(self, moment: Moment, half: Half) -> list[Any]:
        found = moment.holdout_batches(self.examples)
        if half == "all":
            return found
        search, held = moment.once(
            ("halves", self.examples), lambda: halves(moment.task, found, self._counts(moment, found))
        )
        return search if half == "search" or not held else held

    def _counts(self, moment: Moment, batches: list[Any]) -> list[int]:
        part = {"what": "positions that count 1", "examples": self.examples}
        found: list[int] = moment.remember(
            part, lambda: {"each": positions_of_examples(moment.model, moment.task, batches)}
        )["each"]
        return found

    def forget(self, moment: Moment, *which: Half) -> None:
        """Let go of outputs that no other probe asks for."""
        for half in which:
            moment.cache.pop(("originals", self.examples, half), None)

    def measured_key(self) -> tuple[Any, ...]:
        """Under which damages of single units on these examples, with this scheme, lie at a moment."""
        return ("bit sensitivities", self.examples, *sorted(self.described().items(), key=str))


def check_activation_bits(owner: str, bits: Any) -> None:
    if not is_whole(bits) or bits not in WHOLE_BITS:
        raise ValueError(f"{owner}(activation_bits={bits!r}): 2 to 8, or None for activations as they are")


def checked_widths(owner: str, bits: Sequence[int]) -> list[int]:
    """Widths from high to low, each once; refuses what no weight can have."""
    if isinstance(bits, str) or not isinstance(bits, Sequence) or not bits:
        raise ValueError(f"{owner}(bits={bits!r}): one or more of 2 to 8 and 16 are needed")
    try:
        widths = sorted({checked_bits(each) for each in bits}, reverse=True)
    except QuantiseError as error:
        raise ValueError(f"{owner}: {error}") from error
    if widths[0] > 16:
        raise ValueError(f"{owner}(bits={bits!r}): 2 to 8 and 16 are possible; as stored is always compared with")
    return widths


def judged_by(scores: Mapping[str, Any]) -> str:
    """What tells how far outputs are: their KL divergence, or their squared error where they are no distributions."""
    return "mse" if scores["regression"] else "kl"


def additivity(single: Sequence[float], joint: float) -> tuple[float | None, str | None]:
    """Σ of the damages of single units over that of all together; None with the reason where it has no meaning."""
    if any(math.isnan(value) for value in (*single, joint)):
        return None, "a damage is not a number"
    if joint == 0:
        return None, "nothing changed: the joint damage is 0"
    return math.fsum(single) / joint, None
