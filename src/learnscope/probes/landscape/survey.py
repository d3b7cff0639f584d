"""The parts of a look at the loss landscape, each as columns: eigenvalues, thresholds, trace, loss along a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope.model.landscape.loss import Landscape
from learnscope.model.weights.snapshot import Snapshot
from learnscope.probes.landscape.stability import (
    Holder,
    adam_threshold,
    descent_threshold,
    momentum_threshold,
    no_preconditioner,
    preconditioner,
    rates,
    smallest_threshold,
    uses_momentum,
)
from learnscope.quantities import Quantity
from learnscope.quantities.landscape import LossLandscape as Q
from learnscope.record import Column, Label
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


def number(quantity: Quantity, value: float | None, why: str | None = None, **labels: Label) -> Column:
    """A column of one number, or of none with the reason."""
    return quantity.column([value], labels, {0: why} if value is None and why else {})


class Survey:
    """What is measured around one point. Where the loss or its gradient is not finite, curvature is null."""

    def __init__(
        self,
        options: LossLandscape,
        landscape: Landscape,
        held: Mapping[str, Holder],
        dtype: type[np.floating[Any]],
        previous: Snapshot | None,
    ) -> None:
        self.options, self.landscape, self.held, self.previous = options, landscape, held, previous
        self.dtype = dtype
        self.operator = Operator(landscape.product, landscape.n)
        self.gradient_norm = float(np.linalg.norm(landscape.gradient.astype(np.float64)))
        self.notes: dict[str, Any] = {}
        self.forms: NDArray[np.float64] | str = ""
        """For the trace: a row a sample, a column a parameter; or why there are none."""
        self.broken: str | None = None
        if not math.isfinite(landscape.loss):
            self.broken = "the loss is not finite"
        elif not np.isfinite(landscape.gradient).all():
            self.broken = "the gradient is not finite"

    def columns(self) -> list[Column]:
        top = self._spectrum(self.operator, self.options.eigenvalues)
        columns = [
            number(Q.loss, self.landscape.loss),
            number(Q.gradient_norm, self.gradient_norm),
            *self._eigenvalues(top),
            *self._preconditioned(),
        ]
        if self.options.smallest:
            columns.append(number(Q.smallest_eigenvalue, *_outermost(self._spectrum(self.operator, 1, "smallest"))))
        if self.options.trace_samples:
            columns += self._trace()
        columns += self._along(top)
        return [*columns, number(Q.products, self.operator.products)]

    def _spectrum(self, product: Product, count: int, end: End = "largest") -> Spectrum | str:
        """The eigenvalues, or why there are none."""
        if self.broken:
            return self.broken
        o = self.options
        try:
            return end_of_spectrum(
                product, self.landscape.n, count, krylov=o.krylov, tolerance=o.tolerance, restarts=o.restarts,
                end=end, dtype=self.dtype,
            )  # fmt: skip
        except NotFiniteError as error:
            return str(error)

    def _eigenvalues(self, top: Spectrum | str) -> list[Column]:
        columns = [
            number(Q.eigenvalue, *_at(top, rank), rank=rank)
            for rank in range(1, min(self.options.eigenvalues, self.landscape.n) + 1)
        ]
        if not isinstance(top, str) and 0 < len(top.values) < top.wanted:
            self.notes["eigenvalues"] = f"{len(top.values)} of {top.wanted} converged; ranks count the converged ones"
        sharpness, why = _outermost(top)
        columns.append(number(Q.sharpness, sharpness, why))
        if not self.held:
            why = "no optimizer of these parameters is known"
            return [*columns, number(Q.sharpness_threshold, None, why), number(Q.sharpness_ratio, None, why)]
        found = rates(self.held)
        if len(found) > 1:
            self.notes["learning_rates"] = found
        threshold = smallest_threshold(self.held, descent_threshold)
        columns += _against(Q.sharpness_threshold, Q.sharpness_ratio, sharpness, why, threshold)
        if uses_momentum(self.held):
            threshold = smallest_threshold(self.held, momentum_threshold)
            columns += _against(Q.momentum_threshold, Q.momentum_ratio, sharpness, why, threshold)
        return columns

    def _preconditioned(self) -> list[Column]:
        measured, limit, ratio = Q.preconditioned_sharpness, Q.preconditioned_threshold, Q.preconditioned_ratio
        missing = (
            no_preconditioner(self.held, self.landscape.names)
            if self.held
            else "no optimizer of these parameters is known"
        )
        if missing:
            return [number(quantity, None, missing) for quantity in (measured, limit, ratio)]
        scale = preconditioner(self.held, self.landscape.names, self.dtype)
        value, why = _outermost(self._spectrum(self.operator.scaled(scale), 1))
        threshold = smallest_threshold(self.held, adam_threshold)
        return [number(measured, value, why), *_against(limit, ratio, value, why, threshold)]

    def _trace(self) -> list[Column]:
        o, land = self.options, self.landscape
        self.forms = self.broken or ""
        if not self.broken:
            try:
                self.forms = quadratic_forms(
                    self.operator, signs(land.n, o.trace_samples, dtype=self.dtype), land.sizes
                )
            except NotFiniteError as error:
                self.forms = str(error)
        if isinstance(self.forms, str):
            return [number(Q.trace, None, self.forms), number(Q.trace_error, None, self.forms)]
        mean, error_of_mean = mean_and_error(self.forms.sum(axis=1))
        return [number(Q.trace, float(mean)), trace_error([float(error_of_mean)])]

    def _along(self, top: Spectrum | str) -> list[Column]:
        kind = self.options.direction
        if kind is None:
            return []
        direction = self._direction(kind, top)
        columns = []
        for at in map(float, self.options.points):
            why = direction if isinstance(direction, str) else None
            value = None
            if not isinstance(direction, str):
                value = self.landscape.loss_at(direction, at) if at else self.landscape.loss
            columns.append(number(Q.loss, value, why, direction=kind, at=at))
        return columns

    def _direction(self, kind: str, top: Spectrum | str) -> Vector | str:
        """The vector that one unit along it means, or why there is none."""
        if kind == "update":
            assert self.previous is not None, "the probe's needs say that it is there"
            return self.landscape.difference(self.previous.tensors)
        if self.broken:
            return self.broken
        length = self.options.radius * self.landscape.weight_norm()
        if kind == "gradient":
            if self.gradient_norm == 0:
                return "the gradient is zero"
            return -(length / self.gradient_norm) * self.landscape.gradient.astype(np.float64)
        if isinstance(top, str) or not len(top.values):
            return _outermost(top)[1] or "there is no eigenvector"
        vector = top.vectors[:, 0].astype(np.float64)
        slope = float(vector @ self.landscape.gradient.astype(np.float64))
        # an eigenvector has no sign of its own; where the loss is level, its largest entry is positive
        uphill = slope > 0 if slope else vector[np.abs(vector).argmax()] < 0
        return (-length if uphill else length) / float(np.linalg.norm(vector)) * vector


def trace_error(errors: list[float]) -> Column:
    status = {i: "a standard error needs at least two samples" for i, error in enumerate(errors) if math.isnan(error)}
    return Q.trace_error.column([None if i in status else error for i, error in enumerate(errors)], status=status)


def _at(found: Spectrum | str, rank: int) -> tuple[float | None, str | None]:
    if isinstance(found, str):
        return None, found
    if rank > len(found.values):
        return None, "Lanczos did not converge: raise krylov or restarts"
    return float(found.values[rank - 1]), None


def _outermost(found: Spectrum | str) -> tuple[float | None, str | None]:
    return _at(found, 1)


def _against(limit: Quantity, ratio: Quantity, value: float | None, why: str | None, threshold: float) -> list[Column]:
    """The threshold and the value's ratio to it."""
    return [
        number(limit, threshold if math.isfinite(threshold) else None, "the learning rate is 0"),
        number(ratio, None if value is None else value / threshold, why),
    ]
