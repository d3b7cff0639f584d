"""The quantisers by name. Each gives a `Quantised`: other codes and scales, in the same form and the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

from torch import Tensor

from learnscope.tensor.bits.awq import quantize_awq
from learnscope.tensor.bits.clipping import quantize_clipped
from learnscope.tensor.bits.gptq import quantize_gptq
from learnscope.tensor.bits.quantize import HALF_BITS, Quantised, QuantiseError, Scheme, checked_bits, quantize
from learnscope.tensor.bits.statistics import InputStatistics

WithInputs = Callable[[Tensor, int, Scheme, InputStatistics], Quantised]


@dataclass(frozen=True, slots=True)
class Method:
    """A quantiser.

    description: one line, for help and docs. without: quantises a weight of whose inputs nothing is known.
    with_inputs: quantises a weight with the statistics of its inputs; None if these are of no use to it.
    input_scales: whether it stores a factor for every input feature. package: the package whose own program it is,
    which quantises whole models; `model.bits.copies.QuantisedCopies` calls it.
    """

    description: str
    without: Callable[[Tensor, int, Scheme], Quantised]
    with_inputs: WithInputs | None = None
    input_scales: bool = False
    package: str | None = None

    @property
    def needs_calibration(self) -> bool:
        return self.with_inputs is not None or self.package is not None

    @property
    def is_installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None

    def scheme(self, scheme: Scheme) -> Scheme:
        """`scheme` with what this method stores besides, for ledgers and files."""
        return replace(scheme, input_scales=self.input_scales)


METHODS: Mapping[str, Method] = {
    "rtn": Method("each weight to the nearest number, over the whole range of its group", quantize),
    "mse": Method("round-to-nearest over the share of each group's range with the least squared error",
                  quantize_clipped),
    "gptq": Method("GPTQ: column by column on calibration data, later columns make up for the error of earlier ones",
                   quantize, quantize_gptq),
    "awq": Method("AWQ: finer steps for input features that carry more on calibration data; their factors are stored",
                  quantize, quantize_awq, input_scales=True),
    "autoround": Method("AutoRound: rounding tuned block by block on calibration data, by the package auto-round",
                        quantize, package="auto_round"),
}  # fmt: skip


def find_method(name: str) -> Method:
    """The quantiser of this name; refuses others, naming those there are."""
    if name not in METHODS:
        raise QuantiseError(f"method={name!r}: {', '.join(map(repr, METHODS))} are possible")
    return METHODS[name]


def check_method(name: str) -> None:
    """Refuse a method that is not known, or whose package is not there."""
    if not find_method(name).is_installed:
        raise QuantiseError(f"method={name!r} needs a package: pip install 'learnscope[{name}]'")


def quantize_by(
    name: str, weight: Tensor, bits: int, scheme: Scheme | None = None, inputs: InputStatistics | None = None
) -> Quantised:
    """`weight` [out, in] by the method `name`; without `inputs`, or at 16 bits, as the method does without them."""
    method = find_method(name)
    scheme = method.scheme(scheme or Scheme())
    if method.package is not None and inputs is not None:
        raise QuantiseError(f"method={name!r} quantises whole models, not one weight: take QuantisedCopies")
    if method.with_inputs is None or inputs is None or checked_bits(bits) >= HALF_BITS or not weight.numel():
        return method.without(weight, bits, scheme)
    if len(inputs.magnitude) != weight.shape[-1]:
        raise QuantiseError(
            f"a weight with {weight.shape[-1]} input features and statistics of {len(inputs.magnitude)}: "
            "collect the calibration from this model"
        )
    return method.with_inputs(weight, bits, scheme, inputs)
