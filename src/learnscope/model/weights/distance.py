"""The distance between the last weights of two runs, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.lazy import identities
from learnscope.model.weights.rolling import read_rolling
from learnscope.model.weights.saved_steps import saved_weights
from learnscope.names import group_parameters, natural_key, resolve
from learnscope.tensor.updates.delta import DeltaTable, delta_statistics


@dataclass(frozen=True)
class LastWeights:
    """The last weights in a run folder, read on access, and their step."""

    step: int
    weights: Mapping[str, Tensor]


def last_weights(folder: Path, manifest: Mapping[str, Any], checkpoint: str) -> LastWeights | None:
    """The latest weights in the saved states of a run folder or in its file `checkpoint`; None if there are none.

    States that a later attempt superseded do not count, nor does a checkpoint of another run.
    """
    starts = {int(entry["attempt"]): int(entry["start_step"]) for entry in manifest.get("attempts") or []}
    live = [
        s for s in saved_weights(folder) if not any(n > s.attempt and s.saved > start for n, start in starts.items())
    ]
    latest = max((s for s in live if s.exact), key=lambda s: s.step, default=None)
    if (folder / checkpoint).exists():
        owner, step, weights = read_rolling(folder / checkpoint)
        if manifest.get("id") in (None, owner) and (latest is None or step >= latest.step):
            return LastWeights(step, weights)
    if latest is not None:
        return LastWeights(latest.step, latest.weights())
    if live:
        raise CheckpointError(
            "it kept its weights in another dtype only, which is not what they were: "
            "ls.ParameterChange(snapshot_dtype='native') keeps them as they are"
        )
    return None


@dataclass(frozen=True)
class LayerDistance:
    """The distance of a layer's weights from the reference; unknown values are None, with the reason in `status`."""

    layer: str
    entries: int
    distance: float | None
    """‖W − W_reference‖"""
    relative: float | None
    """… over ‖W_reference‖"""
    largest: float | None
    """max|W − W_reference|"""
    different: int | None
    """Entries whose bits differ; None if the dtypes differ."""
    status: str | None = None


@dataclass(frozen=True)
class WeightDistance:
    """Two sets of weights compared. Names are without wrappers if they stay unique."""

    layers: tuple[LayerDistance, ...]
    whole: LayerDistance
    only_reference: tuple[str, ...]
    only_other: tuple[str, ...]
    other_shape: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    """Name, shape in the reference, shape in the other."""
    not_floating: tuple[str, ...]
    """Left out, since a distance needs dense floating-point tensors."""


def weight_distance(
    reference: Mapping[str, Tensor], other: Mapping[str, Tensor], order: Sequence[str] = ()
) -> WeightDistance:
    """Compare the weights that both have, one layer at a time; weights in files are mapped, not loaded.

    `order` is the order of the layers in the model; others follow in natural order. Names are matched without what
    torch.compile, DistributedDataParallel and PEFT add, if they stay unique.
    """
    ours, theirs = _by_clean_name(reference), _by_clean_name(other)
    keys, other_keys = identities(reference), identities(other)
    shared: dict[tuple[Any, Any], str] = {}
    other_shape, not_floating = [], []
    for name in (name for name in ours if name in theirs):
        pair = reference[ours[name]], other[theirs[name]]
        if not all(tensor.is_floating_point() and tensor.layout is torch.strided for tensor in pair):
            not_floating.append(name)
        elif pair[0].shape != pair[1].shape:
            other_shape.append((name, tuple(pair[0].shape), tuple(pair[1].shape)))
        else:  # what is tied on both sides is counted once
            shared.setdefault((keys[ours[name]], other_keys[theirs[name]]), name)
    names = list(shared.values())
    groups = group_parameters(names, "layer")
    places = {layer: place for place, layer in enumerate(order)}
    layers = sorted(groups, key=lambda layer: (places.get(layer, len(places)), natural_key(layer)))
    tables = []
    for layer in layers:
        members = [names[i] for i in groups[layer]]
        new, old = [other[theirs[n]] for n in members], [reference[ours[n]] for n in members]
        # in chunks: compiling takes longer than reading the weights of most models
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
    """Name to match by → the tensor's own name; wrappers are removed unless two names would become equal."""
    clean = {resolve(name).clean: name for name in weights}
    return clean if len(clean) == len(weights) else {name: name for name in weights}


def _distance(layer: str, tables: Sequence[DeltaTable]) -> LayerDistance:
    def total(column: str) -> float:
        return float(sum(value for table in tables for value in getattr(table, column).tolist()))

    entries, bits, not_finite = int(total("entries")), total("bits_changed"), int(total("nan") + total("inf"))
    different = None if math.isnan(bits) else int(bits)
    distance, norm = math.sqrt(total("sum_squares")), math.sqrt(total("old_sum_squares"))
    status = None
    if not entries:
        status = "no entries in common"
    elif not_finite:
        status = f"not finite in {not_finite:,} of {entries:,} entries"
    elif not math.isfinite(distance) or not math.isfinite(norm):
        status = "squares too large for float64"
    if status is not None:
        return LayerDistance(layer, entries, None, None, None, different, status)
    largest = max(value for table in tables for value in table.largest.tolist())
    if not norm:
        return LayerDistance(layer, entries, distance, None, largest, different, "the reference's weights are all 0")
    return LayerDistance(layer, entries, distance, distance / norm, largest, different)
