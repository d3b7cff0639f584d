"""Reading weights from modules, dictionaries and files, without ever running code from a file."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

Weights = Mapping[str, Tensor]
_STATE_KEYS = ("state_dict", "model_state_dict", "model", "module", "weights")
_WRAPPERS = ("module.", "_orig_mod.", "model.")
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit the model; the message says why and what to do."""


def read_weights(source: Any) -> dict[str, Tensor]:
    """The named tensors of a module, a state dictionary, or a `.safetensors` or torch file."""
    if isinstance(source, nn.Module):
        return dict(source.state_dict())
    if isinstance(source, Mapping):
        return _find_tensors(source, "the dictionary")
    if not isinstance(source, str | Path):
        raise CheckpointError(f"a checkpoint is a module, a state dictionary or a path, not a {type(source).__name__}")
    path = Path(source)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint file {path}")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is damaged or not a safetensors file ({error})") from error
    if path.suffix in _TORCH_ENDINGS:
        return _find_tensors(load_torch(path), str(path))
    raise CheckpointError(f"{path} ends in {path.suffix!r}; known are .safetensors, {', '.join(_TORCH_ENDINGS)}")


def load_into(model: nn.Module, weights: Weights, origin: str) -> None:
    """Load `weights`, refusing names and shapes that do not fit. Tied weights may be stored once."""
    target = getattr(model, "_orig_mod", model)
    expected = target.state_dict()
    weights = _strip_common_prefix(expected, weights)
    # names that are tied to a stored one are not missing
    stored = {(value.data_ptr(), value.shape) for name, value in expected.items() if name in weights}
    missing = [n for n, value in expected.items() if n not in weights and (value.data_ptr(), value.shape) not in stored]
    unexpected = [name for name in weights if name not in expected]
    if missing or unexpected:
        parts = [f"lacks {missing[0]!r} ({len(missing)} such)"] if missing else []
        parts += [f"has {unexpected[0]!r}, which the model does not ({len(unexpected)} such)"] if unexpected else []
        raise CheckpointError(f"{origin} does not fit {type(target).__name__}: it {' and '.join(parts)}")
    for name, value in weights.items():
        if value.shape != expected[name].shape:
            raise CheckpointError(
                f"{origin} does not fit: {name} is {tuple(value.shape)} there and "
                f"{tuple(expected[name].shape)} in the model"
            )
    with torch.no_grad():
        for name, value in weights.items():
            expected[name].data.copy_(value)


@contextmanager
def preserve_weights(model: nn.Module) -> Iterator[dict[Any, Tensor]]:
    """Restore the parameters and buffers bit for bit afterwards; yields the copies, by `memory_of` each tensor."""
    tensors = [*model.parameters(), *model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield {memory_of(tensor): copy for tensor, copy in zip(tensors, copies, strict=True) if tensor.numel()}
    finally:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.data.copy_(copy)


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """A key that is equal for two views of the same entries."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def span_of(tensor: Tensor) -> int:
    """Entries from the tensor's first to its last in memory, gaps included."""
    return sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def overlapping(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Names of tensors that share memory: each tensor with the one that ends last of those that start before it."""
    starts = [(str(tensor.device), tensor.data_ptr(), name) for name, tensor in tensors.items()]
    last: tuple[str, int, str] | None = None
    for device, start, name in sorted(starts):
        end = start + span_of(tensors[name]) * tensors[name].element_size()
        if last is not None and last[0] == device and start < last[1]:
            yield last[2], name
        if last is None or last[0] != device or end > last[1]:
            last = device, end, name


def load_torch(path: Path) -> Any:
    """The contents of a torch file, memory-mapped if possible, without running code from it."""
    try:
        # files older than torch 1.6 are not archives and cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # bytes that are not a torch file can fail in any way
        pickled = isinstance(error, pickle.UnpicklingError)
        if pickled and "GLOBAL" in str(error):
            raise CheckpointError(
                f"{path} holds more than weights, and loading that could run code from the file. Save "
                "model.state_dict(), or convert the file to safetensors where you trust it."
            ) from error
        # torch's own message advises to run the file's code
        reason = "no torch archive" if pickled else (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged or not a torch file ({reason})") from error


def _find_tensors(body: Any, origin: str) -> dict[str, Tensor]:
    while isinstance(body, Mapping):
        if body and all(isinstance(value, Tensor) for value in body.values()):
            return dict(body)
        body = next((body[key] for key in _STATE_KEYS if isinstance(body.get(key), Mapping)), None)
    raise CheckpointError(
        f"{origin} holds no state dictionary: looked for tensors at the top and under {', '.join(_STATE_KEYS)}"
    )


def _strip_common_prefix(expected: Weights, weights: Weights) -> Weights:
    """Remove `module.`, `model.` or `_orig_mod.`, one or several, if wrappers have put it in front of every name."""
    if any(name in expected for name in weights):
        return weights
    stripped = dict(weights)
    while prefix := next((p for p in _WRAPPERS if stripped and all(name.startswith(p) for name in stripped)), None):
        stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
        if any(name in expected for name in stripped):
            return stripped
    return weights
