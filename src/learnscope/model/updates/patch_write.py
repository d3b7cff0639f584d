"""Writing a patch into tensors, and into a live module as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from learnscope.model.updates.patch_file import PatchError, PatchFile
from learnscope.model.updates.patch_info import TensorChange
from learnscope.model.weights.checkpoint import overlapping
from learnscope.model.weights.lazy import bits, dtype_name, identities
from learnscope.tensor.updates import gaps


def check_module(
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
def write_in_place(file: PatchFile, weights: Mapping[str, Tensor], changes: Mapping[str, TensorChange]) -> None:
    """Write through `.data`, so that a pending backward still works; after an error, everything is restored."""
    keys = identities(weights)
    distinct = {keys[name]: (weights[name].data, change) for name, change in changes.items() if change.how != "same"}
    overwritten: list[tuple[Tensor, TensorChange, Tensor]] = []
    try:
        for tensor, change in distinct.values():
            places, values = contents(file, change, tensor)
            flat = bits(tensor)
            overwritten.append((tensor, change, (flat.clone() if places is None else flat.take(places)).cpu()))
            put(tensor, places, values)
    except BaseException:
        for tensor, change, values in reversed(overwritten):
            put(tensor, contents(file, change, tensor)[0], values)
        raise
    finally:
        torch.clear_autocast_cache()  # autocast would go on using its casts of the old weights


def contents(file: PatchFile, change: TensorChange, tensor: Tensor) -> tuple[Tensor | None, Tensor]:
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


def put(tensor: Tensor, places: Tensor | None, values: Tensor) -> None:
    """Write bits, in row-major order for any strides."""
    values = values.to(tensor.device)
    if places is None:
        bits(tensor).copy_(values)
    else:
        bits(tensor).put_(places, values)
