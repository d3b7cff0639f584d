"""What the model is given in training, beside the holdout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.core.forwards import ForwardCall, described
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe, Schedule
from learnscope.model.features.given import given_inputs, is_compiled, padding_token
from learnscope.probes.features.input_rows import (
    graph_columns,
    input_columns,
    norm_tables,
    output_columns,
    row_columns,
    spread_columns,
)
from learnscope.record import Measurement, Table

UNSEEN = (
    "no training forward of the model was seen before this step: only parts of it are called, it was compiled after "
    "the session had opened, or it is not in training mode"
)
MOST_HELD = 2**26
"""Entries of a batch of the holdout whose rows are compared."""
NO_CALL = "the task calls a part of the model, so what the model is given is not known"
Array = NDArray[Any]
_NONE = torch.zeros(0, dtype=torch.int64, device="cpu")


class Inputs(Probe):
    """Scale and content of what the model is given in training forwards, at the steps that are looked at.

    It is the first input with examples in it, which the note `input` names. Rows (examples) are compared bit for bit,
    by hashes of 64 bits: an augmented, normalised or otherwise changed copy of an example is not the same row. Of large
    inputs, statistics are of 4 million entries, and the first rows with half a million are compared. The holdout's own
    numbers are taken once, when the session opens, of the batches that probes evaluate on, without running the model.
    A batch that is given to the model several times in a step counts once. The first step of a session is looked at
    only if the model is compiled already.
    """

    every: Schedule = 10
    at: At = "before_step"
    most_holdout: int = 50_000
    """Examples of the holdout that training rows are compared with."""
    most_rows: int = 200_000
    """Rows of an epoch, and of the run, that are remembered to find duplicates, 8 bytes each."""
    needs = frozenset({"forwards"})
    reads_only = True
    cost = "a few passes over the inputs, and over those of batch norm layers"

    def open(self, moment: Moment) -> None:
        if not moment.subject.holdout or moment.subject.task is None:
            return
        moment.state["_holdout"] = self._holdout(moment)

    def _holdout(self, moment: Moment) -> dict[str, Any]:
        """Numbers and hashes of the holdout's inputs, or why there are none."""
        padding, calls, left = padding_token(moment.model), [], self.most_holdout
        try:
            for given in given_inputs(moment.model, moment.task, moment.subject.holdout or ()):
                if given is None or left <= 0:
                    break
                calls.append(described(given[0], given[1][:left], padding, most=MOST_HELD))
                left -= len(given[1])
        except Exception as error:  # noqa: BLE001  (a task of any kind, on a batch of any kind: said in a note)
            return {"reason": f"the holdout's inputs could not be read: {type(error).__name__}: {error}"}
        if not calls:
            return {"reason": NO_CALL}
        fetched = list(_fetched(calls))
        hashes, _ = _distinct(np.concatenate([each["hashes"] for each in fetched]))
        return {"calls": calls, "numbers": fetched, "hashes": hashes, "form": calls[0].form, "whole": left >= 0}

    def measure(self, moment: Moment) -> Measurement | None:
        calls, state = moment.handed.forwards, moment.state
        if calls is None:  # the session's first step
            return None
        if not calls:
            told, state["told"] = "told" in state, True
            return None if told else Measurement(notes={"unseen": UNSEEN})
        numbers, holdout = list(_fetched(calls)), state.get("_holdout")
        hashes = _given_once([each["hashes"] for each in numbers])
        distinct, times = _distinct(hashes)
        duplicates = len(hashes) - len(distinct) + self._seen_before(distinct, state, moment.epoch)
        ever = self._seen_ever(distinct, times, state)
        compared = holdout is not None and "hashes" in holdout
        overlap = _overlap(hashes, holdout["hashes"], state) if holdout is not None and compared else None
        first = holdout is not None and "shown" not in state
        state["shown"] = True
        make = partial(
            _tables,
            calls,
            numbers,
            hashes,
            duplicates,
            ever,
            overlap,
            holdout,
            first=first,
            compiled=is_compiled(moment.model),
        )
        finite = torch.from_numpy(np.array([each["numbers"].sum() for each in numbers], np.float64))
        return Measurement(packed={"finite": finite}, unpack=make, notes=_notes(calls, holdout, first=first))

    def _seen_before(self, distinct: Array, state: dict[str, Any], epoch: int | None) -> int:
        """How many different rows came at an earlier step of the epoch, where epochs are told."""
        if not epoch:  # nobody has told of an epoch's end: the same row later may be the next epoch's
            return 0
        seen = np.asarray(state["seen"]) if state.get("epoch") == epoch else np.zeros(0, np.int64)
        known, seen = self._with(seen, distinct)
        state |= {"seen": torch.from_numpy(seen), "epoch": epoch}
        return int(np.count_nonzero(known))

    def _seen_ever(self, distinct: Array, times: Array, state: dict[str, Any]) -> tuple[int, int]:
        """How many rows came at an earlier looked-at step, and how many different ones there were so far."""
        before = np.asarray(state["ever"]) if "ever" in state else np.zeros(0, np.int64)
        known, ever = self._with(before, distinct)
        state["ever"] = torch.from_numpy(ever)
        return int(times[known].sum()), len(ever)

    def _with(self, seen: Array, distinct: Array) -> tuple[Array, Array]:
        """Which rows were seen, and those seen with them, in order; no more are remembered than `most_rows`."""
        places = np.searchsorted(seen, distinct)
        known = seen[np.minimum(places, len(seen) - 1)] == distinct if len(seen) else np.zeros(len(distinct), bool)
        if len(seen) < self.most_rows:
            seen = np.concatenate([seen, distinct[~known]])
            seen.sort(kind="stable")  # two ordered parts, which are merged
        return known, seen


def _distinct(hashes: Array) -> tuple[Array, Array]:
    """Each once, in order, and how often it is there; `np.unique` would import NumPy's masked arrays in the loop."""
    ordered = np.sort(hashes)
    first = np.ones(len(ordered) + 1, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:-1])
    starts = first.nonzero()[0]
    return ordered[first[:-1]], starts[1:] - starts[:-1]


def _given_once(batches: Sequence[Array]) -> Array:
    """The rows of a step. A batch that the model is given again (a closure, sharpness-aware steps) counts once."""
    if len(batches) == 1:
        return batches[0]
    return np.concatenate(list({batch.tobytes(): batch for batch in batches}.values()))


def _overlap(hashes: Array, held: Array, state: dict[str, Any]) -> tuple[int, int]:
    """Rows that are an example of the holdout, and examples of the holdout that have been a row so far."""
    places = np.minimum(np.searchsorted(held, hashes), len(held) - 1)
    same = held[places] == hashes if len(held) else np.zeros(len(hashes), bool)
    if same.any() or "matched" not in state:
        before = np.asarray(state["matched"]) if "matched" in state else np.zeros(0, np.int64)
        state["matched"] = torch.from_numpy(_distinct(np.concatenate([before, hashes[same]]))[0])
    return int(same.sum()), len(state["matched"])


def _fetched(calls: Sequence[ForwardCall]) -> Iterator[dict[str, Any]]:
    """The numbers of each call on the host, with the hashes of the rows that can be compared; one wait for all."""
    tensors = [part for call in calls for part in _parts(call)]
    if all(tensor.is_cpu for tensor in tensors):
        arrays = iter([tensor.numpy() for tensor in tensors])
    else:
        # whole numbers of 64 bits carry the bits of float64 as well
        flat = [(t if t.dtype is torch.float64 else t.long()).reshape(-1).view(torch.int64) for t in tensors]
        joined = torch.cat([tensor.to(flat[0].device) for tensor in flat]).cpu().numpy()
        split = np.split(joined, np.cumsum([tensor.numel() for tensor in flat])[:-1])
        kinds = [np.float64 if tensor.dtype is torch.float64 else np.int64 for tensor in tensors]
        arrays = iter([array.view(kind) for array, kind in zip(split, kinds, strict=True)])
    for call in calls:
        numbers, hashes, comparable = (next(arrays) for _ in range(3))
        rms = {name: float(next(arrays).reshape(-1)[0]) for name in call.rms}
        outputs = next(arrays).reshape(-1) if call.outputs is not None else None
        drifts = [next(arrays).reshape(-1) for _ in call.drifts]
        rows = hashes[comparable.astype(bool)]
        yield {"numbers": numbers, "hashes": rows, "rms": rms, "outputs": outputs, "drifts": drifts}


def _parts(call: ForwardCall) -> Iterator[Tensor]:
    yield call.numbers
    yield _NONE if call.hashes is None else call.hashes
    yield _NONE if call.comparable is None else call.comparable
    yield from call.rms.values()
    if call.outputs is not None:
        yield call.outputs
    yield from call.drifts.values()


def _tables(
    calls: Sequence[ForwardCall], numbers: Sequence[Mapping[str, Any]], hashes: Array, duplicates: int,
    ever: tuple[int, int], overlap: tuple[int, int] | None, holdout: Mapping[str, Any] | None, _packed: Any, *,
    first: bool, compiled: bool,
) -> list[Table]:  # fmt: skip
    columns = [
        *input_columns(calls, numbers, "train"),
        *output_columns(numbers, compiled=compiled),
        *spread_columns(numbers),
        *graph_columns(calls),
    ]
    if first and holdout is not None and "calls" in holdout:
        columns += input_columns(holdout["calls"], holdout["numbers"], "holdout")
    columns += row_columns(calls[0], hashes, duplicates, ever, overlap, holdout)
    return [Table("model", ["model"], columns), *norm_tables(calls, numbers)]


def _notes(calls: Sequence[ForwardCall], holdout: Mapping[str, Any] | None, *, first: bool) -> dict[str, Any]:
    notes: dict[str, Any] = {"input": f"{calls[-1].name}: {calls[-1].form}"}
    if lost := [name for call in calls for name in call.lost_calls or ()]:
        notes["lost_calls"] = list(dict.fromkeys(lost))
    if first and holdout is not None and "reason" in holdout:
        notes["holdout"] = holdout["reason"]
    elif first and holdout is not None and not holdout["whole"]:
        notes["holdout"] = "training rows are compared with the first examples of the holdout only (most_holdout)"
    return notes
