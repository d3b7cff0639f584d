"""Columns of a loss landscape: eigenvalues, thresholds, trace, loss along a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope.model.landscape.loss import Landscape
from learnscope.model.weights.rounded import as_they_were, precision_note
from learnscope.model.weights.snapshot import Snapshot
from learnscope.probes.landscape.stability import (
    Holder,
    adam_threshold,
    descent_threshold,
    momentum_threshold,
    no_preconditioner,
    preconditioner,
    smallest_threshold,
    uses_momentum,
)
from learnscope.quantities import Quantity
from learnscope.quantities.landscape import LossLandscape as Q
from learnscope.record import Column
from learnscope.tensor.landscape.curvature import (
    End,
    NotFiniteError,
    Operator,
    Product,
    Spectrum,
    Vector,
    end_of_spectrum,
    mean_and_error,
    quadratic_forms,
    signs,
)

if TYPE_CHECKING:
    from learnscope.probes.landscape.loss_landscape import LossLandscape

NO_OPTIMIZER = "no optimizer of these parameters is known"


class Survey:
    """What is measured around one point. Where the loss or its gradient is not finite, curvature is null.

    What cannot be measured is the reason for it, a text.
    """

    def __init__(
        self, options: LossLandscape, landscape: Landscape, holders: Mapping[str, Holder],
        dtype: type[np.floating[Any]], previous: Snapshot | None,
    ) -> None:  # fmt: skip
        self.options, self.landscape, self.holders, self.previous = options, landscape, holders, previous
        self.dtype = dtype
        self.operator = Operator(landscape.product)
        self.gradient_norm = float(np.linalg.norm(landscape.gradient.astype(np.float64)))
        self.notes: dict[str, Any] = {}
        self.forms: NDArray[np.float64] | str = ""
        """For the trace: one row per sample, one column per parameter."""
        self.broken: str | None = None
        """Why there is no curvature."""
        if not math.isfinite(landscape.loss):
            self.broken = "the loss is not finite"
        elif not np.isfinite(landscape.gradient).all():
            self.broken = "the gradient is not finite"

    def columns(self) -> list[Column]:
        top = self._spectrum(self.operator, self.options.eigenvalues)
        columns = [
            Q.loss.cells([self.landscape.loss]),
            Q.gradient_norm.cells([self.gradient_norm]),
            *self._eigenvalues(top),
            *self._preconditioned(),
        ]
        if self.options.smallest:
            columns.append(Q.smallest_eigenvalue.cells([_at(self._spectrum(self.operator, 1, "smallest"))]))
        if self.options.trace_samples:
            columns += self._trace()
        columns += self._along(top)
        return [*columns, Q.products.cells([self.operator.products])]

    def _spectrum(self, product: Product, count: int, end: End = "largest") -> Spectrum | str:
        if self.broken:
            return self.broken
        options = self.options
        try:
            return end_of_spectrum(
                product, self.landscape.n, count, krylov=options.krylov, tolerance=options.tolerance,
                restarts=options.restarts, end=end, dtype=self.dtype,
            )  # fmt: skip
        except NotFiniteError as error:
            return str(error)

    def _eigenvalues(self, top: Spectrum | str) -> list[Column]:
        ranks = range(1, min(self.options.eigenvalues, self.landscape.n) + 1)
        if not isinstance(top, str) and 0 < len(top.values) < top.requested:
            self.notes["eigenvalues"] = (
                f"{len(top.values)} of {top.requested} converged; ranks count the converged ones"
            )
        sharpness = _at(top)
        columns = [*(Q.eigenvalue.cells([_at(top, rank)], rank=rank) for rank in ranks), Q.sharpness.cells([sharpness])]
        if not self.holders:
            return columns + [q.cells([NO_OPTIMIZER]) for q in (Q.sharpness_threshold, Q.sharpness_ratio)]
        learning_rates = sorted({float(holder.group["lr"]) for holder in self.holders.values()}, reverse=True)
        if len(learning_rates) > 1:
            self.notes["learning_rates"] = learning_rates
        threshold = smallest_threshold(self.holders, descent_threshold)
        columns += _against(Q.sharpness_threshold, Q.sharpness_ratio, sharpness, threshold)
        if uses_momentum(self.holders):
            threshold = smallest_threshold(self.holders, momentum_threshold)
            columns += _against(Q.momentum_threshold, Q.momentum_ratio, sharpness, threshold)
        return columns

    def _preconditioned(self) -> list[Column]:
        measured, limit, ratio = Q.preconditioned_sharpness, Q.preconditioned_threshold, Q.preconditioned_ratio
        names = self.landscape.names
        missing = no_preconditioner(self.holders, names) if self.holders else NO_OPTIMIZER
        if missing:
            return [quantity.cells([missing]) for quantity in (measured, limit, ratio)]
        scale = preconditioner(self.holders, names, self.dtype)
        sharpness = _at(self._spectrum(self.operator.scaled(scale), 1))
        threshold = smallest_threshold(self.holders, adam_threshold)
        return [measured.cells([sharpness]), *_against(limit, ratio, sharpness, threshold)]

    def _trace(self) -> list[Column]:
        landscape = self.landscape
        self.forms = self.broken or ""
        if not self.broken:
            vectors = signs(landscape.n, self.options.trace_samples, dtype=self.dtype)
            try:
                self.forms = quadratic_forms(self.operator, vectors, landscape.sizes)
            except NotFiniteError as error:
                self.forms = str(error)
        return trace_columns(self.forms if isinstance(self.forms, str) else self.forms.sum(axis=1, keepdims=True), 1)

    def _along(self, top: Spectrum | str) -> list[Column]:
        kind = self.options.direction
        if kind is None:
            return []
        direction = self._direction(kind, top)
        columns = []
        for at in map(float, self.options.points):
            loss: float | str = self.landscape.loss
            if isinstance(direction, str):
                loss = direction
            elif at:
                loss = self.landscape.loss_at(direction, at)
            columns.append(Q.loss.cells([loss], direction=kind, at=at))
        return columns

    def _direction(self, kind: str, top: Spectrum | str) -> Vector | str:
        """The vector of one unit along the direction."""
        if kind == "update":
            assert self.previous is not None, "the probe's needs say that it is there"
            now = dict(zip(self.landscape.names, self.landscape.parameters, strict=True))
            self.notes |= precision_note(self.previous, now)
            return self.landscape.difference(as_they_were(self.previous, now))
        if self.broken:
            return self.broken
        length = self.options.radius * self.landscape.weight_norm()
        if kind == "gradient":
            if self.gradient_norm == 0:
                return "the gradient is zero"
            return -(length / self.gradient_norm) * self.landscape.gradient.astype(np.float64)
        if isinstance(top, str) or not len(top.values):
            return str(_at(top))
        vector = top.vectors[:, 0].astype(np.float64)
        slope = float(vector @ self.landscape.gradient.astype(np.float64))
        # an eigenvector has no sign of its own; where the loss is level, its largest entry is positive
        uphill = slope > 0 if slope else vector[np.abs(vector).argmax()] < 0
        return (-length if uphill else length) / float(np.linalg.norm(vector)) * vector


def trace_columns(samples: NDArray[np.float64] | str, scopes: int) -> list[Column]:
    """The trace of each scope and its standard error, from samples (rows) of every scope (columns)."""
    if isinstance(samples, str):
        return [quantity.cells([samples] * scopes) for quantity in (Q.trace, Q.trace_error)]
    mean, error = mean_and_error(samples)
    single = "a standard error needs at least two samples"
    return [Q.trace.cells(mean.tolist()), Q.trace_error.cells([single if math.isnan(e) else e for e in error.tolist()])]


def _at(spectrum: Spectrum | str, rank: int = 1) -> float | str:
    if isinstance(spectrum, str):
        return spectrum
    if rank > len(spectrum.values):
        return "Lanczos did not converge: raise krylov or restarts"
    return float(spectrum.values[rank - 1])


def _against(limit: Quantity, ratio: Quantity, value: float | str, threshold: float) -> list[Column]:
    """The threshold and the value's ratio to it."""
    return [
        limit.cells([threshold if math.isfinite(threshold) else "the learning rate is 0"]),
        ratio.cells([value if isinstance(value, str) else value / threshold]),
    ]
