"""Stored weights: from one file or several, under any wrappers' names."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from learnscope.model.bits.packed import load_packed
from learnscope.model.guard import preserve_rng
from learnscope.model.weights.checkpoint import CheckpointError, load_into, memory_of, read_weights
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.hushed import hushed, no_bars

WRAPPERS = ("module.", "_orig_mod.", "model.")
_COMPUTED = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq|embeddings\.position_ids)$")
"""Buffers that older versions of transformers saved and newer ones compute."""
_AGAIN = "save it again, or take another copy of it"


def read_files(files: list[Path]) -> dict[str, Tensor]:
    """The tensors of all files; none may be in two of them."""
    weights: dict[str, Tensor] = {}
    for path in files:
        try:
            part = read_weights(path)
        except CheckpointError as error:
            cure = f": {_AGAIN}" if "damaged" in str(error) else ""
            raise PosttrainError(f"{error}{cure}") from None
        if twice := next((name for name in part if name in weights), None):
            raise PosttrainError(
                f"{twice!r} is in {path} and in another file beside it: name the one file that is meant, or leave "
                "only those of one model in the folder"
            )
        weights |= part
    return weights


def files_of(folder: Path) -> list[Path]:
    """The files of a folder's weights: those of its index, all safetensors, or torch files of the usual name."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            return _shards(folder / index)
    # the usual name first, as in transformers: other files may be an adapter or a packed copy
    patterns = ("model.safetensors", "*.safetensors", "pytorch_model*.bin")
    return next((files for pattern in patterns if (files := sorted(folder.glob(pattern)))), [])


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise PosttrainError(f"{index} is damaged: {_AGAIN}") from None
    files = [index.parent / Path(str(name)).name for name in names]  # an index names neighbours only
    if missing := [path.name for path in files if not path.is_file()]:
        raise PosttrainError(
            f"{index.parent} lacks {len(missing)} of the {len(files)} files of its weights: first {missing[0]}; copy it"
        )
    return files


def unwrappings(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The weights as they are, and without each prefix that wrappers put before all names."""
    weights = dict(weights)
    yield weights
    while prefix := next((p for p in WRAPPERS if weights and all(name.startswith(p) for name in weights)), None):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
        yield weights


def named_as(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the model's names: without wrappers, and with or without the prefix of its body."""
    expected = model.state_dict()
    body = f"{getattr(model, 'base_model_prefix', '')}."

    def renamed(name: str, weights: Mapping[str, Tensor]) -> str:
        if name in expected:
            return name
        others = (f"{body}{name}", name.removeprefix(body))
        return next((other for other in others if other in expected and other not in weights), name)

    candidates = [{renamed(name, each): value for name, value in each.items()} for each in unwrappings(weights)]
    best = max(candidates, key=lambda each: sum(name in expected for name in each))
    return {name: value for name, value in best.items() if name in expected or not _COMPUTED.search(name)}


def converted(model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The weights with the names and layouts of this version of transformers; None if it cannot convert them."""
    for unwrapped in unwrappings(weights):
        with hushed(), no_bars(), preserve_rng():  # what is missing would be drawn at random
            try:
                loaded, problems = type(model).from_pretrained(
                    None, config=copy.deepcopy(model.config), state_dict=unwrapped, dtype=_widest(weights),
                    ignore_mismatched_sizes=True, output_loading_info=True,
                )  # fmt: skip
            except (RuntimeError, ValueError, OSError):  # the caller names what does not fit
                continue
        if not any(problems.values()):
            return dict(loaded.state_dict())
    return None


def load_stored(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> list[str]:
    """Load weights into the model, in the precision they are stored in; returns notes about them."""
    expected, stored = model.state_dict(), weights
    weights = named_as(model, stored)
    if not weights.keys() <= expected.keys():
        weights = converted(model, stored) or weights
    for name, value in weights.items():
        if name in expected and expected[name].is_floating_point() and not value.is_floating_point():
            raise PosttrainError(
                f"{origin}: {name} is stored as {_word(value.dtype)}, which another package quantised: load the model "
                "with that package and pass it, or save it without quantisation"
            )
    notes = _set_precision(model, weights, origin)
    _refuse_torn_ties(model.state_dict(), weights, origin)
    try:
        load_into(model, weights, origin)
    except CheckpointError as error:
        raise PosttrainError(str(error)) from None
    return notes + _not_finite(weights, origin)


def packed_tensors(path: Path) -> dict[str, Tensor] | None:
    """Names, shapes and precisions in a file of `model.bits.packed`, without values; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("learnscope", "{}"))
        if not isinstance(header, dict) or header.get("kind") != "packed":
            return None
        return {
            row["name"]: torch.empty(row["shape"], dtype=getattr(torch, row["dtype"]), device="meta")
            for row in header["tensors"]
        }
    except (SafetensorError, OSError, ValueError):  # the reader of plain files reports it
        return None
    except (KeyError, TypeError, AttributeError, RuntimeError):
        raise PosttrainError(f"{path} is damaged: {_AGAIN}") from None


def unpack_into(model: nn.Module, packed: Mapping[str, Tensor], path: Path) -> list[str]:
    """Load the values of packed weights into the model; returns notes about them."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in packed:
            tensor.data = tensor.data.to(packed[name].dtype)
    try:
        load_packed(path, model)
    except CheckpointError as error:
        raise PosttrainError(str(error)) from None
    return [f"{path} is packed: the model computes with what its few bits stand for"]


def _set_precision(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> list[str]:
    """Convert parameters and saved buffers to the widest stored precision; computed buffers stay."""
    kinds = {value.dtype for value in weights.values() if value.is_floating_point()}
    widest = _widest(weights)
    saved = model.state_dict().keys()
    for tensor in [*model.parameters(), *(value for name, value in model.named_buffers() if name in saved)]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(widest)
    if len(kinds) < 2:
        return []
    return [f"{origin} holds {', '.join(sorted(map(_word, kinds)))}: all of it is computed in {_word(widest)}"]


def _refuse_torn_ties(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], origin: str) -> None:
    """Refuse two different stored tensors for one tensor of the model: the second would silently replace the first."""
    first: dict[object, str] = {}
    for name, tensor in expected.items():
        if name not in weights or not tensor.numel():
            continue
        other = first.setdefault(memory_of(tensor), name)
        if other == name:
            continue
        a, b = weights[other], weights[name]
        same = a.shape == b.shape and a.dtype == b.dtype
        if not same or not torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
            raise PosttrainError(
                f"{origin} has values for {name} that differ from those of {other}, and the model's configuration ties "
                "the two: set tie_word_embeddings to false in it"
            )


def _not_finite(weights: Mapping[str, Tensor], origin: str) -> list[str]:
    counted = {
        name: count
        for name, value in weights.items()
        if value.is_floating_point() and (count := value.numel() - int(torch.isfinite(value).sum()))
    }
    if not counted:
        return []
    name, count = next(iter(counted.items()))
    more = f", and {len(counted) - 1} more such tensors" if len(counted) > 1 else ""
    return [f"{origin} holds weights that are not finite: {count:,} of {weights[name].numel():,} in {name}{more}"]


def _widest(weights: Mapping[str, Tensor]) -> torch.dtype:
    kinds = [value.dtype for value in weights.values() if value.is_floating_point()]
    return functools.reduce(torch.promote_types, kinds, kinds[0] if kinds else torch.float32)


def _word(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
