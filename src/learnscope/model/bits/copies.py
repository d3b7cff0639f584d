"""Quantised copies of weights, each made once for all variants that use it."""

from __future__ import annotations

from torch import Tensor, nn

from learnscope.model.bits.autoround import tuned_by_autoround
from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.quantised_units import QuantisedTensor
from learnscope.tensor.bits.methods import check_method, find_method, quantize_by
from learnscope.tensor.bits.quantize import HALF_BITS, Quantised, QuantiseError, Scheme, dequantize


class QuantisedCopies:
    """The weights of a model, which must not change meanwhile, at any bits, as numbers of their own dtype.

    Copies are kept as integers, and take at most as many bytes as the model's own parameters: four widths of a model in
    float32. What does not fit is made again when it is needed.
    """

    def __init__(
        self, model: nn.Module, scheme: Scheme, method: str = "rtn", calibration: Calibration | None = None
    ) -> None:
        """`method`: a name of `METHODS`; one that is calibrated needs a `calibration` of this model."""
        chosen = find_method(method)
        if chosen.needs_calibration and calibration is None:
            raise QuantiseError(
                f"method={method!r} is calibrated on data: give calibration=Calibration.collect(model, batches, units)"
            )
        check_method(method)
        self.scheme = chosen.scheme(scheme)
        """That of the copies: with input scales if the method stores them."""
        self.method = method
        self.calibration = calibration if chosen.needs_calibration else None
        self.room = sum(parameter.nbytes for parameter in model.parameters())
        self.made = 0
        """How many copies had to be made."""
        self._kept: dict[tuple[str, int], Quantised] = {}
        self._whole_model = chosen.package is not None
        self._tuned: dict[int, dict[str, Quantised | None]] = {}
        """By bits: the weights of a method that quantises whole models."""

    @property
    def nbytes(self) -> int:
        """Of the copies that are kept."""
        return sum(map(_nbytes, self._kept.values()))

    def of(self, tensor: QuantisedTensor, matrix: Tensor, bits: int) -> Tensor:
        """The weight `matrix` [out, in] of this name at these bits, as numbers, in the parameter's own shape."""
        return tensor.as_stored(dequantize(self.quantised(tensor, matrix, bits)))

    def quantised(self, tensor: QuantisedTensor, matrix: Tensor, bits: int) -> Quantised:
        """The weight `matrix` [out, in] of this name at these bits, as integers and scales."""
        copy = self._kept.get((tensor.name, bits))
        if copy is None:
            copy = self._made(tensor, matrix, bits)
            self.made += 1
            nbytes = _nbytes(copy)
            if nbytes <= self.room:
                self.room -= nbytes
                self._kept[tensor.name, bits] = copy
        return copy

    def _made(self, tensor: QuantisedTensor, matrix: Tensor, bits: int) -> Quantised:
        calibration = self.calibration
        if calibration is None or bits >= HALF_BITS:
            return quantize_by(self.method, matrix, bits, self.scheme)
        if not self._whole_model:
            return quantize_by(self.method, matrix, bits, self.scheme, calibration.of(tensor))
        if bits not in self._tuned:
            self._tuned[bits] = tuned_by_autoround(calibration.model, calibration.batches, bits, self.scheme)
        if tensor.name not in self._tuned[bits]:  # an embedding, or another weight that is no linear layer's of a block
            return quantize_by(self.method, matrix, bits, self.scheme)
        tuned = self._tuned[bits][tensor.name]
        if tuned is None:
            raise QuantiseError(
                f"auto-round leaves a weight of shape {tensor.shape} as it is (it wants dimensions that 32 divides): "
                "leave its unit as stored, or take method='gptq'"
            )
        return tuned


def _nbytes(copy: Quantised) -> int:
    return sum(part.nbytes for part in (copy.codes, copy.scale, copy.zero, copy.inputs) if part is not None)
