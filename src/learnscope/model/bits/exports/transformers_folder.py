"""What folders of Hugging Face models have in common: config.json, one file of weights, the tokenizer."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from learnscope.model.bits.exports.placing import MARK
from learnscope.model.bits.exports.planning import Plan, library
from learnscope.model.bits.quantised_units import is_conv1d
from learnscope.model.bits.torchao_export import ExportError
from learnscope.model.weights.lazy import on_host
from learnscope.model.weights.sealed import unshared

WEIGHTS_FILE = "model.safetensors"


def check_pretrained(model: nn.Module, what: str) -> None:
    """Refuse a model that `from_pretrained` could not build again."""
    pretrained = library("transformers", "PreTrainedModel")
    if not isinstance(model, pretrained):
        raise ExportError(
            f"{type(model).__name__} is no model of transformers, which loads {what} folders: export it as 'packed'"
        )
    if not type(model).__module__.startswith("transformers."):
        raise ExportError(
            f"{type(model).__name__} is not of transformers itself, and code of yours is not put into a folder: export "
            "it as 'packed'"
        )


def linear_paths(plan: Plan, name: str, what: str) -> list[str]:
    """The paths of the Linear modules that hold a weight; refuses other kinds, and GPT-2's Conv1D with the reason."""
    holders = plan.holders[name]
    for path, module in holders:
        if is_conv1d(module):
            raise ExportError(
                f"{name}: {path} is a Conv1D of transformers, for which {what} has nothing: it is for Linear. Export "
                "this model as 'gguf' or 'packed', or leave its blocks out of the bits"
            )
        if not isinstance(module, nn.Linear | nn.Embedding):
            raise ExportError(
                f"{name}: {what} holds the weights of Linear, not of {type(module).__name__}; leave its unit out of "
                "the bits, or export it as 'packed'"
            )
    return [path for path, module in holders if isinstance(module, nn.Linear)]


def configuration(model: nn.Module, quantisation: Mapping[str, Any] | None, *, untied: bool) -> dict[str, Any]:
    """config.json as a dictionary; None: a folder without weights in few bits, as any other."""
    config: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))  # type: ignore[union-attr, operator]
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    if quantisation is not None:
        config["quantization_config"] = dict(quantisation)
    if untied:
        config["tie_word_embeddings"] = False
    return config


def write_folder(
    folder: Path,
    plan: Plan,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    config: Mapping[str, Any],
    format: str,
    tokenizer: Any,
) -> None:
    stored = {name: on_host(tensor) for name, tensor in unshared(tensors).items()}
    save_file(stored, folder / WEIGHTS_FILE, metadata=dict(metadata))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    generation = getattr(plan.model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    scheme = asdict(plan.scheme) | {"scale_dtype": str(plan.scheme.scale_dtype).removeprefix("torch.")}
    mark = {"kind": "export", "format": format, "bits": plan.bits, "scheme": scheme}
    (folder / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")


def load_folder(model: nn.Module, folder: Path, **options: Any) -> nn.Module:
    """The model as transformers loads it, without its progress bars."""
    with quiet_transformers():
        try:
            loaded: nn.Module = type(model).from_pretrained(folder, **options)  # type: ignore[attr-defined]
        except Exception as error:  # of other libraries: whatever it is, the file is of no use
            reason = f"{type(error).__name__}: {error}"
            raise ExportError(f"transformers could not load what was written, so it was not kept: {reason}") from error
    return loaded.eval()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    logging = library("transformers.utils.logging")
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # bars that do not ask whether they may
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
