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
_INSIDE = ("state_dict", "model_state_dict", "model", "module", "weights")
_WRAPPERS = ("module.", "_orig_mod.", "model.")
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit; the message says why and what to do."""


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
    """Load `weights`, refusing by name what does not fit. Tied weights may be stored once."""
    weights = _strip_common_prefix(model, weights)
    target = getattr(model, "_orig_mod", model)
    expected = target.state_dict()
    missing = [name for name in expected if name not in weights and not _tied(expected, name, weights)]
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
    """The caller's parameters and buffers, put back bit for bit.

    Holds one copy of them meanwhile, and gives it, by the memory that each tensor lies in.
    """
    tensors = [*model.parameters(), *model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield {memory_of(tensor): copy for tensor, copy in zip(tensors, copies, strict=True) if tensor.numel()}
    finally:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.data.copy_(copy)


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """What two views of the same entries have in common."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def load_torch(path: Path) -> Any:
    """What a torch file holds, mapped where it can be, with no code of it run."""
    try:
        # files older than torch 1.6 are no archives and cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # bytes that are no torch file fail in whatever way they are misread
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise CheckpointError(
                f"{path} holds more than weights, and loading that could run code from the file. Save "
                "model.state_dict(), or convert the file to safetensors where you trust it."
            ) from error
        # torch's own words advise to run the file's code
        pickled = isinstance(error, pickle.UnpicklingError)
        reason = "no torch archive" if pickled else (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged or not a torch file ({reason})") from error


def _find_tensors(body: Any, origin: str) -> dict[str, Tensor]:
    while isinstance(body, Mapping):
        if body and all(isinstance(value, Tensor) for value in body.values()):
            return dict(body)
        inner = next((body[key] for key in _INSIDE if isinstance(body.get(key), Mapping)), None)
        if inner is None:
            break
        body = inner
    raise CheckpointError(
        f"{origin} holds no state dictionary: looked for tensors at the top and under {', '.join(_INSIDE)}"
    )


def _strip_common_prefix(model: nn.Module, weights: Weights) -> Weights:
    """`module.`, `model.` or `_orig_mod.` in front of every name, left by wrappers (or several) when it was saved."""
    expected = getattr(model, "_orig_mod", model).state_dict()
    if any(name in expected for name in weights):
        return weights
    stripped = dict(weights)
    while prefix := next((p for p in _WRAPPERS if stripped and all(name.startswith(p) for name in stripped)), None):
        stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
        if any(name in expected for name in stripped):
            return stripped
    return weights


def _tied(expected: Weights, name: str, weights: Weights) -> bool:
    mine = expected[name]
    return any(
        other in weights and value.data_ptr() == mine.data_ptr() and value.shape == mine.shape
        for other, value in expected.items()
        if other != name
    )
