"""The options of the probes of bit widths: which widths, how weights are rounded, on how many examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from learnscope.core.probe import At, Probe
from learnscope.options import check_whole, is_whole
from learnscope.tensor.bits.methods import check_method, find_method
from learnscope.tensor.bits.quantize import WHOLE_BITS, Granularity, QuantiseError, Scheme, checked_bits


class RoundingOptions(Probe):
    """Options of the probes that run a model with some of its units in fewer bits."""

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
