"""How far the last weights of one run are from those of another, layer by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.model.weights.checkpoint import CheckpointError, load_torch
from learnscope.model.weights.lazy import identities
from learnscope.model.weights.saved_steps import copies
from learnscope.names import group_parameters, natural_key, resolve
from learnscope.tensor.updates.delta import DeltaTable, delta_statistics


@dataclass(frozen=True)
class LastWeights:
    """The last weights that a run folder holds, read when asked for, and the step that they are of."""

    step: int
    weights: Mapping[str, Tensor]


def last_weights(folder: Path, manifest: Mapping[str, Any], checkpoint: str) -> LastWeights | None:
    """The latest of the weights in the states of a run folder and in its file `checkpoint`; None if it has none.

    States that a later attempt superseded do not count, since the run went on without them, nor does a checkpoint of
    another run, which may have been there before.
    """
    starts = {int(entry["attempt"]): int(entry["start_step"]) for entry in manifest.get("attempts") or []}
    try:
        found = list(copies(folder))
    except (KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"a file in {folder / 'state'} is not a state of a run ({error})") from error
    live = [c for c in found if not any(n > c.attempt and c.saved > start for n, start in starts.items())]
    exact = [copy for copy in live if copy.exact]
    latest = max(exact, key=lambda copy: copy.step, default=None)
    rolling = _rolling(folder / checkpoint, manifest.get("id")) if (folder / checkpoint).exists() else None
    if rolling is not None and (latest is None or rolling.step >= latest.step):
        return rolling
    if latest is not None:
        return LastWeights(latest.step, latest.weights())
    if live:
        raise CheckpointError(
            "it kept its weights in another dtype only, which is not what they were: "
            "ls.ParameterChange(snapshot_dtype='native') keeps them as they are"
        )
    return None


def _rolling(path: Path, run: object) -> LastWeights | None:
    body = load_torch(path)
    try:
        step, weights, owner = int(body["step"]), body["model"], body["run"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds no weights with their step") from error
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds more than named tensors under 'model'")
    return LastWeights(step, weights) if run is None or run == owner else None


@dataclass(frozen=True)
class LayerDistance:
    """How far a layer's weights are from the reference's; what cannot be told is None, with the reason in `status`."""

    layer: str
    entries: int
    distance: float | None
    """‖W − W_reference‖"""
    relative: float | None
    """… over ‖W_reference‖"""
    largest: float | None
    """max|W − W_reference|"""
    different: int | None
    """Entries whose bits are not the same; None between two dtypes."""
    status: str | None = None


@dataclass(frozen=True)
class WeightDistance:
    """Two sets of weights compared. Names are those of the reference, or of the side that has them."""

    layers: tuple[LayerDistance, ...]
    whole: LayerDistance
    only_reference: tuple[str, ...]
    only_other: tuple[str, ...]
    other_shape: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    """Name, shape in the reference, shape in the other."""
    not_floating: tuple[str, ...]
    """Left out: a distance needs dense floats."""


def weight_distance(
    reference: Mapping[str, Tensor], other: Mapping[str, Tensor], order: Sequence[str] = ()
) -> WeightDistance:
    """Compare what both have, a layer at a time; weights that lie in files are mapped, not loaded.

    `order` is the model's order of its layers; others follow in the order of their numbers. Names count without what
    torch.compile, DistributedDataParallel and PEFT put in, where they are still told apart then.
    """
    ours, theirs = _by_clean_name(reference), _by_clean_name(other)
    same = (identities(reference), identities(other))
    tied: set[tuple[Any, Any]] = set()
    names: list[str] = []
    other_shape, not_floating = [], []
    for name in (name for name in ours if name in theirs):
        pair = reference[ours[name]], other[theirs[name]]
        identity = same[0][ours[name]], same[1][theirs[name]]
        if not all(tensor.is_floating_point() and tensor.layout is torch.strided for tensor in pair):
            not_floating.append(name)
        elif pair[0].shape != pair[1].shape:
            other_shape.append((name, tuple(pair[0].shape), tuple(pair[1].shape)))
        elif identity not in tied:  # tied in both: once
            tied.add(identity)
            names.append(name)
    groups = group_parameters(names, "layer")
    known = {layer: place for place, layer in enumerate(order)}
    layers = sorted(groups, key=lambda layer: (known.get(layer, len(known)), natural_key(layer)))
    tables = []
    for layer in layers:
        members = [names[i] for i in groups[layer]]
        new, old = [other[theirs[n]] for n in members], [reference[ours[n]] for n in members]
        # in pieces: compiling takes longer than reading the weights of most models
        tables.append(delta_statistics(new, old, form="chunked"))
    return WeightDistance(
        layers=tuple(_distance(layer, [table]) for layer, table in zip(layers, tables, strict=True)),
        whole=_distance("model", tables),
        only_reference=tuple(name for name in ours if name not in theirs),
        only_other=tuple(name for name in theirs if name not in ours),
        other_shape=tuple(other_shape),
        not_floating=tuple(not_floating),
    )


def _by_clean_name(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """What to match a tensor by → its own name; wrappers' parts go unless two tensors would then have one name."""
    clean = {resolve(name).clean: name for name in weights}
    return clean if len(clean) == len(weights) else {name: name for name in weights}


def _distance(layer: str, tables: Sequence[DeltaTable]) -> LayerDistance:
    def total(column: str) -> float:
        return float(sum(value for table in tables for value in getattr(table, column).tolist()))

    entries, bits = int(total("entries")), total("bits_changed")
    different = None if math.isnan(bits) else int(bits)

    def untold(status: str) -> LayerDistance:
        return LayerDistance(layer, entries, None, None, None, different, status)

    if not entries:
        return untold("no entries in common")
    bad = int(total("nan") + total("inf"))
    if bad:
        return untold(f"not finite in {bad:,} of {entries:,} entries")
    distance, norm = math.sqrt(total("sum_squares")), math.sqrt(total("old_sum_squares"))
    if not math.isfinite(distance) or not math.isfinite(norm):
        return untold("squares too large for float64")
    largest = max(value for table in tables for value in table.largest.tolist())
    if not norm:
        return LayerDistance(layer, entries, distance, None, largest, different, "the reference's weights are all 0")
    return LayerDistance(layer, entries, distance, distance / norm, largest, different)
