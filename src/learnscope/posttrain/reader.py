"""What a model reads: its vocabulary, the length of its texts, and the kind of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from learnscope.posttrain.errors import PosttrainError
from learnscope.task.huggingface import unwrap

Answer = Literal["tokens", "class", "number", "several"]


@dataclass(frozen=True, slots=True)
class Reader:
    """A model that reads tokens; `positions` is None if texts may have any length."""

    name: str
    answer: Answer
    vocabulary: int
    positions: int | None = None
    classes: tuple[str, ...] = ()
    pad: int | None = None

    @property
    def least(self) -> int:
        """Tokens below which there is nothing to predict."""
        return 2 if self.answer == "tokens" else 1


def reader_of(model: nn.Module) -> Reader:
    """Facts about a model that reads tokens; any other is refused."""
    inner = unwrap(model)
    name = type(inner).__name__
    config: Any = getattr(inner, "config", None)
    vocabulary = _vocabulary(inner, config)
    if vocabulary is None:
        raise PosttrainError(
            f"{name} reads no tokens, so no text can be made into batches for it: pass a loader of batches that it "
            "takes, such as (inputs, targets) or a dictionary with pixel_values and labels"
        )
    positions = getattr(config, "max_position_embeddings", None)
    positions = positions - _before_first(inner) if isinstance(positions, int) and positions > 0 else None
    if not name.endswith("ForSequenceClassification"):
        return Reader(name, "tokens", vocabulary, positions)
    labels = tuple(str(config.id2label[place]) for place in range(config.num_labels))
    answer: Answer = {"regression": "number", "multi_label_classification": "several"}.get(
        config.problem_type or ("regression" if len(labels) == 1 else ""), "class"
    )  # type: ignore[assignment]
    return Reader(name, answer, vocabulary, positions, labels, config.pad_token_id)


def check_tokens(model: nn.Module, batches: Sequence[Any]) -> None:
    """Refuse token ids outside the vocabulary, which torch would only call out of range."""
    inner = unwrap(model)
    known = _vocabulary(inner, getattr(inner, "config", None))
    for number, batch in enumerate(batches):
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if known is None or not isinstance(ids, Tensor) or not ids.numel() or ids.is_floating_point():
            continue
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= known:
            raise PosttrainError(
                f"batch {number} has token {low if low < 0 else high}, and {type(inner).__name__} knows the tokens 0 "
                f"to {known - 1}: the tokenizer or the data are another model's"
            )


def _before_first(model: nn.Module) -> int:
    """Rows of the position embedding that no token uses: RoBERTa counts positions from after the padding's."""
    for path, module in model.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def _vocabulary(model: nn.Module, config: Any) -> int | None:
    if type(model).__name__.endswith("ForImageClassification"):
        return None
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):  # a model of another make, or one without a table
        table = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings
    known = getattr(config, "vocab_size", None)
    return known if isinstance(known, int) else None
