"""Applying a patch: to a live module in place, to a state dictionary, or from file to file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from learnscope.model.updates.patch_info import PatchError, PatchFile, Progress, TensorChange, fingerprint, reported
from learnscope.model.weights.checkpoint import overlapping
from learnscope.model.weights.lazy import (
    SafetensorsFile,
    bits,
    check_storable,
    dtype_name,
    hashing,
    identities,
    on_host,
    open_weights,
    unwrapped,
)
from learnscope.model.weights.sealed import unshared
from learnscope.store.files import write_atomically
from learnscope.tensor.updates import gaps


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
    """Turn `target`, the checkpoint that the patch was made from, into the new checkpoint, bit for bit.

    - A module is changed in place and returned; parameters keep their identity and the optimizer its state. Either
      everything is written or nothing, also after an error; overwritten values are kept on the host meanwhile.
    - For a state dictionary a new one is returned, which shares the unchanged tensors.
    - For a file `out` is written as safetensors, whole or not at all, and returned. Changed tensors are held in memory.

    `verify` refuses a damaged patch and a target that is not the patch's base, before anything is written. It reads the
    target and the patch once, with SHA-256 at about 1.5 GB/s per core (weights on an accelerator are copied to the
    host). Without it, only names, dtypes, shapes and positions are checked. `progress(done, total)` is called for each
    tensor that is checked and for each that is built.
    """
    if isinstance(target, str | Path) != (out is not None):
        raise PatchError(
            "out= says where the result of patching a file goes: give it with a file, and only then"
            if out is not None
            else f"say where the result goes: apply_patch({str(target)!r}, patch, out='new.safetensors')"
        )
    if out is not None:
        _check_out(Path(out), Path(patch))
    with PatchFile(Path(patch)) as file, open_weights(target, file.base_name) as weights:
        check_storable(weights)
        changes = _matched(file, weights)
        if verify:
            file.check_seal()
            _check_base(file, weights, changes, progress)
        if isinstance(target, nn.Module):
            _check_module(file, unwrapped(target), weights, changes)
            _write_in_place(file, weights, changes)
            return target
        result = _result(file, weights, changes, progress)
        if out is None:
            return result
        _write_file(Path(out), result, weights)
        return Path(out)


def _check_out(out: Path, patch: Path) -> None:
    if out.suffix != ".safetensors":
        raise PatchError(f"the result is written as safetensors: name it {out.with_suffix('.safetensors')}")
    if out.resolve() == patch.resolve():
        raise PatchError(f"the result would overwrite the patch {patch}: name another file")


def _matched(file: PatchFile, weights: Mapping[str, Tensor]) -> dict[str, TensorChange]:
    """The change for each name of the target; refuses a target with other names, shapes or dtypes than the base."""
    changes: dict[str, TensorChange] = {}
    for change in file.info.table:
        present = [name for name in change.names if name in weights]
        if change.how == "added" and present:
            raise _wrong(file, f"it has {present[0]!r} already, which the patch adds")
        if change.how != "added" and not present:
            raise _wrong(file, f"it lacks {change.name!r}")
        for name in present:
            tensor = weights[name]
            if dtype_name(tensor) != change.dtype or tuple(tensor.shape) != change.shape:
                own, expected = f"{dtype_name(tensor)} {list(tensor.shape)}", f"{change.dtype} {list(change.shape)}"
                raise _wrong(file, f"{name!r} is {own}, and {expected} in the patch's base")
            changes[name] = change
    keys = identities(weights)
    tied = {keys[name]: change for name, change in changes.items()}
    for name in weights:
        if name not in changes and keys[name] in tied:
            changes[name] = tied[keys[name]]
        elif name not in changes and not file.info.parameters_only:
            raise _wrong(file, f"it has {name!r}, which the patch's base has not")
    return changes


def _check_base(
    file: PatchFile, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange], progress: Progress | None
) -> None:
    """Refuse a target if the digest of a tensor differs from that in the patch's base."""
    if file.info.base is None:
        raise PatchError(
            f"{file.info.path} was made with verify=False and does not know its base: apply it with verify=False, or "
            "make it again"
        )
    keys = identities(weights)
    digests: dict[Any, str] = {}
    target: dict[str, str | None] = {}
    wrong = []
    with hashing() as digest:
        for name, change in reported(changes.items(), len(changes), progress):
            if keys[name] not in digests:
                digests[keys[name]] = digest(weights[name])
            target[change.name] = digests[keys[name]]
            if target[change.name] != change.before:
                wrong.append(name)
    if wrong and fingerprint(target) == file.info.result:
        raise _wrong(file, "it holds what the patch makes already", "It needs no patching.")
    if wrong:
        raise _wrong(file, f"{wrong[0]!r} has other values ({len(wrong)} of {len(changes)} tensors have)")


def _wrong(file: PatchFile, reason: str, cure: str = "") -> PatchError:
    cure = cure or "Apply patches in the order in which they were made, or start again from the full checkpoint."
    return PatchError(f"this is not the base of the patch {file.info.path.name}: {reason}. {cure} Nothing was changed.")


def _result(
    file: PatchFile, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange], progress: Progress | None
) -> dict[str, Tensor]:
    """All tensors of the new checkpoint by name; tied names that change in the same way stay tied."""
    keys = identities(weights)
    changed: dict[Any, Tensor] = {}
    result: dict[str, Tensor] = {}
    for name in reported(weights, len(weights), progress):
        change = changes.get(name)
        if change is None or change.how == "same":
            result[name] = weights[name]
        elif change.how != "removed":
            key, old = (keys[name], change.name), weights[name]
            if key not in changed and change.how == "replaced":
                changed[key] = file.tensor("whole", change).clone().to(old.device)
            elif key not in changed:
                new = old.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                _put(new, *_contents(file, change, new))
                changed[key] = new
            result[name] = changed[key]
    for change in file.info.table:
        if change.how == "added":
            result |= dict.fromkeys(change.names, file.tensor("whole", change).clone())
    return result


def _write_file(out: Path, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
    """Store tied tensors under one name and the other names in the metadata, like `safetensors.torch.save_model`."""
    metadata = base.metadata if isinstance(base, SafetensorsFile) else {"format": "pt"}
    first: dict[Any, str] = {}
    for name, key in identities(tensors).items():
        if first.setdefault(key, name) != name:
            metadata[name] = first[key]
    stored = unshared({name: on_host(tensors[name]) for name in first.values()})
    write_atomically(out, lambda temporary: save_file(stored, temporary, metadata=metadata))


def _check_module(
    file: PatchFile, model: nn.Module, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange]
) -> None:
    """Refuse a patch that cannot be written into the module's own tensors."""
    for change in file.info.table:
        if change.how in ("added", "removed", "replaced"):
            raise PatchError(
                f"{change.name!r} is {change.how} by the patch, which cannot be done to a module in place. Apply it to "
                "model.state_dict() and load the result into a model of the new shape. Nothing was changed."
            )
    cure = "Apply the patch to model.state_dict() and load the result. Nothing was changed."
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    tensors = {name: weights[name] for name in changes if weights[name].numel()}
    for name, tensor in tensors.items():
        if _storage(tensor) not in own:
            raise PatchError(f"{name!r} of the state dictionary is not the module's own memory. {cure}")
    keys = identities(weights)
    for other, name in overlapping(tensors):
        untouched = changes[name].how == changes[other].how == "same"
        tied = keys[name] == keys[other] and _alike(file, changes[name], changes[other])
        if not untouched and not tied:
            raise PatchError(f"{name!r} and {other!r} share memory in the module but not in the patch. {cure}")


def _alike(file: PatchFile, first: TensorChange, second: TensorChange) -> bool:
    """Whether two changes write the same values."""
    if first is second:
        return True
    parts = {"sparse": ("gaps", "values"), "dense": ("whole",)}.get(first.how, ())
    return first.how == second.how and all(
        torch.equal(bits(file.tensor(part, first)), bits(file.tensor(part, second))) for part in parts
    )


def _storage(tensor: Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


@torch.no_grad()
def _write_in_place(file: PatchFile, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange]) -> None:
    """Write through `.data`, so that a pending backward still works; after an error, everything is restored."""
    keys = identities(weights)
    distinct = {keys[name]: (weights[name].data, change) for name, change in changes.items() if change.how != "same"}
    overwritten: list[tuple[Tensor, TensorChange, Tensor]] = []
    try:
        for tensor, change in distinct.values():
            places, values = _contents(file, change, tensor)
            flat = bits(tensor)
            overwritten.append((tensor, change, (flat.clone() if places is None else flat.take(places)).cpu()))
            _put(tensor, places, values)
    except BaseException:
        for tensor, change, values in reversed(overwritten):
            _put(tensor, _contents(file, change, tensor)[0], values)
        raise
    finally:
        torch.clear_autocast_cache()  # autocast would go on using its casts of the old weights


def _contents(file: PatchFile, change: TensorChange, tensor: Tensor) -> tuple[Tensor | None, Tensor]:
    """The positions that a change writes (None: all) and the bits it writes; refuses those that do not fit."""
    values = file.tensor("whole" if change.how == "dense" else "values", change)
    if values.dtype != tensor.dtype:
        raise file.damaged(f"the values of {change.name} are {dtype_name(values)}")
    if change.how == "dense":
        if values.shape != tensor.shape:
            raise file.damaged(f"the values of {change.name} have shape {list(values.shape)}")
        return None, bits(values)
    encoded = file.tensor("gaps", change)
    if dtype_name(encoded) not in ("uint8", "uint16", "uint32") or encoded.shape != values.shape or encoded.dim() != 1:
        raise file.damaged(f"positions and values of {change.name} do not agree")
    places = gaps.decode(encoded.numpy())
    if len(places) and places[-1] >= tensor.numel():
        raise file.damaged(f"{change.name} has no entry {places[-1]}")
    return torch.from_numpy(places).to(tensor.device), bits(values)


def _put(tensor: Tensor, places: Tensor | None, values: Tensor) -> None:
    """Write bits, in row-major order for any strides."""
    values = values.to(tensor.device)
    if places is None:
        bits(tensor).copy_(values)
    else:
        bits(tensor).put_(places, values)
