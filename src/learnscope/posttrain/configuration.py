"""What kind of model stored weights belong to: its configuration, found or inferred."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from learnscope.model.weights.checkpoint import load_torch
from learnscope.posttrain.errors import PosttrainError, PosttrainWarning
from learnscope.posttrain.stored import unwrappings

INSIDE = ("config", "model_config", "hparams")
HEAD = 64
"""Entries of an attention head in every GPT-2 that was published."""
_GPT2 = {"n_embd", "n_layer", "n_head"}
_BLOCK = re.compile(r"^h\.(\d+)\.attn\.c_attn\.weight$")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fields, where they were found, and what had to be assumed."""

    fields: dict[str, Any]
    where: str
    notes: tuple[str, ...] = ()


def find_configuration(path: Path, given: Path | None, weights: Mapping[str, Tensor]) -> Configuration:
    """Of the weights at `path`: the one given, the one beside them, one in the file, or what GPT-2's shapes tell."""
    shapes = _gpt2_shapes(weights)
    if given is not None:
        return _from_file(given / "config.json" if given.is_dir() else given, shapes)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if beside.is_file():
        return _from_file(beside, shapes)
    if path.is_file():
        for key, fields in _inside(path).items():
            if "model_type" in fields or (shapes is not None and fields.keys() & _GPT2):
                return _completed(fields, f"{key!r} in {path}", shapes)
    if shapes is not None:
        return _completed({}, f"the shapes in {path}", shapes)
    raise PosttrainError(
        f"{path} has no configuration: there is no {beside}, none in the file, and the names of its tensors are not "
        "GPT-2's; give one with config_path (--config_path config.json), or pass the model itself"
    )


def _from_file(path: Path, shapes: dict[str, int] | None) -> Configuration:
    if not path.is_file():
        raise PosttrainError(f"there is no configuration {path}: name the config.json that was saved with the model")
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise PosttrainError(f"{path} is not JSON ({error}): mend it, or name another configuration") from None
    if not isinstance(fields, dict):
        raise PosttrainError(f"{path} holds a {type(fields).__name__}, where an object of named fields is needed")
    return _completed(fields, str(path), shapes)


def _completed(fields: dict[str, Any], where: str, shapes: dict[str, int] | None) -> Configuration:
    """With a model type; what GPT-2's configuration leaves open is read off the shapes."""
    if "model_type" in fields:
        return Configuration(fields, where)
    if shapes is None or (fields and not fields.keys() & _GPT2):
        raise PosttrainError(f"{where} has no model_type: add it, e.g. \"model_type\": \"llama\"")  # fmt: skip
    # what the shapes say is in the file; only fields that GPT-2 knows are taken from a configuration of another form
    known = {name: fields[name] for name in (*shapes, "n_head", "activation_function") if name in fields}
    full: dict[str, Any] = {"model_type": "gpt2", **shapes, **known}
    notes = [f"taken for a GPT-2, by the names of its tensors; the rest of its configuration is from {where}"]
    if "n_head" not in full:
        full["n_head"], said = _heads(shapes["n_embd"], where)
        notes.append(said)
        warnings.warn(said, PosttrainWarning, stacklevel=2)
    # the published GPT-2's, which smaller vocabularies do not have
    full |= {"bos_token_id": None, "eos_token_id": None} if shapes["vocab_size"] <= 50256 else {}
    return Configuration(full, where, tuple(notes))


def _heads(width: int, where: str) -> tuple[int, str]:
    cure = "give the configuration with config_path"
    if width % HEAD:
        raise PosttrainError(
            f"{where}: the number of attention heads cannot be read off them, and {width} is no multiple of the usual "
            f"{HEAD} entries a head; {cure}, with n_head in it"
        )
    heads = width // HEAD
    return (
        heads,
        f"n_head={heads} is assumed ({HEAD} entries a head), since shapes do not tell it; if it is not so, {cure}",
    )


def _gpt2_shapes(weights: Mapping[str, Tensor]) -> dict[str, int] | None:
    """The fields that tensors of GPT-2's names tell; None for other names."""
    for unwrapped in unwrappings(weights):
        found = {name.removeprefix("transformer."): value for name, value in unwrapped.items()}
        layers = [int(match[1]) for name in found if (match := _BLOCK.match(name))]
        tables = [found.get("wte.weight"), found.get("wpe.weight")]
        if not layers or any(table is None or table.ndim != 2 for table in tables):
            continue
        tokens, places = (table for table in tables if table is not None)
        fields = {"vocab_size": tokens.shape[0], "n_embd": tokens.shape[1], "n_positions": places.shape[0]}
        fields["n_layer"] = max(layers) + 1
        inner = found.get("h.0.mlp.c_fc.weight")
        if inner is not None and inner.ndim == 2 and inner.shape[1] != 4 * fields["n_embd"]:
            fields["n_inner"] = inner.shape[1]
        return fields
    return None


def _inside(path: Path) -> dict[str, dict[str, Any]]:
    """Configurations that a file carries: plain dictionaries in a torch file, JSON in the header of a safetensors."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        body: Any = {key: _parsed(text) for key, text in header.items()}
    else:
        body = load_torch(path)
    return {key: dict(body[key]) for key in INSIDE if isinstance(body.get(key), Mapping)}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
