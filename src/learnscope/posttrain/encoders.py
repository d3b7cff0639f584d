"""Encoders without a head, such as those that make embeddings of sentences: what can be told of them without labels.

An embedding is the mean of the last hidden states of a text's tokens, without padding, as sentence embeddings are
usually made. Nothing says whether it is a good one; what fewer bits do to it is how far it moves from itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.posttrain.errors import PosttrainError
from learnscope.task import HuggingFaceTask, unwrap

NOTE = (
    "an encoder without a head: its embeddings (the mean of the last hidden states) are compared with themselves, by "
    "distance and cosine, and there is neither a loss nor an accuracy"
)
NO_ROBUSTNESS = "robustness is left out: without labels there is nothing that an attack could make wrong"
BODY = "Model"


def is_headless(model: nn.Module) -> bool:
    """Whether this is a body of transformers that gives hidden states of tokens, and no logits."""
    inner = unwrap(model)
    config: Any = getattr(inner, "config", None)
    name = type(inner).__name__
    if config is None or not name.endswith(BODY) or name.endswith("LMHeadModel"):
        return False
    return encodes(config) and hasattr(inner, "get_input_embeddings")


def encodes(config: Any) -> bool:
    """Whether models of this configuration read whole texts: those that can be trained to fill masked tokens in."""
    from transformers import AutoModelForMaskedLM

    mapping: Any = AutoModelForMaskedLM
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        return False
    return mapping._model_mapping.get(type(config), None) is not None


class EncoderTask(HuggingFaceTask):
    """Embeddings as outputs, and the model's own, as it was stored, as what they are compared with."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return _embedded(model, self._arguments(model, batch))

    def targets(self, batch: Any) -> Tensor:
        labels = super().targets(batch)
        if labels is None or not labels.is_floating_point():
            raise PosttrainError(
                "batches for an encoder without a head hold its own embeddings as labels: make them with "
                "ModelAnalyzer.data(batches)"
            )
        return labels


def _embedded(model: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    hidden: Tensor = model(**arguments).last_hidden_state
    mask = arguments.get("attention_mask")
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    mean: Tensor = (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)
    return mean


@torch.no_grad()
def with_own_embeddings(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The batches with the model's embeddings of them as labels."""
    task, device = HuggingFaceTask(), model_device(model)
    made = []
    with guard(model):
        for batch in batches:
            if not isinstance(batch, Mapping) or "input_ids" not in batch:
                raise PosttrainError(
                    f"{type(unwrap(model)).__name__} reads dictionaries with input_ids (and attention_mask), not a "
                    f"{type(batch).__name__}"
                )
            bare = {name: value for name, value in batch.items() if name not in ("labels", "label", "label_ids")}
            arguments = task._arguments(model, task.to(bare, device))
            made.append({**bare, "labels": _embedded(model, arguments).float().cpu()})
    return made
