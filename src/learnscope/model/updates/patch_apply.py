"""Applying a patch: to a live module in place, to a state dictionary, or from file to file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from learnscope.model.updates.patch_file import PatchError, PatchFile, fingerprint, unshared
from learnscope.model.updates.patch_info import TensorChange
from learnscope.model.updates.patch_write import check_module, contents, put, write_in_place
from learnscope.model.weights.lazy import (
    SafetensorsFile,
    check_storable,
    dtype_name,
    hashing,
    identities,
    on_host,
    open_weights,
    unwrapped,
)
from learnscope.store.files import write_atomically

T = TypeVar("T")
Progress = Callable[[int, int], None]


@overload
def apply_patch(
    target: nn.Module, patch: str | Path, out: None = None, *, verify: bool = True, progress: Progress | None = None
) -> nn.Module: ...
@overload
def apply_patch(
    target: Mapping[str, Any], patch: str | Path, out: None = None,
    *, verify: bool = True, progress: Progress | None = None,
) -> dict[str, Tensor]: ...  # fmt: skip
@overload
def apply_patch(
    target: str | Path, patch: str | Path, out: str | Path, *, verify: bool = True, progress: Progress | None = None
) -> Path: ...
def apply_patch(
    target: Any, patch: str | Path, out: str | Path | None = None,
    *, verify: bool = True, progress: Progress | None = None,
) -> Any:  # fmt: skip
    """Turn `target`, the checkpoint that the patch was made from, into the one it was made for, bit for bit.

    - A module is changed in place and returned; parameters keep their identity and the optimizer its state. Either
      all of it is written or nothing, also after an error; the values written over are kept on the host meanwhile.
    - Of a state dictionary a new one is returned, which shares the unchanged tensors.
    - Of a file, `out` is written as safetensors, whole or not at all, and returned. Changed tensors are held in memory.

    `verify` refuses a damaged patch and a target that is not the patch's base, by name, before anything is written: it
    reads the target and the patch once, with SHA-256 at some 1.5 GB/s a core (weights on an accelerator pass through
    the host). Without, only names, dtypes, shapes and positions are checked. `progress(done, total)` is called for each
    tensor that is checked and for each that is made.
    """
    if isinstance(target, str | Path) != (out is not None):
        raise PatchError(
            "out= says where the result of patching a file goes: give it with a file, and only then"
            if out is not None
            else f"say where the result goes: apply_patch({str(target)!r}, patch, out='new.safetensors')"
        )
    if out is not None:
        _check_out(Path(out), Path(patch))
    with PatchFile(Path(patch)) as file, open_weights(target, _a_name(file)) as weights:
        check_storable(weights)
        changes = _matched(file, weights)
        if verify:
            file.check_seal()
            _check_base(file, weights, changes, progress)
        if isinstance(target, nn.Module):
            check_module(file, unwrapped(target), weights, changes)
            write_in_place(file, weights, changes)
            return target
        made = _result(file, weights, changes, progress)
        if out is None:
            return made
        _write_file(Path(out), made, weights)
        return Path(out)


def _a_name(file: PatchFile) -> str:
    return next((change.name for change in file.info.table if change.how != "added"), "")


def _check_out(out: Path, patch: Path) -> None:
    if out.suffix != ".safetensors":
        raise PatchError(f"the result is written as safetensors: name it {out.with_suffix('.safetensors')}")
    if out.resolve() == patch.resolve():
        raise PatchError(f"the result would overwrite the patch {patch}: name another file")


def _matched(file: PatchFile, weights: Mapping[str, Tensor]) -> dict[str, TensorChange]:
    """For each name of the target what the patch does to it; refuses a target of another structure."""
    patch, known = file.info, identities(weights)
    found: dict[str, TensorChange] = {}
    for change in patch.table:
        present = [name for name in change.names if name in weights]
        if change.how == "added" and present:
            raise _wrong(file, f"it has {present[0]!r} already, which the patch adds")
        if change.how != "added" and not present:
            raise _wrong(file, f"it lacks {change.name!r}")
        for name in present:
            tensor = weights[name]
            if dtype_name(tensor) != change.dtype or tuple(tensor.shape) != change.shape:
                here, there = f"{dtype_name(tensor)} {list(tensor.shape)}", f"{change.dtype} {list(change.shape)}"
                raise _wrong(file, f"{name!r} is {here}, and {there} in the patch's base")
            found[name] = change
    twins = {known[name]: change for name, change in found.items()}
    for name in weights:
        if name not in found and known[name] in twins:
            found[name] = twins[known[name]]
        elif name not in found and not patch.parameters_only:
            raise _wrong(file, f"it has {name!r}, which the patch's base has not")
    return found


def _check_base(
    file: PatchFile, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange], progress: Progress | None
) -> None:
    """Refuse a target of which a tensor has another digest than in the patch's base."""
    if file.info.base is None:
        raise PatchError(
            f"{file.info.path} was made with verify=False and does not know its base: apply it with verify=False, or "
            "make it again"
        )
    known = identities(weights)
    digests: dict[Any, str] = {}
    here: dict[str, str | None] = {}
    wrong = []
    with hashing() as digest:
        for name, change in _reported(changes.items(), len(changes), progress):
            if known[name] not in digests:
                digests[known[name]] = digest(weights[name])
            here[change.name] = digests[known[name]]
            if here[change.name] != change.before:
                wrong.append(name)
    if wrong and fingerprint(here) == file.info.result:
        raise _wrong(file, "it holds what the patch makes already", "It needs no patching.")
    if wrong:
        raise _wrong(file, f"{wrong[0]!r} has other values ({len(wrong)} of {len(changes)} tensors have)")


def _reported(items: Iterable[T], total: int, progress: Progress | None) -> Iterator[T]:
    for done, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(done, total)


def _wrong(file: PatchFile, reason: str, cure: str = "") -> PatchError:
    cure = cure or "Apply patches in the order in which they were made, or start again from the full checkpoint."
    return PatchError(f"this is not the base of the patch {file.info.path.name}: {reason}. {cure} Nothing was changed.")


def _result(
    file: PatchFile, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange], progress: Progress | None
) -> dict[str, Tensor]:
    """All tensors of the new checkpoint by name; names that were tied and change alike stay tied."""
    known = identities(weights)
    fresh: dict[Any, Tensor] = {}
    made: dict[str, Tensor] = {}
    for name in _reported(weights, len(weights), progress):
        change = changes.get(name)
        if change is None or change.how == "same":
            made[name] = weights[name]
        elif change.how != "removed":
            key = (known[name], change.name)
            if key not in fresh:
                fresh[key] = _fresh(file, weights[name], change)
            made[name] = fresh[key]
    for change in file.info.table:
        if change.how == "added":
            made |= dict.fromkeys(change.names, file.tensor("whole", change).clone())
    return made


def _fresh(file: PatchFile, old: Tensor, change: TensorChange) -> Tensor:
    if change.how == "replaced":
        return file.tensor("whole", change).clone().to(old.device)
    new = old.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    put(new, *contents(file, change, new))
    return new


def _write_file(out: Path, made: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
    """Tied tensors under one name, the others noted in the metadata, as `safetensors.torch.save_model` does it."""
    metadata = base.metadata if isinstance(base, SafetensorsFile) else {"format": "pt"}
    first: dict[Any, str] = {}
    for name, tensor in made.items():
        kept = first.setdefault(_identity(name, tensor), name)
        if kept != name:
            metadata[name] = kept
    stored = unshared({name: on_host(made[name]) for name in first.values()})
    write_atomically(out, lambda temporary: save_file(stored, temporary, metadata=metadata))


def _identity(name: str, tensor: Tensor) -> Any:
    return identities({name: tensor})[name]
