"""Quantised copies of weights, each made once for all variants that use it."""

from __future__ import annotations

from torch import Tensor, nn

from learnscope.model.bits.quantised_units import QuantisedTensor
from learnscope.tensor.bits.quantize import Quantised, Scheme, dequantize, quantize


class QuantisedCopies:
    """The weights of a model, which must not change meanwhile, at any bits, as numbers of their own dtype.

    Copies are kept as integers, and take at most as many bytes as the model's own parameters: four widths of a model in
    float32. What does not fit is made again when it is needed.
    """

    def __init__(self, model: nn.Module, scheme: Scheme) -> None:
        self.scheme = scheme
        self.room = sum(parameter.nbytes for parameter in model.parameters())
        self.made = 0
        """How many copies had to be made."""
        self._kept: dict[tuple[str, int], Quantised] = {}

    def of(self, tensor: QuantisedTensor, matrix: Tensor, bits: int) -> Tensor:
        """The weight `matrix` [out, in] of this name, as `fake_quantize` gives it, in the parameter's own shape."""
        copy = self._kept.get((tensor.name, bits))
        if copy is None:
            copy = quantize(matrix, bits, self.scheme)
            self.made += 1
            parts = (copy.codes, copy.scale, copy.zero)
            nbytes = sum(part.nbytes for part in parts if part is not None)
            if nbytes <= self.room:
                self.room -= nbytes
                self._kept[tensor.name, bits] = copy
        return tensor.as_stored(dequantize(copy))
