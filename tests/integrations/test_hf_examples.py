"""Examples by their ids, although the trainer shuffles, groups by length, drops columns and prefetches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import Words, trainer_on
from learnscope.integrations.hf.ids import KEY, Numbered

CLASSES, SIZE = 3, 22
EPOCHS = 2


def texts(size: int = SIZE) -> list[dict[str, Any]]:
    """Rows of unequal lengths, each with a class and a column that the model does not take."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(2, small.LONGEST, (size,), generator=generator).tolist()
    ids = [torch.randint(1, small.VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return [{"input_ids": row, "label": row[0] % CLASSES, "id": 900 + k} for k, row in enumerate(ids)]


def classifier() -> Any:
    from transformers import LlamaForSequenceClassification

    config = small.language_model(dropout=0).config
    config.num_labels = CLASSES
    torch.manual_seed(0)
    return LlamaForSequenceClassification(config)


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collator that drops what it does not know."""
    assert "id" not in rows[0], "the trainer has dropped it before"
    length = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (length - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([r["label"] for r in rows])}


def expected(trainer_class: Any, seen: dict[int, list[tuple[int, float]]]) -> Any:
    """The trainer, with what it itself computes for each text, known by its tokens and not by a number."""
    of_tokens = {tuple(row["input_ids"]): place for place, row in enumerate(texts())}
    assert len(of_tokens) == SIZE

    class Recorded(trainer_class):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            assert KEY not in inputs
            labels = inputs["labels"].clone()
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            if model.training:
                shares = outputs.logits.detach().softmax(-1)
                for ids, label, share in zip(inputs["input_ids"], labels, shares, strict=True):
                    place = of_tokens[tuple(token for token in ids.tolist() if token)]
                    seen.setdefault(place, []).append((int(share.argmax() == label), float(share[label])))
            return (loss, outputs) if return_outputs else loss

    return Recorded


@pytest.mark.parametrize("sampling", ["random", "group_by_length", "workers", "resumed"])
def test_the_ledger_follows_examples_by_their_places(sampling: str, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import Trainer

    seen: dict[int, list[tuple[int, float]]] = {}
    data = Dataset.from_list(texts())
    options: dict[str, Any] = {"max_steps": -1, "num_train_epochs": EPOCHS, "data_collator": padded}
    if sampling == "group_by_length":
        options["train_sampling_strategy"] = sampling
    elif sampling == "workers":
        options |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    elif sampling == "resumed":
        options |= {"save_strategy": "steps", "save_steps": 4, "maker": expected(Trainer, seen)}
        broken = trainer_on(classifier(), tmp_path, train=data, **options)
        ls.watch_trainer(broken, probes=[ls.ExampleLedger(), ls.Loss()])
        broken.add_callback(_stop_at(4))
        broken.train()
    trainer = trainer_on(classifier(), tmp_path, train=data, **{**options, "maker": expected(Trainer, seen)})
    callback = ls.watch_trainer(trainer, probes=[ls.ExampleLedger(), ls.Loss()])
    trainer.train(resume_from_checkpoint=sampling == "resumed")
    small.assert_no_failures(callback.run)
    table = callback.run.examples().set_index("id")
    assert sorted(table.index) == list(range(SIZE))
    for place, presentations in seen.items():
        right, share = zip(*presentations, strict=True)
        assert len(presentations) == EPOCHS == table.presentations[place]
        assert table.correctness[place] == pytest.approx(np.mean(right))
        assert table.confidence[place] == pytest.approx(np.mean(share), rel=1e-4)
    loader = trainer.callback_handler.train_dataloader
    assert not isinstance(loader.dataset, Numbered), "the loader is the trainer's own again"


def _stop_at(step: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == step

    return Stop()


def test_tokens_of_language_models_are_followed_too(tmp_path: Path) -> None:
    """An example is right where its tokens are; the last one predicts nothing."""
    trainer = trainer_on(small.language_model(dropout=0), tmp_path, train=Words(8), max_steps=4, learning_rate=0.0)
    callback = ls.watch_trainer(trainer, probes=[ls.ExampleLedger(), ls.BatchStats(every=1)])
    trainer.train()
    small.assert_no_failures(callback.run)
    table, model = callback.run.examples().set_index("id"), trainer.model.eval()
    for place in range(8):
        row = small.stacked([Words(8)[place]])
        with torch.no_grad():
            loss = small.token_loss(model(row["input_ids"]).logits, row["labels"]) / small.tokens(row)
        assert table.cumulative_loss[place] == pytest.approx(2 * float(loss), rel=1e-4)
    assert set(callback.run.frame("BatchStats", "batch_size").value) == {2}


def test_the_examples_of_a_loss_that_stands_out_are_named(tmp_path: Path) -> None:
    """With default probes: nothing has to be asked for."""

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            outputs = self.line(x)
            return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}

    rows = [{"x": torch.tensor([k / 48]), "labels": torch.tensor([k / 48])} for k in range(48)]
    rows[45]["labels"] = torch.tensor([1e3])
    trainer = trainer_on(
        Line(), tmp_path, train=rows, max_steps=24, gradient_accumulation_steps=1,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    callback = ls.watch_trainer(trainer)
    trainer.train()
    notes = {record.step: record.notes for record in callback.run.records("Loss") if "rows" in record.notes}
    assert notes[23]["rows"] == [44, 45]
    assert notes[23]["rows_before"] == [42, 43]


class Stream(IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Any:
        return iter([Words()[place] for place in range(24)])


def test_a_stream_has_no_ids(tmp_path: Path) -> None:
    trainer = trainer_on(small.language_model(), tmp_path, train=Stream(), max_steps=3)
    ledger = ls.watch_trainer(trainer, probes=[ls.ExampleLedger()])
    with pytest.raises(ValueError, match="Trainer cannot give them: the training set is a stream"):
        trainer.train()
    trainer.remove_callback(ledger)
    callback = ls.watch_trainer(trainer, probes=[ls.Loss(), ls.GradientFlow(every=1)])
    trainer.train()
    assert len(small.logged(callback.run)) == 3
    assert callback.run.manifest["attempts"][-1]["holdout"]["source"].startswith("none: the training set is a stream")
