"""Scale and shape of a stream of values: rms and excess kurtosis, from parts that can be combined in any order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from learnscope.tensor.context import plain_arithmetic

CHUNK = 1 << 17
"""Values read at a time on a CPU: their float64 copies stay in the cache."""
ACCELERATOR_CHUNK = 1 << 24
"""Values read at a time on an accelerator, where launches cost more than memory."""
FEWEST = 4
"""Values that a kurtosis needs."""
_SAME = 1e-15
"""Spread relative to the mean below which values are equal up to rounding; SciPy uses the same threshold."""
_SMALL, _LARGE = 1e-150, 1e150
"""Range of variances whose square, and so the fourth moment, fits into float64."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Statistics of the values so far, as float64 scalars.

    rms = √(Σx²/n). kurtosis = m₄/m₂² − 3 with m_k = Σ(x − mean)ᵏ/n, the population's excess kurtosis (Fisher's,
    0 for a normal distribution; `scipy.stats.kurtosis` with its defaults). NaN and infinite values are counted
    and not left out: NaN makes both NaN, ∞ makes rms ∞ and the kurtosis NaN. The kurtosis is also NaN for fewer
    than 4 values, for equal values, and where the fourth moment exceeds float64's range. All are NaN if nothing
    was added.
    """

    nan: Tensor
    inf: Tensor
    mean: Tensor
    rms: Tensor
    kurtosis: Tensor


@dataclass(slots=True)
class Distribution:
    """Moments of all values added, 8 float64 numbers per chunk: no value is kept.

    Each chunk is centred on its own mean, and the chunks are combined by the parallel-axis formulas (Pébay 2008,
    "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments"),
    so that a mean far larger than the spread costs no digits.
    """

    n: int = 0
    _rows: list[Tensor] = field(default_factory=list)

    def add(self, values: Tensor) -> None:
        """Values of any shape, floating-point dtype and device."""
        flat = values.detach().reshape(-1)
        self.n += flat.numel()
        with plain_arithmetic(values.device):
            chunk = CHUNK if flat.device.type == "cpu" else ACCELERATOR_CHUNK
            self._rows += [_row(part) for part in flat.split(chunk) if part.numel()]

    def shape(self, device: torch.device | str | None = None) -> Shape:
        """The statistics so far, by default on the device of the values."""
        if not self._rows:
            none = torch.full((), torch.nan, dtype=torch.float64, device=device)
            return Shape(none, none, none, none, none)
        first = self._rows[0].device if device is None else device
        return _join(torch.stack([row.to(first) for row in self._rows]))

    def no_kurtosis_reason(self) -> str:
        """The reason for a kurtosis that is NaN though every value is finite."""
        if self.n < FEWEST:
            return f"{self.n} values: a kurtosis needs {FEWEST}"
        return "the values have no spread of which float64 holds the fourth moment"


def joined(parts: Iterable[Distribution]) -> Distribution:
    """The distribution of the values of all parts."""
    parts = list(parts)
    return Distribution(sum(part.n for part in parts), [row for part in parts for row in part._rows])


def _row(part: Tensor) -> Tensor:
    """Of a chunk: NaNs, infinities, n, a value near the mean, the mean minus it and, around the mean, Σd², Σd³, Σd⁴."""
    # MPS has no float64
    values = (part.cpu() if part.device.type == "mps" else part).double()
    near = values[0]  # shifted by one of the values, equal values have a spread of exactly 0
    centred = values - near
    offset = centred.mean()
    centred -= offset
    squares = centred * centred
    n = torch.full_like(offset, part.numel())
    return torch.stack([
        values.isnan().sum().double(), values.isinf().sum().double(), n, near, offset, squares.sum(),
        torch.dot(squares, centred), torch.dot(squares, squares),
    ])  # fmt: skip


def _join(rows: Tensor) -> Shape:
    nan, inf, n, near, beyond, second, third, fourth = rows.unbind(1)
    total = n.sum()
    offset = (near - near[0]) + beyond  # relative to the first chunk: a large mean would leave no digits for it
    centre = (n * offset).sum() / total
    shift = offset - centre
    m2 = (second + n * shift**2).sum() / total
    m4 = (fourth + 4 * shift * third + 6 * shift**2 * second + n * shift**4).sum() / total
    overall = near[0] + centre
    spread = (m2 > (_SAME * overall) ** 2) & (m2 > _SMALL) & (m2 < _LARGE) & (total >= FEWEST)
    rms = (m2 + overall**2).sqrt()
    rms = torch.where(nan.sum() > 0, torch.nan, torch.where(inf.sum() > 0, torch.inf, rms))
    return Shape(nan.sum(), inf.sum(), overall, rms, torch.where(spread, m4 / m2**2 - 3, torch.nan))
