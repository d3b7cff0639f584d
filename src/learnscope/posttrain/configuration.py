"""The configuration of stored weights, found or inferred, and a model of its architecture without weights."""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from learnscope.model.guard import preserve_rng
from learnscope.model.weights.checkpoint import load_torch
from learnscope.options import nearest
from learnscope.posttrain.errors import PosttrainError, PosttrainWarning
from learnscope.posttrain.stored import unwrappings
from learnscope.sources.hushed import hushed

IN_FILE = ("config", "model_config", "hparams")
HEAD = 64
"""Entries of an attention head in every published GPT-2."""
HEADS = ("LMHeadModel", "ForCausalLM", "ForSequenceClassification", "ForImageClassification")
_GPT2 = {"n_embd", "n_layer", "n_head"}
_BLOCK = re.compile(r"^h\.(\d+)\.attn\.c_attn\.weight$")
_CURE = "load it with the package that knows it and pass the model itself to ModelAnalyzer"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fields, where they were found, and what had to be assumed."""

    fields: dict[str, Any]
    where: str
    notes: tuple[str, ...] = ()


def find_configuration(path: Path, config_path: Path | None, weights: Mapping[str, Tensor]) -> Configuration:
    """From `config_path`, from beside the weights, from inside their file, or from the shapes of a GPT-2."""
    shapes = _gpt2_shapes(weights)
    if config_path is not None:
        return _from_file(config_path / "config.json" if config_path.is_dir() else config_path, shapes)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if beside.is_file():
        return _from_file(beside, shapes)
    for key, fields in (_in_file(path) if path.is_file() else {}).items():
        if "model_type" in fields or (shapes is not None and fields.keys() & _GPT2):
            return _completed(fields, f"{key!r} in {path}", shapes)
    if shapes is not None:
        return _completed({}, f"the shapes in {path}", shapes)
    raise PosttrainError(
        f"{path} has no configuration: there is no {beside}, none in the file, and the names of its tensors are not "
        "GPT-2's; give one with config_path= (a config.json), or pass the model itself to ModelAnalyzer"
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
    """With a model type; fields that a GPT-2's configuration lacks are read off the shapes."""
    if "model_type" in fields:
        return Configuration(fields, where)
    if shapes is None or (fields and not fields.keys() & _GPT2):
        raise PosttrainError(f"{where} has no model_type: add it, e.g. \"model_type\": \"llama\"")  # fmt: skip
    # only fields that GPT-2 knows are taken from a configuration of another form
    known = {name: fields[name] for name in (*shapes, "n_head", "activation_function") if name in fields}
    full: dict[str, Any] = {"model_type": "gpt2", **shapes, **known}
    notes = [f"taken for a GPT-2, by the names of its tensors; the rest of its configuration is from {where}"]
    if "n_head" not in full:
        width = shapes["n_embd"]
        if width % HEAD:
            raise PosttrainError(
                f"{where}: the number of attention heads cannot be read off them, and {width} is no multiple of the "
                f"usual {HEAD} entries a head; give the configuration with config_path=, with n_head in it"
            )
        full["n_head"] = width // HEAD
        notes.append(
            f"n_head={full['n_head']} is assumed ({HEAD} entries a head), since shapes do not tell it; if it is not "
            "so, give the configuration with config_path="
        )
        warnings.warn(notes[-1], PosttrainWarning, stacklevel=2)
    # the published GPT-2's, which smaller vocabularies do not have
    full |= {"bos_token_id": None, "eos_token_id": None} if shapes["vocab_size"] <= 50256 else {}
    return Configuration(full, where, tuple(notes))


def _gpt2_shapes(weights: Mapping[str, Tensor]) -> dict[str, int] | None:
    """The fields that the shapes of a GPT-2 give; None if the names are not GPT-2's."""
    for unwrapped in unwrappings(weights):
        tensors = {name.removeprefix("transformer."): value for name, value in unwrapped.items()}
        layers = [int(match[1]) for name in tensors if (match := _BLOCK.match(name))]
        tokens, positions, inner = (
            value if (value := tensors.get(name)) is not None and value.ndim == 2 else None
            for name in ("wte.weight", "wpe.weight", "h.0.mlp.c_fc.weight")
        )
        if not layers or tokens is None or positions is None:
            continue
        vocabulary, width = tokens.shape
        fields = {"vocab_size": vocabulary, "n_embd": width, "n_positions": len(positions), "n_layer": max(layers) + 1}
        if inner is not None and inner.shape[1] != 4 * width:
            fields["n_inner"] = inner.shape[1]
        return fields
    return None


def _in_file(path: Path) -> dict[str, dict[str, Any]]:
    """Configurations inside a file: dictionaries in a torch file, JSON in the header of a safetensors file."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        content: Any = {key: _parsed(text) for key, text in header.items()}
    else:
        content = load_torch(path)
    return {key: dict(content[key]) for key in IN_FILE if isinstance(content.get(key), Mapping)}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def build(configuration: Configuration) -> nn.Module:
    """The model with uninitialised weights, which all have to be loaded. No code from a file is run."""
    if importlib.util.find_spec("transformers") is None:
        raise PosttrainError(
            "models from files need the package transformers, which is not installed: pip install 'learnscope[hf]'; "
            "or pass the model itself to ModelAnalyzer"
        )
    from transformers.initialization import no_init_weights  # transformers sets its own level when it is imported

    with hushed():
        config = _config(configuration)
        make = _model_class(config, configuration)
        try:
            with no_init_weights(), preserve_rng():
                model: Any = make(config)
            model.tie_weights()
        except Exception as error:  # noqa: BLE001  (fields that contradict each other fail anywhere in the model)
            raise PosttrainError(
                f"{configuration.where} describes no {make.__name__} that can be made: {_reason(error)}"
            ) from None
    module: nn.Module = model.eval()
    return module


def _config(configuration: Configuration) -> Any:
    from transformers import CONFIG_MAPPING, __version__

    fields, where = configuration.fields, configuration.where
    kind, known = fields["model_type"], list(CONFIG_MAPPING.keys())
    if kind not in known:
        near = nearest(kind, known)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise PosttrainError(
            f"{where}: transformers {__version__} has no model type {kind!r}{hint}, and code that comes with a model "
            f"is never run: {_CURE}"
        )
    if fields.get("quantization_config"):
        raise PosttrainError(
            f"{where} says that the weights are quantised already (quantization_config): {_CURE}, or save it without"
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # noqa: BLE001  (each configuration checks its fields in its own way)
        raise PosttrainError(f"{where} is no configuration of a {kind}: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """The whole message on one line: the check of a field names the field first, and what is wrong with it after."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _model_class(config: Any, configuration: Configuration) -> Any:
    """The class that `architectures` names; the causal language model if it names none, or a body without a head."""
    import transformers

    listed = configuration.fields.get("architectures") or ()
    name = next(iter([listed] if isinstance(listed, str) else listed), None)
    if name is not None and not isinstance(name, str):
        raise PosttrainError(
            f"{configuration.where}: architectures names {name!r}, where the name of a class is needed"
        )
    if name is None or (name.endswith("Model") and not name.endswith(HEADS)):
        model_class = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    else:
        model_class = getattr(transformers, name, None) if name.endswith(HEADS) else None
    if not isinstance(model_class, type) or not issubclass(model_class, transformers.PreTrainedModel):
        what = name or f"model type {config.model_type!r}"
        raise PosttrainError(
            f"{configuration.where}: {what} is none of the models that are loaded from files (causal language models, "
            f"sequence and image classifiers of transformers): {_CURE}"
        )
    return model_class
