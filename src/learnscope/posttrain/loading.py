"""A finished model from a folder, a file, the hub, or the module itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learnscope.posttrain.configuration import build, find_configuration
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.reader import load_tokenizer, tokenizer_beside
from learnscope.posttrain.stored import files_of, load_stored, packed_tensors, read_files, unpack_into
from learnscope.sources.errors import first_line
from learnscope.sources.files import near_names
from learnscope.sources.hub import hub_reason
from learnscope.sources.hushed import hushed

FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_ACCEPTED = f"a Hugging Face folder (config.json and weights) or a file ({', '.join(FILES)})"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, its tokenizer if there is one, where it came from, and notes about it."""

    model: nn.Module
    tokenizer: Any
    origin: str
    notes: tuple[str, ...] = ()


def load_model(
    path_or_model: str | Path | nn.Module,
    config_path: str | Path | None = None,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
) -> Loaded:
    """The model, ready to be examined. No code from a file is run, and the hub is not asked for what exists here.

    Args:
        path_or_model: a Hugging Face folder, a `.safetensors` file (also a packed one), a torch file with a state
            dictionary (also one under `state_dict`, `model_state_dict`, …), a name on the hub, or a module, which is
            taken as it is.
        config_path: the configuration of the weights. By default `config.json` beside them, one inside the file, or for
            GPT-2 what the shapes tell.
        tokenizer: a tokenizer, its folder or file, or "bytes"; by default the one beside the weights.
        device: where the model goes; by default it stays where it is, or on the CPU.
    """
    if isinstance(path_or_model, nn.Module):
        if config_path is not None:
            raise PosttrainError("config_path= is for weights from a file; the model that is given has its own")
        return Loaded(_on(path_or_model, device), load_tokenizer(tokenizer), type(path_or_model).__name__)
    if not isinstance(path_or_model, str | Path):
        raise PosttrainError(f"a model is a module or a path, not a {type(path_or_model).__name__}")
    path = _located(path_or_model)
    files = _files(path)
    packed = packed_tensors(files[0]) if len(files) == 1 else None
    weights = read_files(files) if packed is None else packed
    configuration = find_configuration(path, None if config_path is None else Path(config_path).expanduser(), weights)
    model: Any = build(configuration)
    try:
        notes = load_stored(model, weights, str(path)) if packed is None else unpack_into(model, packed, files[0])
    except PosttrainError as error:
        raise PosttrainError(
            f"{error} (configuration: {configuration.where}); give the configuration that the weights were saved with "
            "(config_path=)"
        ) from None
    own, problems = (load_tokenizer(tokenizer), []) if tokenizer is not None else tokenizer_beside(path)
    return Loaded(_on(model, device), own, str(path_or_model), (*configuration.notes, *notes, *problems))


def _located(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if path.exists():
        return path
    if path.suffix in FILES or str(name).startswith((".", "/", "~")) or len(path.parts) > 2:
        raise PosttrainError(f"there is no model {name}{near_names(path)}")
    small = ["*.json", "*.txt", "*.model"]
    try:
        from huggingface_hub import snapshot_download

        with hushed():
            folder = Path(snapshot_download(str(name), allow_patterns=[*small, "model*.safetensors"]))
            if not files_of(folder):
                folder = Path(snapshot_download(str(name), allow_patterns=[*small, "pytorch_model*.bin"]))
    except Exception as error:  # noqa: BLE001  (the hub, the network and the file system each raise their own)
        reason = "huggingface_hub is not installed" if isinstance(error, ImportError) else hub_reason(error)
        near = near_names(path) if path.parent.is_dir() else ""
        raise PosttrainError(f"model {str(name)!r}: there is no such file or folder here{near}, and {reason}") from None
    return folder


def _files(path: Path) -> list[Path]:
    """The files with the weights; refuses what is no model."""
    if path.is_file():
        if path.suffix not in FILES:
            raise PosttrainError(f"{path} ends in {path.suffix!r}: a model is {_ACCEPTED}")
        return [path]
    if (path / "adapter_config.json").is_file():
        raise PosttrainError(
            f"{path} holds an adapter, not a model: merge it into its base (peft: merge_and_unload) and save that, "
            "or pass the adapted model itself"
        )
    if files := files_of(path):
        return files
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        raise PosttrainError(f"{path} is an empty folder: a model is {_ACCEPTED}")
    hint = ""
    if weights := [name for name in names if name.endswith(FILES)]:
        hint = f"; name the file, {path / weights[0]}"
    elif checkpoints := [name for name in names if name.startswith("checkpoint-")]:
        hint = f"; name one of its models, {path / checkpoints[-1]}"
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    raise PosttrainError(f"{path} holds no weights of a model (it has {shown}){hint}: a model is {_ACCEPTED}")


def _on(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    if device is None:
        return model
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch's, for a device that is not there or not known
        raise PosttrainError(f"device={str(device)!r}: {first_line(error)}") from None
