"""Partial sums of rows of changes, added up to float64 columns per tensor on the host."""

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, common_dtype
from learnscope.tensor.kernels import (
    COMPILED_DTYPES,
    LARGEST,
    PARTIALS,
    ChunkedPass,
    compiled_partials,
    suspect_rows,
)
from learnscope.tensor.rows import SMALLEST_SAFE, WIDTH, Batch, Group

HELD_ROWS = 1 << 15
"""Rows held before they are added up on a CPU: 1.3 MB of partials with three thresholds, still in the cache."""

HELD_BYTES = 16 << 20
"""Bytes held before they are added up on an accelerator, which needs a host sync each time."""

EXACT_ROWS = 512
"""Rows computed again in float64 at a time."""


@dataclass(frozen=True)
class Held:
    """A batch whose partials have not been added up yet; a compiled kernel also gives their totals."""

    batch: Batch
    partials: Tensor
    totals: Tensor | None


class Fold:
    """Adds up batches; `columns` holds the partials of `kernels`, then the counts of NaN and Inf.

    Thresholds are sorted inside, and `within` has their counts in the order in which they were given.
    """

    def __init__(self, pairs: Sequence[Group], thresholds: Sequence[float]) -> None:
        self.pairs = pairs
        lowest = [-math.inf if math.isnan(t) else t for t in thresholds]  # nothing is within either
        self._order = sorted(range(len(lowest)), key=lowest.__getitem__)
        ascending = [lowest[i] for i in self._order]
        self.cuts = torch.tensor(ascending, dtype=torch.float64, device="cpu")
        self.rounded = [rounded_down(t) for t in ascending]
        self.columns = torch.zeros(PARTIALS + len(thresholds) + 2, len(pairs), dtype=torch.float64, device="cpu")
        self.entries_read = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
        self._passes: dict[tuple[torch.dtype, torch.device], ChunkedPass] = {}
        self._cuts: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._held: list[Held] = []
        self._held_bytes = self._held_rows = 0

    def within(self, entries: Tensor) -> Tensor:
        """[tensors, thresholds]: how many of each tensor's entries are within each threshold, as they were given."""
        # rows are padded with pairs of zeros, which are within every threshold that is not negative
        # NumPy, as its calls take less time on small arrays
        padding = (self.entries_read - entries).numpy()[:, None] * (self.cuts.numpy() >= 0)
        counts = np.empty((len(self.pairs), len(self._order)))
        counts[:, self._order] = self.columns.numpy()[PARTIALS:-2].T - padding
        return torch.from_numpy(counts)

    def add(self, batch: Batch, compiled: bool) -> None:
        """Reduce the rows of a batch; they are added up later, as that needs a host sync on an accelerator."""
        new, old = batch.rows
        dtype = arithmetic_dtype(new, old)
        key = dtype, new.device
        cuts = self._cuts.get(key)
        if cuts is None:
            values: Tensor | list[float] = self.cuts if dtype is torch.float64 else self.rounded
            cuts = self._cuts[key] = torch.as_tensor(values, dtype=dtype, device=new.device)
        # packed rows are few and of any dtype: not worth a kernel
        use_kernel = compiled and isinstance(batch.owner, int) and {new.dtype, old.dtype} <= COMPILED_DTYPES
        fused = compiled_partials(new, old, cuts) if use_kernel else None
        if fused is None:
            if key not in self._passes:
                self._passes[key] = ChunkedPass(*key)
            held = Held(batch, self._passes[key](new, old, cuts), None)
        else:
            held = Held(batch, *fused)
        self._held.append(held)
        self._held_bytes += batch.bytes_owned + held.partials.nbytes
        self._held_rows += len(new)
        if self._held_bytes >= HELD_BYTES or (new.is_cpu and self._held_rows >= HELD_ROWS):
            self.join()

    def _add_totals(self, batch: Batch, totals: NDArray[np.float64]) -> None:
        self.entries_read[batch.owner] += batch.rows[0].numel()
        column = self.columns.numpy()[: len(totals), batch.owner]
        largest = max(column[LARGEST], totals[LARGEST])
        column += totals
        column[LARGEST] = largest

    def join(self) -> None:
        """Bring the held partials to the host, replace those that float32 cannot hold, and add them up."""
        if not self._held:
            return
        held, self._held, self._held_bytes, self._held_rows = self._held, [], 0, 0
        totals = [one.totals for one in held if one.totals is not None]
        if totals:  # all of one device: that of the tensors
            sums = iter(torch.stack(totals).cpu())
            held = [one for one in held if one.totals is None or not self._joined_whole(one.batch, next(sums))]
        groups: dict[tuple[torch.dtype, torch.device], list[Held]] = {}
        for one in held:
            groups.setdefault((one.partials.dtype, one.partials.device), []).append(one)
        for group in groups.values():
            parts = [one.partials for one in group]
            host = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).cpu()
            lengths = [part.shape[1] for part in parts]
            suspects = torch.split_with_sizes(suspect_rows(host), lengths)
            for one, rows, some in zip(group, torch.split_with_sizes(host, lengths, 1), suspects, strict=True):
                self._join_one(one.batch, rows, some)

    def _joined_whole(self, batch: Batch, totals: Tensor) -> bool:
        """Add the totals of a batch, unless some of its rows are suspect."""
        if float(totals[-1]) or not isinstance(batch.owner, int):
            return False
        self._add_totals(batch, totals[:-1].double().numpy())
        return True

    def _join_one(self, batch: Batch, partials: Tensor, suspect: Tensor) -> None:
        if isinstance(batch.owner, int):
            self.entries_read[batch.owner] += batch.rows[0].numel()
        else:
            width = torch.tensor(float(WIDTH), dtype=torch.float64, device="cpu")
            self.entries_read.index_add_(0, batch.owner, width.expand(len(batch.owner)))
        redo = suspect.nonzero().squeeze(1)
        for start in range(0, len(redo), EXACT_ROWS):
            some = redo[start : start + EXACT_ROWS]
            new, old = (rows[some.to(rows.device)] for rows in batch.rows)
            # rows that are suspect only because `old` is all zero, which is common and harmless
            part = partials[:, some]
            harmless = (part[4] == 0) & part[1:4].isfinite().all(0)
            harmless &= (part[2] >= SMALLEST_SAFE) | (part[LARGEST] == 0)
            keep = ~(harmless & (old == 0).all(1).cpu())
            some, new, old = some[keep], new[keep.to(new.device)], old[keep.to(new.device)]
            if len(some):
                partials[:, some] = 0
                exact = exact_partials(new, old, self.cuts.to(new.device)).cpu()
                self._add(exact, batch.owner if isinstance(batch.owner, int) else batch.owner[some])
        self._add(partials, batch.owner)

    def _add(self, partials: Tensor, owner: int | Tensor) -> None:
        columns = self.columns[: len(partials)]  # only exact rows have counts of NaN and Inf
        if isinstance(owner, int):
            largest = torch.maximum(columns[LARGEST, owner], partials[LARGEST].amax().double())
            columns[:, owner] += partials.sum(1, dtype=torch.float64)
            columns[LARGEST, owner] = largest
            return
        partials = partials.double()
        largest = columns[LARGEST].scatter_reduce(0, owner, partials[LARGEST], "amax")
        columns.index_add_(1, owner, partials)
        columns[LARGEST] = largest


def exact_partials(new: Tensor, old: Tensor, cuts: Tensor) -> Tensor:
    """The partials of each row in float64, with the counts of NaN and Inf; slow, accurate for every input."""
    kind = arithmetic_dtype(new, old)
    change = (new.to(kind) - old.to(kind)).double()
    size, before = change.abs(), old.double()
    flipped = ((new < 0) & (old > 0)) | ((new > 0) & (old < 0))
    rows = [change.sum(1), size.sum(1), change.square().sum(1), size.amax(1), before.square().sum(1)]
    rows += [flipped.sum(1), bits_differ(new, old).sum(1)]
    rows += [(size <= cut).sum(1) for cut in cuts.unbind()]
    rows += [change.isnan().sum(1), change.isinf().sum(1)]
    return torch.stack([row.double() for row in rows])


def bits_differ(new: Tensor, old: Tensor) -> Tensor:
    """Where the stored bits differ; tensors of two dtypes are first converted to the wider one."""
    kind = common_dtype(new.dtype, old.dtype)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[kind.itemsize]
    return new.to(kind).view(integer) != old.to(kind).view(integer)


@functools.lru_cache(maxsize=64)
def rounded_down(threshold: float) -> float:
    """The largest float32 not above `threshold`: |Δ| ≤ t then has the same answer in float32 and float64."""
    if not math.isfinite(threshold):
        return threshold
    try:
        nearest: float = struct.unpack("f", struct.pack("f", threshold))[0]
    except OverflowError:
        nearest = math.copysign(math.inf, threshold)
    if nearest <= threshold:
        return nearest
    above = torch.tensor(nearest, dtype=torch.float32, device="cpu")
    return float(torch.nextafter(above, torch.full_like(above, -math.inf)))
