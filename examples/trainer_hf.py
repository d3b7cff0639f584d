"""transformers' Trainer, watched by one line: what the run says afterwards.

    python examples/trainer_hf.py            # a few seconds on one core, nothing is downloaded

Needs `pip install 'learnscope[hf]'`.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

import learnscope as ls


def counting(rows: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Rows of numbers, each 1 or 2 above the one before."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 3, (rows, 16), generator=generator)
    tokens = (torch.randint(40, (rows, 1), generator=generator) + steps.cumsum(1)) % 40
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, num_key_value_heads=2, max_position_embeddings=32, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=60, per_device_train_batch_size=8, gradient_accumulation_steps=2,
            learning_rate=5e-3, logging_steps=10, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=counting(2_000, seed=1), eval_dataset=counting(64, seed=2)
        )
        trainer.remove_callback(PrinterCallback)
        callback = ls.watch_trainer(trainer)  # the one line
        trainer.train()

        run = callback.run
        print(run)
        loss = run.frame("Loss", "loss")
        print("training loss:", " → ".join(f"{value:.3f}" for value in loss.value.iloc[[0, 29, 59]]))
        print(run.frame("Holdout", "holdout_loss")[["step", "value"]].to_string(index=False))
        for finding in run.findings():
            print(finding.severity, finding.title)


if __name__ == "__main__":
    main()
