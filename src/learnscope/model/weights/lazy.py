"""Reading weights one tensor at a time: tied names, bits and digests of tensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from learnscope.model.weights.checkpoint import CheckpointError, memory_of, read_weights

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_STORABLE = {
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float64", "float32", "float16", "bfloat16", "complex64",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
}  # fmt: skip
"""The dtypes that safetensors can store."""
_PIECE = 1 << 24
"""Bytes that one thread hashes at a time."""


class SafetensorsFile(Mapping[str, Tensor]):
    """The tensors of a file below a prefix, read when asked for."""

    def __init__(self, path: Path, prefix: str = "", *, parameters_only: bool = False) -> None:
        self.path, self.prefix = path, prefix
        self.parameters_only = parameters_only
        """Whether the file was written without anything but floating-point parameters."""
        try:
            self._file = cast(Any, safe_open(path, framework="pt"))  # its stubs have no types
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or not a safetensors file ({error})") from error
        stored: list[str] = self._file.keys()
        self._names = dict.fromkeys(name.removeprefix(prefix) for name in stored if name.startswith(prefix))

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._file.metadata() or {})

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return cast(Tensor, self._file.get_tensor(self.prefix + name))

    def __contains__(self, name: object) -> bool:  # the inherited one would read the tensor
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)


@contextmanager
def open_weights(source: Any, expected: str = "") -> Iterator[Mapping[str, Tensor]]:
    """Like `read_weights`, but a `.safetensors` file is not loaded at once.

    Names of a module are without wrappers, unless the `expected` name has them.
    """
    if isinstance(source, str | Path) and Path(source).suffix == ".safetensors" and Path(source).is_file():
        source = SafetensorsFile(Path(source))
    if isinstance(source, SafetensorsFile):
        with source:
            yield source
    elif isinstance(source, nn.Module):
        weights = read_weights(source)
        yield weights if expected in weights else read_weights(unwrapped(source))
    else:
        yield read_weights(source)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's, DistributedDataParallel's and DataParallel's wrappers."""
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = getattr(model, "module" if parallel else "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def identities(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """For each name a key of its tensor; tied names have the same key."""
    if isinstance(weights, SafetensorsFile):
        return {name: name for name in weights}
    # empty tensors have no memory to share
    return {name: memory_of(tensor) if tensor.numel() else name for name, tensor in weights.items()}


def check_storable(weights: Mapping[str, Tensor]) -> None:
    """Refuse tensors that cannot be stored as plain bytes, by name."""
    if isinstance(weights, SafetensorsFile):
        return
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name} is a {type(tensor).__name__}, not a tensor: leave it out of the state dict")
        if hasattr(tensor, "full_tensor"):
            raise CheckpointError(
                f"{name} is spread over processes: gather it first, get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict"
            )
        if is_lazy(tensor):
            raise CheckpointError(f"{name} is not initialised yet: run one batch through the model first")
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device and holds no values: load the model first")
        if tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
            kind = type(tensor).__name__ if tensor.layout == torch.strided else str(tensor.layout)
            raise CheckpointError(f"{name} is a {kind}, which has no plain bytes: convert it to a dense tensor first")
        if dtype_name(tensor) not in _STORABLE:
            raise CheckpointError(f"{name} is {dtype_name(tensor)}, which safetensors cannot store: convert it first")


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def on_host(tensor: Tensor) -> Tensor:
    """The tensor on the CPU and contiguous; the tensor itself if it already is."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def bits(tensor: Tensor) -> Tensor:
    """The same memory viewed as integers, to compare bits whatever they encode."""
    return tensor.detach().view(_BITS[tensor.element_size()])


@contextmanager
def hashing() -> Iterator[Callable[[Tensor], str]]:
    """A function from a tensor to the digest of its dtype, shape and bytes: 16 hexadecimal digits of SHA-256.

    Pieces of 16 MB are hashed separately, on up to eight threads, and their digests are hashed again.
    """
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:

        def digest(tensor: Tensor) -> str:
            # a tensor of one entry, or none, may have any stride and could not be viewed as bytes
            flat = on_host(tensor).as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
            pieces = [flat[start : start + _PIECE].data for start in range(0, len(flat), _PIECE)]
            total = hashlib.sha256(f"{dtype_name(tensor)} {list(tensor.shape)}".encode())
            for part in pool.map(hashlib.sha256, pieces) if len(pieces) > 1 else map(hashlib.sha256, pieces):
                total.update(part.digest())
            return total.hexdigest()[:16]

        yield digest
