"""Trainers on models that are as small as it gets, and what a loop of one's own would have recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import learnscope as ls

VOCABULARY, LONGEST = 40, 10
RATE, CLIP, EPSILON = 0.02, 0.2, 1e-4
"""Adam's ε is large: with the usual one, rounding of a gradient near 0 is a step of the full rate in any direction."""
EVERY_STEP = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.LearningRate(every=1), ls.Loss()]


class Words(Dataset[dict[str, Tensor]]):
    """Rows of the same length with labels for some of their tokens: how many differs from row to row.

    A token is the one before it and 1 or 2 more, so that there is something to learn.
    """

    def __init__(self, size: int = 24, first: int = 0, **columns: Any) -> None:
        self.size, self.first, self.columns = size, first, columns

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1_000 + self.first + index)
        steps = torch.randint(1, 3, (LONGEST,), generator=generator)
        ids = (torch.randint(0, VOCABULARY, (1,), generator=generator) + steps.cumsum(0)) % VOCABULARY
        counted = 3 + int(torch.randint(0, LONGEST - 3, (1,), generator=generator))
        labels = torch.where(torch.arange(LONGEST) < counted, ids, -100)
        return {"input_ids": ids, "labels": labels, **self.columns}


def language_model(dropout: float = 0.1, seed: int = 0, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "attention_dropout": dropout, **options}))


def quiet(folder: Path, **options: Any) -> dict[str, Any]:
    """What all arguments of trainers have in common here."""
    usual = {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 6,
        "learning_rate": RATE, "max_grad_norm": CLIP, "adam_epsilon": EPSILON, "weight_decay": 0.0,
        "lr_scheduler_type": "linear", "seed": 3,
        "logging_steps": 2, "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True,
        "per_device_eval_batch_size": 4, "gradient_checkpointing": False, "bf16": False,
    }  # fmt: skip
    return usual | options


def trainer_on(model: Any, folder: Path, *, train: Any = None, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """transformers' own trainer; `evaluate`, `collator`, … are passed on."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    theirs = {name: options.pop(name) for name in PASSED_ON if name in options}
    maker = theirs.pop("maker", Trainer)
    arguments = TrainingArguments(**quiet(folder, **options))
    data = Words() if train is None else train
    trainer = maker(model=model, args=arguments, train_dataset=data, callbacks=list(callbacks), **theirs)
    trainer.remove_callback(PrinterCallback)
    return trainer


PASSED_ON = ("eval_dataset", "data_collator", "compute_loss_func", "maker", "model_init")


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def logged(run: ls.Run, name: str = "loss") -> dict[int, float]:
    frame = run.frame("Loss", name)
    return dict(zip(frame.step, frame.value, strict=True))


def norms(run: ls.Run, stage: str) -> list[float]:
    frame = run.frame("GradientFlow", "norm", "model")
    return list(frame[frame.stage == stage].value)


def assert_no_failures(run: ls.Run) -> None:
    assert [record.error for record in run.records() if record.error] == []


@dataclass
class Account:
    """What a loop of one's own computes of each step."""

    losses: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)


def raw_loop(model: nn.Module, steps: Sequence[Sequence[Any]], part_of_loss: Callable[[Any, Any], Tensor]) -> Account:
    """Steps of AdamW with a linear decay and a clip; `part_of_loss(batch, step)` is a micro-batch's part of a loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, eps=EPSILON)
    account = Account()
    for number, micro_batches in enumerate(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - number / len(steps))
        parts = []
        for batch in micro_batches:
            part = part_of_loss(batch, micro_batches)
            part.backward()
            parts.append(float(part.detach()))
        account.losses.append(sum(parts))
        account.before.append(_norm(p.grad for p in model.parameters() if p.grad is not None))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        account.after.append(_norm(p.grad for p in model.parameters() if p.grad is not None))
        old = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        account.moved.append(_norm(p.detach() - o for p, o in zip(model.parameters(), old, strict=True)))
    return account


def assert_equals_the_loop(run: ls.Run, account: Account, rel: float = 1e-4) -> None:
    """Sums in another order (a fused head or a plain one, other shapes) differ in the last digits of float32, and the
    steps that follow make more of that. A loss may be a difference of terms of order 1, as GRPO's is."""
    assert len(account.losses) > 3
    assert list(logged(run).values()) == _near(account.losses, rel)
    assert norms(run, "before_clip") == _near(account.before, rel)
    assert norms(run, "stepped") == _near(account.after, rel)
    moved = run.frame("ParameterChange", "l2", "model").value
    assert list(moved) == _near(account.moved, 10 * rel)
    rates = run.frame("LearningRate", "learning_rate").groupby("step").value.first()
    steps = len(account.losses)
    assert list(rates) == _near([RATE * (1 - k / steps) for k in range(steps)], 1e-6)
    assert max(account.before) > CLIP, "the test itself: something is clipped"


def _near(values: list[float], rel: float) -> Any:
    import pytest

    return pytest.approx(values, rel=rel, abs=1e-6)


def _norm(tensors: Any) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ −ln p of the labels that count, each predicted by the position before it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def tokens(batch: dict[str, Tensor]) -> int:
    return int((batch["labels"][:, 1:] != -100).sum())


def stacked(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def in_order(data: Any, steps: int, rows: int = 2, parts: int = 2) -> list[list[dict[str, Tensor]]]:
    """The micro-batches of each step, if the sampler goes through the data set in order, as often as it takes."""
    per_epoch = math.ceil(len(data) / rows)
    made = []
    for number in range(steps * parts):
        first = rows * (number % per_epoch)
        made.append(stacked([data[place] for place in range(first, min(first + rows, len(data)))]))
    return [made[parts * k : parts * k + parts] for k in range(steps)]
