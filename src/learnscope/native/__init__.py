"""Kernels in C for arrays in the memory of the host: one pass where NumPy and torch take one for every number.

They are compiled when learnscope is installed, if there is a compiler. Without them, or with `LEARNSCOPE_NATIVE=0`, the
same numbers come from torch and NumPy, in more time. So they do where the sources have changed since then, as by
`git pull` in an editable installation, until it is installed again.
"""

from __future__ import annotations

import importlib
import os
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

SOURCES = 0x65833A41
"""Of the sources in C, made by `make names`. What was compiled of others may have other functions."""

Numbers = NDArray[np.float64]
Place = tuple[int, int, int]
"""Address, entries and bytes of each, of memory that is held by the caller. It is not checked."""
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Arrays = list[Floats] | list[Place]
Blocks = NDArray[np.int32]


class Kernels(Protocol):
    """What the kernels do. Arrays have no gaps, and results are written into `out`, which the caller has made.

    `threads` matter from a million entries on; the bits of a result depend neither on them nor on the processor.
    """

    def best_build(self) -> str:
        """The module whose kernels were compiled for the widest registers that this processor has."""

    def change_sums(self, new: Arrays, old: Arrays, cuts: Numbers, out: Numbers, threads: int, renew: bool, /) -> None:
        """Of Δ = new − old in float32 ΣΔ, Σ|Δ|, ΣΔ², Σ(Δ − mean)², max|Δ|, Σold², sign flips, changed bits, NaN, ±∞.

        Then a row of `out` for every cut, with how many |Δ| are within it. A NaN makes the largest NaN, and what is not
        finite the spread. With `renew` the old arrays become the new ones on the way.
        """

    def class_counts(
        self, logits: NDArray[np.floating], targets: Ids, ignored: int, near: Numbers, columns: bool, sums: Ids,
        target_counts: Ids, predicted_counts: Ids, /,
    ) -> bool:  # fmt: skip
        """What a loss of classes was given, as `class_sums` of `learnscope.tensor.outputs.objective` counts it.

        `near`: how far a sum of probabilities may be off 1. With `columns` these are asked too; False, and nothing of
        use is written, if one of them may be of probabilities.
        """

    def count_changed(
        self, new: Arrays, old: Arrays, ranks: Blocks, offsets: Blocks, out: Ids, threads: int, /
    ) -> None:
        """In how many entries of every block the bits of new and old differ. A block has as many entries as `ranks`;
        every array begins with a new one.
        """

    def cut_changed(
        self, new: Arrays, old: Arrays, ranks: Blocks, offsets: Blocks, kept: Ids, out: Blocks, threads: int, /
    ) -> None:
        """The rank in every block below which there are `kept` entries whose bits differ, for each row of `kept`.

        The rank of an entry is that at its place in `ranks`, turned by its block's offset.
        """

    def divergence_sums(
        self, reference: Floats, variant: Floats, weights: Floats, out: Numbers, first: Ids, threads: int, /
    ) -> None:
        """Of each row, with d = variant − reference, Σ w d, Σ w (e^d − 1 − d), Σ d² and Σ (variant² − reference²).

        Into the four rows of `out`; `first` gets the first place of the variant's largest entry, -1 if one is NaN.
        """

    def exchange_entries(
        self, new: Arrays, old: Arrays, ranks: Blocks, offsets: Blocks, thresholds: Numbers, now: Blocks | None,
        then: Blocks | None, threads: int, /,
    ) -> None:  # fmt: skip
        """Exchange where one of two rules reverts and the other does not: |new − old| ≤ threshold, and the rank is at
        least the cut of its block, if there are cuts. A NaN is never reverted.
        """

    def first_places(
        self, tokens: Ids, targets: Ids, outputs: NDArray[np.floating], rows: int, most: int, out: Numbers, /
    ) -> None:
        """As `token_first_places` of `learnscope.tensor.outputs.places`, of the first of these sequences."""

    def gradient_sums(self, arrays: list[NDArray[np.floating]] | list[Place], out: Numbers, threads: int, /) -> None:
        """Of each float32 or float64 array Σx², entries = 0, NaN, ±∞, max|x| without NaN, entries as large as that.

        `out` has a row for each. As large are NaN if all entries are 0 or one is not finite.
        """

    def bytes_at(self, address: int, bytes: int, /) -> bytes:
        """A copy of memory. Nothing is checked."""

    def copy_memory(self, *to_from_bytes: int) -> None:
        """Copy bytes to an address from another, as often as there are three numbers. Nothing of them is checked."""

    def example_scores(
        self, logits: NDArray[np.floating], targets: Ids, scores: Numbers, correct: Flags, predicted: Ids, /
    ) -> bool:
        """Of each row of float32 or float64 logits p(gold), margin, loss and EL2N into the four rows of `scores`.

        Beside them whether it is right, and the class that was predicted instead of the target, -1 for none. False,
        and nothing is written, if a target is none of the classes.
        """

    def ledger_find(
        self, slots: NDArray[np.int32], hashed: bool, rows: NDArray[np.void], size: int, ids: Ids,
        targets: Ids | None, checksums: Numbers | None, at: Ids, /,
    ) -> bool:  # fmt: skip
        """The rows of ids, -1 for an unknown one; whether all are known, with these targets and checksums."""

    def ledger_present(
        self, rows: NDArray[np.void], at: Ids, p_gold: Numbers, margin: Numbers, loss: Numbers, el2n: Numbers,
        correct: Flags, targets: Ids | None, checksums: Numbers | None, predicted: Ids | None,
        classes: NDArray[np.int16] | None, votes: NDArray[np.uint8] | None, epoch: int, once: bool, /,
    ) -> int:  # fmt: skip
        """One more presentation of the examples in these rows, one after another; how many `once` left out.

        Targets and checksums are written where they are given, and predictions voted for.
        """

    def ledger_totals(self, rows: NDArray[np.void], size: int, counts: Ids, scores: Numbers, /) -> int:
        """Six sums over rows, and five scores of those that have some, whose number is returned; see ledger.c."""

    def group_sums(
        self, which: Ids, rows: Ids, correct: Flags, p_gold: Numbers, loss: Numbers, table: Numbers, /
    ) -> None:
        """Add presentations of groups to the groups' rows: one, right, finite, p(gold) and loss."""

    def output_spread(
        self, outputs: NDArray[np.floating], examples: int, rows: int, columns: int, listed: bool, out: Numbers, /
    ) -> None:
        """Spread, cosine, rank and confidence as `output_numbers` of `learnscope.tensor.features.outputs`, of every so
        many-th row and column.
        """

    def text_numbers(
        self, tokens: Ids, width: int, padding: Ids | None, least: int, numbers: Numbers, hashes: Ids,
        comparable: Flags, /,
    ) -> None:  # fmt: skip
        """The largest of all tokens, and how many differ; of the first rows the hashes, and which can be compared."""

    def token_counts(
        self, tokens: Ids, targets: Ids, rows: int, ignored: int, padding: Ids | None, shifts: Ids, out: Numbers, /
    ) -> None:
        """As `token_sums` of `learnscope.tensor.outputs.objective`."""

    def numbers_at(self, values: Numbers, places: Ids, out: Numbers, /) -> None:
        """Of every row of values, none of which is NaN, the numbers at these ascending places of it sorted."""


def _loaded() -> Kernels | None:
    """The kernels for this processor, if they have been compiled."""
    if os.environ.get("LEARNSCOPE_NATIVE") == "0":
        return None
    found = None
    try:
        found = _module("_kernels")
        return _module(found.best_build())
    except ImportError:  # there was no compiler when learnscope was installed, or none that knows this processor
        return found


def _module(name: str) -> Kernels:
    module = importlib.import_module(f"learnscope.native.{name}")
    if getattr(module, "SOURCES", None) != SOURCES:
        raise ImportError(f"{name} was compiled from other sources")
    return cast(Kernels, module)


kernels = _loaded()
"""None where there are none."""
