"""A copy of a model's weights at one step, kept on a device, on the CPU or on disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DTYPES = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
_SCALES = ("x2", "e8m0")  # two numbers per byte, exponents only: formats of scales, not of weights
FLOATS = sorted(
    name for name in _DTYPES if getattr(torch, name).is_floating_point and not any(part in name for part in _SCALES)
)
"""The names of the dtypes that weights can be kept in."""


def check_placement(device: Any, dtype: Any) -> None:
    """Refuse a device or dtype that cannot hold weights, before the first snapshot."""
    if dtype != "native" and dtype not in FLOATS:
        raise ValueError(f"snapshot dtype {dtype!r}: use 'native' or one of {', '.join(FLOATS)}")
    if device != "disk":
        try:
            kind = torch.device(device).type
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"snapshot device {device!r}: use 'disk', or a torch device such as 'cpu'") from error
        if kind == "meta":
            raise ValueError("snapshot device 'meta' keeps no numbers: use 'disk', or a torch device such as 'cpu'")


def check_reachable(device: str) -> None:
    """Refuse a device that this machine lacks. Only at the first snapshot: the test initialises the device."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # not in this build, or not in this machine
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"snapshot device {str(device)!r} cannot be used here ({cause}): use 'cpu' or 'disk'"
        ) from error


class Snapshot:
    """The floating-point weights of a model at `step`.

    `dtype` is "native" (each tensor's own) or a float dtype; `device` is a torch device or "disk": a mapped file.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], step: int, *, device: str = "cpu", dtype: str = "native"
    ) -> None:
        check_placement(device, dtype)
        self.device, self.dtype = device, dtype
        if device != "disk":
            check_reachable(device)
        weights = {name: p for name, p in parameters.items() if p.is_floating_point()}
        self.may_be_renewed = False
        """Nobody reads it after the probe that measures now: comparing it with the weights may renew it on the way."""
        self._renewed_at: int | None = None
        self._refused = False
        if device == "disk":
            self._tensors = self._mapped(weights)
        else:
            self._tensors = {
                name: torch.empty(p.shape, dtype=self._dtype_of(p), device=device) for name, p in weights.items()
            }
        self.update(parameters, step)

    @property
    def names(self) -> Sequence[str]:
        return list(self._tensors)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The weights by name: the snapshot's own memory, which must not be written."""
        return self._tensors

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Copy the current weights into the memory of the snapshot."""
        renewed_at, self._renewed_at, self.may_be_renewed = self._renewed_at, None, False
        if renewed_at != step:
            for name, tensor in self._tensors.items():
                tensor.copy_(parameters[name].detach(), non_blocking=True)
        self.step = step

    def renewed(self, parameters: Mapping[str, Tensor], step: int) -> Snapshot:
        """The current weights: in the same memory, or in a new snapshot if the model has been rebuilt."""
        if self._refused or not parameters.keys() >= self._tensors.keys():
            return Snapshot(parameters, step, device=self.device, dtype=self.dtype)
        self.update(parameters, step)
        return self

    def has_been_renewed(self, step: int) -> None:
        """Its memory holds the weights after this step already: whoever compared them wrote them on the way."""
        self.step = self._renewed_at = step

    def check(self, parameters: Mapping[str, Tensor], cure: str = "its next change is measured from here") -> None:
        """Refuse a model whose parameters have other names or shapes than the snapshot."""
        now = {name: p for name, p in parameters.items() if p.is_floating_point()}
        self._refused = True  # until all have been looked at
        for name in now.keys() ^ self._tensors.keys():
            change = "appeared" if name in now else "disappeared"
            raise ValueError(
                f"parameter {name} {change} since the snapshot at step {self.step}: the model was rebuilt; {cure}"
            )
        for name, tensor in self._tensors.items():
            if tensor.shape != now[name].shape:
                raise ValueError(
                    f"parameter {name} changed shape from {tuple(tensor.shape)} to {tuple(now[name].shape)} "
                    f"since the snapshot at step {self.step}: the model was rebuilt; {cure}"
                )
        self._refused = False

    def _dtype_of(self, parameter: Tensor) -> torch.dtype:
        dtype: torch.dtype = parameter.dtype if self.dtype == "native" else getattr(torch, self.dtype)
        return dtype

    def _mapped(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Memory in files, whose names are gone as soon as they are mapped: a killed process leaves none behind."""
        tensors = {}
        with tempfile.TemporaryDirectory(prefix="learnscope-", ignore_cleanup_errors=True) as folder:
            for number, (name, p) in enumerate(weights.items()):
                dtype, path = self._dtype_of(p), Path(folder) / f"{number}.bin"
                if p.numel() == 0:  # an empty file cannot be mapped
                    tensors[name] = torch.empty(p.shape, dtype=dtype)
                    continue
                _reserve(path, p.numel() * dtype.itemsize)
                tensors[name] = torch.from_file(str(path), shared=True, size=p.numel(), dtype=dtype).view(p.shape)
        return tensors


def _reserve(path: Path, size: int) -> None:
    """A file that has its space on disk: where there is none, writing to the mapped file would kill the process."""
    with path.open("wb") as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems that cannot reserve
                place = f"{path.parent.parent} ({error.strerror})"
                raise OSError(
                    error.errno,
                    f"snapshot_device='disk' finds no room for {size:,} bytes in {place}: "
                    "set TMPDIR to a larger disk, or use snapshot_device='cpu'",
                ) from error
