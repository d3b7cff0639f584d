"""The ledger as a table with one row per example, and summary statistics over all examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope import native
from learnscope.ledger.batch import UNKNOWN_TARGET, LedgerError
from learnscope.ledger.columns import ALWAYS, GRAND, MEANS, OPTIONAL, OTHER

if TYPE_CHECKING:
    import pandas as pd

Arrays = Mapping[str, NDArray[Any]]
QUANTILES = (0.1, 0.5, 0.9)


def checked(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The stored columns of a ledger; refuses other arrays."""
    missing = [name for name in ALWAYS if name not in arrays]
    if missing:
        raise LedgerError(f"these are not the arrays of a ledger: {', '.join(missing)} missing")
    return {name: arrays[name] for name in (*ALWAYS, *OPTIONAL) if name in arrays}


def with_unmeasured(arrays: Arrays, fill: float) -> dict[str, NDArray[Any]]:
    """The arrays with `fill` for means over no presentations: NaN outside of a ledger, 0 in it."""
    changed = dict(arrays)
    none = arrays["presentations"] == arrays["nonfinite"]
    if none.any():
        changed |= {name: np.where(none, fill, arrays[name]) for name in MEANS}
    if "grand_count" in arrays and (none := arrays["grand_count"] == 0).any():
        changed |= {name: np.where(none, fill, arrays[name]) for name in GRAND}
    return changed


def derived(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Derived columns: share correct, standard deviation, never learned, and learned but never forgotten."""
    presentations = np.maximum(arrays["presentations"], 1)
    measured = np.maximum(arrays["presentations"] - arrays["nonfinite"], 1)
    learned = arrays["first_correct"] > 0
    return {
        "correctness": arrays["times_correct"] / presentations,
        "variability": np.sqrt(arrays["confidence_m2"] / measured),
        "never_learned": ~learned,
        "unforgettable": learned & (arrays["forgetting_events"] == 0),
    }


def frame(arrays: Arrays) -> pd.DataFrame:
    """One row per example. Presentations count from 1; NA for what did not happen, NaN for what was not measured.

    | column | meaning |
    |---|---|
    | `presentations`, `nonfinite` | how often it was shown; how often a score was not finite (left out of the means) |
    | `confidence`, `variability`, `correctness` | mean p(gold), its population standard deviation, share correct |
    | `forgetting_events` | how often it was correct at one presentation and wrong at the next |
    | `never_learned`, `unforgettable` | never correct; correct at some time and never forgotten |
    | `first_correct`, `last_correct` | the first and last presentation at which it was correct |
    | `first_learned`, `learned_epoch` | the presentation from which on it was always correct, and its epoch; a wrong \
answer resets both |
    | `first_epoch`, `last_epoch` | of its presentations |
    | `aum`, `cumulative_loss` | mean margin; sum of the losses |
    | `el2n_mean`, `el2n_last`, `grand_mean`, `grand_last` | over its presentations, and at the last that was measured |
    | `target` | the class, or the number that stands for its target |
    | `other_class`, `other_votes` | the class that was predicted instead in most of its wrong presentations, NA if \
none was; how often, less the times that it was another wrong class |
    """
    import pandas as pd

    happened = {name: arrays[name] > 0 for name in ("first_correct", "last_correct", "first_learned")}
    happened["learned_epoch"] = happened["first_learned"]
    if "target" in arrays:
        happened["target"] = arrays["target"] != UNKNOWN_TARGET
    if OTHER[0] in arrays:
        happened[OTHER[0]] = arrays[OTHER[1]] > 0
    nullable = {name: pd.arrays.IntegerArray(arrays[name].astype(np.int64), ~known) for name, known in happened.items()}
    order = (
        "id", "presentations", "nonfinite", "confidence", "variability", "correctness", "forgetting_events",
        "never_learned", "unforgettable", "first_correct", "last_correct", "first_learned", "learned_epoch",
        "first_epoch", "last_epoch", "aum", "cumulative_loss", "el2n_mean", "el2n_last", *GRAND, "target",
        *OTHER,
    )  # fmt: skip
    columns: dict[str, Any] = {**arrays, **derived(arrays), **nullable}
    return pd.DataFrame({name: columns[name] for name in order if name in columns})


def summary(arrays: Arrays) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Statistics over all examples, None where there is no data; and `QUANTILES` of each score.

    `learned` is the share of examples that were correct at their last presentation.
    """
    examples = len(arrays["id"])
    if not examples:
        return {"examples": 0, "presentations": 0}, {}
    shown, nonfinite = arrays["presentations"], arrays["nonfinite"]
    sums = [int(np.add.reduce(each, dtype=np.int64)) for each in (shown, nonfinite, arrays["forgetting_events"])]
    some = [np.count_nonzero(arrays[name]) for name in ("first_learned", "first_correct", "forgetting_events")]
    numbers = counted(examples, *sums, *some)
    count = shown - nonfinite
    measured: NDArray[np.bool_] | None = count > 0
    if not np.any(measured):
        return numbers | _NONE, {}
    if np.all(measured):
        measured = None
    quantiles: dict[str, list[float]] = {}
    size, names = len(count if measured is None else count[measured]), list(SCORES)
    together = len(names) if size <= TOGETHER else 1
    for start in range(0, len(names), together):
        part = names[start : start + together]
        scores = np.empty((len(part), size))
        for row, name in zip(scores, part, strict=True):
            values = arrays[SCORES[name]]
            row[:] = values if measured is None else values[measured]
            if name == "variability":
                row /= count if measured is None else count[measured]
                np.sqrt(row, out=row)
        of_part = _scored(part, scores)
        numbers, quantiles = numbers | of_part[0], quantiles | of_part[1]
    return numbers, quantiles


def counted(
    examples: int, presentations: int, nonfinite: int, events: int, learned: int, right: int, forgotten: int
) -> dict[str, Any]:
    """The summary's first numbers, from sums over examples and how many were learned, ever right, ever forgotten."""
    return {
        "examples": examples, "presentations": presentations, "nonfinite": nonfinite, "forgetting_events": events,
        "learned": learned / examples, "never_learned": (examples - right) / examples,
        "unforgettable": (right - forgotten) / examples,  # only what was learned can be forgotten
    }  # fmt: skip


def all_scored(scores: NDArray[np.float64]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The summary's means and quantiles, of scores in rows, which are reordered."""
    return _scored(list(SCORES), scores) if scores.shape[1] else (_NONE, {})


def _scored(names: list[str], scores: NDArray[np.float64]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    sums = np.add.reduce(scores, 1)
    numbers = {f"mean_{name}": mean for name, mean in zip(names, (sums / scores.shape[1]).tolist(), strict=True)}
    return numbers, dict(zip(names, _quantiles(scores, has_nan=bool(np.isnan(sums).any())), strict=True))


TOGETHER = 2**16
"""Examples up to which all their scores are copied at once."""
SCORES = {
    "confidence": "confidence", "variability": "confidence_m2", "aum": "aum", "el2n": "el2n_mean",
    "cumulative_loss": "cumulative_loss",
}  # fmt: skip
"""What is summed up of every example, and the column that it is in."""
_NONE = dict.fromkeys((f"mean_{name}" for name in SCORES), None)


def _quantiles(values: NDArray[np.float64], *, has_nan: bool) -> list[list[float]]:
    """`np.quantile(values, QUANTILES, axis=1)` by rows, several times as fast; reorders the values."""
    low, high, share, places = _places(values.shape[1])
    if native.kernels is None or has_nan or not values.flags.c_contiguous:
        values.partition(places, axis=1)
        below, above = values.take(low, 1), values.take(high, 1)
    else:
        found, at = np.empty((len(values), len(places))), np.array(places)
        native.kernels.numbers_at(values, at, found)
        below, above = found[:, np.searchsorted(at, low)], found[:, np.searchsorted(at, high)]
    quantiles: list[list[float]] = (below + (above - below) * share).tolist()
    return quantiles


@lru_cache(maxsize=2)
def _places(count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], list[int]]:
    """Where quantiles of so many sorted values lie: after which, before which, and at what share between them."""
    where = np.array(QUANTILES) * (count - 1)
    low = where.astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    return low, high, where - low, sorted({*low.tolist(), *high.tolist()})
