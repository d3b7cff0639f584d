"""What calibrated quantisers know of a weight's inputs: second moments and mean magnitudes, summed over tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.bits.quantize import QuantiseError, compute_dtype

BAND = 128
"""Rows of Σ x xᵀ that are multiplied at a time."""


@dataclass(slots=True)
class InputStatistics:
    """Of the inputs x [tokens, in] of a weight [out, in]: 4·in² + 8·in bytes, however many tokens there were."""

    gram: Tensor
    """Σ x xᵀ [in, in]: half of GPTQ's Hessian of the squared error of the outputs; float32, float64 for such inputs."""
    magnitude: Tensor
    """Σ |x| [in], float64."""
    tokens: int = 0

    @classmethod
    def of(cls, inputs: Tensor) -> InputStatistics:
        """Of these inputs [..., in]."""
        width, dtype = inputs.shape[-1], compute_dtype(inputs.dtype)
        gram = torch.zeros(width, width, dtype=dtype, device=inputs.device)
        made = cls(gram, torch.zeros(width, dtype=torch.float64, device=inputs.device))
        made.add(inputs)
        return made

    @torch.no_grad()
    def add(self, inputs: Tensor) -> None:
        """Count inputs [..., in] too."""
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).to(self.gram.dtype)
        if not bool(rows.isfinite().all()):
            raise QuantiseError(
                "its inputs on the calibration data have NaN or Inf: look whether the model's own outputs are finite, "
                "or leave it as stored (bits=32)"
            )
        self.gram.addmm_(rows.T, rows)
        self.magnitude += rows.abs().sum(0)
        self.tokens += len(rows)

    def output_error(self, change: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Σ over tokens of (change · x)², for each row of a weight's change [out, in], computed in `dtype`.

        Of the symmetric Σ x xᵀ only the blocks on and above the diagonal are multiplied, and those above counted twice.
        """
        wide, gram = change.to(dtype), self.gram.to(dtype)
        error = wide.new_zeros(len(wide))
        for start in range(0, len(gram), BAND):
            end = start + BAND
            product = wide[:, start:end] @ gram[start:end, start:]
            product[:, BAND:] *= 2
            error += (product * wide[:, start:]).sum(-1)
        return error

    def changes_less(self, first: Tensor, second: Tensor) -> Tensor:
        """Whether the outputs change less by the rows of `first` than by those of `second`, both changes [out, in].

        (a·x)² - (b·x)² = ((a - b)·x)((a + b)·x): one product in float64, and nothing lost where both are close.
        """
        first, second = first.to(torch.float64), second.to(torch.float64)
        return (((first - second) @ self.gram.to(torch.float64)) * (first + second)).sum(-1) < 0
