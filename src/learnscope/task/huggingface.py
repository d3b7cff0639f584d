"""Hugging Face batches and models."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from learnscope.task.base import Task
from learnscope.task.batches import GROUP_KEYS, ID_KEYS, first_of
from learnscope.task.calls import unwrap
from learnscope.task.given import given_loss
from learnscope.task.losses import BINARY, LOSSES, LossCallable, in_float32, usual_name
from learnscope.task.shapes import IGNORE, logits_in, loss_in

LABEL_KEYS = ("labels", "label", "label_ids")
MODEL_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")


class HuggingFaceTask(Task):
    """Dictionaries such as `BatchEncoding`, for models whose output has `.logits` (or is a dict or tuple).

    Labels of -100 are ignored, and positions that `attention_mask` hides never count, neither as targets nor as
    the position that predicts the next. Only causal language models are shifted by one (`logits[:, :-1]` against
    `labels[:, 1:]`); they are recognised by the class of the model inside its wrappers, or by `shift`. Without
    labels, a causal language model's targets are the input ids, without those that `attention_mask` hides (all of
    them if there is no mask).

    The labels are not passed to the model, so that it does not compute a loss of its own; neither are keys
    that its `forward` does not accept, nor example ids and groups. Sequence classifiers follow transformers'
    rules: one label is regression, float labels for several are independent yes/no answers.

    Args:
        shift: whether position t of the logits predicts token t + 1; None recognises it by the model's class.
        loss: the training loop's loss, if it is not the model's own.
    """

    def __init__(self, shift: bool | None = None, *, loss: LossCallable | None = None) -> None:
        self.shift = shift
        if loss is not None:
            self.chosen_loss = given_loss(loss)

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return logits_in(model(**self._arguments(model, batch)))

    def targets(self, batch: Any) -> Tensor | None:
        labels = first_of(batch, LABEL_KEYS)
        return None if labels is None else torch.as_tensor(labels)

    def size(self, batch: Any) -> int:
        main = first_of(batch, MODEL_INPUTS)
        return super().size(batch if main is None else main)

    def _arguments(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        inner = unwrap(model)
        parameters = inspect.signature(inner.forward).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        arguments: dict[str, Any] = {}
        for key, value in batch.items():
            if key in LABEL_KEYS:
                continue
            extra = open_ended and isinstance(value, Tensor) and key not in (*ID_KEYS, *GROUP_KEYS)
            if key in parameters or extra:
                arguments[key] = value
        labels = self.targets(batch)
        if labels is None or "labels" not in parameters:
            return arguments
        decoder_inputs = {"decoder_input_ids", "decoder_inputs_embeds"} & arguments.keys()
        if _decodes(inner) and not decoder_inputs and labels.ndim == 2 and not labels.is_floating_point():
            # An encoder-decoder derives its decoder's inputs from the labels. Doing that here avoids its loss.
            shifted = getattr(inner, "prepare_decoder_input_ids_from_labels", None)
            shifted = shifted or getattr(inner, "_shift_right", None)
            arguments |= {"decoder_input_ids": shifted(labels)} if shifted else {"labels": labels}
        elif parameters["labels"].default is inspect.Parameter.empty:
            arguments["labels"] = labels
        return arguments

    def _aligned(
        self, model: nn.Module, batch: Any, logits: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        logits, targets = self.logits(model, batch) if logits is None else logits, self.targets(batch)
        inner = unwrap(model)
        if targets is not None and _problem(inner, targets) in ("regression", "multi_label_classification"):
            targets = targets.float()
        by_token = logits.ndim == 3 and (targets is None or (targets.ndim == 2 and not targets.is_floating_point()))
        if not by_token:
            return logits, targets, None
        mask = batch.get("decoder_attention_mask" if _decodes(inner) else "attention_mask")
        shift = self.shift if self.shift is not None else is_causal(inner)
        if targets is None and shift:
            targets = batch.get("input_ids")
        shape = (targets if targets is not None else logits[..., 0]).shape
        keep = mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else None
        if not shift or targets is None:
            return logits, targets, keep
        if (virtual := logits.shape[1] - targets.shape[1]) > 0:
            # Prompt tuning puts virtual tokens in front: they are never targets, but predict the first token.
            targets = F.pad(targets, (virtual, 0), value=IGNORE)
            keep = None if keep is None else F.pad(keep, (virtual, 0), value=True)
        # The targets are shifted, not the logits: a slice of these would be copied when positions are flattened.
        targets = F.pad(targets[:, 1:], (0, 1), value=IGNORE)
        return logits, targets, None if keep is None else F.pad(keep[:, 1:] & keep[:, :-1], (0, 1), value=False)

    def _each_loss(self, model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
        overridden = type(self).losses is not Task.losses or self.chosen_loss is not None
        if overridden or self.usual_name(model, logits, targets) != BINARY:
            return self.losses(logits, targets)
        logits = in_float32(logits)
        return LOSSES[BINARY](logits, targets.to(logits.dtype))

    def usual_name(self, model: nn.Module, logits: Tensor, targets: Tensor) -> str:
        """The loss that a transformers model computes for such targets."""
        several = _problem(unwrap(model), targets) == "multi_label_classification"
        return BINARY if several else usual_name(logits, targets)

    def own_loss(self, model: nn.Module, batch: Any) -> Tensor | None:
        """What the model itself returns as its loss when it is given the labels; None if it returns none."""
        labels = self.targets(batch)
        if labels is None or "labels" not in inspect.signature(unwrap(model).forward).parameters:
            return None
        return loss_in(model(**{**self._arguments(model, batch), "labels": labels}))


def _config(model: nn.Module, name: str) -> Any:
    config = getattr(model, "config", None)
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _decodes(model: nn.Module) -> bool:
    """Whether the labels belong to a decoder, which has its own tokens and padding."""
    decoder = "decoder_input_ids" in inspect.signature(model.forward).parameters
    return decoder and bool(_config(model, "is_encoder_decoder"))


def is_causal(model: nn.Module) -> bool:
    """Whether position t of the model's logits predicts token t + 1."""
    name = type(model).__name__
    if _config(model, "is_encoder_decoder") or name.endswith(("WithLMHeadModel", "XLNetLMHeadModel")):
        return False
    if name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForConditionalGeneration")):
        return True
    if name.endswith(("ForMaskedLM", "ForPreTraining", "Classification", "Segmentation", "Detection")):
        return False
    if _config(model, "is_decoder"):
        return True
    raise TypeError(
        f"cannot tell whether {name} is a causal language model, whose logits predict the next token; "
        "say so with HuggingFaceTask(shift=True) or HuggingFaceTask(shift=False)"
    )


def _problem(model: nn.Module, targets: Tensor) -> str | None:
    """transformers' `problem_type` of a sequence or image classifier, inferred by its rules if not set."""
    if not type(model).__name__.endswith(("ForSequenceClassification", "ForImageClassification")):
        return None
    problem = _config(model, "problem_type")
    if problem is not None:
        return str(problem)
    labels = _config(model, "num_labels")
    if labels == 1:
        return "regression"
    return "multi_label_classification" if targets.is_floating_point() else None
