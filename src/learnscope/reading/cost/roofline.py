"""What a device can reach at best, from its own numbers: the roofline.

A pass takes at least as long as reading its bytes from memory, and at least as long as its operations:
t ≥ max(bytes / bandwidth, operations / peak). (S. Williams, A. Waterman, D. Patterson: Roofline, an insightful visual
performance model for multicore architectures, CACM 52(4), 2009.) Decoding one token reads every weight that it is
multiplied with and the whole cache; each weight is one multiply-add, which is two operations. Reading a text of T
tokens reads the weights once and makes 2 · parameters · T operations; those of attention itself are left out, which are
few for texts shorter than the model is wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learnscope.store.reader import RunReader

DEVICE = "target_device"
"""The entry among the facts of an audit that holds the numbers of a device."""
NUMBERS = ("memory_bytes", "bytes_per_second", "flops_per_second")


@dataclass(frozen=True, slots=True)
class Device:
    """Memory, its bandwidth, and operations a second; None where they are not given."""

    memory_bytes: float | None = None
    bytes_per_second: float | None = None
    flops_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The least seconds of a pass, and which of the two limits it: "memory" or "operations"."""

    seconds: float
    limit: str


def bound(device: Device, read: float, operations: float) -> Bound | None:
    """The larger of the two times; None if the device has neither number.

    >>> bound(Device(bytes_per_second=50e9, flops_per_second=1e12), read=100e6, operations=1e9)
    Bound(seconds=0.002, limit='memory')
    >>> bound(Device(bytes_per_second=50e9, flops_per_second=1e12), read=100e6, operations=5e9)
    Bound(seconds=0.005, limit='operations')
    """
    both = []
    if device.bytes_per_second:
        both.append(Bound(read / device.bytes_per_second, "memory"))
    if device.flops_per_second:
        both.append(Bound(operations / device.flops_per_second, "operations"))
    return max(both, key=lambda one: one.seconds, default=None)


def decoded(device: Device, weights: float, cache: float, parameters: float, batch: int = 1) -> Bound | None:
    """One more token for each of `batch` texts: the weights are read once for all, a cache for each.

    >>> decoded(Device(bytes_per_second=10e9), weights=90e6, cache=5e6, parameters=45e6, batch=2)
    Bound(seconds=0.01, limit='memory')
    """
    if not device.bytes_per_second:
        return None  # operations alone would promise what no memory can deliver
    return bound(device, weights + batch * cache, 2 * parameters * batch)


def prefilled(device: Device, weights: float, parameters: float, tokens: int) -> Bound | None:
    """All tokens of a text at once.

    >>> prefilled(Device(bytes_per_second=10e9, flops_per_second=1e12), weights=1e6, parameters=5e5, tokens=1000)
    Bound(seconds=0.001, limit='operations')
    """
    return bound(device, weights, 2 * parameters * tokens) if device.flops_per_second else None


def target_device(reader: RunReader) -> Device | None:
    """The device that the user described, if an audit was given one."""
    about: Mapping[str, Any] = ((reader.manifest or {}).get("audited") or {}).get("about") or {}
    given = about.get(DEVICE)
    if not isinstance(given, Mapping) or not given:
        return None
    return Device(**{name: given[name] for name in NUMBERS if given.get(name)})
