"""Eigenvalues and trace of a symmetric matrix that is given only by its products with vectors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
Product = Callable[[Vector], Vector]
End = Literal["largest", "smallest"]

WORKING_VECTORS = 8
"""Vectors held besides the Krylov basis: ARPACK's four, a product and its argument, a direction, a scaling."""


class NotFiniteError(ArithmeticError):
    """A product with the matrix has an entry that is NaN or infinite."""


class Operator:
    """A symmetric matrix given by its product with a vector; counts the products and refuses nonfinite ones."""

    def __init__(self, product: Product) -> None:
        self.products, self._product = 0, product

    def __call__(self, vector: Vector) -> Vector:
        self.products += 1
        product = self._product(vector.reshape(-1))
        if not np.isfinite(product).all():
            raise NotFiniteError("a product with the Hessian is not finite")
        return product

    def scaled(self, scale: Vector) -> Product:
        """The product with S H S, S = diag(scale)."""
        return lambda vector: scale * self(scale * vector.reshape(-1))


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Eigenvalues at one end, the outermost first, and the unit eigenvectors as columns.

    Of `requested` values, those that are missing did not converge.
    """

    values: NDArray[np.float64]
    vectors: Vector
    requested: int


def end_of_spectrum(
    product: Product,
    n: int,
    count: int,
    *,
    krylov: int,
    tolerance: float,
    restarts: int,
    end: End = "largest",
    dtype: type[np.floating[Any]] = np.float64,
) -> Spectrum:
    """The `count` largest (or smallest) eigenvalues, algebraically, of a symmetric matrix.

    Implicitly restarted Lanczos (ARPACK through `scipy.sparse.linalg.eigsh`) with a basis of `krylov` vectors: an
    eigenvalue θ has converged when the residual ‖Hx − θx‖ is below tolerance·|θ|. Those that have not converged after
    `restarts` are left out. A matrix no larger than the basis is built from its n products and solved directly.
    """
    count = min(count, n)
    if n <= krylov:
        return _dense(product, n, count, end, dtype)
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    nonzero = False

    def watched(vector: Vector) -> Vector:
        nonlocal nonzero
        image = product(vector)
        nonzero = nonzero or bool(image.any())
        return image

    random = np.random.default_rng(0)
    options: dict[str, Any] = {"which": "LA" if end == "largest" else "SA", "ncv": krylov, "maxiter": restarts}
    options |= {"tol": tolerance, "v0": random.standard_normal(n).astype(dtype)}
    if "rng" in inspect.signature(eigsh).parameters:
        options["rng"] = random  # for restarts from an invariant subspace; by default not reproducible
    try:
        values, vectors = eigsh(LinearOperator((n, n), matvec=watched, dtype=np.dtype(dtype)), k=count, **options)
    except ArpackNoConvergence as error:
        values, vectors = error.eigenvalues, error.eigenvectors
    except ArpackError:
        if nonzero:
            raise
        # ARPACK fails if the matrix maps a random vector to zero; the matrix is then zero
        values, vectors = np.zeros(count), np.eye(n, count, dtype=dtype)
    return _outermost_first(values, vectors, count, end)


def _dense(product: Product, n: int, count: int, end: End, dtype: type[np.floating[Any]]) -> Spectrum:
    matrix = np.stack([product(row) for row in np.eye(n, dtype=dtype)]).astype(np.float64)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    chosen = slice(n - count, n) if end == "largest" else slice(count)
    return _outermost_first(values[chosen], vectors[:, chosen], count, end)


def _outermost_first(values: Vector, vectors: Vector, requested: int, end: End) -> Spectrum:
    order = np.argsort(values)
    order = order[::-1] if end == "largest" else order
    return Spectrum(values[order].astype(np.float64), vectors[:, order], requested)


def signs(n: int, samples: int, *, seed: int = 0, dtype: type[np.floating[Any]] = np.float64) -> Iterator[Vector]:
    """Vectors of independent ±1 with equal probability (Rademacher), the same ones at every call."""
    random = np.random.default_rng(seed)
    for _ in range(samples):
        yield (2 * random.integers(0, 2, n, dtype=np.int8) - 1).astype(dtype)


def quadratic_forms(product: Product, vectors: Iterator[Vector], sizes: Sequence[int]) -> NDArray[np.float64]:
    """vᵦ·(Hv)ᵦ for every vector v (rows) and every block β of consecutive entries (columns), in float64.

    For random signs the expectation is the trace of the diagonal block, since the other blocks and the off-diagonal
    entries have expectation 0 (Hutchinson 1990); the sum of a row is v·Hv, which estimates the whole trace.
    """
    ends = np.cumsum(sizes)
    rows = []
    for vector in vectors:
        image = product(vector)
        rows.append([
            float(np.dot(vector[end - size : end].astype(np.float64), image[end - size : end].astype(np.float64)))
            for size, end in zip(sizes, ends, strict=True)
        ])  # fmt: skip
    return np.array(rows, dtype=np.float64).reshape(-1, len(sizes))


def mean_and_error(samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the first dimension and its standard error s/√m (s unbiased); the error of a single sample is NaN."""
    m = len(samples)
    error = samples.std(axis=0, ddof=1) / np.sqrt(m) if m > 1 else np.full(samples.shape[1:], np.nan)
    return samples.mean(axis=0), error


def basis_bytes(n: int, krylov: int, count: int, itemsize: int) -> int:
    """Memory of Lanczos on n entries: the Krylov basis, the eigenvectors twice, and the working vectors."""
    return n * itemsize * (min(krylov, n) + 2 * count + WORKING_VECTORS)
