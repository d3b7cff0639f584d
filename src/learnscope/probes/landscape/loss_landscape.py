"""The shape of the loss around the weights: sharpness, trace of the Hessian, loss along a direction."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.landscape.double_backward import twice_differentiable, widened_bytes
from learnscope.model.landscape.loss import Landscape, trainable
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.selection import check_pattern
from learnscope.options import check_whole
from learnscope.probes.landscape.stability import holders_of
from learnscope.probes.landscape.survey import Survey, trace_columns
from learnscope.record import Measurement, Table
from learnscope.tensor.landscape.curvature import basis_bytes

DIRECTIONS = ("gradient", "eigenvector", "update")
GIB = 1 << 30


class LossLandscape(Probe):
    """Curvature of the mean loss on the first holdout examples, over the trainable parameters it depends on.

    H is the Hessian of L = Σ losses / number of positions that count, in eval mode, without weight decay. Its
    products with vectors come from double backward, its eigenvalues from Lanczos, its trace from random signs.

    The direction d is −∇L or the top eigenvector (on the side on which the loss falls), of length radius·‖W‖; or
    "update", W − W at the last measurement, so that at = −1 is there and 1 as far again. All of it is computed
    without autocast, under math attention, in the weights' dtype, half precision in float32 copies (`widen`);
    the record's notes say what was done. Random vectors are the same at every measurement.
    """

    every: Schedule = 500
    examples: int = 32
    eigenvalues: int = 1
    """How many of the largest."""
    smallest: bool = False
    """Measure the most negative eigenvalue too."""
    krylov: int = 20
    """Vectors in Lanczos' basis: more take more memory and fewer products."""
    tolerance: float = 1e-3
    """Relative residual at which an eigenvalue has converged."""
    restarts: int = 10
    """Restarts of Lanczos, of about `krylov` products each, after which what has not converged is null."""
    trace_samples: int = 10
    """Random vectors for the trace; 0: no trace."""
    direction: str | None = "gradient"
    """Along which the loss is measured: "gradient", "eigenvector", "update", or None."""
    points: Sequence[float] = (-1.0, -0.5, 0.0, 0.5, 1.0)
    radius: float = 0.01
    """Length of the gradient and eigenvector directions as a share of ‖W‖."""
    parameters: str | None = None
    """A regular expression: only parameters in whose name it is found."""
    widen: bool = True
    """Compute half-precision weights in float32 copies; False: in their own dtype, which is noisy."""
    memory: float = 4.0
    """GiB that float32 copies, Lanczos' basis and kept graphs may take. Graphs are rebuilt for every product where \
they would take more; beyond that the measurement is refused."""

    needs = frozenset({"holdout"})
    cost = "some tens to hundreds of double backwards on `examples` holdout examples"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1, eigenvalues=1, krylov=3, restarts=1, trace_samples=0)
        if self.krylov < self.eigenvalues + 2:
            raise ValueError(
                f"LossLandscape(krylov={self.krylov}): at least {self.eigenvalues + 2}, two more than eigenvalues"
            )
        for name in ("tolerance", "radius", "memory"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"LossLandscape({name}={getattr(self, name)!r}): {name} is a number above 0")
        if self.direction not in (None, *DIRECTIONS):
            raise ValueError(f"LossLandscape(direction={self.direction!r}): one of {', '.join(DIRECTIONS)}, or None")
        if len(set(self.points)) != len(self.points) or not all(map(math.isfinite, self.points)):
            raise ValueError(f"LossLandscape(points={self.points!r}): points are different finite numbers")
        try:
            re.compile(self.parameters or "")
        except re.error as error:
            raise ValueError(
                f"LossLandscape(parameters={self.parameters!r}) is no regular expression: {error}"
            ) from error
        if self.direction == "update":  # only then are previous weights kept for it
            object.__setattr__(self, "needs", type(self).needs | {"previous"})

    def open(self, moment: Moment) -> None:
        check_pattern(moment.model, type(self).__name__, self.parameters)

    def measure(self, moment: Moment) -> Measurement:
        moment.subject.refresh()
        model, by_name = moment.model, moment.subject.by_name()
        if self.direction == "update":
            moment.previous.check(by_name)
        names = trainable(model, self.parameters)
        copies = widened_bytes(model) if self.widen else 0
        if copies > self.memory * GIB:
            raise self._beyond(copies, "float32 copies of half-precision weights take", "pass widen=False")
        batches = moment.holdout_batches(self.examples)
        notes: dict[str, Any] = {}
        if torch.is_autocast_enabled(model_device(model).type):
            notes["autocast"] = "on in the loop, off for this measurement"
        with twice_differentiable(model, widen=self.widen):
            landscape = self._landscape(moment, batches, names, widened=copies > 0)
            dtype, free = self._basis(landscape.n, copies)
            holders = holders_of(moment, {name: by_name[name] for name in landscape.names})
            survey = Survey(self, landscape, holders, dtype, moment.snapshot)
            if survey.broken is None:
                keeps = landscape.keep_graphs(free)
                notes |= {"graph": "kept" if keeps else "rebuilt for every product", "basis": np.dtype(dtype).name}
            columns = survey.columns()
        notes |= {"parameters": landscape.n, "tensors": len(landscape.names), "positions": landscape.counted}
        notes["dtype"] = landscape.dtype + (" copies of half-precision weights" if copies else "")
        if len(landscape.names) < len(names):
            notes["tensors_not_in_the_loss"] = len(names) - len(landscape.names)
        if self.direction == "update":
            notes["span"] = [moment.previous.step, moment.step]
        tables = [Table("model", ["model"], columns)]
        if self.trace_samples:
            tables.append(_layers(moment, landscape.names, survey.forms))
        return Measurement(tables, notes=notes | survey.notes)

    def _landscape(self, moment: Moment, batches: Sequence[Any], names: Sequence[str], *, widened: bool) -> Landscape:
        try:
            return Landscape(moment.model, moment.task, batches, names)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not widened:
                raise
            raise RuntimeError(
                f"the model does not run with float32 copies of its half-precision weights ({error}): "
                "pass LossLandscape(widen=False) to compute in the weights' own dtype"
            ) from error

    def _basis(self, n: int, taken: int) -> tuple[type[np.floating[Any]], int]:
        """The dtype of Lanczos' vectors, float64 where it fits, and the bytes that are left beside them."""
        limit = int(self.memory * GIB) - taken
        for dtype in (np.float64, np.float32):
            size = basis_bytes(n, self.krylov, self.eigenvalues, np.dtype(dtype).itemsize)
            if size <= limit:
                return dtype, limit - size
        what = f"{self.krylov} Krylov vectors and some others of {n:,} parameters in float32 take"
        cure = "restrict it with parameters=, a regular expression on their names, or use fewer krylov vectors"
        raise self._beyond(size + taken, what, cure)

    def _beyond(self, size: int, what: str, cure: str) -> ValueError:
        return ValueError(
            f"LossLandscape: {what} {size / GIB:.3g} GiB, more than memory={self.memory:g} GiB allows: {cure}, "
            "or raise memory="
        )


def _layers(moment: Moment, names: Sequence[str], forms: NDArray[np.float64] | str) -> Table:
    """The trace of each layer's block, from the samples of the whole."""
    place = {name: position for position, name in enumerate(moment.subject.names)}
    segments = moment.subject.segments("layer", [place[name] for name in names])
    samples = forms if isinstance(forms, str) else segments.sum(torch.from_numpy(forms.T.copy())).numpy().T
    return Table("layer", segments.scopes, trace_columns(samples, len(segments.scopes)))
