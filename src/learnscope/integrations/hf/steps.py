"""What a session is handed at each step of a trainer: the loss that its gradients are of, ids, logits, sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from learnscope.integrations.hf.ids import KEY, NumberedLoader, take_ids
from learnscope.integrations.hf.kinds import kind_of
from learnscope.integrations.wrapping import Around
from learnscope.session.watch import Watch
from learnscope.task import HuggingFaceTask, Task
from learnscope.task.batches import first_tensor
from learnscope.task.shapes import IGNORE, logits_in

GENERATES = "_generate_and_score_completions"
"""TRL's method that makes the batches of steps from rows of the data set, in an order of its own."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the session's probes need of every step besides the loss."""

    examples: bool = False
    inputs: bool = False
    """Whether examples are handed over with what the model was given."""
    batch: bool = False


class Steps:
    """Stands around a trainer's `training_step` and `compute_loss`, from the beginning of training to its end.

    Trainers pass neither inputs nor the loss to their callbacks: they are taken where these methods are called.
    """

    def __init__(self, trainer: Any, watch: Watch, wanted: Wanted, loader: NumberedLoader | None, task: Task | None):
        self._trainer, self._watch, self._wanted, self._loader = trainer, watch, wanted, loader
        self._task = task or HuggingFaceTask()
        self._loss: Tensor | None = None
        self._ids: Tensor | None = None
        self._in_step, self._hand_over = False, watch.safely(self._give)
        self._seen: tuple[Any, Any] | None = None
        """The last batch as it was before the trainer changed it, and the model's outputs for it."""
        self.around = Around()
        self.around.put(trainer, "training_step", self._step)
        generates = hasattr(trainer, GENERATES)
        if wanted.examples or generates:
            self.around.put(trainer, "compute_loss", self._compute_loss)
        if generates:
            self.around.put(trainer, GENERATES, _generate)

    def remove(self) -> None:
        """Everything is the trainer's own again."""
        self.around.remove()
        if self._loader is not None:
            self._loader.restore()

    def _step(self, method: Callable[..., Tensor], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        self._ids = take_ids(inputs) if isinstance(inputs, Mapping) else None
        if self._watch.wants_sizes and isinstance(inputs, Mapping):
            self._watch.micro_batch(size_of(self._trainer, inputs, *args, **kwargs))
        kept = dict(inputs) if self._wanted.batch and isinstance(inputs, Mapping) else None
        self._in_step = True
        try:
            loss = method(model, inputs, *args, **kwargs)
        finally:
            self._in_step, seen, self._seen = False, self._seen, None
        self._hand_over(model, kept, seen)
        # what the trainer returns is its part of the step's loss: already divided by the micro-batches or by all tokens
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if self._trainer.accelerator.sync_gradients:  # the last micro-batch of the step
            total, self._loss = self._loss, None
            self._watch.log(loss=total)
        return loss

    def _compute_loss(
        self, method: Callable[..., Any], model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        if not self._in_step or not isinstance(inputs, Mapping):
            return method(model, inputs, return_outputs=return_outputs, **kwargs)
        if KEY in inputs:  # a batch of completions: its order is not that of the rows
            self._ids = inputs[KEY]
        if not self._wanted.examples:
            return method(model, inputs, return_outputs=return_outputs, **kwargs)
        before = dict(inputs)
        loss, outputs = method(model, inputs, return_outputs=True, **kwargs)
        self._seen = before, outputs
        return (loss, outputs) if return_outputs else loss

    def _give(self, model: Any, batch: dict[str, Any] | None, seen: tuple[Any, Any] | None) -> None:
        """After the backward of a micro-batch: what is handed over belongs to the step that comes."""
        watch, ids = self._watch, self._ids
        if batch is not None:
            watch.batch(batch if ids is None else {**batch, "ids": ids})
        if seen is not None and ids is not None:
            given, logits = seen[0], logits_in(seen[1])
            targets = self._task.aligned_targets(model, given, logits)
            if targets is not None:
                watch.examples(ids, logits, targets, inputs=given if self._wanted.inputs else None)
        elif ids is not None and batch is None:
            watch.rows(ids)


def _generate(method: Callable[[Any], Any], rows: Any) -> Any:
    """The ids go through generation: the batch that is made of the rows, and then shuffled and split, has them."""
    ids = take_ids(rows)
    made = method(rows)
    if ids is not None and isinstance(made, dict) and len(made["completion_ids"]) == len(ids):
        made[KEY] = ids.to(made["completion_ids"].device)
    return made


def size_of(trainer: Any, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> float:
    """Tokens of a micro-batch that count, where the trainer weighs micro-batches by them; else its examples."""
    labels = inputs.get("labels")
    if num_items_in_batch is not None and isinstance(labels, Tensor):
        shifted = getattr(trainer, "_loss_shifts_labels", False)
        return float((labels[..., 1:] if shifted else labels).ne(IGNORE).sum())
    tensor = first_tensor(inputs)
    return float(0 if tensor is None else len(tensor))


def weighting(trainer: Any) -> Literal["size", "number"]:
    """How the trainer's step weighs micro-batches: by their tokens, or all alike."""
    by_tokens = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    return "size" if by_tokens and kind_of(trainer) in (None, "SFTTrainer") else "number"
